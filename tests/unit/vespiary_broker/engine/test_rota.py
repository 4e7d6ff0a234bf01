"""Who is served: exclusive consumers, priorities, and how many consumers a queue waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_spec.settings import AddressSettings
from vespiary_testkit.engine_rig import FakeOutput, Rig


def _settings(**values: Any) -> dict[str, AddressSettings]:
    return {"#": AddressSettings(**values)}


def _send(rig: Rig, first: int, end: int, properties: bytes = b"") -> None:
    for number in range(first, end):
        rig.send("/queue/q", b"%d" % number, properties=properties)


def _numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


def _subscribe(rig: Rig, **options: Any) -> tuple[Consumer, FakeOutput]:
    output = rig.output()
    consumer = rig.subscribe(output, "/queue/q", **options)
    rig.dispatcher.poke(consumer.queue.id)
    return consumer, output


@pytest.fixture(params=["plain", "examined"])
def selector(request: pytest.FixtureRequest) -> str:
    """A selector that matches all, or none at all: the same rules hold on both paths."""
    return "" if request.param == "plain" else "colour IS NULL"


def test_an_exclusive_queue_serves_the_first_until_it_goes(selector: str) -> None:
    rig = Rig(_settings(default_exclusive_queue=True))
    first, first_output = _subscribe(rig, credit=2, selector=selector)
    _, second_output = _subscribe(rig, selector=selector)
    _, third_output = _subscribe(rig, selector=selector)
    _send(rig, 0, 4)
    rig.turns()
    assert first_output.bodies() == _numbers(0, 2)
    assert second_output.data == third_output.data == b""
    close_subscription(rig.core, rig.registry, first)
    rig.dispatcher.poke(first.queue.id)
    rig.turns()
    assert second_output.bodies() == _numbers(0, 4)
    assert third_output.data == b""


def test_an_exclusive_consumer_makes_its_queue_exclusive(selector: str) -> None:
    rig = Rig()
    _, other_output = _subscribe(rig, selector=selector)
    alone, alone_output = _subscribe(rig, is_exclusive=True, selector=selector)
    _send(rig, 0, 6)
    rig.turns()
    assert alone_output.bodies() == _numbers(0, 6)
    close_subscription(rig.core, rig.registry, alone)
    rig.dispatcher.poke(alone.queue.id)
    rig.turns()
    assert other_output.bodies() == _numbers(0, 6)


def test_of_several_the_highest_priority_is_the_exclusive_one() -> None:
    rig = Rig(_settings(default_exclusive_queue=True))
    first, first_output = _subscribe(rig)
    _, low_output = _subscribe(rig, priority=1)
    _, high_output = _subscribe(rig, priority=5)
    _send(rig, 0, 2)
    rig.turns()
    assert first_output.bodies() == _numbers(0, 2)  # it was there, and stays it
    close_subscription(rig.core, rig.registry, first)
    rig.dispatcher.poke(first.queue.id)
    rig.turns()
    assert low_output.data == b""
    assert high_output.bodies() == _numbers(0, 2)


def test_a_lower_priority_gets_what_a_higher_one_cannot_take(selector: str) -> None:
    rig = Rig()
    _, low_output = _subscribe(rig, priority=-1, selector=selector)
    _, middle_output = _subscribe(rig, credit=3, selector=selector)
    high, high_output = _subscribe(rig, credit=2, priority=7, selector=selector)
    _send(rig, 0, 2)
    rig.turns()
    assert high_output.bodies() == _numbers(0, 2)
    _send(rig, 2, 7)
    rig.turns()
    assert middle_output.bodies() == _numbers(2, 5)
    assert low_output.bodies() == _numbers(5, 7)
    rig.core.acknowledge(high.handle, 1)
    _send(rig, 7, 9)
    rig.turns()
    assert high_output.bodies() == _numbers(7, 8)
    assert low_output.bodies() == _numbers(8, 9)


def test_consumers_of_one_priority_take_turns(selector: str) -> None:
    rig = Rig()
    _, low_output = _subscribe(rig, selector=selector)
    outputs = [_subscribe(rig, priority=3, selector=selector)[1] for _ in range(2)]
    _send(rig, 0, 8)
    rig.turns()
    assert [len(output.bodies()) for output in outputs] == [4, 4]
    assert low_output.data == b""


def test_a_lower_priority_gets_what_a_higher_one_does_not_want() -> None:
    rig = Rig()
    _, high_output = _subscribe(rig, priority=3, selector="colour = 'red'")
    _, low_output = _subscribe(rig)
    _send(rig, 0, 2)
    _send(rig, 2, 4, b"colour:red\n")
    rig.turns()
    assert high_output.bodies() == _numbers(2, 4)
    assert low_output.bodies() == _numbers(0, 2)


class _Clock:
    """Keeps what is to be done later until the test says that it is time."""

    def __init__(self, rig: Rig) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        rig.dispatcher.later = lambda delay_s, action: self.waiting.append((delay_s, action))

    def strike(self) -> None:
        waiting, self.waiting = self.waiting, []
        for _, action in waiting:
            action()


def test_a_queue_waits_for_its_consumers(selector: str) -> None:
    rig = Rig(_settings(default_consumers_before_dispatch=2))
    clock = _Clock(rig)
    first, first_output = _subscribe(rig, selector=selector)
    _send(rig, 0, 4)
    rig.turns()
    assert first_output.data == b""
    assert clock.waiting == []
    second, second_output = _subscribe(rig, selector=selector)
    rig.turns()
    assert sorted(first_output.bodies() + second_output.bodies()) == _numbers(0, 4)
    close_subscription(rig.core, rig.registry, second)
    rig.dispatcher.poke(first.queue.id)
    rig.turns()
    assert first_output.bodies() != []  # it has begun, and goes on with fewer
    close_subscription(rig.core, rig.registry, first)
    _, third_output = _subscribe(rig, selector=selector)
    rig.turns()
    assert third_output.data == b""


def test_a_queue_waits_no_longer_than_it_is_told() -> None:
    rig = Rig(_settings(default_consumers_before_dispatch=2, default_delay_before_dispatch=1500))
    clock = _Clock(rig)
    _, output = _subscribe(rig)
    _send(rig, 0, 2)
    rig.turns()
    rig.turns()
    assert [delay_s for delay_s, _ in clock.waiting] == [1.5]
    clock.strike()
    rig.turns()
    assert output.bodies() == _numbers(0, 2)


def test_a_timer_of_an_earlier_wait_does_not_end_a_later_one() -> None:
    rig = Rig(_settings(default_consumers_before_dispatch=2, default_delay_before_dispatch=1500))
    clock = _Clock(rig)
    _send(rig, 0, 2)
    first, _ = _subscribe(rig)
    rig.turns()
    close_subscription(rig.core, rig.registry, first)
    _, output = _subscribe(rig)
    clock.strike()
    rig.turns()
    assert output.data == b""
    assert len(clock.waiting) == 1
    clock.strike()
    rig.turns()
    assert output.bodies() == _numbers(0, 2)
