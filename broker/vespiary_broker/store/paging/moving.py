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

    def is_indexed(self, queue_id: int) -> bool:
        """Whether Python has messages of a queue in an index: no open page may be closed."""

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

    async def move(self, address: PagedAddress) -> PageFile | None:
        """Move messages of an address into one page, the oldest that nobody is about to get.

        Returns:
            The page; None if there was nothing to move.

        Raises:
            DiskFull: There is no room for the page; nothing was moved.
            StorageError: The folder is another address's; nothing was moved.
            NativeError: A call failed; nothing was moved.
            WriterFailed: The journal has failed.

        Durability: a message leaves the journal's care only by a record behind the flush of file
            and folder.
        """
        driver = self._driver(address)
        if driver is None:
            return None
        queue_id, sequence = driver
        page_id, salt = self._new_id(), self._new_salt()
        self._core.page_open(page_id, salt, address.page_bytes, address.queue_ids())
        is_committed = False
        try:
            kept = self._keep(address)
            try:
                await self._fill(page_id, address, queue_id, sequence)
            finally:
                self._let_go(kept)
            page = await self._write(address, page_id, salt)
            if page is None:
                return None
            is_moved = await self._commit(address, page)
            is_committed = True
        finally:
            if not is_committed:
                self._core.page_abandon(page_id)
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
        self, page_id: int, address: PagedAddress, queue_id: int, sequence: int
    ) -> None:
        """Copy messages into the page until it is full, or enough was copied."""
        copied = loads = 0
        wanted_bytes = address.excess_bytes()
        while copied < wanted_bytes and queue_id in address.queue_ids():
            end = self._core.queue_statistics(queue_id).available
            try:
                fill = self._core.page_fill(
                    page_id, queue_id, sequence, end, TURN_BYTES, TURN_PLACES
                )
            except NoRoom:
                return  # no memory for more of it: what was copied goes now, and makes room
            copied += fill.copied_bytes
            sequence = fill.next_sequence
            if fill.absent is not None:
                loads = 0 if fill.copied_records else loads + 1
                if loads > _LOADS_MAX:
                    return
                if not await self._journal.load_slab(*fill.absent):
                    await asyncio.sleep(_ROOM_PAUSE_S)
            elif fill.is_full or sequence >= end:
                return
            else:
                await asyncio.sleep(0)

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
