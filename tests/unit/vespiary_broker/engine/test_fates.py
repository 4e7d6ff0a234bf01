"""Special messages: scheduled and expired ones, at their turn, by the scan and after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.expiry import _QUEUE_COST
from vespiary_broker.engine.message_times import MessageTimes, stamp
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.turn_time import SHARE_S
from vespiary_native.choice import open_core
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.refusing_core import RefusingCore
from vespiary_testkit.turn_clock import TurnClock

PERIOD_MS = 30_000


def rig_with(**settings: Any) -> Rig:
    return Rig({"#": AddressSettings(**settings)}, scan_period_ms=PERIOD_MS)


def queue_of(rig: Rig, name: str = "q") -> Queue:
    queue: Queue = do(rig.registry.create_queue(name, name, RoutingType.ANYCAST))
    return queue


def send(
    rig: Rig,
    queue: Queue,
    body: bytes,
    *,
    expires_ms: int = 0,
    deliver_at_ms: int = 0,
    lines: bytes = b"",
) -> None:
    """Send a special message as a session does."""
    times = MessageTimes(expires_ms, deliver_at_ms)
    route = rig.registry.queue_route(queue).next_handle()
    rig.engine.fates.special_sent()
    rig.core.publish(
        route, stamp(b"destination:q\n" + lines, times), body, persistent=True, special=True
    )


def ready(rig: Rig, name: str) -> int:
    queue = rig.registry.queues.get(name)
    return -1 if queue is None else rig.core.queue_statistics(queue.id).ready


def settle(rig: Rig) -> None:
    """Do all that is due now."""
    rig.turn()
    while rig.engine.fates.has_more:
        rig.journal.flush()
        rig.engine.fates.work()
        rig.engine.fates.arrived(rig.core.take_ready_queues())
    rig.turn()


# --- scheduled ------------------------------------------------------------------------------------


def test_a_scheduled_message_is_not_delivered_before_its_time_and_others_pass_it() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    send(rig, queue, b"later", deliver_at_ms=rig.now_ms + 5000)
    rig.send("/queue/q", b"now")
    rig.turn()
    assert output.bodies() == [b"now"]
    assert rig.engine.fates.schedule.waiting.count(queue.id) == 1
    while output.data == b"":
        next_ms = rig.engine.fates.next_ms
        assert next_ms is not None
        rig.now_ms = max(next_ms, rig.now_ms)
        assert rig.now_ms <= 1_005_000
        rig.turn()
    assert rig.now_ms == 1_005_000
    (frame,) = output.frames()
    assert (frame.body, frame.get("AMQ_SCHEDULED_TIME")) == (b"later", "1005000")
    assert frame.get("redelivered") is None
    assert rig.engine.fates.statistics().scheduled == 0


def test_scheduled_messages_are_counted_before_anybody_asks_for_them() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    for number in range(700):
        send(rig, queue, b"%d" % number, deliver_at_ms=rig.now_ms + 60_000 + number)
    rig.journal.flush()
    rig.engine.fates.arrived(rig.core.take_ready_queues())
    settle(rig)
    assert rig.engine.fates.schedule.waiting.count(queue.id) == 700
    statistics = rig.core.queue_statistics(queue.id)
    assert (statistics.ready, statistics.aside) == (0, 700)


def test_messages_scheduled_for_the_same_time_come_in_their_order() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    output = rig.output()
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    for number in range(1000):
        send(rig, queue, b"%d" % number, deliver_at_ms=rig.now_ms + 100)
    for _ in range(10):
        rig.turn()
    assert rig.engine.fates.statistics().scheduled == 1000
    rig.now_ms += 99
    for _ in range(20):
        rig.turn()
    assert output.bodies() == []
    rig.now_ms += 1
    came: list[bytes] = []
    for _ in range(20):
        rig.turn()
        came += output.bodies()
    assert came == [b"%d" % number for number in range(1000)]


@pytest.mark.parametrize("wait_ms", [1, 2, 5])
def test_a_stream_of_scheduled_messages_comes_while_others_are_set_aside(wait_ms: int) -> None:
    rig = rig_with()
    queue = queue_of(rig)
    output = rig.output()
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    came: list[bytes] = []
    for number in range(20):
        send(rig, queue, b"%d" % number, deliver_at_ms=rig.now_ms + wait_ms)
        rig.turn()
        came += output.bodies()
        assert len(came) == max(0, number + 1 - wait_ms)
        rig.now_ms += 1
    for _ in range(wait_ms):
        rig.turn()
        came += output.bodies()
        rig.now_ms += 1
    assert came == [b"%d" % number for number in range(20)]


def test_scheduled_messages_come_in_the_order_of_their_times() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    output = rig.output()
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    waits = [90_000, 10, 5_000, 20, 7_000, 5_001]
    for wait_ms in waits:
        send(rig, queue, b"%d" % wait_ms, deliver_at_ms=rig.now_ms + wait_ms)
    settle(rig)
    began_ms, came = rig.now_ms, []
    while rig.engine.fates.statistics().scheduled:
        next_ms = rig.engine.fates.next_ms
        assert next_ms is not None
        rig.now_ms = max(rig.now_ms, next_ms)
        settle(rig)
        for body in output.bodies():
            assert int(body) <= rig.now_ms - began_ms
            came.append(int(body))
    assert came == sorted(waits)


def test_after_a_restart_scheduled_messages_still_wait() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    send(rig, queue, b"later", deliver_at_ms=rig.now_ms + 5000)
    settle(rig)
    again = restarted(rig)
    settle(again)
    assert again.engine.fates.schedule.waiting.count(queue.id) == 1
    output = again.output()
    again.subscribe(output, "/queue/q")
    again.now_ms += 4999
    settle(again)
    assert output.bodies() == []
    again.now_ms += 1
    settle(again)
    assert output.bodies() == [b"later"]


def restarted(rig: Rig) -> Rig:
    """Return the engine as a new start finds it: nothing aside, nothing in its tables."""
    for queue in rig.registry.queues_by_id.values():
        for view in rig.core.look(queue.id, 0, 1000, everything=True).messages:
            if view.is_aside:
                rig.core.put_back(queue.id, view.sequence)
    again = Rig({"#": AddressSettings()}, journal=rig.journal, bindings=rig.bindings)
    again.registry.restore()
    again.now_ms = rig.now_ms
    return again


# --- expired --------------------------------------------------------------------------------------


def test_an_expired_message_is_never_delivered() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    send(rig, queue, b"short", expires_ms=rig.now_ms + 100)
    send(rig, queue, b"long", expires_ms=rig.now_ms + 100_000)
    rig.send("/queue/q", b"plain")
    rig.now_ms += 100
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    settle(rig)
    assert output.bodies() == [b"long", b"plain"]
    assert rig.engine.fates.statistics().expired_dropped == 1
    statistics = rig.core.queue_statistics(queue.id)
    assert (statistics.acknowledged, statistics.aside) == (1, 0)


def test_just_before_its_time_a_message_is_delivered() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    send(rig, queue, b"short", expires_ms=rig.now_ms + 100)
    rig.now_ms += 99
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    rig.turn()
    assert output.bodies() == [b"short"]


def test_the_scan_reaps_within_its_period_where_nobody_consumes() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    for number in range(3000):
        expires_ms = rig.now_ms + 1000 if number % 3 == 0 else rig.now_ms + 10 * PERIOD_MS
        send(rig, queue, b"%d" % number, expires_ms=expires_ms)
    settle(rig)
    assert ready(rig, "q") == 3000
    rig.now_ms += PERIOD_MS
    settle(rig)
    assert ready(rig, "q") == 2000
    rig.now_ms += 10 * PERIOD_MS
    settle(rig)
    assert ready(rig, "q") == 0
    assert rig.engine.fates.statistics().expired_dropped == 3000


def test_without_a_scan_it_waits_for_its_turn() -> None:
    rig = Rig(scan_period_ms=-1)
    queue = queue_of(rig)
    send(rig, queue, b"x", expires_ms=rig.now_ms + 1)
    rig.now_ms += 10 * PERIOD_MS
    settle(rig)
    assert ready(rig, "q") == 1
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    settle(rig)
    assert (ready(rig, "q"), output.bodies()) == (0, [])


def test_expired_messages_go_to_their_address_with_the_time() -> None:
    rig = rig_with(expiry_address="EXPIRED")
    queue = queue_of(rig)
    send(rig, queue, b"x", expires_ms=rig.now_ms + 5)
    settle(rig)
    rig.now_ms += PERIOD_MS
    settle(rig)
    output = rig.output()
    rig.subscribe(output, "/queue/EXPIRED")
    settle(rig)
    (frame,) = output.frames()
    headers = dict(frame.headers)
    assert headers["_AMQ_ACTUAL_EXPIRY"] == str(rig.now_ms)
    assert (headers["_AMQ_ORIG_QUEUE"], headers["destination"]) == ("q", "EXPIRED")
    assert "expires" not in headers
    assert rig.engine.fates.statistics().expired == 1


def test_each_address_has_an_expiry_queue_of_its_own_if_asked_for() -> None:
    rig = rig_with(
        expiry_address="EXPIRED",
        auto_create_expiry_resources=True,
        expiry_queue_prefix="old.",
        expiry_queue_suffix=".x",
    )
    for name in ("a", "b"):
        send(rig, queue_of(rig, name), b"x", expires_ms=rig.now_ms)
    settle(rig)
    assert (ready(rig, "old.a.x"), ready(rig, "old.b.x")) == (1, 1)


def test_what_expires_in_the_expiry_address_is_dropped() -> None:
    rig = rig_with(expiry_address="EXPIRED")
    send(rig, queue_of(rig, "EXPIRED"), b"x", expires_ms=rig.now_ms)
    settle(rig)
    assert (ready(rig, "EXPIRED"), rig.engine.fates.statistics().expired_dropped) == (0, 1)


def test_a_scheduled_message_may_expire_before_its_time() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    send(rig, queue, b"x", expires_ms=rig.now_ms + 10, deliver_at_ms=rig.now_ms + 100 * PERIOD_MS)
    settle(rig)
    assert rig.core.queue_statistics(queue.id).aside == 1
    rig.now_ms += PERIOD_MS
    settle(rig)
    assert rig.engine.fates.statistics().expired_dropped == 1
    assert rig.core.queue_statistics(queue.id).aside == 0


def test_a_held_message_expires_when_it_comes_back() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    send(rig, queue, b"x", expires_ms=rig.now_ms + 10)
    rig.turn()
    assert output.bodies() == [b"x"]
    rig.now_ms += 2 * PERIOD_MS
    settle(rig)
    assert rig.core.queue_statistics(queue.id).delivering == 1
    close_subscription(rig.core, rig.registry, consumer)
    rig.now_ms += PERIOD_MS
    settle(rig)
    assert rig.engine.fates.statistics().expired_dropped == 1


def test_a_restart_finds_what_has_expired_meanwhile() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    send(rig, queue, b"x", expires_ms=rig.now_ms + 10)
    rig.send("/queue/q", b"plain")
    rig.journal.flush()
    again = restarted(rig)
    again.now_ms += 20
    settle(again)
    assert ready(again, "q") == 1
    assert again.engine.fates.statistics().expired_dropped == 1


def test_a_long_row_of_expired_messages_is_ended_over_several_turns() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    for _ in range(2000):  # more than one turn looks at
        send(rig, queue, b"", expires_ms=rig.now_ms)
        rig.journal.flush()
    rig.send("/queue/q", b"behind")
    rig.journal.flush()
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    rig.dispatcher.dispatch(rig.core.take_ready_queues())
    assert output.bodies() == []
    assert rig.dispatcher.has_more
    for _ in range(10):
        rig.turn()
    assert output.bodies() == [b"behind"]


def test_a_message_of_a_prepared_branch_is_found_after_its_end() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    route = rig.registry.queue_route(queue).next_handle()
    rig.core.begin(5, 100, 1, branch=True)
    properties = stamp(b"destination:q\n", MessageTimes(rig.now_ms + 10, 0))
    rig.core.publish(route, properties, b"x", persistent=True, special=True, transaction=5)
    rig.core.prepare(5, bytes(40))
    rig.journal.flush()
    rig.now_ms += PERIOD_MS
    settle(rig)
    expiry = rig.engine.fates._expiry
    before = expiry._cost
    assert list(expiry.discover(queue)) == []
    assert expiry._cost == before + _QUEUE_COST, "while it is prepared nothing is looked at again"
    rig.core.resolve(5, commit=True)
    rig.journal.flush()
    rig.now_ms += PERIOD_MS
    settle(rig)
    assert rig.engine.fates.statistics().expired_dropped == 1


@pytest.mark.parametrize("name", ["q", "other"])
def test_a_queue_that_goes_leaves_nothing_behind(name: str) -> None:
    rig = rig_with()
    queue, other = queue_of(rig), queue_of(rig, "other")
    for each in (queue, other):
        send(rig, each, b"x", deliver_at_ms=rig.now_ms + 5000, expires_ms=rig.now_ms + 9000)
    settle(rig)
    assert rig.engine.fates.statistics().scheduled == 2
    rig.registry.drop_queue(rig.registry.queues[name])
    assert rig.engine.fates.statistics().scheduled == 1
    rig.now_ms += PERIOD_MS
    settle(rig)


def test_a_message_that_waits_for_credit_may_expire_meanwhile() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=1)
    for number in range(4):
        expires_ms = rig.now_ms + 100 if number in (1, 2) else 0
        send(rig, queue, b"%d" % number, expires_ms=expires_ms)
    settle(rig)
    assert output.bodies() == [b"0"]  # the others were looked at, and wait
    rig.now_ms += 100
    rig.core.acknowledge(consumer.handle, 1)
    settle(rig)
    assert output.bodies() == [b"3"]
    assert rig.engine.fates.statistics().expired_dropped == 2


# --- what cannot be read, too much at once, and clocks that somebody sets ------------------------


def filled_queues(rig: Rig, names: tuple[str, ...], expires_ms: int) -> None:
    """Fill queues with more messages than there is memory for, which all expire."""
    for name in names:
        queue = queue_of(rig, name)
        for number in range(30):
            send(rig, queue, b"%d-" % number + bytes(400_000), expires_ms=expires_ms)
            rig.journal.flush()


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_cannot_be_read_does_not_keep_others_from_expiring(*, is_lost: bool) -> None:
    journal = MemoryJournal(open_core(slabs_max=8, record_bytes_max=490 * 1024), files=32)
    rig = Rig(journal=journal, scan_period_ms=PERIOD_MS)
    filled_queues(rig, ("a", "b"), rig.now_ms + 100)
    small = queue_of(rig, "c")
    send(rig, small, b"x", expires_ms=rig.now_ms + 100)
    rig.now_ms += 200
    refused: set[tuple[int, int]] = set()
    for _ in range(400):
        rig.turn()
        while rig.loads:
            place = rig.loads.pop()
            refused.add(place)
            if is_lost:
                rig.engine.fates.slab_lost(*place)
            else:
                rig.engine.fates.slab_not_read(*place)
        if not rig.engine.fates.has_more:
            break
    assert refused, "nothing had to be loaded"
    assert ready(rig, "c") == 0, "a queue behind those was not looked at"
    statistics = rig.engine.fates.statistics()
    assert statistics.unreadable_parts == (len(refused) if is_lost else 0)
    if is_lost:
        # Parts of a and b that are in memory have expired too.
        assert 1 < statistics.expired_dropped < 61
        assert ready(rig, "a") + ready(rig, "b") == 61 - statistics.expired_dropped
    else:  # it is asked for again by the next scan
        rig.now_ms += PERIOD_MS
        rig.turn()
        assert refused.intersection(rig.loads)


def test_a_lost_part_is_news_once() -> None:
    rig = rig_with()
    assert rig.engine.fates.slab_lost(3, 1)
    assert not rig.engine.fates.slab_lost(3, 1)
    assert rig.engine.fates.statistics().unreadable_parts == 1


def test_many_that_expire_at_once_are_taken_out_as_fast_as_they_are_found() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    total = 20_000
    for _ in range(total):
        send(rig, queue, b"", expires_ms=rig.now_ms + 100)
    other = queue_of(rig, "other")
    send(rig, other, b"", expires_ms=rig.now_ms + 100)
    rig.journal.flush()
    settle(rig)
    rig.now_ms += PERIOD_MS
    most, other_left_after = 0, 0
    for _ in range(1000):
        rig.journal.flush()
        rig.engine.fates.work()
        most = max(most, rig.engine.fates.mover.pending(queue.id))
        other_left_after += bool(ready(rig, "other"))
        if not rig.engine.fates.has_more:
            if not ready(rig, "q"):
                break
            next_ms = rig.engine.fates.next_ms
            assert next_ms is not None
            assert next_ms - rig.now_ms <= 100, "the rest must not wait for the next period"
            rig.now_ms = max(rig.now_ms, next_ms)
    assert rig.engine.fates.statistics().expired_dropped == total + 1
    assert most <= 4096 + 1024
    assert other_left_after < 300, "one queue keeps the others from being looked at"


def test_a_clock_that_is_set_back_stops_neither_delays_nor_the_scan() -> None:
    rig = rig_with(redelivery_delay=5000)
    queue = queue_of(rig)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=1)
    rig.send("/queue/q", b"x")
    rig.turn()
    output.frames()
    rig.registry.returns.give_back(consumer, 1)
    settle(rig)
    hour_ms = 3_600_000
    rig.now_ms -= hour_ms // 4
    rig.set_ahead_ms -= hour_ms // 4  # somebody sets the clock back by a quarter of an hour
    idle = queue_of(rig, "idle")
    send(rig, idle, b"y", expires_ms=rig.now_ms + 100)
    next_ms = rig.engine.fates.next_ms
    assert next_ms is not None
    assert next_ms - rig.now_ms <= 5100
    rig.now_ms += 5100
    settle(rig)
    assert output.bodies() == [b"x"]
    rig.now_ms += PERIOD_MS
    settle(rig)
    assert ready(rig, "idle") == 0
    assert queue.consumers


def test_a_clock_that_is_set_forward_makes_no_delay_shorter() -> None:
    rig = rig_with(redelivery_delay=5000)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=1)
    rig.send("/queue/q", b"x")
    rig.turn()
    output.frames()
    rig.registry.returns.give_back(consumer, 1)
    settle(rig)
    rig.now_ms += 3_600_000
    rig.set_ahead_ms += 3_600_000
    settle(rig)
    assert output.bodies() == []
    rig.now_ms += 5100
    settle(rig)
    assert output.bodies() == [b"x"]


def test_scheduled_messages_go_by_the_clock_on_the_wall_however_it_is_set() -> None:
    rig = rig_with()
    queue = queue_of(rig)
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    at_ms = rig.now_ms + 10_000_000
    send(rig, queue, b"x", deliver_at_ms=at_ms)
    settle(rig)
    for change_ms in (-500_000, 5_000_000, -4_000_000):
        rig.now_ms += change_ms
        rig.set_ahead_ms += change_ms
        settle(rig)
        assert output.bodies() == []
    change_ms = at_ms - rig.now_ms
    rig.now_ms += change_ms
    rig.set_ahead_ms += change_ms
    settle(rig)
    assert output.bodies() == [b"x"]


def test_a_turn_looks_at_few_of_many_queues_that_special_messages_come_into() -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = Rig(journal=MemoryJournal(core), scan_period_ms=PERIOD_MS)
    queues = [queue_of(rig, f"q{number}") for number in range(500)]
    settle(rig)
    for queue in queues:
        send(rig, queue, b"", deliver_at_ms=rig.now_ms + 60_000)
    rig.journal.flush()
    rig.engine.fates.arrived(queue.id for queue in queues)
    before, most, turns = core.calls["look"], 0, 0
    while rig.engine.fates.has_more:
        rig.engine.fates.work()
        most = max(most, core.calls["look"] - before)
        before, turns = core.calls["look"], turns + 1
    assert rig.engine.fates.statistics().scheduled == 500
    assert most <= 64
    assert turns >= 8


def test_a_scan_looks_at_few_of_many_queues_in_a_turn() -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = Rig(journal=MemoryJournal(core), scan_period_ms=PERIOD_MS)
    for number in range(1000):
        queue_of(rig, f"q{number}")
    before, most = core.calls["queue_statistics"], 0
    while rig.engine.fates.has_more:
        rig.engine.fates.work()
        most = max(most, core.calls["queue_statistics"] - before)
        before = core.calls["queue_statistics"]
    assert 0 < most <= 200


def test_a_scan_looks_at_few_messages_at_once_that_have_long_headers() -> None:
    core = RefusingCore(open_core(slabs_max=64, record_bytes_max=490 * 1024))
    rig = Rig(journal=MemoryJournal(core), scan_period_ms=PERIOD_MS)
    queue = queue_of(rig)
    settle(rig)
    for number in range(200):
        lines = b"h:" + b"h" * 60_000 + b"\n" if number >= 100 else b""
        send(rig, queue, b"", expires_ms=rig.now_ms + 60_000, lines=lines)
    rig.journal.flush()
    looks: list[int] = []
    look = core.look

    def looked(*arguments: Any, **named: Any) -> Any:
        found = look(*arguments, **named)
        looks.append(sum(len(view.properties) for view in found.messages))
        return found

    core.look = looked  # type: ignore[method-assign]
    rig.engine.fates.arrived([queue.id])
    while rig.engine.fates.has_more:
        rig.engine.fates.work()
    assert sum(looks) > 100 * 60_000
    assert len([size for size in looks if size > 200_000]) <= 2, "then it asks for fewer"


def test_a_scan_goes_on_in_a_later_turn_if_others_have_used_this_one_up() -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = Rig(journal=MemoryJournal(core), scan_period_ms=PERIOD_MS)
    queue = queue_of(rig)
    settle(rig)
    clock = TurnClock(rig.engine.turn_time)
    send(rig, queue, b"", deliver_at_ms=rig.now_ms + 60_000)
    rig.journal.flush()
    rig.engine.fates.arrived([queue.id])
    rig.engine.turn_time.spend(SHARE_S)
    rig.engine.fates.work()
    assert rig.engine.fates.statistics().scheduled == 0
    assert rig.engine.fates.has_more
    clock.turn()
    rig.engine.fates.work()
    assert rig.engine.fates.statistics().scheduled == 1


def test_scheduled_messages_that_are_due_take_their_turns() -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = Rig(journal=MemoryJournal(core), scan_period_ms=PERIOD_MS)
    queue = queue_of(rig)
    settle(rig)
    for _ in range(200):
        send(rig, queue, b"", deliver_at_ms=rig.now_ms + 60_000)
    rig.journal.flush()
    rig.engine.fates.arrived([queue.id])
    settle(rig)
    assert rig.engine.fates.statistics().scheduled == 200
    clock = TurnClock(rig.engine.turn_time)
    core.look = clock.slow(core.look, SHARE_S / 20)  # type: ignore[method-assign]
    rig.now_ms += 60_000
    parts: list[int] = []
    while waiting := rig.engine.fates.statistics().scheduled:
        clock.turn()
        rig.engine.fates.work()
        parts.append(waiting - rig.engine.fates.statistics().scheduled)
        assert len(parts) < 200
    assert sum(parts) == 200
    assert max(parts) <= 48


def test_the_scan_has_turns_of_its_own_while_very_much_arrives() -> None:
    core = RefusingCore(open_core(slabs_max=16, record_bytes_max=490 * 1024))
    rig = Rig(journal=MemoryJournal(core), scan_period_ms=1000)
    old, busy = queue_of(rig, "old"), [queue_of(rig, f"busy{number}") for number in range(12)]
    settle(rig)
    send(rig, old, b"", expires_ms=rig.now_ms + 100)
    rig.journal.flush()
    rig.engine.fates.arrived([old.id])
    settle(rig)
    clock = TurnClock(rig.engine.turn_time)
    core.look = clock.slow(core.look, SHARE_S)  # type: ignore[method-assign]
    turns = 0
    while not core.queue_statistics(old.id).acknowledged:
        clock.turn()
        rig.now_ms += 20
        for queue in busy:
            send(rig, queue, b"", expires_ms=rig.now_ms + 1_000_000)
        rig.journal.flush()
        rig.engine.fates.arrived([queue.id for queue in busy])
        rig.engine.fates.work()
        rig.journal.flush()
        turns += 1
        assert turns < 500, "it expired 10 s ago, and is looked for each second"
