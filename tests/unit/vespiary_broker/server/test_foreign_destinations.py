"""Destinations in forms of other brokers, and names without a prefix, in STOMP and AMQP."""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_codec.wire.amqp import Accepted, Detach, Disposition, Rejected, Target, Transfer
from vespiary_codec.wire.amqp.values import Symbol
from vespiary_spec.settings import RoutingType
from vespiary_testkit.amqp_peer import AmqpPeer, message, with_rig
from vespiary_testkit.server_rig import Peer, ServerRig

QUEUES = ["queue://a", "jms.queue.a", "/queues/a", "/amq/queue/a", "a", "/queue/a"]


async def stomp(rig: ServerRig) -> Peer:
    peer = rig.peer()
    await peer.login()
    return peer


async def amqp(rig: ServerRig) -> AmqpPeer:
    peer = AmqpPeer(rig)
    await peer.open()
    await peer.begin()
    return peer


def kinds(rig: ServerRig) -> dict[str, set[RoutingType]]:
    return {name: one.routing_types for name, one in rig.engine.registry.addresses.items()}


def added(rig: ServerRig, name: str = "a") -> int:
    return rig.core.queue_statistics(rig.engine.registry.queues[name].id).added


def stored(rig: ServerRig, name: str = "a") -> set[bytes]:
    queue = rig.engine.registry.queues[name]
    views = rig.core.look(queue.id, 0, 100).messages
    return {view.properties.partition(b"\n")[0] for view in views}


@pytest.mark.parametrize("text", QUEUES)
@with_rig()
async def test_stomp_sends_to_the_queue(rig: ServerRig, text: str) -> None:
    peer = await stomp(rig)
    for number in range(3):
        frame = f"SEND\ndestination:{text}\nreceipt:{number}\n\nx\0"
        peer.send(frame.encode())
        await rig.flush()
    assert [frame.command for frame in peer.frames()] == ["RECEIPT"] * 3
    assert kinds(rig) == {"a": {RoutingType.ANYCAST}}
    assert added(rig) == 3
    own = {"a": {b"destination:a"}}.get(text, {b"destination:/queue/a"})
    assert stored(rig) == own


@pytest.mark.parametrize("text", ["topic://a", "jms.topic.a", "/topics/a", "/topic/a"])
@with_rig()
async def test_stomp_subscribes_to_the_topic(rig: ServerRig, text: str) -> None:
    peer = await stomp(rig)
    peer.send(f"SUBSCRIBE\nid:1\ndestination:{text}\n\n\0".encode())
    peer.send(b"SEND\ndestination:/topic/a\n\nx\0")
    await rig.flush()
    assert [frame.body for frame in peer.frames()] == [b"x"]
    assert kinds(rig) == {"a": {RoutingType.MULTICAST}}


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
@with_rig()
async def test_stomp_is_told_the_right_form(rig: ServerRig, command: str) -> None:
    peer = await stomp(rig)
    peer.send(f"{command}\nid:1\ndestination:/exchange/x/y\n\n\0".encode())
    await rig.flush()
    (frame,) = peer.frames()
    assert frame.command == "ERROR"
    assert b"/queue/NAME" in frame.body
    assert kinds(rig) == {}


@pytest.mark.parametrize("text", QUEUES)
@with_rig()
async def test_amqp_sends_to_the_queue(rig: ServerRig, text: str) -> None:
    peer = await amqp(rig)
    await peer.sender(text)
    for _ in range(3):
        peer.send(message())
        await rig.flush()
    assert {type(each.state) for each in peer.all(Disposition)} == {Accepted}
    assert kinds(rig) == {"a": {RoutingType.ANYCAST}}
    assert added(rig) == 3


@pytest.mark.parametrize("text", QUEUES)
@with_rig()
async def test_the_anonymous_relay_sends_to_the_queue(rig: ServerRig, text: str) -> None:
    peer = await amqp(rig)
    await peer.sender(None)
    peer.send(message(to=text))
    await rig.flush()
    assert kinds(rig) == {"a": {RoutingType.ANYCAST}}
    assert added(rig) == 1


@with_rig()
async def test_the_anonymous_relay_rejects(rig: ServerRig) -> None:
    peer = await amqp(rig)
    await peer.sender(None)
    peer.send(message(to="/exchange/x/y"))
    await rig.flush()
    (told,) = peer.all(Disposition)
    assert isinstance(told.state, Rejected)
    assert "/queue/NAME" in str(told.state.error)


