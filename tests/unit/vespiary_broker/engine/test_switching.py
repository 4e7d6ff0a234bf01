"""Queues with filters: which messages come in, whose turn it is, and what the core is taught."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine import switching
from vespiary_broker.engine.core import LargeBody, ScanStatus
from vespiary_broker.engine.publishing import find_target
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.reach import reach_of
from vespiary_broker.engine.restoration import durable_queue_ids
from vespiary_broker.engine.selection.selector import Selector, compile_filter
from vespiary_broker.engine.transactions import (
    Outgoing,
    Transaction,
    prepare,
    publish,
    refer_to,
    stage,
    stage_once,
)
from vespiary_broker.engine.turn_time import SHARE_S
from vespiary_native.abc_switching import SWITCHED_MAX
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import Address, AddressSettings, Queue, RoutingType
from vespiary_testkit.engine_rig import Rig, destination, do
from vespiary_testkit.memory_journal import MemoryBindings

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


def _queue(rig: Rig, name: str, kind: RoutingType, filter_string: str = "") -> None:
    traits = QueueTraits(selector=compile_filter(filter_string))
    do(rig.registry.create_queue(name, "x", kind, traits=traits))


def _ready(rig: Rig, *names: str) -> list[int]:
    rig.journal.flush()
    return [rig.core.queue_statistics(rig.registry.queues[name].id).ready for name in names]


def test_only_what_passes_comes_in() -> None:
    rig = Rig()
    _queue(rig, "red", MULTICAST, "colour = 'red'")
    _queue(rig, "cheap", MULTICAST, "price < 10")
    _queue(rig, "all", MULTICAST)
    rig.send("/topic/x", b"1", colour="red", price="5")
    rig.send("/topic/x", b"2", colour="red", price="15")
    rig.send("/topic/x", b"3", colour="blue", price="5")
    rig.send("/topic/x", b"4")
    assert _ready(rig, "red", "cheap", "all") == [2, 2, 4]
    assert rig.registry.unrouted_messages.total == 0


def test_what_passes_nowhere_is_counted() -> None:
    rig = Rig()
    _queue(rig, "red", ANYCAST, "colour = 'red'")
    rig.send("/queue/x", b"1", colour="blue")
    rig.send("/queue/x", b"2", colour="red")
    assert _ready(rig, "red") == [1]
    assert rig.registry.unrouted_messages.total == 1


def test_anycast_takes_the_next_in_turn_that_lets_a_message_in() -> None:
    rig = Rig()
    _queue(rig, "a", ANYCAST, "size > 0")
    _queue(rig, "b", ANYCAST, "size > 10")
    _queue(rig, "c", ANYCAST)
    for _ in range(6):
        rig.send("/queue/x", b"", size="20")
    assert _ready(rig, "a", "b", "c") == [2, 2, 2]
    for _ in range(6):
        rig.send("/queue/x", b"", size="5")
    assert _ready(rig, "a", "b", "c") == [5, 2, 5]
    rig.send("/queue/x", b"", size="0")
    rig.send("/queue/x", b"")
    assert _ready(rig, "a", "b", "c") == [5, 2, 7]


class _Sender:
    """A connection whose frames come to the core as a read would bring them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.handle = rig.output().handle
        self.memory = bytearray(1 << 20)
        self.buffer = rig.core.attach_buffer(self.memory)

    def teach(self, name: str) -> None:
        target = find_target(self.rig.registry, destination(name))
        assert target is not None
        assert target.is_teachable
        self.rig.core.teach(self.handle, name.encode(), target.taught_handle)

    def send(self, *headers: str, to: str = "x") -> list[ScanStatus]:
        """Send messages in one read; return what the scans said."""
        data = b"".join(
            f"SEND\ndestination:{to}\npersistent:true\n{lines}\nbody\0".encode()
            for lines in headers
        )
        self.memory[: len(data)] = data
        at, said = 0, []
        while at < len(data):
            status, at, detail = self.rig.core.scan_stomp(self.handle, self.buffer, at, len(data))
            said.append(ScanStatus(status))
            if status == ScanStatus.SWITCHED:
                status, at, _ = self.rig.registry.switches.send(self.rig.core, detail, self.handle)
                said.append(status)
            if status != ScanStatus.NEED_DATA:
                break
        return said


