"""Durable subscriptions of STOMP that a new connection of the same client takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from vespiary_broker.engine.selection.selector import prepare_parser
from vespiary_broker.engine.users import make_user
from vespiary_broker.server.connection_state import State
from vespiary_codec.wire.amqp import Detach, Source
from vespiary_codec.wire.amqp.values import Symbol, UInt
from vespiary_codec.wire.mqtt import Version
from vespiary_spec.settings import AddressSettings
from vespiary_testkit import product_loop
from vespiary_testkit.amqp_peer import AmqpPeer, amqp_acceptor
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.server_rig import Peer, ServerRig
from vespiary_testkit.waiting import WAIT_S

prepare_parser()  # in the test's thread: a session would have one of its own do it
ANY_NUMBER = AddressSettings(max_delivery_attempts=-1)
NAME = "durable-subscription-name:d\n"


def on_rig(
    test: Callable[[ServerRig], Awaitable[None]], *, users: tuple[str, ...] = ()
) -> Callable[[], None]:
    async def scenario() -> None:
        known = {name: make_user(name, "secret", iterations=4096) for name in users}
        rig = ServerRig(acceptor=amqp_acceptor(), users=known, settings={"#": ANY_NUMBER})
        await test(rig)
        await rig.close()

    return lambda: product_loop.run(scenario())


async def logged_in(rig: ServerRig, client_id: str = "c", user: str = "") -> Peer:
    peer = rig.peer()
    login = f"login:{user}\npasscode:secret\n" if user else ""
    peer.send(f"CONNECT\naccept-version:1.2\nhost:x\nclient-id:{client_id}\n{login}\n\0".encode())
    async with asyncio.timeout(WAIT_S):
        while not (frames := peer.frames()):  # noqa: ASYNC110 (the loop has no event for it)
            await asyncio.sleep(0.001)
    assert [frame.command for frame in frames] == ["CONNECTED"]
    peer.decoder.set_version("1.2")
    return peer


async def subscribe(rig: ServerRig, peer: Peer, headers: str = "ack:client\n") -> None:
    peer.send(f"SUBSCRIBE\nid:1\ndestination:/topic/t\nreceipt:s\n{NAME}{headers}\n\0".encode())
    await rig.flush()


async def publish(rig: ServerRig, *bodies: str) -> None:
    peer = await logged_in(rig, "")
    for body in bodies:
        peer.send(f"SEND\ndestination:/topic/t\n\n{body}\0".encode())
    await rig.flush()
    peer.lose()
    await rig.settle()


def received(peer: Peer) -> list[str]:
    """Return commands, and the bodies of messages, that have come."""
    return [
        frame.body.decode() if frame.command == "MESSAGE" else frame.command
        for frame in peer.frames()
    ]


@on_rig
async def test_the_new_connection_gets_what_the_old_one_held_in_order(rig: ServerRig) -> None:
    old = await logged_in(rig)
    await subscribe(rig, old)
    await publish(rig, "one", "two", "three")
    assert received(old) == ["RECEIPT", "one", "two", "three"]
    new = await logged_in(rig)
    await subscribe(rig, new)
    assert received(new) == ["RECEIPT", "one", "two", "three"]
    (error,) = old.frames()
    assert error.command == "ERROR"
    assert error.get("message") == (
        "the durable subscription c.d was taken over by another connection with the same user and "
        "client id"
    )
    assert not old.connection.is_open
    assert old.transport.is_eof
    assert rig.cycle.errors["taken-over"] == 1
    old.lose()
    await rig.settle()
    new.send(b"SEND\ndestination:/topic/t\n\nfour\0")
    await rig.flush()
    assert received(new) == ["four"]


@on_rig
async def test_it_is_taken_from_a_connection_that_is_gone_and_not_seen_to_yet(
    rig: ServerRig,
) -> None:
    old = await logged_in(rig)
    await subscribe(rig, old)
    await publish(rig, "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.cycle.turns, "leave", lambda *_: None)  # there is no time for it
        old.lose()
    assert old.connection._state is State.CLOSED
    new = await logged_in(rig)
    await subscribe(rig, new)
    assert received(new) == ["RECEIPT", "one"]
    old.connection._give_back()


@on_rig
async def test_a_connection_does_not_take_its_own_subscription(rig: ServerRig) -> None:
    peer = await logged_in(rig)
    await subscribe(rig, peer)
    peer.frames()
    peer.send(f"SUBSCRIBE\nid:2\ndestination:/topic/t\n{NAME}\n\0".encode())
    await rig.flush()
    (error,) = peer.frames()
    assert "in use by another connection" in error.get("message", "")


@on_rig
async def test_who_is_refused_takes_nothing(rig: ServerRig) -> None:
    old = await logged_in(rig)
    await subscribe(rig, old)
    new = await logged_in(rig)
    await subscribe(rig, new, "selector:a = 1\n")
    (error,) = new.frames()
    assert "has another selector" in error.get("message", "")
    await publish(rig, "one")
    assert received(old) == ["RECEIPT", "one"]


@on_rig
async def test_a_link_of_amqp_gives_it_away_as_well(rig: ServerRig) -> None:
    amqp = AmqpPeer(rig)
    await amqp.open(container="c")
    await amqp.begin()
    source = Source(address="/topic/t", durable=UInt(2), expiry_policy=Symbol("never"))
    await amqp.receiver("/topic/t", name="d", source=source)
    new = await logged_in(rig)
    await subscribe(rig, new)
    await publish(rig, "one")
    assert received(new) == ["RECEIPT", "one"]
    assert amqp.one(Detach).error.condition == "amqp:link:stolen"
    assert amqp.peer.connection.is_open


def test_a_session_of_mqtt_gives_nothing_away() -> None:
    async def scenario() -> None:
        rig = MqttRig(settings={"#": ANY_NUMBER})
        mqtt = await rig.connected("c", Version.V3_1_1, clean_start=False)
        await mqtt.subscribe("t")
        (queue,) = (q for q in rig.engine.registry.queues.values() if q.client_id == "c")
        new = await logged_in(rig)
        new.send(b"SUBSCRIBE\nid:1\ndestination:t::" + queue.name.encode() + b"\n\n\0")
        await rig.flush()
        (error,) = new.frames()
        assert error.command == "ERROR"
        assert "belongs to a session of another protocol" in error.get("message", "")
        assert not mqtt.is_ended
        assert len(queue.consumers) == 1
        await rig.close()

    product_loop.run(scenario())


async def _two_users(rig: ServerRig) -> None:
    old = await logged_in(rig, user="amy")
    await subscribe(rig, old)
    new = await logged_in(rig, user="bob")
    await subscribe(rig, new)
    assert received(new) == ["RECEIPT"], "it has a queue of its own"
    assert received(old) == ["RECEIPT"]
    assert old.connection.is_open


def test_another_user_takes_nothing() -> None:
    on_rig(_two_users, users=("amy", "bob"))()


@pytest.mark.parametrize("rounds", [50])
def test_clients_that_take_it_from_one_another_lose_no_message(rounds: int) -> None:
    async def scenario(rig: ServerRig) -> None:
        peers = [await logged_in(rig)]
        await subscribe(rig, peers[0])
        bodies = [str(number) for number in range(20)]
        await publish(rig, *bodies)
        for _ in range(rounds):
            peers.append(await logged_in(rig))
            await subscribe(rig, peers[-1], "ack:client\nprefetch-count:7\n")
            peers.pop(0).lose()
            await rig.settle()
        assert received(peers[0]) == ["RECEIPT", *bodies[:7]]
        assert rig.cycle.errors["taken-over"] == rounds
        assert len(rig.cycle.connections) == 1

    on_rig(scenario)()
