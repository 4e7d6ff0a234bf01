"""Slow consumers: who is one, and what becomes of it. The clock is the test's."""

from __future__ import annotations

import logging

import pytest

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.consumers import SlowConsumerPolicy, SlowConsumerUnit
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import FakeOutput, Rig, sequence_of

LOGGER = "vespiary_broker.engine.slow_consumers"


def rig_with(
    policy: SlowConsumerPolicy = SlowConsumerPolicy.KILL, threshold: int = 2, **more: object
) -> Rig:
    """Return an engine in which consumers of q have to take 2 messages a second, over 5 s."""
    settings = AddressSettings(
        slow_consumer_threshold=threshold,
        slow_consumer_policy=policy,
        **more,  # type: ignore[arg-type]
    )
    return Rig({"q": settings})


def send(rig: Rig, count: int) -> None:
    for number in range(count):
        rig.send("/queue/q", b"%d" % number)


def scan(rig: Rig, after_s: float = 0.0) -> None:
    rig.now_s += after_s
    for _ in rig.engine.slow_consumers.scan():
        pass


def acknowledge(rig: Rig, consumer: Consumer, output: FakeOutput, count: int) -> None:
    for frame in output.frames()[:count]:
        rig.core.acknowledge(consumer.handle, sequence_of(frame))


@pytest.mark.parametrize(("acknowledged", "is_slow"), [(9, True), (10, False)])
def test_who_acknowledges_less_than_the_threshold_is_slow(acknowledged: int, is_slow: bool) -> None:
    rig = rig_with()
    send(rig, 20)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    rig.turns()
    scan(rig)
    acknowledge(rig, consumer, output, acknowledged)
    scan(rig, 4.9)
    assert not output.refusal
    scan(rig, 0.1)
    assert bool(output.refusal) is is_slow
    statistics = rig.engine.slow_consumers.statistics()
    assert (statistics.detected, statistics.killed) == (is_slow, is_slow)


def test_the_error_names_rate_and_threshold() -> None:
    rig = rig_with(slow_consumer_threshold_measurement_unit=SlowConsumerUnit.MESSAGES_PER_MINUTE)
    send(rig, 5)
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    rig.turns()
    scan(rig)
    scan(rig, 60)
    assert "0 messages acknowledged a minute, where 2 are asked for" in output.refusal
    assert "'s' of the queue q" in output.refusal


@pytest.mark.parametrize("unit", list(SlowConsumerUnit))
def test_units(unit: SlowConsumerUnit) -> None:
    rig = rig_with(
        slow_consumer_threshold_measurement_unit=unit, slow_consumer_check_period=unit.seconds
    )
    send(rig, 4)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    rig.turns()
    scan(rig)
    acknowledge(rig, consumer, output, 2)
    scan(rig, unit.seconds)
    assert not output.refusal
    scan(rig, unit.seconds)
    assert output.refusal


def test_too_few_messages_make_nobody_slow() -> None:
    rig = rig_with()
    send(rig, 9)
    output = rig.output()
    rig.subscribe(output, "/queue/q")
    rig.turns()
    scan(rig)
    scan(rig, 5)
    assert not output.refusal
    send(rig, 1)  # what comes in the period counts as well
    rig.turns()
    scan(rig, 5)
    assert output.refusal


def test_there_must_be_enough_for_all_consumers() -> None:
    rig = rig_with()
    send(rig, 19)
    outputs = rig.output(), rig.output()
    for output in outputs:
        rig.subscribe(output, "/queue/q")
    rig.turns()
    scan(rig)
    scan(rig, 5)
    assert not any(output.refusal for output in outputs)
    send(rig, 1)
    rig.turns()
    scan(rig, 5)
    assert all(output.refusal for output in outputs)


