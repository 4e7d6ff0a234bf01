"""Trying one volume whose filesystem was found good: the folder, its space, its flushes.

Turns what the system says into sentences for people. Must never be called for a volume that was
refused. Called by `verification`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import msgspec

from vespiary_broker.store.volumes import identity, probe
from vespiary_broker.store.volumes.block_device import BlockDevice
from vespiary_broker.store.volumes.probe import Capability, OpenRing, Probe
from vespiary_broker.store.volumes.report import Finding
from vespiary_broker.store.volumes.request import VolumeRequest
from vespiary_broker.store.volumes.statfs import Statfs
from vespiary_spec.settings import JournalType
from vespiary_spec.status import VerdictLevel
from vespiary_spec.units import format_size_rounded

SUSPICIOUS_FLUSH_US = 20
SLOW_SCHEDULER = "bfq"

_MEMORY = frozenset({"tmpfs", "ramfs"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})

# Options under which a flush that returned may still be lost, and what the filesystem then does.
_UNSAFE_OPTIONS = {
    "nobarrier": "flushes don't reach the disk's cache",
    "barrier=0": "flushes don't reach the disk's cache",
    "barrier=none": "flushes don't reach the disk's cache",
    "fsync_mode=nobarrier": "flushes don't reach the disk's cache",
    "data=writeback": "a crash may put old data into new files",
}


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome for one volume.

    Attributes:
        findings: What speaks against it.
        probe: What works; None when nothing could be tried.
        untried: Why nothing was tried; empty when it was.
        owner: The folder's (uid, gid, mode); None when it can't be looked at.
    """

    findings: tuple[Finding, ...] = ()
    probe: Probe | None = None
    untried: str = ""
    owner: tuple[int, int, int] | None = None

    @property
    def direct(self) -> Capability:
        """O_DIRECT, or why it was not tried."""
        return self.probe.direct if self.probe else Capability(None, self.untried)

    @property
    def aio(self) -> Capability:
        """AIO, or why it was not tried."""
        return self.probe.aio if self.probe else Capability(None, self.untried)

    @property
    def uring(self) -> Capability:
        """io_uring, or why it was not tried."""
        return self.probe.uring if self.probe else Capability(None, self.untried)


def deny(sentence: str) -> Finding:
    """Make a refusal."""
    return Finding(VerdictLevel.DENY, sentence)


def warn(sentence: str) -> Finding:
    """Make a warning."""
    return Finding(VerdictLevel.WARN, sentence)


def options_findings(name: str, filesystem: str, options: tuple[str, ...]) -> tuple[Finding, ...]:
    """Warn of mount options that undo what a flush promises; pure.

    Args:
        name: The volume.
        filesystem: Its type; memory has nothing to flush.
        options: Options of the mount and of the filesystem.
    """
    if filesystem in _MEMORY:
        return ()
    return tuple(
        warn(
            f"The volume {name} is mounted with {option}: {_UNSAFE_OPTIONS[option]}. "
            f"Take {option} out of the mount options of its storage class."
        )
        for option in options
        if option in _UNSAFE_OPTIONS
    )


def flush_findings(
    name: str, filesystem: str, p50_us: int | None, write_cache: str
) -> tuple[Finding, ...]:
    """Warn of flushes that are too fast to have reached a disk; pure.

    Args:
        name: The volume.
        filesystem: Its type; memory is fast for a reason that is told elsewhere.
        p50_us: Median of the timed writes, None when none were.
        write_cache: What the disk says of its cache; may be empty.
    """
    if p50_us is None or p50_us >= SUSPICIOUS_FLUSH_US or filesystem in _MEMORY:
        return ()
    cache = f"the disk says `{write_cache}`" if write_cache else "the disk tells nothing of it"
    return (
        warn(
            f"The volume {name} has a suspicious volatile write cache: half of its flushed 4 KiB "
            f"writes took under {SUSPICIOUS_FLUSH_US} µs (median {p50_us} µs; {cache}). Make sure "
            "that the disk has a battery or capacitors, or that the hypervisor honours flushes."
        ),
    )


def scheduler_findings(name: str, device: BlockDevice) -> tuple[Finding, ...]:
    """Warn of an I/O scheduler that makes flushes wait for those of others; pure.

    Args:
        name: The volume.
        device: The block device under it.
    """
    if device.scheduler != SLOW_SCHEDULER:
        return ()
    disk = device.disks[0] if device.disks else "DISK"
    return (
        warn(
            f"The volume {name} is on the disk {disk} with the I/O scheduler {SLOW_SCHEDULER}, "
            "which shares the disk out among processes and so lets each flush, and with it each "
            "confirmed message, wait. On the node, write mq-deadline (none for NVMe) into "
            f"/sys/block/{disk}/queue/scheduler, and into a udev rule for good."
        ),
    )


