"""The file system as the journal uses it: the one layer below which a test can cut the power.

Owns: every system call on journal files and folders but the writes and reads that go through a
ring. `Disk` is the real one; tests put in one that fails, fills up, or remembers what was flushed.
Must never swallow a result: each call either did all of it or raises. All calls block and are
made from the journal's worker thread, never from the event loop.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from vespiary_spec.errors import NativeError
from vespiary_spec.regular_files import NotRegular, open_regular

P = ParamSpec("P")
T = TypeVar("T")

FILE_MODE = 0o600
FOLDER_MODE = 0o700


class Usage(NamedTuple):
    """Space of the file system that holds a folder, in bytes; `free` is what this user may take."""

    total: int
    free: int


class DiskFile(Protocol):
    """One open file of fixed size."""

    @property
    def path(self) -> Path:
        """Where it lies."""

    def fileno(self) -> int:
        """Return the descriptor, for a ring."""

    def size_bytes(self) -> int:
        """Return the file's size."""

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read up to `len(buffer)` bytes; return how many (fewer only at the file's end)."""

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data`; not durable before `flush`."""

    def set_size(self, size_bytes: int) -> None:
        """Set the file's length; what is added reads as zeros and has no place on the disk."""

    def flush(self) -> None:
        """Make data and size durable, the drive's cache included."""

    def close(self) -> None:
        """Give the descriptor back."""


class DiskLike(Protocol):
    """What the pool, the recovery and the reader need of a file system."""

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; empty if it does not exist."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder (mode 0700) and its parents, durably; nothing if it exists."""

    def create(self, path: Path, *, is_direct: bool) -> DiskFile:
        """Make an empty file (mode 0600) or empty the one that is there; open it for writing."""

    def open(self, path: Path, *, is_direct: bool, is_readonly: bool) -> DiskFile:
        """Open an existing file."""

    def copy_file(self, source: Path, target: Path, size_bytes: int) -> None:
        """Copy bytes into an empty file within the kernel; not durable before its `flush`."""

    def allocated_bytes(self, path: Path) -> int:
        """Return the bytes that have a place on the disk; fewer than its size if it is sparse."""

    def rename(self, old: Path, new: Path) -> None:
        """Give a file a name that is not taken; durable after `flush_folder`."""

    def remove(self, path: Path) -> None:
        """Remove a file; durable after `flush_folder`."""

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder; durable after `flush_folder` of its parent."""

    def flush_folder(self, folder: Path) -> None:
        """Make the names in a folder durable."""

    def usage(self, folder: Path) -> Usage:
        """Return the space of the file system that holds the folder."""


class OsFile:
    """A `DiskFile` of the real file system. Owner: the worker thread that opened it."""

    def __init__(self, path: Path, flags: int, guard: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._guard = guard
        self._fd = _call("cannot open the file", path, open_regular, path, flags, FILE_MODE)

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self._path

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def size_bytes(self) -> int:
        """Return the file's size."""
        return _call("cannot look at the file", self._path, os.fstat, self._fd).st_size

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read up to `len(buffer)` bytes; address and length are aligned if the file is direct.

        Raises:
            NativeError: The read failed.
        """
        done = 0
        while done < len(buffer):
            count = _call(
                "cannot read",
                f"{self._path}:{offset + done}",
                os.preadv,
                self._fd,
                [buffer[done:]],
                offset + done,
            )
            done += count
            if count == 0 or done % 512:  # the end of the file; a direct read can't go on there
                break
        return done

    def write(self, data: memoryview, offset: int) -> None:
        """Write all of `data`.

        Raises:
            NativeError: The write failed or stopped half-way (errno EIO).

        Durability: none before `flush`.
        """
        self._guard()
        done = 0
        while done < len(data):
            place = f"{self._path}:{offset + done}"
            count = _call("cannot write", place, os.pwrite, self._fd, data[done:], offset + done)
            done += count
            if done < len(data) and (count == 0 or done % 4096):
                raise NativeError("the write stopped half-way", errno.EIO, where=place)

    def set_size(self, size_bytes: int) -> None:
        """Set the file's length.

        Raises:
            NativeError: The call failed.

        Durability: none before `flush`.
        """
        self._guard()
        _call("cannot set the file's size", self._path, os.ftruncate, self._fd, size_bytes)

    def flush(self) -> None:
        """Flush data and metadata.

        Raises:
            NativeError: The flush failed: what was written since the last one may be lost.

        Durability: on return all that was written to this file survives a power cut.
        """
        _call("cannot flush", self._path, os.fsync, self._fd)

    def close(self) -> None:
        """Give the descriptor back.

        Raises:
            NativeError: The kernel reported a late error.
        """
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            _call("cannot close the file", self._path, os.close, fd)


class Disk:
    """The real file system. Stateless; used by one journal's worker thread at a time.

    Args:
        guard: Called before each change; raises if it must not be made.
    """

    def __init__(self, guard: Callable[[], None] = lambda: None) -> None:
        self._guard = guard

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; empty if it does not exist."""
        if not folder.exists():
            return []
        return sorted(_call("cannot list the folder", folder, os.listdir, folder))

    def make_folder(self, folder: Path) -> None:
        """Make a folder and its parents with mode 0700, each durable in its own parent."""
        missing = []
        place = folder
        while not place.is_dir():
            missing.append(place)
            place = place.parent
        for place in reversed(missing):
            self._guard()
            _call("cannot make the folder", place, os.mkdir, place, FOLDER_MODE)
            self.flush_folder(place.parent)

    def create(self, path: Path, *, is_direct: bool) -> OsFile:
        """Make an empty file, or empty the one that is there, open for reading and writing."""
        self._guard()
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | _direct(is_direct)
        return OsFile(path, flags, self._guard)

    def open(self, path: Path, *, is_direct: bool, is_readonly: bool) -> OsFile:
        """Open an existing file."""
        flags = (os.O_RDONLY if is_readonly else os.O_RDWR) | _direct(is_direct)
        return OsFile(path, flags, self._guard)

    def copy_file(self, source: Path, target: Path, size_bytes: int) -> None:
        """Copy the first bytes of a file into an empty one, within the kernel.

        By sendfile and not by copy_file_range: on xfs and btrfs that one lets both files share
        their blocks, and then each later write allocates, which is what this is to prevent.

        Raises:
            NativeError: A call failed, or the source is too short (errno EIO).

        Durability: none before the target is flushed.
        """
        self._guard()
        from_fd = _call("cannot open the file", source, open_regular, source, os.O_RDONLY)
        try:
            to_fd = _call("cannot open the file", target, open_regular, target, os.O_WRONLY)
            try:
                done = 0
                while done < size_bytes:
                    left = size_bytes - done
                    count = _call("cannot copy", target, os.sendfile, to_fd, from_fd, done, left)
                    if not count:
                        raise NativeError(
                            f"the file to copy ends at {done} of {size_bytes} bytes",
                            errno.EIO,
                            where=str(source),
                        )
                    done += count
            finally:
                _call("cannot close the file", target, os.close, to_fd)
        finally:
            os.close(from_fd)

    def allocated_bytes(self, path: Path) -> int:
        """Return the bytes that have a place on the disk."""
        return _call("cannot look at the file", path, os.stat, path).st_blocks * 512

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name.

        Raises:
            NativeError: The name is taken (a journal file is never replaced), or the call failed.
        """
        if new.exists():
            raise NativeError("cannot rename, the name is taken", errno.EEXIST, where=str(new))
        self._guard()
        _call("cannot rename", old, os.rename, old, new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        self._guard()
        _call("cannot remove the file", path, os.unlink, path)

    def remove_folder(self, folder: Path) -> None:
        """Remove an empty folder.

        Raises:
            NativeError: It is not empty, or the call failed.
        """
        self._guard()
        _call("cannot remove the folder", folder, os.rmdir, folder)

    def flush_folder(self, folder: Path) -> None:
        """Make the names in a folder durable.

        Raises:
            NativeError: The flush failed.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY
        fd = _call("cannot open the folder", folder, os.open, folder, flags)
        try:
            _call("cannot flush the folder", folder, os.fsync, fd)
        finally:
            os.close(fd)

    def usage(self, folder: Path) -> Usage:
        """Return the space of the file system that holds the folder."""
        facts = _call("cannot look at the file system", folder, os.statvfs, folder)
        return Usage(facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize)


def _direct(is_direct: bool) -> int:
    return os.O_DIRECT if is_direct else 0


def _call(
    what: str, where: Path | str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
) -> T:
    """Make one system call; a failure names what was attempted and where."""
    try:
        return function(*args, **kwargs)
    except NotRegular as error:
        raise NativeError(
            f"{what}: it is not a regular file",
            error.errno or errno.EINVAL,
            where=str(where),
            cure="remove it, or move it elsewhere: the broker did not make it",
        ) from error
    except OSError as error:
        number = error.errno or errno.EIO
        raise NativeError(what, number, where=str(where), cure=_cure(number)) from error


def _cure(number: int) -> str:
    if number == errno.EINVAL:
        return "the file system may not support O_DIRECT: run `vespiary check` on the volume"
    if number in (errno.EACCES, errno.EPERM):
        return "give the broker's user read and write access (on Kubernetes: fsGroup)"
    if number == errno.EROFS:
        return "the file system is read-only: look at the kernel log for disk errors"
    if number == errno.ELOOP:
        return "this is a symbolic link: move the file itself here; the folder may be a link"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "enlarge the volume, or consume messages"
    return ""
