"""How far the volumes have grown, as numbers, sentences and a condition.

Owns: `status.volumes[]` and `VolumesSized`. Pure: time is an argument.
Never: decides what is done. Called by: `status`, `resize_restarts`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vespiary_operator import auto_growth
from vespiary_operator.builders import statefulset
from vespiary_operator.builders.pod_template import volumes_of
from vespiary_operator.claims import ClaimSize
from vespiary_operator.conditions import FALSE, TRUE, UNKNOWN, Finding
from vespiary_spec.resources import Broker
from vespiary_spec.volume_status import GrownClaim, VolumeSize


def volumes(broker: Broker, found: Iterable[ClaimSize], *, now: str) -> tuple[VolumeSize, ...]:
    """Return the sizes of the volumes that have claims.

    Args:
        broker: The Broker, with its last status.
        found: Its claims.
        now: The time, RFC 3339.
    """
    before = {volume.name: volume for volume in broker.status.volumes}
    by_volume: dict[str, list[ClaimSize]] = {}
    for size in found:
        by_volume.setdefault(size.volume, []).append(size)
    return tuple(
        _volume(broker, name, by_volume[name], before.get(name), now)
        for name in (volumes_of(broker) if by_volume else ())
        if name in by_volume
    )


def _volume(
    broker: Broker, name: str, found: list[ClaimSize], before: VolumeSize | None, now: str
) -> VolumeSize:
    bound = [size.capacity for size in found if size.capacity is not None]
    pending = any(size.is_pending and not size.has_size for size in found)
    wanted = statefulset.volume_bytes(broker, name)
    # Another size is another growth, and a restart for the former one does not count for it.
    is_same = before is not None and before.requested_bytes == wanted
    since = before.pending_since if before is not None and is_same else ""
    return VolumeSize(
        name=name,
        requested_bytes=wanted,
        capacity_bytes=min(bound) if bound else None,
        largest_bytes=max(bound) if bound else None,
        claims=f"{sum(size.has_size for size in found)}/{len(found)}",
        pending_since=(since or now) if pending else "",
        grown=_grown(broker, found),
        message=next(
            (said for size in found if (said := sentence(size) or _room(broker, size))), ""
        ),
    )


def _grown(broker: Broker, found: list[ClaimSize]) -> tuple[GrownClaim, ...]:
    """Return the claims that ask for what they do because they filled up."""
    return tuple(
        GrownClaim(
            claim=size.claim,
            from_bytes=size.growth.from_bytes,
            to_bytes=size.growth.to_bytes,
            at=size.growth.at,
            message=auto_growth.sentence(size.claim, size.growth, allowed),
        )
        for size in found
        if size.growth is not None
        and size.wanted == size.requested
        and (allowed := auto_growth.rule(broker, size.volume)) is not None
    )


def _room(broker: Broker, size: ClaimSize) -> str:
    """Say why a claim is short of room and does not grow by itself; empty if that is not so."""
    allowed = auto_growth.rule(broker, size.volume)
    if allowed is None or not size.outlook.is_exhausted:
        return size.outlook.hindrance
    return auto_growth.exhausted(size.claim, size.volume, allowed)


def sentence(size: ClaimSize) -> str:
    """Say what a claim's growth waits for; empty when it is as large as asked for."""
    if size.refusal:
        return size.refusal
    if size.has_size or size.capacity is None:
        return ""
    grows = f"The claim {size.claim} grows from {size.capacity} to {size.wanted} bytes"
    if size.failure:
        less = "Ask for less" if size.wanted == size.asked else "Make autoGrow.maxSize less"
        return (
            f"{grows}, and that has failed ({size.failure}). {less}, but more than "
            f"{size.capacity} bytes, or help the storage driver; it goes on trying."
        )
    if size.is_pending:
        return f"{grows} when its pod is started again: its filesystem does not grow in use."
    return f"{grows}; the storage driver is at it."


def sized(broker: Broker, found: tuple[ClaimSize, ...]) -> Finding:
    """Return whether every volume is as large as asked for."""
    if broker.spec.storage.ephemeral:
        return TRUE, "NothingToSize", "Nothing is claimed: spec.storage.ephemeral is true."
    for size in found:
        if size.refusal and size.capacity is not None:
            return FALSE, "GrowthRefused", size.refusal
    for reason, chosen in (
        ("GrowthFailed", [size for size in found if size.failure]),
        ("RestartPending", [size for size in found if size.is_pending]),
        ("Growing", list(found)),
    ):
        for size in chosen:
            said = sentence(size)
            if said:
                return FALSE, reason, said
    for size in found:
        said = _room(broker, size)
        if said:
            reason = auto_growth.EXHAUSTED if size.outlook.is_exhausted else "GrowthRefused"
            return FALSE, reason, said
    if not found or any(size.capacity is None for size in found):
        return UNKNOWN, "NotBoundYet", "Not every claim is bound to a volume yet."
    return TRUE, "AsAsked", "Every volume is as large as asked for, or larger."


def is_moving(found: Iterable[ClaimSize]) -> bool:
    """Return whether a claim is on its way to another size."""
    return any(not size.has_size and size.capacity is not None for size in found)
