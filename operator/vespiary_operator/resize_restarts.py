"""Pods that are started again because a volume of theirs cannot grow in use.

Owns: when such a restart is due. A broker that serves is given time, since many drivers say for a
moment that a pod has to be started again and then grow the filesystem in use; one that does not
serve, for instance because its disk is full, loses nothing by it and is restarted at once. One pod
at a time, and only while every other serves.
Never: reads the cluster or the clock. Called by: `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from vespiary_operator import actions, pods, scaling
from vespiary_operator.actions import Delete
from vespiary_operator.claims import ClaimSize
from vespiary_operator.observation import Observed

PENDING_S = 60.0
"""A filesystem that has not grown in use for so long needs its pod to be started again."""


def restart(observed: Observed, found: tuple[ClaimSize, ...], *, is_rolling: bool) -> Delete | None:
    """Return the pod to start again now; None if there is none, or it is not the moment.

    Args:
        observed: What was found.
        found: The claims.
        is_rolling: Whether a change of the pods is on its way, which restarts brokers as well.
    """
    waiting = {size.ordinal: size for size in found if size.is_pending and not size.has_size}
    if not waiting:
        return None
    by_ordinal = {pods.ordinal(pod): pod for pod in observed.pods}
    if any(pods.is_terminating(pod) for pod in observed.pods):
        return None
    away = [
        ordinal
        for ordinal in range(scaling.pods_asked(observed.broker))
        if ordinal not in by_ordinal or not pods.is_ready(by_ordinal[ordinal])
    ]
    # A broker that is away for this very reason comes first; beside any other, nobody is restarted.
    for ordinal in away:
        pod = by_ordinal.get(ordinal)
        if pod is None or ordinal not in waiting:
            continue
        if _waited_s(observed, waiting[ordinal], pod) is not None:
            return _deletion(pod, waiting[ordinal])
    if away or is_rolling:
        return None
    for ordinal in sorted(waiting, reverse=True):
        waited_s = _waited_s(observed, waiting[ordinal], by_ordinal[ordinal])
        if waited_s is not None and waited_s >= PENDING_S:
            return _deletion(by_ordinal[ordinal], waiting[ordinal])
    return None


def _waited_s(observed: Observed, size: ClaimSize, pod: Mapping[str, Any]) -> float | None:
    """Return for how long a pod has run beside a volume that waits for it to be started again.

    None if that is not known, or if the pod was made since: then it has been started again
    already, and doing so once more would not help. A claim that grows by itself does so at a time
    of its own, whatever other claims of the volume wait for.
    """
    for known in observed.broker.status.volumes:
        if known.name != size.volume or not known.pending_since or not observed.now:
            continue
        try:
            since = datetime.fromisoformat(known.pending_since)
            if size.growth is not None and size.growth.at and size.wanted > size.asked:
                since = max(since, datetime.fromisoformat(size.growth.at))
            made = datetime.fromisoformat(pod["metadata"]["creationTimestamp"])
            now = datetime.fromisoformat(observed.now)
        except (KeyError, ValueError):
            return None  # somebody else wrote it; it is written anew
        return None if made > since else (now - since).total_seconds()
    return None


def _deletion(pod: Mapping[str, Any], size: ClaimSize) -> Delete:
    why = f"the filesystem of its claim {size.claim} grows to {size.wanted} bytes only then."
    return actions.restart(pod, "RestartedToGrow", why)
