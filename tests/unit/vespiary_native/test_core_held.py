"""What consumers hold, special messages alone, and closing without counting: on both cores."""

from __future__ import annotations

from vespiary_codec.journal.record import CountRecord
from vespiary_native.abc import AckMode, DeliverStatus
from vespiary_testkit.core_rig import PLENTY, REFERENCE, CoreRig, filled, give, seen


def consumer(rig: CoreRig, mode: AckMode = AckMode.INDIVIDUAL, credit: int = 100) -> int:
    return rig.core.open_consumer(rig.connection, 1, mode, credit, b"s", 12)


def counts(rig: CoreRig) -> list[tuple[int, int]]:
    """Return (sequence, deliveries) of all COUNT records."""
    rig.flush()
    return [
        (record.sequence, record.deliveries)
        for file_id in rig.files
        for record in rig.records(file_id)
        if isinstance(record, CountRecord)
    ]


def test_what_a_consumer_holds_is_told_with_its_deliveries(rig: CoreRig) -> None:
    filled(rig)
    first = consumer(rig)
    assert rig.core.held(first) == []
    rig.core.deliver(first, 4, PLENTY)
    rig.core.give_back(first, 2)
    rig.core.deliver(first, 1, PLENTY)
    other = consumer(rig)
    rig.core.deliver(other, 1, PLENTY)
    assert rig.core.held(first) == [(1, 0), (2, 1), (3, 0), (4, 0)]
    assert rig.core.held(other) == [(5, 0)]
    assert rig.core.held(first, deliveries=1) == [(2, 1)]
    assert rig.core.held(first, deliveries=2) == []
    rig.core.acknowledge(first, 1)
    assert rig.core.held(first) == [(2, 1), (3, 0), (4, 0)]


def test_one_message_of_an_individual_consumer(rig: CoreRig) -> None:
    filled(rig)
    mine = consumer(rig)
    rig.core.deliver(mine, 4, PLENTY)
    assert rig.core.held(mine, 3) == [(3, 0)]
    assert rig.core.held(mine, 3, deliveries=1) == []
    assert rig.core.held(mine, 5) == []


def test_a_cumulative_consumer_gives_back_what_was_given_before(rig: CoreRig) -> None:
    filled(rig)
    mine = consumer(rig, AckMode.CLIENT)
    rig.core.deliver(mine, 4, PLENTY)
    assert rig.core.held(mine, 3) == [(1, 0), (2, 0), (3, 0)]
    rig.core.give_back(mine, 2)
    rig.core.deliver(mine, 2, PLENTY)  # 1 and 2 again, behind 3 and 4
    assert rig.core.held(mine, 1) == [(1, 1), (3, 0), (4, 0)]
    assert rig.core.held(mine, 4) == [(3, 0), (4, 0)]
    assert rig.core.held(mine) == [(1, 1), (2, 1), (3, 0), (4, 0)]
    count = len(rig.core.held(mine, 1))
    assert rig.core.give_back(mine, 1) == count


def test_held_over_gaps_of_whole_segments(rig: CoreRig) -> None:
    for _ in range(3000):
        rig.publish(b"", persistent=False)
    mine = consumer(rig, credit=5000)
    assert rig.core.deliver(mine, 3000, PLENTY)[1] == 3000
    for sequence in range(2, 2999):
        rig.core.acknowledge(mine, sequence)
    assert rig.core.held(mine) == [(1, 0), (2999, 0), (3000, 0)]


def test_special_messages_alone(rig: CoreRig) -> None:
    for number in range(1, 7):
        rig.publish(b"%d" % number, special=number % 3 == 0)
    rig.publish(REFERENCE, large=True, special=True)
    rig.flush()
    assert seen(rig, special_only=True) == [3, 6, 7]
    assert seen(rig, max_messages=1, special_only=True) == [3, 6, 7]
    mine = consumer(rig)
    give(rig, mine, 3)
    assert seen(rig, special_only=True) == [6, 7]
    assert seen(rig, special_only=True, everything=True) == [3, 6, 7]
    assert seen(rig, special_only=True, returned_only=True) == []
    rig.core.give_back(mine, 3)
    give(rig, mine, 1)
    rig.core.give_back(mine, 1)
    assert seen(rig, returned_only=True) == [1, 3]
    assert seen(rig, special_only=True, returned_only=True) == [3]


def test_plain_messages_are_passed_over_without_their_memory(rig: CoreRig) -> None:
    filled(rig)
    again = rig.restored()
    look = again.core.look(1, 0, 10, special_only=True)
    assert (look.messages, look.next_sequence, look.absent) == ([], 7, None)


def test_closing_may_leave_the_deliveries_as_they_were(rig: CoreRig) -> None:
    filled(rig, 3)
    mine = consumer(rig)
    rig.core.deliver(mine, 3, PLENTY)
    rig.core.give_back(mine, 2)
    rig.core.deliver(mine, 3, PLENTY)
    assert rig.core.close_consumer(mine, counted=False) == 3
    assert counts(rig) == [(2, 1)]
    statistics = rig.core.queue_statistics(1)
    assert (statistics.ready, statistics.redelivered) == (3, 4)
    other = consumer(rig)
    status, count, frames = rig.core.deliver(other, 3, PLENTY)
    assert (status, count) == (DeliverStatus.LIMIT, 3)
    assert frames.count(b"redelivered:true") == 1
    rig.core.close_consumer(other)
    assert counts(rig) == [(2, 1), (1, 1), (2, 2), (3, 1)]
