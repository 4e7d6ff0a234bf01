"""The log of clients that were refused or displaced: never more lines than people read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from vespiary_broker.server.client_lines import ClientLines
from vespiary_broker.server.line_limit import LINES_PER_PERIOD, PERIOD_S
from vespiary_codec.wire.amqp import Source, Target
from vespiary_codec.wire.amqp.values import Symbol, UInt
from vespiary_spec.settings import RoutingType
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
        f"more clients refused or displaced listener=all count={unsaid}",
        "gone peer=10.0.0.1 why='x'",
    ]


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
