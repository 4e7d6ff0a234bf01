"""Compaction: whatever keeps nearly empty files is appended again at the journal's end.

That is: live messages, records of prepared transactions and of pages that hold messages, and the
records that Python owns (`kept`). One file is emptied at a time (`victims` chooses it), in small
steps, each of them durable before the next, with a limit on the bytes per second. The next
checkpoint of `keeper` frees the file.

Owns: the task `journal-compaction` and its counters. Must never free a file, never use the files
that are ready for messages, and never go on in a journal that is full or has failed. Started by
`writer`; docs/internals/compaction.md says what a crash at each step leaves.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Protocol

from vespiary_broker.store.counters import CompactionCounts
from vespiary_broker.store.files import FilePool
from vespiary_broker.store.kept import KEPT_TURN_BYTES, KeptRecords
from vespiary_broker.store.options import FILES_AHEAD_MIN
from vespiary_broker.store.turns import Allowance, Turns, Work
from vespiary_broker.store.victims import Choice, CompactionRule, FileFacts, choosing_victim
from vespiary_codec.journal.page import PAGE_BIT
from vespiary_native.abc import Core, NoRoom
from vespiary_spec.errors import JournalError, NativeError, VespiaryError, WriterFailed

logger = logging.getLogger(__name__)

STEP_BYTES = 128 * 1024
"""Bytes of blocks walked in one go: some 0.1 ms of the loop's time, and of the disk's."""

STEP_PLACES = 2048
"""Records and places looked at in one go: 0.1 ms, however small the messages are."""

_COST_OF_A_FILE = 16
"""Calls into the core and elsewhere for one file, as operations of a turn."""
_PAUSE_S = 0.02
_TRIES = 50
_SURPRISE = 1.5
"""A file that moves this many times what was expected is left alone: its messages stand in several
queues, and most of these have them yet."""


class Journal(Protocol):
    """What compaction needs of the journal that it serves."""

    @property
    def failure(self) -> VespiaryError | None:
        """The failure that fenced it."""

    @property
    def blocked(self) -> VespiaryError | None:
        """Why no file can be made now."""

    async def wait_durable(self) -> None:
        """Wait until everything staged so far is durable."""

    async def load_slab(self, file_id: int, slab: int) -> bool:
        """Bring an evicted slab back."""

    def request_space(self) -> None:
        """Look for files to free now."""

    def fail(self, error: VespiaryError) -> None:
        """Fence the journal."""


class Compaction:
    """Empties files. Owner: its task, on the event loop."""

    def __init__(
        self,
        journal: Journal,
        core: Core,
        pool: FilePool,
        kept: KeptRecords,
        turns: Turns,
        *,
        rule: CompactionRule,
        bytes_per_s: int,
        period_s: float,
        slab_bytes: int,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_transaction: Callable[[], int] = lambda: secrets.randbits(63) + 1,
    ) -> None:
        """Prepare; `run` is the task.

        Args:
            journal: The journal served.
            core: Its core.
            pool: Its files.
            kept: The owner of records that the core does not keep.
            turns: Runs what is long in turns.
            rule: When the journal is due.
            bytes_per_s: Most bytes moved in a second.
            period_s: Seconds between two looks.
            slab_bytes: The core's unit of memory.
            sleep: Waits so many seconds.
            new_transaction: Gives the id of a branch's copy.
        """
        self._journal = journal
        self._core = core
        self._pool = pool
        self._kept = kept
        self._turns = turns
        self._rule = rule
        self._bytes_per_s = bytes_per_s
        self._period_s = period_s
        self._slab_bytes = slab_bytes
        self._sleep = sleep
        self._new_transaction = new_transaction
        self._stuck: dict[int, int] = {}  # live places of files that could not be emptied
        self._choice = Choice(None, 0, 0)
        self._files = self._moved_bytes = self._moved_messages = 0
        self._is_running = False

    def counts(self) -> CompactionCounts:
        """Return the counters."""
        return CompactionCounts(
            is_running=self._is_running,
            waiting_files=self._choice.files,
            waiting_bytes=self._choice.live_bytes,
            files=self._files,
            moved_bytes=self._moved_bytes,
            moved_messages=self._moved_messages,
            step_us=self._turns.distribution(),
            step_us_max=self._turns.longest_us,
        )

    async def run(self) -> None:
        """Look now and then, and empty files when it is due, until the journal fails."""
        while self._journal.failure is None:
            await self._sleep(self._period_s)
            try:
                if self._is_due():
                    await self.compact()
                else:
                    self._choice = Choice(None, 0, 0)
            except WriterFailed:
                return
            except Exception as error:
                # Nobody awaits this task: an end that nobody hears of would be a silent one.
                self._journal.fail(JournalError(f"a defect ({type(error).__name__}: {error})"))
                raise

    @property
    def used_bytes(self) -> int:
        """Size of the files in use, those ahead excepted."""
        counts = self._pool.counts
        return counts.bytes_on_disk * self._used // max(counts.active + counts.free, 1)

    @property
    def _used(self) -> int:
        return self._pool.counts.active - self._core.files_ahead()

    def _is_due(self) -> bool:
        live_bytes = self._core.image_statistics().live_bytes
        return self._rule.is_due(self._used, self.used_bytes, live_bytes)

    async def compact(self) -> bool:
        """Empty files until none is left that is worth it; files filled meanwhile are left alone.

        Returns:
            Whether it came to an end; False: the journal is full, or was being closed.

        Raises:
            WriterFailed: The journal has failed.

        Durability: what was moved is durable; the files are free after the next checkpoint.
        """
        end_id = self._first_open()
        self._stuck = {number: n for number, n in self._stuck.items() if self._is_there(number)}
        self._is_running = True
        try:
            while self._may_go_on():
                facts = await self._turns.finish(self._facts(end_id))
                self._choice = await self._turns.finish(choosing_victim(facts))
                if self._choice.victim is None:
                    return True
                if not await self._empty(self._choice.victim):
                    return False
        finally:
            self._is_running = False
            self._journal.request_space()
        return False

    def _first_open(self) -> int:
        """Return the id of the first file that is or will be filled."""
        current, ahead = self._core.current_file(), self._core.files_ahead()
        active = self._pool.active_ids
        return current or (active[-ahead] if ahead else (active[-1] + 1 if active else 1))

    def _may_go_on(self) -> bool:
        return self._journal.failure is None and self._journal.blocked is None

    def _facts(self, end_id: int) -> Work[list[FileFacts]]:
        """Collect, in turns, what is known of the full files."""
        turn = Allowance()
        facts: list[FileFacts] = []
        for file_id in self._pool.active_ids:
            if file_id >= end_id:
                break
            file = self._pool.find(file_id)
            if file is None:
                continue  # freed meanwhile
            live = self._live(file_id)
            is_stuck = file_id in self._stuck and live * 2 > self._stuck[file_id]
            cancels = self._core.cancels(file_id)
            facts.append(
                FileFacts(
                    file_id,
                    file.size_bytes,
                    self._live_bytes(file_id),
                    live > 0,
                    not is_stuck,
                    [other for other in cancels if not other & PAGE_BIT],
                )
            )
            if turn.spend(_COST_OF_A_FILE + len(cancels)):
                yield
        return facts

    def _live(self, file_id: int) -> int:
        """Return the number of places and records that keep a file."""
        places = self._core.live_places(file_id) + len(self._pages_acknowledged_in(file_id))
        return places + self._kept.live_records(file_id)

    def _live_bytes(self, file_id: int) -> int:
        """Return the size of what must be appended again before a file can go."""
        records = map(self._core.page_record_bytes, self._pages_acknowledged_in(file_id))
        return self._core.live_bytes(file_id) + sum(records) + self._kept.live_bytes(file_id)

    def _pages_acknowledged_in(self, file_id: int) -> list[int]:
        """Return the pages for whose messages a file has acknowledgements or delivery counts.

        The file stays until a later PAGE record says what is left in such a page.
        """
        in_pages = [other & ~PAGE_BIT for other in self._core.cancels(file_id) if other & PAGE_BIT]
        here = self._core.pages_in(file_id) if in_pages else []  # these are live places already
        return [
            page_id
            for page_id in in_pages
            if page_id not in here and self._core.page_record_bytes(page_id)
        ]

    async def _empty(self, file_id: int) -> bool:
        """Move all that is live in a file; return whether the next one may follow."""
        file = self._pool.find(file_id)
        if file is None:  # its last message was acknowledged while the others were looked at
            return self._may_go_on()
        expected = self._live_bytes(file_id) * _SURPRISE + STEP_BYTES
        moved = 0
        try:
            await self._copy_branches(file_id)
            for slab in range(-(-file.size_bytes // self._slab_bytes)):
                if not self._is_there(file_id) or moved > expected:
                    break
                moved += await self._empty_slab(file_id, slab)
            if self._is_there(file_id):
                await self._restage_pages(file_id)
            is_rewritten = await self._rewrite(file_id)
        except NoRoom:
            return False
        except (JournalError, NativeError) as error:
            if self._journal.failure is not None:
                raise
            # Its messages cannot be read; who consumes them is told the same.
            logger.warning("a journal file cannot be compacted: %s", error)
            is_rewritten = False
        if not self._is_there(file_id) or (is_rewritten and not self._live(file_id)):
            self._files += 1
            self._stuck.pop(file_id, None)
            self._journal.request_space()
        else:
            self._stuck[file_id] = self._live(file_id)
        return self._may_go_on()

    def _is_there(self, file_id: int) -> bool:
        return self._pool.find(file_id) is not None

    async def _empty_slab(self, file_id: int, slab: int) -> int:
        """Move what is live in one slab; return the bytes.

        Raises:
            NoRoom: There is none now, or the journal is full.
        """
        offset = record = moved = loads = 0
        while True:
            await self._wait_for_files()
            if not self._is_there(file_id):
                return moved
            with self._turns.one():
                step = self._core.relocate(file_id, slab, offset, record, STEP_BYTES, STEP_PLACES)
            moved += step.moved_bytes
            self._moved_bytes += step.moved_bytes
            self._moved_messages += step.moved_places
            offset, record = step.next_offset, step.next_record
            if step.moved_places or not step.is_absent:
                await self._settle(step.moved_bytes)
            if not offset:
                return moved
            if step.is_absent and not await self._journal.load_slab(file_id, slab):
                loads += 1
                if loads > _TRIES:
                    raise NoRoom("no memory for a part of the file")
                await self._sleep(_PAUSE_S)

    async def _copy_branches(self, file_id: int) -> None:
        """Append the records of the prepared branches that need a file again.

        A branch in quarantine stays where it is: it cannot be copied because parts are missing.

        Raises:
            NoRoom: The journal has no room for the copies now, or is full.
        """
        if not self._core.branches_in(file_id):
            return
        # A branch can be copied only after its PREPARE is durable; one that ends here is gone then.
        await self._journal.wait_durable()
        if not self._is_there(file_id):
            return
        for transaction in self._core.branches_in(file_id):
            for _ in range(_TRIES):
                await self._wait_for_files()
                before = self._core.image_statistics().payload_bytes
                with self._turns.one():
                    absent = self._copy_branch(transaction)
                if absent is None:
                    copied_bytes = self._core.image_statistics().payload_bytes - before
                    self._moved_bytes += copied_bytes
                    await self._settle(copied_bytes)
                    break
                if not await self._journal.load_slab(*absent):
                    await self._sleep(_PAUSE_S)

    def _copy_branch(self, transaction: int) -> tuple[int, int] | None:
        """Copy a branch; return the slab that must be loaded first, or None.

        None also for a branch that cannot be copied: it has just ended, or is in quarantine.
        """
        try:
            return self._core.branch_copy(transaction, self._new_transaction())
        except ValueError:
            return None

    async def _restage_pages(self, file_id: int) -> None:
        """Append the records of the pages that keep a file again.

        Raises:
            NoRoom: The journal has no room for a record now, or is full.
        """
        waiting_bytes = 0
        for page_id in [*self._core.pages_in(file_id), *self._pages_acknowledged_in(file_id)]:
            await self._wait_for_files()
            if not self._core.page_record_bytes(page_id):
                continue  # its last message was acknowledged meanwhile
            with self._turns.one():
                self._core.page_restage(page_id)
            record_bytes = self._core.page_record_bytes(page_id)
            self._moved_bytes += record_bytes
            waiting_bytes += record_bytes
            if waiting_bytes >= STEP_BYTES:
                await self._settle(waiting_bytes)
                waiting_bytes = 0
        if waiting_bytes:
            await self._settle(waiting_bytes)

    async def _rewrite(self, file_id: int) -> bool:
        """Have records that Python owns appended again; return whether none is left."""
        file = self._pool.find(file_id)
        most = _TRIES + (file.size_bytes // KEPT_TURN_BYTES if file is not None else 0)
        for _ in range(most):
            await self._wait_for_files()
            if not self._is_there(file_id):
                return True
            with self._turns.one():
                if self._kept.rewrite(file_id, KEPT_TURN_BYTES):
                    return True
            await self._settle(KEPT_TURN_BYTES)
        return False

    async def _wait_for_files(self) -> None:
        """Wait until the keeper has files ready: those are for messages first.

        Raises:
            NoRoom: The journal is full or fenced.
        """
        while self._core.files_ahead() < FILES_AHEAD_MIN:
            if not self._may_go_on():
                raise NoRoom("the journal is full")
            await self._sleep(_PAUSE_S)

    async def _settle(self, moved_bytes: int) -> None:
        """Wait until what was staged is durable, then for as long as the budget says."""
        await self._journal.wait_durable()
        await self._sleep(moved_bytes / self._bytes_per_s)
