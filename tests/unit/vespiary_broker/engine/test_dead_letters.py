"""Dead letters: when, where to, with which headers, all or nothing, and what is dropped."""

from __future__ import annotations

import contextlib
import logging
from itertools import pairwise
from typing import Any

import pytest

from vespiary_broker.engine.core import AckMode, NoRoom
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    decode_record,
    walk_records,
)
from vespiary_spec.errors import JournalFull
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.memory_journal import MemoryJournal


def rig_with(*, journal: MemoryJournal | None = None, **settings: Any) -> Rig:
    values = {"dead_letter_address": "DLQ", "max_delivery_attempts": 2} | settings
    return Rig({"#": AddressSettings(**values)}, journal=journal)


def ready(rig: Rig, queue: str) -> int:
    found = rig.registry.queues.get(queue)
    return rig.core.queue_statistics(found.id).ready if found is not None else -1


def fill(rig: Rig) -> None:
    """Leave no room for messages in the journal."""
    with contextlib.suppress(NoRoom):
        while True:
            rig.core.append_record(5, bytes(60_000))
            rig.journal.flush()


def fail(rig: Rig, consumer: Consumer, *sequences: int, times: int = 2) -> None:
    """Have messages delivered and given back so often."""
    for _ in range(times):
        rig.turn()
        for sequence in sequences:
            rig.registry.returns.give_back(consumer, sequence)
        rig.dispatcher.poke(consumer.queue.id)
    rig.turn()
    rig.turn()


def test_a_place_that_was_made_brings_the_turn_that_moves_to_it() -> None:
    rig, woken = rig_with(), []
    rig.engine.fates.wake = lambda: woken.append(ready(rig, "DLQ"))
    consumer = rig.subscribe(rig.output(), "/queue/orders")
    rig.send("/queue/orders", b"x")
    fail(rig, consumer, 1)
    assert woken == [0]


def test_a_message_is_moved_after_its_last_attempt_with_its_origin() -> None:
    rig = rig_with()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    rig.send("/queue/q", b"poison")
    rig.send("/queue/q", b"good")
    rig.turn()
    fail(rig, consumer, 1, times=1)
    assert ready(rig, "DLQ") == -1
    output.frames()
    fail(rig, consumer, 1, times=1)
    assert output.bodies() == []  # it does not come again
    assert ready(rig, "DLQ") == 1
    dead = rig.output()
    rig.subscribe(dead, "/queue/DLQ")
    rig.turn()
    (frame,) = dead.frames()
    assert frame.body == b"poison"
    assert dict(frame.headers) | {
        "destination": "DLQ",
        "_AMQ_ORIG_ADDRESS": "q",
        "_AMQ_ORIG_QUEUE": "q",
        "_AMQ_ORIG_MESSAGE_ID": f"{consumer.queue.id}-1",
        "_AMQ_ORIG_ROUTING_TYPE": "ANYCAST",
        "_AMQ_ORIG_DELIVERIES": "2",
    } == dict(frame.headers)
    assert frame.get("redelivered") is None
    assert rig.engine.fates.statistics().dead == 1
    statistics = rig.core.queue_statistics(consumer.queue.id)
    assert (statistics.aside, statistics.delivering, statistics.acknowledged) == (0, 1, 1)


def test_a_lost_consumer_makes_dead_letters_of_what_it_held() -> None:
    rig = rig_with(max_delivery_attempts=1)
    consumer = rig.subscribe(rig.output(), "/queue/q", AckMode.CLIENT)
    for _ in range(200):
        rig.send("/queue/q", b"x")
    rig.turn()
    close_subscription(rig.core, rig.registry, consumer)
    while rig.engine.fates.mover.has_work:
        rig.turn()
    rig.turn()
    assert (ready(rig, "q"), ready(rig, "DLQ")) == (0, 200)


def test_without_an_address_it_is_dropped_and_told_once_a_queue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = rig_with(dead_letter_address="")
    consumer = rig.subscribe(rig.output(), "/queue/q")
    for _ in range(3):
        rig.send("/queue/q", b"x")
    with caplog.at_level(logging.WARNING):
        fail(rig, consumer, 1)
        fail(rig, consumer, 2, 3)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "dead-letter-address" in told[0]
    assert "queue=q" in told[0]
    statistics = rig.engine.fates.statistics()
    assert (statistics.dead, statistics.dead_dropped) == (0, 3)
    assert rig.core.queue_statistics(consumer.queue.id).acknowledged == 3


