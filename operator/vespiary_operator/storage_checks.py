"""What storage classes and PersistentVolumes say about a Broker's volumes before a pod runs.

Owns: layers 1 and 2 of the verification: a class whose driver mounts something that is refused,
and a volume that is bound, reserved for, or next in line for a claim. Layer 3, the truth from
inside the pod, is the broker image's.
Never: talks to the API server; refuses for lack of knowledge.
Called by: `storage_preflight`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vespiary_operator import names
from vespiary_operator.builders.pod_template import RETENTION, volumes_of
from vespiary_operator.builders.statefulset import access_mode, volume_bytes, volume_spec
from vespiary_operator.drift import quantity
from vespiary_spec.filesystems import Verdict
from vespiary_spec.resources import Broker, VolumeSpec
from vespiary_spec.storage_drivers import (
    StorageDriver,
    verdict_from_persistent_volume,
    verdict_from_provisioner,
)

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class Declared(NamedTuple):
    """What a declaration says about one volume.

    Attributes:
        volume: `bindings`, `journal`, `paging`, `large-messages` or `jms`.
        ordinal: The pod whose volume it is; None if it holds for all.
        verdict: A warning or a refusal.
        reason: One word for a condition, if it is a refusal.
    """

    volume: str
    ordinal: int | None
    verdict: Verdict
    reason: str = "VolumeRefused"


class Place(NamedTuple):
    """Where the volume of one pod will come from, as far as that can be told.

    Attributes:
        volume: `bindings`, `journal`, `paging`, `large-messages` or `jms`.
        ordinal: The pod.
        storage_class: Class of the claim; empty for none, None if the cluster has to know it.
        persistent_volume: What is bound to, reserved for, or next in line for the claim.
    """

    volume: str
    ordinal: int
    storage_class: str | None
    persistent_volume: Mapping[str, Any] | None


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


def is_selected(volume: VolumeSpec, labels: Mapping[str, str]) -> bool:
    """Return whether a PersistentVolume's labels are those that a volume asks for."""
    wanted = volume.selector
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
            or spec.get("volumeMode") == "Block"  # which no claim for a filesystem gets
            or not is_selected(volume_spec(broker, volume), found["metadata"].get("labels") or {})
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


def places(
    broker: Broker,
    *,
    classes: Mapping[str, Mapping[str, Any]] | None,
    volumes: Iterable[Mapping[str, Any]] | None,
) -> tuple[Place, ...]:
    """Say where each volume will come from; empty for a Broker that claims nothing.

    The volume of kept copies is left out: it may be on any filesystem.

    Args:
        broker: The Broker.
        classes: StorageClasses by name; None if they may not be read.
        volumes: PersistentVolumes; None if they may not be read.
    """
    if broker.spec.storage.ephemeral or not broker.spec.config.persistence_enabled:
        return ()
    volumes = list(volumes or ())
    reserved = _reserved(volumes)
    taken: set[str] = set()
    found = []
    for name in volumes_of(broker):
        if name == RETENTION:
            continue
        storage_class = class_name(volume_spec(broker, name), classes)
        own = _candidates(broker, name, storage_class or "", volumes)
        own = [volume for volume in own if str(volume["metadata"]["name"]) not in taken]
        for ordinal in range(broker.spec.replicas):
            claim = names.claim(broker.metadata.name, name, ordinal)
            volume = reserved.get((broker.metadata.namespace, claim))
            if volume is None and own:
                volume = own.pop(0)
                taken.add(str(volume["metadata"]["name"]))
            found.append(Place(name, ordinal, storage_class, volume))
    return tuple(found)


def declared(
    broker: Broker,
    *,
    classes: Mapping[str, Mapping[str, Any]] | None,
    volumes: Iterable[Mapping[str, Any]] | None,
    more_drivers: tuple[StorageDriver, ...] = (),
) -> tuple[Declared, ...]:
    """Judge a Broker's volumes by what classes and PersistentVolumes declare.

    Args:
        broker: The Broker.
        classes: StorageClasses by name; None if they may not be read.
        volumes: PersistentVolumes; None if they may not be read.
        more_drivers: What the user adds to the table of drivers.

    Returns:
        Warnings and refusals, refusals first. Empty for an ephemeral Broker, which claims nothing.
        The volume of kept copies may be on any filesystem.
    """
    policy = broker.spec.storage.filesystem_policy
    found: list[Declared] = []
    judged: set[str] = set()
    for place in places(broker, classes=classes, volumes=volumes):
        if place.persistent_volume is not None:
            verdict = verdict_from_persistent_volume(
                place.persistent_volume,
                policy=policy,
                volume=place.volume,
                more_drivers=more_drivers,
            )
            if verdict is not None:
                found.append(Declared(place.volume, place.ordinal, verdict))
            continue
        described = (classes or {}).get(place.storage_class or "")
        if described is None or place.volume in judged:
            continue
        judged.add(place.volume)
        verdict = verdict_from_provisioner(
            str(described.get("provisioner", "")),
            described.get("parameters") or {},
            policy=policy,
            volume=place.volume,
            more_drivers=more_drivers,
        )
        if verdict is not None:
            found.append(Declared(place.volume, None, verdict))
    return tuple(sorted(found, key=lambda item: not item.verdict.is_denied))
