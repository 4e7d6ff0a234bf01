"""`MessageJournal`: the one writer of the message journal, from staged bytes to durable ones.

Owns: the core, the ring, the folder's lock and the descriptors of the files being filled. One write
is in flight at a time; at its completion everything staged meanwhile goes out as the next one, so
batches form by themselves and no timer stands between a send and its confirm. Must never confirm
after anything but a completion of the full length, and never try a failed write again: the first
failure fences the journal for this process. Called by the engine (`core`, `kick`, `wait_durable`,
`load_slab`) and by `app` (open, close).

The core confirms nothing by itself: receipts and messages become visible with `write_done`, which
is called here alone, in `_on_written`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Self, TypeVar

from vespiary_broker.store.compaction import Compaction
from vespiary_broker.store.counters import (
    EndedWrite,
    FileCounts,
    JournalStatistics,
    WriteFigures,
    records_in,
)
from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.fenced import fenced
from vespiary_broker.store.files import FilePool, StoredFile
from vespiary_broker.store.keeper import FileKeeper
from vespiary_broker.store.kept import KeptRecords, NothingKept
from vespiary_broker.store.opening import Opened, OpeningParts, open_folder
from vespiary_broker.store.options import Durability, JournalOptions
from vespiary_broker.store.readable_files import ReadableFiles
from vespiary_broker.store.recovery import Recovered
from vespiary_broker.store.retention import Retention
from vespiary_broker.store.retention_folder import RetentionFolder
from vespiary_broker.store.slab_maker import SlabMaker
from vespiary_broker.store.slabs import SlabLoader
from vespiary_broker.store.victims import CompactionRule
from vespiary_native.abc import Core, NoRoom, WriteRequest
from vespiary_native.abc_ring import NOT_TAKEN, Ring
from vespiary_spec.errors import JournalError, NativeError, VespiaryError, WriterFailed

logger = logging.getLogger(__name__)

T = TypeVar("T")

_WRITE_TOKEN = 0
SUBMIT_TRIES = 1000
SUBMIT_PAUSE_S = 0.001
"""A request that the kernel had no room for is submitted again for a second or more."""


class MessageJournal:
    """The message journal of a running broker. Owner: the event loop's thread.

    Invariants: at most one write is in flight; `write_done` follows only a completion of the full
    length; after the first failure nothing is submitted and nothing confirmed.

    Attributes:
        core: The core that the engine stages into. The engine must call `kick` after it staged.
        engine_name: Effective engine: ASYNCIO, IO_URING or NIO.
        fallback_reason: Why it is not the one asked for; None if it is.
        durability: What a confirm is worth.
        recovered: What was found at the start.
        voided_transactions: Transactions without a valid COMMIT that were dropped then.
        retention: Keeps copies of full files and of large bodies; None: nobody does.
        on_durable: Called when more is durable: take receipts and ready queues now, and try again
            what found no slab.
        on_failed: Called once when the journal is fenced; what waits is never confirmed.
    """

    def __init__(
        self,
        options: JournalOptions,
        opened: Opened,
        executor: Executor,
        kept: KeptRecords,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Not for callers: `open` makes journals."""
        self._options = options
        self._loop = loop
        self._executor = executor
        self._lock = opened.lock
        self._pool: FilePool = opened.pool
        self._disk: DiskLike = opened.disk
        self._ring: Ring = opened.ring
        self.core: Core = opened.core
        self.engine_name: str = opened.ring.name
        self.fallback_reason: str | None = opened.fallback_reason
        self.durability: Durability = options.durability
        self.recovered: Recovered = opened.recovered
        self.voided_transactions: int = opened.voided_transactions
        self._recovery_s = opened.seconds
        self.on_durable: Callable[[], None] = lambda: None
        self.on_failed: Callable[[WriterFailed], None] = lambda _: None
        self._is_flushed = self.durability is Durability.D2
        self._fds: dict[int, int] = {}
        self._in_flight: WriteRequest | None = None
        self._records_in_flight = 0
        self._attempt = 0
        self._failure: WriterFailed | None = None
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._delay: asyncio.TimerHandle | None = None
        self._quiet: asyncio.TimerHandle | None = None
        self._is_uncovered = False
        self._is_covering = False
        self._is_starved = False
        self._is_closing = False
        self._current_file = 0
        self._slab_maker = SlabMaker(self.core, options.slab_bytes, loop)
        self._figures = WriteFigures()
        self.readable = ReadableFiles(
            opened.pool, opened.disk, self.run_blocking, is_direct=options.is_direct
        )
        self._loader = SlabLoader(
            self.core,
            self._ring,
            opened.verify,
            open_file=self.readable.open,
            salt_of=self.readable.salt_of,
            slab_bytes=options.slab_bytes,
        )
        self.readable.loader = self._loader
        self.retention = self._make_retention(opened)
        self._keeper = self._make_keeper(kept)
        self.file_uses = self._keeper.file_uses
        self._compaction = self._make_compaction(kept)
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def _make_compaction(self, kept: KeptRecords) -> Compaction:
        options = self._options
        return Compaction(
            self,
            self.core,
            self._pool,
            kept,
            self._keeper.turns,
            rule=CompactionRule(options.compact_min_files, options.compact_percentage),
            bytes_per_s=options.compact_bytes_per_s,
            period_s=options.reclaim_period_s,
            slab_bytes=options.slab_bytes,
        )

    # --- opening and closing ----------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        options: JournalOptions,
        *,
        queue_ids: Iterable[int] = (),
        parts: OpeningParts | None = None,
        executor: Executor | None = None,
        kept: KeptRecords | None = None,
    ) -> Self:
        """Lock the folder, read the journal back, and be ready to write.

        Args:
            options: The settings.
            queue_ids: Durable queues that the bindings know; places of others are void.
            parts: Disk, core, ring and progress to use; None takes the real ones.
            executor: The worker thread; None makes one.
            kept: The owner of records that the core does not keep; None: there are none.

        Raises:
            JournalLocked: Another broker owns the folder.
            ForeignJournal: The folder holds files that are not this journal's.
            CorruptRecord: Confirmed data is damaged; nothing was changed.
            EngineUnavailable: The engine can't be had and `is_strict` forbids another.
            NativeError: A system call failed.
        """
        loop = asyncio.get_running_loop()
        owner = kept or NothingKept()
        worker = executor or ThreadPoolExecutor(1, thread_name_prefix="journal")
        try:
            opened = await loop.run_in_executor(
                worker, open_folder, options, tuple(queue_ids), parts or OpeningParts(), owner
            )
        except BaseException:
            worker.shutdown(wait=False)
            raise
        journal = cls(options, opened, worker, owner, loop)
        for file in opened.ahead:
            journal.add_file(file)
        loop.add_reader(journal._ring.fileno(), journal._on_completions)
        if journal.retention is not None:
            journal.retention.start()
        journal._tasks = (
            loop.create_task(journal._keeper.run(), name="journal-keeper"),
            loop.create_task(journal._compaction.run(), name="journal-compaction"),
        )
        return journal

    async def close(self) -> None:
        """Write what is staged, cover it with an empty block, and let go of the folder.

        After a failure nothing is written. A second call does nothing.

        Durability: on return everything staged before the call is durable, unless the journal had
        failed or there was no room.
        """
        if self._is_closing:
            return
        self._is_closing = True
        # First, so that no checkpoint comes behind the block that covers the last confirms.
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        if self._failure is None:
            try:
                await self._finish_writing()
            except WriterFailed as error:
                logger.critical("work that nobody was told of is lost: %s", error)
        if self.retention is not None:
            await self.retention.close()
        await self._loader.close()
        self._loop.remove_reader(self._ring.fileno())
        for timer in (self._delay, self._quiet):  # now that no completion can set them again
            if timer is not None:
                timer.cancel()
        await self.run_blocking(self._ring.close)
        try:
            await self.run_blocking(self._pool.close)
        finally:
            self._executor.shutdown(wait=True)
            self._slab_maker.close()
            self._lock.close()

    def _make_keeper(self, kept: KeptRecords) -> FileKeeper:
        return FileKeeper(
            self,
            self.core,
            self._pool,
            self._loader,
            kept,
            self.retention,
            reclaim_period_s=self._options.reclaim_period_s,
            disk_scan_period_s=self._options.disk_scan_period_s,
            file_open_timeout_s=self._options.file_open_timeout_s,
            is_flushed=self._is_flushed,
            clock_s=self._loop.time,
        )

    def _make_retention(self, opened: Opened) -> Retention | None:
        asked = self._options.retention
        if asked is None:
            return None
        folder = RetentionFolder(
            asked, opened.disk, opened.verify, is_direct=self._options.is_direct
        )
        retention = Retention(
            folder,
            opened.pool.journal_id,
            opened.retention_thread(),
            retry_s=self._options.disk_scan_period_s,
            on_copied=lambda: self._keeper.wake(),
        )
        # All of them end in a seal and are durable: the recovery saw to it.
        retention.offer(opened.pool.file(file.file_id) for file in opened.recovered.used)
        return retention

    async def _finish_writing(self) -> None:
        await self.wait_durable()
        if self._is_uncovered and self._failure is None:
            self.core.stage_empty_block()
            await self.wait_durable()

    # --- what the engine calls --------------------------------------------------------------------

    @property
    def failure(self) -> WriterFailed | None:
        """The failure that fenced the journal; None while it works."""
        return self._failure

    @property
    def blocked(self) -> JournalError | None:
        """Why no journal file can be made now; None while there is room."""
        return self._keeper.blocked

    @property
    def is_writing(self) -> bool:
        """Whether a write is in flight."""
        return self._in_flight is not None

    @property
    def on_space(self) -> Callable[[], None]:
        """Called when files were added or freed: try again what found no room."""
        return self._keeper.on_space

    @on_space.setter
    def on_space(self, callback: Callable[[], None]) -> None:
        self._keeper.on_space = callback

    @property
    def on_blocked(self) -> Callable[[], None]:
        """Called when no file can be made any more: see `blocked`."""
        return self._keeper.on_blocked

    @on_blocked.setter
    def on_blocked(self, callback: Callable[[], None]) -> None:
        self._keeper.on_blocked = callback

    def kick(self) -> None:
        """Write what is staged if somebody waits for it; call at the end of a tick that staged.

        Acknowledgements alone wait up to `acknowledgement_delay_s` for company. While a write is in
        flight this does nothing: its completion takes everything along.
        """
        if not self._figures.is_staged and self.core.has_unwritten():
            self._figures.note_staged()
        if self._in_flight is not None or self._failure is not None:
            return
        if self.core.is_urgent() or self._waiters:
            self._write_next()
        elif self._delay is None and not self._is_starved and self.core.has_unwritten():
            self._delay = self._loop.call_later(
                self._options.acknowledgement_delay_s, self._on_delay
            )

    def request_space(self) -> None:
        """Say that something found no room: look for files to free or make now."""
        self._keeper.wake()

    async def wait_durable(self) -> None:
        """Wait until everything staged so far is durable.

        Raises:
            WriterFailed: An earlier write failed, or this one does; final for this process.

        Durability: on return all that was staged before the call survives what `durability` says.
        """
        if self._failure is not None:
            raise self._failure
        if self.core.has_unwritten():
            await self.wait_sequence(self.core.image_statistics().sequence_sealed + 1)
        elif self._in_flight is not None:
            await self.wait_sequence(self._in_flight.sequence)

    async def wait_sequence(self, sequence: int) -> None:
        """Wait until a block is durable, or all there is if the block does not come to be.

        Raises:
            WriterFailed: As for `wait_durable`.
        """
        if self._failure is not None:
            raise self._failure
        if self._waiters and self._waiters[-1][0] >= sequence:
            future = self._waiters[-1][1]
        else:
            future = self._loop.create_future()
            self._waiters.append((sequence, future))
        self.kick()
        if self._in_flight is None and not self.core.has_unwritten():
            self._resolve(sequence)
        await asyncio.shield(future)

    async def load_slab(self, file_id: int, slab: int) -> bool:
        """Bring an evicted slab back into the image: see `SlabLoader.load`."""
        return await self._loader.load(file_id, slab)

    async def compact(self) -> bool:
        """Empty files until none is left that is worth it: see `Compaction.compact`."""
        return await self._compaction.compact()

    def statistics(self) -> JournalStatistics:
        """Return the counters of this journal."""
        self._figures.fold()
        image, counts = self.core.image_statistics(), self._pool.counts
        return JournalStatistics(
            engine=self.engine_name,
            fallback_reason=self.fallback_reason,
            durability=self.durability,
            writes=self._figures.writes,
            written_bytes=self._figures.written_bytes,
            blocks=self._figures.blocks,
            records=image.records_added,
            payload_bytes=image.payload_bytes,
            flush_counts=self._figures.flush.counts(),
            flush_sum_us=self._figures.flush.sum_us,
            slab_loads=self._loader.loaded,
            files=FileCounts(
                active=counts.active,
                ahead=self.core.files_ahead(),
                free=counts.free,
                bytes_on_disk=counts.bytes_on_disk,
                pinned=self._keeper.count_pinned(),
            ),
            files_made=self._pool.made,
            preallocation_fallbacks=self._pool.preallocation_fallbacks,
            files_reclaimed=self._pool.reclaimed,
            sequence_durable=image.sequence_durable,
            unwritten_bytes=image.unwritten_bytes,
            live_bytes=image.live_bytes,
            live_percent=100 * image.live_bytes / max(self._compaction.used_bytes, 1),
            compaction=self._compaction.counts(),
            failed_reason=str(self._failure) if self._failure else None,
            blocked_reason=str(self.blocked) if self.blocked else None,
            reserve_bytes=self._pool.reserve_bytes,
            reserve_owed_bytes=self._pool.reserve_owed_bytes,
            retention=self.retention.statistics() if self.retention else None,
            append_us=self._figures.append_us.distribution(),
            write_records=self._figures.records.distribution(),
            write_bytes=self._figures.bytes.distribution(),
            recovery_s=self._recovery_s,
            requests_in_flight=self._ring.outstanding,
            requests_max=self._ring.depth,
        )

    # --- writing ---------------------------------------------------------------------------------

    def _write_next(self) -> None:
        """Seal what is staged and submit it."""
        self.core.set_time(time.time_ns() // 1_000_000)
        try:
            request = self.core.seal_write()
        except NoRoom:
            # Only an empty block needs room here: all that was staged before it is durable.
            self._is_starved = True
            self._wake_waiters()
            return
        except (MemoryError, ValueError) as error:
            self.fail(JournalError(f"the core could not close a block ({error})"))
            return
        if request is None:
            return
        self._in_flight = request
        self._figures.note_submitted()
        self._submit(request, 1)
        self._records_in_flight = records_in(request)  # now, while the disk works

    def _submit(self, request: WriteRequest, attempt: int) -> None:
        """Hand a write to the ring.

        A refusal with EAGAIN means that the kernel had no room for the request and has not seen its
        data: asking again later is not the retry of a failed write. So says NOT_TAKEN as a result.
        """
        self._attempt = attempt
        if self._failure is not None:
            return
        try:
            self._ring.submit_write(
                self._fds[request.file_id],
                request.address,
                request.length,
                request.offset,
                _WRITE_TOKEN,
                durable=self._is_flushed,
            )
        except NativeError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR) and attempt < SUBMIT_TRIES:
                self._loop.call_later(SUBMIT_PAUSE_S, self._submit, request, attempt + 1)
            else:
                self.fail(error)
        except KeyError:  # whoever waits would wait for ever: nothing else tells of it
            self.fail(JournalError(f"a defect (file {request.file_id} was freed under a write)"))

    def _on_completions(self) -> None:
        """Take what the ring has finished."""
        try:
            completions = self._ring.completions()
        except NativeError as error:
            self.fail(error)
            return
        for token, result in completions:
            if token == _WRITE_TOKEN:
                self._on_written(result)
            else:
                self._loader.on_read(token, result)

    def _on_written(self, result: int) -> None:
        """Judge the completion of the write in flight; confirm, and go on with the next.

        Durability: this is the one place that calls `write_done`, after a flushed write of the full
        length (D2), or after the write alone where flushes are switched off (D1).
        """
        request = self._in_flight
        if request is not None and result == NOT_TAKEN and self._attempt < SUBMIT_TRIES:
            self._loop.call_later(SUBMIT_PAUSE_S, self._submit, request, self._attempt + 1)
            return
        self._in_flight = None
        if request is None or self._failure is not None:
            return
        if result != request.length:
            self._fail_write(request, result)
            return
        ended, records = self._figures.end(), self._records_in_flight
        self.core.write_done(request.sequence)
        self._is_uncovered, self._is_covering = not self._is_covering, False
        if self.core.is_urgent() or (self._waiters and self.core.has_unwritten()):
            self._write_next()  # first: the disk works while receipts are sent
        try:
            self.on_durable()  # then the receipts: nothing that can wait comes before them
        finally:
            self._after_write(request, records, ended)

    def _after_write(self, request: WriteRequest, records: int, ended: EndedWrite) -> None:
        """Do what no client waits for."""
        self._resolve(request.sequence)
        self._figures.add(request, records, ended)
        self._slab_maker.written(request.length)
        if self.core.current_file() != self._current_file:
            self._current_file = self.core.current_file()
            self._keeper.wake()
        self._keeper.note_written(request.file_id, request.sequence)
        if self._in_flight is None:
            self.kick()
            self._arm_quiet()

    def _fail_write(self, request: WriteRequest, result: int) -> None:
        where = f"{self._pool.file(request.file_id).path}:{request.offset}"
        if result < 0:
            self.fail(NativeError("a journal write failed", -result, where=where))
        else:
            self.fail(
                JournalError(
                    "a journal write was cut short",
                    where=where,
                    measured=f"{result} bytes",
                    allowed=f"{request.length} bytes",
                )
            )

    def fail(self, error: VespiaryError) -> None:
        """Fence the journal: nothing is written or confirmed from now on.

        A flush that failed may have dropped any write before it, and a second one that succeeds
        proves nothing (the kernel has forgotten the error). So no write is tried again.
        """
        if self._failure is not None:
            return
        failure = fenced("journal", error)
        self._failure = failure
        logger.critical("%s", failure)
        while self._waiters:
            future = self._waiters.popleft()[1]
            future.set_exception(failure)
            future.exception()  # seen: who waited may have gone
        self.on_failed(failure)

    def _resolve(self, sequence: int) -> None:
        """Wake who waits for blocks up to `sequence`; everybody when nothing is left to write."""
        if self._in_flight is None and not self.core.has_unwritten():
            self._wake_waiters()
        while self._waiters and self._waiters[0][0] <= sequence:
            self._waiters.popleft()[1].set_result(None)

    def _wake_waiters(self) -> None:
        while self._waiters:
            self._waiters.popleft()[1].set_result(None)

    # --- timers ----------------------------------------------------------------------------------

    def _on_delay(self) -> None:
        """Write acknowledgements that found no company."""
        self._delay = None
        if self._in_flight is None and self._failure is None and self.core.has_unwritten():
            self._write_next()

    def _arm_quiet(self) -> None:
        if self._is_uncovered and self._quiet is None and self._failure is None:
            self._quiet = self._loop.call_later(
                self._options.quiet_delay_s, self._on_quiet, self._figures.writes
            )

    def _on_quiet(self, writes: int) -> None:
        """Cover the last confirms with an empty block once it has been quiet."""
        self._quiet = None
        if self._in_flight is not None or self._failure is not None or not self._is_uncovered:
            return
        if writes != self._figures.writes or self.core.has_unwritten():
            self._arm_quiet()
            return
        self.core.stage_empty_block()
        self._write_next()
        self._is_covering = self._in_flight is not None

    # --- what the keeper calls -------------------------------------------------------------------

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Run a function in the journal's worker thread, behind those given before."""
        return await self._loop.run_in_executor(self._executor, function)

    def add_file(self, file: StoredFile) -> None:
        """Take an activated file: its descriptor, and its room for the core."""
        assert file.handle is not None
        self._fds[file.file_id] = file.handle.fileno()
        self.core.add_file(file.file_id, file.salt, file.size_bytes)
        self._is_starved = False

    def drop_file(self, file_id: int) -> None:
        """Forget the descriptor of a file that is full or free."""
        self._fds.pop(file_id, None)
