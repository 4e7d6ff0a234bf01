"""Pods that are started again because the settings of their broker alone (`spec.perBroker`) ask it.

Owns: when such a restart is due. The broker says itself which settings wait for its next start;
nobody else is restarted for them, one broker at a time, and only while every other serves.
Never: reads the cluster or the clock. Called by: `plan`.
"""

from __future__ import annotations

from vespiary_operator import actions, live_files, pods, scaling
from vespiary_operator.actions import Delete
from vespiary_operator.observation import Observed


def restart(observed: Observed, *, is_busy: bool) -> Delete | None:
    """Return the pod to start again now; None if there is none, or it is not the moment.

    Args:
        observed: What was found.
        is_busy: Whether brokers are restarted for something else, or none may be.
    """
    by_ordinal = {pods.ordinal(pod): pod for pod in observed.pods}
    asked = range(scaling.pods_asked(observed.broker))
    are_serving = all(o in by_ordinal and pods.is_ready(by_ordinal[o]) for o in asked)
    if is_busy or not are_serving or any(pods.is_terminating(pod) for pod in observed.pods):
        return None
    for ordinal in reversed(asked):
        pod = by_ordinal[ordinal]
        settings = live_files.waiting(observed, pod)
        if settings:
            return actions.restart(
                pod,
                "RestartedForOwnSettings",
                "settings of its broker alone, which are in spec.perBroker or were, wait for it: "
                f"{settings}.",
            )
    return None
