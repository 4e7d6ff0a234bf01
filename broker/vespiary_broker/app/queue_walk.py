"""The walk over the messages of a queue, wherever they are: in memory, in the journal, in pages.

Owns the bringing back of what is not in memory, and the opening of pages: of those alone in which
something may match, as far as their sketches tell. Must never change a message. Called by
`message_acts`, `counting` and `browsing`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vespiary_broker.engine.core import Core, MessageView
from vespiary_codec.journal.page_sketch import PageSketch
from vespiary_spec.errors import RemoteProtocolError

if TYPE_CHECKING:
    from vespiary_broker.engine.core import ExtentFacts
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.engine.selection.selector import Selector
    from vespiary_broker.store.journal import Journal

_LOAD_AGAIN_S: Final = 0.01
_JUDGED_AT_ONCE: Final = 32
"""Sketches that are held against a selector in one turn of the loop, some 50 µs each."""


class Pages(Protocol):
    """Opens page files."""

    async def open_for(self, queue_id: int, page_id: int) -> bool:
        """Open a page for a queue; return whether its messages are in the queue's ring now."""

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


class QueueWalk:
    """Looks through queues.

    Args:
        core: The core.
        journal: The message journal: it brings back what is not in memory.
        pages: Opens pages; None: there are none.
        check: Called before each wait; what it raises ends the step.
        selector: What is looked for: pages in which nothing can match are passed over; None: all.
        address: Of the queue, for the selector.
    """

    def __init__(
        self,
        core: Core,
        journal: Journal,
        pages: Pages | None,
        check: Callable[[], None] = lambda: None,
        *,
        selector: Selector | None = None,
        address: str = "",
    ) -> None:
        self._core = core
        self._journal = journal
        self._pages = pages
        self._check = check
        self._selector = selector
        self._address = address
        self._verdicts: dict[int, bool] = {}  # whether something may match, by page

    async def step(
        self, queue: Queue, sequence: int, count: int, *, everything: bool = False
    ) -> Step:
        """Look at the next messages of a queue, at some of them.

        Args:
            queue: The queue.
            sequence: Where to begin.
            count: Most messages.
            everything: Also those that consumers hold and those set aside.

        Raises:
            RemoteProtocolError: The queue was deleted meanwhile.
            PageDamaged: Messages stand in a page that is.
        """
        while True:
            _check_is_there(queue)
            await self._judge(queue, sequence)
            _check_is_there(queue)
            first, page_id = self._closed_page(queue, sequence)
            if page_id and first <= sequence:
                await self._open_page(queue, page_id)
                continue
            look = self._core.look(queue.id, sequence, count, everything=everything)
            if page_id and look.next_sequence > first:
                return Step([view for view in look.messages if view.sequence < first], first)
            if look.absent is not None and not look.messages:
                await self.load(*look.absent)
                continue
            return Step(look.messages, look.next_sequence)

    def _closed_page(self, queue: Queue, sequence: int) -> tuple[int, int]:
        """Return where the next page begins that is not open, and its id; 0 for none."""
        page = next(self._closed_ahead(queue, sequence), None)
        return (0, 0) if page is None else (page.first, page.page_id)

    def _closed_ahead(self, queue: Queue, sequence: int) -> Iterator[ExtentFacts]:
        """Yield the pages that are not open from a sequence on, but those that are ruled out."""
        if self._pages is None or not self._core.queue_statistics(queue.id).paged:
            return
        for facts in sorted(self._core.extents(queue.id), key=lambda facts: facts.first):
            is_closed = facts.places and not facts.is_open and facts.last >= sequence
            if is_closed and self._verdicts.get(facts.page_id, True):
                yield facts

    async def _judge(self, queue: Queue, sequence: int) -> None:
        """Hold sketches against the selector, up to that of the next page to be opened."""
        for number, facts in enumerate(self._closed_ahead(queue, sequence), start=1):
            if self._selector is None or facts.page_id in self._verdicts:
                return
            assert self._pages is not None
            if number % _JUDGED_AT_ONCE == 0:
                self._check()
                await asyncio.sleep(0)
            sketch = await self._pages.sketch(facts.page_id)
            verdict = sketch is None or self._selector.may_match(sketch, self._address)
            self._verdicts[facts.page_id] = verdict
            if verdict:
                return

    async def _open_page(self, queue: Queue, page_id: int) -> None:
        assert self._pages is not None
        self._check()
        if not await self._pages.open_for(queue.id, page_id):
            await asyncio.sleep(_LOAD_AGAIN_S)  # it was done with meanwhile, or there is no room

    async def load(self, file_id: int, slab: int) -> None:
        """Bring a slab into memory, or wait until there may be memory for it."""
        self._check()
        if not await self._journal.load_slab(file_id, slab):
            await asyncio.sleep(_LOAD_AGAIN_S)  # it came by another way, or there is no memory now


def _check_is_there(queue: Queue) -> None:
    if queue.is_deleted:
        raise RemoteProtocolError(f"the queue {queue.name} was deleted meanwhile")
