"""Looking at the messages of a queue without taking them.

Owns the walk over a queue: in turns of the event loop, so that messages are delivered meanwhile,
with bounds on what one page looks at and holds. Must never change anything. Called by the HTTP API;
owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from vespiary_broker.app.counting import Counted, count_messages
from vespiary_broker.app.queue_walk import Pages, QueueWalk
from vespiary_broker.app.wanted_messages import WantedMessages
from vespiary_broker.engine.core import MessageView
from vespiary_broker.engine.message_times import is_scheduled
from vespiary_broker.server.compiling_in_time import compile_in_time
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.wire.stomp.properties import parse_properties
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.management import ATTRIBUTE_BYTES_MAX
from vespiary_spec.settings import Permission

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.engine.selection.selector import Selector
    from vespiary_broker.store.journal import Journal

_BATCH: Final = 256
"""Messages looked at in one turn of the loop."""
_LOOKED_MAX: Final = 200_000
"""Messages looked at for one page: a filter that nothing matches must not keep its caller."""
_PAGE_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowsedMessage:
    """A message as it stands in its queue.

    Attributes:
        id: What consumers see as `message-id`.
        sequence: Its sequence in the queue.
        state: `ready`, `delivering` (a consumer holds it), `scheduled` (its time has not come) or
            `aside` (not to be given out now for another reason).
        deliveries: How often it was given out and came back.
        priority: 0 to 9.
        time_ms: When it came, in milliseconds since 1970.
        is_persistent: Whether it survives a restart.
        is_large: Whether its body is in a file of its own.
        body_bytes: Length of its body.
        headers: Its headers; of a repeated one the first.
        body: As much of the body as was asked for; nothing of a large one.
    """

    id: str
    sequence: int
    state: str
    deliveries: int
    priority: int
    time_ms: int
    is_persistent: bool
    is_large: bool
    body_bytes: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class BrowsedPage:
    """Some messages of a queue, oldest first.

    Attributes:
        items: The messages.
        next: Sequence behind which to go on; None at the end of the queue.
    """

    items: tuple[BrowsedMessage, ...]
    next: int | None


class _Size(NamedTuple):
    """How much a page holds.

    Attributes:
        limit: Most messages; None: any number.
        body_bytes: Bytes of each body.
        cut_bytes: Characters of each header.
    """

    limit: int | None
    body_bytes: int
    cut_bytes: int


class Browsing:
    """Looks at messages.

    Args:
        engine: The engine.
        journal: The message journal: it brings back what is not in memory.
        pages: Opens pages; None: there are none.
    """

    def __init__(self, engine: Engine, journal: Journal, pages: Pages | None = None) -> None:
        self._pages = pages
        self._engine = engine
        self._core = engine.core
        self._journal = journal

    async def page(
        self,
        name: str,
        *,
        after: int,
        limit: int | None,
        filter_text: str,
        body_bytes: int | None,
        states: frozenset[str] = frozenset(),
        user: str = "",
    ) -> BrowsedPage:
        """Return messages of a queue that are durable and not yet acknowledged.

        Args:
            name: Name of the queue.
            after: Begin behind this sequence.
            limit: Most messages to return, 1 or more; None: `management-browse-page-size`.
            filter_text: Selector that they match; empty for all.
            body_bytes: Bytes of each body to return, 0 or more; None:
                `management-message-attribute-size-limit`, which bounds headers in any case.
            states: Those alone that are in one of these states; none: all of them.
            user: Whose permissions decide what of a wildcard's queue is shown; empty: nobody's.

        Returns:
            The page; it may hold fewer than `limit`, and none, although more follow.

        Raises:
            InvalidSelector: The filter is none.
            RemoteProtocolError: There is no such queue, or it was deleted meanwhile.
            PageDamaged: Messages stand in a page that is.
        """
        await compile_in_time(filter_text, self._engine.turn_time)
        queue = self._queue(name)
        wanted = WantedMessages(queue, filter_text, self._engine.turn_time, is_shown=True)
        settings = self._engine.registry.settings_for(queue.address.name)
        cut_bytes = settings.management_message_attribute_size_limit
        assert cut_bytes is not None
        cut_bytes = cut_bytes if cut_bytes >= 0 else ATTRIBUTE_BYTES_MAX
        body_bytes = cut_bytes if body_bytes is None else body_bytes
        limit = settings.management_browse_page_size if limit is None else limit
        now_ms = self._engine.fates.clock_ms()
        guards = self._engine.registry.guards
        guard = guards.guard_for(user, queue, Permission.BROWSE) if user else None

        def takes(view: MessageView) -> bool:
            if guard is not None and not guard.wants(view):
                return False
            return not states or _state(view, now_ms) in states

        walk = self._walk(queue, wanted.selector)
        try:
            return await self._page(
                queue, walk, wanted, takes, after, _Size(limit, body_bytes, cut_bytes)
            )
        finally:
            walk.leave()

    async def _page(
        self,
        queue: Queue,
        walk: QueueWalk,
        wanted: WantedMessages,
        takes: Callable[[MessageView], bool],
        after: int,
        size: _Size,
    ) -> BrowsedPage:
        items: list[BrowsedMessage] = []
        looked, size_bytes, sequence = 0, 0, after + 1
        is_full = False

        def show(view: MessageView) -> bool:
            nonlocal size_bytes, is_full
            stored = walk.body(view.sequence) or b""
            message = self._message(queue, view, stored, size.body_bytes, size.cut_bytes)
            items.append(message)
            size_bytes += len(view.properties) + len(message.body)
            is_full = len(items) == size.limit or size_bytes >= _PAGE_BYTES_MAX
            return is_full

        while sequence < self._core.queue_statistics(queue.id).available:
            step = await walk.step(sequence, _BATCH, everything=True)
            seen = wanted.look(step.messages, show, takes)
            if is_full:
                return BrowsedPage(tuple(items), items[-1].sequence)
            looked += seen
            is_whole = seen == len(step.messages)
            sequence = step.next_sequence if is_whole else step.messages[seen].sequence
            if sequence >= self._core.queue_statistics(queue.id).available:
                break
            if looked >= _LOOKED_MAX:
                return BrowsedPage(tuple(items), sequence - 1)
            await asyncio.sleep(0)
            if queue.is_deleted:
                raise RemoteProtocolError(f"the queue {queue.name} was deleted meanwhile")
        return BrowsedPage(tuple(items), None)

    async def oldest_ms(self, queue: Queue) -> int:
        """Return when the oldest message of a queue came, in milliseconds since 1970; 0: none.

        Raises:
            RemoteProtocolError: The queue was deleted meanwhile.
            PageDamaged: The message is stored in a page that is.
        """
        walk, sequence = self._walk(queue, None), 0
        try:
            while sequence < self._core.queue_statistics(queue.id).available:
                step = await walk.step(sequence, 1, everything=True)
                if step.messages:
                    return step.messages[0].time_ms
                sequence = step.next_sequence
        finally:
            walk.leave()
        return 0

    async def count(self, name: str, *, after: int, filter_text: str) -> Counted:
        """Return how many messages match, in a bounded part of a queue.

        Args:
            name: Name of the queue.
            after: Begin behind this sequence.
            filter_text: Selector that they match; empty for all.

        Raises:
            InvalidSelector: The filter is none.
            RemoteProtocolError: There is no such queue, or it was deleted meanwhile.
            PageDamaged: Messages stand in a page that is.
        """
        await compile_in_time(filter_text, self._engine.turn_time)
        queue = self._queue(name)
        wanted = WantedMessages(queue, filter_text, self._engine.turn_time)
        walk = self._walk(queue, wanted.selector)
        try:
            return await count_messages(self._core, walk, queue, after, wanted)
        finally:
            walk.leave()

    def _walk(self, queue: Queue, selector: Selector | None) -> QueueWalk:
        return QueueWalk(
            self._core,
            self._journal,
            self._pages,
            queue,
            selector=selector,
        )

    def _queue(self, name: str) -> Queue:
        queue = self._engine.registry.queues.get(name)
        if queue is None:
            raise RemoteProtocolError(f"there is no queue {name}")
        return queue

    def _message(
        self, queue: Queue, view: MessageView, stored: bytes, body_bytes: int, cut_bytes: int
    ) -> BrowsedMessage:
        length = decode_large_reference(stored).size_bytes if view.is_large else view.body_length
        return BrowsedMessage(
            id=f"{queue.id}-{view.sequence}",
            sequence=view.sequence,
            state=_state(view, self._engine.fates.clock_ms()),
            deliveries=view.deliveries,
            priority=view.priority,
            time_ms=view.time_ms,
            is_persistent=view.is_journalled,
            is_large=view.is_large,
            body_bytes=length,
            headers={
                name: _cut(value, cut_bytes)
                for name, value in reversed(parse_properties(view.properties))
            },
            body=b"" if view.is_large else stored[:body_bytes],
        )


def _state(view: MessageView, now_ms: int) -> str:
    """Return what is with a message."""
    if view.is_held:
        return "delivering"
    if is_scheduled(view, now_ms):
        return "scheduled"
    return "aside" if view.is_aside else "ready"


def _cut(value: str, most: int) -> str:
    """Return a header's value, cut as the reference system does it."""
    left = len(value) - most
    return value if left <= 0 else f"{value[:most]}, + {left} more"
