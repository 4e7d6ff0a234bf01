"""A queue whose messages Python looks at, and of which some stand in pages that are closed.

Owns the one walk over both: over the queue's ring and over its closed pages, by ascending sequence,
page by page and never more of one than was asked for. Must never open a page: what nobody wants
stays on the disk, what somebody wants is picked. Used by `examined`; owner: the event loop.

A page is passed over where it can hold nothing that is wanted, and where it is damaged: `pages`
(the store's) says so, and logs it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from vespiary_broker.engine.core import Core, Look, MessageView
from vespiary_broker.engine.lanes import Lane, Match

_EVERYTHING: Final = (None,)
_JUDGED_MAX: Final = 48
"""Pages whose sketches one look holds against selectors: some 50 µs each."""


class ClosedPages(Protocol):
    """What is known of pages without opening them."""

    @property
    def version(self) -> int:
        """A number that changes with each page that comes or goes."""

    def footer(self, queue_id: int, page_id: int) -> bytes | None:
        """Return the footer of a page; None: it is being read, and the queue is served then."""

    def is_damaged(self, page_id: int) -> bool:
        """Whether a page can't be read."""

    def note_damaged(self, page_id: int, reason: str) -> None:
        """Take note that a page is not what the journal says of it."""

    def highest_priority(self, page_id: int) -> int:
        """Return what no message of a page is above: 9, or what is known of it."""

    @property
    def judged(self) -> int:
        """How many sketches were held against selectors so far."""

    def may_match(self, page_id: int, match: Match) -> bool:
        """Whether a message of a page may match; what it came to once is remembered."""


class _Closed(NamedTuple):
    """A closed extent."""

    first: int
    last: int
    page_id: int


class _Gap(NamedTuple):
    """Where a closed extent has nothing that was asked for: from `begin` on, up to `end`."""

    begin: int
    end: int


class Seen(NamedTuple):
    """What one step of the walk saw.

    Attributes:
        messages: What is there, ascending.
        page_of: The page of those of them that stand in one, by sequence.
        next_sequence: Go on here.
        absent: Place of the slab that must be loaded to go on; None for none.
        is_waiting: The next step needs a footer that is being read.
        judged: Sketches that were held against selectors.
    """

    messages: list[MessageView]
    page_of: dict[int, int]
    next_sequence: int
    absent: tuple[int, int] | None
    is_waiting: bool = False
    judged: int = 0


