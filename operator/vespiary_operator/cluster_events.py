"""What Kubernetes complains about where objects say nothing: a volume that can't be mounted.

A pod that waits for a Secret, a claim that nobody provides for and a StatefulSet whose pods are
refused have no word about it in their status; the kubelet and the controllers write Events.

Owns: which of them count, and as which sentence. Pure.
Never: talks to the API server. Called by: `status`, `observer` (for the selector).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from vespiary_operator import kinds, names, pods, scaling
from vespiary_operator.conditions import FALSE, Finding
from vespiary_operator.observation import Object, Observed

OVERDUE_S = 20.0
"""A claim without a volume is normal for so long; drivers of clouds take seconds."""

_OF_A_POD = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume")
"""Reasons of Events about a pod that has been scheduled and does not start."""

_OF_A_SET = ("FailedCreate",)
_OF_A_CLAIM = ("ProvisioningFailed", "FailedBinding", "VolumeResizeFailed")

_CURES = (
    ("secret", "Create the Secret, or correct the field that names it."),
    ("configmap", "Create the ConfigMap, or correct the field that names it."),
    ("storageclass", "Create the class; that of a claim cannot change."),
    ("serviceaccount", "Create the account, or correct spec.serviceAccount.name."),
    ("exceeded quota", "Raise the namespace's quota, or lower spec.resources."),
    ("violates podsecurity", "The namespace's pod security level refuses the pod."),
)
"""What to do, by what is in the message."""

_OF_VOLUMES = ("volume", "storage")
"""Words of the scheduler where a volume is what a pod lacks."""


def trouble(observed: Observed) -> Finding | None:
    """Return why brokers do not start, where only Events say it; None if none does."""
    name = names.stateful_set(observed.broker.metadata.name)
    for pod in observed.pods:
        if pods.is_ready(pod) or pods.is_terminating(pod):
            continue
        unbound = _unbound(observed, pod)
        if unbound is not None:
            return unbound
        if pods.is_creating(pod):
            said = _latest(observed.events, kinds.POD.name, pods.name(pod), _OF_A_POD, pod)
            if said:
                return FALSE, "PodCannotStart", f"{pods.name(pod)}: {_with_cure(said)}"
    if len(observed.pods) < scaling.pods_asked(observed.broker):
        found = observed.child(kinds.STATEFUL_SET, name)
        said = _latest(observed.events, kinds.STATEFUL_SET.name, name, _OF_A_SET, found)
        if said:
            return (
                FALSE,
                "PodRefused",
                f"A pod of the StatefulSet {name} is not made: " + (_with_cure(said)),
            )
    return None


def _unbound(observed: Observed, pod: pods.Pod) -> Finding | None:
    """Return which claim keeps a pod from being scheduled, or what keeps it and its claims from it.

    While a claim has its node chosen and waits for its driver, the scheduler says nothing for ten
    minutes, so a pod without a node counts as well once its claim is no longer new.
    """
    if pods.node(pod):
        return None
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        found = observed.claims.get(claim)
        if found is None or (found.get("status") or {}).get("phase") != "Pending":
            continue
        if not pods.is_unscheduled(pod) and not _is_overdue(found, observed.now):
            continue
        said = _latest(observed.events, kinds.CLAIM.name, claim, _OF_A_CLAIM, found)
        spec = found.get("spec") or {}
        asked = (spec.get("resources") or {}).get("requests") or {}
        wanted = (
            f"class {spec.get('storageClassName') or 'none'}, {asked.get('storage', '?')}, "
            f"{', '.join(spec.get('accessModes') or ())}"
        )
        why = _with_cure(said)
        because = pods.unscheduled_because(pod)
        if not said and because and not any(word in because.lower() for word in _OF_VOLUMES):
            # The claim waits for the pod's node, so a node is what is missing.
            return (
                FALSE,
                "PodNotScheduled",
                f"{pods.name(pod)} has no node: {_sentence(because)} Correct spec.nodeSelector, "
                "spec.affinity, spec.tolerations or spec.resources, or make room for it.",
            )
        if not said:
            because = because or "its class has provided none so far"
            why = (
                f"{_sentence(because)} Look why its class provides none, or "
                "make a PersistentVolume that fits."
            )
        return FALSE, "ClaimNotBound", f"The claim {claim} ({wanted}) has no volume: {why}"
    return None


def _is_overdue(claim: Object, now: str) -> bool:
    """Return whether a claim was made so long ago that it should have a volume."""
    made = str(claim["metadata"].get("creationTimestamp", ""))
    if not made or not now:
        return False
    age = datetime.fromisoformat(now) - datetime.fromisoformat(made)
    return age.total_seconds() >= OVERDUE_S


def _latest(
    events: Iterable[Object],
    kind: str,
    name: str,
    reasons: tuple[str, ...],
    about: Mapping[str, Any] | None,
) -> str:
    """Return the newest message about one object; empty if there is none."""
    uid = (about or {}).get("metadata", {}).get("uid", "")
    found = [
        event
        for event in events
        if event.get("reason") in reasons
        and event.get("involvedObject", {}).get("kind") == kind
        and event.get("involvedObject", {}).get("name") == name
        and event.get("involvedObject", {}).get("uid", uid) == uid
    ]
    if not found:
        return ""
    return str(max(found, key=_when).get("message", ""))


def _when(event: Object) -> str:
    return str(
        event.get("lastTimestamp")
        or (event.get("series") or {}).get("lastObservedTime")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )


def _with_cure(said: str) -> str:
    cure = next((cure for words, cure in _CURES if words in said.lower()), "")
    return f"{_sentence(said)} {cure}".strip()


def _sentence(said: str) -> str:
    text = " ".join(said.split())
    return text if text.endswith((".", "!", "?")) else f"{text}."
