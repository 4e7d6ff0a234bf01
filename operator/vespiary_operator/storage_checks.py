"""What storage classes and PersistentVolumes say about a Broker's volumes before a pod runs.

Owns: layers 1 and 2 of the verification: a class whose driver mounts something that is refused,
and a volume that is bound, reserved for, or next in line for a claim. Layer 3, the truth from
inside the pod, is the broker image's.
Never: talks to the API server; refuses for lack of knowledge.
Called by: `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vespiary_operator import names
from vespiary_operator.builders.pod_template import RETENTION, volumes_of
from vespiary_operator.builders.statefulset import access_mode, volume_bytes, volume_spec
from vespiary_operator.drift import quantity
from vespiary_spec.filesystems import (
    Verdict,
    verdict_from_persistent_volume,
    verdict_from_provisioner,
)
from vespiary_spec.resources import Broker, VolumeSpec

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class Declared(NamedTuple):
    """What a declaration says about one volume.

    Attributes:
        volume: `bindings`, `journal`, `paging`, `large-messages` or `jms`.
        ordinal: The pod whose volume it is; None if it holds for all.
        verdict: A warning or a refusal.
    """

    volume: str
    ordinal: int | None
    verdict: Verdict


def class_name(wanted: VolumeSpec, classes: Mapping[str, Mapping[str, Any]] | None) -> str | None:
    """Return the storage class of a claim; None if the cluster has to know it.

    Args:
        wanted: The volume as the user wants it.
        classes: StorageClasses by name; None if they may not be read.
    """
    if wanted.storage_class_name is not None or classes is None:
        return wanted.storage_class_name
    defaults = [
        found["metadata"]
        for found in classes.values()
        if (found["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    # As the API server chooses: the youngest of them.
    defaults.sort(key=lambda metadata: str(metadata.get("creationTimestamp", "")))
    return str(defaults[-1]["name"]) if defaults else None


def _matches(selector: VolumeSpec, labels: Mapping[str, str]) -> bool:
    wanted = selector.selector
    if wanted is None:
        return True
    if any(labels.get(key) != value for key, value in (wanted.match_labels or {}).items()):
        return False
    for term in wanted.match_expressions:
        value = labels.get(term.key)
        holds = {
            "In": value in term.values,
            "NotIn": value not in term.values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[term.operator.value]
        if not holds:
            return False
    return True


def _candidates(
    broker: Broker, volume: str, storage_class: str, volumes: Iterable[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return unbound PersistentVolumes that a claim could get, in the binder's order."""
    fitting = []
    for found in volumes:
        spec = found.get("spec") or {}
        if (
            (found.get("status") or {}).get("phase") != "Available"
            or spec.get("claimRef")
            or (spec.get("storageClassName") or "") != storage_class
            or access_mode(broker, volume).value not in (spec.get("accessModes") or ())
            or not _matches(volume_spec(broker, volume), found["metadata"].get("labels") or {})
        ):
            continue
        size = quantity((spec.get("capacity") or {}).get("storage", 0)) or 0
        if size >= volume_bytes(broker, volume):
            fitting.append((size, str(found["metadata"]["name"]), found))
    return [found for _, _, found in sorted(fitting, key=lambda item: item[:2])]


def _reserved(volumes: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return PersistentVolumes by the claim that they are bound to or reserved for."""
    found = {}
    for volume in volumes:
        reference = (volume.get("spec") or {}).get("claimRef") or {}
        if reference:
            found[reference.get("namespace", ""), reference.get("name", "")] = volume
    return found


def declared(
    broker: Broker,
    *,
    classes: Mapping[str, Mapping[str, Any]] | None,
    volumes: Iterable[Mapping[str, Any]] | None,
) -> tuple[Declared, ...]:
    """Judge a Broker's volumes by what classes and PersistentVolumes declare.

    Args:
        broker: The Broker.
        classes: StorageClasses by name; None if they may not be read.
        volumes: PersistentVolumes; None if they may not be read.

    Returns:
        Warnings and refusals, refusals first. Empty for an ephemeral Broker, which claims nothing.
        The volume of kept copies may be on any filesystem.
    """
    if broker.spec.storage.ephemeral or not broker.spec.config.persistence_enabled:
        return ()
    policy = broker.spec.storage.filesystem_policy
    volumes = list(volumes or ())
    reserved = _reserved(volumes)
    found: list[Declared] = []
    for name in volumes_of(broker):
        if name == RETENTION:
            continue
        storage_class = class_name(volume_spec(broker, name), classes)
        own = _candidates(broker, name, storage_class or "", volumes)
        uses_class = False
        for ordinal in range(broker.spec.replicas):
            claim = names.claim(broker.metadata.name, name, ordinal)
            volume = reserved.get((broker.metadata.namespace, claim))
            if volume is None and own:
                volume = own.pop(0)
            if volume is None:
                uses_class = True
                continue
            verdict = verdict_from_persistent_volume(volume, policy=policy, volume=name)
            if verdict is not None:
                found.append(Declared(name, ordinal, verdict))
        described = (classes or {}).get(storage_class or "")
        if uses_class and described is not None:
            verdict = verdict_from_provisioner(
                str(described.get("provisioner", "")),
                described.get("parameters") or {},
                policy=policy,
                volume=name,
            )
            if verdict is not None:
                found.append(Declared(name, None, verdict))
    return tuple(sorted(found, key=lambda item: not item.verdict.is_denied))
