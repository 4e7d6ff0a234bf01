"""What goes through wildcard addresses, on the engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vespiary_broker.engine.address_table import STEP_ADDRESSES
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.queue_traits import RETIRED, QueueTraits
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.wildcards import Pattern, WildcardSyntax
from vespiary_native.twin import TwinCore
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.memory_journal import MemoryJournal

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def _bodies(rig: Rig, output: object) -> list[bytes]:
    rig.turn()
    return output.bodies()  # type: ignore[attr-defined,no-any-return]


def test_present_and_future_addresses_are_covered() -> None:
    rig = Rig()
    rig.send("/topic/news.old", b"nobody listens")
    output = rig.output()
    rig.subscribe(output, "/topic/news.#", AckMode.AUTO)
    rig.send("/topic/news.old", b"1")
    rig.send("/topic/news.new", b"2")
    rig.send("/topic/news", b"3")
    rig.send("/topic/newspaper", b"4")
    rig.send("/queue/news.queue", b"5")
    assert _bodies(rig, output) == [b"1", b"2", b"3"]


def test_taught_senders_reach_a_later_subscription_and_no_ended_one() -> None:
    rig = Rig()
    rig.send("/topic/a.b", b"nobody listens")
    route = rig.registry.route_of(rig.registry.addresses["a.b"], MULTICAST)
    taught = route.next_handle()
    output = rig.output()
    consumer = rig.subscribe(output, "/topic/a.*", AckMode.AUTO)
    rig.core.publish(taught, b"destination:x\n", b"1", persistent=True)
    assert _bodies(rig, output) == [b"1"]
    close_subscription(rig.core, rig.registry, consumer)
    assert list(rig.registry.addresses) == ["a.b"]
    assert rig.registry.addresses["a.b"].wildcards == {}
    rig.core.publish(taught, b"destination:x\n", b"2", persistent=True)
    assert _bodies(rig, output) == []


def test_each_queue_gets_its_copy_and_each_anycast_address_one() -> None:
    rig = Rig()
    do(rig.registry.create_queue("own", "a.b", ANYCAST))
    do(rig.registry.create_queue("own2", "a.b", ANYCAST))
    do(rig.registry.create_queue("shared", "a.#", ANYCAST))
    do(rig.registry.create_queue("all", "#", MULTICAST))
    for _ in range(4):
        rig.send("a.b", b"x")
    assert _ready(rig) == {"own": 2, "own2": 2, "shared": 4, "all": 4}
    rig.send("/queue/a.b", b"x")
    assert sum(_ready(rig).values()) == 14
    assert _ready(rig)["all"] == 4


def test_anycast_wildcard_queue_is_a_place_to_go() -> None:
    rig = Rig()
    output = rig.output()
    rig.subscribe(output, "/queue/jobs.#", AckMode.AUTO)
    do(rig.registry.create_address("jobs.print", {ANYCAST}))
    rig.send("/queue/jobs.print", b"x")
    assert _bodies(rig, output) == [b"x"]
    assert list(rig.registry.queues) == ["jobs.#"]


def test_wildcard_queues_come_back_with_a_restart() -> None:
    rig = Rig()
    output = rig.output()
    rig.subscribe(output, "/topic/news.*", client_id="me", durable_name="d")
    do(rig.registry.create_address("news.eu", {MULTICAST}))
    again = Rig(bindings=rig.bindings)
    for queue_id in durable_queue_ids(rig.bindings.snapshot()):
        again.core.open_queue(queue_id)
    again.registry.restore()
    again.send("/topic/news.eu", b"x")
    assert _ready(again) == {"me.d": 1}


@pytest.mark.parametrize("text", ["/topic/news.#", "news.*", "*", "news.#::q"])
def test_nothing_is_sent_to_a_wildcard(text: str) -> None:
    rig = Rig()
    with pytest.raises(RemoteProtocolError, match="is a wildcard"):
        rig.send(text, b"x")
    assert not rig.registry.addresses
    rig.subscribe(rig.output(), "/topic/news.#")
    with pytest.raises(RemoteProtocolError, match=r"news\.# is a wildcard"):
        rig.send("/topic/news.#", b"x")


def test_switched_off_wildcards_are_characters() -> None:
    rig = Rig(naming=NamingRules(syntax=WildcardSyntax(is_routing_enabled=False)))
    output = rig.output()
    rig.subscribe(output, "/topic/a.#", AckMode.AUTO)
    rig.send("/topic/a.b", b"1")
    rig.send("/topic/a.#", b"2")
    assert _bodies(rig, output) == [b"2"]


def test_another_delimiter() -> None:
    rig = Rig(naming=NamingRules(syntax=WildcardSyntax(delimiter="/")))
    output = rig.output()
    rig.subscribe(output, "/topic/a/*", AckMode.AUTO)
    rig.send("/topic/a/b.c", b"1")
    rig.send("/topic/a/b/c", b"2")
    assert _bodies(rig, output) == [b"1"]


class CountedCore(TwinCore):
    """Counts the routes that are set, and the queues that this looks up."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.routes_set = self.queues_looked_up = 0
        super().__init__(*arguments, **named)

    def set_route(self, route: int, queue_ids: list[int]) -> None:
        self.routes_set += 1
        self.queues_looked_up += len(queue_ids)
        super().set_route(route, queue_ids)

    def extend_route(self, route: int, queue_id: int) -> bool:
        self.routes_set += 1
        self.queues_looked_up += 1
        return super().extend_route(route, queue_id)


