"""`Pager`: messages that wait long leave the memory for files, and come back for their consumers.

Owns the paging folder, its lock, the table of pages, and the task `pager`, which starts moves and
removes pages that are done. Must never block the event loop: threads do the file I/O. The engine
decides which addresses page, and how much (`PagedAddress`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vespiary_broker.store.disk import Disk, DiskFile, DiskLike
from vespiary_broker.store.files import NO_LIMITS, SpaceLimits
from vespiary_broker.store.lock import FolderLock
from vespiary_broker.store.paging.closed_pages import ClosedPages
from vespiary_broker.store.paging.flights import MOVES_MAX, Flight, FlightRoom, MoveTurns
from vespiary_broker.store.paging.folders import PageFolders
from vespiary_broker.store.paging.moving import (
    FilledPage,
    PagedAddress,
    PageMover,
    PagingJournal,
    finished,
)
from vespiary_broker.store.paging.opening import PageOpener
from vespiary_broker.store.paging.page_files import PageFile, PageFiles
from vespiary_broker.store.paging.page_recovery import PagesFound, remove_leftovers, survey_pages
from vespiary_broker.store.paging.pauses import gather, pause_s
from vespiary_codec.journal.page import block_file_id
from vespiary_codec.journal.page_sketch import PageSketch
from vespiary_native.abc import NoRoom
from vespiary_spec.errors import DiskFull, VespiaryError, WriterFailed

THREADS: Final = 2
PERIOD_S: Final = 0.25
_SHORT_SHARE: Final = 4
"""Memory is short when so much of the image, as a divisor, is left: a page takes its own too."""
_SMALL_SHARE: Final = 8
"""Of a page, as a divisor: for less none is begun before its time."""
_STEP: Final = 256
"""Addresses looked at in one turn of the event loop."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingOptions:
    """What pages are kept with.

    Attributes:
        directory: `paging-directory`.
        is_direct: Open pages with O_DIRECT.
        limits: When the disk counts as full.
        retry_s: Seconds between two tries after a page could not be written.
        moves_max: Pages that are on their way at a time.
        flight_bytes: What these may take of the image's memory.
        is_purging_folders: Remove the folder of an address when its last page goes.
    """

    directory: Path
    is_direct: bool = True
    limits: SpaceLimits = NO_LIMITS
    retry_s: float = 2.5
    moves_max: int = THREADS
    flight_bytes: int = 1 << 40
    is_purging_folders: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingStatistics:
    """Counters of paging.

    Attributes:
        pages: Pages that hold messages.
        pages_bytes: Size of their files.
        open_pages: Pages whose messages stand in rings.
        addresses: Addresses that have pages.
        written: Pages written since the start.
        written_bytes: Their size.
        opened: Pages opened for a queue since the start.
        removed: Pages removed since the start.
        removals_failed: Pages that could not be removed; the next start tries again.
        failures: Pages that could not be written.
        damaged: Pages that can't be read.
        waiting_queues: Queues that get no page before more of those open is acknowledged.
        blocked_reason: Why no page can be written now; empty if it can.
    """

    pages: int
    pages_bytes: int
    open_pages: int
    addresses: int
    written: int
    written_bytes: int
    opened: int
    removed: int
    removals_failed: int
    failures: int
    damaged: int
    waiting_queues: int
    blocked_reason: str


