"""Messages that move to pages and come back: both cores, read by the codec and a recovery."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest

from vespiary_codec.journal.block import decode_block, walk_blocks
from vespiary_codec.journal.page import block_file_id
from vespiary_codec.journal.page_record import PageDoneRecord, PagedRecord
from vespiary_codec.journal.record import AckRecord, AddRecord, decode_record, walk_records
from vespiary_codec.journal.record_types import RecordFlag
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom
from vespiary_native.values_pages import PageState
from vespiary_testkit.core_rig import KIB, CoreRig, ids
from vespiary_testkit.page_rig import EVERYTHING, PAGE_SALT, PageFiles, drain, of_type, publish


@pytest.fixture
def pages() -> PageFiles:
    return PageFiles()


@pytest.fixture
def rig(make: Callable[..., CoreRig]) -> CoreRig:
    made = make().begin()
    made.core.grow(14)
    return made


# --- the move -----------------------------------------------------------------------------------


def test_what_waits_moves_and_comes_back_in_order(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 20)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    assert rig.core.live_places(1) == 1, "the PAGE record's"
    statistics = rig.core.queue_statistics(1)
    assert (statistics.paged, statistics.ready, statistics.live_bytes) == (20, 0, 0)
    assert (statistics.head, statistics.next, statistics.available) == (1, 1, 21)
    publish(rig, 5)
    consumer = rig.consume(credit=1000)
    assert rig.core.deliver(consumer, 10, 10**6) == (DeliverStatus.PAGED, 0, b"")
    assert rig.core.page_wanted() == [(1, page_id)]
    assert rig.core.page_wanted() == []
    assert pages.enter(rig.core, page_id, 1) == 20
    assert rig.core.queue_statistics(1).paged == 0
    assert ids(drain(rig, pages, consumer)) == list(range(1, 26))


def test_a_page_is_what_the_format_says(rig: CoreRig, pages: PageFiles) -> None:
    rig.core.set_time(5000)
    rig.publish(b"first", priority=7, escaped=True)
    publish(rig, 30, 3000)
    page_id = pages.open(rig.core, [1])
    rig.core.set_time(9000)
    filled = pages.fill(rig.core, page_id, 1)
    assert filled.copied_records == 31
    assert filled.next_sequence == 32
    assert not filled.is_full
    assert pages.close(rig.core, page_id)
    index = pages.index(page_id)
    data = memoryview(pages.files[page_id])
    salt, file_id = PAGE_SALT + page_id, block_file_id(page_id)
    blocks = list(walk_blocks(data[4096:], offset=4096, salt=salt, file_id=file_id))
    assert [header.sequence for _, header, _ in blocks] == list(range(1, index.trailer.blocks + 1))
    assert {header.watermark for _, header, _ in blocks} == {0}
    assert blocks[-1][1].is_seal
    assert blocks[-1][1].crc == index.trailer.seal_crc
    adds = []
    for offset, _, _ in blocks[:-1]:
        header, payload = decode_block(data[offset:], offset=offset, salt=salt, file_id=file_id)
        for raw in walk_records(payload, header.records, offset=offset + 64):
            record = decode_record(raw)
            assert isinstance(record, AddRecord)
            assert index.records[len(adds)].offset == raw.offset
            adds.append(record)
    journal = [record for record in of_type(rig, AddRecord) if isinstance(record, AddRecord)]
    assert adds == [record._replace(is_moved=True) for record in journal]
    assert adds[0].arrival_ms == 5000
    assert adds[0].priority == 7
    (queue,) = index.queues
    assert [place.sequence for place in queue.places] == list(range(1, 32))


def test_nothing_changes_before_the_commit(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 10)
    page_id = pages.open(rig.core, [1])
    pages.fill(rig.core, page_id, 1)
    pages.close(rig.core, page_id)
    consumer = rig.consume()
    assert ids(rig.deliver(consumer, 3)) == [1, 2, 3]
    rig.core.page_abandon(page_id)
    assert rig.core.pages() == []
    assert ids(rig.deliver(consumer)) == list(range(4, 11))
    with pytest.raises(ValueError):
        rig.core.page_commit(page_id)


def test_only_what_still_waits_at_the_commit_moves(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 10)
    page_id = pages.open(rig.core, [1])
    pages.fill(rig.core, page_id, 1)
    pages.close(rig.core, page_id)
    consumer = rig.consume()
    rig.deliver(consumer, 4)  # 1 done, 2 comes back, 3 and 4 stay held
    rig.core.acknowledge(consumer, 1)
    rig.core.give_back(consumer, 2)
    assert rig.core.page_commit(page_id) > 0
    rig.flush()
    (facts,) = rig.core.extents(1)
    assert (facts.first, facts.last, facts.places) == (5, 10, 6)
    assert ids(drain(rig, pages, consumer)) == [2, *range(5, 11)]
    again = rig.restored()
    again.go_on()
    assert ids(drain(again, pages, again.consume())) == list(range(2, 11))


def test_a_page_without_a_waiting_place_is_forgotten(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 3)
    page_id = pages.open(rig.core, [1])
    assert rig.core.page_close(page_id) == []
    pages.fill(rig.core, page_id, 1)
    pages.close(rig.core, page_id)
    consumer = rig.consume()
    rig.deliver(consumer)
    assert rig.core.page_commit(page_id) == 0
    assert rig.core.pages() == []
    assert rig.core.acknowledge(consumer, 1) == 1


def test_a_place_is_in_one_page_at_most(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 6)
    first, second = pages.open(rig.core, [1]), pages.open(rig.core, [1])
    assert pages.fill(rig.core, first, 1, 4).copied_records == 3
    assert pages.fill(rig.core, second, 1).copied_records == 3
    rig.core.page_abandon(second)
    third = pages.open(rig.core, [1])
    assert pages.fill(rig.core, third, 1).copied_records == 3
    for page_id in (third, first):
        pages.close(rig.core, page_id)
        rig.core.page_commit(page_id)
    rig.flush()
    assert [facts.first for facts in rig.core.extents(1)] == [1, 4]
    assert ids(drain(rig, pages, rig.consume())) == [1, 2, 3, 4, 5, 6]


def test_one_record_serves_all_queues_of_the_address(rig: CoreRig, pages: PageFiles) -> None:
    rig.core.open_queue(2)
    rig.core.set_route(rig.route, [1, 2])
    publish(rig, 10)
    fast = rig.consume()
    rig.deliver(fast, 4)
    page_id = pages.open(rig.core, [1, 2])
    assert pages.fill(rig.core, page_id, 2).copied_records == 10
    assert pages.fill(rig.core, page_id, 1).copied_records == 0
    pages.close(rig.core, page_id)
    rig.core.page_commit(page_id)
    rig.flush()
    index = pages.index(page_id)
    assert len(index.records) == 10
    assert [len(queue.places) for queue in index.queues] == [6, 10]
    assert [rig.core.queue_statistics(queue).paged for queue in (1, 2)] == [6, 10]
    assert rig.core.acknowledge(fast, 1) == 1
    assert ids(drain(rig, pages, fast)) == list(range(5, 11))


def test_filling_is_done_in_turns(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 10, 1000)
    page_id = pages.open(rig.core, [1])
    few = rig.core.page_fill(page_id, 1, 0, EVERYTHING, 1, EVERYTHING)
    assert (few.next_sequence, few.copied_records) == (2, 1)
    some = rig.core.page_fill(page_id, 1, few.next_sequence, EVERYTHING, EVERYTHING, 3)
    assert (some.next_sequence, some.copied_records) == (5, 3)
    rest = rig.core.page_fill(page_id, 1, some.next_sequence, 9, EVERYTHING, EVERYTHING)
    assert (rest.next_sequence, rest.copied_records) == (9, 4)
    assert not rest.is_full


@pytest.mark.parametrize("size", [16 * KIB, 64 * KIB, 128 * KIB])
def test_a_page_is_not_larger_than_its_bound(rig: CoreRig, pages: PageFiles, size: int) -> None:
    publish(rig, 100, 1500)
    page_id = pages.open(rig.core, [1], size)
    filled = pages.fill(rig.core, page_id, 1)
    assert filled.is_full
    pages.close(rig.core, page_id)
    assert size - 3 * 4096 <= len(pages.files[page_id]) <= size
    assert rig.core.page_commit(page_id) > 0


def test_one_message_fits_any_page(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 2, 35 * KIB)
    page_id = pages.open(rig.core, [1], 16 * KIB)
    filled = pages.fill(rig.core, page_id, 1)
    assert (filled.copied_records, filled.is_full) == (1, True)
    pages.close(rig.core, page_id)
    rig.core.page_commit(page_id)
    rig.flush()
    assert ids(drain(rig, pages, rig.consume())) == [1, 2]


# --- the journal's files ------------------------------------------------------------------------


def test_journal_files_go_once_their_messages_are_in_pages(rig: CoreRig, pages: PageFiles) -> None:
    rig.fill(14)
    assert rig.core.current_file() == 2
    pages.move(rig.core, [1])
    rig.flush()
    assert rig.core.live_places(1) == 0
    assert rig.core.live_bytes(1) == 0
    assert 1 in rig.core.cancels(2), "without the PAGE record the old ones would count again"
    assert rig.restored().core.cancels(2) == rig.core.cancels(2)
    rig.core.forget_file(1)
    again = rig.restored(without=(1,))
    again.go_on()
    assert ids(drain(again, pages, again.consume())) == list(range(1, 15))


def test_an_acknowledgement_stays_as_long_as_the_page_needs_it(
    rig: CoreRig, pages: PageFiles
) -> None:
    publish(rig, 6)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    rig.fill(14)  # the next acknowledgement stands in another file
    consumer = rig.consume()
    pages.enter(rig.core, page_id, 1)
    pages.load(rig.core, block_file_id(page_id), 0)
    assert ids(rig.deliver(consumer, 2)) == [1, 2]
    rig.core.acknowledge(consumer, 1)
    rig.flush()
    own = rig.core.current_file()
    assert block_file_id(page_id) in rig.core.cancels(own)
    assert rig.restored().core.cancels(own) == rig.core.cancels(own)
    assert rig.core.page_restage(page_id) > 0
    rig.flush()
    assert block_file_id(page_id) not in rig.core.cancels(own)
    assert rig.core.pages_in(1) == []
    assert rig.core.pages_in(own) == [page_id]
    again = rig.restored()
    assert again.core.cancels(own) == rig.core.cancels(own)
    assert again.core.queue_statistics(1).paged == 5


def test_a_count_stays_as_long_as_the_page_needs_it(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 3)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    rig.fill(14)  # the count stands in another file
    consumer = rig.consume()
    pages.enter(rig.core, page_id, 1)
    pages.load(rig.core, block_file_id(page_id), 0)
    rig.deliver(consumer, 1)
    rig.core.give_back(consumer, 1)
    rig.flush()
    own = rig.core.current_file()
    assert block_file_id(page_id) in rig.core.cancels(own)
    assert rig.restored().core.cancels(own) == rig.core.cancels(own)


def test_an_acknowledgement_is_not_extended_across_the_page_record(
    rig: CoreRig, pages: PageFiles
) -> None:
    publish(rig, 5)
    consumer = rig.consume()
    rig.deliver(consumer, 1)
    page_id = pages.open(rig.core, [1])
    pages.fill(rig.core, page_id, 1)
    pages.close(rig.core, page_id)
    rig.core.acknowledge(consumer, 1)
    rig.core.page_commit(page_id)
    pages.enter(rig.core, page_id, 1)
    pages.load(rig.core, block_file_id(page_id), 0)
    assert ids(rig.deliver(consumer, 1)) == [2]
    rig.core.acknowledge(consumer, 2)
    rig.flush()
    acks = [record for record in of_type(rig, AckRecord) if isinstance(record, AckRecord)]
    assert [[tuple(one) for one in ack.ranges] for ack in acks] == [[(1, 1)], [(2, 1)]]
    again = rig.restored()
    assert again.core.queue_statistics(1).paged == 3


# --- recovery -----------------------------------------------------------------------------------


def test_a_page_counts_with_its_record_only(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 8)
    pages.move(rig.core, [1])
    before = rig.restored()  # the record is not written
    assert before.core.queue_statistics(1).ready == 8
    assert before.core.pages() == []
    rig.flush()
    after = rig.restored()
    assert after.core.queue_statistics(1).paged == 8
    assert after.core.queue_statistics(1).ready == 0
    (facts,) = after.core.pages()
    assert facts == rig.core.pages()[0]
    assert facts.state is PageState.LIVE
    assert facts.size_bytes == len(pages.files[1])


def test_ends_and_counts_of_places_in_closed_extents_are_restored(
    rig: CoreRig, pages: PageFiles
) -> None:
    publish(rig, 8)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    consumer = rig.consume()
    pages.enter(rig.core, page_id, 1)
    pages.load(rig.core, block_file_id(page_id), 0)
    rig.deliver(consumer, 5)
    rig.core.acknowledge(consumer, 2)
    rig.core.give_back(consumer, 3)
    rig.flush()
    for _ in range(2):
        again = rig.restored()
        again.go_on()
        frames = drain(again, pages, again.consume())
        assert ids(frames) == [1, 3, 4, 5, 6, 7, 8]
        counted = [ids([frame])[0] for frame in frames if b"delivery-count:1\n" in frame]
        assert counted == [3]
        rig.core.page_restage(page_id)  # says the same
        rig.flush()


def test_a_large_message_in_a_page_keeps_its_body(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 2)
    rig.publish(struct.pack("<QQII", 77, 5, 6, 0), large=True)
    rig.flush()
    page_id = pages.move(rig.core, [1])
    rig.flush()
    again = rig.restored()
    assert [body.large_id for body in again.core.live_large()] == [77]
    again.go_on()
    consumer = again.consume()
    pages.enter(again.core, page_id, 1)
    pages.load(again.core, block_file_id(page_id), 0)
    assert len(again.deliver(consumer)) == 2
    given = again.core.take_large(consumer)
    assert given is not None
    assert given.body.large_id == 77
    again.core.acknowledge(consumer, given.sequence)
    again.flush()
    assert again.core.take_done_large() == [77]


def test_messages_that_need_not_survive_are_paged_and_not_restored(
    rig: CoreRig, pages: PageFiles
) -> None:
    for number in range(6):
        rig.publish(b"%d" % number, persistent=number % 2 == 0)
    rig.flush()
    page_id = pages.move(rig.core, [1])
    rig.flush()
    assert rig.core.queue_statistics(1).paged == 6
    consumer = rig.consume()
    assert ids(drain(rig, pages, consumer)) == [1, 2, 3, 4, 5, 6]
    before = rig.core.image_statistics().records_added
    rig.core.acknowledge(consumer, 2)
    assert rig.core.image_statistics().records_added == before, "nothing to journal"
    again = rig.restored()
    assert again.core.queue_statistics(1).paged == 3
    again.go_on()
    assert ids(drain(again, pages, again.consume())) == [1, 3, 5]
    assert page_id == 1


def _flags(pages: PageFiles, page_id: int) -> list[int]:
    """Return the flags of the records of a page, in order."""
    data = memoryview(pages.files[page_id])[4096:]
    salt, file_id = PAGE_SALT + page_id, block_file_id(page_id)
    found = []
    for offset, header, _ in walk_blocks(data, offset=4096, salt=salt, file_id=file_id):
        if not header.is_seal:
            _, payload = decode_block(
                data[offset - 4096 :], offset=offset, salt=salt, file_id=file_id
            )
            found += [raw.flags for raw in walk_records(payload, header.records)]
    return found


def test_what_need_not_survive_is_marked_in_its_page(rig: CoreRig, pages: PageFiles) -> None:
    """The journal neither names it as live nor gets its acknowledgement, also when it is back."""
    for number in range(6):
        rig.publish(b"body", persistent=number % 2 == 0)
    rig.flush()
    page_id = pages.move(rig.core, [1])
    rig.flush()
    moved, volatile = RecordFlag.MOVED, RecordFlag.MOVED | RecordFlag.VOLATILE
    assert _flags(pages, page_id) == [moved, volatile] * 3

    def named() -> tuple[int, ...]:
        last = of_type(rig, PagedRecord)[-1]
        assert isinstance(last, PagedRecord)
        return last.queues[0].sequences

    assert named() == (1, 3, 5)
    rig.core.page_restage(page_id)
    rig.flush()
    assert named() == (1, 3, 5), "also when it is named again"
    assert rig.restored().core.queue_statistics(1).paged == 3
    footer = pages.footer(page_id)
    absent = rig.core.page_look(page_id, 1, footer, 0, 10).absent
    assert absent is not None
    assert pages.load(rig.core, *absent)
    seen = rig.core.page_look(page_id, 1, footer, 0, 10).messages
    assert [view.is_journalled for view in seen] == [True, False] * 3

    consumer = rig.consume(AckMode.INDIVIDUAL)
    assert ids(drain(rig, pages, consumer)) == [1, 2, 3, 4, 5, 6]
    rig.core.page_restage(page_id)
    rig.flush()
    assert named() == (1, 3, 5), "also when its places are back in the ring"
    for sequence in range(1, 7):
        rig.core.acknowledge(consumer, sequence)
    rig.flush()
    acks = [record for record in of_type(rig, AckRecord) if isinstance(record, AckRecord)]
    assert [first for ack in acks for first, _ in ack.ranges] == [1, 3, 5]
    assert {count for ack in acks for _, count in ack.ranges} == {1}
    assert rig.core.page_done() == [page_id]


def test_what_need_not_survive_leaves_memory_to_pages_and_to_the_journal(
    rig: CoreRig, pages: PageFiles
) -> None:
    """Its slabs are never evicted: only a page, which needs slabs and a record, frees them."""

    def fill() -> int:
        sent = 0
        with suppress(NoRoom):
            while True:
                rig.publish(bytes(3000), persistent=False)
                sent += 1
        return sent

    sent = fill()
    assert sent > 100
    for _ in range(3):
        page_id = pages.open(rig.core, [1])
        with suppress(NoRoom):  # as the pager does: what was copied goes
            pages.fill(rig.core, page_id, 1)
        assert pages.close(rig.core, page_id)
        assert rig.core.page_commit(page_id) > 0
        rig.flush()
        sent += fill()
    assert sent == rig.core.queue_statistics(1).added
    assert rig.core.queue_statistics(1).paged > 60


# --- the end ------------------------------------------------------------------------------------


def test_a_page_ends_when_all_of_it_is_acknowledged_durably(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 4)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    consumer = rig.consume()
    drain(rig, pages, consumer)
    for sequence in range(1, 5):
        assert rig.core.page_done() == []
        rig.core.acknowledge(consumer, sequence)
    assert rig.core.page_done() == [], "the acknowledgement is not durable"
    with pytest.raises(ValueError):
        rig.core.page_end(page_id)
    rig.flush()
    assert rig.core.page_done() == [page_id]
    assert rig.restored().core.page_done() == [page_id]
    block = rig.core.page_end(page_id)
    assert rig.core.page_done() == []
    with pytest.raises(ValueError):
        rig.core.page_forget(page_id)
    rig.flush()
    assert rig.core.image_statistics().sequence_durable >= block
    rig.core.page_forget(page_id)
    assert rig.core.pages() == []
    assert rig.core.live_places(1) == 0
    assert of_type(rig, PageDoneRecord) == [PageDoneRecord(page_id)]
    again = rig.restored()
    assert again.core.pages() == []
    assert again.core.queue_statistics(1).paged == 0
    assert again.core.queue_statistics(1).tail == 5


def test_the_end_of_a_page_depends_on_its_record(rig: CoreRig, pages: PageFiles) -> None:
    publish(rig, 2)
    page_id = pages.move(rig.core, [1])
    rig.flush()
    consumer = rig.consume()
    drain(rig, pages, consumer)
    rig.fill(14)
    for sequence in (1, 2):
        rig.core.acknowledge(consumer, sequence)
    rig.flush()
    rig.core.page_end(page_id)
    rig.flush()
    assert 1 in rig.core.cancels(rig.core.current_file())
    assert 1 in rig.restored().core.cancels(rig.core.current_file())