class Turns:
    """Takes note of the routes that were set in each turn."""

    def __init__(self) -> None:
        self.core: CountedCore | None = None
        self.seen: list[int] = []
        self.act: Callable[[], object] = lambda: None

    async def pause(self) -> None:
        assert self.core is not None
        self.seen.append(self.core.routes_set)
        self.act()


def _wide(turns: Turns, *, count: int = 350) -> Rig:
    """Return a rig with many addresses that somebody has sent to."""
    rig = Rig(
        journal=MemoryJournal(CountedCore(slabs_max=16, record_bytes_max=490 * 1024)),
        naming=NamingRules(pause=turns.pause),
    )
    turns.core = rig.core
    for number in range(count):
        rig.send(f"/topic/wide.{number}", b"nobody listens")
    return rig


def test_a_wildcard_subscription_is_made_in_steps() -> None:
    turns = Turns()
    rig = _wide(turns)
    begin = rig.core.routes_set
    output = rig.output()
    consumer = rig.subscribe(output, "/topic/#", AckMode.AUTO)
    each = [after - before for before, after in pairwise([begin, *turns.seen, rig.core.routes_set])]
    assert sum(each) == 350
    assert max(each) <= STEP_ADDRESSES, "nobody waits for all of it"
    for number in range(350):
        rig.send(f"/topic/wide.{number}", b"%d" % number)
    assert _bodies(rig, output) == [b"%d" % number for number in range(350)]
    ended = rig.core.routes_set
    close_subscription(rig.core, rig.registry, consumer)
    assert rig.core.routes_set == ended, "the core takes a queue out of its routes by itself"
    address = rig.registry.addresses["wide.7"]
    assert rig.registry.route_of(address, MULTICAST).places_max == 0
    rig.send("/topic/wide.7", b"nobody listens")
    assert _bodies(rig, output) == []


