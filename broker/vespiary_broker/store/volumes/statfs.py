"""What statfs(2) says of a path: the magic number that cross-checks mountinfo, and free space.

`os.statvfs` leaves out the filesystem's type, so libc's function is called through ctypes. Opens
and changes nothing. Called by `verification`, and only for volumes that mountinfo has not
refused: statfs on a dead NFS mount hangs.

Layout (64-bit Linux, glibc and musl, x86-64 and arm64): f_type, f_bsize, f_blocks, f_bfree,
f_bavail, f_files, f_ffree (8 bytes each), f_fsid (2 × 4), f_namelen, f_frsize, f_flags, 4 spare
(8 bytes each).
"""

from __future__ import annotations

import ctypes
import errno
import os

import msgspec

_ST_RDONLY = 1


class _Layout(ctypes.Structure):
    _fields_ = (
        ("f_type", ctypes.c_long),
        ("f_bsize", ctypes.c_long),
        ("f_blocks", ctypes.c_uint64),
        ("f_bfree", ctypes.c_uint64),
        ("f_bavail", ctypes.c_uint64),
        ("f_files", ctypes.c_uint64),
        ("f_ffree", ctypes.c_uint64),
        ("f_fsid", ctypes.c_int * 2),
        ("f_namelen", ctypes.c_long),
        ("f_frsize", ctypes.c_long),
        ("f_flags", ctypes.c_long),
        ("f_spare", ctypes.c_long * 4),
        # The kernel never writes here; room in case a libc's structure is longer than ours.
        ("room", ctypes.c_char * 64),
    )


class Statfs(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of statfs(2).

    Attributes:
        magic: Type of the filesystem, 32 bits without sign.
        size_bytes: Size of the filesystem.
        free_bytes: Space that an unprivileged process may still take.
        inodes: Inodes in all; 0 where the filesystem has no fixed number (btrfs).
        free_inodes: Inodes left; meaningless when `inodes` is 0.
        is_read_only: Mounted read-only.
    """

    magic: int
    size_bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int
    is_read_only: bool


def read(path: str) -> Statfs:
    """Ask the kernel about the filesystem that holds a path.

    Args:
        path: Any existing path.

    Raises:
        OSError: The path does not exist or may not be searched.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    answer = _Layout()
    while libc.statfs(os.fsencode(path), ctypes.byref(answer)) != 0:
        number = ctypes.get_errno()
        if number == errno.EINTR:
            continue
        raise OSError(number, os.strerror(number), path)
    # Some filesystems leave the fragment size at 0; POSIX then counts in f_bsize.
    unit_bytes = answer.f_frsize or answer.f_bsize
    return Statfs(
        magic=answer.f_type & 0xFFFFFFFF,
        size_bytes=answer.f_blocks * unit_bytes,
        free_bytes=answer.f_bavail * unit_bytes,
        inodes=answer.f_files,
        free_inodes=answer.f_ffree,
        is_read_only=bool(answer.f_flags & _ST_RDONLY),
    )