def detached(peer: AmqpPeer) -> Any:
    (told,) = peer.all(Detach)
    return told.error


@pytest.mark.parametrize("is_receiver", [True, False])
@with_rig()
async def test_amqp_is_told_the_right_form(rig: ServerRig, is_receiver: bool) -> None:
    peer = await amqp(rig)
    await (peer.receiver if is_receiver else peer.sender)("/exchange/x/y")
    await rig.flush()
    error = detached(peer)
    assert error.condition == Symbol("amqp:invalid-field")
    assert "/queue/NAME" in error.description
    assert kinds(rig) == {}


@with_rig()
async def test_the_answer_to_an_attach_says_what_the_client_wrote(rig: ServerRig) -> None:
    peer = await amqp(rig)
    answer = await peer.sender("queue://a")
    assert answer.target.address == "queue://a"


# --- names without a prefix -----------------------------------------------------------------------


def subscribe(to: str, headers: str = "") -> bytes:
    return f"SUBSCRIBE\nid:1\ndestination:{to}\nreceipt:s\n{headers}\n\0".encode()


@with_rig()
async def test_consumers_of_a_name_share_a_queue(rig: ServerRig) -> None:
    peers = [await stomp(rig) for _ in range(2)]
    for peer in peers:
        peer.send(subscribe("a"))
        await rig.flush()
        assert [frame.command for frame in peer.frames()] == ["RECEIPT"]
    for _ in range(4):
        peers[0].send(b"SEND\ndestination:a\n\nx\0")
    await rig.flush()
    got = [sum(frame.command == "MESSAGE" for frame in peer.frames()) for peer in peers]
    assert got == [2, 2]
    assert kinds(rig) == {"a": {RoutingType.ANYCAST}}
    assert rig.engine.registry.queues["a"].is_durable


@with_rig()
async def test_what_is_sent_before_anybody_subscribes_is_kept(rig: ServerRig) -> None:
    peer = await stomp(rig)
    peer.send(b"SEND\ndestination:tasks\nreceipt:1\n\nx\0")
    await rig.flush()
    assert [frame.headers for frame in peer.frames()] == [[("receipt-id", "1")]]
    receiver = await amqp(rig)
    await receiver.receiver("tasks", credit=1)
    await rig.flush()
    assert len(receiver.all(Transfer)) == 1


@with_rig()
async def test_a_topic_that_exists_stays_one(rig: ServerRig) -> None:
    await rig.engine.registry.create_address("news", {RoutingType.MULTICAST})
    peers = [await stomp(rig) for _ in range(2)]
    for peer in peers:
        peer.send(subscribe("news"))
    sender = await amqp(rig)
    await sender.sender("news")
    sender.send(message())
    await rig.flush()
    assert [[frame.command for frame in peer.frames()] for peer in peers] == [
        ["RECEIPT", "MESSAGE"]
    ] * 2
    assert kinds(rig) == {"news": {RoutingType.MULTICAST}}


@with_rig()
async def test_a_durable_subscription_has_to_name_a_topic(rig: ServerRig) -> None:
    durable = "durable-subscription-name:d\n"
    peer = rig.peer()
    await peer.login(client_id="c")
    peer.send(subscribe("news", durable))
    await rig.flush()
    (frame,) = peer.frames()
    assert frame.command == "ERROR"
    assert b"subscription-type:MULTICAST" in frame.body
    assert kinds(rig) == {}
    peer = rig.peer()
    await peer.login(client_id="c")
    peer.send(subscribe("topic://news", durable))
    await rig.flush()
    assert [frame.command for frame in peer.frames()] == ["RECEIPT"]
    assert kinds(rig) == {"news": {RoutingType.MULTICAST}}


@pytest.mark.parametrize("name", ["queue", "topic"])
@with_rig()
async def test_a_capability_says_what_a_name_is(rig: ServerRig, name: str) -> None:
    peer = await amqp(rig)
    await peer.sender("a", target=Target(address="a", capabilities=(Symbol(name),)))
    kind = RoutingType.MULTICAST if name == "topic" else RoutingType.ANYCAST
    assert kinds(rig) == {"a": {kind}}
