"""Places for TLS handshakes: who has one, who waits, and who gives way, on a clock by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

from vespiary_broker.server.handshakes import BEGUN_MAX, TURN_S, Handshakes


class HandClock:
    """A loop whose time stands still until it is moved on."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.soon: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._timers: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, call: Callable[..., None], *args: Any) -> object:
        self._timers.append((self.now_s + delay_s, call, args))
        return self

    def call_soon(self, call: Callable[..., None], *args: Any) -> object:
        self.soon.append((call, args))
        return self

    def turn(self) -> None:
        """End a turn of the loop."""
        soon, self.soon = self.soon, []
        for call, args in soon:
            call(*args)

    def settle(self) -> None:
        """Let turns pass until nothing is left to do in them."""
        while self.soon:
            self.turn()

    def move_on(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [each for each in self._timers if each[0] <= end_s]:
            first = min(due, key=lambda each: each[0])
            self._timers.remove(first)
            self.now_s = first[0]
            first[1](*first[2])
            self.settle()
        self.now_s = end_s

    @property
    def timers(self) -> int:
        return len(self._timers)


class Client:
    def __init__(self, peer: str = "192.0.2.1") -> None:
        self.peer = peer
        self.state = "waits"

    def begin(self) -> None:
        assert self.state == "waits"
        self.state = "began"

    def give_way(self) -> None:
        assert self.state == "began"
        self.state = "cut"


class World:
    def __init__(self, allowed: int) -> None:
        self.clock = HandClock()
        self.loop = cast(asyncio.AbstractEventLoop, self.clock)
        self.places = Handshakes(allowed)

    def come(self, peer: str = "192.0.2.1") -> Client:
        client = Client(peer)
        self.places.request(client, self.loop)
        self.clock.settle()
        return client

    def finish(self, client: Client) -> None:
        self.places.end(client, self.loop)
        self.clock.settle()


def states(*clients: Client) -> list[str]:
    return [client.state for client in clients]


def test_a_place_that_is_free_is_had_at_once() -> None:
    world = World(2)
    first, second = world.come(), world.come()
    assert states(first, second) == ["began", "began"]
    assert world.clock.timers == 0, "nobody waits, nothing is looked at"


def test_of_those_that_wait_the_newest_is_next() -> None:
    world = World(1)
    first, second, third = world.come(), world.come(), world.come()
    assert states(first, second, third) == ["began", "waits", "waits"]
    world.finish(first)
    assert states(second, third) == ["waits", "began"]
    world.finish(third)
    assert second.state == "began"


def test_one_that_goes_while_it_waits_gets_no_place() -> None:
    world = World(1)
    first, second, third = world.come(), world.come(), world.come()
    world.finish(third)
    world.finish(first)
    assert states(second, third) == ["began", "waits"]


def test_one_that_lasts_gives_way_to_one_that_waits() -> None:
    world = World(2)
    first = world.come()
    world.clock.move_on(1)
    second, third = world.come(), world.come()
    world.clock.move_on(TURN_S - 1.2)
    assert states(first, second, third) == ["began", "began", "waits"], "it has its turn"
    world.clock.move_on(0.4)
    assert states(first, second, third) == ["cut", "began", "began"]
    assert world.places.given_way == 1
    world.clock.move_on(60)
    assert states(second, third) == ["began", "began"], "nobody waits for their places"
    assert world.clock.timers == 0


def test_as_many_give_way_as_wait() -> None:
    world = World(10)
    lasting = [world.come() for _ in range(10)]
    waiting = [world.come() for _ in range(3)]
    world.clock.move_on(TURN_S + 0.2)
    assert states(*lasting) == ["cut"] * 3 + ["began"] * 7
    assert states(*waiting) == ["began"] * 3


def test_thousands_that_do_not_go_on_keep_nobody_out() -> None:
    world = World(100)
    for _ in range(10_000):
        world.come()
    honest = world.come()
    world.clock.move_on(TURN_S + 0.2)
    assert honest.state == "began"


def test_a_network_that_has_none_is_before_those_that_came_later() -> None:
    world = World(4)
    lasting = [world.come() for _ in range(4)]
    other = world.come("198.51.100.1")
    later = [world.come() for _ in range(50)]
    world.finish(lasting[0])
    assert other.state == "began"
    assert set(states(*later)) == {"waits"}
    world.finish(lasting[1])
    assert later[-1].state == "began", "of one network the newest is next"


def test_a_flood_of_one_network_delays_others_by_one_turn_at_most() -> None:
    world = World(8)
    for second in range(20):
        for _ in range(50):
            world.come()
        other = world.come(f"198.51.100.{second}")
        for _ in range(50):
            world.come()
        world.clock.move_on(TURN_S + 0.2)
        assert other.state == "began"
        world.finish(other)


def test_the_network_that_has_most_gives_way() -> None:
    world = World(4)
    slow = world.come("198.51.100.1")
    lasting = [world.come() for _ in range(3)]
    waiting = [world.come() for _ in range(9)]
    world.clock.move_on(TURN_S + 0.2)
    assert slow.state == "began"
    assert states(*lasting) == ["cut"] * 3
    assert states(*waiting[-3:]) == ["began"] * 3
    world.clock.move_on(3 * TURN_S)
    assert slow.state == "began"


def test_nothing_is_kept_of_networks_that_are_gone() -> None:
    world = World(2)
    clients = [world.come(f"198.51.100.{n}") for n in range(9)]
    assert world.places.networks_count == 9
    for client in clients:
        world.finish(client)
    assert world.places.networks_count == 0


def test_few_begin_in_one_turn_of_the_loop() -> None:
    world = World(100)
    clients = [Client() for _ in range(20)]
    for client in clients:
        world.places.request(client, world.loop)
    begun = [states(*clients).count("began")]
    while world.clock.soon:
        world.clock.turn()
        begun.append(states(*clients).count("began"))
    assert begun[0] == BEGUN_MAX
    assert begun[-1] == 20
    assert all(after - before <= BEGUN_MAX for before, after in pairwise(begun))


def test_few_are_cut_off_in_one_turn_of_the_loop() -> None:
    world = World(20)
    lasting = [world.come() for _ in range(20)]
    world.clock.now_s += TURN_S + 1
    waiting = [Client() for _ in range(20)]
    for client in waiting:
        world.places.request(client, world.loop)
    cut = [states(*lasting).count("cut")]
    while world.clock.soon:
        world.clock.turn()
        cut.append(states(*lasting).count("cut"))
    assert cut[-1] == 20
    assert all(after - before <= BEGUN_MAX for before, after in pairwise([0, *cut]))
    assert states(*waiting) == ["began"] * 20