def test_a_dead_letter_stays_where_it_is_however_often_it_is_delivered() -> None:
    rig = rig_with()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/DLQ")
    rig.send("/queue/DLQ", b"x")
    delays = []
    for _ in range(10):
        fail(rig, consumer, 1, times=1)
        next_ms = rig.engine.fates.redelivery.next_ms
        if next_ms is not None:
            delays.append(next_ms - rig.now_ms)
            rig.now_ms = next_ms
        rig.turn()
    assert [round(delay / 1000) for delay in delays] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert output.bodies()[-1] == b"x"
    assert rig.engine.fates.statistics().dead_dropped == 0


def test_an_address_that_exists_gets_them_by_its_routes() -> None:
    rig = rig_with()
    for name in ("audit", "repair"):
        do(rig.registry.create_queue(name, "DLQ", RoutingType.MULTICAST))
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.send("/queue/q", b"x")
    fail(rig, consumer, 1)
    assert (ready(rig, "audit"), ready(rig, "repair"), ready(rig, "DLQ")) == (1, 1, -1)


def test_a_place_that_may_not_be_made_keeps_them_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(
        {
            "#": AddressSettings(dead_letter_address="DLQ", max_delivery_attempts=1),
            "DLQ": AddressSettings(auto_create_queues=False, auto_create_addresses=False),
        }
    )
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.send("/queue/q", b"x")
    with caplog.at_level(logging.WARNING):
        fail(rig, consumer, 1, times=1)
    statistics = rig.engine.fates.statistics()
    assert (statistics.dead_dropped, statistics.dead_kept, statistics.delayed) == (0, 1, 1)
    assert caplog.text.count("cannot be made") == 1
    # Somebody makes it by hand: from then on it is used.
    do(rig.registry.create_queue("DLQ", "DLQ", RoutingType.ANYCAST))
    rig.send("/queue/q", b"y")
    fail(rig, consumer, 2)
    assert ready(rig, "DLQ") == 1


@pytest.mark.parametrize("reason", ["dead", "expired"])
def test_a_place_that_could_not_be_made_is_tried_again_less_and_less_often(reason: str) -> None:
    rig = rig_with(max_delivery_attempts=1, expiry_address="DLQ")
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.bindings.put_failure = JournalFull("the disk is full")
    if reason == "dead":
        rig.send("/queue/q", b"x")
        fail(rig, consumer, 1, times=1)
    else:
        route = rig.registry.queue_route(consumer.queue).next_handle()
        properties = b"destination:q\nexpires:%d\n" % rig.now_ms
        rig.core.publish(route, properties, b"late", persistent=True, special=True)
    tries = []
    for _ in range(400):
        before = len(rig.bindings.puts)
        rig.turn()
        if reason == "dead" and rig.core.queue_statistics(consumer.queue.id).delivering:
            rig.registry.returns.give_back(consumer, 1)
        if len(rig.bindings.puts) > before:
            tries.append(rig.now_ms)
        rig.now_ms += 1000
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert len(gaps) >= 5
    assert gaps == sorted(gaps)
    assert gaps[-1] <= 125_000
    statistics = rig.engine.fates.statistics()
    assert (statistics.dead_dropped, statistics.expired_dropped) == (0, 0)
    rig.bindings.put_failure = None
    for _ in range(200):
        rig.turn()
        if reason == "dead" and rig.core.queue_statistics(consumer.queue.id).delivering:
            rig.registry.returns.give_back(consumer, 1)
        rig.now_ms += 1000
    assert (ready(rig, "DLQ"), ready(rig, "q")) == (1, 0)


def test_each_original_address_gets_a_queue_of_its_own() -> None:
    rig = rig_with(
        auto_create_dead_letter_resources=True,
        dead_letter_queue_prefix="dead-",
        dead_letter_queue_suffix="-queue",
        max_delivery_attempts=1,
    )
    do(rig.registry.create_queue("all", "DLQ", RoutingType.MULTICAST))
    for name in ("a", "b"):
        consumer = rig.subscribe(rig.output(), f"/queue/{name}")
        rig.send(f"/queue/{name}", name.encode())
        fail(rig, consumer, 1, times=1)
    assert [ready(rig, name) for name in ("dead-a-queue", "dead-b-queue", "all")] == [1, 1, 2]
    assert rig.registry.queues["dead-a-queue"].address.name == "DLQ"
    assert rig.registry.queues["dead-a-queue"].is_auto_created