class PageWalk:
    """The walk over one queue.

    Attributes:
        pages: What is known of pages; None: all stands in the ring.

    Args:
        core: The core.
        queue_id: The queue.
    """

    def __init__(self, core: Core, queue_id: int) -> None:
        self.pages: ClosedPages | None = None
        self._core = core
        self._queue_id = queue_id
        self._known: tuple[int, int] | None = None  # version and places that `_closed` is of
        self._closed: list[_Closed] = []
        self._reach: list[int] = []  # the highest last sequence of these extents and those before
        self._passed: list[tuple[_Closed, bytes]] = []  # looked through, with their footers
        self._gaps: dict[tuple[int, int], _Gap] = {}  # by page and least priority

    def refresh(self, pages: ClosedPages | None, paged: int) -> None:
        """Take note of which pages there are.

        Args:
            pages: What is known of pages.
            paged: Places of the queue in closed ones.
        """
        self.pages = pages
        known = (pages.version if pages is not None else 0, paged)
        if known == self._known:
            return
        self._known = known
        extents = self._core.extents(self._queue_id) if pages is not None and paged else []
        self._closed = [
            _Closed(one.first, one.last, one.page_id)
            for one in extents
            if one.places and not one.is_open
        ]
        self._reach = []
        highest = 0
        for one in self._closed:
            highest = max(highest, one.last)
            self._reach.append(highest)
        if self._gaps:
            closed = {one.page_id for one in self._closed}
            self._gaps = {key: gap for key, gap in self._gaps.items() if key[0] in closed}

    def forget(self) -> None:
        """Drop what is known of gaps: messages may stand there again."""
        self._gaps.clear()

    @property
    def has_pages(self) -> bool:
        """Whether something stands in closed pages."""
        return bool(self._closed)

    def _ahead(self, at: int, *, least: int, matches: Sequence[Match | None]) -> Iterator[_Closed]:
        """Yield the extents at or behind a sequence in which something may be wanted.

        What there is no time to judge may be: the next step begins there.
        """
        pages = self.pages
        if pages is None:
            return
        judged_max = pages.judged + _JUDGED_MAX
        for index in range(bisect_left(self._reach, at), len(self._closed)):
            one = self._closed[index]
            if one.last < at or pages.is_damaged(one.page_id):
                continue
            if least and pages.highest_priority(one.page_id) < least:
                continue
            if pages.judged >= judged_max or any(
                match is None or pages.may_match(one.page_id, match) for match in matches
            ):
                yield one

    def look(
        self,
        at: int,
        count: int,
        *,
        least: int = 0,
        matches: Sequence[Match | None] = _EVERYTHING,
    ) -> Seen:
        """Look at messages from a sequence on.

        Args:
            at: The sequence.
            count: How many, at most, of the ring and of each page.
            least: Only those of this priority or a higher one; 0 for all.
            matches: What is wanted, by anybody; None is all. Others may be among what is seen.
        """
        judged = self.pages.judged if self.pages is not None else 0
        seen = self._look(at, count, least=least, matches=matches)
        return seen if self.pages is None else seen._replace(judged=self.pages.judged - judged)

    def _look(self, at: int, count: int, *, least: int, matches: Sequence[Match | None]) -> Seen:
        self._let_go()
        end: int | None = None
        parts = []
        for one in self._ahead(at, least=least, matches=matches):
            begin = self._begin_of(one, at, least=least)
            if begin > at:
                end = begin if end is None else min(end, begin)
                if begin == one.first:
                    break  # those behind it begin there or later
                continue
            found = self._look_at(one, at, count, least=least)
            if found is None:
                return Seen([], {}, at, None, is_waiting=True)
            end = found.next_sequence if end is None else min(end, found.next_sequence)
            parts.append((found, one.page_id))
        ring = self._look_at_ring(at, count, end, least=least)
        if ring is not None:
            if end is None:
                return Seen(ring.messages, {}, ring.next_sequence, ring.absent)
            end = min(end, ring.next_sequence)
            parts.append((ring, 0))
        assert end is not None, "the ring was looked at, or a page bounds the look"
        self._note_gaps(parts, end, least=least)
        absent = [one.absent for one, _ in parts if one.absent and one.next_sequence == end]
        merged = [
            (view, page_id)
            for found, page_id in parts
            for view in found.messages
            if view.sequence < end
        ]
        if len(parts) > 1:
            merged.sort(key=lambda item: item[0].sequence)
        page_of = {view.sequence: page_id for view, page_id in merged if page_id}
        return Seen([view for view, _ in merged], page_of, end, absent[0] if absent else None)

    def _note_gaps(self, parts: list[tuple[Look, int]], end: int, *, least: int) -> None:
        """Remember where the next message of each page stands from the end of a step on.

        Pages may interleave: without this, all of their footers would be needed at every step.
        """
        for found, page_id in parts:
            views = found.messages
            index = bisect_left(views, end, key=lambda view: view.sequence)
            then = views[index].sequence if index < len(views) else found.next_sequence
            if page_id and then > end:
                self._gaps[page_id, least] = _Gap(end, then)

    def _begin_of(self, one: _Closed, at: int, *, least: int) -> int:
        """Return where the next message of a closed extent stands, or may stand."""
        gap = self._gaps.get((one.page_id, least))
        return gap.end if gap is not None and gap.begin <= at < gap.end else max(one.first, at)

    def _look_at_ring(self, at: int, count: int, end: int | None, *, least: int) -> Look | None:
        """Look at the ring; None if it has nothing in front of `end`, where there is one."""
        core, queue_id = self._core, self._queue_id
        if end is not None:
            first = core.look(queue_id, at, 1, special_only=least > 0, min_priority=least)
            begin = first.messages[0].sequence if first.messages else first.next_sequence
            if begin >= end:
                return None
        return core.look(queue_id, at, count, special_only=least > 0, min_priority=least)

    def _look_at(self, one: _Closed, at: int, count: int, *, least: int) -> Look | None:
        """Look at a closed extent; None: its footer is being read."""
        assert self.pages is not None
        footer = self.pages.footer(self._queue_id, one.page_id)
        if footer is None:
            return None
        try:
            found = self._core.page_look(
                one.page_id, self._queue_id, footer, at, count, min_priority=least
            )
        except ValueError as error:
            self._note(one, error)
            return Look([], one.last + 1, None)
        begin = found.messages[0].sequence if found.messages else found.next_sequence
        self._gaps[one.page_id, least] = _Gap(at, begin)
        if found.next_sequence > one.last and found.messages:
            self._passed.append((one, footer))
        return found

    def _let_go(self) -> None:
        """Have the slabs dropped of pages that were looked through: what was picked has its own."""
        passed, self._passed = self._passed, []
        for one, footer in passed:
            with suppress(ValueError):  # the page may be gone
                self._core.page_look(one.page_id, self._queue_id, footer, one.last + 1, 1)

    def _note(self, one: _Closed, error: ValueError) -> None:
        """Find out why an extent can't be looked at: it went, or its page is damaged."""
        self._known = None
        assert self.pages is not None
        for facts in self._core.extents(self._queue_id):
            if facts.page_id == one.page_id and facts.places and not facts.is_open:
                self.pages.note_damaged(one.page_id, str(error))

    def in_ring(
        self, found: list[MessageView], page_of: dict[int, int], lanes: list[Lane]
    ) -> list[MessageView]:
        """Have those of some messages in the ring that are wanted; return all that are there now.

        Args:
            found: What was seen, ascending.
            page_of: The page of those that stand in one.
            lanes: Who wants messages; what stands in the ring is returned in any case.
        """
        if not page_of:
            return found
        kept = [
            message
            for message in found
            if message.sequence not in page_of
            or any(lane.match is None or lane.match.wants(message) for lane in lanes)
        ]
        by_page: dict[int, list[int]] = {}
        for message in kept:
            page_id = page_of.get(message.sequence)
            if page_id is not None:
                by_page.setdefault(page_id, []).append(message.sequence)
        for page_id, sequences in by_page.items():
            assert self.pages is not None
            footer = self.pages.footer(self._queue_id, page_id)
            assert footer is not None, "it was seen in this turn"
            picked = self._core.page_pick(page_id, self._queue_id, footer, sequences)
            if self._known is not None:
                self._known = (self._known[0], self._known[1] - picked)
        return kept
