"""Opening pages for consumers: their index is read, and their messages enter the queues' rings.

Owns which pages are open, in the order of their last use, and how many may be
(`page-max-cache-size`). Must never close a page whose messages consumers hold. Reads footers in
paging's thread; the messages themselves are read by the journal's loader, slab by slab, when they
are delivered. Called by `pager`, on the event loop.

A page is opened when a queue's next message stands in it, and the one behind it as soon as that is
done: so a consumer that reads on finds the next page open. What a queue may have back in memory is
bounded (`read_limits`): above that, it waits until consumers have acknowledged more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

from vespiary_broker.store.paging.closed_pages import ClosedPages
from vespiary_broker.store.paging.moving import PagedAddress
from vespiary_broker.store.paging.page_files import PageFile, PageFiles
from vespiary_broker.store.paging.read_limits import ReadAmounts, each_extent
from vespiary_codec.journal.page import TRAILER_BYTES, decode_trailer
from vespiary_native.abc import Core, NoRoom
from vespiary_spec.errors import PageDamaged, VespiaryError

_PLACES_PER_TURN: Final = 8192
_QUEUES_PER_TURN: Final = 16
"""What one turn of the event loop enters at most, but one queue: well below a millisecond."""
_AGAIN_S: Final = 0.05
_OPEN_PAGES_DEFAULT: Final = 5
_TOLD_MAX: Final = 1000
"""Addresses that are named in the log, each once, because their consumers do not acknowledge."""

log = logging.getLogger(__name__)


class PageOpener:
    """Opens and closes pages. Owner: the event loop.

    Args:
        core: The core.
        files: The page files.
        pages: Pages that the journal names, by id (the pager's own table).
        addresses: Addresses by name (the pager's own table).
        closed: Footers, and which pages are damaged.
        on_ready: Called when queues gained messages.

    Attributes:
        opened: Pages opened since the start, once for each queue.
    """

    def __init__(
        self,
        core: Core,
        files: PageFiles,
        pages: Mapping[int, PageFile],
        addresses: Mapping[str, PagedAddress],
        closed: ClosedPages,
        on_ready: Callable[[], None],
    ) -> None:
        self.damaged = closed.damaged
        self.opened = 0
        self._core = core
        self._files = files
        self._pages = pages
        self._addresses = addresses
        self._closed_pages = closed
        self._on_ready = on_ready
        self._wanted: dict[int, set[int]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._wholes: dict[int, asyncio.Task[None]] = {}
        self._open: dict[str, OrderedDict[int, set[int]]] = {}
        self._reads = ReadAmounts(core)
        self._told: set[str] = set()
        self._troubled: set[int] = set()
        self._retry: asyncio.Task[None] | None = None
        self._is_closing = False

    @property
    def open_pages(self) -> int:
        """Number of pages that are open."""
        return sum(map(len, self._open.values()))

    @property
    def waiting_queues(self) -> int:
        """Number of queues that get no page before more of those open is acknowledged."""
        return len(self._reads.waiting)

    def take_wanted(self) -> None:
        """Open the pages that consumers wait for."""
        for queue_id, page_id in self._core.page_wanted():
            if self._may_read(queue_id, page_id):
                self.want(queue_id, page_id)
                continue
            self._reads.waits(queue_id, page_id)
            self._tell(self._pages[page_id].address)
            if self._retry is None:
                loop = asyncio.get_running_loop()
                self._retry = loop.create_task(self._open_late(), name="open-pages-late")

    def _tell(self, address: str) -> None:
        """Say once for each address that its consumers hold what they may."""
        if address in self._told or len(self._told) >= _TOLD_MAX:
            return
        self._told.add(address)
        log.warning(
            "no more pages are opened for a queue before its consumers acknowledge what they have "
            "address=%s limits=%r",
            address,
            self._addresses[address].read_limits,
        )

    def _may_read(self, queue_id: int, page_id: int) -> bool:
        """Whether a queue may have another page in memory; one that Python looks at may have all.

        An index of its messages must not pass over what it does not see.
        """
        page = self._pages.get(page_id)
        paged = self._addresses.get(page.address) if page is not None else None
        if paged is None or queue_id in self._wholes or queue_id in paged.looked_at():
            return True
        return self._reads.has_room(queue_id, page_id, paged.read_limits, paged.claimed(queue_id))

    def _claimed(self, queue_id: int, page_id: int) -> int:
        page = self._pages.get(page_id)
        paged = self._addresses.get(page.address) if page is not None else None
        return 0 if paged is None else paged.claimed(queue_id)

    async def _open_late(self) -> None:
        """Open pages for queues that wait, as their consumers acknowledge what they have."""
        try:
            while self._reads.waiting and not self._is_closing:
                await asyncio.sleep(_AGAIN_S)
                for queue_id in list(self._reads.waiting):
                    page_id = self._reads.waiting[queue_id]  # it may wait for another one by now
                    if not self._reads.has_changed(queue_id, self._claimed(queue_id, page_id)):
                        continue
                    if not self._is_closed(queue_id, page_id):
                        self._reads.waits_no_more(queue_id)  # it is open, done with, or gone
                    elif self._may_read(queue_id, page_id):
                        self._reads.waits_no_more(queue_id)
                        self.want(queue_id, page_id)
                    await asyncio.sleep(0)  # a queue may have very many pages
        finally:
            self._retry = None

    def want(self, queue_id: int, page_id: int) -> None:
        """Begin to open a page for a queue, if that is not under way."""
        if page_id in self.damaged or page_id not in self._pages:
            return
        waiting = self._wanted.get(page_id)
        if waiting is not None:
            waiting.add(queue_id)
            return
        self._wanted[page_id] = {queue_id}
        task = asyncio.get_running_loop().create_task(
            self._guard(page_id), name=f"open-page-{page_id}"
        )
        self._tasks[page_id] = task
        task.add_done_callback(lambda _: self._forget_task(page_id, task))

    def _forget_task(self, page_id: int, task: asyncio.Task[None]) -> None:
        if self._tasks.get(page_id) is task:  # else it has begun another one at its end
            del self._tasks[page_id]

    async def wait_open(self, page_id: int) -> None:
        """Open the pages that are wanted, and wait for one of them."""
        self.take_wanted()
        task = self._tasks.get(page_id)
        if task is not None:
            await asyncio.wait([task])

    def open_all(self, queue_id: int) -> None:
        """Begin to open all pages of a queue, one after the other, if that is not under way."""
        if queue_id in self._wholes:
            return
        task = asyncio.get_running_loop().create_task(
            self._open_each(queue_id), name=f"open-pages-of-{queue_id}"
        )
        self._wholes[queue_id] = task
        task.add_done_callback(lambda _: self._wholes.pop(queue_id, None))

    async def _open_each(self, queue_id: int) -> None:
        while not self._is_closing:
            closed = [page_id for page_id in self._closed(queue_id) if page_id not in self.damaged]
            if not closed or not self._is_looked_at(queue_id, closed[0]):
                return
            for page_id in closed:
                self.want(queue_id, page_id)
                task = self._tasks.get(page_id)
                if task is not None:
                    await asyncio.wait([task])
            if self._closed(queue_id) == closed:
                await asyncio.sleep(_AGAIN_S)  # nothing helped: no loop without a pause

    def _is_looked_at(self, queue_id: int, page_id: int) -> bool:
        """Whether Python still looks at a queue: if it does not, its pages are closed again."""
        page = self._pages.get(page_id)
        paged = self._addresses.get(page.address) if page is not None else None
        return paged is None or queue_id in paged.looked_at()

    def _closed(self, queue_id: int) -> list[int]:
        """Return all pages in which a queue has messages that are not in its ring."""
        try:
            extents = self._core.extents(queue_id)
        except ValueError:
            return []  # the queue is gone
        return [facts.page_id for facts in extents if facts.places and not facts.is_open]

    def _is_closed(self, queue_id: int, page_id: int) -> bool:
        """Whether a queue has messages in a page that are not in its ring."""
        facts = self._core.extent(page_id, queue_id)
        return facts is not None and facts.places > 0 and not facts.is_open

    async def _guard(self, page_id: int) -> None:
        """Open a page; what fails is logged, and the queues wait there."""
        again: set[int] = set()
        try:
            await self._enter(page_id)
        except PageDamaged as error:
            if page_id not in self._pages:
                return  # it was done with meanwhile, and removed
            self._closed_pages.note_damaged(page_id, str(error))
        except (NoRoom, MemoryError, VespiaryError) as error:
            if page_id not in self._troubled:
                self._troubled.add(page_id)
                log.warning("a page was not opened, and is tried again: %s", error)
            await asyncio.sleep(_AGAIN_S)
            again = self._wanted.pop(page_id)
        except Exception:
            log.exception("a page was not opened")
        else:
            self._troubled.discard(page_id)
        finally:
            self._wanted.pop(page_id, None)
        # Nobody else does: a queue that has said once that it needs a page says no more.
        for queue_id in again if not self._is_closing else ():
            self.want(queue_id, page_id)

    async def _enter(self, page_id: int) -> None:
        """Have a page's messages in the rings of the queues that want it, some of them at a time.

        Raises:
            NoRoom: There is no memory for more of them now.
        """
        footer = await self._closed_pages.read(page_id)
        tried: set[int] = set()
        while True:
            page = self._pages.get(page_id)
            wanted = sorted(self._wanted[page_id] - tried)
            if page is None or not wanted:
                return
            entered: list[int] = []
            places = 0
            try:
                while wanted and places < _PLACES_PER_TURN and len(entered) < _QUEUES_PER_TURN:
                    queue_id = wanted.pop(0)
                    tried.add(queue_id)
                    if self._is_closed(queue_id, page_id):
                        places += self._enter_for(page, queue_id, footer)
                        entered.append(queue_id)
            finally:
                self._note_entered(page, entered, footer)
            await asyncio.sleep(0)

    def _enter_for(self, page: PageFile, queue_id: int, footer: bytes) -> int:
        """Have a page's messages in the ring of a queue; return how many."""
        try:
            return self._core.page_enter(page.page_id, queue_id, footer)
        except ValueError as error:
            raise PageDamaged(
                "the index of a page does not fit what the journal says of it",
                where=str(self._files.path(page.address, page.page_id)),
                measured=str(error),
            ) from error

    def _note_entered(self, page: PageFile, entered: list[int], footer: bytes) -> None:
        """Count what was opened, close what is too much then, and look at the page behind it."""
        if not entered:
            return
        page_id = page.page_id
        self.opened += len(entered)
        end = footer[-TRAILER_BYTES:]
        trailer = decode_trailer(end, page_id=page_id, salt=page.salt, size_bytes=page.size_bytes)
        self._reads.opened(page, trailer)
        table = self._open.setdefault(page.address, OrderedDict())
        table.setdefault(page_id, set()).update(entered)
        table.move_to_end(page_id)
        self._close_old(page.address, page_id)
        self._on_ready()
        for queue_id in entered:
            self._read_ahead(page.address, queue_id, page_id)

    def _pages_max(self, address: str) -> int:
        paged = self._addresses.get(address)
        return max(paged.open_pages_max if paged is not None else _OPEN_PAGES_DEFAULT, 1)

    def _read_ahead(self, address: str, queue_id: int, page_id: int) -> None:
        """Open the page behind one, if there is room in the cache."""
        if len(self._open.get(address, ())) >= self._pages_max(address):
            return
        paged = self._addresses.get(address)
        if paged is not None and not paged.reads_ahead(queue_id):
            return
        behind = False
        for facts in each_extent(self._core, queue_id):
            if behind and not facts.is_open and facts.places:
                if self._may_read(queue_id, facts.page_id):
                    self.want(queue_id, facts.page_id)
                return
            behind = behind or facts.page_id == page_id

    def _close_old(self, address: str, kept_id: int) -> None:
        """Close the pages that were opened longest ago, as far as nobody holds their messages."""
        table = self._open[address]
        for page_id in [page_id for page_id in table if page_id != kept_id]:
            if len(table) <= self._pages_max(address):
                return
            queues = table[page_id]
            queues.difference_update(
                [queue_id for queue_id in queues if self._leave(address, page_id, queue_id)]
            )
            if not queues:
                del table[page_id]

    def close_idle(self, address: str) -> None:
        """Close the pages of an address for queues without consumers: its memory is needed."""
        paged, table = self._addresses.get(address), self._open.get(address)
        if paged is None or table is None:
            return
        for page_id, queues in list(table.items()):
            idle = [queue_id for queue_id in queues if not paged.has_consumers(queue_id)]
            queues.difference_update(
                [queue_id for queue_id in idle if self._leave(address, page_id, queue_id)]
            )
            if not queues:
                del table[page_id]
        if not table:
            del self._open[address]

    def _leave(self, address: str, page_id: int, queue_id: int) -> bool:
        """Close a page for a queue; return whether it is closed for it."""
        paged = self._addresses.get(address)
        if queue_id in self._wholes:
            return False
        try:
            if paged is not None and not paged.may_close(queue_id):
                return False
            return self._core.page_leave(page_id, queue_id)
        except ValueError:
            return True  # the queue is gone, and so is what it had there

    def forget(self, page: PageFile) -> None:
        """Drop what is remembered of a page that is done."""
        table = self._open.get(page.address)
        if table is not None:
            table.pop(page.page_id, None)
            if not table:
                del self._open[page.address]
        self._closed_pages.forget(page.page_id)
        self._troubled.discard(page.page_id)
        self._reads.forget(page.page_id)

    async def close(self) -> None:
        """Wait for what is being opened."""
        self._is_closing = True
        if self._retry is not None:
            await asyncio.wait([self._retry])
        while tasks := [*self._tasks.values(), *self._wholes.values()]:
            await asyncio.wait(tasks)
