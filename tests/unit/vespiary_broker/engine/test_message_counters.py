"""Message counters: what each sample finds, what hours and days keep, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.departures import leave
from vespiary_broker.engine.message_counters import Counts, MessageCounters
from vespiary_broker.engine.moves import Reason
from vespiary_broker.engine.queues import Queue
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do

HOUR_MS = 3_600_000
NOON_MS = 1_700_049_600_000 - 1_700_049_600_000 % (24 * HOUR_MS) + 12 * HOUR_MS


def counters_of(
    rig: Rig, days: Callable[[str], int] = lambda _: 10, hours_max: int = 1000
) -> MessageCounters:
    registry = rig.registry
    return MessageCounters(
        rig.core, registry.queues_by_id, registry.addresses, days, hours_max=hours_max
    )


def sample(counters: MessageCounters, now_ms: int) -> int:
    """Take one sample; return the number of its steps."""
    return len(list(counters.sample(now_ms)))


def queue_on(rig: Rig, name: str, address: str) -> Queue:
    queue: Queue = do(rig.registry.create_queue(name, address, RoutingType.MULTICAST))
    return queue


def test_each_sample_finds_what_happened_since_the_last():
    rig = Rig({"#": AddressSettings(dead_letter_address="DLQ", expiry_address="DLQ")})
    queue = queue_on(rig, "q", "orders")
    queue_on(rig, "DLQ", "DLQ")
    counters = counters_of(rig)
    for number in range(6):
        rig.send("/topic/orders", b"%d" % number)
    rig.turn()
    sample(counters, NOON_MS)
    assert counters.of_queue(queue).total == Counts(added=6)
    output = rig.output()
    consumer = rig.subscribe(output, "orders::q", AckMode.INDIVIDUAL, credit=3)
    rig.turn()
    rig.core.acknowledge(consumer.handle, 1)
    rig.core.give_back(consumer.handle, 2)
    for view in rig.core.look(queue.id, 5, 2).messages:
        reason = Reason.EXPIRED if view.sequence == 5 else Reason.DELIVERIES
        assert leave(rig.core, rig.engine.fates.mover, queue, view, reason)
    rig.turns()
    rig.turn()
    given = queue.delivered
    assert given >= 4, "what came back is given again"
    sample(counters, NOON_MS + 10_000)
    counter = counters.of_queue(queue)
    assert counter.delta == Counts(0, given, 1, 1, 1)
    assert counter.total == Counts(6, given, 1, 1, 1)
    assert (counter.last_add_ms, counter.last_ack_ms) == (NOON_MS, NOON_MS + 10_000)
    sample(counters, NOON_MS + 20_000)
    assert counter.delta == Counts()
    assert counter.updated_ms == NOON_MS + 20_000
    assert counters.of_address("orders").total == counter.total
    assert counters.of_address("DLQ").total.added == 2


def test_an_address_sums_its_queues_and_keeps_what_those_that_go_had():
    rig = Rig()
    first, _ = queue_on(rig, "a", "news"), queue_on(rig, "b", "news")
    counters = counters_of(rig)
    rig.send("/topic/news", b"x")
    rig.turn()
    sample(counters, NOON_MS)
    rig.registry.drop_queue(first)
    rig.send("/topic/news", b"y")
    rig.turn()
    sample(counters, NOON_MS + 10_000)
    assert counters.of_address("news").total.added == 3
    assert counters.of_queue(first).updated_ms == 0, "it is forgotten"


def test_hours_and_days_are_kept_as_long_as_asked_for():
    rig = Rig()
    queues = {name: queue_on(rig, name, name) for name in ("long", "short", "none")}
    counters = counters_of(rig, {"long": 3, "short": 1, "none": 0}.__getitem__)
    for hours in (0, 1, 12, 30, 53, 77):
        for name in queues:
            rig.send(f"/topic/{name}", b"x")
        rig.turn()
        sample(counters, NOON_MS + hours * HOUR_MS)
    days = counters.of_queue(queues["long"]).days()
    assert [[hour.hour for hour in day.hours] for day in days] == [[0, 18], [17], [17]]
    assert [day.counts.added for day in days] == [2, 1, 1]
    assert [day.date for day in days] == sorted({day.date for day in days})
    (today,) = counters.of_address("short").days()
    assert [hour.hour for hour in today.hours] == [17]
    assert counters.of_queue(queues["none"]).days() == ()
    assert counters.of_queue(queues["none"]).total.added == 6
    counters.reset(counters.of_queue(queues["long"]))
    assert (counters.of_queue(queues["long"]).total, counters.of_queue(queues["long"]).days()) == (
        Counts(),
        (),
    )
    counters.reset()
    assert counters.of_address("short").total == Counts()
    rig.send("/topic/long", b"x")
    rig.turn()
    sample(counters, NOON_MS + 78 * HOUR_MS)
    assert counters.of_queue(queues["long"]).total == Counts(added=1)


def test_the_history_of_many_queues_takes_bounded_memory():
    rig = Rig()
    queues = [queue_on(rig, f"q{number}", f"a{number}") for number in range(200)]
    counters = counters_of(rig, hours_max=500)
    for hour in range(6):
        for number in range(200):
            rig.send(f"/topic/a{number}", b"x")
        rig.turn()
        assert sample(counters, NOON_MS + hour * HOUR_MS) > 3, "in several steps"
        assert counters.hours <= 500
    days = [day for number in range(200) for day in counters.of_address(f"a{number}").days()]
    kept = {hour.hour for day in days for hour in day.hours}
    assert kept == {16, 17}, "the oldest went first"
    for queue in queues:
        rig.registry.drop_queue(queue)
    sample(counters, NOON_MS + 7 * HOUR_MS)
    assert counters.of_queue(queues[0]).days() == ()


def test_a_queue_where_nothing_happens_has_no_history():
    rig = Rig()
    queue = queue_on(rig, "q", "a")
    counters = counters_of(rig)
    for hour in range(5):
        sample(counters, NOON_MS + hour * HOUR_MS)
    assert counters.hours == 0
    assert counters.of_queue(queue).updated_ms == NOON_MS + 4 * HOUR_MS


def test_an_hour_that_is_begun_again_after_resets_takes_the_room_of_one():
    rig = Rig()
    queue = queue_on(rig, "q", "a")
    counters = counters_of(rig, hours_max=3)
    for _ in range(5):
        counters.reset()
        rig.send("/topic/a", b"x")
        rig.turn()
        sample(counters, NOON_MS)
    assert counters.hours <= 3
    for counter in (counters.of_queue(queue), counters.of_address("a")):
        assert [day.counts for day in counter.days()] == [Counts(added=1)]
