"""Moving messages of one address out of the journal into one page: fill, write, commit.

Owns the order of these steps (docs/internals/paging.md): a page is committed only when its file and
its name are flushed, and one that fails at any step is given up, its messages being in the journal
still. Must never hold the event loop longer than a turn: filling is cut into turns, writing is done
in a thread. Called by `pager`, on the event loop.
"""

from __future__ import annotations

import asyncio
import ctypes
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from vespiary_broker.store.paging.page_files import PageFile, PageFiles, PagePart
from vespiary_broker.store.paging.read_limits import ReadLimits
from vespiary_broker.store.readable_files import ReadableFiles
from vespiary_native.abc import Core, NoRoom
from vespiary_spec.errors import VespiaryError

T = TypeVar("T")

TURN_BYTES: Final = 1024 * 1024
TURN_PLACES: Final = 4096
"""What one turn of the event loop copies at most: well below a millisecond."""
_REACHED_MAX: Final = 10_000
"""Queues for which it is kept where their next page begins."""
_REACHED_PAGES: Final = 64
"""So many pages begin where the one before ended; then one looks at all again."""
_WALKS_MAX: Final = 16
"""So many turns in which nothing is copied are one."""
_ROOM_PAUSE_S: Final = 0.05
_ROOM_TRIES: Final = 600
_LOADS_MAX: Final = 20
"""A slab that does not come into memory after so many tries ends the page in front of it."""


class PagedAddress(Protocol):
    """An address whose messages may be moved into pages."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def page_bytes(self) -> int:
        """Size of its page files (`page-size-bytes`)."""

    @property
    def open_pages_max(self) -> int:
        """Pages of it that are kept open for its consumers (`page-max-cache-size`)."""

    @property
    def read_limits(self) -> ReadLimits:
        """What a queue of it may have back in memory of its pages (`max-read-page-*`)."""

    def queue_ids(self) -> list[int]:
        """Return the queues whose messages may be moved."""

    def excess_bytes(self) -> int:
        """Return how much of it should leave the memory now; 0 or less: nothing."""

    def held_bytes(self) -> int:
        """Return how much of it is in memory."""

    @property
    def has_page_limits(self) -> bool:
        """Whether its pages may not grow for ever: each must be counted before the next begins."""

    def note_pages(self, size_bytes: int) -> bool:
        """Take note of the size of its page files; return whether another may be written."""

    def front_bytes(self, queue_id: int) -> int:
        """Return how much of a queue stays in memory in front of its consumers."""

    def has_consumers(self, queue_id: int) -> bool:
        """Whether anybody consumes a queue; else its open pages are closed if memory is short."""

    def claimed(self, queue_id: int) -> int:
        """Return how many messages open transactions acknowledge: consumers still hold them."""

    def reads_ahead(self, queue_id: int) -> bool:
        """Whether the next page of a queue is opened before its consumers ask."""

    def looked_at(self) -> list[int]:
        """Return the queues all messages of which must stand in the ring; none may be moved."""

    def may_close(self, queue_id: int) -> bool:
        """Whether an open page of a queue may be closed: Python has none of it in an index."""

    def begin_at(self, queue_id: int) -> int:
        """Return the sequence of a queue in front of which hardly anything may be moved."""

    def kept(self, queue_id: int) -> list[int]:
        """Return the sequences of a queue that stay in the ring: they stand in an index."""


class PagingJournal(Protocol):
    """What paging needs of the message journal."""

    core: Core
    readable: ReadableFiles

    @property
    def failure(self) -> VespiaryError | None:
        """The failure that fenced it."""

    def kick(self) -> None:
        """Write what is staged."""

    def request_space(self) -> None:
        """Say that something found no room."""

    async def wait_sequence(self, sequence: int) -> None:
        """Wait until a block is durable; WriterFailed if it can't be."""

    async def load_slab(self, file_id: int, slab: int) -> bool:
        """Bring an evicted slab back."""