def test_what_was_moved_before_is_let_in_by_the_queue_of_the_address_it_died_in() -> None:
    rig = rig_with(
        auto_create_dead_letter_resources=True,
        auto_create_expiry_resources=True,
        expiry_address="expired",
        max_delivery_attempts=1,
    )
    queue = do(rig.registry.create_queue("q", "q", RoutingType.ANYCAST))
    route = rig.registry.queue_route(queue).next_handle()
    properties = b"destination:q\nexpires:%d\n" % rig.now_ms
    rig.core.publish(route, properties, b"late", persistent=True, special=True)
    rig.subscribe(rig.output(), "/queue/q")
    for _ in range(3):
        rig.turn()
    assert ready(rig, "EXP.q") == 1
    consumer = rig.subscribe(rig.output(), "expired::EXP.q")
    fail(rig, consumer, 1, times=1)
    assert (ready(rig, "EXP.q"), ready(rig, "DLQ.expired")) == (0, 1)
    (view,) = rig.core.look(rig.registry.queues["DLQ.expired"].id, 0, 9).messages
    assert b"_AMQ_ORIG_ADDRESS:expired\n" in view.properties
    assert b"_AMQ_ORIG_QUEUE:EXP.q\n" in view.properties


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_dead_letter_that_no_queue_of_the_dead_letter_address_takes_stays(
    caplog: pytest.LogCaptureFixture, *, is_closed: bool
) -> None:
    rig = rig_with(max_delivery_attempts=1)
    traits = QueueTraits(selector=compile_filter("colour = 'red'"))
    if is_closed:
        traits = QueueTraits(is_purged_when_unused=True)
    do(rig.registry.create_queue("DLQ", "DLQ", RoutingType.ANYCAST, traits=traits))
    consumer = rig.subscribe(rig.output(), "/queue/q", credit=1)
    rig.send("/queue/q", b"x")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            fail(rig, consumer, 1, times=1)
            rig.now_ms += 10_000
        rig.turn()
    assert caplog.text.count("no queue there takes") == 1
    statistics = rig.core.queue_statistics(consumer.queue.id)
    assert (statistics.delivering, statistics.acknowledged) == (1, 0)
    assert rig.engine.fates.statistics().dead == 0


def test_an_expired_message_that_no_queue_of_the_expiry_address_takes_is_dropped() -> None:
    rig = rig_with(expiry_address="expired")
    traits = QueueTraits(selector=compile_filter("colour = 'red'"))
    do(rig.registry.create_queue("expired", "expired", RoutingType.ANYCAST, traits=traits))
    queue = do(rig.registry.create_queue("q", "q", RoutingType.ANYCAST))
    route = rig.registry.queue_route(queue).next_handle()
    for colour in (b"red", b"blue"):
        properties = b"destination:q\nexpires:%d\ncolour:%b\n" % (rig.now_ms, colour)
        rig.core.publish(route, properties, colour, persistent=True, special=True)
    rig.subscribe(rig.output(), "/queue/q")
    for _ in range(3):
        rig.turn()
    assert (ready(rig, "q"), ready(rig, "expired")) == (0, 1)
    statistics = rig.engine.fates.statistics()
    assert (statistics.expired, statistics.expired_dropped) == (1, 1)
    assert not rig.engine.fates.mover.has_work


def test_the_move_is_one_transaction() -> None:
    rig = rig_with(max_delivery_attempts=1)
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.send("/queue/q", b"x")
    rig.turn()
    rig.registry.returns.give_back(consumer, 1)
    rig.journal.flush()
    rig.journal.written = []
    rig.engine.fates.work()
    # Nobody sees it before that is durable.
    assert ready(rig, "DLQ") == 0
    rig.journal.flush()
    assert ready(rig, "DLQ") == 1
    (data,) = rig.journal.written
    block = data[64 : 64 + int.from_bytes(data[32:36], "little")]
    count = int.from_bytes(data[36:40], "little")
    records = [decode_record(record) for record in walk_records(block, count)]
    add, ack, commit = records
    assert isinstance(add, AddRecord)
    assert isinstance(ack, AckRecord)
    assert isinstance(commit, CommitRecord)
    assert add.transaction == ack.transaction == commit.transaction != 0
    assert commit.members == 2


