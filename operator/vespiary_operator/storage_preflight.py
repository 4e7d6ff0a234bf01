"""Whether a Broker's claims can be bound at all, and attached to one node, before pods wait for it.

Owns: the sentences about storage classes that do not exist, PersistentVolumes that do not fit or
are another's, classes that bind too early, and nodes that can't attach so many volumes.
Never: talks to the API server; refuses for lack of knowledge. It is silent about a claim that is
bound, whatever became of its class since.
Called by: `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vespiary_operator import names
from vespiary_operator.builders.statefulset import access_mode, volume_bytes, volume_spec
from vespiary_operator.drift import quantity
from vespiary_operator.observation import Observed
from vespiary_operator.options import Options
from vespiary_operator.storage_checks import Declared, Place, declared, is_selected, places
from vespiary_spec import units
from vespiary_spec.filesystems import Verdict
from vespiary_spec.resources import Broker
from vespiary_spec.status import VerdictLevel

_STATIC = "kubernetes.io/no-provisioner"
_SHOWN_MAX = 3

Object = Mapping[str, Any]


def judge(observed: Observed, options: Options) -> tuple[Declared, ...]:
    """Return everything that classes, PersistentVolumes and nodes declare; refusals first.

    Args:
        observed: What was found.
        options: With the user's table of storage drivers.
    """
    broker = observed.broker
    found = list(
        declared(
            broker,
            classes=observed.classes,
            volumes=observed.volumes,
            more_drivers=options.storage_drivers,
        )
    )
    unbound = [
        place
        for place in places(broker, classes=observed.classes, volumes=observed.volumes)
        if place.persistent_volume is None and not _is_bound(observed, place)
    ]
    if observed.classes is not None:
        found += _without_volume(observed, unbound)
        found += _bound_too_early(observed.classes, unbound)
        found += _too_many(observed, observed.classes, unbound)
    return tuple(sorted(found, key=lambda item: not item.verdict.is_denied))


def leans_on_lists(observed: Observed, found: Iterable[Declared]) -> bool:
    """Return whether another look at classes and PersistentVolumes might change what was found.

    Args:
        observed: What was found.
        found: What was made of it.

    Returns:
        True for a refusal, and for a volume that nobody has claimed yet: somebody may have made or
        taken it since.
    """
    here = places(observed.broker, classes=observed.classes, volumes=observed.volumes)
    return any(item.verdict.is_denied for item in found) or any(
        place.persistent_volume is not None
        and not (place.persistent_volume.get("spec") or {}).get("claimRef")
        for place in here
    )


def _is_bound(observed: Observed, place: Place) -> bool:
    claim = observed.claims.get(
        names.claim(observed.broker.metadata.name, place.volume, place.ordinal)
    )
    return claim is not None and bool((claim.get("spec") or {}).get("volumeName"))


def _deny(volume: str, reason: str, sentence: str) -> Declared:
    return Declared(volume, None, Verdict(VerdictLevel.DENY, sentence), reason)


def _warn(volume: str, sentence: str) -> Declared:
    return Declared(volume, None, Verdict(VerdictLevel.WARN, sentence))


# --- classes that do not exist, volumes that do not fit ------------------------------------------


def _without_volume(observed: Observed, unbound: Iterable[Place]) -> Iterator[Declared]:
    """Refuse volumes that nothing can give; one sentence for each role."""
    classes = observed.classes or {}
    said: set[str] = set()
    for place in unbound:
        if place.volume in said:
            continue
        said.add(place.volume)
        field = f"spec.storage.volumes.{_camel(place.volume)}"
        name = place.storage_class
        if name is None:
            if classes:  # a cluster without any class has its own ways
                yield _warn(
                    place.volume,
                    f"The volume {place.volume} names no storage class, and the cluster has no "
                    f"default one. Name one in {field}.storageClassName ({_listed(classes)}), or "
                    "mark one as the default.",
                )
            continue
        described = classes.get(name)
        has_selector = volume_spec(observed.broker, place.volume).selector is not None
        is_static = described is None or str(described.get("provisioner", "")) == _STATIC
        if not is_static and not has_selector:
            continue
        own = [
            volume
            for volume in observed.volumes or ()
            if ((volume.get("spec") or {}).get("storageClassName") or "") == name
        ]
        if described is None and name and not own:
            yield _deny(
                place.volume,
                "StorageClassMissing",
                f"The volume {place.volume} asks for the storage class {name}, which does not "
                f"exist ({_listed(classes)}). Create it, or make the Broker anew with another "
                f"{field}.storageClassName, which cannot change.",
            )
        elif observed.volumes is not None:
            yield _deny(
                place.volume,
                "NoVolumeFits",
                f"No PersistentVolume fits the volume {place.volume}: "
                f"{_misfits(observed.broker, place.volume, own)}. Create one of class "
                f"{name or 'none'} with {access_mode(observed.broker, place.volume).value}, "
                f"volumeMode Filesystem and at least "
                f"{units.format_quantity(volume_bytes(observed.broker, place.volume))}"
                f"{', and the labels that the selector asks for' if has_selector else ''}.",
            )


def _listed(classes: Mapping[str, Object]) -> str:
    shown = sorted(classes)[:10]
    return f"there are: {', '.join(shown)}" if shown else "there is none at all"


def _camel(volume: str) -> str:
    head, _, tail = volume.partition("-")
    return head + tail.capitalize()


def _misfits(broker: Broker, volume: str, own: list[Object]) -> str:
    """Say of each PersistentVolume of the class why it is not taken."""
    if not own:
        return "there is none of its class"
    wanted = volume_spec(broker, volume)
    chosen = [found for found in own if is_selected(wanted, found["metadata"].get("labels") or {})]
    if not chosen:
        return f"none of the {len(own)} of its class has the labels that its selector asks for"
    said = [_misfit(broker, volume, found) for found in chosen[:_SHOWN_MAX]]
    if len(chosen) > _SHOWN_MAX:
        said.append(f"and {len(chosen) - _SHOWN_MAX} more")
    return "; ".join(said)


def _misfit(broker: Broker, volume: str, found: Object) -> str:
    name, spec = found["metadata"]["name"], found.get("spec") or {}
    reference = spec.get("claimRef") or {}
    if reference:
        return (
            f"{name} is claimed by {reference.get('namespace', '')}/{reference.get('name', '')}, "
            "and a volume is one claim's alone"
        )
    if spec.get("volumeMode") == "Block":
        return f"{name} is a raw block device (volumeMode: Block)"
    mode = access_mode(broker, volume).value
    if mode not in (spec.get("accessModes") or ()):
        return f"{name} does not take {mode}"
    size = int(quantity((spec.get("capacity") or {}).get("storage", 0)) or 0)
    if size < volume_bytes(broker, volume):
        return f"{name} has {units.format_quantity(size)} only"
    phase = (found.get("status") or {}).get("phase", "")
    if phase != "Available":
        return f"{name} is {phase or 'not available'}"
    return f"{name} goes to another volume of this Broker"


# --- classes that bind at once, nodes that attach too few ----------------------------------------


def _bound_too_early(classes: Mapping[str, Object], unbound: Iterable[Place]) -> Iterator[Declared]:
    """Warn of several volumes of one pod that are bound before its node is chosen."""
    early: dict[str, list[str]] = {}
    for place in unbound:
        described = classes.get(place.storage_class or "")
        if described is None or place.ordinal != 0:
            continue
        if (described.get("volumeBindingMode") or "Immediate") == "Immediate":
            early.setdefault(place.storage_class or "", []).append(place.volume)
    for name, roles in early.items():
        if len(roles) > 1:
            yield _warn(
                roles[0],
                f"The volumes {', '.join(roles)} are of the storage class {name}, which binds them "
                "before a node is chosen (volumeBindingMode: Immediate): they may come to lie in "
                "different zones, where no pod can have them all. Use a class with "
                "WaitForFirstConsumer.",
            )


def _too_many(
    observed: Observed, classes: Mapping[str, Object], unbound: Iterable[Place]
) -> Iterator[Declared]:
    """Warn where the nodes' attach limits are too low for the brokers; nothing if unknown."""
    needed: dict[str, list[str]] = {}
    for place in unbound:
        described = classes.get(place.storage_class or "")
        if described is not None and place.ordinal == 0:
            needed.setdefault(str(described.get("provisioner", "")), []).append(place.volume)
    for driver, roles in needed.items():
        limits = [
            int(found["allocatable"]["count"])
            for node in observed.csi_nodes or ()
            for found in (node.get("spec") or {}).get("drivers") or ()
            if found.get("name") == driver and "count" in (found.get("allocatable") or {})
        ]
        if not limits:
            continue
        room = sum(limit // len(roles) for limit in limits)
        if room >= observed.broker.spec.replicas:
            continue
        yield _warn(
            roles[0],
            f"Each broker attaches {len(roles)} volumes of the driver {driver}, and its nodes "
            f"attach at most {', '.join(str(limit) for limit in sorted(limits)[:10])}: there is "
            f"room for {room} of {observed.broker.spec.replicas} brokers, less what other pods "
            "attach. Add nodes, or use a driver with a higher limit.",
        )
