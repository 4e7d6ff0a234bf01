"""What goes through wildcard addresses, on the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.registry import durable_queue_ids
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.wildcards import Pattern, WildcardSyntax
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType
from vespiary_testkit.engine_rig import Rig, do

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
    assert rig.registry.addresses["a.b"].wildcards == ()
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


TestRouting = Routing.TestCase
TestRouting.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
