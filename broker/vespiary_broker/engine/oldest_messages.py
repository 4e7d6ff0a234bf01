"""When the oldest message of a queue came, wherever it is stored.

Owns the times of those that are not in memory, which somebody else reads (`note`): a message that
stays the oldest is read once. Must never do I/O. Called by `app`; owner: the event loop.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.queues import Queue

_EXTENTS: Final = 64
_KNOWN_MAX: Final = 10_000
"""Queues whose oldest message was read; when there are more, all are forgotten."""

_Place = tuple[int, int, int]
"""Which message is the oldest: its sequence; the page of the first extent, and what is in it."""


class Oldest(NamedTuple):
    """What is known of the oldest message of a queue.

    Attributes:
        time_ms: When it came, in milliseconds since 1970; 0: there is none, or it is not known.
        is_unread: Whether it is stored where only a read can tell.
        damage: Why it cannot be read; empty: it can.
    """

    time_ms: int = 0
    is_unread: bool = False
    damage: str = ""


class OldestMessages:
    """The oldest messages of all queues.

    Args:
        core: The core.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._known: dict[int, tuple[_Place, Oldest]] = {}

    def find(self, queue: Queue) -> Oldest:
        """Return what is known of the oldest message that is live and durable."""
        found, place = self._look(queue)
        if found.is_unread:
            known = self._known.get(queue.id)
            if known is not None and known[0] == place:
                return known[1]
        return found

    def note(self, queue: Queue, time_ms: int) -> None:
        """Take note of when the oldest message of a queue came.

        Args:
            queue: The queue, in the turn of the loop in which the message was found.
            time_ms: In milliseconds since 1970.
        """
        self._note(queue, Oldest(time_ms))

    def note_damage(self, queue: Queue, damage: str) -> None:
        """Take note that the oldest message of a queue cannot be read, so that nobody tries again.

        Args:
            queue: The queue.
            damage: Why, and what to do.
        """
        self._note(queue, Oldest(damage=damage))

    def _note(self, queue: Queue, oldest: Oldest) -> None:
        found, place = self._look(queue)
        if found.is_unread:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[queue.id] = place, oldest

    def _look(self, queue: Queue) -> tuple[Oldest, _Place]:
        look = self._core.look(queue.id, 0, 1, everything=True)
        first = look.messages[0].sequence if look.messages else look.next_sequence
        page = self._first_page(queue)
        if page is not None and page[0] < first:
            return Oldest(is_unread=True), page
        if look.messages:
            return Oldest(look.messages[0].time_ms), (first, 0, 0)
        return Oldest(is_unread=look.absent is not None), (first, 0, 0)

    def _first_page(self, queue: Queue) -> _Place | None:
        """Return the first closed extent that holds messages of a queue; None: there is none."""
        if not self._core.queue_statistics(queue.id).paged:
            return None
        begin = 0
        while some := self._core.extents(queue.id, begin, _EXTENTS):
            for one in some:
                if one.places and not one.is_open:
                    return one.first, one.page_id, one.places
            begin += len(some)
        return None
