"""How full the volumes of running brokers are: in the status, and when somebody has to be told.

Numbers move with every message, and a status that followed them would be written all the time. So
what is there stays until it is off by a twentieth of the volume, or says the wrong thing about
whether the volume is nearly full.

Owns: those steps, and what nearly full is. Pure. Never: asks a broker.
Called by: `storage_status`, `status`.
"""

from __future__ import annotations

from collections.abc import Iterable

from vespiary_operator import names
from vespiary_operator.conditions import TRUE, Finding
from vespiary_operator.observation import Space
from vespiary_spec.settings import BrokerSettings
from vespiary_spec.status import BrokerInstance, VolumeStatus
from vespiary_spec.units import format_size_rounded
from vespiary_spec.volumes import Volumes

STEP = 20
"""A number in the status may be off by one such part of the whole."""

AHEAD_PERCENT = 5
"""So much of a volume before its broker takes no more messages, it counts as nearly full."""

BACK_PERCENT = 2
"""So much more has to be free before it no longer counts as nearly full."""

INODES_PERCENT = 5
"""With so few of its inodes left, a volume counts as nearly full."""

REASON = "VolumeNearlyFull"


def steady(
    before: VolumeStatus | None, now: Space | None, settings: BrokerSettings
) -> dict[str, int | None]:
    """Return what the status should say of a volume's room; empty to leave what it is made with.

    Args:
        before: What it says.
        now: What the broker says; None if it does not.
        settings: The broker's, whose limit on the disk counts.
    """
    if now is None:
        if before is None or before.free_bytes is None:
            return {}
        return _numbers(before)
    found = VolumeStatus(
        name="",
        size_bytes=now.size_bytes,
        free_bytes=now.free_bytes,
        inodes=now.inodes,
        free_inodes=now.free_inodes if now.inodes else None,
    )
    if before is None or (before.size_bytes, before.inodes) != (now.size_bytes, now.inodes):
        return _numbers(found)
    is_near = _is_near(before.free_bytes, now.free_bytes, now.size_bytes)
    is_near = is_near and _is_near(before.free_inodes, found.free_inodes, now.inodes)
    was_low = bool(_low(before, settings))
    is_low = bool(_low(found, settings, more=BACK_PERCENT if was_low else 0))
    return _numbers(before if is_near and was_low == is_low else found)


def _numbers(volume: VolumeStatus) -> dict[str, int | None]:
    names = ("size_bytes", "free_bytes", "inodes", "free_inodes")
    return {name: getattr(volume, name) for name in names}


def _is_near(before: int | None, now: int | None, whole: int) -> bool:
    if before is None or now is None:
        return before == now
    return abs(before - now) * STEP < whole


def finding(
    instances: Iterable[BrokerInstance], settings: BrokerSettings, volumes: Volumes | None = None
) -> Finding | None:
    """Return what Degraded says of volumes that are nearly full; None if none is.

    Args:
        instances: The brokers, as the status has them.
        settings: Their settings.
        volumes: Their volumes, as the Broker has them.
    """
    found = [
        (instance.name, volume, said)
        for instance in instances
        for volume in instance.volumes
        if (said := _low(volume, settings))
    ]
    if not found:
        return None
    pod, volume, said = found[0]
    more = f" {len(found) - 1} more volumes are nearly full." if len(found) > 1 else ""
    owner = volume.shares_with or volume.name
    spec = getattr(volumes, owner.replace("-", "_"), None)
    path = f"spec.storage.volumes.{names.spec_name(owner)}"
    cure = f", or make {path}.size larger."
    if spec is not None and spec.auto_grow is not None:
        most = format_size_rounded(spec.auto_grow.max_size)
        cure = f"; its claim grows by itself to {most} at most ({path}.autoGrow.maxSize)."
    return (
        TRUE,
        REASON,
        f"The volume {volume.name} of {pod} is nearly full: {said} Have consumers take messages"
        f"{cure}{more}",
    )


def _low(volume: VolumeStatus, settings: BrokerSettings, *, more: int = 0) -> str:
    """Say what a volume lacks; empty if it has enough.

    Args:
        volume: The volume.
        settings: The broker's settings.
        more: Percent that have to be free beyond what is enough.
    """
    size, free = volume.size_bytes, volume.free_bytes
    if size and free is not None:
        shown = f"{format_size_rounded(free)} of {format_size_rounded(size)} are free"
        limit = settings.min_disk_free
        if limit >= 0 and free < limit + size * (AHEAD_PERCENT + more) // 100:
            return f"{shown}, and below {format_size_rounded(limit)} producers wait (minDiskFree)."
        share = 100 - settings.max_disk_usage
        if limit < 0 and free * 100 < size * (share + AHEAD_PERCENT + more):
            return f"{shown}, and at {share}% producers wait (maxDiskUsage)."
    inodes, left = volume.inodes, volume.free_inodes
    if inodes and left is not None and left * 100 < inodes * (INODES_PERCENT + more):
        return f"{left} of its {inodes} inodes are free."
    return ""
