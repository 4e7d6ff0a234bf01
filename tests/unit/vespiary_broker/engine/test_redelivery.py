"""Messages that come back: delays, the count of deliveries, and who is looked at at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.redelivery import redelivery_delay_ms
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.settings import ADDRESS_DEFAULTS, AddressSettings
from vespiary_testkit.engine_rig import FakeOutput, Rig


def rig_with(**settings: Any) -> Rig:
    return Rig({"#": AddressSettings(**settings)})


def filled(rig: Rig, count: int, mode: AckMode = AckMode.INDIVIDUAL) -> tuple[FakeOutput, Consumer]:
    """Have a consumer that holds messages 1 … count."""
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", mode)
    for number in range(1, count + 1):
        rig.send("/queue/q", b"%d" % number)
    rig.turn()
    assert len(output.bodies()) == count
    return output, consumer


def give_back(rig: Rig, consumer: Consumer, sequence: int) -> None:
    rig.registry.returns.give_back(consumer, sequence)
    rig.dispatcher.poke(consumer.queue.id)
    rig.turn()


@pytest.mark.parametrize(
    ("settings", "delays"),
    [
        ({}, [0, 0, 0]),
        ({"redelivery_delay": 100}, [100, 100, 100]),
        ({"redelivery_delay": 100, "redelivery_delay_multiplier": 2.0}, [100, 200, 400, 800, 1000]),
        (
            {
                "redelivery_delay": 100,
                "redelivery_delay_multiplier": 3.0,
                "max_redelivery_delay": 250,
            },
            [100, 250, 250],
        ),
        ({"redelivery_delay": 100, "max_redelivery_delay": 50}, [50, 50]),
        ({"redelivery_delay": 1, "redelivery_delay_multiplier": 1000.0}, [1, 10, 10]),
    ],
)
def test_delay_by_the_number_of_deliveries(settings: dict[str, Any], delays: list[int]) -> None:
    merged = msgspec.structs.replace(ADDRESS_DEFAULTS, **settings)
    found = [redelivery_delay_ms(merged, number, 0.5) for number in range(1, len(delays) + 1)]
    assert found == delays
    assert redelivery_delay_ms(merged, 65_535, 0.5) == delays[-1]


def test_the_delay_is_spread_by_chance_within_its_bounds() -> None:
    merged = msgspec.structs.replace(
        ADDRESS_DEFAULTS, redelivery_delay=1000, redelivery_collision_avoidance_factor=0.2
    )
    found = [redelivery_delay_ms(merged, 1, chance) for chance in (0.0, 0.25, 0.5, 0.999)]
    assert found == [800, 900, 1000, 1199]


def test_without_a_delay_a_message_comes_back_at_once() -> None:
    rig = rig_with()
    output, consumer = filled(rig, 2)
    give_back(rig, consumer, 1)
    (frame,) = output.frames()
    assert (frame.body, frame.get("delivery-count")) == (b"1", "1")
    assert rig.engine.fates.next_ms is not None  # the scan; nothing else
    assert rig.engine.fates.statistics().delayed == 0


def test_a_delayed_message_waits_and_others_do_not() -> None:
    rig = rig_with(redelivery_delay=500)
    output, consumer = filled(rig, 3)
    give_back(rig, consumer, 2)
    assert output.bodies() == []
    assert rig.core.queue_statistics(consumer.queue.id).aside == 1
    assert rig.engine.fates.statistics().delayed == 1
    rig.send("/queue/q", b"4")
    rig.turn()
    assert output.bodies() == [b"4"]
    rig.now_ms += 499
    rig.turn()
    assert output.bodies() == []
    rig.now_ms += 1 + 500 // 64
    rig.turn()
    (frame,) = output.frames()
    assert (frame.body, frame.get("redelivered"), frame.get("delivery-count")) == (
        b"2",
        "true",
        "1",
    )
    assert rig.engine.fates.statistics().delayed == 0


def test_a_lost_consumer_delays_all_that_it_held() -> None:
    rig = rig_with(redelivery_delay=100)
    _, consumer = filled(rig, 3)
    other = rig.output()
    rig.subscribe(other, "/queue/q")
    close_subscription(rig.core, rig.registry, consumer)
    rig.turn()
    assert other.bodies() == []
    rig.now_ms += 110
    rig.turn()
    assert sorted(other.bodies()) == [b"1", b"2", b"3"]


def test_an_orderly_end_counts_nothing_and_delays_nothing() -> None:
    rig = rig_with(redelivery_delay=100, max_delivery_attempts=1)
    _, consumer = filled(rig, 3)
    other = rig.output()
    rig.subscribe(other, "/queue/q")
    close_subscription(rig.core, rig.registry, consumer, counted=False)
    rig.turn()
    frames = other.frames()
    assert [frame.body for frame in frames] == [b"1", b"2", b"3"]
    assert {frame.get("redelivered") for frame in frames} == {None}


def test_a_cumulative_nack_delays_all_that_it_means() -> None:
    rig = rig_with(redelivery_delay=100)
    output, consumer = filled(rig, 4, AckMode.CLIENT)
    give_back(rig, consumer, 3)
    assert rig.core.queue_statistics(consumer.queue.id).aside == 3
    rig.now_ms += 110
    rig.turn()
    assert sorted(output.bodies()) == [b"1", b"2", b"3"]


def test_the_delay_grows_with_each_delivery() -> None:
    rig = rig_with(redelivery_delay=100, redelivery_delay_multiplier=2.0)
    output, consumer = filled(rig, 1)
    waits = []
    for _ in range(3):
        give_back(rig, consumer, 1)
        began_ms = rig.now_ms
        while not output.data:
            rig.now_ms += 10
            rig.turn()
        output.frames()
        waits.append(rig.now_ms - began_ms)
    assert waits == [100, 200, 400]


def test_a_queue_that_goes_is_forgotten() -> None:
    rig = rig_with(redelivery_delay=100)
    _, consumer = filled(rig, 2)
    queue = consumer.queue
    close_subscription(rig.core, rig.registry, consumer)
    assert rig.engine.fates.statistics().delayed == 2
    rig.registry.drop_queue(queue)
    assert rig.engine.fates.statistics().delayed == 0
    rig.now_ms += 200
    rig.turn()


def test_nothing_is_looked_at_when_every_message_may_come_again() -> None:
    rig = rig_with(max_delivery_attempts=-1)
    _, consumer = filled(rig, 2)
    assert rig.registry.returns.marked(consumer) == []
    for _ in range(30):
        give_back(rig, consumer, 1)
    assert rig.core.held(consumer.handle) == [(1, 30), (2, 0)]
