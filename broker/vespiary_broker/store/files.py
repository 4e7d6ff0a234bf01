"""The pool of a journal's files: made ahead of need, activated, freed, used again, never lost.

Owns: the files of one journal in its folder: their names, their headers and the ids that they get.
Must never delete a file that may hold something (odd ones go to the folder `attic`), never touch a
block, and never be called from the event loop: every method blocks. One thread at a time uses it,
the journal's worker (docs/internals/ownership.md).

A file's life (docs/internals/journal-format.md §1): made as NAME.tmp, filled with zeros by a
strategy of `preallocation`, given a *free* header, flushed, renamed, and its folder flushed (once
for all files of a batch). To activate: renamed to the id that it
gets, folder flushed, *active* header with a new salt written and flushed. To free: *free* header
written and flushed. A header is one sector, so a cut in any of these leaves the file before or
after the step.
"""

from __future__ import annotations

import errno
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vespiary_broker.store.attic import Attic
from vespiary_broker.store.disk import DiskFile, DiskLike
from vespiary_broker.store.preallocation import Preallocator
from vespiary_broker.store.reserve import DiskReserve
from vespiary_codec.journal.file_forms import BINDINGS_FORM as BINDINGS_FORM
from vespiary_codec.journal.file_forms import JMS_FORM as JMS_FORM
from vespiary_codec.journal.file_forms import MESSAGE_FORM as MESSAGE_FORM
from vespiary_codec.journal.file_forms import FileForm as FileForm
from vespiary_codec.journal.file_header import (
    HEADER_BYTES,
    FileHeader,
    FileState,
    encode_file_header,
)
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import DiskFull, NativeError, VespiaryError
from vespiary_spec.settings import PreallocationStrategy

logger = logging.getLogger(__name__)

