"""Changes of routes: what they cost does not grow with the queues that are there already."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine

import pytest

from vespiary_broker.engine import diverts as diverts_module
from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.naming import NamingRules
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.ranks import Ranks
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.turn_time import SHARE_S
from vespiary_spec.diverts import Divert
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import RoutingType
from vespiary_testkit.engine_rig import Rig, do
from vespiary_testkit.seeds import seed_for

MULTICAST = RoutingType.MULTICAST
TOPICS = [f"a.a.a.a.a.a.{number}" for number in range(3)]


@pytest.fixture
def leads(monkeypatch: pytest.MonkeyPatch) -> list[Route]:
    """The routes whose queues were all gone through, each time."""
    found: list[Route] = []
    lead = Route.lead

    def noted(route: Route, reach: object) -> None:
        found.append(route)
        lead(route, reach)  # type: ignore[arg-type]

    monkeypatch.setattr(Route, "lead", noted)
    return found


def _pattern(number: int) -> str:
    return ".".join("*" if number >> bit & 1 else "a" for bit in range(6)) + ".*"


def _send(rig: Rig, **headers: str) -> None:
    for topic in TOPICS:
        rig.send(f"/topic/{topic}", b"x", **headers)


def _make(rig: Rig, name: str, address: str, traits: QueueTraits, client: str = "") -> Queue:
    made: Queue = do(
        rig.registry.create_queue(name, address, MULTICAST, client_id=client, traits=traits)
    )
    return made


def _added(rig: Rig, queues: list[Queue]) -> list[int]:
    rig.journal.flush()
    return [rig.core.queue_statistics(queue.id).added for queue in queues]


def test_wildcards_with_filters_come_and_go_without_a_look_at_the_others(leads: list[Route]):
    rig = Rig()
    _send(rig)
    output = rig.output(1 << 30)
    leads.clear()
    consumers = [
        rig.subscribe(
            output, f"/topic/{_pattern(number)}", AckMode.AUTO, selector=f"n = '{number}'"
        )
        for number in range(60)
    ]
    assert len(leads) == len(TOPICS), "once, when the first filter came"
    _send(rig, n="7")
    queues = [consumer.queue for consumer in consumers]
    assert _added(rig, queues) == [3 * (number == 7) for number in range(60)]
    leads.clear()
    for consumer in consumers[:59]:
        close_subscription(rig.core, rig.registry, consumer)
    assert not leads
    _send(rig, n="59")
    assert _added(rig, queues[59:]) == [3]
    close_subscription(rig.core, rig.registry, consumers[59])
    assert len(leads) == len(TOPICS), "routes are plain again"
    assert all(route.switch is None for route in leads)


def test_queues_of_one_client_that_overlap_come_and_go_without_a_look_at_all(
    leads: list[Route], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    is_rival = Ranks._is_rival

    def counted(ranks: Ranks, *args: object) -> bool:
        nonlocal looked
        looked += 1
        return is_rival(ranks, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Ranks, "_is_rival", counted)
    rig = Rig()
    _send(rig)
    leads.clear()
    queues = [
        _make(rig, f"q{number}", _pattern(number), QueueTraits(rank=1), "c") for number in range(60)
    ]
    _send(rig)
    assert _added(rig, queues) == [3] + [0] * 59
    for queue in queues[:30]:
        rig.registry.drop_queue(queue)
    _send(rig)
    assert _added(rig, queues[30:]) == [3] + [0] * 29
    for queue in reversed(queues[30:]):
        rig.registry.drop_queue(queue)
    assert not leads
    assert looked <= 5 * 60 * (len(TOPICS) + 1)
    addresses = rig.registry.addresses
    assert [rig.registry.route_of(addresses[name], None).places_max for name in TOPICS] == [0] * 3


def test_routes_that_change_by_one_queue_lead_where_new_ones_would() -> None:
    seed = seed_for("route-changes")
    draw = random.Random(seed)
    rig = Rig()
    _send(rig)
    queues: dict[str, Queue] = {}
    for step in range(300):
        if queues and draw.random() < 0.45:
            rig.registry.drop_queue(queues.pop(draw.choice(sorted(queues))))
        else:
            rank = draw.choice([None, None, 0, 1, 2])
            text = draw.choice(["", "", "n = '1'", "n = '2' OR m = '1'", "k = '1'"])
            traits = QueueTraits(
                rank=rank,
                selector=compile_filter(text),
                is_no_local=draw.random() < 0.05,
            )
            client = draw.choice("cd") if rank is not None else ""
            name = f"q{step}"
            queues[name] = _make(rig, name, _pattern(draw.randrange(64)), traits, client)
        for topic in TOPICS:
            address = rig.registry.addresses[topic]
            for kind in (None, MULTICAST):
                route = rig.registry.route_of(address, kind)
                table = rig.registry._table
                fresh = Route(
                    rig.core,
                    table._reach(address, kind),
                    topic,
                    rig.registry.switches,
                    rig.registry.unrouted_messages,
                )
                facts = [
                    (
                        one.places_max,
                        one.withheld,
                        one.switch is None,
                        None if one.switch is None else set(one.switch._queues),
                        None if one.switch is None else dict(one.switch._selectors),
                        None if one.switch is None else dict(one.switch._names),
                    )
                    for one in (route, fresh)
                ]
                fresh.close()
                assert facts[0] == facts[1], f"seed {seed}, step {step}"
        before = {name: rig.core.queue_statistics(one.id).added for name, one in queues.items()}
        rig.send(f"/topic/{TOPICS[0]}", b"x", n="1")
        rig.journal.flush()
        reach = table._reach(rig.registry.addresses[TOPICS[0]], None)
        wanted = {
            queue.name for queue in reach.multicast if queue.traits.filter_string in ("", "n = '1'")
        }
        got = {
            name
            for name, one in queues.items()
            if rig.core.queue_statistics(one.id).added > before[name]
        }
        assert got == wanted, f"seed {seed}, step {step}"


class Clock:
    """Turns of a loop in which each change of a route takes the time of a turn."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.acts: list[Callable[[], None]] = []
        self.done: list[int] = [0]

    async def pause(self) -> None:
        self.done.append(0)
        assert len(self.done) < 1000, "it goes on for ever"
        acts, self.acts = self.acts, []
        for act in acts:
            act()

    def work(self) -> None:
        self.now_s += 2 * SHARE_S
        self.done[-1] += 1


