"""What happens between two steps of a change of routes: others come, go and publish meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from vespiary_broker.engine.address_table import AddressTable
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.queue_traits import RETIRED, QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.turn_time import LOOK_US, NEXT_TURN, SHARE_S
from vespiary_spec.diverts import Divert
from vespiary_spec.settings import AddressSettings, RoutingType
from vespiary_testkit.engine_rig import Rig, do

M = RoutingType.MULTICAST
TOPICS = [f"a.{number}" for number in range(5)]


class Turns:
    """Has something else happen at the pause of a given number, counted from then on."""

    def __init__(self) -> None:
        self.is_suspending = False
        self._left = 0
        self._act: Callable[[], None] | None = None

    def at(self, number: int, act: Callable[[], None]) -> None:
        self._left, self._act = number, act

    async def pause(self) -> None:
        if self.is_suspending:
            await NEXT_TURN
        self._left -= 1
        if self._left == 0 and self._act is not None:
            self._act()


@pytest.fixture(autouse=True)
def _steps_of_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AddressTable._in_steps, "__defaults__", (LOOK_US, 1))


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def rig(turns: Turns) -> Rig:
    return _rig(turns)


def _rig(turns: Turns, settings: dict[str, AddressSettings] | None = None) -> Rig:
    rig = Rig(settings or {}, naming=NamingRules(pause=turns.pause))
    _send_to_all(rig)
    return rig


def _send_to_all(rig: Rig) -> None:
    for topic in TOPICS:
        rig.send(f"/topic/{topic}", b"x")


def _make(
    rig: Rig,
    name: str,
    address: str,
    client: str = "",
    *,
    is_durable: bool = True,
    is_early: bool = False,
    **traits: Any,
) -> Queue:
    making = rig.registry.create_queue(
        *(name, address, M),
        client_id=client,
        is_durable=is_durable,
        traits=QueueTraits(**traits),
        is_early=is_early,
    )
    return do(making)


def _added(rig: Rig, queue: Queue) -> int:
    rig.journal.flush()
    return rig.core.queue_statistics(queue.id).added


def test_what_stood_behind_a_queue_that_goes_is_led_to(rig: Rig, turns: Turns) -> None:
    old = _make(rig, "old", "a.*", "c", rank=1)
    new = _make(rig, "new", "a.#", "c", rank=2, is_early=True)
    turns.at(2, lambda: rig.registry.drop_queue(old))
    do(rig.registry.write_queue(new))
    _send_to_all(rig)
    assert _added(rig, new) == len(TOPICS)


def test_a_lower_queue_stands_in_while_another_is_led_to(rig: Rig, turns: Turns) -> None:
    low = _make(rig, "low", "a.*", "c", rank=0)
    old = _make(rig, "old", "a.*.#", "c", rank=1)
    new = _make(rig, "new", "a.#", "c", rank=2, is_early=True)

    def drop_and_send() -> None:
        rig.registry.drop_queue(old)
        _send_to_all(rig)

    turns.at(2, drop_and_send)
    do(rig.registry.write_queue(new))
    assert _added(rig, low) + _added(rig, new) == len(TOPICS)


def test_nothing_is_chosen_that_has_gone(rig: Rig, turns: Turns) -> None:
    _make(rig, "filtered", "a.*", selector=compile_filter("n = '1'"))
    old = _make(rig, "old", "a.*", "c", rank=1, is_durable=False)
    turns.at(2, lambda: rig.registry.drop_queue(old))
    new = _make(rig, "new", "a.#", "c", rank=2, is_durable=False)
    rig.registry.drop_queue(new)
    _send_to_all(rig)  # the core rejects a message for a queue that is not there


def test_an_address_that_is_made_again_while_a_divert_changes(rig: Rig, turns: Turns) -> None:
    do(rig.registry.diverts.create(Divert(name="d", address="a.*", forwarding_address="z")))

    def make_again() -> None:
        rig.registry.drop_address(rig.registry.addresses["a.4"])
        rig.send("/topic/a.4", b"x")

    turns.at(2, make_again)
    do(rig.registry.diverts.create(Divert(name="e", address="a.*", forwarding_address="y")))
    target = _make(rig, "z", "z")
    _send_to_all(rig)
    assert _added(rig, target) == len(TOPICS)


def test_a_queue_that_is_led_to_twice_counts_once(rig: Rig, turns: Turns) -> None:
    _make(rig, "filtered", "a.*", selector=compile_filter("n = '1'"))
    turns.at(1, lambda: rig.registry.refresh_routes(rig.registry.addresses["a.#"]))
    new = _make(rig, "new", "a.#", selector=compile_filter("n = '2'"))
    rig.registry.drop_queue(new)
    for topic in TOPICS:
        route = rig.registry.route_of(rig.registry.addresses[topic], M)
        assert route.places_max == 1, topic
        assert route.switch is not None
        assert len(route.switch._selectors) == 1


def test_a_divert_that_is_made_is_led_through_though_nobody_waits(rig: Rig, turns: Turns) -> None:
    target = _make(rig, "z", "z")

    def cancel() -> None:
        raise asyncio.CancelledError

    turns.at(2, cancel)
    with pytest.raises(asyncio.CancelledError):
        do(rig.registry.diverts.create(Divert(name="d", address="a.*", forwarding_address="z")))
    assert rig.registry.diverts.get("d") is not None
    _send_to_all(rig)
    assert _added(rig, target) == len(TOPICS)


def test_a_subscription_to_one_address_leaves_nobody_waiting() -> None:
    rig = Rig()
    time, later = rig.engine.turn_time, list[Callable[[], None]]()
    time.next_turn = later.append
    rig.send("/topic/a.0", b"x")
    time.spend(2 * SHARE_S)
    _make(rig, "q", "a.0")
    assert not time._waiting


def test_a_second_subscriber_of_a_queue_waits_until_all_is_led_to_it(turns: Turns) -> None:
    missed = AddressSettings(send_to_dla_on_no_route=True, dead_letter_address="DLA")
    rig = _rig(turns, {"a.#": missed})
    do(rig.registry.create_queue("DLA", "DLA", RoutingType.ANYCAST))
    shared = _make(rig, "shared", "a.#", is_early=True)
    is_confirmed = False

    def subscribe() -> None:
        nonlocal is_confirmed
        second = rig.registry.write_queue(shared)
        turns.is_suspending = True
        try:
            second.send(None)
            second.close()
        except StopIteration:
            is_confirmed = True
        turns.is_suspending = False

    turns.at(2, subscribe)
    do(rig.registry.write_queue(shared))
    assert not is_confirmed


def test_a_lower_queue_comes_while_another_is_led_to(turns: Turns) -> None:
    missed = AddressSettings(send_to_dla_on_no_route=True, dead_letter_address="DLA")
    rig = _rig(turns, {"a.#": missed})
    lost = do(rig.registry.create_queue("DLA", "DLA", RoutingType.ANYCAST))
    high = _make(rig, "high", "a.#", "c", rank=2, is_early=True)
    before = _added(rig, lost)

    def subscribe_and_send() -> None:
        _make(rig, "low", "a.4", "c", rank=1, is_durable=False)
        rig.send("/topic/a.4", b"x")

    turns.at(1, subscribe_and_send)
    do(rig.registry.write_queue(high))
    assert _added(rig, lost) == before


def test_nothing_leads_to_a_queue_that_retires_meanwhile(rig: Rig, turns: Turns) -> None:
    def retire() -> None:
        queue = rig.registry.queues["q"]
        with suppress(StopIteration):
            rig.registry.change_traits(queue, replace(queue.traits, rank=RETIRED)).send(None)

    turns.at(2, retire)
    queue = _make(rig, "q", "a.#", "c", rank=1)
    _send_to_all(rig)
    assert _added(rig, queue) == 0
