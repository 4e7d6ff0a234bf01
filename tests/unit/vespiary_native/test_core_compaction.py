"""Moving what is live to the journal's end: both cores, read by the codec and a recovery."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.journal.record import AckRecord, AddRecord, CountRecord
from vespiary_native.abc import DeliverStatus, NoRoom
from vespiary_testkit.core_rig import DESTINATION, EVERYTHING, KIB, CoreRig, ids


@pytest.fixture
def rig(make: Callable[..., CoreRig]) -> CoreRig:
    """Return a rig with memory for all that these tests write: nothing is evicted."""
    made = make().begin()
    made.core.grow(14)
    return made


def fill_file(rig: CoreRig, number: int = 12) -> int:
    """Publish until file 1 is full; return the number of messages in it."""
    rig.fill(number)
    assert rig.core.current_file() == 2
    return rig.core.live_places(1)


def compact(
    rig: CoreRig,
    file_id: int = 1,
    *,
    max_bytes: int = EVERYTHING,
    max_places: int = EVERYTHING,
) -> int:
    """Move all that is live in a file; return the number of places."""
    moved = 0
    for slab in range(rig.file_bytes // (64 * KIB)):
        offset, record, is_first = 0, 0, True
        while offset or is_first:
            is_first = False
            while rig.core.files_ahead() < 2:
                rig.add_file()
            step = rig.relocate(
                file_id, slab, offset, record, max_bytes=max_bytes, max_places=max_places
            )
            offset, record = step.next_offset, step.next_record
            moved += step.moved_places
            assert not step.is_absent
    return moved


def adds(rig: CoreRig, *, moved: bool) -> list[AddRecord]:
    """Return the ADD records of all files: originals, or copies."""
    records = [record for file_id in sorted(rig.files) for record in rig.records(file_id)]
    return [r for r in records if isinstance(r, AddRecord) and r.is_moved is moved]


def test_what_is_live_moves_and_is_delivered_in_order(rig: CoreRig):
    held = fill_file(rig)
    consumer = rig.consume()
    first = rig.deliver(consumer, 2)
    rig.core.acknowledge(consumer, 1)
    rig.flush()
    assert compact(rig) == held - 1
    assert rig.core.live_places(1) == 0
    assert rig.core.live_bytes(1) == 0
    rig.flush()
    rig.core.forget_file(1)
    frames = rig.deliver(consumer)
    assert ids(first + frames) == list(range(1, 13))
    assert rig.core.acknowledge(consumer, 2) == 1, "what was given out before is still held"
    assert ids(drain(rig.restored(without=(1,)))) == list(range(2, 13))


def drain(again: CoreRig) -> list[bytes]:
    """Deliver all that a restored rig holds."""
    again.go_on()
    consumer = again.consume(credit=1000)
    found: list[bytes] = []
    status = DeliverStatus.LIMIT
    while status != DeliverStatus.DRAINED:
        status, _, frames = again.core.deliver(consumer, 1, EVERYTHING)
        found += [frames] if frames else []
        if status == DeliverStatus.ABSENT:
            again.load(consumer)
    return found


def test_a_copy_is_the_record_as_it_stood(rig: CoreRig):
    rig.core.set_time(5000)
    rig.publish(b"first", priority=7, protocol=1, escaped=True)
    rig.core.set_time(9000)
    fill_file(rig)
    before = [r for r in rig.records(1) if isinstance(r, AddRecord)]
    compact(rig)
    rig.flush()
    copies = adds(rig, moved=True)
    assert copies == [record._replace(is_moved=True) for record in before]
    assert copies[0].arrival_ms == 5000
    assert copies[0].priority == 7
    assert copies[0].has_escapes


def test_only_live_places_are_copied(rig: CoreRig):
    rig.core.open_queue(2)
    both = rig.core.open_route([1, 2])
    rig.core.publish(both, b"", b"x" * 1000, persistent=True)
    fill_file(rig)
    consumer = rig.consume()
    assert ids(rig.deliver(consumer, 1)) == [1]
    rig.core.acknowledge(consumer, 1)
    compact(rig)
    rig.flush()
    copies = adds(rig, moved=True)
    assert [tuple(place) for place in copies[0].places] == [(2, 1)]
    again = rig.restored(without=(1,), queues=(1, 2))
    assert again.core.queue_statistics(2).ready == 1
    assert again.core.queue_statistics(1).ready == 12


def test_the_files_of_copies_may_not_go_before_the_old_one(rig: CoreRig):
    """Else an acknowledgement of the copy could be freed while the old record stands."""
    fill_file(rig)
    assert rig.core.cancels(2) == []
    rig.relocate(1, 0)
    assert rig.core.cancels(2) == [1]
    rig.flush()
    assert rig.restored().core.cancels(2) == [1], "and it is known again after a restart"
    compact(rig)
    rig.flush()
    rig.core.forget_file(1)
    assert rig.core.cancels(2) == []


def test_an_acknowledgement_of_a_copy_stands_behind_it(rig: CoreRig):
    """Extending an earlier range of the same block would end the old record, not the copy."""
    for _ in range(3):
        rig.publish(b"small")
    rig.flush()
    fill_file(rig)
    consumer = rig.consume()
    rig.deliver(consumer, 3)
    rig.core.acknowledge(consumer, 1)
    assert rig.relocate(1, 0, max_bytes=1).moved_places == 2
    rig.core.acknowledge(consumer, 2)
    rig.core.acknowledge(consumer, 3)
    rig.flush()
    acks = [record for record in rig.records(2) if isinstance(record, AckRecord)]
    assert [[tuple(one) for one in record.ranges] for record in acks] == [[(1, 1)], [(2, 2)]]
    assert ids(drain(rig.restored())) == list(range(4, 16))


@pytest.mark.parametrize("without", [(), (1,)])
def test_delivery_counts_move_along(rig: CoreRig, without: tuple[int, ...]):
    fill_file(rig)
    consumer = rig.consume()
    for _ in range(3):
        rig.deliver(consumer, 1)
        rig.core.give_back(consumer, 1)
    rig.flush()
    compact(rig)
    rig.flush()
    counts = [record for record in rig.records(2) if isinstance(record, CountRecord)]
    assert counts[-1] == CountRecord(1, 3, 1)
    frames = drain(rig.restored(without=without))
    assert b"\ndelivery-count:3\n" in frames[0]
    assert b"delivery-count" not in frames[1]


def test_a_count_stays_as_long_as_its_message(rig: CoreRig):
    fill_file(rig)
    consumer = rig.consume()
    rig.deliver(consumer, 1)
    rig.core.give_back(consumer, 1)
    assert rig.core.cancels(2) == [1]
    rig.flush()
    assert rig.restored().core.cancels(2) == [1]


def test_what_is_not_durable_yet_stays(rig: CoreRig):
    for number in range(13):
        rig.publish(bytes(20 * KIB) + b"%d" % number)
    assert rig.core.current_file() == 2
    step = rig.relocate(1, 0)
    assert (step.moved_places, step.is_absent) == (0, False)
    assert step.next_offset == 4096, "try again from there"
    rig.flush()
    held = rig.core.live_places(1)
    assert held
    assert compact(rig) == held


def test_members_of_a_transaction_move_once_it_is_committed(rig: CoreRig):
    rig.core.begin(7, 300 * KIB, 20)
    for number in range(13):
        while rig.core.files_ahead() < 2:
            rig.add_file()
        rig.publish(bytes([number]) * 20 * KIB, transaction=7)
    with pytest.raises(ValueError):
        rig.relocate(1, 0)
    rig.core.commit(7)
    rig.flush()
    held = rig.core.live_places(1)
    assert compact(rig) == held
    rig.flush()
    copies = adds(rig, moved=True)
    assert len(copies) == held
    assert all(record.transaction == 0 for record in copies)
    for without in ((), (1,)):
        assert ids(drain(rig.restored(without=without))) == list(range(1, 14))


def test_an_absent_slab_is_loaded_first(rig: CoreRig):
    fill_file(rig)
    again = rig.restored()
    again.go_on()
    consumer = again.consume()
    again.publish(b"begins file 3")
    step = again.relocate(1, 0)
    assert step.is_absent
    assert step.next_offset == 4096
    again.load(consumer)
    step = again.relocate(1, 0, step.next_offset)
    assert step.moved_places
    assert step.next_offset == 0
    assert not step.is_absent, "what is not live needs no memory"


def test_without_room_nothing_is_changed(rig: CoreRig):
    fill_file(rig)
    before = rig.core.image_statistics()
    rig.core.hold_adds(held=True)
    with pytest.raises(NoRoom):
        rig.relocate(1, 0)
    assert rig.core.image_statistics() == before
    rig.core.hold_adds(held=False)
    assert compact(rig)


def test_copies_leave_the_last_file_to_acknowledgements(rig: CoreRig):
    fill_file(rig)
    while rig.core.files_ahead():
        rig.publish(bytes(20 * KIB))
        rig.flush()
    with pytest.raises(NoRoom):
        move_all(rig)
    rig.flush()
    assert adds(rig, moved=True), "there was some room"
    used = rig.writes[-1].offset + rig.writes[-1].length
    assert used <= rig.file_bytes - 4096 - rig.file_bytes // 8


def test_a_record_that_no_file_of_today_can_hold_stays(rig: CoreRig):
    """`journal-file-size` was made smaller: what is larger than a new file is left where it is."""
    rig.add_file()
    for size in (1, 36 * KIB, 1):
        rig.publish(bytes(size))
    rig.flush()
    fill_file(rig)
    before = rig.core.live_places(1)
    while rig.core.files_ahead():
        rig.publish(bytes(20 * KIB))
        rig.flush()
        if rig.core.files_ahead() == 1:
            break
    for _ in range(40):
        rig.add_file(40 * KIB)
    while rig.core.files_ahead() > 38:
        rig.publish(bytes(10 * KIB))
        rig.flush()
    moved = 0
    for slab in range(4):
        step = rig.relocate(1, slab)
        moved += step.moved_places
        assert not step.next_offset
    assert (moved, rig.core.live_places(1)) == (before - 1, 1)


def move_all(rig: CoreRig) -> None:
    """Move what is live in file 1 without adding files."""
    for slab in range(4):
        step = rig.relocate(1, slab)
        while step.next_offset:
            rig.flush()
            step = rig.relocate(1, slab, step.next_offset)


def test_a_file_that_is_filled_or_unknown_is_refused(rig: CoreRig):
    fill_file(rig)
    for file_id, slab, offset in (
        (2, 0, 0),
        (3, 0, 0),
        (99, 0, 0),
        (1, 9, 0),
        (1, 0, 100),
        (1, 0, 65536 + 4096),
    ):
        with pytest.raises(ValueError):
            rig.relocate(file_id, slab, offset)


def test_a_call_is_bounded(rig: CoreRig):
    fill_file(rig)
    steps = 0
    offset = 0
    while True:
        step = rig.relocate(1, 0, offset, max_bytes=1)
        assert step.moved_places <= 1, "every message here has a block of its own"
        steps += 1
        offset = step.next_offset
        if not offset:
            break
    assert steps == 2, "block by block"
    assert rig.relocate(1, 1, max_bytes=0).moved_places == 0


def test_live_bytes_count_what_moving_would_cost(rig: CoreRig):
    rig.core.open_queue(2)
    rig.core.open_queue(3, durable=False)
    three = rig.core.open_route([1, 2, 3])
    rig.core.publish(three, b"abc", b"d" * 997, persistent=True)
    assert rig.core.live_bytes(1) == 3 * (16 + (24 + 1000) // 3)
    rig.publish(b"e" * 100)
    assert rig.core.live_bytes(1) == 3 * (16 + 341) + 16 + 24 + len(DESTINATION) + 100
    assert rig.core.image_statistics().live_bytes == rig.core.live_bytes(1)
    rig.flush()
    rig.core.publish(three, b"", b"volatile", persistent=False)
    assert rig.core.image_statistics().live_bytes == rig.core.live_bytes(1)
    for queue in (1, 2, 3):
        rig.core.purge_queue(queue)
    assert rig.core.live_bytes(1) == 0
    assert rig.core.image_statistics().live_bytes == 0


def publish_small(rig: CoreRig, number: int) -> None:
    """Publish messages that stand in one block, and have the file closed."""
    for _ in range(number):
        rig.publish(b"small")
    rig.flush()
    fill_file(rig)


def test_a_call_is_bounded_by_places_within_a_block(rig: CoreRig):
    publish_small(rig, 20)
    seen: list[tuple[int, int, int]] = []
    offset = record = 0
    while not seen or record:
        step = rig.relocate(1, 0, offset, record, max_places=8)
        offset, record = step.next_offset, step.next_record
        seen.append((step.moved_places, offset, record))
    assert seen == [(4, 4096, 4), (4, 4096, 8), (4, 4096, 12), (4, 4096, 16), (4, 8192, 0)]
    rig.flush()
    assert ids(drain(rig.restored())) == list(range(1, 33)), "nothing is lost or there twice"


def test_a_record_with_more_places_than_a_call_may_look_at_moves_alone(rig: CoreRig):
    for queue in range(2, 30):
        rig.core.open_queue(queue)
    many = rig.core.open_route(list(range(1, 30)))
    for _ in range(3):
        rig.core.publish(many, b"", b"in 29 queues", persistent=True)
    rig.flush()
    fill_file(rig)
    step = rig.relocate(1, 0, max_places=1)
    assert (step.moved_places, step.next_offset, step.next_record) == (29, 4096, 1)
    step = rig.relocate(1, 0, step.next_offset, step.next_record, max_places=30)
    assert (step.moved_places, step.next_offset, step.next_record) == (29, 4096, 2)


@pytest.mark.parametrize("max_places", [1, 2, 3, 7, 1000])
def test_whatever_the_bound_all_that_is_live_moves_once(rig: CoreRig, max_places: int):
    publish_small(rig, 17)
    consumer = rig.consume()
    rig.deliver(consumer, 9)
    for sequence in (1, 4, 5, 9):
        rig.core.acknowledge(consumer, sequence)
    rig.flush()
    live = rig.core.live_places(1)
    assert compact(rig, max_places=max_places) == live
    assert rig.core.live_places(1) == 0
    rig.flush()
    assert len(adds(rig, moved=True)) == live
    assert ids(drain(rig.restored(without=(1,)))) == [2, 3, 6, 7, 8, *range(10, 30)]


def test_records_already_looked_at_are_passed_over(rig: CoreRig):
    publish_small(rig, 5)
    step = rig.relocate(1, 0, 4096, 3, max_bytes=1)
    assert (step.moved_places, step.next_record) == (2, 0)
