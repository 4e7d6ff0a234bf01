"""The walk over a queue's ring and its closed pages: nothing is left out, whatever is absent."""

from __future__ import annotations

from vespiary_broker.engine.core import Look, MessageView
from vespiary_broker.engine.lanes import Match
from vespiary_broker.engine.page_walk import PageWalk
from vespiary_codec.journal.page_sketch import PageSketch
from vespiary_native.values_pages import ExtentFacts

FOOTER = b"footer"


def _view(sequence: int) -> MessageView:
    return MessageView(
        sequence, False, False, False, 0, 4, 1, 0, True, False, False, False, 1, b""
    )  # fmt: skip


class SteppedCore:
    """A core with a ring and closed pages, of which slabs are absent until they are loaded."""

    def __init__(self, ring: list[int], pages: dict[int, list[int]], absent: set[int]) -> None:
        self.ring = ring
        self.pages = pages
        self.absent = absent
        self.raised: set[int] = set()
        self.listed = 0
        self.available = 1 + max(ring + [one for page in pages.values() for one in page])

    def extents(self, queue_id: int, begin: int, most: int) -> list[ExtentFacts]:
        facts = [
            ExtentFacts(page_id, places[0], places[-1], len(places), False)
            for page_id, places in sorted(self.pages.items(), key=lambda item: item[1][0])
        ][begin : begin + most]
        self.listed += len(facts)
        return facts

    def extent_index(self, queue_id: int, sequence: int) -> int:
        lasts = [places[-1] for places in sorted(self.pages.values())]
        return next((i for i, last in enumerate(lasts) if last >= sequence), len(lasts))

    def look(
        self,
        queue_id: int,
        at: int,
        count: int,
        *,
        special_only: bool,
        min_priority: int,
        everything: bool,
    ) -> Look:
        found = [one for one in self.ring if one >= at]
        after = found[count] if len(found) > count else self.available
        return Look([_view(one) for one in found[:count]], after, None)

    def page_look(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        at: int,
        count: int,
        *,
        min_priority: int = 0,
    ) -> Look:
        places = self.pages[page_id]
        found = [one for one in places if one >= at and (not min_priority or one in self.raised)]
        if found and page_id in self.absent:
            return Look([], found[0], (page_id, 0))
        after = found[count] if len(found) > count else places[-1] + 1
        return Look([_view(one) for one in found[:count]], after, None)


