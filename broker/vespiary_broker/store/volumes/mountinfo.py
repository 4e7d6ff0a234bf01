r"""The mounts of this process, and which of them covers a path.

Owns the reading of `/proc/self/mountinfo` (proc_pid_mountinfo(5)), the primary evidence of what a
volume is: it needs no privilege, names the type exactly (ext2, ext3 and ext4 share one statfs
magic), and reading it does not touch the filesystem, so that a dead NFS server can't hang it.

Never opens, lists or changes anything inside a volume. Called by `verification`.

One line of the file, fields parted by one space, bytes outside the plain set as `\ooo`:

    36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    |  |  |    |     |     |          |          |    |         super options
    |  |  |    |     |     |          |          |    source (may be empty)
    |  |  |    |     |     |          |          type, a FUSE subtype after a dot
    |  |  |    |     |     |          none or more optional fields, ended by a lone dash
    |  |  |    |     |     options of this mount
    |  |  |    |     mount point, seen from this process's root
    |  |  |    which folder of the filesystem is mounted
    |  |  major:minor
    |  mount id of the parent
    mount id
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

MOUNTINFO_PATH = "/proc/self/mountinfo"

_OCTAL = re.compile(r"\\([0-7]{3})")
_FIELDS_BEFORE_OPTIONAL = 6
_FIELDS_AFTER_DASH = 3


class MountinfoError(ValueError):
    """A line of mountinfo has not the documented form, or no mount covers a path."""


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """One mounted filesystem, as the kernel lists it.

    Attributes:
        mount_id: Number of the mount.
        parent_id: Number of the mount that this one is mounted on.
        major: Major device number; 0 where no block device is behind the filesystem's superblock
            (NFS, overlay, tmpfs, FUSE, and btrfs, which has several devices).
        minor: Minor device number.
        root: The folder of the filesystem that is mounted; not `/` for bind mounts and subvolumes.
        mount_point: Where it is mounted, absolute, seen from this process's root.
        mount_options: Options of this mount (`ro`, `noatime`, …).
        optional_fields: Propagation (`shared:1`, …).
        filesystem: Type, for FUSE with its subtype (`fuse.gcsfuse`).
        source: Device, server export or name; may be empty.
        super_options: Options of the filesystem itself, shared by all its mounts.
    """

    mount_id: int
    parent_id: int
    major: int
    minor: int
    root: str
    mount_point: str
    mount_options: tuple[str, ...]
    optional_fields: tuple[str, ...]
    filesystem: str
    source: str
    super_options: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """All options, those of the mount first, each once.

        A mount may be read-only (`ro`) over a writable filesystem (`rw`); the stricter one holds,
        so `rw` is left out when either side says `ro`.
        """
        both = dict.fromkeys(self.mount_options + self.super_options)
        if "ro" in both:
            both.pop("rw", None)
        return tuple(both)

    @property
    def is_read_only(self) -> bool:
        """Whether the mount or its filesystem is read-only."""
        return "ro" in self.mount_options or "ro" in self.super_options

    @property
    def device_number(self) -> tuple[int, int]:
        """Major and minor number, equal for two mounts of one filesystem.

        That holds for btrfs subvolumes too, whose `st_dev` differ.
        """
        return self.major, self.minor


def parse(text: str) -> tuple[Mount, ...]:
    """Parse the content of a mountinfo file.

    Args:
        text: The file's content; bytes that are not UTF-8 as surrogates (`os.fsdecode`).

    Returns:
        The mounts in the kernel's order, of which a later one may hide an earlier one.

    Raises:
        MountinfoError: A line has not the documented form; the message carries its number.
    """
    return tuple(
        _parse_line(line, number) for number, line in enumerate(text.split("\n"), 1) if line
    )


def _parse_line(line: str, number: int) -> Mount:
    # Split on one space, not on runs of them: an empty source leaves two spaces in a row.
    head, dash, tail = line.partition(" - ")
    before, after = head.split(" "), tail.split(" ")
    major, colon, minor = before[2].partition(":") if len(before) > 2 else ("", "", "")
    if (
        not dash
        or len(before) < _FIELDS_BEFORE_OPTIONAL
        or len(after) < _FIELDS_AFTER_DASH
        or not colon
        or not all(field.isascii() and field.isdigit() for field in (*before[:2], major, minor))
    ):
        raise MountinfoError(
            f"mountinfo line {number} has not the form of proc_pid_mountinfo(5): {line!r}"
        )
    return Mount(
        mount_id=int(before[0]),
        parent_id=int(before[1]),
        major=int(major),
        minor=int(minor),
        root=_unescape(before[3]),
        mount_point=_unescape(before[4]),
        mount_options=_options(before[5]),
        optional_fields=tuple(before[6:]),
        filesystem=_unescape(after[0]),
        source=_unescape(after[1]),
        super_options=_options(after[2]),
    )


def _options(field: str) -> tuple[str, ...]:
    return tuple(_unescape(option) for option in field.split(",") if option)


def _unescape(field: str) -> str:
    if "\\" not in field:
        return field
    # The kernel escapes bytes, so a name of several bytes a letter has to be put together as bytes.
    raw = _OCTAL.sub(lambda match: chr(int(match[1], 8)), os.fsencode(field).decode("latin-1"))
    return os.fsdecode(raw.encode("latin-1"))


def covering(mounts: tuple[Mount, ...], path: str) -> Mount:
    """Find the mount that a path lies on.

    Follows the mounts the way the kernel resolves a name: from the root mount into whichever child
    mount the path crosses next. A mount below a folder that was itself mounted over later is thus
    rightly ignored, which the longest matching prefix alone would get wrong. Where parents are not
    listed (a changed root folder), the longest prefix decides, and of equal ones the last.

    Args:
        mounts: What `parse` gave.
        path: Absolute, without symbolic links (see `resolve`).

    Raises:
        MountinfoError: No listed mount covers the path.
    """
    current = _root_mount(mounts)
    if current is None:
        prefixes = [mount for mount in mounts if _is_prefix(mount.mount_point, path)]
        if not prefixes:
            raise MountinfoError(
                f"no mount in {MOUNTINFO_PATH} covers {path}: "
                "the process's root folder is not a mount point; run it where / is mounted"
            )
        longest = max(len(mount.mount_point) for mount in prefixes)
        return [mount for mount in prefixes if len(mount.mount_point) == longest][-1]
    seen = {current.mount_id}
    while True:
        crossed = [
            mount
            for mount in mounts
            if mount.parent_id == current.mount_id
            and mount.mount_id not in seen
            and _is_prefix(current.mount_point, mount.mount_point)
            and _is_prefix(mount.mount_point, path)
        ]
        if not crossed:
            return current
        nearest = min(len(mount.mount_point) for mount in crossed)
        current = [mount for mount in crossed if len(mount.mount_point) == nearest][-1]
        seen.add(current.mount_id)


def _root_mount(mounts: tuple[Mount, ...]) -> Mount | None:
    identifiers = {mount.mount_id for mount in mounts}
    roots = [
        mount
        for mount in mounts
        if mount.mount_point == "/"
        and (mount.parent_id not in identifiers or mount.parent_id == mount.mount_id)
    ]
    return roots[-1] if roots else None


def _is_prefix(mount_point: str, path: str) -> bool:
    return mount_point == "/" or path == mount_point or path.startswith(mount_point + "/")


def resolve(path: str) -> str:
    """Make a path absolute and free of symbolic links; missing parts are kept as they are."""
    return str(Path(path).resolve(strict=False))


def read() -> tuple[Mount, ...]:
    """Read the mounts of this process.

    Raises:
        MountinfoError: The file has not the documented form.
        OSError: `/proc` is not mounted.
    """
    return parse(os.fsdecode(Path(MOUNTINFO_PATH).read_bytes()))
