"""The log of clients that were refused or displaced: never more lines than people read."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from vespiary_broker.server import large_stream
from vespiary_broker.server.amqp import large_sending
from vespiary_broker.server.amqp.large_sending import LargeSending
from vespiary_broker.server.client_lines import ClientLines
from vespiary_broker.server.gate import Gate, _Early
from vespiary_broker.server.large_stream import LargeStream
from vespiary_broker.server.line_limit import LINES_PER_PERIOD, PERIOD_S
from vespiary_broker.server.listener import Listener
from vespiary_codec.wire.amqp import Source, Target
from vespiary_codec.wire.amqp.values import Symbol, UInt
from vespiary_codec.wire.mqtt import Property, Publish
from vespiary_spec.errors import NativeError
from vespiary_spec.settings import Acceptor, RoutingType
from vespiary_testkit.amqp_peer import RECEIVER, AmqpPeer, with_rig
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.server_rig import ServerRig

FLOOD = 5 * LINES_PER_PERIOD
MALFORMED = {
    "malformed MQTT": b"\x10\x03\x00\x01\x00",
    "STOMP before CONNECT": b"SEND\ndestination:/queue/%d\n\n\0",
    "HTTP": b"GET /%d HTTP/1.1\r\n\r\n",
    "nothing known": b"\xff\xfe%d\r\n",
}


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith(event)]


def test_each_kind_has_a_line_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    found = ClientLines()
    with caplog.at_level(logging.INFO):
        for _ in range(50):
            found.note("gone peer=%s why=%r", "10.0.0.1", "x", listener="all", now_s=0.0)
        found.note("gone peer=%s why=%r", "10.0.0.1", "y", listener="all", now_s=0.0)
        for n in range(FLOOD):
            found.note("gone peer=%s why=%r", f"10.0.1.{n}", "x", listener="all", now_s=0.0)
        assert len(caplog.records) == LINES_PER_PERIOD
        found.note("gone peer=%s why=%r", "10.0.0.1", "x", listener="all", now_s=PERIOD_S)
    after = [each.getMessage() for each in caplog.records[LINES_PER_PERIOD:]]
    unsaid = 51 + FLOOD - LINES_PER_PERIOD
    assert after == [
        f"more clients had no line listener=all count={unsaid} event='gone'",
        "gone peer=10.0.0.1 why='x'",
    ]


def test_a_flood_of_one_event_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    found = ClientLines()
    with caplog.at_level(logging.INFO):
        for n in range(FLOOD):
            found.note("refused peer=%s", f"10.0.{n}.1", listener="all", now_s=0.0)
        warning = {"listener": "all", "now_s": 0.0, "level": logging.WARNING}
        found.note("a disk is damaged peer=%s bytes=%d", "10.0.0.1", 7, **warning)
    assert len(caplog.records) == LINES_PER_PERIOD + 1
    last = caplog.records[-1]
    assert (last.levelno, last.getMessage()) == (
        logging.WARNING, "a disk is damaged peer=10.0.0.1 bytes=7",
    )  # fmt: skip


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_flood_of_refused_clients_is_bounded(caplog: pytest.LogCaptureFixture, kind: str) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        for n in range(FLOOD):
            data = MALFORMED[kind]
            peer = rig.peer()
            peer.send(data % n if b"%d" in data else data)
            await rig.settle()
        assert sum(rig.cycle.errors.values()) == FLOOD, "all are counted"

    with caplog.at_level(logging.INFO):
        scenario()
    assert 1 <= len(lines(caplog, "client refused")) <= LINES_PER_PERIOD


@pytest.mark.parametrize(
    ("event", "address"),
    [
        ("link taken over", {"address": "orders"}),
        (
            "consumer taken over",
            {
                "address": "prices",
                "durable": UInt(2),
                "expiry_policy": Symbol("never"),
                "capabilities": (Symbol("topic"),),
            },
        ),
    ],
)
def test_a_flood_of_stolen_links_is_bounded(
    caplog: pytest.LogCaptureFixture, event: str, address: dict[str, Any]
) -> None:
    async def scenario(rig: ServerRig) -> None:
        await rig.engine.registry.create_queue("orders", "orders", RoutingType.ANYCAST)
        peers = [AmqpPeer(rig) for _ in range(2)]
        for peer in peers:
            await peer.open(container="shop")
            await peer.begin()
        for n in range(FLOOD):
            link = {"source": Source(**address), "target": Target(), "name": "prices"}
            await peers[n % 2].attach(RECEIVER, n, **link)
            await rig.flush()
        assert rig.cycle.errors["taken-over"] == FLOOD - 1

    with caplog.at_level(logging.INFO):
        run: Callable[[], None] = with_rig()(scenario)
        run()
    assert 1 <= len(lines(caplog, event)) <= LINES_PER_PERIOD


class Wire:
    """The transport of a connection in front of a gate."""

    def __init__(self, number: int) -> None:
        self.peer = f"10.{number}.0.1"
        self.is_closed = False
        self.protocol: Any = None

    def get_extra_info(self, name: str) -> object:
        return (self.peer, 4711) if name == "peername" else None

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_protocol(self) -> object:
        return None

    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol


@on_rig()
async def flood_of_wrong_headers(rig: MqttRig) -> None:
    acceptor = Acceptor(name="x", port=0, proxy_protocol=True)
    for number in range(FLOOD):
        gate, wire = Gate(rig.cycle, Listener(acceptor, 1024), None), Wire(number)
        gate.connection_made(cast(Any, wire))
        data = b"GET /%d" % number
        gate.get_buffer(-1)[: len(data)] = data
        gate.buffer_updated(len(data))
        assert wire.is_closed
    assert rig.cycle.errors == {"proxy-protocol": FLOOD}


@on_rig()
async def flood_of_empty_records(rig: MqttRig) -> None:
    for number in range(FLOOD):
        gate = Gate(rig.cycle, Listener(Acceptor(name="x", port=0), 1024), None)
        wire = Wire(number)
        gate.connection_made(cast(Any, wire))
        gate._measure(cast(Any, wire), _Early(), b"")
        wire.protocol._cut()
        assert wire.is_closed
    assert rig.cycle.errors == {"tls-flood": FLOOD}


@on_rig()
async def flood_of_vanished_clients(rig: MqttRig) -> None:
    for _ in range(FLOOD):
        rig.peer().connection.end_dead()
    assert rig.cycle.errors == {"dead-peer": FLOOD}


@on_rig()
async def flood_of_closed_clients(rig: MqttRig) -> None:
    for _ in range(FLOOD):
        own, client = socket.socketpair()
        connection = rig.peer().connection
        connection.descriptor = own.fileno()
        rig.cycle.closed_clients.watch(connection, is_consuming=True)
        client.close()
        rig.cycle.closed_clients._look()
        rig.cycle.closed_clients.forget(connection)
        own.close()
    assert rig.cycle.errors == {"gone-while-waiting": FLOOD}


@on_rig()
async def flood_of_dropped_messages(rig: MqttRig) -> None:
    for number in range(FLOOD):
        client = await rig.connected(f"c{number}")
        client.send(Publish(f"$SYS/{number}", b"x"))
        await rig.flush()
    assert rig.cycle.errors == {"topic-not-writable": FLOOD}


@on_rig()
async def flood_of_large_messages(rig: MqttRig) -> None:
    reader = await rig.connected("r", properties={Property.MAXIMUM_PACKET_SIZE: 100})
    await reader.subscribe("#")
    sender = await rig.connected("s")
    for number in range(FLOOD):
        sender.send(Publish(f"a/{number}", b"x" * 200))
    await rig.flush()
    assert reader.all_of(Publish) == []


@on_rig()
async def flood_of_expired_sessions(rig: MqttRig) -> None:
    for number in range(FLOOD):
        session = await rig.hub.sessions.begin(f"c{number}", "", 1)
        await rig.hub._end(session)
    assert rig.hub.sessions.expired == FLOOD


def stream(rig: ServerRig, connection: Any, store: Any) -> Any:
    given = SimpleNamespace(body=None)
    return LargeStream(connection, rig.cycle, store, *(SimpleNamespace(),), given, None)  # type: ignore[arg-type]


def sending(rig: ServerRig, connection: Any, store: Any) -> Any:
    made: Any = object.__new__(LargeSending)
    made._is_cut, made._given = False, SimpleNamespace(body=None)
    rig.cycle.large = store
    made._session = SimpleNamespace(cycle=rig.cycle, connection=connection)
    return made


async def bodies_that_wait(rig: ServerRig, make: Callable[..., Any]) -> None:
    for number in range(FLOOD):
        connection = rig.peer().connection
        connection.peer = f"10.{number}.0.1"

        class Store:
            made: Any = None
            live_count = 0

            async def read(self, _: object) -> None:
                self.made._is_cut = True
                raise NativeError("no descriptor is left")

        store = Store()
        store.made = make(rig, connection, store)
        assert await store.made._open() is None


@on_rig()
async def flood_of_large_bodies(rig: MqttRig) -> None:
    await bodies_that_wait(rig, stream)


@on_rig()
async def flood_of_large_bodies_of_links(rig: MqttRig) -> None:
    await bodies_that_wait(rig, sending)


FLOODS: dict[str, Callable[[], None]] = {
    "connection refused acceptor=": flood_of_wrong_headers,
    "connection cut, its TLS records had no content peer=": flood_of_empty_records,
    "client vanished": flood_of_vanished_clients,
    "client is gone": flood_of_closed_clients,
    "messages are dropped: their topic": flood_of_dropped_messages,
    "a message is too large for its client": flood_of_large_messages,
    "session expired": flood_of_expired_sessions,
    "a large message waits": flood_of_large_bodies,
    "a large message waits peer=10": flood_of_large_bodies_of_links,
}


@pytest.mark.parametrize("event", FLOODS)
def test_a_flood_of_lines_that_clients_cause_is_bounded(
    caplog: pytest.LogCaptureFixture, event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (large_stream, large_sending):
        monkeypatch.setattr(module, "_OPEN_AGAIN_S", 0)
    with caplog.at_level(logging.INFO):
        FLOODS[event]()
    assert 1 <= len(lines(caplog, event)) <= LINES_PER_PERIOD
