"""What other calls of the core do to messages in pages, and what is refused: both cores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.journal.page import block_file_id
from vespiary_codec.journal.page_record import PagedRecord
from vespiary_native.abc import AckMode, NoRoom
from vespiary_testkit.core_rig import DESTINATION, CoreRig, ids
from vespiary_testkit.page_rig import PageFiles, drain, of_type, publish


@pytest.fixture
def pages() -> PageFiles:
    return PageFiles()


@pytest.fixture
def rig(make: Callable[..., CoreRig]) -> CoreRig:
    made = make().begin()
    made.core.grow(14)
    return made


def test_leaving_gives_the_entries_back(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 6)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    consumer = rig.consume()
    pages.enter(rig.core, page_id, 1)
    pages.load(rig.core, block_file_id(page_id), 0)
    rig.deliver(consumer, 2)
    assert not rig.core.page_leave(page_id, 1), "two are held"
    rig.core.close_consumer(consumer)
    assert rig.core.page_leave(page_id, 1)
    assert rig.core.queue_statistics(1).paged == 6
    assert rig.core.queue_statistics(1).head == 1
    frames = drain(rig, pages, rig.consume())
    assert ids(frames) == [1, 2, 3, 4, 5, 6]
    assert [ids([f])[0] for f in frames if b"delivery-count:1\n" in f] == [1, 2]


def test_purging_ends_what_is_in_pages(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 9)
    consumer = rig.consume()
    rig.deliver(consumer, 9)
    for sequence in (2, 5):
        rig.core.give_back(consumer, sequence)
    rig.core.acknowledge(consumer, 1)
    rig.flush()
    again = rig.restored()  # 2 to 9 wait
    again.go_on()
    consumer = again.consume()
    page_id = pages.open(again.core, [1])
    # Nothing is in memory after a restart.
    filled = pages.fill(again.core, page_id, 1)
    assert filled.absent == (1, 0)
    assert again.core.load_begin(1, 0) is not None
    again.core.load_done(1, 0, good=False)
    again.load(consumer)
    assert pages.fill(again.core, page_id, 1).copied_records == 8
    pages.close(again.core, page_id)
    again.core.page_commit(page_id)
    again.flush()
    publish(again, 3)
    assert again.core.purge_queue(1) == 11
    again.flush()
    assert again.core.queue_statistics(1).paged == 0
    assert again.core.page_done() == [page_id]
    last = again.restored()
    assert last.core.page_done() == [page_id]
    assert last.core.queue_statistics(1).ready == 0


def test_a_dropped_queue_lets_its_pages_go(rig: CoreRig, pages: PageFiles) -> None:
    rig.core.open_queue(2)
    rig.core.set_route(rig.route, [1, 2])
    publish(rig, 5)
    page_id = pages.move(rig.core, [1, 2])
    other = pages.open(rig.core, [2])
    rig.flush()
    rig.core.drop_queue(2)
    with pytest.raises(ValueError):
        pages.fill(rig.core, other, 2)
    assert rig.core.live_places(block_file_id(page_id)) == 5
    rig.core.purge_queue(1)
    rig.flush()
    assert rig.core.page_done() == [page_id]


def prepared(rig: CoreRig, consumer: int, sequence: int) -> None:
    """Acknowledge a message in a prepared branch."""
    rig.core.begin(99, 1000, 4, branch=True)
    assert rig.core.acknowledge(consumer, sequence, transaction=99) == 1
    rig.core.prepare(99, b"branch")
    rig.flush()


def held(rig: CoreRig) -> tuple[int, int]:
    """Return what branches hold of the queue: in its ring, and in pages that are closed."""
    counters = rig.core.queue_statistics(1)
    return counters.prepared, counters.paged_prepared


@pytest.mark.parametrize("is_commit", [True, False])
@pytest.mark.parametrize("is_entered", [True, False])
def test_a_branch_holds_a_place_in_a_page(
    rig: CoreRig, pages: PageFiles, is_commit: bool, is_entered: bool
) -> None:
    publish(rig, 4)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    consumer = rig.consume(AckMode.INDIVIDUAL)
    drain(rig, pages, consumer, 2)
    prepared(rig, consumer, 2)
    again = rig.restored()
    (facts,) = again.core.branches()
    assert facts.missing == 0
    again.go_on()
    assert held(again) == (0, 1), "in the page, which is closed"
    if is_entered:
        pages.enter(again.core, page_id, 1)
        assert held(again) == (1, 0), "in the ring"
        assert not again.core.page_leave(page_id, 1)
    again.core.resolve(99, commit=is_commit)
    if again.core.pages():
        with pytest.raises(NoRoom):
            again.core.page_restage(page_id)  # the record would name the place
    again.flush()
    assert held(again) == (0, 0)
    assert again.core.page_restage(page_id) > 0
    again.flush()
    frames = drain(again, pages, again.consume())
    assert ids(frames) == ([1, 3, 4] if is_commit else [1, 2, 3, 4])
    counted = [ids([frame])[0] for frame in frames if b"delivery-count:1\n" in frame]
    assert counted == ([] if is_commit else [2])
    last = again.restored()
    assert last.core.queue_statistics(1).paged == (3 if is_commit else 4)


def test_a_page_record_names_what_is_live(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 3)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    (record,) = of_type(rig, PagedRecord)
    assert isinstance(record, PagedRecord)
    assert record.page_id == page_id
    assert record.size_bytes == len(pages.files[page_id])
    assert [(q.queue_id, q.sequences) for q in record.queues] == [(1, (1, 2, 3))]


def test_a_damaged_index_changes_nothing(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 3)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    footer = pages.footer(page_id)
    for at, byte in [
        (4, 2),
        (8, 9),
        (24, 9),
        (36, 77),
        (32 + 3 * 8 + 1, 0xFF),
        (32 + 3 * 8 + 10, 0),
    ]:
        bad = bytearray(footer)
        bad[at] = byte
        with pytest.raises(ValueError):
            rig.core.page_enter(page_id, 1, bytes(bad))
    with pytest.raises(ValueError):
        rig.core.page_enter(page_id, 1, footer[:63])
    beside_the_record = bytearray(footer)
    beside_the_record[32 + 3 * 8] += 4  # records begin at multiples of 8
    with pytest.raises(ValueError):
        rig.core.page_enter(page_id, 1, bytes(beside_the_record))
    assert rig.core.queue_statistics(1).paged == 3
    assert rig.core.page_enter(page_id, 1, footer) == 3


def test_arguments_are_checked(rig: CoreRig, pages: PageFiles) -> None:
    for page_id, size, queues in [
        (0, 1 << 20, [1]),
        (1 << 62, 1 << 20, [1]),
        (1, 12288, [1]),
        (1, 5000 * 5, [1]),
        (1, 1 << 20, []),
        (1, 1 << 20, [1, 1]),
        (1, 1 << 20, [9]),
    ]:
        with pytest.raises(ValueError):
            rig.core.page_open(page_id, 7, size, queues)
    rig.publish(DESTINATION)
    page_id = pages.open(rig.core, [1])
    with pytest.raises(ValueError):
        pages.fill(rig.core, page_id, 9)
    with pytest.raises(ValueError):
        rig.core.page_open(page_id, 7, 1 << 20, [1])
    for call in (rig.core.page_commit, rig.core.page_restage, rig.core.page_end):
        with pytest.raises(ValueError):
            call(page_id)
    with pytest.raises(ValueError):
        rig.core.page_enter(page_id, 1, bytes(64))
    with pytest.raises(ValueError):
        rig.core.page_leave(page_id, 1)


@pytest.mark.parametrize("is_good", [True, False])
def test_a_page_that_is_being_read_is_not_forgotten(
    rig: CoreRig, pages: PageFiles, is_good: bool
) -> None:
    """The kernel writes into that memory until the read is over, whatever became of the page."""
    publish(rig, 3)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    place = rig.core.page_look(page_id, 1, pages.footer(page_id), 0, 10).absent
    assert place is not None
    assert rig.core.load_begin(*place) is not None
    assert pages.enter(rig.core, page_id, 1) == 3
    assert rig.core.finish(1, [1, 2, 3]) == 3
    rig.flush()
    assert rig.core.page_done() == [page_id]
    rig.core.page_end(page_id)
    rig.flush()
    with pytest.raises(ValueError, match="page"):
        rig.core.page_forget(page_id)
    rig.core.load_done(*place, good=is_good)
    rig.core.page_forget(page_id)
    assert not rig.core.pages()
