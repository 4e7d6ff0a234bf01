"""The pool of a journal's files: made ahead of need, activated, freed, used again, never lost.

Owns: the files of one journal in its folder: their names, their headers and the ids that they get.
Must never delete a file that may hold something (odd ones go to the folder `attic`), never touch a
block, and never be called from the event loop: every method blocks. One thread at a time uses it,
the journal's worker (docs/internals/ownership.md).

A file's life (docs/internals/journal-format.md §1): made as NAME.tmp, filled with zeros, given a
*free* header, flushed, renamed, and its folder flushed. To activate: renamed to the id that it
gets, folder flushed, *active* header with a new salt written and flushed. To free: *free* header
written and flushed. A header is one sector, so a cut in any of these leaves the file before or
after the step.
"""

from __future__ import annotations

import errno
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vespiary_broker.store.disk import DiskFile, DiskLike
from vespiary_codec.journal.file_header import (
    HEADER_BYTES,
    FileHeader,
    FileState,
    JournalKind,
    encode_file_header,
)
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import DiskFull, NativeError, VespiaryError

logger = logging.getLogger(__name__)

ATTIC = "attic"
_FILL_BYTES = 256 * 1024
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class FileForm(NamedTuple):
    """How the files of one kind of journal are named."""

    prefix: str
    extension: str
    kind: JournalKind

    def name(self, number: int) -> str:
        """Return the name of file `number`."""
        return f"{self.prefix}-{number}.{self.extension}"

    def number(self, name: str) -> int | None:
        """Return the number in a name, also of an unfinished file; None if it is no such name."""
        pattern = rf"{re.escape(self.prefix)}-(\d{{1,19}})\.{re.escape(self.extension)}(\.tmp)?"
        match = re.fullmatch(pattern, name, re.ASCII)
        return int(match[1]) if match else None


MESSAGE_FORM = FileForm("activemq-data", "hq", JournalKind.MESSAGE)
BINDINGS_FORM = FileForm("activemq-bindings", "bindings", JournalKind.BINDINGS)
JMS_FORM = FileForm("activemq-jms", "jms", JournalKind.JMS)


@dataclass(slots=True)
class StoredFile:
    """One file of the pool.

    Attributes:
        path: Where it lies now.
        number: The number in its name.
        file_id: Its id; of a free file the last one it had, 0 if it had none.
        salt: Salt of its life.
        size_bytes: Its size.
        handle: Open for writing, while it is being filled; else None.
    """

    path: Path
    number: int
    file_id: int
    salt: int
    size_bytes: int
    handle: DiskFile | None = None


class SpaceLimits(NamedTuple):
    """When no file is made: share of the disk in percent (100 is off), free bytes (-1 is off)."""

    max_usage_percent: int = 100
    min_free_bytes: int = -1


NO_LIMITS = SpaceLimits()


class PoolCounts(NamedTuple):
    """Files in use and free, and the size of all of them."""

    active: int
    free: int
    bytes_on_disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """How many files the pool keeps, and of what size.

    Attributes:
        file_size_bytes: Size of new files.
        min_files: Files that are never deleted, whatever their state.
        pool_files: Free files kept; -1 keeps all.
        reserve_files: Free files that only the first activation after a start may take: when the
            disk is full, acknowledgements must find a file after a restart.
        max_attic_files: Files kept in the attic.
        is_direct: Open with O_DIRECT.
        limits: When the disk counts as full.
    """

    file_size_bytes: int
    min_files: int = 2
    pool_files: int = -1
    reserve_files: int = 1
    max_attic_files: int = 10
    is_direct: bool = True
    limits: SpaceLimits = NO_LIMITS


