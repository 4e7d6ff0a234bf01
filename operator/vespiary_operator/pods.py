"""What a pod's status says: readiness, what it waits for, and the verification's answer.

Owns: how container statuses are read. Pure. Called by: `rollout`, `status`, `tuning`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from vespiary_operator import names
from vespiary_spec import verification
from vespiary_spec.errors import ConfigError
from vespiary_spec.verification import Verification

Pod = Mapping[str, Any]

_STUCK_REASONS = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons of waiting that end only when somebody changes something."""

_IMAGE_REASONS = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName"}
)

_NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of an end whose program was never started."""


SILENT_S = 20.0
"""A pod that is not ready, or is to end, is left alone for so long: most of them only start."""


def name(pod: Pod) -> str:
    """Return the pod's name."""
    return str(pod["metadata"]["name"])


def ordinal(pod: Pod) -> int:
    """Return the pod's number in its StatefulSet; -1 if it has none."""
    tail = name(pod).rpartition("-")[2]
    return int(tail) if tail.isdecimal() else -1


def revision(pod: Pod) -> str:
    """Return the revision of the template that the pod was made from."""
    return str((pod["metadata"].get("labels") or {}).get(names.LABEL_REVISION, ""))


def node(pod: Pod) -> str:
    """Return the node that the pod is on; empty before it is scheduled."""
    return str((pod.get("spec") or {}).get("nodeName", ""))


def is_terminating(pod: Pod) -> bool:
    """Return whether the pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_ready(pod: Pod) -> bool:
    """Return whether the pod serves clients."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return not is_terminating(pod) and any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in conditions
    )


def has_served(pod: Pod) -> bool:
    """Return whether the pod serves clients, or has done so since its volumes were looked at."""
    if is_ready(pod):
        return True
    status = _container(pod, names.VERIFY_CONTAINER)
    looked = ((status.get("state") or {}).get("terminated") or {}).get("finishedAt")
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and looked:
            return str(condition.get("lastTransitionTime") or "") > str(looked)
    return False


def is_silent(pod: Pod, now: str) -> bool:
    """Return whether a pod on a node has not been ready for a while, or does not end.

    Args:
        pod: The pod.
        now: The time, RFC 3339; empty if it is not known.
    """
    if not node(pod) or is_ready(pod) or not now:
        return False
    since = str(pod["metadata"].get("deletionTimestamp") or "")
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and not since:
            since = str(condition.get("lastTransitionTime") or "")
    if not since:
        return False
    silent = datetime.fromisoformat(now) - datetime.fromisoformat(since)
    return silent.total_seconds() > SILENT_S


def unscheduled_because(pod: Pod) -> str:
    """Return why no node takes the pod; empty if one does."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "no node fits")
    return ""


def is_unscheduled(pod: Pod) -> bool:
    """Return whether the scheduler has found no node for the pod."""
    return bool(unscheduled_because(pod))


def is_creating(pod: Pod) -> bool:
    """Return whether the pod is on a node, and none of its containers has begun."""
    return bool(node(pod)) and not has_mounted(pod)


def has_mounted(pod: Pod) -> bool:
    """Return whether a container of the pod has begun, so that all its volumes were mounted."""
    return any(
        (status.get("state") or {}).keys() - {"waiting"} or status.get("lastState")
        for status in _statuses(pod)
    )


def ip(pod: Pod) -> str:
    """Return the pod's address; empty if it has none."""
    return str((pod.get("status") or {}).get("podIP", ""))


def _statuses(pod: Pod) -> Iterator[Mapping[str, Any]]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _container(pod: Pod, container: str) -> Mapping[str, Any]:
    return next((s for s in _statuses(pod) if s.get("name") == container), {})


def restarts(pod: Pod) -> int:
    """Return how often the broker's container was started again."""
    return int(_container(pod, names.BROKER_CONTAINER).get("restartCount", 0))


def has_begun(pod: Pod) -> bool:
    """Return whether the broker of a pod ran, or runs: it may have written files."""
    status = _container(pod, names.BROKER_CONTAINER)
    states = (status.get("state") or {}, status.get("lastState") or {})
    ended = (state.get("terminated") or {} for state in states)
    return (
        "running" in states[0]
        or bool(status.get("restartCount"))
        or any(end and end.get("reason") not in _NEVER_RAN for end in ended)
    )


def is_stuck(pod: Pod) -> bool:
    """Return whether the pod waits for somebody to change something."""
    for status in _statuses(pod):
        state = status.get("state") or {}
        if (state.get("waiting") or {}).get("reason") in _STUCK_REASONS:
            return True
    answer = verified(pod)
    return not is_ready(pod) and answer is not None and answer.exit_code != 0


def verified(pod: Pod) -> Verification | None:
    """Return the verification's latest answer; None if there is none that can be read.

    While the container waits to be tried again, the answer is that of its last state.
    """
    status = _container(pod, names.VERIFY_CONTAINER)
    for state in (status.get("state") or {}, status.get("lastState") or {}):
        message = (state.get("terminated") or {}).get("message")
        if message:
            try:
                return verification.decode(message)
            except ConfigError:
                continue
    return None


def is_waiting_for_aio(pod: Pod) -> bool:
    """Return whether the broker waits until its node's `fs.aio-max-nr` has room."""
    answer = verified(pod)
    return answer is not None and bool(answer.waits) and not is_ready(pod)


def _last_words(status: Mapping[str, Any]) -> str:
    for state in (status.get("state") or {}, status.get("lastState") or {}):
        terminated = state.get("terminated") or {}
        message = str(terminated.get("message", "")).strip()
        if terminated.get("exitCode") and message and not message.startswith("{"):
            return message.splitlines()[-1][:400]
    return ""


def waits_for(pod: Pod) -> str:
    """Say in one sentence what the pod waits for; empty if it is ready."""
    if is_ready(pod):
        return ""
    if is_terminating(pod):
        return "It is being stopped."
    answer = verified(pod)
    if answer is not None and answer.refusal:
        return answer.refusal
    if is_unscheduled(pod):
        return f"It cannot be scheduled: {unscheduled_because(pod)}"
    for container in _statuses(pod):
        state = container.get("state") or {}
        waiting = state.get("waiting") or {}
        terminated = state.get("terminated") or {}
        reason = waiting.get("reason") or (
            terminated.get("reason") if terminated.get("exitCode") else ""
        )
        if not reason or reason in ("PodInitializing", "ContainerCreating"):
            continue
        said = _last_words(container) or str(waiting.get("message", ""))
        if reason in _IMAGE_REASONS:
            return (
                f"The image {container.get('image', '')} of its container {container['name']} "
                f"cannot be had ({reason}): {said.rstrip('. ')}. Correct spec.image or "
                "spec.version, or name a Secret for the registry in spec.imagePullSecrets."
            )
        return f"Its container {container['name']} has {reason}: {said}".rstrip(": ")
    return answer.waits if answer is not None and answer.waits else "It is starting."
