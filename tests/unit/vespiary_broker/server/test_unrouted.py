"""What clients are told of messages that no queue accepts: STOMP's receipts, AMQP's `released`."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_codec.wire.amqp import Accepted, Disposition, Released
from vespiary_codec.wire.amqp.values import UByte
from vespiary_spec.settings import RoutingType
from vespiary_testkit.amqp_peer import AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import Peer, ServerRig

RED = QueueTraits(selector=compile_filter("colour = 'red'"))


def lost(rig: ServerRig) -> dict[str, int]:
    return rig.engine.registry.unrouted_messages.by_address()


async def red_queue(rig: ServerRig) -> None:
    await rig.engine.registry.create_queue("red", "orders", RoutingType.ANYCAST, traits=RED)


async def stomp(rig: ServerRig) -> Peer:
    peer = rig.peer()
    await peer.login()
    return peer


def told(peer: Peer) -> list[tuple[str | None, str | None]]:
    return [(frame.get("receipt-id"), frame.get("queues")) for frame in peer.frames()]


def send(to: str, receipt: int, headers: str = "", body: str = "x") -> bytes:
    return f"SEND\ndestination:{to}\nreceipt:{receipt}\n{headers}\n{body}\0".encode()


@with_rig()
async def test_receipts_of_stomp(rig: ServerRig) -> None:
    await red_queue(rig)
    peer = await stomp(rig)
    for number in range(3):  # the first one teaches the core
        peer.send(send("/topic/news", number))
        peer.send(send("/queue/orders", number + 10, "colour:blue\n"))
        peer.send(send("/queue/orders", number + 20, "colour:red\n"))
        await rig.flush()
        assert told(peer) == [
            (str(number), "0"),
            (str(number + 10), "0"),
            (str(number + 20), None),
        ]
    assert lost(rig) == {"news": 3, "orders": 3}


@with_rig()
async def test_a_transaction_of_stomp(rig: ServerRig) -> None:
    peer = await stomp(rig)
    peer.send(b"BEGIN\ntransaction:t\n\n\0")
    peer.send(send("/topic/news", 1, "transaction:t\n"))
    await rig.flush()
    assert lost(rig) == {}
    peer.send(b"COMMIT\ntransaction:t\nreceipt:2\n\n\0")
    await rig.flush()
    assert told(peer) == [("1", None), ("2", None)]
    assert lost(rig) == {"news": 1}


async def sender(rig: ServerRig, address: str | None, **fields: Any) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    await peer.sender(address, **fields)
    return peer


def outcomes(peer: AmqpPeer) -> list[type]:
    return [
        type(each.state)
        for each in peer.all(Disposition)
        for _ in range((each.first if each.last is None else each.last) - each.first + 1)
    ]


@pytest.mark.parametrize("mode", [None, UByte(1)])
def test_amqp_releases_what_is_for_a_queue(mode: UByte | None) -> None:
    @with_rig()
    async def scenario(rig: ServerRig) -> None:
        await red_queue(rig)
        peer = await sender(rig, "orders", rcv_settle_mode=mode)
        for colour in ("blue", "red", "blue"):
            peer.send(message(application={"colour": colour}))
            await rig.flush()
        dispositions = peer.all(Disposition)
        assert [type(each.state) for each in dispositions] == [Released, Accepted, Released]
        assert [each.settled for each in dispositions] == [True, mode is None, True]
        assert lost(rig) == {"orders": 2}

    scenario()


@with_rig()
async def test_amqp_accepts_what_is_for_a_topic(rig: ServerRig) -> None:
    peer = await sender(rig, "/topic/news")
    for _ in range(4):
        peer.send(message())
        await rig.flush()
    assert outcomes(peer) == [Accepted] * 4
    assert lost(rig) == {"news": 4}


@with_rig()
async def test_amqp_releases_through_the_anonymous_relay(rig: ServerRig) -> None:
    await red_queue(rig)
    peer = await sender(rig, None)
    peer.send(message(to="/queue/orders"))
    await rig.flush()
    assert outcomes(peer) == [Released]


@pytest.mark.parametrize("text", ["orders", "orders::orders"])
@with_rig()
async def test_what_the_core_was_taught_is_released_when_its_queue_takes_nothing(
    rig: ServerRig, text: str
) -> None:
    traits = QueueTraits(is_purged_when_unused=True)
    await rig.engine.registry.create_queue("orders", "orders", RoutingType.ANYCAST, traits=traits)
    consumer = await stomp(rig)
    consumer.send(b"SUBSCRIBE\nid:1\ndestination:/queue/orders\n\n\0")
    await rig.flush()
    peer = await sender(rig, text)
    for _ in range(4):
        peer.send(message())
        await rig.flush()
    assert outcomes(peer) == [Accepted] * 4
    consumer.send(b"UNSUBSCRIBE\nid:1\n\n\0")  # the queue is closed
    await rig.flush()
    for _ in range(4):
        peer.send(message())
        await rig.flush()
    assert outcomes(peer) == [Released] * 4
    assert lost(rig) == {"orders": 4}


@with_rig()
async def test_settled_messages_of_amqp_are_counted_alone(rig: ServerRig) -> None:
    await red_queue(rig)
    peer = await sender(rig, "orders", snd_settle_mode=UByte(1))
    peer.send(message(), settled=True)
    await rig.flush()
    assert outcomes(peer) == []
    assert lost(rig) == {"orders": 1}
