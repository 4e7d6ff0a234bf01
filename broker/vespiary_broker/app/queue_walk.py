"""The walk over the messages of a queue, wherever they are: in memory, in the journal, in pages.

Owns the bringing back of what is not in memory, and the opening of pages. Must never change a
message. Called by `message_acts`, `counting` and `browsing`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from vespiary_broker.engine.core import Core, MessageView
from vespiary_spec.errors import RemoteProtocolError

if TYPE_CHECKING:
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.store.journal import Journal

_LOAD_AGAIN_S: Final = 0.01


class Pages(Protocol):
    """Opens page files."""

    async def open_for(self, queue_id: int, page_id: int) -> bool:
        """Open a page for a queue; return whether its messages are in the queue's ring now."""


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
    """

    def __init__(
        self,
        core: Core,
        journal: Journal,
        pages: Pages | None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._core = core
        self._journal = journal
        self._pages = pages
        self._check = check

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
            if queue.is_deleted:
                raise RemoteProtocolError(f"the queue {queue.name} was deleted meanwhile")
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
        if self._pages is None or not self._core.queue_statistics(queue.id).paged:
            return 0, 0
        closed = (facts for facts in self._core.extents(queue.id) if facts.places)
        ahead = (facts for facts in closed if not facts.is_open and facts.last >= sequence)
        page = min(ahead, key=lambda facts: facts.first, default=None)
        return (0, 0) if page is None else (page.first, page.page_id)

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
