"""Connections of users that were removed: closed in every protocol, with a reason."""

from __future__ import annotations

import asyncio
import logging

import pytest

from vespiary_broker.engine.users import make_user
from vespiary_broker.server.removed_users import close_removed
from vespiary_codec.wire.amqp import Close, Frame, Layer, SaslInit, encode_frame, protocol_header
from vespiary_codec.wire.amqp.values import Symbol
from vespiary_codec.wire.mqtt import Connack, Connect, Disconnect, Publish, ReasonCode
from vespiary_spec.errors import LoginRefused
from vespiary_spec.settings import Protocol
from vespiary_testkit.amqp_peer import AmqpPeer
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.server_rig import Peer
from vespiary_testkit.waiting import WAIT_S
from vespiary_testkit.websocket_rig import Client

ALICE, BOB = (make_user(name, "secret", iterations=4096) for name in ("alice", "bob"))
GONE = "the user alice was removed"


def both() -> dict[str, object]:
    return {"alice": ALICE, "bob": BOB}


def connect(user: str) -> bytes:
    return f"CONNECT\naccept-version:1.2\nhost:x\nlogin:{user}\npasscode:secret\n\n\0".encode()


async def until(rig: MqttRig, is_so: object) -> None:
    async with asyncio.timeout(WAIT_S):
        await rig.settle()
        while not is_so():  # type: ignore[operator]
            await asyncio.sleep(0.002)
            await rig.flush()


async def stomp(rig: MqttRig, user: str) -> Peer:
    peer = rig.peer()
    peer.send(connect(user))
    await until(rig, lambda: peer.transport.data)
    assert peer.frames()[0].command == "CONNECTED"
    peer.decoder.set_version("1.2")
    return peer


async def mqtt(rig: MqttRig, user: str, version: object = V5) -> MqttClientPeer:
    client = rig.client(version)  # type: ignore[arg-type]
    client.send(Connect(version, f"c-{user}", user_name=user, password=b"secret"))  # type: ignore[arg-type]
    assert (await client.answer(Connack)).reason_code is ReasonCode.SUCCESS
    return client


async def amqp(rig: MqttRig, user: str) -> AmqpPeer:
    peer = AmqpPeer(rig)
    peer.raw(protocol_header(Layer.SASL))
    init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=f"\0{user}\0secret".encode())
    peer.raw(encode_frame(Frame(body=init)))
    await until(rig, lambda: peer.handler.user == user)
    await peer.open()
    return peer


@on_rig(users=both, protocols=lambda: tuple(Protocol))
async def test_every_protocol(rig: MqttRig) -> None:
    stomps = [await stomp(rig, user) for user in ("alice", "bob")]
    mqtts = [await mqtt(rig, user) for user in ("alice", "bob")]
    amqps = [await amqp(rig, user) for user in ("alice", "bob")]
    web = Client(rig, "v12.stomp")
    web.arrive(web.web.opening)
    web.look()
    web.message(connect("alice"))
    await until(rig, lambda: web.connection.handler.user == "alice")  # type: ignore[union-attr]
    del rig.users["alice"]  # type: ignore[attr-defined]
    assert close_removed(rig.cycle) == {"alice": 4}
    await rig.flush()
    (error,) = stomps[0].frames()
    assert error.command == "ERROR"
    assert GONE in error.get("message", "")
    told = mqtts[0].one(Disconnect)
    assert told.reason_code is ReasonCode.NOT_AUTHORIZED
    assert GONE in str(told.properties)
    closed = amqps[0].one(Close).error
    assert closed is not None
    assert closed.condition == "amqp:unauthorized-access"
    assert GONE in str(closed.description)
    assert any(GONE in frame.get("message", "") for frame in await web.frames())
    assert rig.cycle.errors == {"UserRemoved": 4}
    assert stomps[1].connection.is_open
    assert mqtts[1].connection.is_open
    assert amqps[1].peer.connection.is_open
    assert close_removed(rig.cycle) == {}


@on_rig(users=both)
async def test_mqtt_3_is_closed_without_words(rig: MqttRig) -> None:
    client = await mqtt(rig, "alice", V3)
    del rig.users["alice"]  # type: ignore[attr-defined]
    close_removed(rig.cycle)
    await rig.flush()
    assert client.packets() == []
    assert client.is_ended


