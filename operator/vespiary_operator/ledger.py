"""The ledger of restarts: who restarted which broker, when, why, and from what to what.

Restarts are noticed by comparing pods with what they were at the last look, so one that nobody
asked for is in it too, and an operator that was away misses none but those in between. Why a pod
has another template is read off both pods. Why one was made again as it was cannot be: that is
written into the status before the pod is deleted (`is_to_be_noted`).

Owns: the last restarts in the status. Never: restarts anything. Called by: `status`, `reconciler`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from vespiary_operator import kinds, names, pods, templates
from vespiary_operator.actions import Action, Delete
from vespiary_operator.pods import Pod
from vespiary_spec.status import BrokerStatus
from vespiary_spec.upgrade_status import (
    RESTARTS_MAX,
    KnownPod,
    RestartRecord,
    UpgradeStage,
    UpgradeStatus,
)

KUBELET = "kubelet"
UNKNOWN = "unknown"
_MESSAGE_CHARACTERS = 512
_BACK = (UpgradeStage.ROLLING_BACK, UpgradeStage.ROLLED_BACK)


class Ledger(NamedTuple):
    """Restarts and what the next look compares with."""

    restarts: tuple[RestartRecord, ...]
    known: tuple[KnownPod, ...]


def noticed(
    before: BrokerStatus,
    running: Iterable[Pod],
    upgrade: UpgradeStatus | None,
    now: str,
    actions: Iterable[Action] = (),
) -> Ledger:
    """Return the ledger after a look at the pods.

    Args:
        before: The status so far.
        running: Pods as they are.
        upgrade: Where an upgrade stands.
        now: The time, RFC 3339.
        actions: What is done now; a pod that is deleted is known to be restarted by us.
    """
    deleted = {
        action.uid: action.sentence
        for action in actions
        if isinstance(action, Delete) and action.kind is kinds.POD
    }
    known = {pod.name: pod for pod in before.known_pods}
    found = []
    for pod in running:
        seen = _seen(pod)
        old = known.get(seen.name)
        why = deleted.get(seen.uid, "")
        if not why and old is not None and old.uid == seen.uid and pods.is_terminating(pod):
            why = old.leaves_for
        seen = msgspec.structs.replace(seen, leaves_for=why[:_MESSAGE_CHARACTERS])
        if old is not None and old != seen:
            record = _record(pod, old, seen, upgrade, now)
            if record is not None:
                found.append(record)
        known[seen.name] = seen
    # A pod that is gone for the moment stays known: the one that takes its place is a restart.
    restarts = before.restarts
    for record in found:
        if restarts and _is_again(restarts[0], record):
            restarts = restarts[1:]
        restarts = (record, *restarts)
    return Ledger(restarts[:RESTARTS_MAX], tuple(known[name] for name in sorted(known)))


def is_to_be_noted(before: BrokerStatus, after: BrokerStatus) -> bool:
    """Return whether a pod is to be deleted for a reason that is not written down yet.

    Args:
        before: The status as it is written.
        after: The status with what is done now.
    """
    noted = {(pod.uid, pod.leaves_for) for pod in before.known_pods}
    return any(
        pod.leaves_for and (pod.uid, pod.leaves_for) not in noted for pod in after.known_pods
    )


def _is_again(last: RestartRecord, record: RestartRecord) -> bool:
    """Return whether a container ends over and over, which is one line of the ledger."""
    return record.actor == KUBELET and all(
        getattr(last, name) == getattr(record, name)
        for name in ("broker", "actor", "reason", "to_revision")
    )


def trimmed(known: Iterable[KnownPod], *, replicas: int) -> tuple[KnownPod, ...]:
    """Forget pods that are no longer wanted: if they come back, that is no restart."""
    return tuple(pod for pod in known if _ordinal(pod.name) < replicas)


def _ordinal(name: str) -> int:
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdecimal() else 0


def _seen(pod: Pod) -> KnownPod:
    return KnownPod(
        name=pods.name(pod),
        uid=str(pod["metadata"].get("uid", "")),
        revision=pods.revision(pod),
        image=templates.image_of(pod),
        container_restarts=pods.restarts(pod),
    )


def _record(
    pod: Pod, old: KnownPod, new: KnownPod, upgrade: UpgradeStatus | None, now: str
) -> RestartRecord | None:
    if old.uid == new.uid and new.container_restarts <= old.container_restarts:
        return None
    reason, actor, message = _why(pod, old, new, upgrade)
    return RestartRecord(
        broker=new.name,
        at=now,
        reason=reason,
        actor=actor,
        from_revision=old.revision,
        to_revision=new.revision,
        message=message[:_MESSAGE_CHARACTERS],
    )


def _why(
    pod: Pod, old: KnownPod, new: KnownPod, upgrade: UpgradeStatus | None
) -> tuple[str, str, str]:
    """Return reason, actor and sentence."""
    if old.uid == new.uid:
        ended = _last_end(pod)
        reason = str(ended.get("reason") or "Ended")
        code = ended.get("exitCode", "not known")
        times = new.container_restarts
        return (
            reason,
            KUBELET,
            f"The container of the broker ended with exit code {code}; it has been started again "
            f"{times} {'time' if times == 1 else 'times'}.",
        )
    if old.revision == new.revision and old.leaves_for:
        return "Restarted", names.MANAGER, old.leaves_for
    if old.revision == new.revision:
        return (
            "Replaced",
            UNKNOWN,
            "The pod was deleted, evicted or lost with its node, and made again as it was.",
        )
    if old.image not in ("", new.image):
        if upgrade is not None and upgrade.stage in _BACK:
            return "Rollback", names.MANAGER, upgrade.message
        return "Upgrade", names.MANAGER, f"It goes from {old.image} to {new.image}."
    return "SettingsChanged", names.MANAGER, "The template of the pods was changed."


def _last_end(pod: Pod) -> dict[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    for status in statuses:
        if status.get("name") == names.BROKER_CONTAINER:
            return dict((status.get("lastState") or {}).get("terminated") or {})
    return {}