class Pager:
    """Paging. Owner: the event loop.

    Invariant: a page's file is removed only after a record says, durably, that nobody needs it, or
    while no record ever named it.

    Attributes:
        on_ready: Called when queues gained messages.
        blocked: Why no page can be written now; None while it can.
        closed_pages: What is known of pages without opening them.
    """

    def __init__(
        self,
        options: PagingOptions,
        journal: PagingJournal,
        files: PageFiles,
        found: PagesFound,
        lock: FolderLock | None,
        executor: Executor,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Not for callers: `open` makes pagers."""
        self.on_ready: Callable[[], None] = lambda: None
        self.blocked: VespiaryError | None = None
        self._options = options
        self._journal = journal
        self._core = journal.core
        self._readable = journal.readable
        self._files = files
        self._lock = lock
        self._executor = executor
        self._clock_ms = clock_ms
        # The journal may know pages that are done and whose files are gone.
        self._last_id = max([found.highest_id, *(facts.page_id for facts in self._core.pages())])
        self._pages = found.pages
        self._addresses: dict[str, PagedAddress] = {}
        self._sizes: Counter[str] = Counter()  # of the page files of each address
        for page in found.pages.values():
            self._sizes[page.address] += page.size_bytes
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._turns = MoveTurns()
        self._room = FlightRoom(options.moves_max, options.flight_bytes)
        self._retry_s = 0.0
        self._wake = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None
        self._written = self._written_bytes = self._removed = 0
        self._removals_failed = self._failures = 0
        self._ended: dict[int, int] = {}
        self._purged: str | None = None  # an address whose folder is being removed
        self._mover = PageMover(journal, files, executor, new_id=self._new_id, clock_ms=clock_ms)
        self.closed_pages = ClosedPages(files, self._pages, executor)
        self._opener = PageOpener(
            self._core,
            files,
            self._pages,
            self._addresses,
            self.closed_pages,
            lambda: self.on_ready(),
        )

    @classmethod
    async def open(
        cls,
        options: PagingOptions,
        journal: PagingJournal,
        *,
        disk: DiskLike | None = None,
        executor: Executor | None = None,
    ) -> Pager:
        """Look at the paging folder: pages that the journal names must be there, others go.

        Args:
            options: See there.
            journal: The message journal, recovered.
            disk: The file system; None takes the real one.
            executor: Runs what blocks; None makes threads.

        Raises:
            PageDamaged: A page that the journal names is missing or damaged.
            ForeignJournal: A page is of another journal.
            JournalLocked: Another broker has the folder.
            NativeError: A system call failed.
        """
        worker = executor or ThreadPoolExecutor(options.moves_max + 1, "paging")
        used = disk or Disk()
        folders = PageFolders(options.directory, used)
        files = PageFiles(
            folders,
            used,
            journal_id=journal.readable.journal_id,
            is_direct=options.is_direct,
            limits=options.limits,
        )
        named = {facts.page_id: facts.salt for facts in journal.core.pages() if facts.places}

        def look() -> tuple[PagesFound, FolderLock | None]:
            used.make_folder(options.directory)
            lock = FolderLock(options.directory) if isinstance(used, Disk) else None
            try:
                found = survey_pages(files, named)
            except BaseException:
                if lock is not None:
                    lock.close()
                raise
            remove_leftovers(files, found)
            return found, lock

        found, lock = await asyncio.get_running_loop().run_in_executor(worker, look)
        pager = cls(options, journal, files, found, lock, worker)
        journal.readable.pages = pager
        return pager

    def start(self) -> None:
        """Begin the task `pager`."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pager")

    # --- what the engine says ---------------------------------------------------------------------

    def page(self, address: PagedAddress) -> None:
        """Have messages of an address moved as long as it says that it has too many.

        An address that has pages must be known, whether it has too many or not: it says which of
        its pages have to stay open.
        """
        self._addresses[address.name] = address
        self._turns.forget(address.name)
        address.note_pages(self._sizes[address.name])
        if len(self._moves) < MOVES_MAX // 2:  # of very many, the task finds those that hold most
            self._begin(address.name)

    @property
    def addresses(self) -> set[str]:
        """Addresses that have pages."""
        return {page.address for page in self._pages.values()}

    @property
    def has_pages(self) -> bool:
        """Whether there are pages."""
        return bool(self._pages)

    def forget_address(self, name: str) -> None:
        """Forget an address that is gone; its pages go when its queues are gone."""
        self._addresses.pop(name, None)
        self._turns.forget(name)

    def serve(self) -> None:
        """Open the pages that consumers wait for: a delivery said PAGED."""
        self._opener.take_wanted()

    def open_all(self, queue_id: int) -> None:
        """Open all pages of a queue, one after the other: Python is to look at its messages."""
        self._opener.open_all(queue_id)

    async def wait_open(self, page_id: int) -> None:
        """Open a page that somebody looks at, and wait until that is done."""
        await self._opener.wait_open(page_id)

    # --- what the journal's loader asks -----------------------------------------------------------

    def salt_of(self, page_id: int) -> int:
        """Return the salt of a page."""
        return self._pages[page_id].salt

    async def footer(self, page_id: int) -> bytes:
        """Read the index of a page, to look at its messages where they stand.

        Raises:
            KeyError: There is no such page (any more).
            PageDamaged: It is missing or damaged.
            NativeError: It can't be read now.
        """
        page = self._pages[page_id]
        loop = asyncio.get_running_loop()
        return await finished(loop.run_in_executor(self._executor, self._files.read_footer, page))

    async def sketch(self, page_id: int) -> PageSketch | None:
        """Return what can be told of the messages of a page without reading them.

        Returns:
            None: nothing is known of it; whoever goes on to read it learns what is wrong with it.
        """
        page, sketches = self._pages.get(page_id), self._files.sketches
        if page is not None and not sketches.knows(page_id):
            loop = asyncio.get_running_loop()
            read = self._files.read_sketch
            try:
                await finished(loop.run_in_executor(self._executor, read, page))
            except VespiaryError as error:
                log.warning("the header of a page was not read: %s", error)
        return sketches.get(page_id)

    async def open_page(self, page_id: int) -> DiskFile:
        """Open a page for reading its blocks.

        Raises:
            PageDamaged: The file is missing.
            NativeError: It can't be opened now.
        """
        page = self._pages[page_id]
        loop = asyncio.get_running_loop()
        return await finished(loop.run_in_executor(self._executor, self._files.open, page))

    # --- moving -----------------------------------------------------------------------------------

    def _new_id(self) -> int:
        self._last_id = max(self._last_id + 1, self._clock_ms() << 20)
        return self._last_id

    def _begin(self, name: str) -> None:
        """Begin to move messages of an address, if that is not under way."""
        if name in self._moves or self._is_closing or name == self._purged:
            return  # what is not begun now, the task begins in its next round
        task = asyncio.get_running_loop().create_task(self._move(name), name="page-messages")
        self._moves[name] = task
        task.add_done_callback(lambda _: self._moves.pop(name, None))

    async def _move(self, name: str) -> None:
        """Write page after page of an address until it has no more than it may."""
        flight = Flight()
        try:
            while await self._move_more(name, flight):
                pass
        except Exception:
            log.exception("messages of an address could not be moved into a page")
        finally:
            await flight.wait_all()

    async def _move_more(self, name: str, flight: Flight) -> bool:
        """Begin another page of an address, or wait for one; return whether to go on."""
        address = self._addresses.get(name)
        if address is None or self._is_closing or self._journal.failure is not None:
            return False
        if address.excess_bytes() > 0:
            self._opener.close_idle(name)
        wanted_bytes = address.excess_bytes() - flight.copied_bytes
        if flight.tasks and (wanted_bytes < address.page_bytes // 2 or address.has_page_limits):
            await flight.wait_one()  # what is left goes with what comes meanwhile
            return True
        if wanted_bytes <= 0 or not address.note_pages(self._sizes[name]):
            return False  # the task begins again when it has too much, or some of its pages go
        await self._wait_for_retry()
        if wanted_bytes < address.page_bytes // 2:
            await gather(name, lambda: len(self._moves), lambda: self._is_pressing(address))
        await self._room.take(address.page_bytes, address.held_bytes)
        try:
            filled = None if self._is_closing else await self._fill(address, flight)
        except BaseException:
            self._room.give(address.page_bytes)
            raise
        if filled is not None:
            flight.add(self._finish(address, filled, flight.latest), filled.copied_bytes)
            return True
        self._room.give(address.page_bytes)
        if flight.tasks:
            await flight.wait_one()
        elif len(self._moves) >= MOVES_MAX:
            return False  # others may have more luck
        else:
            # All that waits is held by consumers, or stands in open pages: look again later.
            await asyncio.sleep(pause_s(name, len(self._moves)))
        return True

    def _is_pressing(self, address: PagedAddress) -> bool:
        """Whether to wait no more: what has no room in the image would have to be read back.

        A page that would be very small is no help.
        """
        if self._is_closing:
            return True
        if address.excess_bytes() < address.page_bytes // _SMALL_SHARE:
            return False
        image = self._core.image_statistics()
        room = image.slabs_free + image.slabs_max - image.slabs_total
        return room <= max(image.slabs_max // _SHORT_SHARE, 1)

    async def _fill(self, address: PagedAddress, flight: Flight) -> FilledPage | None:
        """Copy messages into a page; None if there was nothing to copy, or an error is noted."""
        wanted_bytes = address.excess_bytes() - flight.copied_bytes
        try:
            return await self._mover.fill(address, wanted_bytes)
        except WriterFailed:
            return None
        except VespiaryError as error:
            self._note_failure(error)
            return None

    async def _finish(
        self, address: PagedAddress, filled: FilledPage, in_front: asyncio.Task[None] | None
    ) -> None:
        """Write a page and have it named; what fails is noted: its messages stay."""
        try:
            page = await self._mover.finish(address, filled, in_front)
        except WriterFailed:
            return
        except VespiaryError as error:
            self._note_failure(error)
            return
        except NoRoom as error:
            log.warning("a page was given up: %s", error)
            return
        except Exception:
            log.exception("messages of an address could not be moved into a page")
            return
        finally:
            self._room.give(address.page_bytes)
        if page is not None:
            self._note_written(page)
            for queue_id in address.looked_at():  # since the page was begun
                self.open_all(queue_id)

    def _note_written(self, page: PageFile) -> None:
        self._pages[page.page_id] = page
        self._sizes[page.address] += page.size_bytes
        self._written += 1
        self._written_bytes += page.size_bytes
        if self.blocked is not None:
            log.warning("pages can be written again")
            self.blocked = None

    def _note_failure(self, error: VespiaryError) -> None:
        """Try again later: all messages are in the journal, and memory is what it costs."""
        self._failures += 1
        if self.blocked is None:
            told = log.warning if isinstance(error, DiskFull) else log.error
            told("no page can be written, messages stay in the journal: %s", error)
        self.blocked = error
        self._retry_s = asyncio.get_running_loop().time() + self._options.retry_s

    async def _wait_for_retry(self) -> None:
        while self.blocked is not None and not self._is_closing:
            left_s = self._retry_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, PERIOD_S))

    # --- the task ---------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Remove pages that are done, and start moves, until closed or the journal fails."""
        while not self._is_closing and self._journal.failure is None:
            try:
                self._end_done()
                await self._remove_ended()
                await self._look_at_all()
            except WriterFailed:
                return
            except VespiaryError as error:
                log.warning("paging: %s", error)
            except Exception:
                # Pages would stay for good without this task: say so, and go on.
                log.exception("pages could not be looked after")
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()
            self._wake.clear()

    async def _look_at_all(self) -> None:
        """Look at every address that is not being moved, and begin with those that have most."""
        waiting: dict[str, int] = {}
        for count, (name, address) in enumerate(list(self._addresses.items()), 1):
            if name not in self._moves and name in self._addresses and self._may_move(address):
                waiting[name] = address.held_bytes()
            if count % _STEP == 0:
                await asyncio.sleep(0)
        for name in self._turns.take(waiting, MOVES_MAX - len(self._moves)):
            self._begin(name)

    def _may_move(self, address: PagedAddress) -> bool:
        """Whether an address has too much, and may have another page."""
        may_grow = address.note_pages(self._sizes[address.name])
        if address.excess_bytes() <= 0:
            return False
        if not may_grow:
            self._opener.close_idle(address.name)
        return may_grow

    def _end_done(self) -> None:
        """Stage, for pages that nobody needs, a record that says so."""
        for page_id in self._core.page_done():
            self._ended[page_id] = 0
        for page_id, sequence in self._ended.items():
            if not sequence:
                try:
                    self._ended[page_id] = self._core.page_end(page_id)
                except NoRoom:
                    self._journal.request_space()
                    return

    async def _remove_ended(self) -> None:
        """Remove the files of pages of which a durable record says that nobody needs them.

        Durability: the file goes after its PAGE_DONE record is durable.
        """
        staged = {page_id: sequence for page_id, sequence in self._ended.items() if sequence}
        if not staged:
            return
        await self._journal.wait_sequence(max(staged.values()))
        by_address: dict[str, list[int]] = {}
        for page_id in staged:
            page = self._pages.get(page_id)
            if not self._readable.forget(block_file_id(page_id)):
                continue  # it is being read: the next round takes it
            del self._ended[page_id]
            if page is not None:
                by_address.setdefault(page.address, []).append(page_id)
                self._sizes[page.address] -= page.size_bytes
                if not self._sizes[page.address]:
                    del self._sizes[page.address]
                self._opener.forget(page)
                del self._pages[page_id]
            self._core.page_forget(page_id)
        for address, page_ids in by_address.items():
            await self._remove(address, page_ids)

    async def _remove(self, address: str, page_ids: list[int]) -> None:
        remove = self._files.remove
        loop = asyncio.get_running_loop()
        failed = await finished(loop.run_in_executor(self._executor, remove, address, page_ids))
        self._removed += len(page_ids) - len(failed)
        self._removals_failed += len(failed)
        for error in failed[:1]:
            log.warning("a page was not removed, the next start does it: %s", error)
        is_last = all(page.address != address for page in self._pages.values())
        if self._options.is_purging_folders and is_last and address not in self._moves:
            await self._purge(address)

    async def _purge(self, address: str) -> None:
        """Remove the folder of an address; no page is begun there until that is done."""
        remove = self._files.folders.remove_if_empty
        loop = asyncio.get_running_loop()
        self._purged = address
        try:
            await finished(loop.run_in_executor(self._executor, remove, address))
        except VespiaryError as error:
            log.warning("the folder of an address without pages was not removed: %s", error)
        finally:
            self._purged = None

    # --- life -------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let the pages that are being written get done, then let go of the folder."""
        self._is_closing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        while self._moves:
            await asyncio.wait(list(self._moves.values()))
        await self._opener.close()
        await self.closed_pages.close()
        self._executor.shutdown(wait=True)
        if self._lock is not None:
            self._lock.close()

    def statistics(self) -> PagingStatistics:
        """Return the counters."""
        return PagingStatistics(
            pages=len(self._pages),
            pages_bytes=sum(page.size_bytes for page in self._pages.values()),
            open_pages=self._opener.open_pages,
            addresses=len(self.addresses),
            written=self._written,
            written_bytes=self._written_bytes,
            opened=self._opener.opened,
            removed=self._removed,
            removals_failed=self._removals_failed,
            failures=self._failures,
            damaged=len(self._opener.damaged),
            waiting_queues=self._opener.waiting_queues,
            blocked_reason=str(self.blocked) if self.blocked is not None else "",
        )
