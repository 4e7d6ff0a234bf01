"""Whose queues are, as clients of STOMP, MQTT and AMQP meet it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vespiary_broker.engine.logins import Principal, guest
from vespiary_broker.engine.queue_traits import QueueTraits
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.subscription_names import last_name
from vespiary_broker.engine.users import make_user
from vespiary_codec.wire.amqp import Detach, Source, Target
from vespiary_codec.wire.amqp.values import Symbol, UInt
from vespiary_codec.wire.mqtt import (
    Connack,
    Connect,
    Property,
    Publish,
    ReasonCode,
    Unsubscribe,
    Version,
)
from vespiary_codec.wire.stomp import Frame
from vespiary_spec.security import ANONYMOUS_ROLE
from vespiary_spec.settings import Permission, Protocol, RoutingType, SecuritySettings
from vespiary_testkit.amqp_peer import RECEIVER, AmqpPeer, with_rig
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.server_rig import Peer, ServerRig

PASSWORD = "secret"
UNSUBSCRIBE = b"UNSUBSCRIBE\nid:9\ndurable-subscription-name:prices\n\n\0"
USERS = {
    name: make_user(name, PASSWORD, roles=roles, iterations=4096)
    for name, roles in (("alice", ("apps",)), ("bob", ("others",)), ("root", ("admin",)))
}
NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
DURABLE = {"durable": UInt(2), "expiry_policy": Symbol("never")}
TOPIC = (Symbol("topic"),)
COPY = Symbol("copy")


# --- STOMP and MQTT -------------------------------------------------------------------------------


def has_users() -> dict[str, Any]:
    return dict(USERS)


async def stomp(rig: MqttRig, user: str, client_id: str) -> Peer:
    peer = rig.peer()
    login = f"login:{user}\npasscode:{PASSWORD}\nclient-id:{client_id}\n"
    peer.send(f"CONNECT\naccept-version:1.2\nhost:x\n{login}\n\0".encode())
    while not (frames := peer.frames()):
        await rig.flush()
        await asyncio.sleep(0.001)
    assert [frame.command for frame in frames] == ["CONNECTED"]
    peer.decoder.set_version("1.2")
    return peer


async def subscribed(rig: MqttRig, peer: Peer, to: str, **headers: str) -> Frame:
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    peer.send(f"SUBSCRIBE\ndestination:{to}\nid:1\nreceipt:s\n{lines}\n\0".encode())
    await rig.flush()
    return next(frame for frame in peer.frames() if frame.command != "MESSAGE")


async def mqtt(
    rig: MqttRig, user: str, client_id: str, version: Version = V5, **fields: Any
) -> tuple[MqttClientPeer, Connack]:
    client = rig.client(version)
    fields = {"properties": NEVER if version is V5 else {}, "clean_start": False, **fields}
    if user:
        fields |= {"user_name": user, "password": PASSWORD.encode()}
    client.send(Connect(version, client_id, **fields))
    while not (found := client.packets()):
        await rig.flush()
        await asyncio.sleep(0.001)
    answer, *client.early = found
    assert isinstance(answer, Connack)
    return client, answer


def session_user(rig: MqttRig, client_id: str) -> str:
    session = rig.hub.sessions.get(client_id)
    assert session is not None
    return session.user


def bodies(packets: list[Any]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


@on_rig(users=has_users)
async def test_a_stomp_client_gets_nothing_of_an_mqtt_session(rig: MqttRig) -> None:
    client, _ = await mqtt(rig, "alice", "mq")
    await client.subscribe("prices")
    client.lose()
    for user in ("bob", "alice"):
        thief = await stomp(rig, user, "mq")
        answer = await subscribed(rig, thief, "prices::mq.prices")
        assert answer.command == "ERROR"
        said = "belongs to a session of another protocol"
        assert said in answer.get("message", "")
    bob = await stomp(rig, "bob", "mq")
    own = await subscribed(rig, bob, "/topic/prices", durable_subscription_name="prices")
    assert own.command == "RECEIPT"
    assert set(rig.engine.registry.queues) >= {"mq.prices", "mq=prices"}
    bob.send(b"SEND\ndestination:/topic/prices\n\nx\0")
    await rig.flush()
    assert [frame.body for frame in bob.frames()] == [b"x"]
    again, answer = await mqtt(rig, "alice", "mq")
    assert answer.session_present
    await rig.flush()
    found = [*again.early, *again.packets()]
    assert bodies(found) == [b"x"], "each has a copy of its own"


@on_rig(users=has_users)
async def test_an_mqtt_client_takes_no_queue_of_another_protocol(rig: MqttRig) -> None:
    bob = await stomp(rig, "bob", "mq")
    await subscribed(rig, bob, "/topic/prices", durable_subscription_name="prices")
    bob.lose()
    client, _ = await mqtt(rig, "alice", "mq")
    await client.subscribe("prices")
    client.send(Publish("prices", b"x", 1, packet_id=1))
    await rig.flush()
    await rig.flush()
    assert bodies(client.packets()) == [b"x"]
    queues = rig.engine.registry.queues
    assert queues["mq=prices"].traits.user == "alice"
    ready = rig.core.queue_statistics(queues["mq.prices"].id).ready
    assert ready == 1, "the durable subscription has its own copy"
    client.lose()
    await rig.flush()
    rig.hub.sessions._by_client.clear()
    rig.hub.sessions.restore()
    assert queues["mq.prices"].traits.protocol == "", "a restart does not mistake it either"


@on_rig(users=has_users)
async def test_another_user_gets_nothing_by_a_client_id(rig: MqttRig) -> None:
    alice = await stomp(rig, "alice", "shop")
    await subscribed(rig, alice, "/topic/prices", durable_subscription_name="prices")
    alice.lose()
    thief = await stomp(rig, "bob", "shop")
    answer = await subscribed(rig, thief, "prices::shop.prices")
    assert answer.command == "ERROR"
    assert "shop.prices belongs to another user" in answer.get("message", "")
    thief = await stomp(rig, "bob", "shop")
    thief.send(UNSUBSCRIBE)
    await rig.flush()
    (frame,) = thief.frames()
    assert "there is no durable subscription" in frame.get("message", "")
    thief = await stomp(rig, "bob", "shop")
    answer = await subscribed(rig, thief, "/topic/prices", durable_subscription_name="prices")
    assert answer.command == "RECEIPT"
    thief.send(UNSUBSCRIBE.replace(b"id:9", b"id:1"))
    await rig.flush()
    assert set(rig.engine.registry.queues) == {"shop.prices"}, "its own one alone"
    root = await stomp(rig, "root", "shop")
    answer = await subscribed(rig, root, "/topic/prices", durable_subscription_name="prices")
    assert answer.command == "RECEIPT", "an administrator may"
    assert rig.engine.registry.queues["shop.prices"].traits.user == "alice"


@on_rig()
async def test_a_session_of_a_time_without_users_is_adopted(rig: MqttRig) -> None:
    client, _ = await mqtt(rig, "", "mq")
    await client.subscribe("prices")
    client.lose()
    await rig.flush()
    rig.users = dict(USERS)
    everything = {permission.value: ("apps", "others") for permission in Permission}
    rules = {"#": everything, "prices": {**everything, "consume": ("apps",)}}
    rig.engine.registry.permissions.replace(
        {match: SecuritySettings(**each) for match, each in rules.items()}
    )
    _, answer = await mqtt(rig, "bob", "mq")
    assert answer.reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "it would lose `prices`"
    _, answer = await mqtt(rig, "alice", "mq")
    assert answer.session_present
    await rig.flush()
    assert rig.bindings.snapshot()["mqtt-session/mq"]["user"] == "alice"
    assert rig.engine.registry.queues["mq.prices"].traits.user == "alice"
    _, answer = await mqtt(rig, "bob", "mq")
    assert answer.reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", [V3, V5])
def test_an_administrator_ends_the_session_of_any_user(version: Version, clean: bool) -> None:
    @on_rig(users=has_users)
    async def scenario(rig: MqttRig) -> None:
        squatter, _ = await mqtt(rig, "bob", "dev1", version)
        await squatter.subscribe("prices")
        _, answer = await mqtt(rig, "alice", "dev1", version, clean_start=clean)
        assert answer.reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert squatter.connection.is_open
        root, answer = await mqtt(rig, "root", "dev1", version, clean_start=clean)
        assert (answer.reason_code, answer.session_present) == (ReasonCode.SUCCESS, False)
        assert not squatter.connection.is_open
        assert "dev1.prices" not in rig.engine.registry.queues, "it does not go on with it"
        assert rig.engine.registry.limits.durable_sessions == (version is V5 or not clean)
        root.lose()
        await rig.flush()
        root, answer = await mqtt(rig, "root", "dev1", version, clean_start=True, properties={})
        assert answer.reason_code is ReasonCode.SUCCESS
        root.lose()
        await rig.flush()
        assert rig.hub.sessions.get("dev1") is None
        _, answer = await mqtt(rig, "alice", "dev1", version)
        assert (answer.reason_code, answer.session_present) == (ReasonCode.SUCCESS, False)
        assert session_user(rig, "dev1") == "alice"

    scenario()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("version", [V3, V5])
def test_a_client_without_a_login_keeps_no_user_out(version: Version, clean: bool) -> None:
    @on_rig(users=has_users)
    async def scenario(rig: MqttRig) -> None:
        rig.engine.logins._anonymous = guest()
        everything = {permission.value: ("apps", ANONYMOUS_ROLE) for permission in Permission}
        rules = {"#": everything, "guests": {**everything, "consume": (ANONYMOUS_ROLE,)}}
        rig.engine.registry.permissions.replace(
            {match: SecuritySettings(**each) for match, each in rules.items()}
        )
        for client_id, topic, is_kept in (("dev1", "guests", False), ("dev2", "prices", True)):
            visitor, answer = await mqtt(rig, "", client_id, version)
            assert answer.reason_code is ReasonCode.SUCCESS
            await visitor.subscribe(topic)
            _, answer = await mqtt(rig, "alice", client_id, version, clean_start=clean)
            is_present = is_kept and not clean
            assert (answer.reason_code, answer.session_present) == (ReasonCode.SUCCESS, is_present)
            assert not visitor.connection.is_open
            assert (f"{client_id}.{topic}" in rig.engine.registry.queues) is is_present
            assert session_user(rig, client_id) == "alice"
            _, answer = await mqtt(rig, "", client_id, version, clean_start=clean)
            assert answer.reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "it is hers now"

    scenario()


@on_rig(users=has_users)
async def test_sessions_of_an_earlier_version_keep_their_queues(rig: MqttRig) -> None:
    await rig.engine.registry.create_queue(
        "mq.prices", "prices", RoutingType.MULTICAST, client_id="mq",
        traits=QueueTraits(user="alice"),
    )  # fmt: skip
    options = {"qos": 1}
    value = {"user": "alice", "expiry": 0xFFFFFFFF, "subscriptions": {"prices": options}}
    await rig.bindings.put("mqtt-session/mq", value)
    rig.hub.sessions.restore()
    await rig.flush()
    thief = await stomp(rig, "alice", "mq")
    answer = await subscribed(rig, thief, "prices::mq.prices")
    assert "a session of another protocol" in answer.get("message", "")
    client, answer = await mqtt(rig, "alice", "mq")
    assert answer.session_present
    client.send(Publish("prices", b"x", 1, packet_id=1))
    await rig.flush()
    await rig.flush()
    assert bodies(client.packets()) == [b"x"]


# --- AMQP -----------------------------------------------------------------------------------------


async def amqp(rig: ServerRig, user: str, container: str = "shop", **fields: Any) -> AmqpPeer:
    rig.users = {}
    peer = AmqpPeer(rig)
    await peer.open(container=container, **fields)
    rig.users = dict(USERS)
    peer.handler.principal = Principal(user, USERS[user].roles)
    await peer.begin()
    return peer


def source(address: str | None, **fields: Any) -> dict[str, Any]:
    return {"source": Source(address=address, **fields), "target": Target(), "name": "prices"}


async def refused(peer: AmqpPeer, **fields: Any) -> bool:
    await peer.attach(RECEIVER, 5, **fields)
    await peer.rig.flush()
    error = peer.all(Detach)[0].error
    await peer.detach(5)
    assert error is not None
    assert error.condition == "amqp:unauthorized-access"
    assert "belongs to another user" in (error.description or "")
    return True


@with_rig()
async def test_a_durable_link_is_for_the_user_who_made_it(rig: ServerRig) -> None:
    for extra in ((), (Symbol("shared"),)):
        kinds = {**DURABLE, "capabilities": (*TOPIC, *extra)}
        alice = await amqp(rig, "alice")
        await alice.attach(RECEIVER, 1, **source("prices", **kinds))
        await rig.flush()
        await alice.detach(1, closed=False)
        thief = await amqp(rig, "bob")
        assert await refused(thief, **source("prices::shop.prices"))
        assert await refused(thief, **source("prices::shop.prices", distribution_mode=COPY))
        name = {"name": "prices", "source": None, "target": Target()}
        capabilities = {"desired_capabilities": extra} if extra else {}
        await thief.attach(RECEIVER, 5, **name, **capabilities)
        await rig.flush()
        error = thief.all(Detach)[0].error
        assert error is not None
        assert error.condition == "amqp:not-found"
        await thief.detach(5)
        for address in ("prices", "other"):
            await thief.attach(RECEIVER, 1, **source(address, **kinds))
            await rig.flush()
            assert not thief.all(Detach), "it has a queue of its own"
            assert len(rig.engine.registry.queues) == 2
            await thief.detach(1, closed=True)
            await rig.flush()
            thief.all(Detach)
        assert list(rig.engine.registry.queues) == ["shop.prices"]
        root = await amqp(rig, "root")
        await root.attach(RECEIVER, 1, **source("prices", **kinds))
        await root.detach(1, closed=True)
        await rig.flush()
        assert "shop.prices" not in rig.engine.registry.queues


@with_rig()
async def test_a_shared_subscription_of_all_containers_has_no_owner(rig: ServerRig) -> None:
    kinds = {**DURABLE, "capabilities": (*TOPIC, Symbol("shared"), Symbol("global"))}
    for user in ("alice", "bob"):
        peer = await amqp(rig, user, container=user)
        await peer.attach(RECEIVER, 1, **source("prices", **kinds))
        await rig.flush()
    assert len(rig.engine.registry.queues["prices:global"].consumers) == 2


async def shared_before(rig: ServerRig, name: str, user: str, **traits: Any) -> None:
    """Have a shared subscription of the container `shop.eu`, as an earlier version wrote it."""
    await rig.engine.registry.create_queue(
        name, "prices", RoutingType.MULTICAST, traits=QueueTraits(user=user, **traits)
    )


SHARED = {**DURABLE, "capabilities": (*TOPIC, Symbol("shared"))}


@with_rig()
async def test_a_shared_subscription_of_a_time_without_users_is_adopted(rig: ServerRig) -> None:
    await shared_before(rig, "shop.eu.prices", "anonymous")
    queues = rig.engine.registry.queues
    alice = await amqp(rig, "alice", container="shop.eu")
    await alice.attach(RECEIVER, 1, **source("prices", **SHARED))
    await rig.flush()
    assert [len(queue.consumers) for queue in queues.values()] == [1], "it keeps its former name"
    binding = rig.bindings.snapshot()[queues["shop.eu.prices"].key]
    assert (binding["user"], binding["owned"]) == ("alice", True)
    bob = await amqp(rig, "bob", container="shop.eu")
    assert await refused(bob, **source("prices::shop.eu.prices"))


@with_rig()
async def test_a_shared_subscription_of_a_user_is_found_by_that_user_alone(rig: ServerRig) -> None:
    await shared_before(rig, "shop.eu.prices", "alice")
    queues = rig.engine.registry.queues
    for user, name in (("bob", "shop%2Eeu.prices"), ("alice", "shop.eu.prices")):
        peer = await amqp(rig, user, container="shop.eu")
        await peer.attach(RECEIVER, 1, **source("prices", **SHARED))
        await rig.flush()
        assert len(queues[name].consumers) == 1
        await peer.detach(1, closed=True)
        await rig.flush()
    assert not queues


@with_rig()
async def test_a_configured_queue_of_a_subscriptions_name_stays_shared(rig: ServerRig) -> None:
    await shared_before(rig, "shop.prices", "", is_configured=True)
    for user in ("alice", "bob"):
        peer = await amqp(rig, user)
        await peer.attach(RECEIVER, 1, **source("prices", **SHARED))
        await rig.flush()
    queue = rig.engine.registry.queues["shop.prices"]
    assert (len(queue.consumers), queue.traits.is_owned) == (2, False)


@with_rig()
async def test_a_container_id_of_another_user_locks_nobody_out(rig: ServerRig) -> None:
    sole = {"desired_capabilities": (Symbol("sole-connection-for-container"),)}
    await amqp(rig, "bob")
    await amqp(rig, "alice", **sole)


# --- names that others have taken -----------------------------------------------------------------


def all_protocols() -> tuple[Protocol, ...]:
    return Protocol.STOMP, Protocol.MQTT, Protocol.AMQP


Attack = Callable[[MqttRig], Awaitable[None]]


async def take_by_stomp(rig: MqttRig) -> None:
    bob = await stomp(rig, "bob", "shop")
    await subscribed(rig, bob, "/topic/prices", durable_subscription_name="prices")


async def take_by_mqtt(rig: MqttRig) -> None:
    client, _ = await mqtt(rig, "bob", "shop")
    await client.subscribe("prices")
    client.lose()


async def take_by_amqp(rig: MqttRig) -> None:
    bob = await amqp(rig, "bob")
    await bob.attach(RECEIVER, 1, **source("prices", **DURABLE, capabilities=TOPIC))


async def share_by_amqp(rig: MqttRig) -> None:
    bob = await amqp(rig, "bob")
    await bob.attach(RECEIVER, 1, **source("prices", **SHARED))


async def consume_by_name(rig: MqttRig) -> None:
    bob = await stomp(rig, "bob", "bob")
    await subscribed(rig, bob, "/topic/other::shop.prices")


async def consume_at_the_address(rig: MqttRig) -> None:
    bob = await stomp(rig, "bob", "bob")
    await subscribed(rig, bob, "/topic/prices::shop.prices")


async def send_by_name(rig: MqttRig) -> None:
    bob = await stomp(rig, "bob", "bob")
    bob.send(b"SEND\ndestination:/queue/other::shop.prices\n\nx\0")


async def make_by_api(rig: MqttRig) -> None:
    await rig.engine.registry.create_queue("shop.prices", "other", RoutingType.MULTICAST)


ATTACKS = (
    take_by_stomp, take_by_mqtt, take_by_amqp, share_by_amqp, consume_by_name,
    consume_at_the_address, send_by_name, make_by_api,
)  # fmt: skip


async def taken(rig: MqttRig, attack: Attack) -> set[str]:
    """Have bob take the names that a client of alice would get; return all names."""
    everything = {permission.value: ("apps", "others") for permission in Permission}
    rules = {"#": everything, "other": {**everything, "consume": ("others",)}}
    rig.engine.registry.permissions.replace(
        {match: SecuritySettings(**each) for match, each in rules.items()}
    )
    bob = await stomp(rig, "bob", "bob")
    await subscribed(rig, bob, "/topic/other::shop=prices")
    await attack(rig)
    await rig.flush()
    names = set(rig.engine.registry.queues)
    assert names >= {"shop.prices", "shop=prices"}
    return names


def one_more(rig: MqttRig, names: set[str]) -> Queue:
    """Return the queue of alice, the only one beside what bob has."""
    queues = rig.engine.registry.queues
    (name,) = set(queues) - names
    assert name.startswith("~")
    assert name.endswith(".shop.prices")
    assert (queues[name].traits.user, queues[name].address.name) == ("alice", "prices")
    return queues[name]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_stomp_client_has_a_queue_although_its_names_are_taken(attack: Attack) -> None:
    @on_rig(users=has_users, protocols=all_protocols)
    async def scenario(rig: MqttRig) -> None:
        names = await taken(rig, attack)
        for _ in range(2):
            alice = await stomp(rig, "alice", "shop")
            answer = await subscribed(
                rig, alice, "/topic/prices", durable_subscription_name="prices"
            )
            assert answer.command == "RECEIPT", answer
            queue = one_more(rig, names)
            alice.send(b"SEND\ndestination:/topic/prices\n\nx\0")
            await rig.flush()
            assert [frame.body for frame in alice.frames()] == [b"x"]
            assert len(queue.consumers) == 1
            alice.lose()
            await rig.flush()
        alice = await stomp(rig, "alice", "shop")
        alice.send(UNSUBSCRIBE.replace(b"\n\n", b"\nreceipt:u\n\n"))
        await rig.flush()
        assert [frame.command for frame in alice.frames()] == ["RECEIPT"]
        assert set(rig.engine.registry.queues) == names

    scenario()


@pytest.mark.parametrize("extra", [(), (Symbol("shared"),)])
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_amqp_client_has_a_queue_although_its_names_are_taken(
    attack: Attack, extra: tuple[Symbol, ...]
) -> None:
    @on_rig(users=has_users, protocols=all_protocols)
    async def scenario(rig: MqttRig) -> None:
        names = await taken(rig, attack)
        kinds = {**DURABLE, "capabilities": (*TOPIC, *extra)}
        for is_closed in (False, True):
            alice = await amqp(rig, "alice")
            await alice.attach(RECEIVER, 1, **source("prices", **kinds))
            await rig.flush()
            assert not alice.all(Detach)
            assert len(one_more(rig, names).consumers) == 1
            await alice.detach(1, closed=is_closed)
            await rig.flush()
        assert set(rig.engine.registry.queues) == names
        await alice.attach(RECEIVER, 1, **source("prices", **kinds))
        await alice.detach(1, closed=False)
        await rig.flush()
        alice.all(Detach)
        alone = {"name": "prices", "source": None, "target": Target()}
        await alice.attach(RECEIVER, 1, **alone, desired_capabilities=extra)
        await alice.detach(1, closed=True)
        await rig.flush()
        assert [each.error for each in alice.all(Detach)] == [None]
        assert set(rig.engine.registry.queues) == names, "deleted by its name alone"

    scenario()


@pytest.mark.parametrize("attack", [each for each in ATTACKS if each is not take_by_mqtt])
def test_an_mqtt_client_has_a_queue_although_its_names_are_taken(attack: Attack) -> None:
    @on_rig(users=has_users, protocols=all_protocols)
    async def scenario(rig: MqttRig) -> None:
        names = await taken(rig, attack)
        client, _ = await mqtt(rig, "alice", "shop")
        await client.subscribe("prices")
        queue = one_more(rig, names)
        client.lose()
        await rig.flush()
        rig.hub.sessions._by_client.clear()
        rig.hub.sessions.restore()
        sender = await stomp(rig, "alice", "sender")
        sender.send(b"SEND\ndestination:/topic/prices\n\nx\0")
        await rig.flush()
        client, answer = await mqtt(rig, "alice", "shop")
        assert answer.session_present
        await rig.flush()
        assert bodies([*client.early, *client.packets()]) == [b"x"]
        assert rig.hub.sessions.with_queues([queue]) == [rig.hub.sessions.get("shop")]
        client.send(Unsubscribe(2, ("prices",)))
        await rig.flush()
        assert set(rig.engine.registry.queues) == names

    scenario()


@on_rig(users=has_users, protocols=all_protocols)
async def test_no_client_chooses_the_name_of_anothers_subscription(rig: MqttRig) -> None:
    reserved = (last_name("", "alice", "shop.prices"), "$share.workers.jobs")
    for name in reserved:
        for to in (f"/topic/other::{name}", f"/queue/{name}"):
            bob = await stomp(rig, "bob", "bob")
            answer = await subscribed(rig, bob, to)
            assert "are for the queues of subscriptions" in answer.get("message", "")
            bob = await stomp(rig, "bob", "bob")
            bob.send(f"SEND\ndestination:{to.replace('topic', 'queue')}\n\nx\0".encode())
            await rig.flush()
            (frame,) = bob.frames()
            assert "are for the queues of subscriptions" in frame.get("message", "")
        bob = await amqp(rig, "bob")
        kinds = {**DURABLE, "capabilities": (*TOPIC, Symbol("shared"), Symbol("global"))}
        await bob.attach(RECEIVER, 1, **{**source("prices", **kinds), "name": name})
        await rig.flush()
        error = bob.all(Detach)[0].error
        assert error is not None
        assert error.condition == "amqp:invalid-field"
        assert not rig.engine.registry.queues
        root = await stomp(rig, "root", "root")
        assert (await subscribed(rig, root, f"/topic/other::{name}")).command == "RECEIPT"
        root.lose()
        await rig.flush()
        assert not rig.engine.registry.queues
    client, _ = await mqtt(rig, "bob", "bob")
    await client.subscribe("$share/workers/jobs")
    assert list(rig.engine.registry.queues) == ["$share.workers.jobs"]