def test_without_room_it_waits_and_goes_when_there_is_some() -> None:
    journal = MemoryJournal(files=1)
    rig = rig_with(journal=journal, max_delivery_attempts=1)
    asked = []
    rig.engine.fates.mover.on_no_room = lambda: asked.append(1)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    rig.send("/queue/q", b"x")
    do(rig.registry.create_queue("DLQ", "DLQ", RoutingType.ANYCAST))
    rig.turn()
    output.frames()
    fill(rig)
    rig.registry.returns.give_back(consumer, 1)
    rig.turn()
    assert asked
    assert output.bodies() == []
    assert not rig.engine.fates.has_more
    assert rig.engine.fates.mover.pending(consumer.queue.id) == 1
    journal.add_file()
    rig.engine.fates.go_on()
    rig.turn()
    rig.turn()
    assert ready(rig, "DLQ") == 1


def test_volatile_messages_stay_volatile_and_priorities_are_kept() -> None:
    rig = rig_with(max_delivery_attempts=1)
    consumer = rig.subscribe(rig.output(), "/queue/q")
    route = rig.registry.queue_route(consumer.queue).next_handle()
    rig.core.publish(
        route, b"destination:q\na:1\\n2\n", b"x", persistent=False, priority=9, escaped=True
    )
    fail(rig, consumer, 1, times=1)
    (view,) = rig.core.look(rig.registry.queues["DLQ"].id, 0, 9).messages
    assert (view.is_journalled, view.priority, view.is_escaped) == (False, 9, True)
    assert b"a:1\\n2\n" in view.properties


def test_what_was_moved_twice_keeps_its_first_origin() -> None:
    rig = Rig(
        {
            "q": AddressSettings(dead_letter_address="DLQ", max_delivery_attempts=1),
            "DLQ": AddressSettings(dead_letter_address="attic", max_delivery_attempts=1),
        }
    )
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.send("/queue/q", b"x")
    fail(rig, consumer, 1, times=1)
    again = rig.subscribe(rig.output(), "/queue/DLQ")
    fail(rig, again, 1, times=1)
    last = rig.output()
    rig.subscribe(last, "/queue/attic")
    rig.turn()
    (frame,) = last.frames()
    headers = dict(frame.headers)
    assert headers["_AMQ_ORIG_ADDRESS"] == "q"
    assert headers["_AMQ_ORIG_MESSAGE_ID"] == f"{consumer.queue.id}-1"
    assert headers["_AMQ_ORIG_QUEUE"] == "DLQ"
    assert len(frame.headers) == len(headers)  # none of them twice


def test_a_message_without_room_for_more_headers_goes_without_them() -> None:
    journal = MemoryJournal(record_bytes_max=20_000)
    rig = rig_with(journal=journal, max_delivery_attempts=1)
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.send("/queue/q", bytes(19_900))
    fail(rig, consumer, 1, times=1)
    (view,) = rig.core.look(rig.registry.queues["DLQ"].id, 0, 9).messages
    assert view.properties == b"destination:x\n"
    assert view.body_length == 19_900


def test_a_message_that_fits_nowhere_is_kept_and_named(caplog: pytest.LogCaptureFixture) -> None:
    journal = MemoryJournal(record_bytes_max=20_000)
    rig = rig_with(journal=journal, max_delivery_attempts=1)
    for name in ("a", "b"):
        do(rig.registry.create_queue(name, "DLQ", RoutingType.MULTICAST))
    consumer = rig.subscribe(rig.output(), "/queue/q")
    rig.send("/queue/q", bytes(20_000 - 24 - 16 - 14))
    rig.send("/queue/q", b"small")
    with caplog.at_level(logging.ERROR):
        fail(rig, consumer, 1, 2, times=1)
    assert "cannot be moved" in caplog.text
    assert ready(rig, "a") == 1
    assert rig.core.queue_statistics(consumer.queue.id).aside == 1
