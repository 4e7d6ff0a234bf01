"""Diverts: where messages go, what is refused, what survives a restart."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.config_deletion import configure_diverts
from vespiary_broker.engine.diverts import CHAIN_MAX, Diverts, check_diverts
from vespiary_broker.engine.publishing import find_target
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.transactions import Outgoing, Transaction, prepare, stage
from vespiary_broker.engine.wildcards import DEFAULT_SYNTAX
from vespiary_spec import limits
from vespiary_spec.errors import (
    ConfigError,
    InvalidSelector,
    LimitExceeded,
    RemoteProtocolError,
)
from vespiary_spec.settings import (
    AddressSettings,
    DeletionPolicy,
    Divert,
    DivertRoutingType,
    RoutingType,
)
from vespiary_testkit.engine_rig import Rig, destination, do
from vespiary_testkit.memory_journal import MemoryBindings
from vespiary_testkit.step_counter import steps_of

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def _queue(
    rig: Rig, name: str, address: str, kind: RoutingType = MULTICAST, filter_string: str = ""
) -> None:
    traits = QueueTraits(selector=compile_filter(filter_string))
    do(rig.registry.create_queue(name, address, kind, traits=traits))


def _divert(rig: Rig, name: str, source: str, target: str, **more: Any) -> None:
    wanted = Divert(name=name, address=source, forwarding_address=target, **more)
    do(rig.registry.diverts.create(wanted))


def _ready(rig: Rig, *names: str) -> list[int]:
    rig.journal.flush()
    return [rig.core.queue_statistics(rig.registry.queues[name].id).ready for name in names]


def _rig(*addresses: str) -> Rig:
    rig = Rig()
    for address in addresses:
        _queue(rig, address, address)
    return rig


def test_a_copy() -> None:
    rig = _rig("a", "b")
    _divert(rig, "d", "a", "b")
    rig.send("a", b"")
    rig.send("b", b"")
    assert _ready(rig, "a", "b") == [1, 2]


def test_an_exclusive_one() -> None:
    rig = _rig("a", "b", "c")
    _divert(rig, "d", "a", "b", exclusive=True, filter_string="colour = 'red'")
    _divert(rig, "e", "a", "c")
    rig.send("a", b"", colour="red")
    rig.send("a", b"", colour="blue")
    assert _ready(rig, "a", "b", "c") == [1, 1, 1]


def test_all_exclusive_ones_that_match_get_it() -> None:
    rig = _rig("a", "b", "c")
    _divert(rig, "d", "a", "b", exclusive=True, filter_string="x > 1")
    _divert(rig, "e", "a", "c", exclusive=True, filter_string="x > 2")
    for x in (1, 2, 3):
        rig.send("a", b"", x=str(x))
    assert _ready(rig, "a", "b", "c") == [1, 2, 1]


def test_a_diverted_message_is_one_record() -> None:
    rig = _rig("a", "b")
    _divert(rig, "d", "a", "b")
    before = rig.core.image_statistics().records_added
    rig.send("a", b"")
    assert rig.core.image_statistics().records_added == before + 1


def test_connections_are_taught_the_route_or_the_switch() -> None:
    rig = _rig("a", "b")
    _divert(rig, "d", "a", "b")
    target = find_target(rig.registry, destination("a"))
    assert target is not None
    assert (target.is_teachable, target.switch) == (True, None)
    _divert(rig, "e", "a", "b", filter_string="x = 1")
    target = find_target(rig.registry, destination("a"))
    assert target is not None
    assert target.is_teachable
    assert target.switch is not None
    assert target.taught_handle == target.switch.handle
    do(rig.registry.diverts.delete("e"))
    target = find_target(rig.registry, destination("a"))
    assert target is not None
    assert (target.is_teachable, target.switch) == (True, None)


def test_chains_and_two_ways_to_one_queue() -> None:
    rig = _rig("a", "b", "c")
    _divert(rig, "ab", "a", "b")
    _divert(rig, "bc", "b", "c", exclusive=True)
    _divert(rig, "ac", "a", "c")
    rig.send("a", b"")
    assert _ready(rig, "a", "b", "c") == [1, 0, 1]


def test_a_filter_of_a_queue_behind_a_divert() -> None:
    rig = Rig()
    _queue(rig, "a", "a")
    _queue(rig, "b", "b", filter_string="x = 1 AND AMQAddress = 'a'")
    _divert(rig, "d", "a", "b")
    rig.send("a", b"", x="1")
    rig.send("a", b"", x="2")
    assert _ready(rig, "a", "b") == [2, 1]


@pytest.mark.parametrize(
    ("kind", "sent", "anycast", "multicast"),
    [
        (DivertRoutingType.STRIP, ANYCAST, 1, 1),
        (DivertRoutingType.PASS, ANYCAST, 1, 0),
        (DivertRoutingType.PASS, MULTICAST, 0, 1),
        (DivertRoutingType.PASS, None, 1, 1),
        (DivertRoutingType.ANYCAST, MULTICAST, 1, 0),
        (DivertRoutingType.MULTICAST, ANYCAST, 0, 1),
    ],
)
def test_routing_types(
    kind: DivertRoutingType, sent: RoutingType | None, anycast: int, multicast: int
) -> None:
    rig = Rig()
    _queue(rig, "a1", "a", ANYCAST)
    _queue(rig, "a2", "a", MULTICAST)
    _queue(rig, "b1", "b", ANYCAST)
    _queue(rig, "b2", "b", MULTICAST)
    _divert(rig, "d", "a", "b", routing_type=kind)
    rig.send("a", b"", routing_type=sent)
    assert _ready(rig, "b1", "b2") == [anycast, multicast]


def test_anycast_queues_behind_a_divert_take_turns() -> None:
    rig = _rig("a")
    _queue(rig, "b1", "b", ANYCAST)
    _queue(rig, "b2", "b", ANYCAST)
    _divert(rig, "d", "a", "b")
    for _ in range(4):
        rig.send("a", b"")
    assert _ready(rig, "a", "b1", "b2") == [4, 2, 2]


def test_a_subscriber_that_comes_before_an_exclusive_divert_gets_nothing_of_what_it_takes() -> None:
    rig = _rig("b")
    _divert(rig, "d", "a", "b", exclusive=True)
    rig.send("/topic/a", b"")
    consumer = rig.subscribe(rig.output(), "/topic/a")
    rig.send("/topic/a", b"")
    assert _ready(rig, "b", consumer.queue.name) == [2, 0]


def test_queues_that_come_and_go_behind_a_divert() -> None:
    rig = _rig("a")
    _divert(rig, "d", "a", "b", exclusive=True)
    rig.send("a", b"")
    _queue(rig, "late", "b")
    rig.send("a", b"")
    assert _ready(rig, "a", "late") == [0, 1]
    _divert(rig, "e", "b", "c", exclusive=True)
    _queue(rig, "later", "c")
    rig.send("a", b"")
    assert _ready(rig, "late", "later") == [1, 1]
    rig.registry.drop_queue(rig.registry.queues["later"])
    rig.send("a", b"")
    do(rig.registry.diverts.delete("e"))
    rig.send("a", b"")
    assert _ready(rig, "late") == [2]


def test_wildcards_on_both_sides() -> None:
    rig = _rig("news.a", "news.b", "other")
    _queue(rig, "w", "audit.#")
    _divert(rig, "d", "news.*", "audit.news")
    for name in ("news.a", "news.b", "other"):
        rig.send(name, b"")
    assert _ready(rig, "w") == [2]
    _queue(rig, "w2", "audit.*")
    rig.send("news.a", b"")
    assert _ready(rig, "w", "w2") == [3, 1]


def test_taught_senders_follow() -> None:
    rig = _rig("a", "b")
    target = find_target(rig.registry, destination("a"))
    assert target is not None
    _divert(rig, "d", "a", "b", exclusive=True)
    rig.core.publish(target.route, b"", b"x", persistent=True)
    assert _ready(rig, "a", "b") == [0, 1]


def test_a_queue_by_its_full_name_is_not_diverted() -> None:
    rig = _rig("a", "b")
    _divert(rig, "d", "a", "b", exclusive=True)
    rig.send("a::a", b"")
    assert _ready(rig, "a", "b") == [1, 0]


LOOPS = [
    ([], ("d", "a", "a"), "a (divert d) -> a"),
    ([("e", "b", "a")], ("d", "a", "b"), "a (divert d) -> b (divert e) -> a"),
    (
        [("e", "b", "c"), ("f", "c", "a"), ("g", "b", "x")],
        ("d", "a", "b"),
        "b (divert e) -> c (divert f) -> a (divert d) -> b",
    ),
    ([], ("d", "a.#", "a.b"), "a.# (divert d) -> a.b"),
    ([("e", "b", "a.x")], ("d", "a.*", "b"), "b (divert e) -> a.* (divert d) -> b"),
]


@pytest.mark.parametrize(("others", "new", "names"), LOOPS)
def test_what_leads_back_is_refused_with_names(others: Any, new: Any, names: str) -> None:
    rig = Rig()
    for other in others:
        _divert(rig, *other)
    before = rig.bindings.snapshot()
    with pytest.raises(RemoteProtocolError, match="lead back to where they stand") as caught:
        _divert(rig, *new)
    for part in names.split(" -> "):
        assert part in caught.value.what
    assert rig.bindings.snapshot() == before
    assert rig.registry.diverts.names == sorted(name for name, *_ in others)


def test_bad_ones() -> None:
    rig = Rig()
    with pytest.raises(InvalidSelector):
        _divert(rig, "d", "a", "b", filter_string="x =")
    with pytest.raises(RemoteProtocolError, match=r"leads to b\.#, a wildcard"):
        _divert(rig, "d", "a", "b.#")
    with pytest.raises(RemoteProtocolError, match="name of the divert"):
        _divert(rig, "d\td", "a", "b")
    with pytest.raises(RemoteProtocolError, match="name of the address"):
        _divert(rig, "d", "a", "")
    _divert(rig, "d", "a", "b")
    _divert(rig, "d", "a", "b")
    with pytest.raises(RemoteProtocolError, match="divert d exists, from a to b"):
        _divert(rig, "d", "a", "c")
    with pytest.raises(RemoteProtocolError, match="no divert x"):
        do(rig.registry.diverts.delete("x"))


def test_chains_are_bounded() -> None:
    rig = Rig()
    for number in range(CHAIN_MAX):
        _divert(rig, f"d{number}", f"a{number}", f"a{number + 1}")
    with pytest.raises(LimitExceeded, match=f"got {CHAIN_MAX + 1}, allowed: at most {CHAIN_MAX}"):
        _divert(rig, "more", f"a{CHAIN_MAX}", "end")
    with pytest.raises(LimitExceeded, match="too many diverts in a row"):
        _divert(rig, "more", "begin", "a0")


def test_ways_are_bounded() -> None:
    rig = Rig()
    for level in range(6):
        for number in range(4):
            _divert(rig, f"d{level}.{number}", f"a{level}", f"a{level + 1}")
    with pytest.raises(LimitExceeded, match="too many ways"):
        _divert(rig, "last", "a6", "end")


def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DIVERTS_MAX", 3)
    rig = Rig()
    for number in range(3):
        _divert(rig, f"d{number}", "a", f"b{number}")
    with pytest.raises(LimitExceeded, match="got 4, allowed: at most 3"):
        _divert(rig, "d3", "a", "b3")


def test_many_with_wildcards_are_checked_together() -> None:
    steps = []
    for count in (100, 800):
        wanted = [
            Divert(name=f"d{n}", address=f"a{n}.*.b.#.c", forwarding_address=f"t{n}.x.b.c")
            for n in range(count)
        ]
        steps.append(steps_of(lambda wanted=wanted: check_diverts(wanted, DEFAULT_SYNTAX)))  # type: ignore[misc]
    assert steps[1] < 10 * steps[0]


def _again(bindings: MemoryBindings) -> Rig:
    rig = Rig(bindings=bindings)
    for queue_id in durable_queue_ids(bindings.snapshot()):
        rig.core.open_queue(queue_id, durable=True)  # as the journal's recovery does
    rig.registry.restore()
    return rig


def test_they_survive_a_restart_and_deletions_too() -> None:
    rig = _rig("a", "b")
    _divert(
        rig, "d", "a", "b", exclusive=True, filter_string="x = 1", routing_type="MULTICAST",
        routing_name="r",
    )  # fmt: skip
    made = rig.registry.diverts.get("d")
    again = _again(rig.bindings)
    assert again.registry.diverts.get("d") == made
    again.send("a", b"", x="1")
    assert _ready(again, "a", "b") == [0, 1]
    do(again.registry.diverts.delete("d"))
    assert _again(rig.bindings).registry.diverts.names == []


def test_bad_bindings_are_named() -> None:
    rig = _rig("a")
    _divert(rig, "d", "a", "b")
    key = "divert/d"
    value = rig.bindings.snapshot()[key]
    for bad in ({"filter-string": "x ="}, {"routing-type": "X"}, {"routing-type": None}):
        bindings = MemoryBindings()
        do(bindings.put(key, value | bad))
        with pytest.raises(ValueError, match=f"binding {key} cannot be understood"):
            _again(bindings)
    bindings = MemoryBindings()
    do(bindings.put(key, value | {"forwarding-address": "a"}))
    with pytest.raises(
        ValueError, match=r"the diverts of the bindings cannot be used: .*lead back"
    ):
        _again(bindings)


def test_the_configuration_makes_and_changes_them() -> None:
    rig = _rig("a", "b", "c")
    diverts = rig.registry.diverts
    do(diverts.configure([Divert(name="d", address="a", forwarding_address="b")]))
    rig.send("a", b"")
    do(diverts.configure([Divert(name="d", address="a", forwarding_address="c")]))
    rig.send("a", b"")
    assert _ready(rig, "a", "b", "c") == [2, 1, 1]
    found = _again(rig.bindings).registry.diverts.get("d")
    assert found is not None
    assert found.forwarding_address == "c"
    with pytest.raises(ConfigError, match=r"the divert e cannot be made: .*lead back"):
        do(diverts.configure([Divert(name="e", address="a", forwarding_address="a")]))
    with pytest.raises(ConfigError, match="the divert e cannot be made: selector, character 1"):
        do(
            diverts.configure(
                [Divert(name="e", address="a", forwarding_address="x", filter_string="=")]
            )
        )


def test_what_is_looked_up_for_refreshing_is_forgotten() -> None:
    rig = _rig("a", "b")
    diverts: Any = rig.registry.diverts
    _divert(rig, "d", "a", "b")
    rig.send("a", b"")
    assert diverts.roots_of("b", is_wildcard=False) == ["a"]
    rig.registry.drop_queue(rig.registry.queues["a"])
    if "a" in rig.registry.addresses:
        rig.registry.drop_address(rig.registry.addresses["a"])
    assert diverts.roots_of("b", is_wildcard=False) == []
    assert diverts.roots_of("b", is_wildcard=True) == []


edges = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans(), st.integers(-1, 2)), max_size=7
)


@given(edges=edges, sizes=st.lists(st.integers(0, 2), max_size=5))
def test_messages_are_where_a_walk_by_hand_leads(edges: Any, sizes: list[int]) -> None:
    rig = _rig(*(f"a{n}" for n in range(5)))
    kept: list[tuple[int, int, bool, int]] = []
    for number, (source, target, exclusive, least) in enumerate(edges):
        filter_string = f"size >= {least}" if least >= 0 else ""
        try:
            _divert(
                rig, f"d{number}", f"a{source}", f"a{target}",
                exclusive=exclusive, filter_string=filter_string,
            )  # fmt: skip
        except RemoteProtocolError:
            continue
        kept.append((source, target, exclusive, least))

    def walk(place: int, size: int) -> set[int]:
        ways = [edge for edge in kept if edge[0] == place and size >= edge[3]]
        taken = [edge for edge in ways if edge[2]]
        found = {place} if not taken else set()
        for edge in taken or ways:
            found |= walk(edge[1], size)
        return found

    expected = [0] * 5
    for size in sizes:
        rig.send("a0", b"", size=str(size))
        for place in walk(0, size):
            expected[place] += 1
    assert _ready(rig, *(f"a{n}" for n in range(5))) == expected
    assert isinstance(rig.registry.diverts, Diverts)


def test_a_transaction_asks_for_room_in_every_queue_that_a_message_gets_to() -> None:
    rig = _rig("a", "b")
    _queue(rig, "b2", "b", filter_string="x = 1")
    _divert(rig, "d", "a", "b")
    asked: list[int] = []
    begin = rig.core.begin

    def counting(number: int, size_bytes: int, records: int, *, branch: bool = False) -> None:
        asked.append(records)
        begin(number, size_bytes, records, branch=branch)

    rig.core.begin = counting
    work = Transaction()
    for where in ("/topic/a", "/topic/b", "b::b2"):
        work.sends.append(
            Outgoing(
                destination=destination(where), properties=b"x:1\n", body=b"", is_persistent=True
            )
        )
    do(prepare(rig.registry, work))
    stage(rig.core, rig.registry, rig.duplicates, work)
    assert asked == [1 + 3 + 2 + 1]
    assert _ready(rig, "a", "b", "b2") == [1, 2, 3]


@pytest.mark.parametrize("policy", DeletionPolicy)
def test_those_that_are_not_configured_any_more(policy: DeletionPolicy) -> None:
    settings = {"a": AddressSettings(config_delete_diverts=policy)}
    bindings = MemoryBindings()
    rig = Rig(settings, bindings=bindings)
    for name in ("a", "other"):
        wanted = Divert(name=f"of-{name}", address=name, forwarding_address="b")
        do(configure_diverts(rig.registry, [wanted]))
    _divert(rig, "by-hand", "a", "b")
    kept = Divert(name="kept", address="a", forwarding_address="b")
    _divert(rig, "kept", "a", "b")
    again = Rig(settings, bindings=bindings)
    again.registry.restore()
    do(configure_diverts(again.registry, [kept]))
    left = ["by-hand", "kept", "of-other"]
    if policy is DeletionPolicy.OFF:
        left = ["by-hand", "kept", "of-a", "of-other"]
    assert again.registry.diverts.names == left
    third = Rig(settings, bindings=bindings)
    third.registry.restore()
    assert third.registry.diverts.names == left
    do(configure_diverts(third.registry, []))  # what was made by hand, then configured, goes now
    assert ("kept" in third.registry.diverts.names) is (policy is DeletionPolicy.OFF)


@pytest.mark.parametrize("target", ["$SYS.broker.version", "$mqtt.retained"])
def test_no_divert_leads_to_an_address_that_only_the_broker_sends_to(target: str) -> None:
    rig = _rig("a")
    with pytest.raises(RemoteProtocolError, match="only the broker itself sends"):
        _divert(rig, "d", "a", target)
    _divert(rig, "d", "a", "$SYS.broker.connection.edge.state")