class KnownPages:
    """Pages whose footers are all in memory."""

    def __init__(self, damaged: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.damaged = damaged

    def footer(self, queue_id: int, page_id: int) -> bytes | None:
        return FOOTER

    def is_damaged(self, page_id: int) -> bool:
        return page_id in self.damaged

    def note_damaged(self, page_id: int, reason: str) -> None:
        raise AssertionError(reason)

    def highest_priority(self, page_id: int) -> int:
        return 9

    judged = 0

    def may_match(self, page_id: int, match: Match) -> bool:
        return True


def _walked(core: SteppedCore, pages: KnownPages, count: int) -> list[int]:
    walk = PageWalk(core, 1)  # type: ignore[arg-type]
    walk.refresh(pages, sum(map(len, core.pages.values())))
    at, seen = 0, []
    while at < core.available:
        step = walk.look(at, count)
        seen += [view.sequence for view in step.messages]
        assert step.absent is not None or step.next_sequence > at
        if step.absent is not None:
            core.absent.remove(step.absent[0])
        at = step.next_sequence
    return seen


def test_it_meets_everything_once_and_in_order() -> None:
    for count in (1, 2, 100):
        core = SteppedCore([3, 4, 12], {7: [0, 1, 5], 8: [2, 6, 7], 9: [9, 10, 11]}, set())
        assert _walked(core, KnownPages(), count) == [*range(8), *range(9, 13)]


def test_a_page_whose_first_slab_is_absent_is_waited_for_even_at_the_very_first_message() -> None:
    core = SteppedCore([3, 4, 12], {7: [0, 1, 5], 8: [2, 6, 7], 9: [9, 10, 11]}, {7, 8, 9})
    assert _walked(core, KnownPages(), 2) == [*range(8), *range(9, 13)]


def test_a_damaged_page_is_passed_over() -> None:
    core = SteppedCore([3, 4, 12], {7: [0, 1, 5], 8: [2, 6, 7], 9: [9, 10, 11]}, {8})
    assert _walked(core, KnownPages({8}), 2) == [0, 1, 3, 4, 5, 9, 10, 11, 12]


class OneFooterAtATime(KnownPages):
    """Pages of which one footer is in memory: that which was asked for last."""

    def __init__(self) -> None:
        super().__init__()
        self.there = self.asked = 0
        self.reads = 0

    def footer(self, queue_id: int, page_id: int) -> bytes | None:
        if page_id == self.there:
            return FOOTER
        self.asked = page_id
        return None

    def read(self) -> None:
        self.there = self.asked
        self.reads += 1


def _walked_with_reads(core: SteppedCore, pages: OneFooterAtATime, *, at: int = 0) -> list[int]:
    walk = PageWalk(core, 1)  # type: ignore[arg-type]
    walk.refresh(pages, sum(map(len, core.pages.values())))
    seen = []
    while at < core.available:
        step = walk.look(at, 100)
        if step.is_waiting:
            pages.read()
            assert pages.reads < 100, "it comes to no end"
        seen += [view.sequence for view in step.messages]
        at = step.next_sequence
    return seen


def test_pages_that_interleave_need_not_have_all_their_footers_in_memory_at_once() -> None:
    every_third = {7: [0, 3, 6], 8: [1, 4, 7], 9: [2, 5, 8]}
    assert _walked_with_reads(SteppedCore([9], every_third, set()), OneFooterAtATime()) == [
        *range(10)
    ]
    assert _walked_with_reads(SteppedCore([9], every_third, set()), OneFooterAtATime(), at=5) == [
        *range(5, 10)
    ]


def test_a_page_that_goes_on_far_behind_is_read_again_only_there() -> None:
    # One early message in each, and many behind: as pages are when the front shrinks.
    pages = {7: [0, *range(100, 200)], 8: [1, *range(200, 300)], 9: [2, *range(300, 400)]}
    known = OneFooterAtATime()
    assert _walked_with_reads(SteppedCore([3], pages, set()), known) == [
        *range(4),
        *range(100, 400),
    ]
    assert known.reads == 6


class Wanted:
    """A selector that some pages may hold something for."""

    def __init__(self, *page_ids: int) -> None:
        self.text = str(page_ids)
        self.page_ids = page_ids

    def wants(self, message: MessageView) -> bool:
        return True

    def may_match(self, sketch: PageSketch) -> bool:
        raise AssertionError("the pages are asked")


class JudgedPages(OneFooterAtATime):
    """Pages that are held against selectors."""

    def __init__(self) -> None:
        super().__init__()
        self.judged = 0
        self.verdicts: dict[tuple[int, str], bool] = {}

    def may_match(self, page_id: int, match: Match) -> bool:
        assert isinstance(match, Wanted)
        key = (page_id, match.text)
        if key not in self.verdicts:
            self.judged += 1
            self.verdicts[key] = page_id in match.page_ids
        return self.verdicts[key]


def _walked_for(
    core: SteppedCore, pages: JudgedPages, *matches: Wanted | None
) -> tuple[list[int], list[int]]:
    """Return what was seen, and how many pages each step judged."""
    walk = PageWalk(core, 1)  # type: ignore[arg-type]
    walk.refresh(pages, sum(map(len, core.pages.values())))
    at, seen, judged = 0, [], []
    while at < core.available:
        step = walk.look(at, 100, matches=matches)
        judged.append(step.judged)
        if step.is_waiting:
            pages.read()
        seen += [view.sequence for view in step.messages]
        assert step.is_waiting or step.next_sequence > at
        at = step.next_sequence
    return seen, judged


def test_pages_in_which_nothing_is_wanted_are_not_read() -> None:
    def core() -> SteppedCore:
        return SteppedCore([3, 12], {7: [0, 1, 5], 8: [2, 6, 7], 9: [9, 10, 11]}, set())

    pages = JudgedPages()
    assert _walked_for(core(), pages, Wanted(8))[0] == [2, 3, 6, 7, 12]
    assert pages.reads == 1
    pages = JudgedPages()
    assert _walked_for(core(), pages, Wanted())[0] == [3, 12]
    assert pages.reads == 0
    pages = JudgedPages()
    assert _walked_for(core(), pages, Wanted(7), Wanted(9))[0] == [0, 1, 3, 5, *range(9, 13)]
    pages = JudgedPages()
    everything = [*range(4), *range(5, 8), *range(9, 13)]
    assert _walked_for(core(), pages, Wanted(), None)[0] == everything


def test_a_step_judges_so_many_pages_and_the_next_ones_go_on_there() -> None:
    count = 1000
    pages_of = {number: [10 * number, 10 * number + 1] for number in range(1, count)}
    core = SteppedCore([10 * count], pages_of, set())
    pages = JudgedPages()
    seen, judged = _walked_for(core, pages, Wanted(700))
    assert seen == [7000, 7001, 10 * count]
    assert pages.judged == count - 1
    assert pages.reads == 1
    assert max(judged) <= 48
    seen, judged = _walked_for(core, pages, Wanted(700))
    assert seen == [7000, 7001, 10 * count]
    assert set(judged) == {0}


def _seen(walk: PageWalk, at: int, *, least: int = 0) -> list[int]:
    return [view.sequence for view in walk.look(at, 9, least=least).messages]


def test_where_a_page_has_nothing_is_known_for_each_priority_and_until_it_is_forgotten() -> None:
    core = SteppedCore([], {7: [2, 30, 60], 8: [70]}, set())
    core.raised = {60}
    pages = KnownPages()
    walk = PageWalk(core, 1)  # type: ignore[arg-type]
    walk.refresh(pages, 4)
    assert _seen(walk, 2, least=9) == [60]
    assert _seen(walk, 2) == [2, 30, 60]
    assert _seen(walk, 3) == [30, 60]
    core.pages[7] = [2, 20, 60]  # a branch held it until now
    walk.refresh(pages, 4)
    walk.forget()
    assert _seen(walk, 3) == [20, 60]
