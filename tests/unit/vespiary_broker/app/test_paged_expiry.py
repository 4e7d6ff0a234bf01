"""When pages are looked through for what has expired: not before their sketches say so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vespiary_broker.app.paged_expiry import PagedExpiry
from vespiary_broker.engine.message_times import MessageTimes, stamp
from vespiary_codec.journal.page_sketch import NO_EXPIRY_MS, PageSketch
from vespiary_native.values_pages import ExtentFacts
from vespiary_testkit import product_loop


def sketch(first_expiry_ms: int) -> PageSketch:
    return PageSketch(
        is_complete=True,
        priorities=(4, 4),
        flags_of_all=0,
        flags_of_any=0,
        times_ms=(1, 1),
        sizes_bytes=(1, 1),
        first_expiry_ms=first_expiry_ms,
        names={},
    )


class SketchedPager:
    """Pages with sketches; notes whose index is read, and has none to give."""

    def __init__(self, sketches: dict[int, PageSketch | None]) -> None:
        self.sketches = sketches
        self.read: list[int] = []
        self.has_pages = bool(sketches)

    async def sketch(self, page_id: int) -> PageSketch | None:
        return self.sketches[page_id]

    async def footer(self, page_id: int) -> bytes:
        self.read.append(page_id)
        raise KeyError(page_id)


class Expiring:
    """A queue with closed pages, and a clock."""

    def __init__(self, sketches: dict[int, PageSketch | None], *, are_old: bool) -> None:
        self.now_ms = 0
        self.listed: list[int] = []
        self.pager = SketchedPager(sketches)
        self.fates = SimpleNamespace(clock_ms=lambda: self.now_ms, has_specials=False)
        queue = SimpleNamespace(id=1, is_deleted=False)
        self._pages = [SimpleNamespace(page_id=page_id) for page_id in sketches]
        core = SimpleNamespace(
            pages=lambda: self._pages,
            extents=self.extents,
            extent_index=self.extent_index,
        )
        engine: Any = SimpleNamespace(
            core=core, fates=self.fates, registry=SimpleNamespace(queues_by_id={1: queue})
        )
        there = self._pages
        self._pages = there if are_old else []
        journal: Any = None
        pager: Any = self.pager
        self.expiry = PagedExpiry(engine, journal, pager, lambda: None, period_s=1)
        self._pages = there

    def extents(self, _: int, begin: int, most: int) -> list[ExtentFacts]:
        spans = enumerate(self.pager.sketches)
        every = [ExtentFacts(page_id, 1 + at, 9 + at, 9, False) for at, page_id in spans]
        self.listed.append(len(every[begin : begin + most]))
        return every[begin : begin + most]

    def extent_index(self, _: int, sequence: int) -> int:
        return max(sequence - 9, 0)

    def read_at(self, now_ms: int) -> list[int]:
        """Scan at a time; return the pages that were read."""
        self.now_ms = now_ms
        self.pager.read.clear()
        product_loop.run(self.expiry.scan())
        return list(self.pager.read)


def test_a_page_is_read_when_its_first_message_may_have_expired() -> None:
    for are_old in (False, True):
        rig = Expiring({7: sketch(1000), 8: sketch(NO_EXPIRY_MS), 9: sketch(50)}, are_old=are_old)
        rig.fates.has_specials = True
        assert rig.read_at(49) == []
        assert rig.read_at(50) == [9]
        assert rig.read_at(999) == [9]
        assert rig.read_at(1000) == [7, 9]


def test_a_page_without_a_sketch_is_read() -> None:
    rig = Expiring({7: None, 8: sketch(NO_EXPIRY_MS)}, are_old=True)
    assert rig.read_at(1) == [7]
    rig = Expiring({7: None, 8: sketch(0)}, are_old=False)
    assert rig.read_at(1) == []
    rig.fates.has_specials = True
    assert rig.read_at(1) == [7, 8]


def test_thousands_of_pages_are_asked_about_some_at_a_time() -> None:
    first = {7: sketch(1000), 4000: sketch(50)}
    rig = Expiring(first | dict.fromkeys(range(8, 3000), sketch(NO_EXPIRY_MS)), are_old=False)
    rig.fates.has_specials = True
    assert rig.read_at(1000) == [7, 4000]
    assert max(rig.listed) <= 64
    assert sum(rig.listed) < 2 * 3000, "none again and again, though they overlap"


def test_what_must_still_be_delivered_stays_in_its_page() -> None:
    """`Fates.is_owed`: an MQTT client was sent it, and has not acknowledged it."""
    rig = Expiring({7: sketch(50)}, are_old=True)
    times = {1: 50, 2: 50, 3: 0, 4: 2000}
    views = [
        SimpleNamespace(
            sequence=sequence, is_special=True, properties=stamp(b"a:b\n", MessageTimes(expires_ms))
        )
        for sequence, expires_ms in times.items()
    ]
    left: list[int] = []
    engine: Any = rig.expiry._engine
    engine.core.page_look = lambda *_: SimpleNamespace(messages=views, next_sequence=5, absent=None)
    engine.core.page_pick = lambda *_: None
    engine.core.set_aside = lambda *_: True
    rig.fates.is_owed = lambda _, view: view.sequence == 2
    rig.fates.mover = SimpleNamespace(
        pending_for=lambda *_: 0, add=lambda _, sequence, __: left.append(sequence)
    )
    rig.now_ms = 1000
    queue = engine.registry.queues_by_id[1]
    next_ms = product_loop.run(rig.expiry._walk(queue, 7, b"", 1, 4))
    assert left == [1]
    assert next_ms <= rig.now_ms, "the next scan asks again"
