"""Sketches in memory: those of the latest pages, within a bound."""

from __future__ import annotations

from vespiary_broker.store.paging.sketches import PageSketches
from vespiary_native.page_sketch import page_sketch
from vespiary_testkit.page_builder import build_page, messages, whole_parts_of

SKETCH = page_sketch(whole_parts_of(build_page(messages(3))))


def test_what_is_noted_is_there_until_it_is_forgotten() -> None:
    sketches = PageSketches()
    sketches.note(7, SKETCH)
    sketches.note(8, b"")
    found = sketches.get(7)
    assert found is not None
    assert found.names[b"destination"].only == b"orders"
    assert (sketches.knows(7), sketches.knows(8), sketches.knows(9)) == (True, True, False)
    assert sketches.get(8) is None
    assert sketches.get(9) is None
    sketches.forget(7)
    sketches.forget(9)
    assert sketches.get(7) is None
    assert len(sketches) == 1


def test_those_noted_first_go_when_there_are_too_many() -> None:
    each = len(SKETCH) + 120
    sketches = PageSketches(10 * each)
    for page_id in range(100):
        sketches.note(page_id, SKETCH)
        sketches.note(page_id, SKETCH)
        assert len(sketches) <= 10
    assert [page_id for page_id in range(100) if sketches.knows(page_id)] == list(range(90, 100))
    for page_id in range(90, 95):
        sketches.forget(page_id)
    for page_id in range(100, 105):
        sketches.note(page_id, SKETCH)
    assert [page_id for page_id in range(105) if sketches.knows(page_id)] == list(range(95, 105))
