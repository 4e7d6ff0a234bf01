"""Closed extents are looked at where they stand, and single places of them come into the ring."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.journal.page import block_file_id
from vespiary_codec.journal.page_record import PagedRecord
from vespiary_native.abc import AckMode, DeliverStatus
from vespiary_native.values_inspection import MessageView
from vespiary_native.values_pages import PageState
from vespiary_testkit.core_rig import KIB, CoreRig
from vespiary_testkit.page_rig import PageFiles, drain, of_type, publish


@pytest.fixture
def rig(make: Callable[..., CoreRig]) -> CoreRig:
    rig = make(file_bytes=256 * KIB).begin()
    rig.core.grow(8)
    return rig


def _paged(rig: CoreRig, number: int = 10, **named: object) -> tuple[PageFiles, int]:
    pages = PageFiles()
    publish(rig, number, **named)
    return pages, pages.move(rig.core, [1])


def _look(rig: CoreRig, pages: PageFiles, page_id: int, **named: int) -> list[MessageView]:
    while True:
        found = rig.core.page_look(page_id, 1, pages.footer(page_id), 0, 1000, **named)
        if found.absent is None:
            return found.messages
        assert pages.load(rig.core, *found.absent)


def _sequences(rig: CoreRig, pages: PageFiles, page_id: int) -> list[int]:
    return [view.sequence for view in _look(rig, pages, page_id)]


def test_what_is_looked_at_stays_where_it_is(rig: CoreRig) -> None:
    pages, page_id = _paged(rig)
    footer = pages.footer(page_id)
    absent = rig.core.page_look(page_id, 1, footer, 4, 3)
    assert absent.messages == []
    assert absent.absent == (block_file_id(page_id), 0)
    assert absent.next_sequence == 4
    assert rig.core.page_bodies(page_id, 1, footer, [4], 0) == []
    assert pages.load(rig.core, *absent.absent)
    found = rig.core.page_look(page_id, 1, footer, 4, 3)
    assert [view.sequence for view in found.messages] == [4, 5, 6], found
    assert found.next_sequence == 7
    view = found.messages[0]
    assert view.is_journalled
    assert not view.is_held
    bodies = [number.to_bytes(4, "little") + bytes(100) for number in (3, 4, 7)]
    assert rig.core.page_bodies(page_id, 1, footer, [4, 5, 8], 1 << 40) == bodies
    assert rig.core.page_bodies(page_id, 1, footer, [4, 5, 8], 208) == bodies[:2]
    assert rig.core.page_bodies(page_id, 1, footer, [4, 5, 8], 0) == bodies[:1]
    assert rig.core.page_bodies(page_id, 1, footer, [4, 11, 12], 1 << 40) == bodies[:1]
    assert rig.core.page_bodies(page_id, 1, footer, [], 1) == []
    end = rig.core.page_look(page_id, 1, footer, 9, 100)
    assert [view.sequence for view in end.messages] == [9, 10]
    assert end.next_sequence == 11
    facts = rig.core.queue_statistics(1)
    assert (facts.ready, facts.paged) == (0, 10)


def test_a_queue_that_waits_for_a_slab_of_a_page_is_ready_when_it_is_there(rig: CoreRig) -> None:
    pages, page_id = _paged(rig)
    rig.core.take_ready_queues()
    found = rig.core.page_look(page_id, 1, pages.footer(page_id), 0, 1)
    assert found.absent is not None
    assert rig.core.take_ready_queues() == []
    pages.load(rig.core, *found.absent)
    assert rig.core.take_ready_queues() == [1]


def test_messages_of_low_priority_are_passed_over_without_their_records(rig: CoreRig) -> None:
    pages = PageFiles()
    for priority in (4, 9, 4, 7, 0):
        publish(rig, 1, priority=priority)
    page_id = pages.move(rig.core, [1])
    footer = pages.footer(page_id)
    none = rig.core.page_look(page_id, 1, footer, 5, 10, min_priority=5)
    assert (none.messages, none.absent, none.next_sequence) == ([], None, 6)
    found = _look(rig, pages, page_id, min_priority=5)
    assert [(view.sequence, view.priority) for view in found] == [(2, 9), (4, 7)]


def test_picked_places_are_given_and_acknowledged_and_the_others_stay(rig: CoreRig) -> None:
    pages, page_id = _paged(rig)
    footer = pages.footer(page_id)
    assert rig.core.page_pick(page_id, 1, footer, [3, 7, 7, 99]) == 2
    assert rig.core.page_pick(page_id, 1, footer, [3]) == 0
    pages.load(rig.core, block_file_id(page_id), 0)
    facts = rig.core.queue_statistics(1)
    assert (facts.ready, facts.paged) == (2, 8)
    assert _sequences(rig, pages, page_id) == [1, 2, 4, 5, 6, 8, 9, 10]
    consumer = rig.core.open_consumer(rig.connection, 1, AckMode.INDIVIDUAL, 100, b"s", 12)
    status, given, passed, _ = rig.core.give(consumer, [7, 3], 1 << 20)
    assert (status, given, passed) == (DeliverStatus.DRAINED, 2, 2)
    assert rig.core.acknowledge(consumer, 3) == 1
    rig.core.give_back(consumer, 7)
    assert len(drain(rig, pages, consumer)) == 9


def test_a_page_named_anew_has_what_was_picked_too(rig: CoreRig) -> None:
    pages, page_id = _paged(rig)
    rig.core.page_pick(page_id, 1, pages.footer(page_id), [1, 10])
    pages.load(rig.core, block_file_id(page_id), 0)
    consumer = rig.core.open_consumer(rig.connection, 1, AckMode.INDIVIDUAL, 100, b"s", 12)
    rig.core.give(consumer, [1, 10], 1 << 20)
    rig.core.acknowledge(consumer, 1)
    assert rig.core.page_restage(page_id) > 0
    rig.flush()
    named = of_type(rig, PagedRecord)[-1]
    assert isinstance(named, PagedRecord)
    assert named.queues[0].sequences == tuple(range(2, 11))


def test_a_page_of_which_all_was_picked_goes_when_that_is_acknowledged(rig: CoreRig) -> None:
    pages, page_id = _paged(rig, 3)
    rig.core.page_pick(page_id, 1, pages.footer(page_id), [1, 2, 3])
    pages.load(rig.core, block_file_id(page_id), 0)
    assert rig.core.page_done() == []
    consumer = rig.core.open_consumer(rig.connection, 1, AckMode.INDIVIDUAL, 100, b"s", 12)
    rig.core.give(consumer, [1, 2, 3], 1 << 20)
    for sequence in (1, 2, 3):
        rig.core.acknowledge(consumer, sequence)
    rig.flush()
    assert rig.core.page_done() == [page_id]
    rig.core.page_end(page_id)
    assert rig.core.extents(1) == []


def test_an_extent_is_opened_and_closed_with_what_was_picked(rig: CoreRig) -> None:
    pages, page_id = _paged(rig)
    footer = pages.footer(page_id)
    rig.core.page_pick(page_id, 1, footer, [5])
    pages.load(rig.core, block_file_id(page_id), 0)
    assert rig.core.page_enter(page_id, 1, footer) == 9
    assert rig.core.page_look(page_id, 1, footer, 0, 10).messages == []
    assert rig.core.page_pick(page_id, 1, footer, [6]) == 0
    assert rig.core.page_leave(page_id, 1)
    assert _sequences(rig, pages, page_id) == list(range(1, 11))


def test_slabs_stay_while_somebody_looks_on_and_go_at_the_end(rig: CoreRig) -> None:
    pages, page_id = _paged(rig)
    footer = pages.footer(page_id)
    first = rig.core.page_look(page_id, 1, footer, 0, 5)
    assert first.absent is not None
    pages.load(rig.core, *first.absent)
    consumer = rig.core.open_consumer(rig.connection, 1, AckMode.AUTO, 100, b"s", 12)
    rig.core.page_pick(page_id, 1, footer, [1])
    assert rig.core.give(consumer, [1], 1 << 20)[1] == 1
    assert len(rig.core.page_look(page_id, 1, footer, 0, 5).messages) == 5
    end = rig.core.page_look(page_id, 1, footer, 11, 5)
    assert (end.messages, end.absent, end.next_sequence) == ([], None, 11)
    assert rig.core.page_look(page_id, 1, footer, 2, 5).absent == first.absent


def test_kept_places_are_neither_copied_nor_moved(rig: CoreRig) -> None:
    pages = PageFiles()
    publish(rig, 6)
    rig.core.page_keep(1, [1, 4, 77], is_kept=True)
    page_id = pages.open(rig.core, [1])
    assert pages.fill(rig.core, page_id, 1).copied_records == 4
    pages.close(rig.core, page_id)
    rig.core.page_keep(1, [2, 5], is_kept=True)
    assert rig.core.page_commit(page_id) > 0
    facts = rig.core.queue_statistics(1)
    assert (facts.ready, facts.paged) == (4, 2)
    assert [view.sequence for view in rig.core.look(1, 0, 10).messages] == [1, 2, 4, 5]
    rig.core.page_keep(1, [1, 2, 4, 5, 77], is_kept=False)
    pages.move(rig.core, [1])
    assert rig.core.queue_statistics(1).paged == 6
    consumer = rig.core.open_consumer(rig.connection, 1, AckMode.INDIVIDUAL, 100, b"s", 12)
    assert len(drain(rig, pages, consumer)) == 6


def test_a_page_of_which_all_is_kept_is_forgotten(rig: CoreRig) -> None:
    pages = PageFiles()
    publish(rig, 2)
    page_id = pages.open(rig.core, [1])
    pages.fill(rig.core, page_id, 1)
    pages.close(rig.core, page_id)
    rig.core.page_keep(1, [1, 2], is_kept=True)
    assert rig.core.page_commit(page_id) == 0
    assert rig.core.pages() == []
    rig.core.page_keep(1, [1, 2], is_kept=False)
    again = pages.move(rig.core, [1])
    assert [facts.state for facts in rig.core.pages()] == [PageState.LIVE]
    assert len(pages.index(again).records) == 2


def test_what_makes_no_sense_is_refused(rig: CoreRig) -> None:
    pages, page_id = _paged(rig)
    footer = pages.footer(page_id)
    for wrong in (footer[:-8], footer[:36] + b"\xff" * 4 + footer[40:], b""):
        with pytest.raises(ValueError, match=r"page|footer"):
            rig.core.page_look(page_id, 1, wrong, 0, 1)
        with pytest.raises(ValueError, match=r"page|footer"):
            rig.core.page_pick(page_id, 1, wrong, [1])
    with pytest.raises(ValueError, match=r"page|footer"):
        rig.core.page_look(page_id + 1, 1, footer, 0, 1)
    with pytest.raises(ValueError, match="queue"):
        rig.core.page_bodies(page_id, 2, footer, [1], 1)
    with pytest.raises(ValueError, match=r"max_messages|page_look"):
        rig.core.page_look(page_id, 1, footer, 0, 0)
    with pytest.raises(ValueError, match="queue"):
        rig.core.page_keep(99, [1], is_kept=True)
    assert rig.core.queue_statistics(1).paged == 10


def test_extents_are_found_by_what_they_may_hold(rig: CoreRig) -> None:
    pages = PageFiles()
    publish(rig, 3)
    rig.core.page_keep(1, [2], is_kept=True)
    first = pages.move(rig.core, [1])  # 1 and 3
    publish(rig, 3)
    rig.core.page_keep(1, [2], is_kept=False)
    pages.move(rig.core, [1])  # 2, and 4 to 6
    spans = [(facts.first, facts.last) for facts in rig.core.extents(1)]
    assert spans == [(1, 3), (2, 6)]
    assert [rig.core.extent_index(1, at) for at in (0, 3, 4, 6, 7)] == [0, 0, 1, 1, 2]
    rig.core.page_enter(first, 1, pages.footer(first))
    assert [rig.core.extent_index(1, at) for at in (3, 4)] == [0, 1]
    with pytest.raises(ValueError, match="9"):
        rig.core.extent_index(9, 1)