def space_findings(
    volume: VolumeRequest, space: Statfs, *, has_content: bool
) -> tuple[Finding, ...]:
    """Compare what the store needs with what is free; pure.

    A store that already holds messages starts on a full disk all the same: consumers can then make
    room, which they can't when the broker stays down.

    Args:
        volume: The volume and its needs.
        space: What statfs said.
        has_content: Whether a store is there already.
    """
    size, free = format_size_rounded(space.size_bytes), format_size_rounded(space.free_bytes)
    where = f"The volume {volume.name} at {volume.path}"
    if volume.file_bytes > space.size_bytes:
        return (
            deny(
                f"{where} is {size} in all and can't hold one file of "
                f"{format_size_rounded(volume.file_bytes)}. Give it a larger volume, or make the "
                "store's files smaller (journal-file-size)."
            ),
        )
    if space.inodes and not space.free_inodes:
        problem = f"{where} has none of its {space.inodes} inodes left."
    elif space.free_bytes < probe.PROBE_BYTES:
        problem = f"{where} is full: {free} of {size} are free."
    elif has_content and space.free_bytes < volume.file_bytes:
        problem = (
            f"{where} has {free} of {size} free, less than one more file of "
            f"{format_size_rounded(volume.file_bytes)}."
        )
    elif not has_content and space.free_bytes < max(volume.first_bytes, volume.file_bytes):
        problem = (
            f"{where} has {free} of {size} free, but the store's first files take "
            f"{format_size_rounded(max(volume.first_bytes, volume.file_bytes))}."
        )
    else:
        return ()
    if has_content:
        return (
            warn(
                f"{problem} The broker serves what it holds, but takes no more than fits: consume "
                "messages, or enlarge the volume."
            ),
        )
    return (deny(f"{problem} Make room, or give it a larger volume."),)


def run(
    volume: VolumeRequest,
    path: str,
    space: Statfs,
    *,
    open_ring: OpenRing,
    aio_depth: int,
    flush_samples: int,
    open_uring: OpenRing | None = None,
    has_store: bool = False,
) -> Trial:
    """Try one volume.

    Args:
        volume: The volume.
        path: Its folder, free of symbolic links, so that what is tried is what was judged.
        space: What statfs said of it.
        open_ring: Opens the AIO ring.
        aio_depth: Operations in flight to reserve for the trial.
        flush_samples: Durable writes to time.
        open_uring: Opens the io_uring ring; None does not try it.
        has_store: Whether the store of the broker is there already, in other volumes: this one may
            hold nothing yet, and be full, like those of a store without large messages.

    Returns:
        What works, and what speaks against it; errors of the system become sentences.
    """
    where = f"The volume {volume.name} at {volume.path}"
    try:
        status = Path(path).stat()
        owner = (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
        if not stat.S_ISDIR(status.st_mode):
            return _untried(deny(f"{where} is no folder. Name the folder of the volume."))
        has_content = has_store or identity.has_content(path)
    except OSError as error:
        return _untried(_failed(where, error, owner=None))
    findings = space_findings(volume, space, has_content=has_content)
    if findings and _is_full(space):
        return Trial(findings=findings, untried=findings[0].sentence.rstrip("."), owner=owner)
    try:
        found = probe.run(
            path,
            open_ring=open_ring,
            open_uring=open_uring,
            aio_depth=aio_depth,
            flush_samples=flush_samples,
        )
    except OSError as error:
        if error.errno in _FULL and has_content:
            # A quota, or others took the last of it meanwhile.
            full = warn(
                f"{where} takes no more data ({_words(error)}). The broker serves what it holds: "
                "consume messages, or enlarge the volume or its quota."
            )
            return Trial(findings=(full,), untried=full.sentence.rstrip("."), owner=owner)
        return _untried(_failed(where, error, owner=owner), owner=owner)
    return Trial(findings=findings, probe=found, owner=owner)


def _is_full(space: Statfs) -> bool:
    return space.free_bytes < probe.PROBE_BYTES or bool(space.inodes and not space.free_inodes)


def _untried(finding: Finding, owner: tuple[int, int, int] | None = None) -> Trial:
    return Trial(findings=(finding,), untried=finding.sentence.rstrip("."), owner=owner)


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _failed(where: str, error: OSError, owner: tuple[int, int, int] | None) -> Finding:
    number = error.errno
    if number == errno.EROFS:
        return deny(read_only_sentence(where))
    if number in _FORBIDDEN:
        belongs = f" (it belongs to {owner[0]}:{owner[1]}, mode {owner[2]:04o})" if owner else ""
        return deny(
            f"{where} can't be written by user {os.geteuid()}, group {os.getegid()}{belongs}. Set "
            "fsGroup in the pod's security context, or change the folder's owner."
        )
    if number in _FULL:
        return deny(f"{where} is full: {_words(error)}. Make room, or give it a larger volume.")
    if number in (errno.ENOENT, errno.ENOTDIR):
        return deny(f"{where} does not exist. Mount the volume there, or make the folder.")
    return deny(
        f"{where} can't be used: {_words(error)}. Look at the kernel's log and at the disk, and "
        "give it a sound volume."
    )


def read_only_sentence(where: str) -> str:
    """Say that a volume is read-only; `where` names it, as in `The volume journal at /x`."""
    return (
        f"{where} is mounted read-only. Mount it for writing; if it became read-only by itself, "
        "the kernel's log says which error made it so."
    )


def needs_ring(journal_type: JournalType, name: str, journal_name: str, demand: int) -> int:
    """Return the depth of the trial ring: the whole demand on the journal's volume, else one.

    Args:
        journal_type: The engine asked for.
        name: The volume.
        journal_name: Name of the journal's volume.
        demand: The broker's demand.
    """
    is_journal = name == journal_name and journal_type.may_use_aio
    return max(1, demand) if is_journal else 1
