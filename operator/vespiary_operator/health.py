"""Whether a broker with a new version is healthy: more than that it is ready.

Owns: the gates of an upgrade and what they are measured against.
Never: asks a broker (that is `remote`). Called by: `upgrade`.
"""

from __future__ import annotations

from typing import NamedTuple

from vespiary_operator import pods
from vespiary_operator.observation import BrokerAnswer
from vespiary_operator.pods import Pod
from vespiary_spec.upgrade_status import UpgradeBaseline, UpgradeRates

CRASHES_MAX = 3
"""So many ends of a container with a new version are a failure, whatever the deadline."""

NOTABLE = 20
"""So few errors, or acknowledgements that were to be expected, are no reason to judge a version."""

ERRORS_SHARE_MAX = 0.5
"""Errors of clients, measured against messages that came in at the same time."""

ERRORS_GROWTH_MAX = 2
"""Errors of clients, measured against those of the version before in the same time."""


class Soak(NamedTuple):
    """What a broker is judged by at the end of its soak time.

    Attributes:
        baseline: Its counters when the time began.
        rates: What it did with the version before.
        minutes: How long it was.
    """

    baseline: UpgradeBaseline
    rates: UpgradeRates
    minutes: float


class Health(NamedTuple):
    """What was found about one broker.

    Attributes:
        is_healthy: Whether every gate is open.
        is_hopeless: Whether waiting will not help.
        sentence: What is wrong; empty if nothing is.
    """

    is_healthy: bool
    is_hopeless: bool = False
    sentence: str = ""


GOOD = Health(True)


def of_broker(
    pod: Pod,
    answer: BrokerAnswer | None,
    *,
    is_asked: bool,
    soak: Soak | None = None,
) -> Health:
    """Look at one broker.

    Args:
        pod: Its pod.
        answer: What it says; None if it did not answer.
        is_asked: Whether it can be asked at all; without a password of `admin` readiness has to do.
        soak: Judge what it did in its soak time; None does not.
    """
    name = pods.name(pod)
    if answer is not None and answer.journal_failed_reason:
        return Health(False, True, f"{name} fenced its journal: {answer.journal_failed_reason}")
    if not pods.is_ready(pod):
        crashes = pods.restarts(pod)
        said = f"{name}: {pods.waits_for(pod)}"
        if crashes >= CRASHES_MAX:
            return Health(False, True, f"{said} Its broker ended {crashes} times.")
        return Health(False, False, said)
    if pods.restarts(pod) >= CRASHES_MAX:
        return Health(False, True, f"The broker of {name} ended {pods.restarts(pod)} times.")
    if not is_asked:
        return GOOD
    if answer is None:
        return Health(False, False, f"{name} is ready, and its API does not answer.")
    if answer.not_ready_reason:
        return Health(False, False, f"{name} takes no messages: {answer.not_ready_reason}")
    return GOOD if soak is None else _progress(name, answer, soak)


def _progress(name: str, answer: BrokerAnswer, soak: Soak) -> Health:
    """Judge what a broker did in its soak time; a restart in between is not for this to notice."""
    came = answer.messages_in - soak.baseline.messages_in
    given = answer.messages_out - soak.baseline.messages_out
    done = answer.messages_acknowledged - soak.baseline.messages_acknowledged
    errors = answer.errors - soak.baseline.errors
    expected = soak.rates.acknowledged * soak.minutes
    if came > 0 and given > 0 and done == 0 and expected >= NOTABLE:
        return Health(
            False,
            True,
            f"Queues of {name} grow and consumers get nowhere: {came} messages came in, {given} "
            f"were given to consumers, none was acknowledged. The version before had "
            f"{expected:.0f} acknowledged in that time.",
        )
    usual = soak.rates.errors * soak.minutes
    if errors >= NOTABLE and errors > max(ERRORS_SHARE_MAX * came, ERRORS_GROWTH_MAX * usual):
        return Health(
            False,
            True,
            f"{name} answers clients with errors: {errors} while {came} messages came in. The "
            f"version before had {usual:.0f} errors in that time.",
        )
    return GOOD


def baseline_of(answer: BrokerAnswer | None) -> UpgradeBaseline | None:
    """Return the counters of a broker, to judge it by later."""
    if answer is None:
        return None
    return UpgradeBaseline(
        messages_in=answer.messages_in,
        messages_out=answer.messages_out,
        messages_acknowledged=answer.messages_acknowledged,
        errors=answer.errors,
    )


def rates_of(answer: BrokerAnswer | None) -> UpgradeRates | None:
    """Return what a broker did in a minute so far; None if it is not known."""
    if answer is None or answer.uptime_s <= 0:
        return None
    minutes = max(1.0, answer.uptime_s / 60)
    return UpgradeRates(
        acknowledged=round(answer.messages_acknowledged / minutes),
        errors=round(answer.errors / minutes),
    )