def test_who_was_left_nothing_is_not_slow() -> None:
    rig = rig_with()
    busy, idle = rig.output(), rig.output()
    consumer = rig.subscribe(busy, "/queue/q")
    rig.subscribe(idle, "/queue/q", selector="n = 1")
    scan(rig)
    send(rig, 40)
    rig.turns()
    acknowledge(rig, consumer, busy, 20)
    scan(rig, 5)
    assert (busy.refusal, idle.refusal) == ("", "")


def test_who_does_not_read_is_slow() -> None:
    rig = rig_with()
    output = rig.output(room=100)
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    scan(rig)
    send(rig, 20)
    rig.turns()
    assert output.room <= 0
    scan(rig, 5)
    assert output.refusal


def test_automatic_acknowledgement_counts_what_has_left() -> None:
    rig = rig_with()
    output = rig.output()
    rig.subscribe(output, "/queue/q", AckMode.AUTO)
    scan(rig)
    send(rig, 20)
    rig.turns()
    output.room = 0
    scan(rig, 5)
    assert not output.refusal


def test_what_is_given_back_is_not_acknowledged() -> None:
    rig = rig_with()
    send(rig, 20)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=20)
    rig.turns()
    scan(rig)
    for frame in output.frames()[:10]:
        rig.registry.returns.give_back(consumer, sequence_of(frame))
    scan(rig, 5)
    assert output.refusal


def test_who_comes_in_a_period_and_paused_queues_are_not_measured() -> None:
    rig = rig_with()
    send(rig, 100)
    first, late = rig.output(), rig.output()
    consumer = rig.subscribe(first, "/queue/q", credit=10)
    rig.turns()
    scan(rig)
    rig.subscribe(late, "/queue/q", credit=10)
    rig.turns()
    consumer.queue.is_paused = True
    scan(rig, 5)
    assert (first.refusal, late.refusal) == ("", "")
    consumer.queue.is_paused = False
    scan(rig)
    late_one = rig.output()
    rig.subscribe(late_one, "/queue/q", credit=10)
    scan(rig, 5)
    assert first.refusal
    assert late.refusal
    assert not late_one.refusal


def test_notify_logs_once_and_again_after_it_was_fast(caplog: pytest.LogCaptureFixture) -> None:
    rig = rig_with(SlowConsumerPolicy.NOTIFY)
    send(rig, 100)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", credit=50)
    rig.turns()
    with caplog.at_level(logging.WARNING, LOGGER):
        scan(rig)
        for _ in range(3):
            scan(rig, 5)
        assert len(caplog.records) == 1
        assert "0 messages acknowledged a second, where 2 are asked for" in caplog.text
        acknowledge(rig, consumer, output, 10)
        scan(rig, 5)
        scan(rig, 5)
    assert len(caplog.records) == 2
    assert not output.refusal
    statistics = rig.engine.slow_consumers.statistics()
    assert (statistics.detected, statistics.killed) == (4, 0)


def test_consumers_of_non_destructive_queues() -> None:
    rig = rig_with(default_non_destructive=True)
    send(rig, 20)
    slow, fast = rig.output(), rig.output()
    rig.subscribe(slow, "/queue/q")
    consumer = rig.subscribe(fast, "/queue/q")
    rig.turns()
    scan(rig)
    assert consumer.view is not None
    for frame in fast.frames():
        consumer.view.acknowledge(sequence_of(frame))
    scan(rig, 5)
    assert (bool(slow.refusal), bool(fast.refusal)) == (True, False)


def test_nothing_is_kept_of_consumers_and_queues_that_are_gone() -> None:
    rig = rig_with(SlowConsumerPolicy.NOTIFY)
    send(rig, 20)
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    rig.turns()
    scan(rig)
    scan(rig, 5)
    close_subscription(rig.core, rig.registry, consumer)
    scan(rig, 1)
    slow_consumers = rig.engine.slow_consumers
    assert not slow_consumers._periods
    assert not slow_consumers._told


def test_without_a_threshold_there_is_no_scan() -> None:
    assert Rig({"q": AddressSettings()}).engine.slow_consumers.period_s == 0
    assert rig_with().engine.slow_consumers.period_s > 0