def test_subscribers_of_a_topic_come_and_go_without_a_look_at_the_others() -> None:
    core = CountedCore(slabs_max=16, record_bytes_max=490 * 1024)
    rig = Rig(journal=MemoryJournal(core))
    rig.send("/topic/one", b"nobody listens")
    output = rig.output(1 << 30)
    begin = core.queues_looked_up
    consumers = [rig.subscribe(output, "/topic/one", AckMode.AUTO) for _ in range(200)]
    assert core.queues_looked_up - begin == 200
    address = rig.registry.addresses["one"]
    assert rig.registry.route_of(address, MULTICAST).places_max == 200
    rig.send("/topic/one", b"x")
    assert _bodies(rig, output) == [b"x"] * 200
    for consumer in consumers[50:]:
        close_subscription(rig.core, rig.registry, consumer)
    assert core.queues_looked_up - begin == 200
    assert rig.registry.route_of(address, MULTICAST).places_max == 50
    rig.send("/topic/one", b"y")
    assert _bodies(rig, output) == [b"y"] * 50


def test_a_wildcard_queue_that_is_closed_while_it_is_made_gets_nothing() -> None:
    turns = Turns()
    rig = _wide(turns)

    def close() -> None:
        queue = rig.registry.queues["q"]
        queue.is_open = False
        rig.registry.refresh_routes(queue.address)

    turns.act = close
    do(rig.registry.create_queue("q", "wide.#", MULTICAST))
    for number in range(350):
        rig.send(f"/topic/wide.{number}", b"x")
    assert _ready(rig) == {"q": 0}


def test_a_wildcard_queue_that_goes_while_it_is_made_leaves_nothing() -> None:
    turns = Turns()
    rig = _wide(turns)

    def drop() -> None:
        rig.registry.drop_queue(rig.registry.queues["q"])
        turns.act = lambda: None

    turns.act = drop
    do(rig.registry.create_queue("q", "wide.#", MULTICAST, is_auto_created=True))
    for number in range(350):
        address = rig.registry.addresses[f"wide.{number}"]
        assert rig.registry.route_of(address, MULTICAST).places_max == 0
        rig.send(f"/topic/wide.{number}", b"x")


def test_a_wildcard_queue_whose_making_is_broken_off_gets_everything() -> None:
    turns = Turns()
    rig = _wide(turns)

    def stop() -> None:
        raise asyncio.CancelledError

    turns.act = stop
    with pytest.raises(asyncio.CancelledError):
        do(rig.registry.create_queue("q", "wide.#", MULTICAST))
    for number in range(350):
        rig.send(f"/topic/wide.{number}", b"x")
    assert _ready(rig) == {"q": 350}


@pytest.mark.parametrize("changes", [{"is_no_local": True}, {"rank": 2}, {"rank": RETIRED}])
def test_a_wildcard_queue_changes_in_steps_and_loses_nothing(changes: dict[str, Any]) -> None:
    turns = Turns()
    rig = _wide(turns)
    for name in ("q", "other"):
        traits = QueueTraits(rank=1)
        do(rig.registry.create_queue(name, "wide.#", MULTICAST, client_id="c", traits=traits))
    queue = rig.registry.queues["q"]
    turns.seen.clear()
    turns.act = lambda: [rig.send(f"/topic/wide.{number}", b"x") for number in range(350)]
    do(rig.registry.change_traits(queue, replace(queue.traits, **changes)))
    turns.act()
    assert len(turns.seen) == 3
    assert sum(_ready(rig).values()) == 4 * 350, "one of the client's queues has each message"
    assert not rig.registry._table._coming
    assert not rig.registry._table._changing


@pytest.mark.parametrize("changes", [{"is_no_local": True}, {"rank": 2}, {"rank": RETIRED}])
def test_a_wildcard_queue_that_goes_while_it_changes_leaves_nothing(
    changes: dict[str, Any],
) -> None:
    turns = Turns()
    rig = _wide(turns)
    for name in ("q", "other"):
        traits = QueueTraits(rank=1)
        do(rig.registry.create_queue(name, "wide.#", MULTICAST, client_id="c", traits=traits))
    queue = rig.registry.queues["q"]

    def drop() -> None:
        rig.registry.drop_queue(queue)
        turns.act = lambda: None

    turns.act = drop
    do(rig.registry.change_traits(queue, replace(queue.traits, **changes)))
    for number in range(350):
        address = rig.registry.addresses[f"wide.{number}"]
        assert rig.registry.route_of(address, MULTICAST).places_max == 1
        rig.send(f"/topic/wide.{number}", b"x")
    assert _ready(rig) == {"other": 350}