def test_who_was_taught_the_route_asks_again_and_is_taught_the_switch() -> None:
    rig = Rig()
    sender = _Sender(rig)
    _queue(rig, "all", MULTICAST)
    sender.teach("x")
    assert sender.send("") == [ScanStatus.NEED_DATA]
    _queue(rig, "some", MULTICAST, "a IS NULL")
    assert sender.send("") == [ScanStatus.FRAME]
    sender.teach("x")
    assert sender.send("", "a:1\n", "") == [ScanStatus.SWITCHED, ScanStatus.NEED_DATA]
    assert _ready(rig, "all", "some") == [4, 2]
    rig.registry.drop_queue(rig.registry.queues["some"])
    assert sender.send("") == [ScanStatus.FRAME]
    assert not rig.registry.switches.by_handle
    sender.teach("x")
    assert sender.send("") == [ScanStatus.NEED_DATA]
    assert _ready(rig, "all") == [5]


def test_a_switch_goes_on_when_filters_change() -> None:
    rig = Rig()
    sender = _Sender(rig)
    _queue(rig, "red", MULTICAST, "colour = 'red'")
    sender.teach("x")
    sender.send("colour:red\n", "colour:blue\n")
    _queue(rig, "low", MULTICAST, "JMSPriority < 4 AND JMSDeliveryMode = 'PERSISTENT'")
    assert sender.send("priority:1\n", "priority:9\ncolour:red\n", "priority:4\n") == [
        ScanStatus.SWITCHED,
        ScanStatus.NEED_DATA,
    ]
    assert _ready(rig, "red", "low") == [2, 1]
    assert rig.registry.unrouted_messages.total == 2


@given(st.lists(st.tuples(st.sampled_from(["1", "5", "x", ""]), st.booleans()), max_size=30))
def test_the_core_and_the_frames_go_the_same_ways(messages: list[tuple[str, bool]]) -> None:
    rigs = Rig(), Rig()
    for rig in rigs:
        _queue(rig, "a", ANYCAST, "size < 3")
        _queue(rig, "b", ANYCAST, "size > 3 OR size IS NULL")
        _queue(rig, "c", ANYCAST)
        _queue(rig, "m", MULTICAST, "size = 5")
    sender = _Sender(rigs[0])
    sender.teach("x")
    headers = [f"size:{size}\n" if has else "" for size, has in messages]
    sender.send(*headers)
    for size, has in messages:
        named = {"size": size} if has else {}
        rigs[1].send("x", b"body", **named)
    names = ("a", "b", "c", "m")
    assert _ready(rigs[0], *names) == _ready(rigs[1], *names)
    assert rigs[0].registry.unrouted_messages.total == rigs[1].registry.unrouted_messages.total


