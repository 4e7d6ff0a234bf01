"""`BindingsJournal`: names and values that outlive the broker: addresses, queues, counters.

Owns: one small journal (docs/internals/journal-format.md §3.4) and the table that it holds. The
JMS journal is another one of them, in files of its own (`jms`). The
same files, blocks and recovery as the message journal, written in Python, always by a thread (NIO):
it sees a few records a minute. Must never block the event loop, and never show a value in
`snapshot` that is not durable. Called by `app` and the engine's catalogue.

One task, `bindings-writer`, does all writing: what was asked for while it wrote goes out as one
block.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import struct
import time
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from vespiary_broker.store.disk import Disk, DiskLike
from vespiary_broker.store.fenced import fenced
from vespiary_broker.store.files import BINDINGS_FORM, FileForm, FilePool, PoolRules, StoredFile
from vespiary_broker.store.lock import LOCK_NAME, FolderLock
from vespiary_broker.store.reclaim import files_record
from vespiary_broker.store.recovery import Recovered, Recovery, log_outcome
from vespiary_broker.store.survey import survey_folder, verify_blocks_python
from vespiary_broker.store.takeover import seal_tail, take_over
from vespiary_codec.journal.block import CRC_AT, FIRST_OFFSET, FLAG_SEAL, BlockHeader, encode_block
from vespiary_codec.journal.file_header import SEAL_BYTES, JournalKind
from vespiary_codec.journal.record import (
    PutRecord,
    RemoveRecord,
    SealRecord,
    align8,
    decode_record,
    encode_record,
    walk_records,
)
from vespiary_native.abc_ring import Ring
from vespiary_native.memory import AlignedBuffer
from vespiary_native.threads import ThreadRing
from vespiary_spec import limits
from vespiary_spec.errors import (
    DiskFull,
    JournalError,
    JournalFull,
    NativeError,
    RecordTooLarge,
    VespiaryError,
    WriterFailed,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_HEADER_BYTES = 64
_BLOCK_BYTES = 256 * 1024
_ROOM_FOR_FILES_BYTES = 16 * 1024
"""Room that a block leaves to the FILES record: a thousand runs."""
VALUE_BYTES_MAX = 128 * 1024
_QUIET_S = 0.020
_FILES_MIN = 2
_LABELS = {JournalKind.BINDINGS: "bindings journal", JournalKind.JMS: "JMS journal"}


class _Entry(NamedTuple):
    """A value and where its latest record stands."""

    value: bytes
    file_id: int
    length: int


class _Change(NamedTuple):
    """A record that waits to be written; its futures are told when it is durable."""

    record: PutRecord | RemoveRecord
    encoded: bytes
    future: asyncio.Future[None]


class BindingsTable:
    """The values by key. Also the sink of the recovery."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}
        self.live_bytes = 0

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """Nothing is kept by file."""

    def restore_block(
        self, file_id: int, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """Apply the records of one valid block."""
        (records,) = struct.unpack_from("<I", block, 36)
        for raw in walk_records(block[_HEADER_BYTES:], records, offset=offset + _HEADER_BYTES):
            record = decode_record(raw)
            if isinstance(record, PutRecord | RemoveRecord):
                self.apply(record, file_id)
        return []

    def apply(self, record: PutRecord | RemoveRecord, file_id: int) -> None:
        """Take one record that stands in a file."""
        old = self.entries.pop(record.key, None)
        if old is not None:
            self.live_bytes -= old.length
        if isinstance(record, PutRecord):
            length = 16 + len(record.key.encode()) + len(record.value)
            self.entries[record.key] = _Entry(record.value, file_id, length)
            self.live_bytes += length


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingsParts:
    """What a bindings journal is made of; tests replace some of it."""

    disk: DiskLike = field(default_factory=Disk)
    open_ring: Callable[[], Ring] = lambda: ThreadRing(2)
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


class _OpenedBindings(NamedTuple):
    lock: FolderLock
    pool: FilePool
    table: BindingsTable
    ring: Ring
    recovered: Recovered
    sequence: int
    crc: int


class BindingsJournal:
    """A durable table of names. Owner: the event loop's thread; the task `bindings-writer` writes.

    Attributes:
        recovered: What was found at the start.
        on_failed: Called once when a write failed and the journal is fenced.
    """

    def __init__(
        self, opened: _OpenedBindings, parts: BindingsParts, executor: Executor, form: FileForm
    ) -> None:
        """Not for callers: `open` makes journals."""
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._parts = parts
        self._label = _LABELS[form.kind]
        self._lock, self._pool, self._table, self._ring = opened[:4]
        self.recovered = opened.recovered
        self.on_failed: Callable[[WriterFailed], None] = lambda _: None
        self._sequence = opened.sequence
        self._durable = opened.sequence
        self._crc = opened.crc
        self._file: StoredFile | None = None
        self._ahead = deque(file.file_id for file in opened.recovered.ahead)
        self._witnessed_id = 0  # the file for which one behind it was made ready, or tried
        self._offset = FIRST_OFFSET
        self._buffer = AlignedBuffer(_BLOCK_BYTES + 2 * limits.BLOCK_BYTES)
        self._pending: list[_Change] = []
        self._wake = asyncio.Event()
        self._completion: asyncio.Future[int] | None = None
        self._failure: WriterFailed | None = None
        self._is_uncovered = False
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        folder: Path,
        *,
        create_directory: bool = True,
        is_direct: bool = True,
        file_size_bytes: int = limits.BINDINGS_FILE_BYTES,
        form: FileForm = BINDINGS_FORM,
        lock_name: str = LOCK_NAME,
        parts: BindingsParts | None = None,
    ) -> Self:
        """Lock the folder and read the table back.

        Args:
            folder: The journal's folder.
            create_directory: Make it when it is missing, rather than refuse.
            is_direct: Open files with O_DIRECT.
            file_size_bytes: Size of new files.
            form: Names and kind of the files.
            lock_name: Name of the lock's file: two journals in one folder have one each.
            parts: Disk, ring and clock to use; None takes the real ones.

        Raises:
            JournalLocked: Another broker owns the folder.
            ForeignJournal: The folder holds files that are not this journal's.
            CorruptRecord: Confirmed data is damaged; nothing was changed.
            JournalError: The folder is missing and `create_directory` is false.
            NativeError: A system call failed.
        """
        loop = asyncio.get_running_loop()
        worker = ThreadPoolExecutor(1, thread_name_prefix=form.prefix)
        used = parts or BindingsParts()
        rules = PoolRules(
            file_size_bytes=file_size_bytes, min_files=_FILES_MIN, is_direct=is_direct
        )
        try:
            opened = await loop.run_in_executor(
                worker,
                partial(_open_folder, folder, rules, form, used, create_directory, lock_name),
            )
        except BaseException:
            worker.shutdown(wait=False)
            raise
        journal = cls(opened, used, worker, form)
        loop.add_reader(opened.ring.fileno(), journal._on_completions)
        journal._task = loop.create_task(journal._run(), name="bindings-writer")
        return journal

    async def close(self) -> None:
        """Write what was asked for, then let go of the folder; a second call does nothing."""
        if self._is_closing:
            return
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._loop.remove_reader(self._ring.fileno())
        await self._run_blocking(self._ring.close)
        try:
            await self._run_blocking(self._pool.close)
        finally:
            self._executor.shutdown(wait=True)
            self._lock.close()

    # --- the table --------------------------------------------------------------------------------

    @property
    def failure(self) -> WriterFailed | None:
        """The failure that fenced the journal; None while it works."""
        return self._failure

    def snapshot(self) -> dict[str, Any]:
        """Return all values by key; a copy."""
        return {key: json.loads(entry.value) for key, entry in self._table.entries.items()}

    async def put(self, key: str, value: Any) -> None:
        """Set a value.

        Args:
            key: Name, such as `queue/7`.
            value: What JSON can hold; key and text take at most VALUE_BYTES_MAX together.

        Raises:
            RecordTooLarge: Key and value are larger.
            JournalFull: There is no room for another file; nothing was written.
            WriterFailed: An earlier write failed, or this one does; final for this process.

        Durability: on return the value survives a power cut. A caller that is cancelled does not
            withdraw it.
        """
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        await self._change(PutRecord(key, text))

    async def remove(self, key: str) -> None:
        """Take a key out; a key that is not there costs a record and changes nothing.

        Raises:
            RecordTooLarge: The key is too large.
            JournalFull: As for `put`.
            WriterFailed: As for `put`.

        Durability: as for `put`.
        """
        await self._change(RemoveRecord(key))

    async def _change(self, record: PutRecord | RemoveRecord) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise JournalError(f"the {self._label} is closed")
        encoded = encode_record(record)
        if len(encoded) > VALUE_BYTES_MAX:
            raise RecordTooLarge(
                f"a value of the {self._label} is too large",
                where=record.key[:80],
                measured=f"{len(encoded)} bytes",
                allowed=f"at most {VALUE_BYTES_MAX} bytes",
            )
        future: asyncio.Future[None] = self._loop.create_future()
        self._pending.append(_Change(record, encoded, future))
        self._wake.set()
        await asyncio.shield(future)

    # --- the writer's task ------------------------------------------------------------------------

    async def _run(self) -> None:
        """Write what is pending, cover it when it is quiet, compact when too much is dead."""
        try:
            while not (self._is_closing and not self._pending):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_QUIET_S if self._is_uncovered else None):
                        await self._wake.wait()
                self._wake.clear()
                if self._pending:
                    await self._write_pending()
                    await self._compact()
                elif self._is_uncovered:
                    await self._cover()
                await self._make_ahead()
            if self._is_uncovered:
                await self._cover()
        except VespiaryError as error:
            self._fail(error)
        except Exception as error:
            self._fail(JournalError(f"a defect of the writer ({type(error).__name__}: {error})"))
            raise

    async def _write_pending(self) -> None:
        """Write as many changes as fit into one block."""
        taken: list[_Change] = []
        size = 0
        room = _BLOCK_BYTES - _HEADER_BYTES - _ROOM_FOR_FILES_BYTES
        while self._pending and size + align8(len(self._pending[0].encoded)) <= room:
            size += align8(len(self._pending[0].encoded))
            taken.append(self._pending.pop(0))
        if self._pending:
            self._wake.set()
        try:
            await self._append([change.encoded for change in taken])
        except DiskFull as full:
            error = JournalFull(
                f"no file for the {self._label}: {full.what}",
                where=full.where,
                measured=full.measured,
                allowed=full.allowed,
                cure=full.cure,
            )
            for change in taken:
                change.future.set_exception(error)
                change.future.exception()  # seen: who waited may have gone
            return
        except VespiaryError:
            self._pending[:0] = taken  # `_fail` tells them
            raise
        assert self._file is not None
        for change in taken:
            self._table.apply(change.record, self._file.file_id)
            change.future.set_result(None)
        self._is_uncovered = True

    async def _cover(self) -> None:
        """Write an empty block, whose watermark covers the confirms before it."""
        self._is_uncovered = False
        with suppress(DiskFull):  # then the next write covers them
            await self._append([])

    async def _append(self, records: list[bytes]) -> None:
        """Write one block; begin the next file first if this one is full.

        Raises:
            DiskFull: No next file can be had; nothing was written.
            NativeError: The write failed.
        """
        payload = _join(records)
        if self._file is None or not self._fits(self._file, len(payload)):
            payload = await self._roll() + payload
        await self._write_block(payload, len(records) + (self._offset == FIRST_OFFSET), 0)

    def _fits(self, file: StoredFile, payload_bytes: int) -> bool:
        end = self._offset + _HEADER_BYTES + payload_bytes
        return end <= file.size_bytes - SEAL_BYTES

    async def _roll(self) -> bytes:
        """Go on in the next file; return the FILES record that it begins with.

        The next file is had before this one is sealed, so a full disk changes nothing.
        """
        file = await self._next_file()
        if self._file is not None:
            await self._write_block(_join([encode_record(SealRecord())]), 1, FLAG_SEAL)
            await self._run_blocking(partial(self._pool.retire, self._file.file_id))
        self._file, self._offset = file, FIRST_OFFSET
        return _join([encode_record(files_record(self._pool.active_ids))])

    async def _next_file(self) -> StoredFile:
        """Return the next file, open for writing: first those that an earlier start made ready.

        Ids follow one another without gaps, so a file that was made ready has to be begun before
        one with a higher id: a hole between files with blocks is a lost file to recovery.
        """
        if self._ahead:
            file_id = self._ahead.popleft()
            file = self._pool.file(file_id)
            if file.handle is None:
                await self._run_blocking(partial(self._pool.reopen, file_id))
            return file
        is_first = self._file is None
        return await self._run_blocking(
            partial(self._pool.activate, is_first=is_first, watermark=self._durable)
        )

    async def _make_ahead(self) -> None:
        """Make the next file ready when one was begun: its header says that the first is durable.

        Without it a file whose blocks read as zeros one day would look as if it was never begun.
        """
        if self._file is None or self._witnessed_id == self._file.file_id:
            return
        self._witnessed_id = self._file.file_id
        activate = partial(self._pool.activate, watermark=self._durable)
        try:
            made = await self._run_blocking(activate)
        except DiskFull:
            return  # it is made when it is needed
        except NativeError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                return  # clients hold all descriptors: it says nothing of the disk
            raise
        self._ahead.append(made.file_id)

    async def _write_block(self, payload: bytes, records: int, flags: int) -> None:
        """Write one block and wait for its flush.

        Raises:
            NativeError: The write failed or was cut short: final.

        Durability: on return the block survives a power cut.
        """
        assert self._file is not None
        assert self._file.handle is not None
        header = BlockHeader(
            sequence=self._sequence + 1,
            file_id=self._file.file_id,
            watermark=self._durable,
            payload_bytes=len(payload),
            records=records,
            previous_crc=self._crc,
            time_ms=self._parts.clock_ms(),
            flags=flags,
        )
        block = encode_block(header, payload, salt=self._file.salt, offset=self._offset)
        self._buffer.memoryview[: len(block)] = block
        where = f"{self._file.path}:{self._offset}"
        self._completion = self._loop.create_future()
        self._ring.submit_write(
            self._file.handle.fileno(),
            self._buffer.address,
            len(block),
            self._offset,
            0,
            durable=True,
        )
        result = await self._completion
        if result < 0:
            raise NativeError(f"a write of the {self._label} failed", -result, where=where)
        if result != len(block):
            raise JournalError(
                f"a write of the {self._label} was cut short",
                where=where,
                measured=f"{result} bytes",
                allowed=f"{len(block)} bytes",
            )
        self._sequence = self._durable = header.sequence
        (self._crc,) = struct.unpack_from("<I", block, CRC_AT)
        self._offset += len(block)

    def _on_completions(self) -> None:
        for _, result in self._ring.completions():
            if self._completion is not None and not self._completion.done():
                self._completion.set_result(result)

    async def _compact(self) -> None:
        """Move the live values of the oldest file and free it, while most of the files are dead.

        Always the oldest: a REMOVE in it ends nothing that is still there, so it can simply go.
        """
        while self._file is not None:
            used = [number for number in self._pool.active_ids if number <= self._file.file_id]
            oldest = used[0]
            is_dense = self._table.live_bytes * 2 >= (len(used) - 1) * self._file.size_bytes
            if len(used) <= _FILES_MIN or is_dense:
                return
            moved = [
                PutRecord(key, entry.value)
                for key, entry in self._table.entries.items()
                if entry.file_id == oldest
            ]
            try:
                await self._move(moved)
                await self._checkpoint(oldest)
            except DiskFull as error:
                logger.warning("the %s is not compacted: %s", self._label, error)
                return
            await self._run_blocking(partial(self._pool.release, oldest))

    async def _checkpoint(self, leaving: int) -> None:
        """Write a FILES record without one file, as the last record that lists files.

        Durability: on return the file may be freed.
        """
        if self._file is None or not self._fits(self._file, _ROOM_FOR_FILES_BYTES):
            await self._roll()  # its FILES record is the one below
        kept = [file_id for file_id in self._pool.active_ids if file_id != leaving]
        await self._write_block(_join([encode_record(files_record(kept))]), 1, 0)

    async def _move(self, moved: list[PutRecord]) -> None:
        room = _BLOCK_BYTES - _HEADER_BYTES - _ROOM_FOR_FILES_BYTES
        while moved:
            part: list[PutRecord] = []
            size = 0
            while moved and size + align8(len(encode_record(moved[-1]))) <= room:
                part.append(moved.pop())
                size += align8(len(encode_record(part[-1])))
            await self._append([encode_record(record) for record in part])
            for record in part:
                self._table.apply(record, self._file.file_id if self._file else 0)

    def _fail(self, error: VespiaryError) -> None:
        """Fence the journal and tell everybody who waits."""
        failure = self._failure = fenced(self._label, error)
        logger.critical("%s", failure)
        while self._pending:
            change = self._pending.pop(0)
            change.future.set_exception(failure)
            change.future.exception()  # seen: who waited may have gone
        self.on_failed(failure)

    async def _run_blocking(self, function: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._executor, function)