BATCH_FILES = 4
"""Most files made at once, with one flush of their folder: the worker has other work as well."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class StoredFile:
    """One file of the pool.

    Attributes:
        path: Where it lies now.
        number: The number in its name.
        file_id: Its id; of a free file the last one it had, 0 if it had none.
        salt: Salt of its life.
        size_bytes: Its size; it may be shorter while it grows.
        handle: Open for writing, while it is being filled; else None.
        is_growing: It was made without preallocation.
        watermark: Of its header: blocks of the journal up to it were durable when that was written.
    """

    path: Path
    number: int
    file_id: int
    salt: int
    size_bytes: int
    handle: DiskFile | None = None
    is_growing: bool = False
    watermark: int = 0


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
        strategy: How new files get their size.
        is_growing: They don't: each grows with its content (`journal-preallocation-scope: none`).
    """

    file_size_bytes: int
    min_files: int = 2
    pool_files: int = -1
    reserve_files: int = 1
    max_attic_files: int = 10
    is_direct: bool = True
    limits: SpaceLimits = NO_LIMITS
    strategy: PreallocationStrategy = PreallocationStrategy.ZEROS
    is_growing: bool = False


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
        reserve: DiskReserve | None = None,
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
            reserve: What a start on a full disk gives up; None: there is none.
            clock_ms: Milliseconds since 1970, for the headers.
            new_salt: 64 random bits.
        """
        self._folder = folder
        self._form = form
        self._rules = rules
        self._disk = disk
        self._journal_id = journal_id
        self._reserve = reserve
        self._clock_ms = clock_ms
        self._new_salt = new_salt
        self._preallocator = Preallocator(
            folder / f"{form.prefix}.template", disk, rules.strategy, is_direct=rules.is_direct
        )
        self._attic = Attic(folder, disk, rules.max_attic_files)
        self._next_id = 1
        self._active: dict[int, StoredFile] = {}
        self._free: list[StoredFile] = []
        self._are_names_flushed = True
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
    def folder(self) -> Path:
        """The journal's folder."""
        return self._folder

    @property
    def journal_id(self) -> bytes:
        """16 bytes, the same in all files."""
        return self._journal_id

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

    @property
    def preallocation_fallbacks(self) -> int:
        """Files made by another strategy than the one asked for."""
        return self._preallocator.fallbacks

    def _count(self) -> None:
        """Publish the counts: other threads read them while this one changes the tables."""
        files = (*self._active.values(), *self._free)
        self.counts = PoolCounts(
            len(self._active), len(self._free), sum(file.size_bytes for file in files)
        )

    def file(self, file_id: int) -> StoredFile:
        """Return a file in use."""
        return self._active[file_id]

    def find(self, file_id: int) -> StoredFile | None:
        """Return a file if it is in use: the worker may free it at any moment."""
        return self._active.get(file_id)

    # --- a file's life ----------------------------------------------------------------------------

    def activate(self, *, is_first: bool = False, watermark: int = 0) -> StoredFile:
        """Make a file ready for blocks: a free one, or a new one; it is open for writing.

        Args:
            is_first: The first after a start; it may take the reserve and pass over the limits
                of the disk, since without a file nothing could be acknowledged.
            watermark: Highest block sequence that is durable now; the header bears witness of it.

        Raises:
            DiskFull: The limits of the disk forbid a new file, or the disk has no room for it.
            NativeError: A call failed; on the pool's files this is final for the journal.

        Durability: on return the active header survives a power cut.
        """
        reserve = 0 if is_first else self._rules.reserve_files
        if len(self._free) <= reserve:
            self._add_free(1, obeys_limits=not is_first)
        file_id = self._next_id
        file = self._pick(file_id)
        handle = self._disk.open(file.path, is_direct=self._rules.is_direct, is_readonly=False)
        salt = self._new_salt()
        try:
            if file.is_growing and not self._rules.is_growing:
                self._preallocator.extend(handle, handle.size_bytes(), file.size_bytes)
                file.is_growing = False
            self._write_header(
                handle,
                FileState.ACTIVE,
                file_id,
                salt,
                file.size_bytes,
                file.is_growing,
                watermark,
            )
        except VespiaryError as error:
            handle.close()
            if isinstance(error, NativeError) and error.errno in _NO_SPACE:
                raise self._no_room(file.size_bytes) from error
            raise
        self._free.remove(file)
        self._next_id += 1
        file.file_id, file.salt, file.handle = file_id, salt, handle
        file.watermark = watermark
        self._active[file_id] = file
        self._count()
        return file

    def _pick(self, file_id: int) -> StoredFile:
        """Return the free file that gets this id, under the name that goes with it.

        The name comes first and the header second: a cut between them leaves a free file.
        """
        file = next((file for file in self._free if file.number == file_id), self._free[0])
        if file.number != file_id:
            path = self._folder / self._form.name(file_id)
            self._are_names_flushed = False
            self._disk.rename(file.path, path)
            file.path, file.number = path, file_id
        self._flush_names()
        return file

    def _flush_names(self) -> None:
        """Flush the folder unless all names of files are durable: an earlier try may have failed.

        Where there was no descriptor for it the keeper tries again; a name stays owed until then.
        """
        if not self._are_names_flushed:
            self._disk.flush_folder(self._folder)
            self._are_names_flushed = True

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
            self._write_header(
                handle, FileState.FREE, file_id, file.salt, file.size_bytes, file.is_growing
            )
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
        while missing := max(
            self._rules.min_files - len(self._active) - len(self._free),
            self._rules.reserve_files - len(self._free),
            0,
        ):
            self._add_free(min(missing, BATCH_FILES), obeys_limits=True)

    def make_ahead(self, count: int) -> None:
        """Make the files in one go that `activate` is about to be asked for.

        Args:
            count: Activations to come; at most `BATCH_FILES` files are made.

        Raises:
            DiskFull: No room, or forbidden by the limits, and no file that could be activated.
            NativeError: A call failed.
        """
        missing = count + self._rules.reserve_files - len(self._free)
        if missing < 1:
            return
        try:
            self._add_free(min(missing, BATCH_FILES), obeys_limits=True)
        except DiskFull:
            if not self.has_spare:
                raise

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
        if self._reserve is not None and self._reserve.owed_bytes:
            left -= self._reserve.owed_bytes
            if left < 0:
                raise DiskFull(
                    f"a new journal file of {more_bytes} bytes would take what the disk reserve is "
                    "owed, which a start on a full disk gave up",
                    where=str(self._folder),
                    measured=f"{usage.free} bytes free",
                    allowed=f"at least {more_bytes + self._reserve.owed_bytes}",
                    cure="consume messages or enlarge the volume",
                )
        if self._is_space_promised:
            # The file system will not say that it is full before a block is written there.
            left -= self._promised_bytes()
            if left < 0:
                raise self._no_room(more_bytes)
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

    @property
    def _is_space_promised(self) -> bool:
        """Whether making a file takes none of its space."""
        is_sparse = self._rules.strategy is PreallocationStrategy.SPARSE_FILE
        return is_sparse or self._rules.is_growing

    def _promised_bytes(self) -> int:
        """Return the bytes that files already made will still take: those of sparse files."""
        files = (*self._active.values(), *self._free)
        return sum(
            max(file.size_bytes - self._disk.allocated_bytes(file.path), 0) for file in files
        )

    def _no_room(self, size_bytes: int) -> DiskFull:
        return DiskFull(
            f"no room for a new journal file of {size_bytes} bytes",
            where=str(self._folder),
            cure="consume messages or enlarge the volume",
        )

    def _add_free(self, count: int, *, obeys_limits: bool) -> None:
        """Make free files: all filled and flushed, then all named, then their folder flushed once.

        Raises:
            DiskFull: There was no room for even one.
            NativeError: A call failed.

        Durability: on return the new files and their names survive a power cut.
        """
        taken = [file.number for file in (*self._active.values(), *self._free)]
        numbers = self._numbers(max([self._next_id - 1, *taken]) + 1)
        made: list[tuple[Path, StoredFile]] = []
        try:
            for _ in range(count):
                # One by one: those made before the disk was full are good.
                made.append(self._make(next(numbers), obeys_limits=obeys_limits))  # noqa: PERF401
        except DiskFull:
            if not made:
                raise
        self._are_names_flushed = False
        for unfinished, file in made:
            self._disk.rename(unfinished, file.path)
            self._free.append(file)  # it is there, whatever fails from here on
        self._free.sort(key=lambda file: file.number)
        self.made += len(made)
        self._count()
        self._flush_names()

    def _numbers(self, first: int) -> Iterator[int]:
        """Yield numbers for new files; none whose name an unfinished file may hold something in."""
        names = set(self._disk.names(self._folder))
        for number in itertools.count(first):
            name = self._form.name(number)
            if name not in names and f"{name}.tmp" not in names:
                yield number

    def _make(self, number: int, *, obeys_limits: bool) -> tuple[Path, StoredFile]:
        """Make one file under a name of its own: full of zeros, with a free header, flushed.

        Every byte is written, not only reserved, unless the rules say otherwise: into unwritten
        extents each commit would cost a journal transaction of the file system, and io_submit would
        block.
        """
        rules = self._rules
        if obeys_limits:
            self.check_space(rules.file_size_bytes)
        path = self._folder / self._form.name(number)
        unfinished = path.with_name(path.name + ".tmp")
        try:
            if rules.is_growing:
                handle: DiskFile = self._disk.create(unfinished, is_direct=rules.is_direct)
            else:
                handle = self._preallocator.make(unfinished, rules.file_size_bytes)
            try:
                self._write_header(
                    handle, FileState.FREE, 0, 0, rules.file_size_bytes, rules.is_growing
                )
            finally:
                handle.close()
        except NativeError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._drop(unfinished)  # gives the space back that it took
            raise self._no_room(rules.file_size_bytes) from error
        file = StoredFile(path, number, 0, 0, rules.file_size_bytes, is_growing=rules.is_growing)
        return unfinished, file

    def _drop(self, path: Path) -> None:
        """Remove an unfinished file that was made here; what it holds is zeros."""
        if path.name not in self._disk.names(self._folder):
            return
        try:
            self._disk.remove(path)
            self._disk.flush_folder(self._folder)
        except NativeError as error:
            logger.warning("an unfinished journal file stays behind: %s", error)

    def _write_header(
        self,
        handle: DiskFile,
        state: FileState,
        file_id: int,
        salt: int,
        size_bytes: int,
        is_growing: bool,
        watermark: int = 0,
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
            is_growing=is_growing,
            watermark=watermark,
        )
        view = AlignedBuffer(HEADER_BYTES).memoryview
        view[:] = encode_file_header(header)
        handle.write(view, 0)
        handle.flush()

    # --- the reserve ------------------------------------------------------------------------------

    @property
    def reserve_bytes(self) -> int:
        """What the disk reserve takes now."""
        return 0 if self._reserve is None else self._reserve.size_bytes

    @property
    def reserve_owed_bytes(self) -> int:
        """What the disk reserve gave up and has to get back."""
        return 0 if self._reserve is None else self._reserve.owed_bytes

    @property
    def lacks_reserve(self) -> bool:
        """Whether the disk reserve is to be made when there is room for it."""
        return self._reserve is not None and self._reserve.is_missing

    def make_reserve(self) -> None:
        """Make the disk reserve if it is missing, and there is room for it and one file more."""
        reserve, file_bytes = self._reserve, self._rules.file_size_bytes
        if reserve is None:
            return
        needed_bytes = reserve.needed_bytes
        if self._disk.usage(self._folder).free < file_bytes + needed_bytes + reserve.owed_bytes:
            return  # the limits alone may allow it
        try:
            self.check_space(file_bytes + needed_bytes)
        except DiskFull:
            return
        reserve.make()

    # --- unfinished files -------------------------------------------------------------------------

    def clear_unfinished(self, path: Path) -> None:
        """Deal with a file that a crash left unfinished: see `Attic.clear_unfinished`."""
        self._attic.clear_unfinished(path)
