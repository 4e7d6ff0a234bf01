"""Files ahead of need and files no longer needed: what a journal does beside writing.

Owns: the task `journal-keeper`. It activates files before the core needs them, stages the
checkpoint (FILES and QUEUES records) after every roll, and frees files once a checkpoint without
them is durable. Must never block the loop (the pool runs in the worker thread), and never free a
file in another order than docs/internals/journal-format.md §5. Made and started by `writer`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

from vespiary_broker.store.file_uses import FileUse, file_uses
from vespiary_broker.store.files import FilePool, StoredFile
from vespiary_broker.store.kept import KEPT_TURN_BYTES, KeptRecords
from vespiary_broker.store.options import FILES_AHEAD_MIN
from vespiary_broker.store.reclaim import choosing_files, files_body, queues_bodies
from vespiary_broker.store.retention import Retention
from vespiary_broker.store.slabs import SlabLoader
from vespiary_broker.store.turns import Turns, Work
from vespiary_native.abc import Core, NoRoom, RecordType
from vespiary_spec.errors import (
    DiskFull,
    JournalError,
    JournalFileOverdue,
    JournalFull,
    NativeError,
    VespiaryError,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

FILES_AHEAD_MAX = 16
_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
"""Opening found no descriptor: clients may hold them all. It says nothing of the disk."""
_KEPT_TURNS = 8
"""Turns in which kept records of one file are moved in one round."""
_AHEAD_S = 0.25
"""Files ahead cover this much time at the rate of the latest rolls: making one takes tens of ms."""


class Journal(Protocol):
    """What the keeper needs of the journal that it serves."""

    @property
    def failure(self) -> VespiaryError | None:
        """The failure that fenced it."""

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Run a function in the worker thread."""

    async def wait_sequence(self, sequence: int) -> None:
        """Wait until a block is durable; WriterFailed if it can't be."""

    def add_file(self, file: StoredFile) -> None:
        """Take an activated file: descriptor and core."""

    def drop_file(self, file_id: int) -> None:
        """Forget the descriptor of a file."""

    def fail(self, error: VespiaryError) -> None:
        """Fence the journal."""


