"""What the conditions of a hibernated Broker say.

A Broker that sleeps because its user asked for it needs nobody's help, so Ready is True with the
reason Hibernated: the Broker is as it was asked to be, and what waits for that goes on. That nobody
is served says Available.

Never: decides what is done (that is `scaling`). Called by: `status`.
"""

from __future__ import annotations

from vespiary_operator.conditions import FALSE, TRUE, Finding
from vespiary_operator.observation import Observed
from vespiary_spec.resources import Broker

HIBERNATED = "Hibernated"


def reason(broker: Broker) -> str:
    """Return the reason of conditions of a Broker that is to sleep; empty if it is not."""
    return HIBERNATED if broker.spec.hibernate else ""


def ready(observed: Observed) -> Finding:
    """Return whether a Broker that is to sleep does so."""
    left = len(observed.pods)
    if left:
        brokers = "broker has" if left == 1 else "brokers have"
        return FALSE, "Hibernating", f"{left} {brokers} yet to stop, as spec.hibernate asks."
    return (
        TRUE,
        HIBERNATED,
        "No broker runs, as spec.hibernate asks; claims, Services, Secrets and settings are kept. "
        "Take it out to wake the brokers.",
    )
