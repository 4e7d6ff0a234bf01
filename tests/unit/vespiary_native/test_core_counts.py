"""The contract of counted deliveries (`vespiary_native.abc_counts`)."""

from __future__ import annotations

import re

import pytest

from vespiary_codec.journal.record import CountRecord
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom
from vespiary_testkit.core_rig import CoreRig, ids


def counts(rig: CoreRig) -> list[tuple[int, int]]:
    """Return the COUNT records of the first file: sequences and deliveries."""
    found = [each for each in rig.records() if isinstance(each, CountRecord)]
    return [(each.sequence, each.deliveries) for each in found]


def restored_deliveries(rig: CoreRig, *, without: tuple[int, ...] = ()) -> list[int]:
    """Return how often the messages were delivered, as a recovery finds it."""
    again = rig.restored(without=without)
    again.go_on()
    found = re.findall(rb"message-id|delivery-count:\d+", b"".join(given(again, again.consume())))
    each = b" ".join(found).split(b"message-id")[1:]
    return [int(one.partition(b":")[2] or 0) for one in each]


def given(rig: CoreRig, consumer: int) -> list[bytes]:
    """Return the frames of what is next, loaded if need be."""
    frames = rig.deliver(consumer)
    if not frames and rig.core.absent_slab(consumer) != (0, 0):
        rig.load(consumer)
        frames = rig.deliver(consumer)
    return frames


def begin(rig: CoreRig, number: int = 3, *, records_max: int | None = None) -> int:
    """Publish messages, and open a consumer that is counted for ahead."""
    rig.core.count_deliveries(ahead=True, records_max=records_max)
    for _ in range(number):
        rig.publish()
    rig.flush()
    return rig.consume()


def test_a_message_that_is_given_is_counted_before_it_comes_back(rig: CoreRig) -> None:
    consumer = begin(rig)
    assert ids(rig.deliver(consumer, 2)) == [1, 2]
    rig.flush()
    assert counts(rig) == [(1, 1), (2, 1)]
    assert restored_deliveries(rig) == [1, 1, 0], "the broker was killed meanwhile"


def test_what_comes_back_counted_needs_no_second_record(rig: CoreRig) -> None:
    consumer = begin(rig, 1)
    for again in range(3):
        (frame,) = rig.deliver(consumer)
        assert (b"delivery-count:%d" % again in frame) == (again > 0)
        assert rig.core.give_back(consumer, 1) == 1
    rig.flush()
    assert counts(rig) == [(1, 1), (1, 2), (1, 3)]
    assert restored_deliveries(rig) == [3]


def test_what_comes_back_uncounted_is_as_before_in_the_journal_too(rig: CoreRig) -> None:
    consumer = begin(rig, 2)
    rig.deliver(consumer, 1)
    rig.core.give_back(consumer, 1)
    rig.deliver(consumer)
    rig.core.close_consumer(consumer, counted=False)
    rig.flush()
    assert counts(rig) == [(1, 1), (1, 2), (2, 1), (1, 1), (2, 0)]
    assert restored_deliveries(rig) == [1, 0]
    assert b"delivery-count" not in rig.deliver(rig.consume())[1]


def test_given_by_choice_is_counted_as_well(rig: CoreRig) -> None:
    consumer = begin(rig)
    assert rig.core.give(consumer, [3, 1], 10**6)[1] == 2
    rig.flush()
    assert counts(rig) == [(3, 1), (1, 1)]


def test_nothing_is_counted_for_who_acknowledges_with_the_delivery(rig: CoreRig) -> None:
    begin(rig)
    assert len(rig.deliver(rig.consume(AckMode.AUTO))) == 3
    rig.flush()
    assert counts(rig) == []


def test_nothing_is_counted_of_what_need_not_survive(rig: CoreRig) -> None:
    consumer = begin(rig, 0)
    rig.publish(persistent=False)
    assert len(rig.deliver(consumer)) == 1
    rig.flush()
    assert counts(rig) == []


@pytest.mark.parametrize("is_ahead", [False, True])
def test_so_many_deliveries_have_records(rig: CoreRig, is_ahead: bool) -> None:
    rig.core.count_deliveries(ahead=is_ahead, records_max=2)
    rig.publish()
    rig.flush()
    consumer = rig.consume()
    for _ in range(4):
        rig.deliver(consumer)
        rig.core.give_back(consumer, 1)
    rig.flush()
    assert counts(rig) == [(1, 1), (1, 2)]
    assert b"delivery-count:4" in rig.deliver(consumer)[0], "in memory all count"
    assert restored_deliveries(rig) == [2]


