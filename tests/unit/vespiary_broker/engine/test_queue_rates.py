"""Rates of queues: what two samples of their counters say. The clock is the test's."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.queue_rates import NO_RATES, Rates
from vespiary_testkit.engine_rig import Rig, sequence_of


def test_rates_are_what_two_samples_differ_by() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    queue, rates = consumer.queue, rig.engine.rates
    assert rates.of(queue) == NO_RATES, "nothing ever came"
    rates.sample(queue)
    for number in range(10):
        rig.send("/queue/q", b"%d" % number)
    rig.turns()
    assert rates.of(queue) is None, "it was not sampled since they came"
    rates.sample(queue)
    assert rates.of(queue) is None
    for frame in output.frames()[:5]:
        rig.core.acknowledge(consumer.handle, sequence_of(frame))
    rig.send("/queue/q", b"more")
    rig.now_s += 2.0
    rates.sample(queue)
    assert rates.of(queue) == Rates(in_per_s=0.5, out_per_s=2.5)
    rig.now_s += 2.0
    rates.sample(queue)
    assert rates.of(queue) == NO_RATES


def test_messages_that_an_administrator_changes_neither_come_nor_leave() -> None:
    rig = Rig()
    rig.send("/queue/q", b"x")
    rig.turns()
    queue, rates = rig.registry.queues["q"], rig.engine.rates
    rates.sample(queue)
    queue.count_departed("changed", 1)
    rig.core.purge_queue(queue.id)
    rig.send("/queue/q", b"changed")
    rig.turns()
    rig.now_s += 1.0
    rates.sample(queue)
    assert rates.of(queue) == NO_RATES


def test_a_queue_has_moved_until_a_whole_period_was_quiet() -> None:
    rig = Rig()
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q")
    queue, rates = consumer.queue, rig.engine.rates
    rig.send("/queue/q", b"x")
    rig.turns()
    moved = []
    for _ in range(3):
        rates.sample(queue)
        moved.append(rates.has_moved(queue))
        rig.now_s += 5.0
    assert moved == [True, False, False]
    rig.core.acknowledge(consumer.handle, sequence_of(output.frames()[0]))
    assert rates.has_moved(queue), "since the last sample"
    rates.sample(queue)
    assert rates.has_moved(queue), "between the last two"
    rig.now_s += 5.0
    rates.sample(queue)
    assert not rates.has_moved(queue)


@pytest.mark.parametrize("has_come", [False, True])
def test_samples_of_deleted_queues_are_dropped(*, has_come: bool) -> None:
    rig = Rig()
    rig.send("/queue/q", b"x")
    rig.turns()
    queue, rates = rig.registry.queues["q"], rig.engine.rates
    if has_come:
        rates.sample(queue)
    rig.registry.drop_queue(queue)
    rates.forget_deleted()
    assert queue not in rates._samples
