"""Messages that expire while they stand in pages that nobody has opened.

Owns, for each page of each queue, when the first message there expires: eight bytes and a key for a
page. Before when none does, the page's sketch says; a page without one is looked through once, if
its index says that it has special messages at all. When that time has come it is looked through;
what has expired is taken into the queue's ring, one by one, and goes the way of all expired
messages (`moves`). All else stays in its page. Must never open a page, and never hold the loop: a
look takes a few hundred messages, indexes are read in a thread.
A page that cannot be read is passed over until the next scan; one that is damaged, for good.
Started by `broker`; owner: its task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.message_times import read_times
from vespiary_broker.engine.moves import Reason
from vespiary_codec.journal.page import block_file_id
from vespiary_codec.journal.page_specials import has_specials
from vespiary_spec.errors import CorruptRecord, NativeError, PageDamaged, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.engine.core import ExtentFacts
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.store.paging.pager import Pager
    from vespiary_broker.store.writer import MessageJournal

_LOOK_MESSAGES: Final = 256
_EXTENTS: Final = 64
"""Pages that are asked about in one turn of the loop; a queue may have thousands."""
_CROWD_MESSAGES: Final = 4096
_CROWDED_S: Final = 0.02
_CROWDED_TRIES: Final = 50
_LOAD_AGAIN_S: Final = 0.02
_NEVER: Final = 2**63
_WHOLE: Final = -1
"""Stands for the slab when a page as a whole is damaged."""

Key = tuple[int, int]
"""Page and queue."""

log = logging.getLogger(__name__)


class _Crowded(Exception):  # noqa: N818  (a state, not a fault)
    """Messages of a queue that have expired find no way out of it."""


class PagedExpiry:
    """Looks for expired messages in closed pages.

    Attributes:
        pages_looked_through: Pages whose messages were looked at, once for each queue.

    Args:
        engine: The engine.
        journal: The journal.
        pager: The pager.
        touch: Has the work of a turn done.
        period_s: Seconds between two scans.
    """

    def __init__(
        self,
        engine: Engine,
        journal: MessageJournal,
        pager: Pager,
        touch: Callable[[], None],
        *,
        period_s: float,
    ) -> None:
        self.pages_looked_through = 0
        self._engine = engine
        self._core = engine.core
        self._journal = journal
        self._pager = pager
        self._touch = touch
        self._period_s = period_s
        self._first: dict[Key, int] = {}
        self._in_ring: set[Key] = set()
        # Pages of before may hold anything; later ones only what came in since.
        self._old_until = max((facts.page_id for facts in engine.core.pages()), default=0)

    async def run(self) -> None:
        """Scan every period, until cancelled."""
        while True:
            await self.scan()
            await asyncio.sleep(self._period_s)

    async def scan(self) -> None:
        """Look once at all pages in which something may have expired."""
        if not self._pager.has_pages:
            self._first.clear()
            self._in_ring.clear()
            return
        seen: set[Key] = set()
        for queue in list(self._engine.registry.queues_by_id.values()):
            if queue.is_deleted:
                continue
            some = self._extents_from(queue, 0)
            while some:
                for facts in some:
                    await self._scan_extent(queue, facts, seen)
                await asyncio.sleep(0)
                some = self._extents_from(queue, some[-1].first + 1)
            await asyncio.sleep(0)
        for key in self._first.keys() - seen:
            del self._first[key]
        self._in_ring &= seen

    def _extents_from(self, queue: Queue, first: int) -> list[ExtentFacts]:
        """Return the next extents of a queue that begin at a sequence or behind it; [] at the end.

        Those that come in front of it meanwhile are for the next scan.
        """
        if queue.is_deleted:
            return []
        begin = self._core.extent_index(queue.id, first)
        while some := self._core.extents(queue.id, begin, _EXTENTS):
            ahead = [facts for facts in some if facts.first >= first]
            if ahead:
                return ahead
            begin += len(some)
        return []

    async def _scan_extent(self, queue: Queue, facts: ExtentFacts, seen: set[Key]) -> None:
        """Look at what a queue has in a page, if something may have expired there."""
        key = (facts.page_id, queue.id)
        if not facts.places or queue.is_deleted:
            return
        seen.add(key)
        if facts.is_open:
            self._leave_to_ring(queue, key, facts.first, facts.last)
            return
        self._in_ring.discard(key)
        if await self._is_due(key):
            with self._told(key):
                await self._look_through(queue, facts.page_id, facts.first, facts.last)

    def _leave_to_ring(self, queue: Queue, key: Key, first: int, last: int) -> None:
        """Have the scan of the rings look at a page that was opened since, or has something due."""
        if (
            key not in self._in_ring
            or self._first.get(key, _NEVER) <= self._engine.fates.clock_ms()
        ):
            self._in_ring.add(key)
            self._first.pop(key, None)
            self._engine.fates.suspect(queue.id, first, last)

    async def _is_due(self, key: Key) -> bool:
        first_ms = self._first.get(key)
        if first_ms is None:
            if key[0] > self._old_until and not self._engine.fates.has_specials:
                return False
            sketch = await self._pager.sketch(key[0])
            if sketch is None:
                return True
            first_ms = self._first[key] = min(sketch.first_expiry_ms, _NEVER)
        return first_ms <= self._engine.fates.clock_ms()

    @contextmanager
    def _told(self, key: Key) -> Iterator[None]:
        """Go on with other pages when one cannot be read."""
        try:
            yield
        except (PageDamaged, CorruptRecord) as error:
            self._first[key] = _NEVER
            if self._engine.fates.slab_lost(block_file_id(key[0]), _WHOLE):
                log.error("messages of a page cannot expire, and stay: %s", error)  # noqa: TRY400
        except (KeyError, ValueError):
            pass  # the page, or its queue, went while it was looked at
        except _Crowded:
            pass  # others go on
        except NativeError as error:
            log.warning("a page was not looked at for what has expired, and is later: %s", error)

    async def _look_through(self, queue: Queue, page_id: int, first: int, last: int) -> None:
        """Take what has expired out of a page, and note when the next one does."""
        key = (page_id, queue.id)
        footer = await self._pager.footer(page_id)
        next_ms = _NEVER
        if has_specials(footer):
            self.pages_looked_through += 1
            try:
                next_ms = await self._walk(queue, page_id, footer, first, last)
            finally:  # its slabs are not needed any more
                self._core.page_look(page_id, queue.id, footer, last + 1, 1)
        self._first[key] = next_ms

    async def _walk(self, queue: Queue, page_id: int, footer: bytes, first: int, last: int) -> int:
        """Go through what a queue has in a page; return when the next message there expires."""
        at, next_ms = first, _NEVER
        while at <= last and not queue.is_deleted:
            await self._wait_for_way_out(queue)
            look = self._core.page_look(page_id, queue.id, footer, at, _LOOK_MESSAGES)
            now_ms, due = self._engine.fates.clock_ms(), []
            for view in look.messages:
                expires_ms = read_times(view.properties).expires_ms if view.is_special else 0
                is_due = 0 < expires_ms <= now_ms
                if is_due and not self._engine.fates.is_owed(queue, view):
                    due.append(view.sequence)
                elif expires_ms:
                    next_ms = min(next_ms, expires_ms)
            self._take_out(queue, page_id, footer, due)
            at = look.next_sequence
            if look.absent is not None:
                await self._load(*look.absent)
            await asyncio.sleep(0)
        return next_ms

    def _take_out(self, queue: Queue, page_id: int, footer: bytes, due: list[int]) -> None:
        """Have expired messages leave their page and their queue."""
        if not due:
            return
        self._core.page_pick(page_id, queue.id, footer, due)
        for sequence in due:
            if self._core.set_aside(queue.id, sequence):
                self._engine.fates.mover.add(queue, sequence, Reason.EXPIRED)
        self._touch()

    async def _wait_for_way_out(self, queue: Queue) -> None:
        """Wait while more of a queue is on its way out than is good for the memory.

        Raises:
            _Crowded: It does not get less: the next scan goes on.
        """
        mover = self._engine.fates.mover
        for _ in range(_CROWDED_TRIES):
            if mover.pending_for(queue.id, Reason.EXPIRED) < _CROWD_MESSAGES:
                return
            await asyncio.sleep(_CROWDED_S)
        raise _Crowded

    async def _load(self, file_id: int, slab: int) -> None:
        if not await self._journal.load_slab(file_id, slab):
            await asyncio.sleep(_LOAD_AGAIN_S)  # it came by another way, or there is no memory


async def run_paged_expiry(expiry: PagedExpiry) -> None:
    """Run the scans; what fails is logged, and ends nothing else."""
    while True:
        try:
            await expiry.run()
        except VespiaryError as error:
            log.error("pages were not looked at for expired messages: %s", error)  # noqa: TRY400
            await asyncio.sleep(1)
