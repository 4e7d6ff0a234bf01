"""Permissions as MQTT clients meet them: reason codes, and nothing left of what was refused."""

from __future__ import annotations

import pytest

from vespiary_broker.engine.names import Sender
from vespiary_broker.server.mqtt.options import Options
from vespiary_codec.wire.mqtt import (
    Disconnect,
    Property,
    Puback,
    Publish,
    Pubrec,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Version,
    Will,
)
from vespiary_spec.errors import NotPermitted
from vespiary_spec.settings import Permission, RoutingType, SecuritySettings
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
ALL = {permission.value: ("anonymous",) for permission in Permission}


def allowed(*but: str) -> SecuritySettings:
    return SecuritySettings(**{name: roles for name, roles in ALL.items() if name not in but})


def rule(rig: MqttRig, **matches: SecuritySettings) -> None:
    rig.engine.registry.permissions.replace(
        {name.replace("_", "."): each for name, each in {"#": allowed(), **matches}.items()}
    )
    rig.cycle.permissions_changed()


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_may_not_be_sent_to_a_dollar_topic_is_dropped(
    qos: int, version: Version
) -> None:
    """A bridge without `send` for its state topic stays connected."""

    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        rule(rig, **{"$SYS_broker_connection_#": allowed("send")})
        client = await rig.connected("c", version)
        topic = "$SYS/broker/connection/edge/state"
        client.send(Publish(topic, b"1", qos, packet_id=qos and 1, retain=True))
        client.send(Publish("open/x", b"x", 1, packet_id=2))
        await rig.flush()
        await rig.flush()
        *first, last = client.packets()
        assert isinstance(last, Puback)
        assert last.packet_id == 2, "the client goes on"
        assert [type(each) for each in first] == [[], [Puback], [Pubrec]][qos]
        refused = ReasonCode.NOT_AUTHORIZED if version is V5 else ReasonCode.SUCCESS
        assert all(each.reason_code is refused for each in first)  # type: ignore[union-attr]
        assert rig.cycle.errors["topic-not-writable"] == 1
        reader = await rig.connected("r", version)
        assert await reader.subscribe("$SYS/broker/connection/+/state") == []

    scenario()


async def suback(rig: MqttRig, client: MqttClientPeer, *filters: str) -> list[ReasonCode]:
    client.send(Subscribe(1, tuple(Subscription(each, 1) for each in filters)))
    await rig.flush()
    await rig.flush()
    return list(client.one(Suback).reason_codes)


@on_rig()
async def test_a_message_that_may_not_be_sent_is_answered_with_0x87(rig: MqttRig) -> None:
    rule(rig, secret_x=allowed("send"))
    client = await rig.connected()
    client.send(Publish("secret/x", b"x", 1, packet_id=1))
    client.send(Publish("secret/x", b"x", 2, packet_id=2))
    client.send(Publish("open/x", b"x", 1, packet_id=3))
    await rig.flush()
    first, second, third = client.packets()
    assert isinstance(first, Puback)
    assert isinstance(second, Pubrec)
    assert isinstance(third, Puback)
    assert first.reason_code is second.reason_code is ReasonCode.NOT_AUTHORIZED
    assert "the match secret.x decides" in str(first.properties[Property.REASON_STRING])
    assert not third.reason_code.is_failure
    assert rig.cycle.errors["NotPermitted"] == 2
    assert not client.is_ended


@pytest.mark.parametrize(("version", "qos"), [(V5, 0), (V3, 0), (V3, 1)])
def test_where_no_answer_can_say_it_the_connection_ends(version: object, qos: int) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        rule(rig, secret=allowed("send"))
        client = await rig.connected(version=version)
        client.send(Publish("secret", b"x", qos, packet_id=qos))
        await rig.flush()
        assert client.is_ended
        if version is V5:
            assert client.one(Disconnect).reason_code is ReasonCode.NOT_AUTHORIZED

    scenario()


@on_rig()
async def test_a_retained_message_that_may_not_be_sent_is_not_kept(rig: MqttRig) -> None:
    rule(rig, secret=allowed("send"))
    client = await rig.connected()
    client.send(Publish("secret", b"x", 1, retain=True, packet_id=1))
    await rig.flush()
    await rig.flush()
    assert client.one(Puback).reason_code is ReasonCode.NOT_AUTHORIZED
    assert rig.hub.retained.count == 0


@pytest.mark.parametrize(
    ("missing", "is_durable"),
    [
        ("consume", True),
        ("consume", False),
        ("create_address", False),
        ("create_durable_queue", True),
        ("create_non_durable_queue", False),
    ],
)
def test_a_subscription_that_may_not_be_leaves_nothing(missing: str, is_durable: bool) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        rule(rig, secret=allowed(missing))
        client = await rig.connected(properties=NEVER if is_durable else {})
        assert await suback(rig, client, "secret", "open") == [
            ReasonCode.NOT_AUTHORIZED,
            ReasonCode.GRANTED_QOS_1,
        ]
        assert [queue.address.name for queue in rig.engine.registry.queues.values()] == ["open"]

    scenario()


