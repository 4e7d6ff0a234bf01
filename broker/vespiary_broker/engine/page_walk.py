"""A queue whose messages Python looks at, and of which some stand in pages that are closed.

Owns the one walk over both: over the queue's ring and over its closed pages, by ascending sequence,
page by page and never more of one than was asked for. Must never open a page: what nobody wants
stays on the disk, what somebody wants is picked, and bodies are read where they stand. Used by
`examined`, by `view_giver` (each consumer has its own) and by `app.queue_walk`; owner: the event
loop.

A page is passed over where it can hold nothing that is wanted, and where it is damaged: `pages`
(the store's) says so, and logs it. Of the extents of a queue, of which there may be thousands, a
step asks for those alone that begin at its place: nothing is listed, and nothing has to be kept.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol

from vespiary_broker.engine.core import (
    Core,
    ExtentFacts,
    Look,
    MessageView,
    RangeCopy,
)
from vespiary_broker.engine.lanes import Lane, Match

_EVERYTHING: Final = (None,)
_JUDGED_MAX: Final = 48
"""Pages whose sketches one look holds against selectors: some 50 µs each."""
_JUDGED_S: Final = 0.003
"""Seconds after which it holds no more of them, since selectors may be long."""
_PASSED_MAX: Final = 512
"""Pages that one look passes over: some 1 µs each."""
_EXTENTS_FIRST: Final = 4
_EXTENTS: Final = 64
"""Extents that are asked for in one call: a page at hand, then those behind it."""
_BODIES: Final = 256
_BODIES_BYTES: Final = 512 * 1024
"""Bodies that are read out of a page in one call."""
_LOOKED_AT_MAX: Final = 8
"""Pages that `leave` has let go of: footers are large."""
_GAPS_MIN: Final = 64


class ClosedPages(Protocol):
    """What is known of pages without opening them."""

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


class Together(NamedTuple):
    """Where all messages of a part of a queue stand.

    Attributes:
        extent: The closed extent; None: the ring.
        end: One above the part's last sequence.
        is_one_run: Of the ring: neighbouring sequences alone, as what is between may be in a page.
    """

    extent: ExtentFacts | None
    end: int
    is_one_run: bool = False


class PageWalk:
    """The walk over one queue.

    Attributes:
        pages: What is known of pages; None: all stands in the ring.
        clock_s: Tells how long a look takes.

    Args:
        core: The core.
        queue_id: The queue.
    """

    def __init__(self, core: Core, queue_id: int) -> None:
        self.pages: ClosedPages | None = None
        self.clock_s: Callable[[], float] = time.perf_counter
        self._core = core
        self._queue_id = queue_id
        self._paged = 0
        self._passed: list[tuple[ExtentFacts, bytes]] = []  # looked through, with their footers
        self._looked_at: dict[int, tuple[ExtentFacts, bytes]] = {}  # in part, by page
        self._gaps: dict[tuple[int, int], _Gap] = {}  # by page and least priority
        self._gaps_max = _GAPS_MIN
        self._seen: list[MessageView] = []  # of the last look
        self._page_of: dict[int, int] = {}
        self._bodies: dict[int, bytes] = {}

    def refresh(self, pages: ClosedPages | None, paged: int) -> None:
        """Take note of which pages there are.

        Args:
            pages: What is known of pages.
            paged: Places of the queue in closed ones.
        """
        self.pages = pages
        self._paged = paged
        if len(self._gaps) > self._gaps_max:
            there: set[int] = set()
            for page_id in {page_id for page_id, _ in self._gaps}:
                facts = self._core.extent(page_id, self._queue_id)
                if facts is not None and facts.places and not facts.is_open:
                    there.add(page_id)
            self._gaps = {key: gap for key, gap in self._gaps.items() if key[0] in there}
            self._gaps_max = max(_GAPS_MIN, 2 * len(self._gaps))

    def forget(self) -> None:
        """Drop what is known of gaps: messages may stand there again."""
        self._gaps.clear()

    @property
    def has_pages(self) -> bool:
        """Whether something stands in closed pages."""
        return self.pages is not None and self._paged > 0

    def _extents(self, at: int) -> Iterator[ExtentFacts]:
        """Yield the closed extents that end at or behind a sequence, by their first one.

        Nothing else may be done to them meanwhile.
        """
        core, queue_id = self._core, self._queue_id
        begin, most = core.extent_index(queue_id, at), _EXTENTS_FIRST
        while some := core.extents(queue_id, begin, most):
            for one in some:
                if one.places and not one.is_open and one.last >= at:
                    yield one
            begin, most = begin + len(some), _EXTENTS

    def _ahead(
        self, at: int, *, least: int, matches: Sequence[Match | None]
    ) -> Iterator[ExtentFacts]:
        """Yield the extents at or behind a sequence in which something may be wanted.

        What there is no time to judge may be, or to pass over: the next step begins there.
        """
        pages = self.pages
        if pages is None or not self._paged:
            return
        judged_max, until_s = pages.judged + _JUDGED_MAX, self.clock_s() + _JUDGED_S
        judged_before = pages.judged
        passed = 0
        for one in self._extents(at):
            passed += 1
            if passed > _PASSED_MAX and one.first > at:
                yield one
                return
            if pages.is_damaged(one.page_id):
                continue
            if least and pages.highest_priority(one.page_id) < least:
                continue
            is_over = pages.judged > judged_before and self.clock_s() >= until_s
            if (
                is_over
                or pages.judged >= judged_max
                or any(match is None or pages.may_match(one.page_id, match) for match in matches)
            ):
                yield one

    def look(
        self,
        at: int,
        count: int,
        *,
        least: int = 0,
        matches: Sequence[Match | None] = _EVERYTHING,
        everything: bool = False,
    ) -> Seen:
        """Look at messages from a sequence on.

        Args:
            at: The sequence.
            count: How many, at most, of the ring and of each page.
            least: Only those of this priority or a higher one; 0 for all.
            matches: What is wanted, by anybody; None is all. Others may be among what is seen.
            everything: Of the ring also what consumers hold, and what is set aside.
        """
        self._let_go()
        judged = self.pages.judged if self.pages is not None else 0
        ring = partial(
            self._core.look, special_only=least > 0, min_priority=least, everything=everything
        )
        seen = self._look(ring, at, count, least=least, matches=matches)
        self._seen = seen.messages
        self._page_of = seen.page_of
        self._bodies.clear()
        return seen if self.pages is None else seen._replace(judged=self.pages.judged - judged)

    def _look(
        self,
        look: Callable[[int, int, int], Look],
        at: int,
        count: int,
        *,
        least: int,
        matches: Sequence[Match | None],
    ) -> Seen:
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
        ring = self._look_at_ring(look, at, count, end)
        if ring is not None:
            if end is None:
                return Seen(ring.messages, {}, ring.next_sequence, ring.absent)
            end = min(end, ring.next_sequence)
            parts.append((ring, 0))
        assert end is not None, "the ring was looked at, or a page bounds the look"
        self._note_gaps(parts, end, least=least)
        absent = [one.absent for one, _ in parts if one.absent and one.next_sequence == end]
        if len(parts) == 1:
            ((found, page_id),) = parts
            views = found.messages
            if views and views[-1].sequence >= end:
                views = [view for view in views if view.sequence < end]
            page_of = dict.fromkeys([view.sequence for view in views], page_id) if page_id else {}
            return Seen(views, page_of, end, absent[0] if absent else None)
        merged = [
            (view, page_id)
            for found, page_id in parts
            for view in found.messages
            if view.sequence < end
        ]
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

    def _begin_of(self, one: ExtentFacts, at: int, *, least: int) -> int:
        """Return where the next message of a closed extent stands, or may stand."""
        gap = self._gaps.get((one.page_id, least))
        return gap.end if gap is not None and gap.begin <= at < gap.end else max(one.first, at)

    def _look_at_ring(
        self, look: Callable[[int, int, int], Look], at: int, count: int, end: int | None
    ) -> Look | None:
        """Look at the ring; None if it has nothing in front of `end`, where there is one."""
        if end is not None:
            first = look(self._queue_id, at, 1)
            begin = first.messages[0].sequence if first.messages else first.next_sequence
            if begin >= end:
                return None
        return look(self._queue_id, at, count)

    def _look_at(self, one: ExtentFacts, at: int, count: int, *, least: int) -> Look | None:
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
        self._note_place(one, footer, found.next_sequence, has_messages=bool(found.messages))
        return found

    def _note_place(
        self, one: ExtentFacts, footer: bytes, next_sequence: int, *, has_messages: bool
    ) -> None:
        """Remember how far a page was looked through, so that `leave` can let go of it."""
        if next_sequence > one.last:
            self._looked_at.pop(one.page_id, None)
            if has_messages:
                self._passed.append((one, footer))
        elif len(self._looked_at) < _LOOKED_AT_MAX:
            self._looked_at[one.page_id] = (one, footer)

    def _let_go(self) -> None:
        """Have the slabs dropped of pages that were looked through: what was picked has its own."""
        passed, self._passed = self._passed, []
        for one, footer in passed:
            with suppress(ValueError):  # the page may be gone
                self._core.page_look(one.page_id, self._queue_id, footer, one.last + 1, 1)

    def leave(self) -> None:
        """End the walk wherever it is: slabs of pages are not needed for it any more."""
        self._passed += self._looked_at.values()
        self._looked_at.clear()
        self._let_go()

    def _note(self, one: ExtentFacts, error: ValueError) -> None:
        """Find out why an extent can't be looked at: it went, or its page is damaged."""
        assert self.pages is not None
        facts = self._core.extent(one.page_id, self._queue_id)
        if facts is not None and facts.places and not facts.is_open:
            self.pages.note_damaged(one.page_id, str(error))

    # --- records as they stand --------------------------------------------------------------------

    def together(self, at: int, end: int) -> Together | None:
        """Return where the messages from a sequence on stand in one place; None: pages interleave.

        Args:
            at: The sequence.
            end: One above the last sequence that is wanted; it is readable.
        """
        if self.pages is None or not self._paged:
            return Together(None, end)
        first, second = [*islice(self._extents(at), 2), None, None][:2]
        if first is None or first.first > at:
            return Together(None, end if first is None else min(end, first.first))
        end = min(end, first.last + 1)
        if second is not None:
            end = min(end, second.first)
        if end <= at:
            return None
        in_ring = self._core.copy_range(self._queue_id, at, end, 0).next_sequence
        if in_ring > at:
            return Together(first, min(end, in_ring))
        return Together(None, end, is_one_run=True)

    def copy(
        self, facts: ExtentFacts, at: int, end: int, max_bytes: int, *, is_first_whole: bool
    ) -> RangeCopy | None:
        """Copy records of a closed extent (`CoreRanges.page_copy`).

        Args:
            facts: The extent, as `together` named it in this turn of the event loop.
            at: Where to begin.
            end: One above the last sequence that is wanted.
            max_bytes: Of records.
            is_first_whole: The first one comes even if it is larger.

        Returns:
            None: its footer is being read.
        """
        assert self.pages is not None
        self._let_go()
        footer = self.pages.footer(self._queue_id, facts.page_id)
        if footer is None:
            return None
        try:
            found = self._core.page_copy(
                facts.page_id, self._queue_id, footer, at, end, max_bytes,
                is_first_whole=is_first_whole,
            )  # fmt: skip
        except ValueError as error:
            self._note(facts, error)
            return RangeCopy(b"", 0, [], at, False, None)
        self._note_place(facts, footer, found.next_sequence, has_messages=found.messages > 0)
        return found

    # --- what the last look saw, in the same turn of the event loop -------------------------------

    def is_paged(self, sequence: int) -> bool:
        """Whether a message that the last look saw stands in a closed page."""
        return sequence in self._page_of

    def body(self, sequence: int) -> bytes | None:
        """Return the stored body of a message that the last look saw, wherever it stands.

        Args:
            sequence: Its sequence.

        Returns:
            None: it went, or its slab is not in memory.
        """
        page_id = self._page_of.get(sequence)
        if page_id is None:
            return self._core.body(self._queue_id, sequence)
        if sequence not in self._bodies:
            begin = bisect_left(self._seen, sequence, key=lambda view: view.sequence)
            some = [
                view.sequence
                for view in self._seen[begin:]
                if self._page_of.get(view.sequence) == page_id
            ][:_BODIES]
            footer = self._footer(page_id)
            bodies = self._core.page_bodies(page_id, self._queue_id, footer, some, _BODIES_BYTES)
            self._bodies = dict(zip(some, bodies, strict=False))
        return self._bodies.get(sequence)

    def take_in(self, sequences: Iterable[int]) -> None:
        """Have messages in the ring that the last look saw; those that stand in pages come out.

        Args:
            sequences: Theirs, ascending.
        """
        by_page: dict[int, list[int]] = {}
        for sequence in sequences:
            page_id = self._page_of.pop(sequence, None)
            if page_id is not None:
                by_page.setdefault(page_id, []).append(sequence)
        for page_id, some in by_page.items():
            self._core.page_pick(page_id, self._queue_id, self._footer(page_id), some)

    def _footer(self, page_id: int) -> bytes:
        assert self.pages is not None
        footer = self.pages.footer(self._queue_id, page_id)
        assert footer is not None, "it was seen in this turn"
        return footer

    def in_ring(
        self, judged: list[tuple[MessageView, list[Lane]]], page_of: dict[int, int]
    ) -> list[tuple[MessageView, list[Lane]]]:
        """Have those of some messages in the ring that are wanted; return all that are there now.

        Args:
            judged: What was seen, ascending, each with who wants it; what stands in the ring is
                returned in any case.
            page_of: The page of those that stand in one.
        """
        if not page_of:
            return judged
        kept = [one for one in judged if one[1] or one[0].sequence not in page_of]
        self.take_in(message.sequence for message, _ in kept)
        return kept
