"""The disk reserve: a file that a start gives up when it finds no space, so that it can start.

Owns the file in the journal's folder. A broker on a full disk has to start, since consuming is what
makes room, and a start may need room itself: for a journal file in which acknowledgements are
written, for the bindings. What the reserve gave up is owed: no journal file is made for producers
out of it, and it is made again as soon as there is room for it and one file more. An empty file
says that it is owed, also after further starts; to cut a file off needs no space. Must never fail a
journal: without it a start on a full disk may fail, and nothing else.

Called by `app` and `opening` before a journal is open, then by `files` in the journal's thread.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Final

from vespiary_broker.store.disk import DiskLike
from vespiary_spec.errors import NativeError

NAME: Final = "disk-reserve"
START_BYTES: Final = 4 * 1024 * 1024
"""Free bytes below which a start gives the reserve up: bindings and notes may need a file each."""
_SHARE_MAX: Final = 8
"""A reserve whose size nobody asked for is at most this part of its volume."""

log = logging.getLogger(__name__)


class DiskReserve:
    """The reserve of one journal.

    Owner: whoever opens the journal, then the journal's worker thread; the attributes may be read
    anywhere.

    Attributes:
        size_bytes: What it takes on the disk now; 0 if it is not there.
        owed_bytes: What it has to get back; 0 if it was not given up.

    Args:
        folder: The journal's folder.
        wanted_bytes: How large it is to be; 0: there is to be none.
        disk: The file system.
        is_asked_for: Whether the size was configured, so that it counts on small volumes too.
    """

    def __init__(
        self, folder: Path, wanted_bytes: int, disk: DiskLike, *, is_asked_for: bool = True
    ) -> None:
        self.size_bytes = self.owed_bytes = 0
        self._path = folder / NAME
        self._wanted_bytes = wanted_bytes
        self._disk = disk
        self._is_asked_for = is_asked_for
        self._is_too_small = False

    def find(self) -> None:
        """Find out what is there; one of another size, or that is not wanted any more, goes.

        Raises:
            NativeError: The folder can't be looked at.
        """
        try:
            size_bytes = self._path.lstat().st_size
        except FileNotFoundError:
            return
        except OSError as error:
            raise NativeError(
                "cannot look at the disk reserve", error.errno or 0, where=str(self._path)
            ) from error
        if not self._wanted_bytes or size_bytes not in (0, self._wanted_bytes):
            self._drop(self._path)
        elif size_bytes:
            self.size_bytes = size_bytes
        else:
            self.owed_bytes = self._wanted_bytes

    def release_if_full(self) -> bool:
        """Give the reserve up if less than `START_BYTES` are free; return whether that was done."""
        free = self._disk.usage(self._path.parent).free if self.size_bytes else START_BYTES
        return free < START_BYTES and self.release()

    def release(self) -> bool:
        """Give the reserve up; False: there is none.

        Durability: the file system may take the space back only with its own next commit; what is
        written before that waits for it.
        """
        if not self.size_bytes:
            return False
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.ftruncate(fd, 0)
                os.fsync(fd)  # ext4 gives blocks back with a commit
            finally:
                os.close(fd)
        except OSError as error:
            log.warning("the disk reserve can't be given up path=%s: %s", self._path, error)
            return False
        log.warning(
            "the disk is full: this start gives up the disk reserve of %d bytes; producers wait "
            "until there is room for it again path=%s",
            self.size_bytes,
            self._path,
        )
        self.owed_bytes, self.size_bytes = self._wanted_bytes, 0
        return True

    @property
    def is_missing(self) -> bool:
        """Whether it is to be made when there is room."""
        return self._wanted_bytes > self.size_bytes and not self._is_too_small

    @property
    def needed_bytes(self) -> int:
        """What has to be free for it beyond what is owed."""
        return self._wanted_bytes - self.size_bytes - self.owed_bytes

    def make(self) -> None:
        """Make the reserve, if it is missing and the volume is not too small for it.

        Its blocks are allocated, not written: nobody reads them.
        """
        if not self._is_asked_for:
            total = self._disk.usage(self._path.parent).total
            self._is_too_small = self._wanted_bytes * _SHARE_MAX > total
        if not self.is_missing:
            return
        unfinished = self._path.with_name(f"{NAME}.new")
        try:
            flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(unfinished, flags, 0o600)
            try:
                os.posix_fallocate(fd, 0, self._wanted_bytes)
                os.fsync(fd)
            finally:
                os.close(fd)
            if self.owed_bytes:
                self._disk.remove(self._path)
            self._disk.rename(unfinished, self._path)
            self._disk.flush_folder(self._path.parent)
        except (OSError, NativeError) as error:
            self._drop(unfinished)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                log.warning("the disk reserve can't be made path=%s: %s", self._path, error)
            return
        if self.owed_bytes:
            log.warning("the disk reserve is there again path=%s", self._path)
        self.size_bytes, self.owed_bytes = self._wanted_bytes, 0

    @staticmethod
    def _drop(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a file of the disk reserve stays behind path=%s: %s", path, error)
