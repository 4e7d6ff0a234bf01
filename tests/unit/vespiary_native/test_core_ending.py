"""Messages that Python ends, sets aside, or looks at before they are given: on both cores."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from vespiary_native.abc import AckMode, DeliverStatus, NoRoom
from vespiary_testkit.core_rig import (
    KIB,
    PLENTY,
    REFERENCE,
    SLAB,
    CoreRig,
    ended,
    exhaust,
    filled,
    give,
    ids,
    seen,
)

# --- ending -------------------------------------------------------------------------------------


def test_messages_that_nobody_holds_are_ended(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume()
    give(rig, consumer, 1, 6)
    rig.core.give_back(consumer, 6)
    rig.core.set_aside(1, 3)
    assert rig.core.finish(1, [1, 2, 3, 3, 6, 77]) == 3, "one is held, one twice, one unknown"
    counters = rig.core.queue_statistics(1)
    assert (counters.ready, counters.aside, counters.delivering) == (2, 0, 1)
    assert counters.acknowledged == 3
    rig.flush()
    assert ended(rig) == [(2, 2), (6, 1)]
    assert seen(rig) == [4, 5]
    again = rig.restored()
    assert again.core.queue_statistics(1).ready == 3


def test_an_end_without_room_changes_nothing(make: Callable[..., CoreRig]) -> None:
    rig = make(file_bytes=64 * KIB, files=1).begin()
    filled(rig, 3)
    consumer = rig.consume()
    give(rig, consumer, 1)
    exhaust(rig)
    with pytest.raises(NoRoom):
        rig.core.finish(1, [2, 3])
    with pytest.raises(NoRoom):
        rig.core.finish_held(consumer, 1)
    assert seen(rig, everything=True) == [1, 2, 3]
    rig.add_file()
    assert rig.core.finish(1, [2, 3]) == 2
    assert rig.core.finish_held(consumer, 1) == 1
    rig.flush()
    assert rig.core.queue_statistics(1).head == 4
    assert rig.core.live_places(1) == 0


def test_ends_in_a_transaction_count_with_its_commit(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume(AckMode.CLIENT)
    give(rig, consumer, 1, 2)
    with pytest.raises(ValueError):
        rig.core.finish(1, [3], transaction=5)
    rig.core.begin(5, 1000, 3)
    with pytest.raises(ValueError):
        rig.core.finish(1, [3])
    assert rig.core.finish(1, [3], transaction=5) == 1
    assert rig.core.finish_held(consumer, 2, transaction=5) == 1
    rig.publish(b"dead letter", transaction=5)
    rig.core.commit(5)
    torn = rig.restored()
    assert torn.core.queue_statistics(1).ready == 6, "the commit is not written"
    rig.flush()
    again = rig.restored()
    again.go_on()
    again.load(again.consume())
    assert seen(again) == [1, 4, 5, 6, 7]


def test_a_branch_holds_what_it_ends(rig: CoreRig) -> None:
    filled(rig, 4)
    consumer = rig.consume()
    give(rig, consumer, 3)
    rig.core.set_aside(1, 1)
    rig.core.begin(5, 1000, 3, branch=True)
    assert rig.core.finish(1, [1, 2], transaction=5) == 2
    assert rig.core.finish_held(consumer, 3, transaction=5) == 1
    rig.core.prepare(5, b"")
    rig.flush()
    counters = rig.core.queue_statistics(1)
    assert (counters.prepared, counters.aside, counters.ready, counters.delivering) == (3, 0, 1, 0)
    rig.core.resolve(5, commit=False)
    rig.flush()
    assert seen(rig) == [1, 2, 3, 4]
    assert rig.core.queue_statistics(1).prepared == 0


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.INDIVIDUAL])
def test_one_held_message_ends_alone(rig: CoreRig, mode: AckMode) -> None:
    filled(rig)
    consumer = rig.consume(mode)
    give(rig, consumer, 4, 2, 6, 1)
    assert rig.core.finish_held(consumer, 3) == 0, "nobody has it"
    assert rig.core.finish_held(consumer, 2) == 1
    assert rig.core.finish_held(consumer, 2) == 0
    assert rig.core.acknowledge(consumer, 1) == (3 if mode is AckMode.CLIENT else 1)
    rig.flush()
    assert ended(rig)[0] == (2, 1)
    assert rig.core.holder(rig.connection, 1, 4) == (-1 if mode is AckMode.CLIENT else consumer)


def test_the_last_held_message_ends_alone_and_frees_its_credit(rig: CoreRig) -> None:
    filled(rig, 2)
    consumer = rig.consume(AckMode.CLIENT, credit=1)
    assert ids(rig.deliver(consumer)) == [1]
    rig.core.take_ready_queues()
    assert rig.core.finish_held(consumer, 1) == 1
    assert rig.core.take_ready_queues() == [1]
    assert ids(rig.deliver(consumer)) == [2]


# --- setting aside ------------------------------------------------------------------------------


def test_what_is_set_aside_is_given_to_nobody(rig: CoreRig) -> None:
    filled(rig)
    assert rig.core.set_aside(1, 1)
    assert rig.core.set_aside(1, 4)
    assert not rig.core.set_aside(1, 4)
    assert not rig.core.set_aside(1, 7)
    assert not rig.core.put_back(1, 2)
    counters = rig.core.queue_statistics(1)
    assert (counters.aside, counters.ready, counters.head, counters.next) == (2, 4, 1, 2)
    assert seen(rig) == [2, 3, 5, 6]
    views = rig.core.look(1, 0, 9, everything=True).messages
    assert [v.sequence for v in views if v.is_aside] == [1, 4]
    assert not any(v.is_held for v in views)
    consumer = rig.consume()
    assert give(rig, consumer, 4) == (DeliverStatus.DRAINED, [], 1)
    assert rig.core.body(1, 4) == b"4"
    assert ids(rig.deliver(consumer)) == [2, 3, 5, 6]
    rig.core.take_ready_queues()
    assert rig.core.put_back(1, 4)
    assert not rig.core.put_back(1, 4)
    assert rig.core.queue_statistics(1).put_back == 1
    assert rig.core.take_ready_queues() == [1]
    (view,) = rig.core.look(1, 0, 9).messages
    assert (view.sequence, view.is_returned, view.deliveries) == (4, True, 0)
    assert ids(rig.deliver(consumer)) == [4]
    assert rig.core.acknowledge(consumer, 2) == 1
    assert rig.core.queue_statistics(1).head == 1, "the first one is still there"


def test_what_came_back_can_be_set_aside(rig: CoreRig) -> None:
    filled(rig, 2)
    consumer = rig.consume()
    rig.deliver(consumer)
    rig.core.give_back(consumer, 1)
    assert rig.core.set_aside(1, 1)
    assert ids(rig.deliver(consumer)) == []
    rig.core.put_back(1, 1)
    frames = rig.deliver(consumer)
    assert ids(frames) == [1]
    assert b"delivery-count:1\n" in frames[0]


def test_it_comes_back_to_its_place(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume()
    for sequence in (2, 5):
        rig.core.set_aside(1, sequence)
    assert ids(rig.deliver(consumer, 2)) == [1, 3]
    for sequence in (5, 2):
        rig.core.put_back(1, sequence)
    assert rig.core.next_deliverable(1) == 2
    assert ids(rig.deliver(consumer)) == [2, 4, 5, 6]


def test_a_restart_puts_everything_back(rig: CoreRig) -> None:
    filled(rig)
    rig.core.set_aside(1, 2)
    rig.flush()
    again = rig.restored()
    counters = again.core.queue_statistics(1)
    assert (counters.ready, counters.aside) == (6, 0)


def test_purge_and_drop_take_what_is_set_aside(rig: CoreRig) -> None:
    filled(rig)
    consumer = rig.consume()
    give(rig, consumer, 3)
    rig.core.set_aside(1, 2)
    assert rig.core.purge_queue(1) == 5
    assert seen(rig, everything=True) == [3]
    assert not rig.core.put_back(1, 2)
    rig.core.close_consumer(consumer)
    rig.core.set_aside(1, 3)
    rig.core.drop_queue(1)
    assert rig.core.live_places(1) == 0


def test_what_is_set_aside_moves_with_compaction(rig: CoreRig) -> None:
    rig.add_file()
    filled(rig, 3)
    rig.core.set_aside(1, 2)
    rig.publish(b"special", special=True)
    rig.flush()
    while rig.core.current_file() == 1:
        rig.publish(bytes(15 * KIB))
        rig.flush()
    for slab in range(rig.file_bytes // SLAB):
        while (moved := rig.relocate(1, slab)).is_absent:
            loaded = rig.core.load_begin(1, slab)
            assert loaded is not None
            address, length, offset = loaded
            ctypes.memmove(address, bytes(rig.files[1][offset : offset + length]), length)
            rig.core.load_done(1, slab, good=True)
        assert not moved.next_offset
    rig.flush()
    assert rig.core.live_places(1) == 0
    assert rig.core.queue_statistics(1).aside == 1
    assert rig.core.put_back(1, 2)
    assert rig.core.body(1, 2) == b"2"
    again = rig.restored(without=(1,))
    again.go_on()
    again.load(again.consume())
    views = again.core.look(1, 0, 4).messages
    assert [(view.sequence, view.is_special) for view in views][:4] == [
        (1, False), (2, False), (3, False), (4, True),
    ]  # fmt: skip


# --- special messages ---------------------------------------------------------------------------


@pytest.mark.parametrize("large", [False, True])
def test_deliver_gives_nothing_while_there_is_a_special_message(
    rig: CoreRig, *, large: bool
) -> None:
    filled(rig, 2)
    rig.publish(REFERENCE, special=True, large=large)
    rig.publish(b"4")
    rig.flush()
    consumer = rig.consume()
    nothing = (DeliverStatus.SPECIAL, 0, b"")
    assert rig.core.deliver(consumer, 100, PLENTY) == nothing
    assert rig.core.next_deliverable(1) == 1
    (view,) = rig.core.look(1, 3, 1).messages
    assert (view.is_special, view.is_large) == (True, large)
    if large:
        assert give(rig, consumer, 3)[0] == DeliverStatus.LARGE
        assert rig.core.give_large(consumer, 3) is not None
    else:
        assert give(rig, consumer, 3) == (DeliverStatus.DRAINED, [3], 1)
    assert rig.core.deliver(consumer, 100, PLENTY) == nothing
    rig.core.specials_seen(1)
    assert ids(rig.deliver(consumer)) == [1, 2, 4]
    rig.core.give_back(consumer, 3)
    assert rig.core.deliver(consumer, 100, PLENTY) == nothing
    assert rig.core.set_aside(1, 3)
    assert rig.core.deliver(consumer, 100, PLENTY)[0] == DeliverStatus.DRAINED
    rig.core.specials_seen(1)
    assert rig.core.put_back(1, 3)
    assert rig.core.deliver(consumer, 100, PLENTY) == nothing
    assert rig.core.next_deliverable(1) == 3
    assert rig.core.finish(1, [3]) == 1


def test_a_special_message_counts_anew_after_a_restart_and_when_its_consumer_closes(
    rig: CoreRig,
) -> None:
    filled(rig, 1)
    rig.publish(b"2", special=True)
    rig.flush()
    rig.core.specials_seen(1)
    again = rig.restored()
    again.go_on()
    consumer = again.consume()
    assert again.core.deliver(consumer, 100, PLENTY)[0] == DeliverStatus.SPECIAL
    again.core.specials_seen(1)
    again.load(consumer)
    assert give(again, consumer, 2) == (DeliverStatus.DRAINED, [2], 1)
    again.core.close_consumer(consumer)
    assert again.core.deliver(again.consume(), 100, PLENTY)[0] == DeliverStatus.SPECIAL


def test_a_special_member_of_a_branch(rig: CoreRig) -> None:
    rig.core.begin(5, 1000, 3, branch=True)
    rig.publish(b"member", transaction=5, special=True)
    rig.core.prepare(5, b"")
    rig.flush()
    again = rig.restored()
    again.go_on()
    again.core.resolve(5, commit=True)
    again.flush()
    assert again.core.deliver(again.consume(), 1, PLENTY)[0] == DeliverStatus.SPECIAL


def test_a_special_message_counts_when_its_branch_ends(rig: CoreRig) -> None:
    rig.core.begin(5, 1000, 3, branch=True)
    rig.publish(b"member", transaction=5, special=True)
    rig.core.prepare(5, b"")
    rig.flush()
    consumer = rig.consume()
    assert rig.core.deliver(consumer, 1, PLENTY)[0] == DeliverStatus.DRAINED
    rig.core.specials_seen(1)
    rig.core.resolve(5, commit=True)
    rig.flush()
    assert rig.core.deliver(consumer, 1, PLENTY)[0] == DeliverStatus.SPECIAL