def _timed(clock: Clock) -> Rig:
    rig = Rig(naming=NamingRules(pause=clock.pause))
    time = rig.engine.turn_time
    time.clock_s = lambda: clock.now_s
    time.next_turn = lambda act: clock.acts.append(act)
    return rig


def test_a_turn_leads_to_a_new_queue_from_as_many_addresses_as_it_has_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    rig = _timed(clock)
    _send(rig)
    extend = Route.extend

    def slow(route: Route, queue: Queue) -> bool:
        clock.work()
        return extend(route, queue)

    monkeypatch.setattr(Route, "extend", slow)
    _make(rig, "q", "a.#", QueueTraits())
    assert sum(clock.done) == len(TOPICS)
    assert max(clock.done) == 1


def test_a_turn_drops_as_many_temporary_queues_as_it_has_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    rig = _timed(clock)
    output = rig.output(1 << 30)
    consumers = [rig.subscribe(output, f"/topic/{_pattern(number)}") for number in range(6)]
    drop = rig.registry.drop_queue

    def slow(queue: Queue) -> None:
        clock.work()
        drop(queue)

    monkeypatch.setattr(rig.registry, "drop_queue", slow)
    clock.done = [0]
    later: list[Coroutine[None, None, None]] = []
    monkeypatch.setattr(rig.registry.usage, "_spawn", later.append)
    for consumer in consumers:
        close_subscription(rig.core, rig.registry, consumer)
    do(later.pop())
    assert (sum(clock.done), max(clock.done)) == (6, 1)
    assert not rig.registry.queues


def _divert(number: int) -> Divert:
    return Divert(name=f"d{number}", address=f"from.{number}.*", forwarding_address=f"z.{number}")


def test_a_divert_changes_only_the_routes_of_its_own_addresses(leads: list[Route]) -> None:
    rig = Rig()
    for number in range(20):
        rig.send(f"/topic/from.{number}.x", b"x")
        rig.send(f"/topic/other.{number}", b"x")
    leads.clear()
    do(rig.registry.diverts.create(_divert(7)))
    assert len(leads) == 1
    leads.clear()
    target = _make(rig, "z", "z.7", QueueTraits())
    rig.send("/topic/from.7.x", b"x")
    assert _added(rig, [target]) == [1]
    chained = Divert(name="chained", address="z.7", forwarding_address="y")
    leads.clear()
    do(rig.registry.diverts.create(chained))
    assert leads, "diverts lead to where it stands"
    further = _make(rig, "y", "y", QueueTraits())
    rig.send("/topic/from.7.x", b"x")
    assert _added(rig, [further]) == [1]
    leads.clear()
    do(rig.registry.diverts.delete("d7"))
    rig.send("/topic/from.7.x", b"x")
    assert _added(rig, [target, further]) == [2, 1]


def test_the_diverts_of_a_configuration_are_checked_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = 0
    check = diverts_module._Graph.check

    def counted(graph: diverts_module._Graph, name: str) -> None:
        nonlocal checks
        checks += 1
        check(graph, name)

    monkeypatch.setattr(diverts_module._Graph, "check", counted)
    rig = Rig()
    do(rig.registry.diverts.configure([_divert(number) for number in range(50)]))
    assert checks == 1
    assert len(rig.registry.diverts.names) == 50
    ring = Divert(name="d50", address="y", forwarding_address="from.0.x")
    back = Divert(name="d51", address="z.0", forwarding_address="y")
    with pytest.raises(ConfigError, match="the divert d51 cannot be made"):
        do(rig.registry.diverts.configure([_divert(0), ring, back]))
    assert len(rig.registry.diverts.names) == 50
