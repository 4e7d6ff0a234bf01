"""The walk over a queue's ring and its closed pages: nothing is left out, whatever is absent."""

from __future__ import annotations

from vespiary_broker.engine.core import Look, MessageView
from vespiary_broker.engine.page_walk import PageWalk
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
        self.available = 1 + max(ring + [one for page in pages.values() for one in page])

    def extents(self, queue_id: int) -> list[ExtentFacts]:
        return [
            ExtentFacts(page_id, places[0], places[-1], len(places), False)
            for page_id, places in sorted(self.pages.items())
        ]

    def look(
        self, queue_id: int, at: int, count: int, *, special_only: bool, min_priority: int
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
        found = [one for one in places if one >= at]
        if found and page_id in self.absent:
            return Look([], found[0], (page_id, 0))
        after = found[count] if len(found) > count else places[-1] + 1
        return Look([_view(one) for one in found[:count]], after, None)


class KnownPages:
    """Pages whose footers are all in memory."""

    version = 1

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
