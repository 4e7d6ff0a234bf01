"""Ranges of a queue, read without being taken, and the end of all below a sequence: both cores."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from vespiary_codec.journal.record import AddRecord, decode_record, walk_records
from vespiary_native.abc import AckMode, NoRoom
from vespiary_native.abc_ranges import RUNS_MAX, RangeCopy
from vespiary_testkit.core_rig import (
    KIB,
    PLENTY,
    REFERENCE,
    CoreRig,
    ended,
    exhaust,
    filled,
    give,
    seen,
)
from vespiary_testkit.page_rig import PageFiles


def records(copied: RangeCopy) -> list[AddRecord]:
    """Return what was copied, read by the codec."""
    found = [decode_record(raw) for raw in walk_records(copied.records, copied.messages)]
    assert all(isinstance(record, AddRecord) for record in found)
    return found  # type: ignore[return-value]


def copy(rig: CoreRig, sequence: int = 1, end: int = 100, **named: Any) -> RangeCopy:
    return rig.core.copy_range(1, sequence, end, named.pop("max_bytes", PLENTY), **named)


def loaded(rig: CoreRig) -> RangeCopy:
    """Return a range of which nothing was in memory."""
    copied = copy(rig)
    assert (copied.messages, copied.next_sequence) == (0, 1)
    assert copied.absent is not None
    load_slab(rig, *copied.absent)
    return copy(rig)


def load_slab(rig: CoreRig, file_id: int, slab: int) -> None:
    reserved = rig.core.load_begin(file_id, slab)
    assert reserved is not None
    address, length, offset = reserved
    ctypes.memmove(address, bytes(rig.files[file_id][offset : offset + length]), length)
    rig.core.load_done(file_id, slab, good=True)


def test_a_range_holds_each_message_as_if_it_were_published_alone(rig: CoreRig) -> None:
    rig.core.open_queue(9)
    both = rig.core.open_route([1, 9])
    rig.core.begin(5, 1000, 3)
    rig.core.publish(
        both, b"a:1\\n2\n", b"first", persistent=True, priority=7, escaped=True, special=True,
        transaction=5,
    )  # fmt: skip
    rig.core.commit(5)
    rig.core.publish(rig.route, b"b:2\n", REFERENCE, persistent=True, large=True)
    rig.flush()
    copied = copy(rig)
    assert (copied.messages, copied.runs, copied.next_sequence) == (2, [(1, 2)], 3)
    assert (copied.is_full, copied.absent) == (False, None)
    first, second = records(copied)
    assert first == AddRecord(
        places=((1, 1),), properties=b"a:1\\n2\n", body=b"first", arrival_ms=1000, priority=7,
        has_escapes=True, is_special=True,
    )  # type: ignore[arg-type]  # fmt: skip
    assert (second.is_large, second.body, second.places) == (True, REFERENCE, ((1, 2),))
    assert loaded(rig.restored()) == copied, "a restart changes nothing"


def test_what_others_hold_is_read_and_nothing_is_changed(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume()
    give(rig, consumer, 1, 4)
    rig.core.set_aside(1, 2)
    rig.core.give_back(consumer, 4)
    before = rig.core.queue_statistics(1)
    assert [record.body for record in records(copy(rig))] == [b"%d" % n for n in range(1, 7)]
    assert rig.core.queue_statistics(1) == before
    assert copy(rig, 3, 5).runs == [(3, 4)]
    rig.core.finish(1, [3, 5])
    assert copy(rig).runs == [(1, 2), (4, 4), (6, 6)]


def test_only_durable_messages_that_no_branch_holds_are_read(rig: CoreRig) -> None:
    filled(rig, 2)
    consumer = rig.consume()
    give(rig, consumer, 1)
    rig.core.begin(7, 1000, 3, branch=True)
    rig.core.publish(rig.route, b"", b"branch", persistent=True, transaction=7)
    rig.core.acknowledge(consumer, 1, transaction=7)
    rig.core.prepare(7, bytes(40))
    rig.publish(b"behind")
    assert copy(rig).runs == [(2, 2)], "what follows is not durable"
    rig.flush()
    copied = copy(rig)
    assert copied.runs == [(2, 2), (4, 4)]
    rig.core.resolve(7, commit=True)
    rig.flush()
    assert copy(rig).runs == [(2, 4)]


@dataclass
class Bound:
    max_bytes: int
    is_first_whole: bool
    expected: int


@pytest.mark.parametrize(
    "bound", [Bound(0, False, 0), Bound(0, True, 1), Bound(3 * 64, False, 3), Bound(193, True, 3)]
)
def test_a_range_is_bounded_by_its_bytes(rig: CoreRig, bound: Bound) -> None:
    filled(rig)
    copied = copy(rig, max_bytes=bound.max_bytes, is_first_whole=bound.is_first_whole)
    assert (copied.messages, copied.is_full) == (bound.expected, True)
    assert copied.next_sequence == bound.expected + 1
    assert len(copied.records) == 64 * bound.expected


def test_a_range_ends_behind_so_many_runs(rig: CoreRig) -> None:
    filled(rig)
    rig.core.finish(1, [2, 4])
    copied = copy(rig, runs_max=2)
    assert (copied.runs, copied.next_sequence, copied.is_full) == ([(1, 1), (3, 3)], 5, False)
    with pytest.raises(ValueError):
        copy(rig, runs_max=RUNS_MAX + 1)
    with pytest.raises(ValueError):
        rig.core.copy_range(77, 1, 2, 1)


def test_what_is_not_in_memory_is_named(rig: CoreRig) -> None:
    assert loaded(filled(rig, 3).restored()).runs == [(1, 3)]


# --- in pages -----------------------------------------------------------------------------------


def moved(rig: CoreRig, *picked: int, load: bool = True) -> tuple[PageFiles, int]:
    """Move all that waits to a page, but for what is picked out of it again."""
    rig.core.grow(8)
    pages = PageFiles()
    page_id = pages.move(rig.core, [1])
    rig.flush()
    if picked:
        rig.core.page_pick(page_id, 1, pages.footer(page_id), list(picked))
    if load:
        copied = page_copy(rig, pages, page_id)
        assert (copied.messages, copied.next_sequence) == (0, 1)
        assert copied.absent is not None
        assert pages.load(rig.core, *copied.absent)
    return pages, page_id


def page_copy(
    rig: CoreRig, pages: PageFiles, page_id: int, sequence: int = 1, end: int = 100, **named: Any
) -> RangeCopy:
    room = named.pop("max_bytes", PLENTY)
    footer = named.pop("footer", None) or pages.footer(page_id)
    return rig.core.page_copy(page_id, 1, footer, sequence, end, room, **named)


def test_a_record_in_a_page_is_the_same_bytes(rig: CoreRig) -> None:
    filled(rig, 3)
    rig.publish(REFERENCE, large=True)
    rig.publish(b"loose", persistent=False)
    rig.flush()
    before = copy(rig)
    assert before.messages == 5
    pages, page_id = moved(rig)
    assert copy(rig).messages == 0
    copied = page_copy(rig, pages, page_id)
    assert copied.records == before.records
    assert (copied.runs, copied.next_sequence, copied.absent) == ([(1, 5)], 6, None)
    assert page_copy(rig, pages, page_id, 2, 4).runs == [(2, 3)]
    assert page_copy(rig, pages, page_id, 2, 4).next_sequence == 4
    assert rig.core.queue_statistics(1).paged == 5


def test_of_a_page_is_copied_what_stands_there_and_no_branch_holds(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume(AckMode.INDIVIDUAL)
    give(rig, consumer, 5)
    rig.core.begin(7, 1000, 3, branch=True)
    rig.core.acknowledge(consumer, 5, transaction=7)
    rig.core.prepare(7, bytes(40))
    rig.flush()
    pages, page_id = moved(rig, 2)
    assert page_copy(rig, pages, page_id).runs == [(1, 1), (3, 4), (6, 6)]
    assert copy(rig).runs == [(2, 2)]
    assert rig.core.page_enter(page_id, 1, pages.footer(page_id)) == 4
    assert page_copy(rig, pages, page_id).messages == 0, "it is open"
    assert copy(rig).runs == [(1, 4), (6, 6)]


@pytest.mark.parametrize(
    "bound", [Bound(0, False, 0), Bound(0, True, 1), Bound(3 * 64, False, 3), Bound(193, True, 3)]
)
def test_a_copy_of_a_page_is_bounded_by_its_bytes(rig: CoreRig, bound: Bound) -> None:
    filled(rig)
    pages, page_id = moved(rig)
    copied = page_copy(
        rig, pages, page_id, max_bytes=bound.max_bytes, is_first_whole=bound.is_first_whole
    )
    assert (copied.messages, copied.is_full) == (bound.expected, True)
    assert copied.next_sequence == bound.expected + 1


def test_a_copy_of_a_page_ends_behind_so_many_runs_and_refuses_what_is_wrong(rig: CoreRig) -> None:
    filled(rig)
    pages, page_id = moved(rig, 2, 4)
    copied = page_copy(rig, pages, page_id, runs_max=2)
    assert (copied.runs, copied.next_sequence, copied.is_full) == ([(1, 1), (3, 3)], 5, False)
    with pytest.raises(ValueError):
        page_copy(rig, pages, page_id, runs_max=RUNS_MAX + 1)
    with pytest.raises(ValueError):
        page_copy(rig, pages, page_id, footer=pages.footer(page_id)[:-8])
    with pytest.raises(ValueError):
        rig.core.page_copy(page_id + 1, 1, pages.footer(page_id), 1, 9, 9)


def test_slabs_of_a_page_stay_until_its_end_was_asked_for(rig: CoreRig) -> None:
    filled(rig)
    pages, page_id = moved(rig)
    assert page_copy(rig, pages, page_id, 1, 4).messages == 3
    assert page_copy(rig, pages, page_id, 4).messages == 3
    end = page_copy(rig, pages, page_id, 7)
    assert (end.messages, end.next_sequence, end.absent) == (0, 7, None)
    assert page_copy(rig, pages, page_id, 6).absent is not None


# --- ending -------------------------------------------------------------------------------------


def test_all_below_a_sequence_ends_but_what_is_held(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume(AckMode.INDIVIDUAL)
    give(rig, consumer, 2, 3)
    rig.core.give_back(consumer, 3)
    rig.core.set_aside(1, 4)
    assert rig.core.finish_below(1, 6, 2) == 2
    assert seen(rig, everything=True) == [2, 4, 5, 6]
    assert rig.core.finish_below(1, 6, 100) == 2
    assert rig.core.finish_below(1, 6, 100) == 0
    assert seen(rig, everything=True) == [2, 6]
    rig.flush()
    assert {first for first, _ in ended(rig)} == {1, 3}
    again = rig.restored()
    assert again.core.queue_statistics(1).ready == 2
    load_slab(again, 1, 0)
    assert seen(again) == [2, 6]


def test_what_stands_in_a_page_ends_there(rig: CoreRig) -> None:
    filled(rig)
    rig.publish(b"loose", persistent=False)
    rig.publish(b"behind")
    rig.flush()
    _, page_id = moved(rig, 3, load=False)
    rig.publish(b"ring")
    rig.flush()
    assert rig.core.finish_below(1, 6, 2) == 2
    assert rig.core.queue_statistics(1).paged == 5
    assert rig.core.finish_below(1, 8, 100) == 5
    assert (rig.core.queue_statistics(1).paged, seen(rig)) == (1, [9])
    rig.flush()
    assert ended(rig)[:2] == [(1, 2), (4, 3)], "runs, and not one by one"
    again = rig.restored()
    again.add_file()
    assert again.core.queue_statistics(1).paged == 1
    assert again.core.finish_below(1, 100, 100) == 2
    again.flush()
    assert again.core.page_done() == [page_id]
    assert again.core.queue_statistics(1).acknowledged == 2


def test_ends_below_a_sequence_are_not_for_transactions(rig: CoreRig) -> None:
    filled(rig)
    rig.core.begin(5, 1000, 3)
    with pytest.raises(ValueError):
        rig.core.finish_below(1, 6, 100)
    rig.core.commit(5)
    with pytest.raises(ValueError):
        rig.core.finish_below(77, 6, 100)
    assert seen(rig) == [1, 2, 3, 4, 5, 6]


def test_an_end_below_a_sequence_without_room_goes_on_later(make: Callable[..., CoreRig]) -> None:
    rig = make(file_bytes=64 * KIB, files=1).begin()
    filled(rig, 3)
    exhaust(rig)
    with pytest.raises(NoRoom):
        rig.core.finish_below(1, 4, 100)
    assert seen(rig) == [1, 2, 3]
    rig.add_file()
    assert rig.core.finish_below(1, 4, 100) == 3
    rig.flush()
    assert rig.core.queue_statistics(1).head == 4