class FileKeeper:
    """Provides and reclaims files. Owner: its task, on the event loop.

    Attributes:
        blocked: Why no file can be made now; None while there is room.
        turns: Runs what is long in turns.
        on_space: Called when files were added or freed.
        on_blocked: Called when no file can be made any more.
    """

    def __init__(
        self,
        journal: Journal,
        core: Core,
        pool: FilePool,
        loader: SlabLoader,
        kept: KeptRecords,
        retention: Retention | None,
        *,
        reclaim_period_s: float,
        disk_scan_period_s: float,
        file_open_timeout_s: float,
        is_flushed: bool,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `run` is the task.

        Args:
            journal: The journal served.
            core: Its core.
            pool: Its files.
            loader: Its reads.
            kept: The owner of records that the core does not keep.
            retention: Keeps copies of full files; None: nobody does.
            reclaim_period_s: Seconds between two looks for files to free.
            disk_scan_period_s: Seconds between two tries while the disk is full.
            file_open_timeout_s: Seconds without a file to write to after which that is an error.
            is_flushed: Writes are flushed (D2); else files are flushed when they are full.
            clock_s: Seconds, for the rate of rolls.
        """
        self._journal = journal
        self._core = core
        self._pool = pool
        self._loader = loader
        self._kept = kept
        self._retention = retention
        self.turns = Turns()
        self._reclaim_period_s = reclaim_period_s
        self._disk_scan_period_s = disk_scan_period_s
        self._file_open_timeout_s = file_open_timeout_s
        self._is_flushed = is_flushed
        self._clock_s = clock_s
        self._wake = asyncio.Event()
        self._checkpoint_file = 0
        self._written_file = 0
        self._begun_sequence = 0
        self._rolled_s = clock_s()
        self._roll_seconds = 60.0
        self._retry_s = 0.0
        self._full: DiskFull | None = None
        self._watch: asyncio.TimerHandle
        self.blocked: JournalError | None = None
        self.on_space: Callable[[], None] = lambda: None
        self.on_blocked: Callable[[], None] = lambda: None

    def wake(self) -> None:
        """Look at the files soon: the core went on to the next one, or ran out of them."""
        self._wake.set()

    def note_written(self, file_id: int, sequence: int) -> None:
        """Note the first blocks of a file that are durable.

        Args:
            file_id: The file that was written to.
            sequence: Its last block that is durable.
        """
        if file_id != self._written_file:
            self._written_file, self._begun_sequence = file_id, sequence

    def count_pinned(self) -> int:
        """Return the number of full files without a live message, which wait for older ones."""
        current = self._core.current_file() or self._first_ahead()
        ids = [file_id for file_id in self._pool.active_ids if file_id < current]
        return sum(not self._core.live_places(file_id) for file_id in ids)

    def file_uses(self, after_id: int, limit: int) -> list[FileUse]:
        """Return what keeps the files in use: see `file_uses.file_uses`."""
        retention = self._retention
        return file_uses(
            self._pool,
            self._core,
            first_ahead=self._first_ahead(),
            live_records=self._kept.live_records,
            is_waiting=(lambda _: False) if retention is None else retention.is_waiting,
            after_id=after_id,
            limit=limit,
        )

    async def run(self) -> None:
        """Keep files ahead and free old ones until cancelled or until the journal fails."""
        while self._journal.failure is None:
            try:
                await self._provide(spared=1)  # the last one comes behind the checkpoint
                await self._checkpoint()
                self._set_blocked(await self._provide())
            except NativeError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    # A failed call on a file says the same of the disk as a failed write.
                    self._journal.fail(error)
                    return
                self._set_blocked(error)
            except VespiaryError as error:
                self._journal.fail(error)
                return
            except Exception as error:
                # Without this task no file comes any more: say so now, not when the last one is
                # full.
                self._journal.fail(JournalError(f"a defect ({type(error).__name__}: {error})"))
                raise
            # Not asyncio.wait_for: it would swallow a wake that comes with the timeout.
            with suppress(TimeoutError):
                async with asyncio.timeout(self._reclaim_period_s):
                    await self._wake.wait()
            self._wake.clear()

    def _set_blocked(self, full: DiskFull | NativeError | None) -> None:
        # The room that is left belongs to acknowledgements: they are what frees files.
        self._core.hold_adds(held=full is not None and self._core.files_ahead() == 0)
        if full is None:
            if self.blocked is not None:
                logger.warning("there is room for journal files again")
                self.blocked = None
                self._tell_space()
            return
        if self.blocked is None:
            logger.warning("no journal file can be made, producers will wait: %s", full)
            asyncio.get_running_loop().call_soon(lambda: self.on_blocked())
        self.blocked = JournalFull(
            f"no journal file can be made: {full.what}",
            where=full.where,
            measured=full.measured,
            allowed=full.allowed,
            cure=full.cure,
        )

    # --- files ahead ------------------------------------------------------------------------------

    @property
    def files_ahead_wanted(self) -> int:
        """Files that ought to be ready now: two, or more when files fill fast."""
        by_rate = int(_AHEAD_S / max(self._roll_seconds, 0.001)) + FILES_AHEAD_MIN
        return min(by_rate, FILES_AHEAD_MAX)

    async def _provide(self, *, spared: int = 0) -> DiskFull | None:
        """Activate files until enough are ahead; return why that can't be, if it can't.

        Args:
            spared: Files fewer than are wanted that will do for now; one is always had.

        Raises:
            NativeError: A call failed.
        """
        try:
            while self._core.files_ahead() < max(self.files_ahead_wanted - spared, 1):
                if self._is_retry_due() or self._pool.has_spare:
                    ahead = self._core.files_ahead()
                    missing = self.files_ahead_wanted - spared - ahead
                    if ahead and missing > 1:  # else one file is urgent, the others come after it
                        await self._in_time(partial(self._pool.make_ahead, missing))
                    await self._activate()
                    self._core.hold_adds(held=False)  # before those who wait are told to try again
                    self._tell_space()
                else:
                    return self._full
            if spared:
                return None
            if self._is_retry_due():
                await self._journal.run_blocking(self._pool.fill_floor)
            if self._pool.lacks_reserve:
                await self._journal.run_blocking(self._pool.make_reserve)
        except DiskFull as error:
            # Half of it: with the default of 5 s producers go on within 5 s after space returned.
            self._retry_s = self._clock_s() + self._disk_scan_period_s / 2
            self._full = error
            return error
        self._full = None
        return None

    async def _activate(self) -> None:
        """Activate one file; its header says which blocks are durable now."""
        durable = self._core.image_statistics().sequence_durable
        activate = partial(self._pool.activate, watermark=durable)
        self._journal.add_file(await self._in_time(activate))

    async def _in_time(self, function: Callable[[], T]) -> T:
        """Run a function of the pool; say so when the core is without a file for too long.

        The call itself is waited for: nothing can take back what hangs in the kernel, and a disk
        that comes back within its own time limits is no reason to end the broker.
        """
        self._watch = asyncio.get_running_loop().call_later(self._watch_s, self._look_overdue, None)
        try:
            return await self._journal.run_blocking(function)
        finally:
            self._watch.cancel()

    @property
    def _watch_s(self) -> float:
        """Seconds between two looks at a call that is under way."""
        return self._file_open_timeout_s / 8

    def _look_overdue(self, starved_s: float | None) -> None:
        """Judge a call of the pool that goes on: for how long has the core had no file?"""
        now_s = self._clock_s()
        if self._core.files_ahead():
            starved_s = None
        elif starved_s is None:
            starved_s = now_s
        elif now_s - starved_s >= self._file_open_timeout_s:
            self._set_overdue(now_s - starved_s)
        self._watch = asyncio.get_running_loop().call_later(
            self._watch_s, self._look_overdue, starved_s
        )

    def _set_overdue(self, waited_s: float) -> None:
        is_told = isinstance(self.blocked, JournalFileOverdue)
        self.blocked = JournalFileOverdue(
            "the next journal file is not ready",
            where=str(self._pool.folder),
            measured=f"{waited_s:.1f} s without a file to write to",
            allowed=f"{self._file_open_timeout_s:g} s (journal-file-open-timeout)",
            cure="look at the disk and the kernel log: making a file hangs; the broker goes on by "
            "itself when it comes",
        )
        if not is_told:
            logger.error("producers wait: %s", self.blocked)

    def _tell_space(self) -> None:
        """Call `on_space` on its own: a defect behind it must not end this task."""
        asyncio.get_running_loop().call_soon(self.on_space)

    def _is_retry_due(self) -> bool:
        return self._full is None or self._clock_s() >= self._retry_s

    # --- checkpoints and reclaim -----------------------------------------------------------------

    async def _checkpoint(self) -> None:
        """Stage FILES and QUEUES after a roll or when files can go, wait, then free those files.

        Durability: a file is freed only after the checkpoint without it is durable.
        """
        current = self._core.current_file()
        chosen = await self._choose(self._kept.live_records)
        if await self._move_kept(chosen):
            chosen = await self._choose(self._kept.live_records)
        is_rolled = current != self._checkpoint_file
        if not chosen and not is_rolled:
            return
        if is_rolled:
            self._note_roll()
        try:
            sequence = self._stage_checkpoint(chosen)
        except NoRoom:
            return  # the next round tries again: acknowledgements go before
        self._checkpoint_file = current
        await self._journal.wait_sequence(sequence)
        await self._retire(current)  # first: where descriptors are short, this gives some back
        # Now, because the header of a file activated from here on says that this block is durable:
        # if the file that was just begun reads as zeros one day, that is what tells.
        await self._provide()
        newest = self._pool.file(self._pool.active_ids[-1]).watermark
        # Enough are ahead already, and none of them knows of it: one of those to spare does no
        # harm, and one is made if not even the begun file's own first block has a witness, since
        # all of them were made while that was on its way to the disk.
        is_unwitnessed = newest < self._begun_sequence
        if is_rolled and newest < sequence and (self._pool.has_spare or is_unwitnessed):
            with suppress(DiskFull):
                await self._activate()
        for file_id in chosen:
            self._loader.forget(file_id)
            self._journal.drop_file(file_id)
            await self._journal.run_blocking(partial(self._pool.release, file_id))
            self._core.forget_file(file_id)
            self._kept.forget_file(file_id)
            if self._retention is not None:
                self._retention.forget_file(file_id)

    def _stage_checkpoint(self, chosen: list[int]) -> int:
        """Stage QUEUES and FILES without the files chosen; return the sequence of their block.

        In one turn: both speak of the same moment.

        Raises:
            NoRoom: There is none now.
        """
        with self.turns.one():
            kept = set(self._pool.active_ids).difference(chosen)
            for body in queues_bodies(self._core.queue_states()):
                self._core.append_record(RecordType.QUEUES, body, urgent=False)
            return self._core.append_record(RecordType.FILES, files_body(kept), urgent=False)

    async def _choose(self, live_records: Callable[[int], int]) -> list[int]:
        return await self.turns.finish(
            choosing_files(
                self._pool.active_ids,
                current_id=self._core.current_file() or self._first_ahead(),
                live_places=self._core.live_places,
                live_records=live_records,
                cancels=self._core.cancels,
                is_busy=self._is_busy,
            )
        )

    def _is_busy(self, file_id: int) -> bool:
        """Whether a file is being read, or has no copy yet."""
        is_waiting = self._retention is not None and self._retention.is_waiting(file_id)
        return is_waiting or self._loader.is_busy(file_id)

    async def _move_kept(self, chosen: list[int]) -> bool:
        """Append kept records again where nothing else holds their file, and they are few.

        Few, so that each byte of the journal costs an eighth more at most; files that hold more of
        them wait for the compaction, or for their records to be displaced.

        Returns:
            Whether anything was moved.
        """
        if not any(map(self._kept.live_records, self._pool.active_ids)):
            return False
        is_moved = False
        gone = set(chosen)
        for file_id in await self._choose(lambda _: 0):
            kept_bytes = self._kept.live_bytes(file_id)
            if file_id in gone or kept_bytes > self._pool.file(file_id).size_bytes // 8:
                continue
            is_moved = await self.turns.finish(self._rewriting(file_id)) or is_moved
        return is_moved

    def _rewriting(self, file_id: int) -> Work[bool]:
        """Append the kept records of a file again; the work ends with whether none is left."""
        for _ in range(_KEPT_TURNS):
            if self._kept.rewrite(file_id, KEPT_TURN_BYTES):
                return True
            yield
        return False

    def _first_ahead(self) -> int:
        """Return the id of the first file that the core has not begun, before its first record."""
        active, ahead = self._pool.active_ids, self._core.files_ahead()
        return active[-ahead] if ahead else 0

    async def _retire(self, current: int) -> None:
        """Close the descriptors of full files: their last block is durable, since ours is."""
        for file_id in self._pool.open_ids:
            if file_id < current:
                self._journal.drop_file(file_id)
                await self._journal.run_blocking(
                    partial(self._pool.retire, file_id, is_flushed=self._is_flushed)
                )
                if self._retention is not None:
                    self._retention.offer([self._pool.file(file_id)])

    def _note_roll(self) -> None:
        now_s = self._clock_s()
        self._roll_seconds = (self._roll_seconds + (now_s - self._rolled_s)) / 2
        self._rolled_s = now_s
