"""The claims that are there already: how large they are, and made larger where the Broker asks.

A claim that is larger than the Broker asks for is fine: others may grow claims as well, and so does
`auto_growth`. A growth that failed is taken back when the Broker asks for less again, but never
below what there is.

Never: reads the cluster; makes a claim (the StatefulSet controller does) or shrinks one.
Called by: `plan`, `size_status`, `resize_restarts`, `replacement`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from vespiary_operator import auto_growth, kinds, names, scaling
from vespiary_operator.actions import Apply
from vespiary_operator.auto_growth import Growth, Outlook
from vespiary_operator.builders import statefulset
from vespiary_operator.builders.pod_template import volumes_of
from vespiary_operator.drift import quantity
from vespiary_operator.observation import Observed

_INFEASIBLE = ("ControllerResizeInfeasible", "NodeResizeInfeasible")
_ERRORS = ("ControllerResizeError", "NodeResizeError")
_PENDING = "FileSystemResizePending"


class ClaimSize(NamedTuple):
    """How large one claim is and should be, in bytes.

    Attributes:
        claim: Name of the claim.
        volume: Name of the volume.
        ordinal: Its broker.
        asked: What the Broker asks for.
        wanted: The same, or more where it grows by itself.
        requested: What the claim asks for.
        capacity: What there is; None before the claim is bound.
        is_pending: Whether it grows when its pod is started again.
        failure: What the storage driver says about a growth that failed; empty if none has.
        refusal: Why it cannot be made as large as the Broker asks for; empty if it can.
        is_own_request: Whether what the claim asks for was last set by this operator.
        growth: How it grows by itself, or has, to what it asks for; None if it does not.
        outlook: What is due about its room.
    """

    claim: str
    volume: str
    ordinal: int
    asked: int
    wanted: int
    requested: int
    capacity: int | None
    is_pending: bool
    failure: str
    refusal: str
    is_own_request: bool
    growth: Growth | None = None
    outlook: Outlook = Outlook()

    @property
    def has_size(self) -> bool:
        """Whether it is as large as asked for, or larger."""
        return self.capacity is not None and self.capacity >= self.wanted


def sizes(observed: Observed) -> tuple[ClaimSize, ...]:
    """Return the claims of all brokers that have data, by volume and ordinal."""
    broker = observed.broker
    live = observed.child(kinds.STATEFUL_SET, names.stateful_set(broker.metadata.name))
    members = scaling.scale(broker, live).members
    if broker.spec.storage.ephemeral:
        return ()
    found = []
    for volume in volumes_of(broker):
        asked = statefulset.volume_bytes(broker, volume)
        for ordinal in range(members):
            name = names.claim(broker.metadata.name, volume, ordinal)
            claim = observed.claims.get(name)
            if claim is not None:
                found.append(_size(observed, claim, volume, ordinal, asked))
    return tuple(found)


def _size(
    observed: Observed, claim: Mapping[str, Any], volume: str, ordinal: int, asked: int
) -> ClaimSize:
    name = claim["metadata"]["name"]
    status = claim.get("status") or {}
    requests = (claim["spec"].get("resources") or {}).get("requests") or {}
    requested = int(quantity(requests.get("storage", 0)) or 0)
    there = quantity((status.get("capacity") or {}).get("storage"))
    capacity = int(there) if there is not None and status.get("phase") == "Bound" else None
    conditions = {
        condition.get("type"): str(condition.get("message") or condition.get("reason") or "")
        for condition in status.get("conditions") or ()
        if condition.get("status") == "True"
    }
    progress = (status.get("allocatedResourceStatuses") or {}).get("storage", "")
    failure = next((f"{kind}: {conditions[kind]}" for kind in _ERRORS if kind in conditions), "")
    if not failure and progress in _INFEASIBLE:
        failure = f"{progress}: the storage driver cannot make it so large"
    growth, outlook = _by_itself(observed, claim, volume, ordinal, asked, requested, capacity)
    wanted = asked if growth is None else max(asked, growth.to_bytes)
    return ClaimSize(
        claim=name,
        volume=volume,
        ordinal=ordinal,
        asked=asked,
        wanted=wanted,
        requested=requested,
        capacity=capacity,
        is_pending=_PENDING in conditions or progress == "NodeResizePending",
        failure=failure if capacity is None or capacity < requested else "",
        refusal=_refusal(observed, claim, wanted, requested)
        or _fixed(observed, claim, volume, capacity),
        is_own_request=_is_own_request(claim),
        growth=growth,
        outlook=outlook,
    )


def _by_itself(
    observed: Observed,
    claim: Mapping[str, Any],
    volume: str,
    ordinal: int,
    asked: int,
    requested: int,
    capacity: int | None,
) -> tuple[Growth | None, Outlook]:
    """Return how a claim grows by itself now or has, and what is due about its room."""
    allowed = auto_growth.rule(observed.broker, volume)
    if allowed is None or capacity is None:
        return None, Outlook()
    last = auto_growth.noted(claim)
    if last is not None and last.to_bytes != requested:
        last = None  # a person, or another size of the Broker, has come in between
    if last is not None and capacity < last.to_bytes > allowed.max_size:
        last = msgspec.structs.replace(last, to_bytes=allowed.max_size)
    if capacity < requested or asked > requested or _fixed(observed, claim, volume, capacity):
        return last, Outlook()  # one growth at a time, and none that cannot be
    outlook = auto_growth.outlook(observed, claim, volume, ordinal, capacity)
    return outlook.growth or last, outlook


def _refusal(observed: Observed, claim: Mapping[str, Any], wanted: int, requested: int) -> str:
    """Return why a claim cannot grow; empty if it can, or need not."""
    if wanted <= requested:
        return ""
    name = claim["metadata"]["name"]
    what = f"The claim {name} cannot grow from {requested} to {wanted} bytes"
    if (claim.get("status") or {}).get("phase") != "Bound":
        return f"{what} before it is bound to a volume."
    why = _class_refusal(observed, claim)
    return f"{what}: {why} ask for the former size." if why else ""


def _fixed(observed: Observed, claim: Mapping[str, Any], volume: str, capacity: int | None) -> str:
    """Return why a claim that may grow by itself never will; empty if it can."""
    allowed = auto_growth.rule(observed.broker, volume)
    if allowed is None or capacity is None or capacity >= allowed.max_size:
        return ""
    why = _class_refusal(observed, claim)
    if not why:
        return ""
    return (
        f"The claim {claim['metadata']['name']} cannot grow by itself, as "
        f"spec.storage.volumes.{names.spec_name(volume)}.autoGrow asks: {why} take autoGrow out."
    )


def _class_refusal(observed: Observed, claim: Mapping[str, Any]) -> str:
    """Return what of its storage class keeps a claim from growing; empty if nothing does.

    It ends in the middle of a sentence, before what else there is to do.
    """
    if observed.classes is None:
        return ""  # the API server knows, and refuses what cannot be done
    storage_class = str(claim["spec"].get("storageClassName") or "")
    found = observed.classes.get(storage_class)
    if found is None:
        missing = f"its storage class {storage_class} does not exist"
        why = missing if storage_class else "it has no storage class"
        return f"{why}. Only a class with allowVolumeExpansion lets claims grow:"
    if not found.get("allowVolumeExpansion"):
        return (
            f"its storage class {storage_class} does not allow it. Set allowVolumeExpansion: true "
            "there, if its driver can, or"
        )
    return ""


def _is_own_request(claim: Mapping[str, Any]) -> bool:
    """Return whether the size that a claim asks for was set by this operator."""
    for entry in claim["metadata"].get("managedFields") or ():
        if entry.get("manager") != names.MANAGER or entry.get("subresource"):
            continue
        part: Any = entry.get("fieldsV1") or {}
        for field in ("f:spec", "f:resources", "f:requests"):
            part = part.get(field) or {}
        if "f:storage" in part:
            return True
    return False


def changes(observed: Observed, found: tuple[ClaimSize, ...]) -> Iterator[Apply]:
    """Yield the writes that let claims grow, or take a growth back that came to nothing.

    None of them stops what else has to be done if it is refused: each claim is on its own.
    """
    for size in found:
        growth = size.growth if size.wanted > size.asked else None
        if size.wanted > size.requested and not size.refusal and growth is not None:
            allowed = auto_growth.rule(observed.broker, size.volume)
            assert allowed is not None
            reason, sentence = "AutoGrowing", auto_growth.sentence(size.claim, growth, allowed)
        elif size.wanted > size.requested and not size.refusal:
            reason = "Growing"
            sentence = f"The claim {size.claim} grows from {size.requested} to {size.wanted} bytes."
        elif _is_to_be_taken_back(size):
            reason = "GrowthTakenBack"
            sentence = (
                f"The claim {size.claim} asks for {size.wanted} bytes again instead of "
                f"{size.requested}: it never grew beyond {size.capacity}."
            )
        else:
            continue
        yield Apply(
            manifest=statefulset.grown_claim(
                observed.broker,
                size.claim,
                size.wanted,
                None if growth is None else auto_growth.note(growth),
            ),
            reason=reason,
            sentence=sentence,
            is_independent=True,
        )


def _is_to_be_taken_back(size: ClaimSize) -> bool:
    """Return whether a request is ours, is too large now, and has not been met.

    The API server takes a smaller request only while it is above the capacity.
    """
    return (
        size.is_own_request
        and size.capacity is not None
        and size.capacity < size.wanted < size.requested
    )