class FilePool:
    """All files of one journal. Owner: the journal's worker thread.

    Invariants: ids are given in ascending order without gaps; a file is in `active` from the moment
    its active header is durable until its free header is.
    """

    def __init__(
        self,
        folder: Path,
        form: FileForm,
        rules: PoolRules,
        disk: DiskLike,
        *,
        journal_id: bytes,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_salt: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        """Make an empty pool; `adopt` tells it what is there.

        Args:
            folder: The journal's folder.
            form: Names and kind of its files.
            rules: Numbers and sizes.
            disk: The file system.
            journal_id: 16 bytes, the same in all files.
            clock_ms: Milliseconds since 1970, for the headers.
            new_salt: 64 random bits.
        """
        self._folder = folder
        self._form = form
        self._rules = rules
        self._disk = disk
        self._journal_id = journal_id
        self._clock_ms = clock_ms
        self._new_salt = new_salt
        self._next_id = 1
        self._active: dict[int, StoredFile] = {}
        self._free: list[StoredFile] = []
        self.counts = PoolCounts(0, 0, 0)
        self.made = 0
        self.reclaimed = 0

    # --- what is there --------------------------------------------------------------------------

    def adopt(self, active: list[StoredFile], free: list[StoredFile], next_id: int) -> None:
        """Take over the files that recovery found.

        Args:
            active: Files in use, those made ready and not begun included.
            free: Files that hold nothing.
            next_id: Id of the next activation, above all ids ever used.
        """
        self._active = {file.file_id: file for file in active}
        self._free = sorted(free, key=lambda file: file.number)
        self._next_id = next_id
        self._count()

    @property
    def active_ids(self) -> list[int]:
        """Ids of all files in use, ascending."""
        return sorted(self._active)

    @property
    def open_ids(self) -> list[int]:
        """Ids of the files that are open for writing, ascending."""
        return sorted(number for number, file in self._active.items() if file.handle)

    @property
    def has_spare(self) -> bool:
        """Whether a file can be activated without making one."""
        return len(self._free) > self._rules.reserve_files

    def _count(self) -> None:
        """Publish the counts: other threads read them while this one changes the tables."""
        files = (*self._active.values(), *self._free)
        self.counts = PoolCounts(
            len(self._active), len(self._free), sum(file.size_bytes for file in files)
        )

    def file(self, file_id: int) -> StoredFile:
        """Return a file in use."""
        return self._active[file_id]

    # --- a file's life ----------------------------------------------------------------------------

    def activate(self, *, is_first: bool = False) -> StoredFile:
        """Make a file ready for blocks: a free one, or a new one; it is open for writing.

        Args:
            is_first: The first after a start; it may take the reserve and pass over the limits
                of the disk, since without a file nothing could be acknowledged.

        Raises:
            DiskFull: The limits of the disk forbid a new file, or the disk has no room for it.
            NativeError: A call failed; on the pool's files this is final for the journal.

        Durability: on return the active header survives a power cut.
        """
        reserve = 0 if is_first else self._rules.reserve_files
        if len(self._free) <= reserve:
            self._add_free(obeys_limits=not is_first)
        file_id = self._next_id
        file = self._pick(file_id)
        handle = self._disk.open(file.path, is_direct=self._rules.is_direct, is_readonly=False)
        salt = self._new_salt()
        try:
            self._write_header(handle, FileState.ACTIVE, file_id, salt, file.size_bytes)
        except VespiaryError:
            handle.close()
            raise
        self._free.remove(file)
        self._next_id += 1
        file.file_id, file.salt, file.handle = file_id, salt, handle
        self._active[file_id] = file
        self._count()
        return file

    def _pick(self, file_id: int) -> StoredFile:
        """Return the free file that gets this id, under the name that goes with it.

        The name comes first and the header second: a cut between them leaves a free file.
        """
        named = [file for file in self._free if file.number == file_id]
        if named:
            return named[0]
        file = self._free[0]
        path = self._folder / self._form.name(file_id)
        self._disk.rename(file.path, path)
        file.path, file.number = path, file_id
        self._disk.flush_folder(self._folder)
        return file

    def release(self, file_id: int) -> None:
        """Free a file; the caller has made the checkpoint without it durable.

        Raises:
            NativeError: The header can't be written; the file stays in use.

        Durability: on return the free header survives a power cut.
        """
        file = self._active[file_id]
        self.retire(file_id)
        handle = self._disk.open(file.path, is_direct=self._rules.is_direct, is_readonly=False)
        try:
            self._write_header(handle, FileState.FREE, file_id, file.salt, file.size_bytes)
        finally:
            handle.close()
        del self._active[file_id]
        self._free.append(file)
        self._free.sort(key=lambda free: free.number)
        self.reclaimed += 1
        self._trim()
        self._count()

    def retire(self, file_id: int, *, is_flushed: bool = True) -> None:
        """Close the writing descriptor of a file that is full.

        Args:
            file_id: The file.
            is_flushed: Its blocks are durable already; else it is flushed here.

        Durability: on return all blocks of the file survive a power cut.
        """
        file = self._active[file_id]
        handle, file.handle = file.handle, None
        if handle is None:
            return
        try:
            if not is_flushed:
                handle.flush()
        finally:
            handle.close()

    def reopen(self, file_id: int) -> None:
        """Open a file for writing that was made ready before the start and not begun."""
        file = self._active[file_id]
        file.handle = self._disk.open(file.path, is_direct=self._rules.is_direct, is_readonly=False)

    def fill_floor(self) -> None:
        """Make free files until the pool holds its floor and its reserve.

        Raises:
            DiskFull: No room, or forbidden by the limits.
            NativeError: A call failed.
        """
        while (
            len(self._active) + len(self._free) < self._rules.min_files
            or len(self._free) < self._rules.reserve_files
        ):
            self._add_free(obeys_limits=True)

    def _trim(self) -> None:
        """Delete free files beyond `pool_files`, the floor and the reserve excepted."""
        keep = self._rules.pool_files
        is_trimmed = False
        while (
            keep >= 0
            and len(self._free) > max(keep, self._rules.reserve_files)
            and len(self._active) + len(self._free) > self._rules.min_files
        ):
            self._disk.remove(self._free.pop().path)
            is_trimmed = True
        if is_trimmed:
            self._disk.flush_folder(self._folder)

    def close(self) -> None:
        """Close all descriptors."""
        for file_id in list(self._active):
            self.retire(file_id)

    # --- making files -----------------------------------------------------------------------------

    def check_space(self, more_bytes: int) -> None:
        """Refuse to take space that the limits forbid.

        Args:
            more_bytes: Bytes about to be taken.

        Raises:
            DiskFull: Measured against allowed.
        """
        limits = self._rules.limits
        usage = self._disk.usage(self._folder)
        left = usage.free - more_bytes
        if limits.min_free_bytes >= 0:
            if left < limits.min_free_bytes:
                raise DiskFull(
                    f"a new journal file of {more_bytes} bytes would leave less than min-disk-free",
                    where=str(self._folder),
                    measured=f"{usage.free} bytes free",
                    allowed=f"at least {limits.min_free_bytes} bytes after it",
                    cure="consume messages or enlarge the volume",
                )
            return
        used_percent = 100 * (usage.total - left) / max(usage.total, 1)
        if limits.max_usage_percent < 100 and used_percent > limits.max_usage_percent:
            raise DiskFull(
                f"a new journal file of {more_bytes} bytes would pass max-disk-usage",
                where=str(self._folder),
                measured=f"{used_percent:.1f} % used with it",
                allowed=f"at most {limits.max_usage_percent} %",
                cure="consume messages or enlarge the volume",
            )

    def _add_free(self, *, obeys_limits: bool) -> None:
        size = self._rules.file_size_bytes
        if obeys_limits:
            self.check_space(size)
        taken = [file.number for file in (*self._active.values(), *self._free)]
        number = max([self._next_id - 1, *taken]) + 1
        path = self._folder / self._form.name(number)
        unfinished = path.with_name(path.name + ".tmp")
        try:
            self._make(unfinished, size)
        except NativeError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._drop(unfinished)  # gives the space back that it took
            raise DiskFull(
                f"no room for a new journal file of {size} bytes",
                where=str(self._folder),
                cure="consume messages or enlarge the volume",
            ) from error
        self._disk.rename(unfinished, path)
        self._disk.flush_folder(self._folder)
        self._free.append(StoredFile(path, number, 0, 0, size))
        self._free.sort(key=lambda file: file.number)
        self.made += 1
        self._count()

    def _make(self, path: Path, size_bytes: int) -> None:
        """Write a file full of zeros with a free header.

        Every byte is written, not only reserved: into unwritten extents each commit would cost a
        journal transaction of the file system, and io_submit would block.
        """
        handle = self._disk.create(path, is_direct=self._rules.is_direct)
        try:
            zeros = AlignedBuffer(min(_FILL_BYTES, size_bytes)).memoryview
            for offset in range(0, size_bytes, len(zeros)):
                handle.write(zeros[: size_bytes - offset], offset)
            self._write_header(handle, FileState.FREE, 0, 0, size_bytes)
        finally:
            handle.close()

    def _drop(self, path: Path) -> None:
        """Remove an unfinished file; what it holds is zeros."""
        try:
            self._disk.remove(path)
            self._disk.flush_folder(self._folder)
        except NativeError as error:
            logger.warning("an unfinished journal file stays behind: %s", error)

    def _write_header(
        self, handle: DiskFile, state: FileState, file_id: int, salt: int, size_bytes: int
    ) -> None:
        """Write a header and flush it.

        Durability: on return it survives a power cut.
        """
        header = FileHeader(
            state=state,
            kind=self._form.kind,
            journal_id=self._journal_id,
            file_id=file_id,
            salt=salt,
            size_bytes=size_bytes,
            activated_ms=self._clock_ms(),
        )
        view = AlignedBuffer(HEADER_BYTES).memoryview
        view[:] = encode_file_header(header)
        handle.write(view, 0)
        handle.flush()

    def move_to_attic(self, path: Path) -> bool:
        """Move a file that holds nothing out of the way; return whether there was room for it.

        Raises:
            NativeError: The move failed.
        """
        attic = self._folder / ATTIC
        self._disk.make_folder(attic)
        kept = self._disk.names(attic)
        if len(kept) >= self._rules.max_attic_files:
            logger.warning("%s stays where it is: %s is full (%d files)", path, attic, len(kept))
            return False
        target = attic / path.name
        suffix = 1
        while target.name in kept:
            target = attic / f"{path.name}.{suffix}"
            suffix += 1
        self._disk.rename(path, target)
        self._disk.flush_folder(attic)
        self._disk.flush_folder(self._folder)
        return True
