"""Subscriptions to wildcards of which their users may have only a part."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from vespiary_broker.app.withholding import Withholding
from vespiary_broker.engine.guards import Guard
from vespiary_broker.engine.users import User, make_user
from vespiary_codec.wire.mqtt import (
    Connack,
    Connect,
    Property,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
)
from vespiary_codec.wire.mqtt import Subscription as Filter
from vespiary_spec.settings import Permission, SecuritySettings
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.waiting import WAIT_S

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
ALL = {permission.value: ("anonymous",) for permission in Permission}


def allowed(*but: str) -> SecuritySettings:
    return SecuritySettings(**{name: roles for name, roles in ALL.items() if name not in but})


def rule(rig: MqttRig, **matches: SecuritySettings) -> None:
    rig.engine.registry.permissions.replace(
        {name.replace("_", "."): each for name, each in {"#": allowed(), **matches}.items()}
    )
    rig.cycle.permissions_changed()


def publish(writer: MqttClientPeer, *topics: str, retain: bool = False) -> None:
    for number, topic in enumerate(topics, 1):
        writer.send(Publish(topic, topic.encode(), 1, packet_id=number, retain=retain))


async def got(client: MqttClientPeer) -> list[str]:
    """Return the topics of what came, acknowledged."""
    found = await client.received()
    for each in found:
        assert each.payload.decode() == each.topic
        client.send(Puback(each.packet_id))
    return [each.topic for each in found]


@pytest.mark.parametrize("properties", [{}, NEVER], ids=["clean", "durable"])
@pytest.mark.parametrize("topic_filter", ["#", "+/x", "$share/g/#", "$share/g/+/x"])
def test_a_subscriber_gets_what_it_may_have(
    topic_filter: str, properties: dict[Property, int]
) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        rule(rig, secret_x=allowed("consume"), made_x=allowed("create_non_durable_queue"))
        writer = await rig.connected("w")
        publish(writer, "secret/x", "open/x")  # routes that are there before, and later
        client = await rig.connected("c", properties=properties)
        await client.subscribe(topic_filter)
        publish(writer, "secret/x", "open/x", "new/x")
        assert await got(client) == ["open/x", "new/x"]
        registry = rig.engine.registry
        assert registry.withheld == 1
        (queue,) = (each for each in registry.queues.values() if "mqtt" not in each.name)
        assert rig.core.queue_statistics(queue.id).added == 2, "the queue never took it"
        is_kept = queue.is_durable
        publish(writer, "made/x", "open/x")
        assert await got(client) == (["made/x", "open/x"] if is_kept else ["open/x"])
        assert all(each.guard is None for each in queue.consumers), "routes decide alone"

    scenario()


@on_rig()
async def test_a_subscription_is_refused_where_nothing_may_be_had(rig: MqttRig) -> None:
    rule(rig, news_hash=allowed())
    rig.engine.registry.permissions.replace({"#": allowed("consume"), "open.#": allowed()})
    client = await rig.connected()
    filters = ("news/#", "+/x", "open/+", "#", "$share/g/news/+")
    client.send(Subscribe(1, tuple(Filter(each, 1) for each in filters)))
    await rig.flush()
    await rig.flush()
    no, yes = ReasonCode.NOT_AUTHORIZED, ReasonCode.GRANTED_QOS_1
    assert list(client.one(Suback).reason_codes) == [no, yes, yes, yes, no]


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_what_is_retained_is_filtered(rig: MqttRig) -> None:
    rule(rig, secret=allowed("consume"))
    writer = await rig.connected("w")
    publish(writer, "secret", "open", retain=True)
    for _ in range(4):
        await rig.flush()
    client = await rig.connected()
    found = await client.subscribe("#")
    found += await client.received()
    assert [each.topic for each in found if isinstance(each, Publish)] == ["open"]
    assert rig.engine.registry.withheld == 1


@on_rig()
async def test_values_of_the_broker_are_filtered(rig: MqttRig) -> None:
    rule(rig, **{"$SYS_broker_uptime": allowed("consume")})
    client = await rig.connected()
    found = await client.subscribe("$SYS/#")
    found += await client.received()
    topics = [each.topic for each in found if isinstance(each, Publish)]
    assert "$SYS/broker/version" in topics
    assert "$SYS/broker/uptime" not in topics


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_rules_that_change_count_for_what_waits(rig: MqttRig) -> None:
    rule(rig)
    client = await rig.connected("c", properties=NEVER)
    await client.subscribe("#")
    client.lose()
    writer = await rig.connected("w")
    publish(writer, "open/1", "secret/1", "open/2")
    await rig.flush()
    rule(rig, **{"secret_#": allowed("consume")})
    publish(writer, "secret/2", "open/3")
    await rig.flush()
    again = rig.client(V5)
    await again.login("c", clean_start=False, properties=NEVER)
    await rig.flush()
    topics = [each.topic for each in again.early if isinstance(each, Publish)]
    for each in again.early:
        if isinstance(each, Publish):
            again.send(Puback(each.packet_id))
    topics += await got(again)
    assert topics == ["open/1", "open/2", "open/3"]
    (queue,) = (each for each in rig.engine.registry.queues.values() if "mqtt" not in each.name)
    assert isinstance(queue.consumers[0].guard, Guard)

    Withholding(rig.engine, rig.cycle, rig.journal, None).begin(queue)
    for _ in range(8):
        await rig.flush()
    statistics = rig.core.queue_statistics(queue.id)
    assert statistics.head == statistics.tail, "what may not be had takes no room"
    assert queue.consumers[0].guard is None, "from now on routes decide alone"
    assert rig.engine.registry.withheld == 2
    publish(writer, "secret/3", "open/4")
    assert await got(again) == ["open/4"]


@on_rig()
async def test_rules_that_change_count_for_who_is_connected(rig: MqttRig) -> None:
    rule(rig)
    client, writer = await rig.connected("c"), await rig.connected("w")
    await client.subscribe("#")
    publish(writer, "open", "secret")
    assert await got(client) == ["open", "secret"]
    rule(rig, secret=allowed("consume"))
    publish(writer, "secret", "open")
    assert await got(client) == ["open"]
    assert not client.is_ended
    rule(rig)
    publish(writer, "secret", "open")
    assert await got(client) == ["secret", "open"]
    rig.engine.registry.permissions.replace({"other": allowed()})
    rig.cycle.permissions_changed()
    await rig.flush()
    assert await got(client) == []


@on_rig()
async def test_what_waits_for_the_window_is_given_no_more(rig: MqttRig) -> None:
    rule(rig)
    client = await rig.connected("c", properties={Property.RECEIVE_MAXIMUM: 1})
    await client.subscribe("#", properties={Property.SUBSCRIPTION_IDENTIFIER: [1]})
    writer = await rig.connected("w")
    publish(writer, "open/1", "secret", "open/2")
    (first,) = await client.received()
    rule(rig, secret=allowed("consume"))
    client.send(Puback(first.packet_id))
    assert [first.topic, *await got(client)] == ["open/1", "open/2"]


def user_of_role(name: str) -> User:
    return replace(make_user(name, "secret", iterations=4096), roles=frozenset(("role",)))


async def logged_in(rig: MqttRig, client_id: str, user: str) -> MqttClientPeer:
    client = rig.client(V5)
    login = {"user_name": user, "password": b"secret", "properties": NEVER}
    client.send(Connect(V5, client_id, clean_start=False, **login))
    async with asyncio.timeout(WAIT_S):
        while not client.transport.data:  # a thread checks the password
            await rig.flush()
    answer, *client.early = client.packets()
    assert isinstance(answer, Connack)
    assert answer.reason_code is ReasonCode.SUCCESS
    return client


@on_rig(users=lambda: {name: user_of_role(name) for name in ("u", "v")})
async def test_the_session_of_a_user_who_is_gone_takes_nothing(rig: MqttRig) -> None:
    roles = dict.fromkeys((permission.value for permission in Permission), ("role",))
    rig.engine.registry.permissions.replace({"#": SecuritySettings(**roles)})
    rig.cycle.permissions_changed()
    client = await logged_in(rig, "c", "u")
    await client.subscribe("#")
    client.lose()
    writer, everybody = await logged_in(rig, "w", "v"), rig.users
    for topic in ("before", "meanwhile", "after"):
        rig.users = {"v": everybody["v"]} if topic == "meanwhile" else everybody
        rig.cycle.permissions_changed()
        publish(writer, topic)
        await rig.flush()
    client = await logged_in(rig, "c", "u")
    found = [each for each in client.early if isinstance(each, Publish)]
    found += await client.received()
    assert [each.topic for each in found] == ["before", "after"]
