"""What a file system demands of direct writes, and whether the journal's blocks meet it.

Owns: the question to the kernel (statx, STATX_DIOALIGN; Linux 6.1 and newer) and the refusal of a
disk or of a `journal-device-block-size` that does not fit. Must never write. Called by `opening`
and `disk_benchmark`.

The journal's blocks stand at multiples of 4096 bytes and are multiples of 4096 long, in memory too
(journal-format §2). So every unit that divides 4096 is met, and no larger one is.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

from vespiary_broker.store.volumes import block_device
from vespiary_spec import limits
from vespiary_spec.errors import StorageError

_AT_FDCWD = -100
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_MASK = struct.Struct("=I")
_ALIGN_AT = 152  # offsetof(struct statx, stx_dio_mem_align), then stx_dio_offset_align
_ALIGN = struct.Struct("=II")


def direct_alignment_bytes(path: Path) -> int | None:
    """Return the unit of direct writes to a file, as the kernel tells it.

    Args:
        path: A file; folders tell nothing.

    Returns:
        Bytes that offset, length and address must be multiples of; 0 where direct writes are not
        supported; None where the kernel or the file system does not tell.
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):  # a C library without it
        return None
    if statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN, buffer) != 0:
        return None
    (mask,) = _MASK.unpack_from(buffer, 0)
    if not mask & _STATX_DIOALIGN:
        return None
    memory_bytes, offset_bytes = _ALIGN.unpack_from(buffer, _ALIGN_AT)
    return max(int(memory_bytes), int(offset_bytes))


def device_block_bytes(file: Path) -> int | None:
    """Return the unit of direct writes: by the kernel, else by the disk's logical block size.

    Args:
        file: A file on the disk in question.

    Returns:
        As `direct_alignment_bytes`.

    Raises:
        OSError: The file can't be looked at.
    """
    told = direct_alignment_bytes(file)
    if told is not None:
        return told
    device = file.stat().st_dev
    return block_device.find(os.major(device), os.minor(device)).logical_block_bytes


def check_alignment(
    file: Path,
    *,
    asked_bytes: int | None,
    is_direct: bool,
    ask: Callable[[Path], int | None] = device_block_bytes,
) -> None:
    """Refuse a disk whose unit the journal's blocks don't meet, and a setting below that unit.

    Args:
        file: A file of the journal's folder, such as its lock.
        asked_bytes: `journal-device-block-size`; None leaves it to the disk.
        is_direct: Files are opened with O_DIRECT; else the kernel's page cache meets any unit.
        ask: Tells the disk's unit.

    Raises:
        StorageError: Measured against allowed.
        OSError: The file can't be looked at.
    """
    if asked_bytes is not None and limits.BLOCK_BYTES % asked_bytes:
        raise StorageError(
            "journal-device-block-size must divide the journal's blocks",
            where=str(file.parent),
            measured=f"{asked_bytes} bytes",
            allowed="512, 1024, 2048 or 4096 bytes",
            cure="take one of these, or leave it out: the disk is asked then",
        )
    if not is_direct:
        return
    found = ask(file)
    if not found:
        return
    if limits.BLOCK_BYTES % found:
        raise StorageError(
            f"the disk writes in units of {found} bytes, which is not supported: the journal's "
            f"blocks are aligned to {limits.BLOCK_BYTES}",
            where=str(file.parent),
            measured=f"{found} bytes",
            allowed="512, 1024, 2048 or 4096 bytes",
            cure="take a volume with sectors of at most 4096 bytes",
        )
    if asked_bytes is not None and asked_bytes < found:
        raise StorageError(
            "journal-device-block-size is smaller than the unit in which the disk writes",
            where=str(file.parent),
            measured=f"{asked_bytes} bytes",
            allowed=f"{found} or {limits.BLOCK_BYTES} bytes"
            if found < limits.BLOCK_BYTES
            else f"{found} bytes",
            cure="raise it, or leave it out: the disk is asked then",
        )