def test_no_record_at_all_with_none_allowed(rig: CoreRig) -> None:
    consumer = begin(rig, 1, records_max=0)
    rig.deliver(consumer)
    rig.core.close_consumer(consumer, counted=False)
    rig.flush()
    assert counts(rig) == []


def test_a_held_message_keeps_its_count_when_it_moves(rig: CoreRig) -> None:
    consumer = begin(rig, 1)
    rig.deliver(consumer)
    while rig.core.current_file() == 1:
        while rig.core.files_ahead() < 2:
            rig.add_file()
        rig.core.publish(rig.core.open_route([]), b"", b"", persistent=True)
        rig.core.append_record(40, bytes(10_000))
        rig.flush()
    assert rig.relocate(1, 0).moved_places == 1
    rig.flush()
    moved = [each for each in rig.records(2) if isinstance(each, CountRecord)]
    assert [(each.sequence, each.deliveries) for each in moved] == [(1, 1)]
    assert restored_deliveries(rig, without=(1,)) == [1]


def test_without_room_for_its_count_a_message_is_not_given(rig: CoreRig) -> None:
    consumer = begin(rig, 1)
    while True:
        try:
            rig.core.append_record(40, bytes(50_000))
        except NoRoom:
            break
        rig.flush()
    while True:
        try:
            rig.core.append_record(40, bytes(8))
        except NoRoom:
            break
        rig.flush()
    assert rig.core.deliver(consumer, 10, 10**6) == (DeliverStatus.LIMIT, 0, b"")
    assert rig.core.give(consumer, [1], 10**6) == (DeliverStatus.LIMIT, 0, 0, b"")
    rig.add_file()
    assert len(rig.deliver(consumer)) == 1


# --- delivered too often ---------------------------------------------------------------------


def worn(rig: CoreRig) -> tuple[CoreRig, int]:
    """Return what a recovery found: 1 was delivered twice, 2 once, 3 never; and a consumer."""
    consumer = begin(rig)
    rig.deliver(consumer, 2)
    rig.core.give_back(consumer, 1)
    rig.deliver(consumer, 1)
    rig.flush()
    again = rig.restored()
    again.go_on()
    again.core.limit_deliveries(1, 2)
    return again, again.consume()


def test_what_was_delivered_too_often_is_not_given_after_a_recovery(rig: CoreRig) -> None:
    again, consumer = worn(rig)
    assert again.core.deliver(consumer, 10, 10**6) == (DeliverStatus.WORN, 0, b"")
    assert again.core.next_deliverable(1) == 1
    assert again.core.set_aside(1, 1)
    assert ids(given(again, consumer)) == [2, 3]


def test_it_is_given_when_it_was_put_back(rig: CoreRig) -> None:
    again, consumer = worn(rig)
    again.core.set_aside(1, 1)
    again.core.put_back(1, 1)
    assert ids(given(again, consumer)) == [1, 2, 3]
    again.core.give_back(consumer, 1)
    assert ids(again.deliver(consumer)) == [1], "who takes it back decides about it"


def test_without_a_limit_all_is_given(rig: CoreRig) -> None:
    again, consumer = worn(rig)
    again.core.limit_deliveries(1, 0)
    assert ids(given(again, consumer)) == [1, 2, 3]


def test_unknown_queues_and_connections_are_refused(rig: CoreRig) -> None:
    with pytest.raises(ValueError, match="99"):
        rig.core.limit_deliveries(99, 1)
    with pytest.raises(ValueError, match="99"):
        rig.core.output_waiting(99)


# --- what waits ------------------------------------------------------------------------------


def test_frames_wait_for_their_counts(rig: CoreRig) -> None:
    consumer = begin(rig, 1)
    _, _, frames = rig.core.deliver(consumer, 10, 10**6)
    rig.core.receipt(rig.connection, frames)
    assert rig.core.take_receipts() == []
    assert rig.core.output_waiting(rig.connection) == len(frames)
    assert rig.core.is_urgent()
    rig.flush()
    assert rig.core.output_waiting(rig.connection) == 0
    assert rig.core.take_receipts() == [(rig.connection, frames)]