@on_rig(users=both)
async def test_what_was_sent_before_is_confirmed_and_what_comes_later_is_not_taken(
    rig: MqttRig,
) -> None:
    peer = await stomp(rig, "alice")
    peer.send(b"SEND\ndestination:/queue/q\nreceipt:1\n\nx\0")
    await rig.settle()
    del rig.users["alice"]  # type: ignore[attr-defined]
    close_removed(rig.cycle)
    peer.send(b"SEND\ndestination:/queue/q\nreceipt:2\n\nx\0")
    await rig.flush()
    assert [frame.command for frame in peer.frames()] == ["RECEIPT", "ERROR"]
    assert rig.core.queue_statistics(rig.engine.registry.queues["q"].id).ready == 1


@on_rig(users=both, protocols=lambda: tuple(Protocol))
async def test_a_login_that_is_being_checked_when_its_user_goes(rig: MqttRig) -> None:
    peer, client, amqp_peer = rig.peer(), rig.client(), AmqpPeer(rig)
    peer.send(connect("alice"))
    client.send(Connect(V5, "c", user_name="alice", password=b"secret"))
    amqp_peer.raw(protocol_header(Layer.SASL))
    init = SaslInit(mechanism=Symbol("PLAIN"), initial_response=b"\0alice\0secret")
    amqp_peer.raw(encode_frame(Frame(body=init)))
    await rig.settle(2)
    del rig.users["alice"]  # type: ignore[attr-defined]
    await until(rig, lambda: not any(c.is_open for c in rig.cycle.connections.values()))
    assert peer.frames()[0].command == "ERROR"
    assert client.one(Connack).reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD


@on_rig(users=both)
async def test_an_mqtt_login_whose_session_is_being_begun_when_its_user_goes(
    rig: MqttRig,
) -> None:
    client = rig.client()
    async with rig.hub.sessions.lock("c"):
        client.send(Connect(V5, "c", user_name="alice", password=b"secret"))
        await until(rig, lambda: client.connection.handler.user == "alice")  # type: ignore[union-attr]
        del rig.users["alice"]  # type: ignore[attr-defined]
        assert close_removed(rig.cycle) == {"alice": 1}
    await rig.flush()
    assert client.one(Connack).reason_code is not ReasonCode.SUCCESS
    assert client.is_ended


@on_rig(users=both)
async def test_other_passwords_and_roles_close_nothing(rig: MqttRig) -> None:
    peer = await stomp(rig, "alice")
    rig.users["alice"] = make_user("alice", "other", roles=["r"], iterations=4096)  # type: ignore[index]
    assert close_removed(rig.cycle) == {}
    assert peer.connection.is_open


@on_rig()
async def test_clients_without_a_login_go_when_there_are_users(
    rig: MqttRig,
) -> None:
    peer = rig.peer()
    await peer.login()
    fresh = rig.peer()  # has not said anything yet
    rig.users = {"alice": ALICE}
    assert close_removed(rig.cycle) == {"anonymous": 1}
    await rig.flush()
    assert "clients have to log in now" in peer.frames()[0].get("message", "")
    assert fresh.connection.is_open


@on_rig(users=both)
async def test_a_message_is_not_sent_to_its_end(rig: MqttRig) -> None:
    client = await mqtt(rig, "alice")
    await client.subscribe("a")
    client.connection.pause_writing()
    del rig.users["alice"]  # type: ignore[attr-defined]
    close_removed(rig.cycle)
    writer = await mqtt(rig, "bob")
    writer.send(Publish("a", b"x"))
    await rig.flush()
    assert [type(packet) for packet in client.packets()] == [Disconnect]


def test_the_log_names_user_and_number(caplog: pytest.LogCaptureFixture) -> None:
    @on_rig(users=both)
    async def scenario(rig: MqttRig) -> None:
        await stomp(rig, "alice")
        del rig.users["alice"]  # type: ignore[attr-defined]
        close_removed(rig.cycle)
        await rig.flush()

    with caplog.at_level(logging.INFO):
        scenario()
    assert "connections closed user='alice' connections=1" in caplog.text


def test_a_removed_user_is_a_refused_login() -> None:
    from vespiary_spec.errors import UserRemoved

    assert isinstance(UserRemoved("alice"), LoginRefused)
