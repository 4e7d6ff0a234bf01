"""The block device under a filesystem: its queue settings, as sysfs tells them.

Owns the walk from a device number to the disks behind it: a partition leads to its disk,
device-mapper and md to their slaves, a loop device to the disk of its backing file. Reads a few
files under `/sys`, needs no privilege, changes nothing, never raises: what can't be read is
`None`, "unknown". Called by `verification`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

_CHOSEN = re.compile(r"\[([^]]+)\]")
# Stacks deeper than this are loops in a damaged sysfs, not storage.
_DEPTH_LIMIT = 16


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the device under a filesystem; `None` is unknown.

    Attributes:
        name: Name of the device that holds the filesystem (`sda1`, `dm-0`, `loop3`).
        disks: Names of the devices at the bottom, in order, each once.
        scheduler: I/O scheduler of the first disk that has one.
        is_rotational: True when any device on the way down is a spinning disk.
        write_cache: `write back` when any device has a volatile cache, else `write through`.
        has_fua: Whether the device writes through its cache on request (FUA).
        logical_block_bytes: Smallest unit of direct I/O.
    """

    name: str | None = None
    disks: tuple[str, ...] = ()
    scheduler: str | None = None
    is_rotational: bool | None = None
    write_cache: str | None = None
    has_fua: bool | None = None
    logical_block_bytes: int | None = None


UNKNOWN = BlockDevice()


def find(major: int, minor: int, *, source: str = "", sysfs: Path = Path("/sys")) -> BlockDevice:
    """Describe the block device behind a mounted filesystem.

    Args:
        major: Major number from mountinfo; 0 means none, and the source is looked up by its name.
        minor: Minor number from mountinfo.
        source: Source from mountinfo (`/dev/sda1`), for btrfs and other filesystems with major 0.
        sysfs: Where sysfs is mounted.

    Returns:
        What could be read; `UNKNOWN` where there is no block device.
    """
    node = _node_of_number(sysfs, major, minor) if major else _node_of_source(sysfs, source)
    if node is None:
        return UNKNOWN
    way_down = _walk(sysfs, node)
    queues = [disk / "queue" for disk in way_down if (disk / "queue").is_dir()]
    leaves = [disk.name for disk in way_down if not _below(sysfs, disk)]
    caches = [cache for queue in queues if (cache := _text(queue / "write_cache"))]
    rotations = [spin for queue in queues if (spin := _text(queue / "rotational"))]
    fua = _text(queues[0] / "fua") if queues else None
    block = _text(queues[0] / "logical_block_size") if queues else None
    schedulers = [name for queue in reversed(queues) if (name := _scheduler(queue))]
    return BlockDevice(
        name=node.name,
        disks=tuple(dict.fromkeys(leaves)),
        scheduler=schedulers[0] if schedulers else None,
        is_rotational=None if not rotations else "1" in rotations,
        write_cache=None
        if not caches
        else ("write back" if "write back" in caches else "write through"),
        has_fua=None if fua is None else fua == "1",
        logical_block_bytes=int(block) if block is not None and block.isdigit() else None,
    )


def _node_of_number(sysfs: Path, major: int, minor: int) -> Path | None:
    link = sysfs / "dev" / "block" / f"{major}:{minor}"
    try:
        return link.resolve(strict=True)
    except (OSError, RuntimeError):
        return None


def _node_of_source(sysfs: Path, source: str) -> Path | None:
    if not source.startswith("/dev/") or Path(source).name == "..":
        return None
    # The name in sysfs comes first: in a pod the device's node is missing, or is another one.
    link = sysfs / "class" / "block" / Path(source).name
    try:
        return link.resolve(strict=True)
    except (OSError, RuntimeError):
        pass
    try:
        number = Path(source).stat().st_rdev
    except OSError:
        return None
    return _node_of_number(sysfs, os.major(number), os.minor(number)) if number else None


def _walk(sysfs: Path, node: Path) -> list[Path]:
    """List the whole-disk nodes from the top device down, each once."""
    found: list[Path] = []
    level = [_disk_of(node)]
    for _ in range(_DEPTH_LIMIT):
        fresh = [disk for disk in level if disk not in found]
        if not fresh:
            break
        found += fresh
        level = [below for disk in fresh for below in _below(sysfs, disk)]
    return found


def _disk_of(node: Path) -> Path:
    # A partition has no queue of its own; its disk is the folder above it.
    return node.parent if (node / "partition").exists() else node


def _below(sysfs: Path, disk: Path) -> list[Path]:
    try:
        slaves = sorted((disk / "slaves").iterdir())
        resolved = [_disk_of(slave.resolve(strict=True)) for slave in slaves]
    except (OSError, RuntimeError):
        resolved = []
    backing = _text(disk / "loop" / "backing_file")
    if backing:
        # The path is the node's; it exists here only when this process sees the node's files.
        try:
            number = Path(backing).stat().st_dev
        except OSError:
            return resolved
        under = _node_of_number(sysfs, os.major(number), os.minor(number))
        if under is not None:
            resolved.append(_disk_of(under))
    return resolved


def _scheduler(queue: Path) -> str | None:
    text = _text(queue / "scheduler")
    if text is None:
        return None
    chosen = _CHOSEN.search(text)
    return chosen[1] if chosen else text.strip() or None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