@on_rig()
async def test_wildcards_and_shares_need_every_match_where_parts_are_rejected(
    rig: MqttRig,
) -> None:
    rig.engine.registry.permissions.is_filtering = False
    rule(rig, news_secret=allowed("consume"))
    client = await rig.connected()
    assert await suback(rig, client, "#", "news/+", "$share/g/news/#", "news/open", "sports/#") == [
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.GRANTED_QOS_1,
        ReasonCode.GRANTED_QOS_1,
    ]


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_a_will_that_may_not_be_sent_is_not(rig: MqttRig) -> None:
    rule(rig, secret=allowed("send"))
    client = await rig.connected(will=Will("secret", b"gone", 1))
    client.lose()
    await rig.flush()
    await rig.flush()
    assert rig.hub.wills.sent == 0
    assert "secret" not in rig.engine.registry.addresses


@on_rig()
async def test_a_subscription_that_may_not_be_any_more_ends_its_connection(rig: MqttRig) -> None:
    rule(rig)
    client = await rig.connected()
    await client.subscribe("news")
    rule(rig, news=allowed("consume"))
    await rig.flush()
    assert client.one(Disconnect).reason_code is ReasonCode.NOT_AUTHORIZED
    assert client.is_ended


@on_rig()
async def test_no_queue_is_made_for_who_may_not_consume(rig: MqttRig) -> None:
    rule(rig, secret=allowed("consume"))
    with pytest.raises(NotPermitted):
        await rig.hub.queues.enter(
            Sender("c"), "anonymous", "secret", is_durable=True, options=Options(1)
        )
    assert not rig.engine.registry.queues


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_what_the_broker_keeps_of_mqtt_is_for_no_client(rig: MqttRig) -> None:
    client = await rig.connected(properties=NEVER)
    client.send(Publish("a/b", b"keep", 2, retain=True, packet_id=1))
    for _ in range(5):
        await rig.flush()
    own = [name for name in rig.engine.registry.queues if name.startswith("$mqtt.")]
    assert len(own) == 2
    assert rig.hub.retained.count == 1
    for name in own:
        for frame in (
            f"SUBSCRIBE\nid:1\ndestination:{name}\\c\\c{name}\n",
            f"SUBSCRIBE\nid:1\ndestination:/topic/{name}\n",
            f"SUBSCRIBE\nid:1\ndestination:/queue/{name}.new\n",
            f"SEND\ndestination:{name}\\c\\c{name}\n",
            f"SEND\ndestination:/topic/{name}\n",
            f"SEND\ndestination:/queue/{name}\n",
        ):
            peer = rig.peer()
            await peer.login()
            peer.send(f"{frame}\n\0".encode())
            await rig.flush()
            (answer,) = peer.frames()
            assert answer.command == "ERROR"
            assert "the broker's own" in answer.get("message", "")
    assert sum(rig.core.queue_statistics(rig.engine.registry.queues[n].id).added for n in own) == 2
    permissions = rig.engine.registry.permissions
    rule(rig)
    for permission in Permission:
        assert not permissions.is_permitted("anonymous", permission, own[0])


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_a_durable_session_goes_on_without_what_it_may_not_have_any_more(
    rig: MqttRig,
) -> None:
    client = await rig.connected(properties=NEVER)
    for topic_filter in ("news", "secret", "$share/g/secret/a"):
        await client.subscribe(topic_filter)
    client.lose()
    await rig.flush()
    writer = await rig.connected("w")
    for topic in ("secret", "news"):
        writer.send(Publish(topic, topic.encode(), 1, packet_id=1))
    await rig.flush()
    rule(rig, secret=allowed("consume"), secret_a=allowed("consume"))
    again = rig.client()
    answer = await again.login("c", clean_start=False, properties=NEVER)
    assert answer.session_present
    await rig.flush()
    (got,) = again.early + again.packets()
    assert isinstance(got, Publish)
    assert got.payload == b"news"
    again.send(Puback(got.packet_id))
    await rig.flush()
    assert not again.is_ended
    assert list(rig.bindings.snapshot()["mqtt-session/c"]["subscriptions"]) == ["news"]
    assert [name for name in rig.engine.registry.queues if "mqtt" not in name] == ["c.news"]
    writer.send(Publish("news", b"more", 1, packet_id=2))
    assert [each.payload for each in await again.received()] == [b"more"]


@on_rig()
async def test_an_address_that_was_made_for_another_connection_is_refused(rig: MqttRig) -> None:
    """A dynamic node of AMQP."""
    registry = rig.engine.registry
    address = await registry.create_address("node", {RoutingType.MULTICAST}, is_auto_created=True)
    address.connection = 99
    client = await rig.connected("c")
    (code,) = await suback(rig, client, "node")
    assert code.is_failure
    assert not registry.queues
