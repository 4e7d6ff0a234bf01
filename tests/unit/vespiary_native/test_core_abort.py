"""A transaction that is given up: nothing of it counts, and the next one can begin."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vespiary_codec.journal.branch import RollbackRecord
from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference
from vespiary_codec.journal.record import AckRecord, AddRecord
from vespiary_native.abc import AckMode, NoRoom
from vespiary_testkit.core_rig import CoreRig, ids

NUMBER = 77


@pytest.fixture
def begun(rig: CoreRig) -> CoreRig:
    """Return a rig with ten messages of which five are given out: one came back, one is aside."""
    for _ in range(10):
        rig.publish()
    rig.flush()
    return rig


def test_nothing_of_it_counts(begun: CoreRig) -> None:
    consumer = begun.consume()
    assert ids(begun.deliver(consumer, 5)) == [1, 2, 3, 4, 5]
    begun.core.give_back(consumer, 2)
    assert begun.core.set_aside(1, 7)
    before = begun.core.queue_statistics(1)
    begun.core.begin(NUMBER, 1000, 10)
    begun.publish(b"void", transaction=NUMBER)
    assert begun.core.acknowledge(consumer, 4, transaction=NUMBER) == 1
    assert begun.core.finish_held(consumer, 1, transaction=NUMBER) == 1
    assert begun.core.finish(1, [2, 7, 6, 9], transaction=NUMBER) == 4
    begun.core.abort(NUMBER)
    after = begun.core.queue_statistics(1)
    assert (after.ready, after.delivering, after.aside) == (
        before.ready, before.delivering, before.aside,
    )  # fmt: skip
    assert (after.added, after.acknowledged) == (before.added, before.acknowledged)
    assert after.live_bytes == before.live_bytes
    assert after.prepared == 0
    assert sorted(begun.core.held(consumer)) == [(1, 0), (3, 0), (4, 0), (5, 0)]
    begun.flush()
    assert not begun.core.put_back(1, 6)
    assert begun.core.put_back(1, 7)
    assert ids(begun.deliver(begun.consume())) == [2, 6, 7, 8, 9, 10]
    assert begun.core.acknowledge(consumer, 4) == 1


def test_another_one_begins_and_the_queue_goes_on(begun: CoreRig) -> None:
    begun.core.begin(NUMBER, 1000, 10)
    begun.publish(b"void", transaction=NUMBER)
    begun.core.finish(1, [1], transaction=NUMBER)
    begun.core.abort(NUMBER)
    with pytest.raises(ValueError):
        begun.core.abort(NUMBER)
    begun.core.begin(NUMBER + 1, 1000, 10)
    begun.publish(b"good", transaction=NUMBER + 1)
    begun.core.finish(1, [2], transaction=NUMBER + 1)
    begun.core.commit(NUMBER + 1)
    begun.publish(b"after")
    begun.flush()
    consumer = begun.consume()
    frames = begun.deliver(consumer)
    assert ids(frames) == [1, *range(3, 13)]
    assert [frame.rsplit(b"\n", 1)[1] for frame in frames[-2:]] == [b"good", b"after"]


def test_a_recovery_finds_no_part_of_it(begun: CoreRig) -> None:
    begun.core.begin(NUMBER, 1000, 10)
    begun.publish(b"void", transaction=NUMBER)
    begun.core.finish(1, [1, 2], transaction=NUMBER)
    begun.core.abort(NUMBER)
    begun.publish(b"after")
    begun.flush()
    add, first, second, end, _ = begun.records()[10:]
    assert isinstance(add, AddRecord)
    assert isinstance(first, AckRecord)
    assert isinstance(second, AckRecord)
    assert isinstance(end, RollbackRecord)
    assert (end.transaction, end.members) == (NUMBER, 3)
    again = begun.restored()
    assert again.dropped == 0
    statistics = again.core.queue_statistics(1)
    assert (statistics.ready, statistics.tail) == (11, 12)
    facts, _ = begun.blocks()[-1]
    begun.files[1][facts.offset :] = bytes(len(begun.files[1]) - facts.offset)
    assert begun.restored().core.queue_statistics(1).ready == 10


def test_without_records_no_trace_is_left(begun: CoreRig) -> None:
    before = begun.core.queue_statistics(1)
    begun.core.begin(NUMBER, 1000, 10)
    for _ in range(200):
        begun.publish(b"volatile", persistent=False, transaction=NUMBER)
    begun.core.abort(NUMBER)
    assert begun.core.queue_statistics(1) == before
    assert not begun.core.has_unwritten()
    begun.publish(b"next", persistent=False)
    assert ids(begun.deliver(begun.consume())) == list(range(1, 12))


@pytest.mark.parametrize("is_journalled", [True, False])
def test_what_failed_half_way_leaves_nothing(begun: CoreRig, is_journalled: bool) -> None:
    begun.core.begin(NUMBER, 1000, 10)
    begun.publish(b"void", persistent=is_journalled, transaction=NUMBER)
    with pytest.raises(ValueError):
        begun.publish(bytes(60_000), transaction=NUMBER)
    begun.core.abort(NUMBER)
    begun.flush()
    assert begun.core.queue_statistics(1).ready == 10
    assert begun.restored().core.queue_statistics(1).ready == 10


def test_cumulative_consumers_hold_in_their_order_again(begun: CoreRig) -> None:
    other = begun.consume(credit=2)
    assert ids(begun.deliver(other)) == [1, 2]
    consumer = begun.consume(AckMode.CLIENT)
    assert ids(begun.deliver(consumer, 3)) == [3, 4, 5]
    begun.core.close_consumer(other)
    assert ids(begun.deliver(consumer, 3)) == [1, 2, 6]
    begun.core.begin(NUMBER, 1000, 20)
    assert begun.core.finish_held(consumer, 1, transaction=NUMBER) == 1
    assert begun.core.acknowledge(consumer, 4, transaction=NUMBER) == 2
    assert begun.core.finish_held(consumer, 6, transaction=NUMBER) == 1
    begun.core.abort(NUMBER)
    assert begun.core.held_count(consumer) == 6
    assert begun.core.acknowledge(consumer, 1) == 4  # 3, 4, 5 and 1
    assert [one for one, _ in begun.core.held(consumer)] == [2, 6]
    assert begun.core.acknowledge(consumer, 6) == 2
    assert begun.core.held_count(consumer) == 0


def test_a_branch_is_given_up_before_it_is_prepared(begun: CoreRig) -> None:
    consumer = begun.consume(credit=3)
    begun.deliver(consumer)
    begun.core.begin(NUMBER, 1000, 10, branch=True)
    begun.publish(b"void", transaction=NUMBER)
    assert begun.core.acknowledge(consumer, 2, transaction=NUMBER) == 1
    begun.core.abort(NUMBER)
    assert begun.core.branches() == []
    assert begun.core.held_count(consumer) == 3
    begun.flush()
    statistics = begun.core.queue_statistics(1)
    assert (statistics.ready, statistics.prepared, statistics.added) == (7, 0, 10)
    again = begun.restored()
    assert again.core.branches() == []
    assert again.core.queue_statistics(1).ready == 10
    begun.core.begin(NUMBER + 1, 1000, 10)
    begun.core.commit(NUMBER + 1)


def test_a_body_that_has_another_place_stays(rig: CoreRig) -> None:
    body = encode_large_reference(LargeReference(5, 1 << 20, 9))
    rig.publish(body, large=True)
    rig.flush()
    rig.core.begin(NUMBER, 1000, 10)
    rig.publish(body, large=True, transaction=NUMBER)
    rig.core.finish(1, [1], transaction=NUMBER)
    rig.core.abort(NUMBER)
    rig.flush()
    assert [one.large_id for one in rig.core.live_large()] == [5]
    assert rig.core.take_done_large() == []
    rig.core.begin(NUMBER + 1, 1000, 10)
    rig.publish(encode_large_reference(LargeReference(6, 1, 9)), large=True, transaction=NUMBER + 1)
    rig.core.abort(NUMBER + 1)
    rig.flush()
    assert rig.core.take_done_large() == []
    assert [one.large_id for one in rig.core.live_large()] == [5]
    assert rig.core.queue_statistics(1).ready == 1


def test_a_body_is_staged_again_and_named_once(rig: CoreRig) -> None:
    """Its caller keeps it over an abort, so nothing may have it removed under the second try."""
    rig.core.open_queue(2)
    route = rig.core.open_route([1, 2])
    body = encode_large_reference(LargeReference(6, 1 << 20, 9))
    for number, end in ((NUMBER, rig.core.abort), (NUMBER + 1, rig.core.commit)):
        rig.core.begin(number, 1000, 10)
        rig.core.publish(route, b"", body, persistent=True, large=True, transaction=number)
        end(number)
        rig.flush()
        assert rig.core.take_done_large() == []
    assert [one.large_id for one in rig.core.live_large()] == [6]
    assert rig.core.finish(1, [1]) == rig.core.finish(2, [1]) == 1
    rig.flush()
    assert rig.core.take_done_large() == [6]
    assert rig.core.live_large() == []


def test_it_needs_no_room(make: Callable[..., CoreRig]) -> None:
    rig = make(files=1, file_bytes=96 * 1024).begin()
    rig.core.begin(NUMBER, 30 * 1024, 4)

    def fill() -> None:
        for _ in range(100):
            rig.publish(bytes(10 * 1024), transaction=NUMBER)

    with pytest.raises(NoRoom):
        fill()
    rig.core.abort(NUMBER)
    assert rig.core.queue_statistics(1).ready == 0
    rig.add_file()
    rig.flush()
    rig.publish(b"next")
    rig.flush()
    assert rig.restored().core.queue_statistics(1).ready == 1