def test_more_messages_than_a_switch_takes_at_once() -> None:
    rig = Rig()
    sender = _Sender(rig)
    _queue(rig, "even", ANYCAST, "half = TRUE OR n IN ('0', '2')")
    sender.teach("x")
    said = sender.send(*[f"n:{number % 4}\n" for number in range(SWITCHED_MAX + 100)])
    assert said == [ScanStatus.SWITCHED, ScanStatus.NEED_DATA] * 2
    assert _ready(rig, "even") == [(SWITCHED_MAX + 100) // 2]


def test_a_queue_by_its_full_name_keeps_its_filter() -> None:
    rig = Rig()
    _queue(rig, "red", MULTICAST, "colour = 'red'")
    rig.send("x::red", b"", colour="red")
    rig.send("x::red", b"", colour="blue")
    assert _ready(rig, "red") == [1]
    assert rig.registry.unrouted_messages.total == 1


def test_a_wildcard_queue_with_a_filter() -> None:
    rig = Rig()
    traits = QueueTraits(selector=compile_filter("AMQAddress = 'x.y'"))
    do(rig.registry.create_queue("w", "x.#", MULTICAST, traits=traits))
    rig.send("/topic/x.y", b"")
    rig.send("/topic/x.z", b"")
    assert _ready(rig, "w") == [1]


def test_what_the_broker_knows_of_an_arriving_message() -> None:
    rig = Rig()
    _queue(rig, "p", MULTICAST, "JMSPriority = 4 AND JMSDeliveryMode = 'PERSISTENT'")
    _queue(rig, "s", MULTICAST, "AMQSize = 22 AND JMSTimestamp > 1600000000000")
    rig.send("/topic/x", b"12345678")  # and 14 bytes of headers
    rig.send("/topic/x", b"123", persistent=False)
    assert _ready(rig, "p", "s") == [1, 1]


def test_transactions_choose_by_message() -> None:
    rig = Rig()
    _queue(rig, "red", MULTICAST, "colour = 'red'")
    _queue(rig, "blue", MULTICAST, "colour = 'blue'")
    work = Transaction()
    for colour in ("red", "blue", "blue", "green"):
        message = Outgoing(
            destination=destination("/topic/x"),
            properties=f"colour:{colour}\n".encode(),
            body=b"",
            is_persistent=True,
        )
        work.sends.append(message)
    do(prepare(rig.registry, work))
    stage(rig.core, rig.registry, rig.duplicates, work)
    assert _ready(rig, "red", "blue") == [1, 2]


def test_routes_of_the_core_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(switching, "ROUTES_MAX", 3)
    rig = Rig()
    for number in range(4):
        _queue(rig, f"q{number}", MULTICAST, f"mask{number} = 1")
    opened: list[int] = []
    closed: list[int] = []
    open_route, close_route = rig.core.open_route, rig.core.close_route
    monkeypatch.setattr(
        rig.core, "open_route", lambda ids: opened.append(open_route(ids)) or opened[-1]
    )
    monkeypatch.setattr(
        rig.core, "close_route", lambda handle: closed.append(handle) or close_route(handle)
    )
    for mask in range(16):
        rig.send("x", b"", **{f"mask{n}": str(mask >> n & 1) for n in range(4)})
    assert _ready(rig, "q0", "q1", "q2", "q3") == [8, 8, 8, 8]
    assert len(opened) == 16
    assert len(opened) - len(closed) == 3
    for number in range(4):
        rig.registry.drop_queue(rig.registry.queues[f"q{number}"])
    assert sorted(set(opened)) == sorted(set(opened) & set(closed))


def test_filters_survive_a_restart() -> None:
    bindings = MemoryBindings()
    rig = Rig(bindings=bindings)
    _queue(rig, "red", MULTICAST, " colour = 'red' ")
    again = Rig(bindings=bindings)
    for queue_id in durable_queue_ids(bindings.snapshot()):
        again.core.open_queue(queue_id)
    again.registry.restore()
    assert again.registry.queues["red"].traits.filter_string == "colour = 'red'"
    again.send("/topic/x", b"", colour="red")
    again.send("/topic/x", b"", colour="blue")
    assert _ready(again, "red") == [1]


def test_a_binding_with_a_filter_that_is_none_is_named() -> None:
    bindings = MemoryBindings()
    _queue(Rig(bindings=bindings), "red", MULTICAST, "colour = 'red'")
    key = next(key for key in bindings.snapshot() if key.startswith("queue/"))
    do(bindings.put(key, bindings.snapshot()[key] | {"filter-string": "colour ="}))
    with pytest.raises(ValueError, match=f"binding {key} cannot be understood.*ends too early"):
        Rig(bindings=bindings).registry.restore()


def test_the_configuration_changes_filters() -> None:
    bindings = MemoryBindings()

    def configured(filter_string: str) -> Rig:
        rig = Rig(bindings=bindings)
        for queue_id in durable_queue_ids(bindings.snapshot()):
            rig.core.open_queue(queue_id)
        rig.registry.restore()
        wanted = Queue(name="q", routing_type=ANYCAST, filter_string=filter_string)
        do(rig.registry.configure([Address(name="x", queues=(wanted,))]))
        rig.send("/queue/x", b"", price="5")
        rig.send("/queue/x", b"", price="15")
        return rig

    assert _ready(configured("price < 10"), "q") == [1]
    assert _ready(configured("price < 20"), "q") == [2]
    assert _ready(configured("price < 0"), "q") == [0]
    rig = configured("")
    assert _ready(rig, "q") == [2]
    assert "filter-string" not in str(bindings.snapshot())
    with pytest.raises(
        ConfigError, match="the filter of the queue q of the address x is not a valid selector"
    ):
        configured("price <")


def test_a_changed_filter_holds_for_senders_that_were_there() -> None:
    rig = Rig()
    _queue(rig, "q", ANYCAST)
    rig.send("x", b"", price="5")
    rig.send("x::q", b"", price="5")
    wanted = Queue(name="q", routing_type=ANYCAST, filter_string="price < 0")
    do(rig.registry.configure([Address(name="x", queues=(wanted,))]))
    rig.send("x", b"", price="5")
    rig.send("x::q", b"", price="5")
    assert _ready(rig, "q") == [2]


queues = st.lists(st.tuples(st.sampled_from((ANYCAST, MULTICAST)), st.integers(-1, 3)), max_size=5)


@given(queues=queues, sizes=st.lists(st.integers(0, 3), max_size=12))
def test_every_message_is_where_the_rule_says(
    queues: list[tuple[RoutingType, int]], sizes: list[int]
) -> None:
    rig = Rig()
    do(rig.registry.create_address("x", {MULTICAST}))
    for number, (kind, least) in enumerate(queues):
        _queue(rig, f"q{number}", kind, f"size >= {least}" if least >= 0 else "")
    for size in sizes:
        rig.send("x", b"", size=str(size))
    names = [f"q{number}" for number in range(len(queues))]
    ready = _ready(rig, *names)
    anycast = 0
    for (kind, least), count in zip(queues, ready, strict=True):
        passing = sum(size >= least for size in sizes)
        if kind is MULTICAST:
            assert count == passing
        else:
            assert count <= passing
            anycast += count
    lowest = min((least for kind, least in queues if kind is ANYCAST), default=9)
    assert anycast == sum(size >= lowest for size in sizes)


class _Bodies:
    """Bodies in files that remembers what became of them."""

    def __init__(self) -> None:
        self.adopted: list[int] = []
        self.removed: list[int] = []

    def adopt(self, body: LargeBody) -> None:
        self.adopted.append(body.large_id)

    def remove(self, large_ids: list[int]) -> None:
        self.removed += large_ids


def test_a_large_body_that_no_filter_lets_in_goes() -> None:
    rig = Rig()
    _queue(rig, "large", ANYCAST, "AMQSize > 1000000 AND colour = 'red'")
    target = find_target(rig.registry, destination("/queue/x"))
    assert target is not None
    bodies: Any = _Bodies()
    for number, colour in enumerate(("red", "blue"), start=1):
        plain = Outgoing(
            destination=destination("/queue/x"),
            properties=f"colour:{colour}\n".encode(),
            body=b"",
            is_persistent=True,
        )
        message = refer_to(plain, LargeBody(number, 2_000_000, 0))
        publish(rig.core, bodies, message, target)
    assert (bodies.adopted, bodies.removed) == ([1], [2])
    assert _ready(rig, "large") == [1]


def test_a_duplicate_id_counts_once_a_filter_lets_a_message_in() -> None:
    rig = Rig()
    _queue(rig, "red", ANYCAST, "colour = 'red'")
    where = destination("/queue/x")
    for colour, placed in (("blue", 0), ("red", 1), ("red", None)):
        message = Outgoing(
            destination=where,
            properties=f"colour:{colour}\n".encode(),
            body=b"",
            is_persistent=True,
            duplicate_id=b"same",
        )
        target = find_target(rig.registry, where)
        assert target is not None
        assert stage_once(rig.core, rig.registry, rig.duplicates, message, target) == placed
    assert _ready(rig, "red") == [1]


def test_turns_of_addresses_that_are_gone_are_forgotten() -> None:
    rig = Rig({"#": AddressSettings(auto_delete_queues=False)})
    for name in ("a", "b"):
        do(
            rig.registry.create_queue(
                name, name, RoutingType.ANYCAST, traits=QueueTraits(selector=compile_filter("n=1"))
            )
        )
    route = rig.registry.route_of(rig.registry.addresses["a"], None)
    switch = route.switch
    assert switch is not None
    reach = reach_of([rig.registry.queues["a"], rig.registry.queues["b"]], None)
    route.lead(reach)
    rig.send("/queue/a", b"", n="1")
    route.lead(reach_of([rig.registry.queues["a"]], None))
    assert set(switch._turns) <= {rig.registry.addresses["a"]}


class _Costly:
    """A clock that each look moves by more than half of what a turn has."""

    def __init__(self, rig: Rig) -> None:
        self.turn_time = rig.registry.switches.turn_time
        self.later: list[Callable[[], None]] = []
        self.turn_time.clock_s = itertools.count(0.0, 0.6 * SHARE_S).__next__
        self.turn_time.next_turn = self.later.append

    def next_turn(self) -> None:
        later, self.later[:] = list(self.later), []
        for act in later:
            act()


def _outgoing(**properties: str) -> Outgoing:
    lines = "".join(f"{name}:{value}\n" for name, value in properties.items())
    return Outgoing(
        destination=destination("x"), properties=lines.encode(), body=b"body", is_persistent=True
    )


def test_filters_of_what_the_broker_moves_take_several_turns_and_none_is_asked_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dead letters, moves and transfers: whoever sends by a route of an address."""
    rig = Rig()
    asked: list[str] = []
    matches = Selector.matches

    def counted(selector: Selector, values: dict[str, Any]) -> bool:
        asked.append(selector.text)
        return matches(selector, values)

    for number in range(8):
        _queue(rig, f"q{number}", MULTICAST, f"n = '{number}' OR h LIKE '%{number}_x%'")
    target = find_target(rig.registry, destination("x"))
    assert target is not None
    assert target.switch is not None
    clock = _Costly(rig)
    monkeypatch.setattr(Selector, "matches", counted)
    message = _outgoing(n="3", h="a" * 60_000)
    turns = 1
    while (handle := target.switch.handle_in_time(message, "mover")) is None:
        clock.next_turn()
        turns += 1
    assert turns > 2
    assert len(asked) == len(set(asked)) == 8
    assert handle == target.switch.handle_for(message)
    assert rig.registry.switches.turn_time.waits