def _join(records: list[bytes]) -> bytes:
    return b"".join(record.ljust(align8(len(record)), b"\0") for record in records)


def _open_folder(
    folder: Path,
    rules: PoolRules,
    form: FileForm,
    parts: BindingsParts,
    create_directory: bool,
    lock_name: str,
) -> _OpenedBindings:
    """Lock, survey, recover and seal; blocking."""
    disk, is_direct = parts.disk, rules.is_direct
    with ExitStack() as undo:
        if create_directory:
            disk.make_folder(folder)
        elif not folder.is_dir():
            raise JournalError(
                f"the {_LABELS[form.kind]}'s folder does not exist and create-bindings-dir is "
                "false",
                where=str(folder),
                cure="make the folder, or check that its volume is mounted",
            )
        lock = FolderLock(folder, name=lock_name)
        undo.callback(lock.close)
        survey = survey_folder(folder, form, disk, is_direct=is_direct)
        table = BindingsTable()
        recovery = Recovery(survey, disk, verify_blocks_python, is_direct=is_direct)
        recovered = recovery.run(table)
        log_outcome(recovered, folder)
        sequence, crc = seal_tail(recovered, disk, is_direct=is_direct, now_ms=parts.clock_ms())
        pool = FilePool(
            folder,
            form,
            rules,
            disk,
            journal_id=survey.journal_id or uuid.uuid4().bytes,
            clock_ms=parts.clock_ms,
        )
        undo.callback(pool.close)
        take_over(pool, survey, recovered)
        try:
            pool.fill_floor()
        except DiskFull as error:
            logger.warning("the %s starts without spare files: %s", _LABELS[form.kind], error)
        ring = parts.open_ring()
        undo.pop_all()
    return _OpenedBindings(lock, pool, table, ring, recovered, sequence, crc)
