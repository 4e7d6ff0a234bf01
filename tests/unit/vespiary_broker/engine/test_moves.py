"""Moving messages: a full disk at each step, a bounded part of it in a turn, damaged files."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.selector import Selector, compile_selector
from vespiary_broker.engine.turn_time import SHARE_S
from vespiary_native.choice import open_core
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.refusing_core import RefusingCore
from vespiary_testkit.turn_clock import STEP_S, TurnClock


def rig_with(core: Any = None, **settings: Any) -> Rig:
    values = {"dead_letter_address": "DLQ", "expiry_address": "EXPIRED"} | settings
    return Rig({"#": AddressSettings(**values)}, journal=MemoryJournal(core, files=32))


def queue_of(rig: Rig, name: str) -> Queue:
    queue: Queue = do(rig.registry.create_queue(name, name, RoutingType.ANYCAST))
    return queue


def ready(rig: Rig, name: str) -> int:
    return rig.core.queue_statistics(rig.registry.queues[name].id).ready


def leave(rig: Rig, queue: Queue, reason: Reason = Reason.DELIVERIES) -> int:
    """Have all that waits in a queue leave it; return how many that are."""
    views = rig.core.look(queue.id, 0, 100_000).messages
    for view in views:
        assert rig.core.set_aside(queue.id, view.sequence)
        rig.engine.fates.mover.add(queue, view.sequence, reason)
    return len(views)


@pytest.mark.parametrize("step", ["begin", "finish", "publish"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_message_too_large_for_a_transaction_is_never_doubled(step: str, times: int) -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = rig_with(core)
    rig.engine.fates.mover._room_bytes = 100  # no transaction has room for it
    queue, _ = queue_of(rig, "q"), queue_of(rig, "DLQ")
    for body in (b"one", b"two"):
        rig.send("/queue/q", body)
    rig.journal.flush()
    assert leave(rig, queue) == 2
    core.refusals[step] = times
    for _ in range(2 * times + 4):
        rig.turn()
        rig.engine.fates.go_on()
    found = rig.core.look(rig.registry.queues["DLQ"].id, 0, 99).messages
    assert [rig.core.body(rig.registry.queues["DLQ"].id, v.sequence) for v in found] == [
        b"one",
        b"two",
    ]
    statistics = rig.core.queue_statistics(queue.id)
    assert (statistics.aside, statistics.acknowledged) == (0, 2)
    assert rig.engine.fates.statistics().dead == 2
    assert not rig.engine.fates.mover.pending(queue.id)


@pytest.mark.parametrize("reason", [Reason.DELIVERIES, Reason.EXPIRED])
@pytest.mark.parametrize("place", ["", "DLQ"])
@pytest.mark.parametrize("step", ["begin", "finish"])
def test_without_room_at_a_step_a_message_is_moved_or_dropped_once_later(
    step: str, place: str, reason: Reason
) -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = rig_with(core, dead_letter_address=place, expiry_address=place)
    queue, _ = queue_of(rig, "q"), queue_of(rig, "DLQ")
    for number in range(200):
        rig.send("/queue/q", b"%d" % number)
    rig.journal.flush()
    leave(rig, queue, reason)
    if step == "begin" or not place:  # in a transaction nothing but its begin may find no room
        core.refusals[step] = 2
    for _ in range(12):
        rig.turn()
        rig.engine.fates.go_on()
    assert ready(rig, "DLQ") == (200 if place else 0)
    statistics = rig.core.queue_statistics(queue.id)
    assert (statistics.aside, statistics.acknowledged) == (0, 200)
    mover = rig.engine.fates.mover
    assert (mover.moved[reason], mover.dropped[reason]) == ((200, 0) if place else (0, 200))


def test_a_turn_moves_a_bounded_part_and_serves_all_queues_in_turn() -> None:
    core = RefusingCore(open_core(slabs_max=64, record_bytes_max=490 * 1024))
    rig = rig_with(core)
    queues = [queue_of(rig, f"q{number}") for number in range(300)]
    queue_of(rig, "DLQ")
    for queue in queues:
        for _ in range(5):
            rig.send(f"/queue/{queue.name}", b"x")
        rig.journal.flush()
        leave(rig, queue)
    mover = rig.engine.fates.mover
    most = 0
    for turn in range(200):
        before = core.calls["publish"]
        mover.work()
        most = max(most, core.calls["publish"] - before)
        rig.journal.flush()
        if turn == 40:
            assert any(not mover.pending(queue.id) for queue in queues[200:])
        if not mover.has_work:
            break
    assert ready(rig, "DLQ") == 1500
    assert most <= 128


def slow_rig(method: str, step_s: float) -> tuple[Rig, TurnClock]:
    """Return a rig in which a method of the core takes so long, and its turns."""
    core = RefusingCore(open_core(slabs_max=64, record_bytes_max=490 * 1024))
    rig = rig_with(core)
    clock = TurnClock(rig.engine.turn_time)
    setattr(core, method, clock.slow(getattr(core, method), step_s))
    return rig, clock


def test_a_turn_moves_as_many_large_messages_as_it_has_time_for() -> None:
    rig, clock = slow_rig("publish", STEP_S)
    queue_of(rig, "DLQ")
    queues = [queue_of(rig, f"q{number}") for number in range(30)]
    for queue in queues:
        rig.send(f"/queue/{queue.name}", b"x", h="h" * 60_000)
    rig.journal.flush()
    assert sum(leave(rig, queue) for queue in queues) == 30
    mover, parts = rig.engine.fates.mover, []
    while mover.has_work:
        clock.turn()
        before_s = clock.now_s
        mover.work()
        mover.work()  # the work of a turn may be done twice: after a write as well
        parts.append(round((clock.now_s - before_s) / STEP_S))
        rig.journal.flush()
    assert ready(rig, "DLQ") == sum(parts) == 30
    assert max(parts) <= 4


def test_what_others_did_in_a_turn_is_taken_off_what_moves_have_of_it() -> None:
    rig, clock = slow_rig("publish", STEP_S)
    queue, _ = queue_of(rig, "q"), queue_of(rig, "DLQ")
    rig.send("/queue/q", b"x")
    rig.journal.flush()
    clock.turn()
    leave(rig, queue)
    rig.engine.turn_time.spend(SHARE_S)
    rig.engine.fates.work()
    rig.journal.flush()
    assert ready(rig, "DLQ") == 0
    assert rig.engine.fates.has_more
    assert clock.is_awaited
    clock.turn()
    rig.engine.fates.work()
    rig.journal.flush()
    assert ready(rig, "DLQ") == 1


@pytest.mark.parametrize("reason", [Reason.DELIVERIES, Reason.EXPIRED])
@pytest.mark.parametrize("copying_s", [0.0, 3 * SHARE_S])
def test_filters_of_the_target_take_their_turns_and_all_is_moved_in_the_end(
    copying_s: float, reason: Reason
) -> None:
    """Also if a message takes longer than a turn to be looked at: each turn asks a filter."""
    rig, clock = slow_rig("body", copying_s)
    target = {Reason.DELIVERIES: "DLQ", Reason.EXPIRED: "EXPIRED"}[reason]
    for number in range(10):
        selector = compile_selector(f"h IS NULL OR h LIKE '%_{number}%'")
        traits = QueueTraits(selector=selector)
        do(rig.registry.create_queue(f"d{number}", target, RoutingType.MULTICAST, traits=traits))
    queues = [queue_of(rig, f"q{number}") for number in range(3)]
    for queue in queues:
        for number in range(3):
            rig.send(f"/queue/{queue.name}", b"x", h=f"{'h' * 30_000}{number}")
    rig.journal.flush()
    assert sum(leave(rig, queue, reason) for queue in queues) == 9
    evaluations: list[int] = []
    mover, matches = rig.engine.fates.mover, Selector.matches

    def matches_slowly(self: Selector, values: Any) -> bool:
        clock.now_s += STEP_S
        evaluations[-1] += 1
        return matches(self, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Selector, "matches", matches_slowly)
        while mover.has_work:
            clock.turn()
            rig.now_ms += 5  # what expires is stamped with the time
            evaluations.append(0)
            mover.work()
            rig.journal.flush()
            assert len(evaluations) < 500
    assert [ready(rig, f"d{number}") for number in range(4)] == [3, 3, 3, 0]
    if reason is Reason.DELIVERIES:
        assert sum(evaluations) == 9 * 10, "none is asked twice about a message"
    assert 0 < max(evaluations) <= 4


def test_ten_thousand_queues_that_drop_are_served_a_few_in_a_turn() -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = rig_with(core, expiry_address="")
    queues = [queue_of(rig, f"q{number}") for number in range(1000)]
    for queue in queues:
        rig.send(f"/queue/{queue.name}", b"x")
    rig.journal.flush()
    for queue in queues:
        leave(rig, queue, Reason.EXPIRED)
    before = core.calls["finish"]
    rig.engine.fates.mover.work()
    assert 0 < core.calls["finish"] - before <= 64
    for _ in range(20):
        rig.engine.fates.mover.work()
    assert rig.engine.fates.mover.dropped[Reason.EXPIRED] == 1000


def test_what_cannot_be_read_stays_and_what_stands_behind_it_is_moved(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = rig_with(open_core(slabs_max=10, record_bytes_max=490 * 1024))
    queue, _ = queue_of(rig, "q"), queue_of(rig, "DLQ")
    for number in range(60):  # more than there is memory for
        rig.send("/queue/q", b"%d-" % number + bytes(400_000))
        rig.journal.flush()
    for sequence in range(1, 61):
        assert rig.core.set_aside(queue.id, sequence)
        rig.engine.fates.mover.add(queue, sequence, Reason.DELIVERIES)
    rig.turn()
    assert rig.loads, "nothing had to be loaded"
    with caplog.at_level(logging.ERROR):
        for _ in range(400):
            rig.turn()
            rig.engine.fates.go_on()
            if rig.loads:
                assert rig.engine.fates.slab_lost(*rig.loads.pop())
                rig.loads.clear()
    mover = rig.engine.fates.mover
    assert not mover.pending(queue.id)
    moved = ready(rig, "DLQ")
    assert 0 < moved < 60
    assert rig.core.queue_statistics(queue.id).aside == 60 - moved
    assert rig.engine.fates.statistics().unreadable_parts == len(mover.unreadable) > 1


@pytest.mark.parametrize("reason", [Reason.DELIVERIES, Reason.EXPIRED])
def test_what_the_core_does_not_take_comes_back_and_the_others_are_moved(
    reason: Reason, caplog: pytest.LogCaptureFixture
) -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = rig_with(core)
    queue = queue_of(rig, "q")
    for name in ("DLQ", "EXPIRED"):
        queue_of(rig, name)
    for body in (b"one", b"bad", b"three"):
        rig.send("/queue/q", body)
    rig.journal.flush()
    leave(rig, queue, reason)
    core.failures["publish"] = lambda route, properties, body: (
        ValueError("the test does not take it") if body == b"bad" else None
    )
    with caplog.at_level(logging.ERROR):
        for _ in range(6):
            rig.turn()
            rig.engine.fates.go_on()
    place = "DLQ" if reason is Reason.DELIVERIES else "EXPIRED"
    assert ready(rig, place) == 2
    assert rig.engine.fates.statistics().unmovable == queue.unmovable == 1
    assert not rig.engine.fates.mover.pending(queue.id)
    said = [record.getMessage() for record in caplog.records if "cannot be moved" in record.msg]
    assert len(said) == 1
    assert "queue=q" in said[0]
    del core.failures["publish"]
    rig.core.begin(7, 100, 1)  # the core has no open transaction
    rig.core.commit(7)
