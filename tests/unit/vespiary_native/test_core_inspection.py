"""Looking at messages in a core's queues, and giving chosen ones: on both cores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_native.abc import AckMode, DeliverStatus, LargeBody
from vespiary_native.values_inspection import LOOK_LIVE_MAX, MessageView
from vespiary_testkit.core_rig import (
    DESTINATION,
    KIB,
    PLENTY,
    REFERENCE,
    CoreRig,
    ended,
    exhaust,
    filled,
    give,
    ids,
    seen,
)

# --- looking ------------------------------------------------------------------------------------


def test_a_view_tells_what_stands_in_the_record(rig: CoreRig) -> None:
    rig.core.set_time(12345)
    rig.core.publish(
        rig.route, b"a:b\\c\n", b"body", persistent=True, protocol=3, priority=7, escaped=True
    )
    rig.core.set_time(99)
    rig.publish(b"", persistent=False, special=True)
    rig.publish(REFERENCE, large=True)
    rig.flush()
    plain = MessageView(
        1, False, False, False, 0, 7, 3, 12345, True, False, False, True, 4, b"a:b\\c\n"
    )
    second = plain._replace(
        sequence=2, priority=4, protocol=1, time_ms=99, is_journalled=False, is_special=True,
        is_escaped=False, body_length=0, properties=DESTINATION,
    )  # fmt: skip
    third = second._replace(
        sequence=3, is_journalled=True, is_special=False, is_large=True, body_length=24
    )
    look = rig.core.look(1, 0, 10)
    assert look.messages == [plain, second, third]
    assert all(isinstance(view.is_journalled, bool) for view in look.messages)
    assert (look.next_sequence, look.absent) == (4, None)
    assert [rig.core.body(1, sequence) for sequence in (1, 2, 3, 4)] == [
        b"body", b"", REFERENCE, None,
    ]  # fmt: skip
    (first,) = rig.core.look(1, 1, 1).messages
    assert first == plain


def test_a_restored_message_looks_as_before(rig: CoreRig) -> None:
    rig.core.set_time(12345)
    rig.publish(b"body", priority=7, escaped=True, special=True)
    rig.core.begin(9, 100, 1)
    rig.publish(b"member", transaction=9, protocol=2)
    rig.core.commit(9)
    rig.flush()
    before = rig.core.look(1, 0, 10).messages
    assert [view.is_special for view in before] == [True, False]
    again = rig.restored()
    look = again.core.look(1, 0, 10)
    assert (look.messages, look.next_sequence, look.absent) == ([], 1, (1, 0))
    assert again.core.body(1, 1) is None
    assert again.core.absent_for(1, 1) == (1, 0)
    again.go_on()
    again.core.take_ready_queues()
    again.load(again.consume())
    assert again.core.take_ready_queues() == [1]
    assert again.core.look(1, 0, 10).messages == before
    assert again.core.absent_for(1, 1) == (0, 0)


def test_only_durable_messages_that_nobody_has_are_seen(rig: CoreRig) -> None:
    filled(rig)
    rig.publish(b"7")
    consumer = rig.consume()
    assert ids(rig.deliver(consumer, 2)) == [1, 2]
    assert seen(rig) == [3, 4, 5, 6]
    assert seen(rig, everything=True) == [1, 2, 3, 4, 5, 6]
    assert rig.core.body(1, 1) == b"1", "held"
    assert rig.core.body(1, 7) is None, "not durable"
    assert rig.core.look(1, 5, 1).next_sequence == 6
    assert rig.core.look(1, 100, 1) == ([], 7, None)
    held = rig.core.look(1, 0, 3, everything=True).messages
    assert [(v.is_held, v.is_returned, v.is_aside) for v in held] == [
        (True, False, False), (True, False, False), (False, False, False),
    ]  # fmt: skip


def test_members_of_branches_are_not_seen(rig: CoreRig) -> None:
    filled(rig, 2)
    consumer = rig.consume()
    rig.deliver(consumer, 1)
    rig.core.begin(9, 1000, 9, branch=True)
    rig.publish(b"3", transaction=9)
    rig.core.acknowledge(consumer, 1, transaction=9)
    rig.core.prepare(9, b"")
    rig.flush()
    assert seen(rig, everything=True) == [2]
    assert rig.core.body(1, 1) is None
    assert rig.core.finish(1, [1, 3]) == 0
    assert not rig.core.set_aside(1, 3)
    assert give(rig, consumer, 1, 3) == (DeliverStatus.DRAINED, [], 2)
    rig.core.resolve(9, commit=False)
    rig.flush()
    assert seen(rig, everything=True) == [1, 2]


def test_returned_messages_are_found_alone(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume()
    assert rig.core.look(1, 0, 100, returned_only=True) == ([], 7, None)
    rig.deliver(consumer, 4)
    rig.core.give_back(consumer, 2)
    rig.core.give_back(consumer, 4)
    look = rig.core.look(1, 0, 1, returned_only=True)
    assert [(v.sequence, v.is_returned, v.deliveries) for v in look.messages] == [(2, True, 1)]
    assert look.next_sequence == 3
    assert seen(rig, returned_only=True, max_messages=1) == [2, 4]
    assert seen(rig) == [2, 4, 5, 6]


def test_one_look_goes_through_a_bounded_number(make: Callable[..., CoreRig]) -> None:
    rig = make(slab_bytes=1024 * KIB, file_bytes=4096 * KIB).begin()
    rig.core.set_route(rig.route, [1])
    for _ in range(LOOK_LIVE_MAX + 10):
        rig.publish(b"", persistent=False)
    consumer = rig.consume(credit=10**6)
    assert rig.core.deliver(consumer, LOOK_LIVE_MAX + 5, 10**9)[1] == LOOK_LIVE_MAX + 5
    rig.core.give_back(consumer, 1)
    first = rig.core.look(1, 0, 10**9)
    assert [v.sequence for v in first.messages] == [1]
    assert first.next_sequence == LOOK_LIVE_MAX + 1
    assert len(rig.core.look(1, first.next_sequence, 10**9).messages) == 5


def test_one_look_gathers_bounded_bytes(make: Callable[..., CoreRig]) -> None:
    rig = make(slab_bytes=1024 * KIB, file_bytes=4096 * KIB, record_bytes_max=100 * KIB).begin()
    properties = b"n:" + b"v" * 65000 + b"\n"
    for _ in range(18):
        rig.core.publish(rig.route, properties, b"", persistent=False)
    look = rig.core.look(1, 0, 100)
    assert (len(look.messages), look.next_sequence) == (16, 17)
    assert all(view.properties == properties for view in look.messages)
    assert len(rig.core.look(1, look.next_sequence, 100).messages) == 2


def test_bad_arguments_of_a_look(rig: CoreRig) -> None:
    with pytest.raises(ValueError):
        rig.core.look(9, 0, 1)
    with pytest.raises(ValueError):
        rig.core.look(1, 0, 0)
    for call in (rig.core.body, rig.core.absent_for, rig.core.set_aside, rig.core.put_back):
        with pytest.raises(ValueError):
            call(9, 1)
    with pytest.raises(ValueError):
        rig.core.next_deliverable(9)


# --- giving -------------------------------------------------------------------------------------


def test_chosen_messages_are_given_in_the_order_asked_for(rig: CoreRig) -> None:
    filled(rig)
    consumer, other = rig.consume(), rig.consume()
    assert give(rig, consumer, 5, 2, 9, 5) == (DeliverStatus.DRAINED, [5, 2], 4)
    assert rig.core.holder(rig.connection, 1, 5) == consumer
    assert give(rig, other, 2) == (DeliverStatus.DRAINED, [], 1), "another one has it"
    counters = rig.core.queue_statistics(1)
    assert (counters.next, counters.delivering, counters.ready) == (1, 2, 4)
    assert ids(rig.deliver(other)) == [1, 3, 4, 6]
    assert rig.core.acknowledge(consumer, 5) == 1
    assert rig.core.acknowledge(consumer, 2) == 1
    rig.flush()
    assert rig.core.queue_statistics(1).acknowledged == 2
    assert rig.restored().core.queue_statistics(1).ready == 4


def test_frames_are_those_of_deliver(rig: CoreRig) -> None:
    rig.publish(b"hello", escaped=True)
    rig.flush()
    for version in (10, 11, 12):
        for mode in (AckMode.CLIENT, AckMode.INDIVIDUAL):
            consumer = rig.consume(mode, version=version)
            _, _, delivered = rig.core.deliver(consumer, 1, PLENTY)
            assert rig.core.give_back(consumer, 1) == 1
            _, _, _, given = rig.core.give(consumer, [1], PLENTY)
            count = rig.core.look(1, 1, 1, everything=True).messages[0].deliveries
            was, now = b"delivery-count:%d" % (count - 1), b"delivery-count:%d" % count
            expected = delivered.replace(was, now)
            if count == 1:
                mark = b"\ncontent-length"
                expected = delivered.replace(mark, b"\nredelivered:true\n" + now + mark)
            assert given == expected
            rig.core.close_consumer(consumer)


def test_giving_stops_at_credit_and_bytes(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume(credit=3)
    assert give(rig, consumer, 4, 5, max_bytes=1) == (DeliverStatus.LIMIT, [4], 1), "one at least"
    assert give(rig, consumer, 5, 4, 6, 1) == (DeliverStatus.LIMIT, [5, 6], 3)
    assert give(rig, consumer, 4, 5) == (DeliverStatus.DRAINED, [], 2)
    assert give(rig, consumer, 1) == (DeliverStatus.LIMIT, [], 0)
    assert rig.core.acknowledge(consumer, 5) == 1
    assert give(rig, consumer, 1) == (DeliverStatus.DRAINED, [1], 1)


def test_auto_acknowledges_what_it_is_given(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume(AckMode.AUTO)
    assert give(rig, consumer, 3, 4, 1) == (DeliverStatus.DRAINED, [3, 4, 1], 3)
    rig.flush()
    assert ended(rig) == [(3, 2), (1, 1)]
    assert rig.core.queue_statistics(1).ready == 3
    assert ids(rig.deliver(consumer)) == [2, 5, 6]


def test_without_room_for_the_acknowledgement_nothing_is_given(
    make: Callable[..., CoreRig],
) -> None:
    rig = make(file_bytes=64 * KIB, files=1).begin()
    filled(rig, 2)
    consumer = rig.consume(AckMode.AUTO)
    exhaust(rig)
    assert give(rig, consumer, 2) == (DeliverStatus.LIMIT, [], 0)
    assert seen(rig) == [1, 2]
    assert [view.is_returned for view in rig.core.look(1, 0, 9).messages] == [False, False]
    rig.add_file()
    assert give(rig, consumer, 2) == (DeliverStatus.DRAINED, [2], 1)


def test_what_was_given_out_of_order_comes_back_to_its_place(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume()
    give(rig, consumer, 5, 3)
    rig.core.take_ready_queues()
    assert rig.core.give_back(consumer, 5) == 1
    assert rig.core.take_ready_queues() == [1]
    assert rig.core.next_deliverable(1) == 1
    assert seen(rig, returned_only=True) == [5]
    assert seen(rig) == [1, 2, 4, 5, 6]
    assert ids(rig.deliver(consumer, 2)) == [1, 2]
    assert rig.core.next_deliverable(1) == 4
    assert rig.core.give_back(consumer, 2) == 1
    assert ids(rig.deliver(consumer)) == [2, 4, 5, 6]
    assert rig.core.close_consumer(consumer) == 6
    assert rig.core.queue_statistics(1).ready == 6
    assert rig.core.queue_statistics(1).delivering == 0
    assert ids(rig.deliver(rig.consume())) == [1, 2, 3, 4, 5, 6]


def test_a_closed_consumer_gives_back_what_stands_behind_next(rig: CoreRig) -> None:
    filled(rig, 3000)
    consumer = rig.consume(credit=5000)
    give(rig, consumer, 2999, 1500)
    assert rig.core.close_consumer(consumer) == 2
    assert seen(rig, returned_only=True) == [1500, 2999]
    assert rig.core.queue_statistics(1).ready == 3000


def test_cumulative_acknowledgement_follows_the_order_of_giving(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume(AckMode.CLIENT)
    give(rig, consumer, 4, 2, 6, 1)
    assert rig.core.acknowledge(consumer, 6) == 3
    rig.flush()
    assert ended(rig) == [(4, 1), (2, 1), (6, 1)]
    assert seen(rig, everything=True) == [1, 3, 5]


def test_an_absent_message_is_named(rig: CoreRig) -> None:
    rig.fill(12)
    again = rig.restored()
    again.go_on()
    consumer = again.consume()
    assert give(again, consumer, 9, 1) == (DeliverStatus.ABSENT, [], 0)
    file_id, slab = again.core.absent_for(1, 9)
    assert (file_id, slab) != again.core.absent_for(1, 1)
    address = again.core.load_begin(file_id, slab)
    assert address is not None
    again.core.load_done(file_id, slab, good=False)
    assert again.core.take_ready_queues() == [1]
    assert give(again, consumer, 9)[0] == DeliverStatus.ABSENT


def test_a_chosen_large_message(rig: CoreRig) -> None:
    filled(rig, 2)
    rig.publish(REFERENCE, large=True)
    rig.publish(b"4")
    rig.flush()
    consumer = rig.consume(credit=2)
    assert rig.core.give_large(consumer, 2) is None
    assert rig.core.give_large(consumer, 9) is None
    assert give(rig, consumer, 4, 3) == (DeliverStatus.LARGE, [4], 1)
    given = rig.core.give_large(consumer, 3)
    assert given is not None
    assert (given.sequence, given.body) == (3, LargeBody(77, 5_000_000, 0xABCD))
    assert b"content-length:5000000\n" in given.head
    assert rig.core.give_large(consumer, 3) is None, "it is held"
    assert rig.core.give_back(consumer, 3) == 1
    assert give(rig, consumer, 1) == (DeliverStatus.DRAINED, [1], 1)
    assert rig.core.give_large(consumer, 3) is None, "no credit"
    assert rig.core.acknowledge(consumer, 1) == 1
    assert rig.core.give_large(consumer, 3) is not None