async def finished(future: asyncio.Future[T]) -> T:
    """Wait for work in a thread, also when the waiting is cancelled: it uses memory of ours."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


@dataclass(slots=True)
class FilledPage:
    """A page in memory.

    Attributes:
        page_id: The page.
        salt: The seed of its checksums.
        queue_id: The queue whose messages it takes, each with all its places.
        copied_bytes: What was copied.
    """

    page_id: int
    salt: int
    queue_id: int
    copied_bytes: int = 0


class _Reached:
    """Where the next page of each queue begins: what is in front of that was looked at.

    Without it each page would walk over all that went before, which is no longer there. What could
    not be moved then may be movable now, so it is looked at again when a page has reached the end
    of its queue, and after some pages in any case.
    """

    def __init__(self) -> None:
        self._at: dict[int, tuple[int, int]] = {}  # by queue: sequence, pages left

    def begin(self, queue_id: int) -> int:
        """Return where a page begins to look."""
        if len(self._at) > _REACHED_MAX:
            self._at.clear()
        sequence, left = self._at.pop(queue_id, (0, _REACHED_PAGES))
        if left > 0:
            self._at[queue_id] = (sequence, left - 1)
            return sequence
        return 0

    def note(self, queue_id: int, sequence: int, *, is_end: bool) -> None:
        """Take note of where a page has looked."""
        if is_end:
            self._at.pop(queue_id, None)
        elif queue_id in self._at:
            self._at[queue_id] = (sequence, self._at[queue_id][1])

    def forget(self, queue_id: int) -> None:
        """Begin anew: what was copied has stayed where it is."""
        self._at.pop(queue_id, None)


class PageMover:
    """Moves messages. Owner: the event loop.

    Args:
        journal: The message journal.
        files: The page files.
        executor: Runs what blocks.
        new_id: Gives ids that were never used.
        new_salt: Gives 64 random bits.
        clock_ms: Milliseconds since 1970.
        room_tries: How often room for a record is asked for before a page is given up.
    """

    def __init__(
        self,
        journal: PagingJournal,
        files: PageFiles,
        executor: Executor,
        *,
        new_id: Callable[[], int],
        new_salt: Callable[[], int] = lambda: secrets.randbits(64),
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        room_tries: int = _ROOM_TRIES,
    ) -> None:
        self._journal = journal
        self._core = journal.core
        self._files = files
        self._executor = executor
        self._new_id = new_id
        self._new_salt = new_salt
        self._clock_ms = clock_ms
        self._room_tries = room_tries
        self._reached = _Reached()
        self._kept: dict[str, dict[int, list[int]]] = {}  # by address whose page is being filled

    async def move(self, address: PagedAddress) -> PageFile | None:
        """Move messages of an address into one page: `fill`, then `finish`."""
        filled = await self.fill(address, address.excess_bytes())
        return None if filled is None else await self.finish(address, filled)

    async def fill(self, address: PagedAddress, wanted_bytes: int) -> FilledPage | None:
        """Copy messages of an address into a page, the oldest that nobody is about to get.

        Args:
            address: The address; only one page of it is filled at a time.
            wanted_bytes: So much of it is to leave the memory; the page ends there.

        Returns:
            The page: `finish` or `give_up` follows. None if there was nothing to copy.

        Raises:
            VespiaryError: Bytes that were evicted could not be read; nothing was changed.
        """
        driver = self._driver(address)
        if driver is None:
            return None
        queue_id, sequence = driver
        page = FilledPage(self._new_id(), self._new_salt(), queue_id)
        self._core.page_open(page.page_id, page.salt, address.page_bytes, address.queue_ids())
        try:
            kept = self._kept[address.name] = self._keep(address)
            try:
                sequence = max(sequence, self._reached.begin(queue_id))
                await self._fill(page, address, sequence, wanted_bytes)
            finally:
                self._let_go(kept)
                del self._kept[address.name]
        except BaseException:
            self.give_up(page)
            raise
        if page.copied_bytes:
            return page
        self.give_up(page)
        return None

    def give_up(self, page: FilledPage) -> None:
        """Forget a page that was filled: its messages stay where they are."""
        self._core.page_abandon(page.page_id)

    async def finish(
        self,
        address: PagedAddress,
        filled: FilledPage,
        in_front: asyncio.Task[None] | None = None,
    ) -> PageFile | None:
        """Write a page and have the journal name it.

        Args:
            address: Its address.
            filled: From `fill`.
            in_front: What names the page in front of it: this one is not named before that ends.

        Returns:
            The page; None if nothing of it waits any more.

        Raises:
            DiskFull: There is no room for the page; nothing was moved.
            StorageError: The folder is another address's; nothing was moved.
            NativeError: A call failed; nothing was moved.
            WriterFailed: The journal has failed.

        Durability: a message leaves the journal's care only by a record behind the flush of file
            and folder.
        """
        is_committed = False
        try:
            page = await self._write(address, filled.page_id, filled.salt)
            if page is None:
                return None
            if in_front is not None:
                await asyncio.wait([in_front])
            is_moved = await self._commit(address, page)
            is_committed = True
        finally:
            if not is_committed:
                self.give_up(filled)
                self._reached.forget(filled.queue_id)  # its messages are the oldest that wait
        self._journal.kick()
        if is_moved:
            return page
        await self._remove(page)  # all that was copied has been taken by consumers meanwhile
        return None

    def _keep(self, address: PagedAddress) -> dict[int, list[int]]:
        """Have what stands in indexes stay where it is, until `_let_go`."""
        kept = {
            queue_id: sequences
            for queue_id in address.queue_ids()
            if (sequences := address.kept(queue_id))
        }
        for queue_id, sequences in kept.items():
            self._core.page_keep(queue_id, sequences, is_kept=True)
        return kept

    def _let_go(self, kept: dict[int, list[int]]) -> None:
        for queue_id, sequences in kept.items():
            with suppress(ValueError):  # the queue is gone
                self._core.page_keep(queue_id, sequences, is_kept=False)

    def _keep_again(self, address: PagedAddress) -> None:
        """Have what the page that is being filled leaves out stay left out."""
        for queue_id, sequences in self._kept.get(address.name, {}).items():
            with suppress(ValueError):
                self._core.page_keep(queue_id, sequences, is_kept=True)

    async def _commit(self, address: PagedAddress, page: PageFile) -> bool:
        """Have the journal name a page; return whether anything of it still waited.

        Durability: the file goes again only where no record names it.
        """

        def commit(page_id: int) -> int:
            kept = self._keep(address)  # what was indexed since it was copied
            try:
                return self._core.page_commit(page_id)
            finally:
                self._let_go(kept)
                self._keep_again(address)

        try:
            return await self._with_room(page.page_id, commit) > 0
        except (NoRoom, ValueError, VespiaryError):
            # Nothing was staged. Each try writes another page: what is given up must not fill the
            # disk for pages while the journal's is full.
            await self._remove(page)
            raise

    async def _remove(self, page: PageFile) -> None:
        """Remove a page that no record names; what fails goes at the next start."""
        remove = self._files.remove
        await finished(self._in_thread(lambda: remove(page.address, [page.page_id])))

    def _driver(self, address: PagedAddress) -> tuple[int, int] | None:
        """Return the queue that most waits in, and where to begin in it; None if none does."""
        found: tuple[int, int] | None = None
        most = 0
        for queue_id in address.queue_ids():
            facts = self._core.queue_statistics(queue_id)
            front = address.front_bytes(queue_id)
            spared = front * facts.ready // max(facts.live_bytes, 1)
            begin = max(facts.next + spared if spared else 0, address.begin_at(queue_id))
            waiting = facts.ready - max(spared, len(address.kept(queue_id)))
            if waiting > most:
                most, found = waiting, (queue_id, begin)
        return found

    async def _fill(
        self, page: FilledPage, address: PagedAddress, sequence: int, wanted_bytes: int
    ) -> None:
        """Copy messages into the page until it is full, or enough was copied."""
        loads = walked = 0
        while page.copied_bytes < wanted_bytes and page.queue_id in address.queue_ids():
            end = self._core.queue_statistics(page.queue_id).available
            try:
                fill = self._core.page_fill(
                    page.page_id, page.queue_id, sequence, end, TURN_BYTES, TURN_PLACES
                )
            except NoRoom:
                return  # no memory for more of it: what was copied goes now, and makes room
            page.copied_bytes += fill.copied_bytes
            sequence = fill.next_sequence
            self._reached.note(page.queue_id, sequence, is_end=sequence >= end)
            if fill.absent is not None:
                loads = 0 if fill.copied_records else loads + 1
                if loads > _LOADS_MAX:
                    return
                if not await self._journal.load_slab(*fill.absent):
                    await asyncio.sleep(_ROOM_PAUSE_S)
            elif fill.is_full or sequence >= end:
                return
            elif fill.copied_records or walked >= _WALKS_MAX:
                walked = 0
                await asyncio.sleep(0)
            else:
                walked += (
                    1  # what stands in the pages in front of this one: passing over it is quick
                )

    async def _write(self, address: PagedAddress, page_id: int, salt: int) -> PageFile | None:
        """Close the page and write it; None if nothing is in it."""
        pieces = await self._with_room(page_id, self._core.page_close)
        parts = [
            PagePart(
                memoryview((ctypes.c_ubyte * piece.length).from_address(piece.address)).cast("B"),
                piece.offset,
            )
            for piece in pieces
        ]
        if not parts:
            return None
        name, now_ms = address.name, self._clock_ms()
        return await finished(
            self._in_thread(lambda: self._files.write(name, page_id, salt, now_ms, parts))
        )

    async def _with_room(self, page_id: int, call: Callable[[int], T]) -> T:
        """Close or commit a page, when there is room for what that takes."""
        for _ in range(self._room_tries):
            try:
                return call(page_id)
            except NoRoom:
                # Acknowledgements go before; what was copied waits.
                self._journal.request_space()
                await asyncio.sleep(_ROOM_PAUSE_S)
            if self._journal.failure is not None:
                raise self._journal.failure
        raise NoRoom(f"no room in the journal for page {page_id}")

    def _in_thread(self, function: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._executor, function)
