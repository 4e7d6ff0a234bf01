"""The walk over the messages of a queue, wherever they are: in memory, in the journal, in pages.

Owns the bringing back of what is not in memory, and which pages are looked into: those alone in
which something may match, as far as their sketches tell. Must never open a page: what stands in one
is looked at there, so nothing comes into memory that has to leave it again, and pages that
interleave cannot push each other out. Must never change a message. Called by `message_acts`,
`counting` and `browsing`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vespiary_broker.engine.core import RUNS_MAX, Core, MessageView, RangeCopy
from vespiary_broker.engine.page_walk import PageWalk, Together
from vespiary_codec.journal.page_sketch import PageSketch
from vespiary_spec.errors import PageDamaged, RemoteProtocolError, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.engine.core import ExtentFacts
    from vespiary_broker.engine.lanes import Match
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.engine.selection.selector import Selector
    from vespiary_broker.store.journal import Journal

_LOAD_AGAIN_S: Final = 0.01
_READ_AGAIN_S: Final = 0.05
_JUDGED_S: Final = 0.003
"""Seconds of one turn of the loop in which sketches are held against a selector."""
_PASSED_MAX: Final = 512
"""Pages that are passed over in one turn: some 1 µs each."""
_EXTENTS: Final = 32
_FOOTERS_MAX: Final = 4
"""Footers that a walk keeps for itself, so that it goes on whatever others read meanwhile."""
_ALL: Final = (None,)

log = logging.getLogger(__name__)


class Footers(Protocol):
    """Footers of pages, and which are damaged."""

    async def known_footer(self, page_id: int) -> bytes:
        """Return the footer of a page.

        Raises:
            PageDamaged: It is damaged, or gone.
            VespiaryError: It can't be read now.
        """

    def note_damaged(self, page_id: int, reason: str) -> None:
        """Take note that a page is not what the journal says of it."""


class Pages(Protocol):
    """What is known of page files."""

    @property
    def closed_pages(self) -> Footers:
        """Their footers."""

    async def sketch(self, page_id: int) -> PageSketch | None:
        """Return what can be told of a page without opening it; None: nothing."""


class Step(NamedTuple):
    """What one step of a walk came to.

    Attributes:
        messages: Ascending by sequence; seen in the turn of the loop in which the step returned.
        next_sequence: Where to go on.
    """

    messages: list[MessageView]
    next_sequence: int


class _Known:
    """What `PageWalk` asks about pages: footers that were read for this walk, and its verdicts.

    Attributes:
        missing: The page whose footer was asked for, and is not here.
        verdicts: Whether something may match, by page.
    """

    judged = 0

    def __init__(self, pages: Pages) -> None:
        self.missing = 0
        self.verdicts: dict[int, bool] = {}
        self._pages = pages
        self._footers: OrderedDict[int, bytes] = OrderedDict()

    def note_footer(self, page_id: int, footer: bytes) -> None:
        self._footers[page_id] = footer
        if len(self._footers) > _FOOTERS_MAX:
            self._footers.popitem(last=False)

    def footer(self, queue_id: int, page_id: int) -> bytes | None:  # noqa: ARG002
        footer = self._footers.get(page_id)
        if footer is None:
            self.missing = page_id
        else:
            self._footers.move_to_end(page_id)
        return footer

    def is_damaged(self, page_id: int) -> bool:  # noqa: ARG002
        return False  # whoever walks here is told, and misses nothing without knowing

    def note_damaged(self, page_id: int, reason: str) -> None:
        self._pages.closed_pages.note_damaged(page_id, reason)
        raise PageDamaged("a page is damaged", measured=reason)

    def highest_priority(self, page_id: int) -> int:  # noqa: ARG002
        return 9

    def may_match(self, page_id: int, match: Match) -> bool:  # noqa: ARG002
        return self.verdicts.get(page_id, True)


class QueueWalk:
    """Looks through a queue.

    Args:
        core: The core.
        journal: The message journal: it brings back what is not in memory.
        pages: What is known of pages; None: there are none.
        queue: The queue.
        check: Called before each wait; what it raises ends the step.
        selector: What is looked for: pages in which nothing can match are passed over; None: all.
    """

    def __init__(
        self,
        core: Core,
        journal: Journal,
        pages: Pages | None,
        queue: Queue,
        check: Callable[[], None] = lambda: None,
        *,
        selector: Selector | None = None,
    ) -> None:
        self._core = core
        self._journal = journal
        self._pages = pages
        self._queue = queue
        self._check = check
        self._matches = _ALL if selector is None else (_Match(selector, queue.address.name),)
        self._known = None if pages is None else _Known(pages)
        self._walk = PageWalk(core, queue.id)
        self._is_told = False

    async def step(self, sequence: int, count: int, *, everything: bool = False) -> Step:
        """Look at the next messages, at some of them.

        Args:
            sequence: Where to begin.
            count: Most messages of the ring, and of each page.
            everything: Also those that consumers hold and those set aside.

        Raises:
            RemoteProtocolError: The queue was deleted meanwhile.
            PageDamaged: Messages stand in a page that is.
        """
        queue = self._queue
        while True:
            self._check_is_there()
            await self._judge(sequence)
            self._check_is_there()
            self._walk.refresh(self._known, self._core.queue_statistics(queue.id).paged)
            seen = self._walk.look(sequence, count, matches=self._matches, everything=everything)
            if seen.is_waiting:
                await self._read_footer()
            elif seen.absent is not None and not seen.messages:
                await self.load(*seen.absent)
            else:
                return Step(seen.messages, seen.next_sequence)

    async def copy(
        self, sequence: int, end: int, max_bytes: int, *, is_first_whole: bool
    ) -> RangeCopy | None:
        """Copy the records of the next messages as far as they stand in one place.

        Args:
            sequence: Where to begin.
            end: One above the last sequence that is wanted; it is readable.
            max_bytes: Of records.
            is_first_whole: The first one comes even if it is larger.

        Returns:
            None: pages interleave here, and `step` looks at their messages one by one.

        Raises:
            RemoteProtocolError: The queue was deleted meanwhile.
            PageDamaged: Messages stand in a page that is.
        """
        core, queue = self._core, self._queue
        while True:
            self._check_is_there()
            self._walk.refresh(self._known, core.queue_statistics(queue.id).paged)
            there = self._walk.together(sequence, end)
            if there is None:
                return None
            if there.extent is None:
                return self._copy_of_ring(there, sequence, max_bytes, is_first_whole=is_first_whole)
            copied = self._walk.copy(
                there.extent, sequence, there.end, max_bytes, is_first_whole=is_first_whole
            )
            if copied is not None:
                return copied
            await self._read_footer()

    def _copy_of_ring(
        self, there: Together, sequence: int, max_bytes: int, *, is_first_whole: bool
    ) -> RangeCopy:
        copied = self._core.copy_range(
            self._queue.id, sequence, there.end, max_bytes,
            is_first_whole=is_first_whole, runs_max=1 if there.is_one_run else RUNS_MAX,
        )  # fmt: skip
        behind = copied.runs[0][1] + 1 if copied.runs else sequence
        if there.is_one_run and copied.next_sequence > behind:
            return copied._replace(next_sequence=behind, is_full=False, absent=None)
        return copied

    def body(self, sequence: int) -> bytes | None:
        """Return the stored body of a message of the last step, in the turn in which it returned.

        Returns:
            None: it is not there any more, or not in memory (`Core.absent_for`).
        """
        return self._walk.body(sequence)

    def take_in(self, sequences: Iterable[int]) -> None:
        """Have messages of the last step stand in memory, in the turn in which it returned.

        Only so can they be ended or set aside.
        """
        self._walk.take_in(sequences)

    def leave(self) -> None:
        """End the walk: what was read for it is not needed any more."""
        if not self._queue.is_deleted:
            self._walk.leave()

    async def _judge(self, sequence: int) -> None:
        """Hold sketches against the selector, up to that of the next page to be looked into."""
        match = self._matches[0]
        if match is None or self._pages is None or self._known is None:
            return
        until_s = time.perf_counter() + _JUDGED_S
        while (facts := self._unjudged(sequence)) is not None:
            if time.perf_counter() >= until_s:
                self._check()
                await asyncio.sleep(0)
                until_s = time.perf_counter() + _JUDGED_S
            sketch = await self._pages.sketch(facts.page_id)
            verdict = sketch is None or match.may_match(sketch)
            self._known.verdicts[facts.page_id] = verdict
            if verdict or self._queue.is_deleted:
                return
            sequence = max(sequence, facts.first + 1)

    def _unjudged(self, sequence: int) -> ExtentFacts | None:
        """Return the first page ahead that was not judged; None behind one that may match."""
        assert self._known is not None
        core, queue_id, verdicts = self._core, self._queue.id, self._known.verdicts
        begin, passed = core.extent_index(queue_id, sequence), 0
        while some := core.extents(queue_id, begin, _EXTENTS):
            for facts in some:
                if not facts.places or facts.is_open or facts.last < sequence:
                    continue
                verdict = verdicts.get(facts.page_id)
                if verdict is None:
                    return facts
                passed += 1
                if verdict or passed > _PASSED_MAX:
                    return None
            begin += len(some)
        return None

    async def _read_footer(self) -> None:
        """Read the footer that the walk asked for."""
        assert self._pages is not None
        assert self._known is not None
        page_id = self._known.missing
        self._check()
        try:
            footer = await self._pages.closed_pages.known_footer(page_id)
            self._known.note_footer(page_id, footer)
        except PageDamaged:
            if not self._queue.is_deleted:
                facts = self._core.extent(page_id, self._queue.id)
                if facts is not None and facts.places and not facts.is_open:
                    raise
            await asyncio.sleep(0)  # it was done with meanwhile
        except VespiaryError as error:
            if not self._is_told:
                log.warning("a page was not looked into, and is tried again: %s", error)
            self._is_told = True
            await asyncio.sleep(_READ_AGAIN_S)

    async def load(self, file_id: int, slab: int) -> None:
        """Bring a slab into memory, or wait until there may be memory for it."""
        self._check()
        if not await self._journal.load_slab(file_id, slab):
            await asyncio.sleep(_LOAD_AGAIN_S)  # it came by another way, or there is no memory now

    def _check_is_there(self) -> None:
        if self._queue.is_deleted:
            raise RemoteProtocolError(f"the queue {self._queue.name} was deleted meanwhile")


class _Match:
    """A selector, as pages are held against it."""

    def __init__(self, selector: Selector, address: str) -> None:
        self.text = selector.text
        self._selector = selector
        self._address = address

    def wants(self, message: MessageView) -> bool:  # noqa: ARG002
        return True  # the callers of a walk choose for themselves

    def cost_us(self, message: MessageView) -> float:  # noqa: ARG002
        return 0.0

    def may_match(self, sketch: PageSketch) -> bool:
        return self._selector.may_match(sketch, self._address)