def test_what_is_no_plain_route_is_led_anew_when_a_wildcard_queue_goes() -> None:
    rig = Rig()
    do(rig.registry.create_queue("all", "#", MULTICAST))
    do(rig.registry.create_queue("one", "a", ANYCAST))
    do(rig.registry.create_queue("two", "a", ANYCAST))
    for _ in range(2):
        rig.send("a", b"x")
    rig.registry.drop_queue(rig.registry.queues["all"])
    for _ in range(2):
        rig.send("a", b"x")
    assert _ready(rig) == {"one": 2, "two": 2}
    assert rig.registry.route_of(rig.registry.addresses["a"], None).places_max == 1


def _ready(rig: Rig) -> dict[str, int]:
    rig.journal.flush()
    return {
        queue.name: rig.core.queue_statistics(queue.id).ready
        for queue in rig.registry.queues.values()
    }


_PLAIN = st.sampled_from(["a", "b", "a.a", "a.b", "b.a", "a.b.a"])
_WILD = st.sampled_from(["#", "*", "a.#", "*.a", "a.*", "#.a", "a.*.#"])
_KIND = st.sampled_from([ANYCAST, MULTICAST])


class Routing(RuleBasedStateMachine):
    """Queues come and go while messages are sent; an oracle says how many each queue has."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.expected: Counter[str] = Counter()
        self.kinds: dict[str, tuple[str, RoutingType]] = {}

    @rule(address=_PLAIN | _WILD, kind=_KIND)
    def create(self, address: str, kind: RoutingType) -> None:
        name = address if kind is ANYCAST else f"{address}/{kind}"  # a sender makes the first
        do(self.rig.registry.create_queue(name, address, kind, is_auto_created=True))
        self.kinds[name] = (address, kind)

    @rule(choose=st.randoms())
    def drop(self, choose: object) -> None:
        if self.kinds:
            name = choose.choice(sorted(self.kinds))  # type: ignore[attr-defined]
            self.rig.registry.drop_queue(self.rig.registry.queues[name])
            del self.kinds[name], self.expected[name]

    @rule(address=_PLAIN, kind=_KIND | st.none())
    def send(self, address: str, kind: RoutingType | None) -> None:
        prefix = {ANYCAST: "/queue/", MULTICAST: "/topic/", None: ""}[kind]
        before = set(self.rig.registry.queues)
        self.rig.send(prefix + address, b"x")
        for name in set(self.rig.registry.queues) - before:  # made by the sender
            self.kinds[name] = (address, ANYCAST)
        for name, (owner, its_kind) in self.kinds.items():
            is_covered = owner == address or self._is_match(owner, address)
            if is_covered and kind in (None, its_kind):
                self.expected[name] += 1

    @staticmethod
    def _is_match(owner: str, address: str) -> bool:
        is_match: Callable[[str], bool] = Pattern(owner).is_match
        return ("*" in owner or "#" in owner) and is_match(address)

    @invariant()
    def every_queue_has_its_messages(self) -> None:
        assert _ready(self.rig) == {name: self.expected[name] for name in self.kinds}
        for address in self.rig.registry.addresses.values():
            assert not (address.is_wildcard and address.routes)
            for kind, route in address.routes.items():
                queues = list(address.sources())
                anycast = {queue.address for queue in queues if queue.routing_type is ANYCAST}
                multicast = sum(queue.routing_type is MULTICAST for queue in queues)
                places = (kind is not ANYCAST) * multicast + (kind is not MULTICAST) * len(anycast)
                assert route.places_max == places


TestRouting = Routing.TestCase
TestRouting.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
