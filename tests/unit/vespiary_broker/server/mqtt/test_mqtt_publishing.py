"""PUBLISH on its way in: what is confirmed when, and what is refused how."""

from __future__ import annotations

from contextlib import suppress

import pytest

from vespiary_broker.engine.core import NoRoom
from vespiary_codec.wire.mqtt import (
    Disconnect,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Version,
)
from vespiary_spec.settings import AddressFullPolicy, AddressSettings, MqttLimits
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import V3, V5, MqttRig
from vespiary_testkit.rig_runner import on_rig

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


@on_rig()
async def test_puback_leaves_behind_the_flush(rig: MqttRig) -> None:
    await (reader := await rig.connected("r", clean_start=False, properties=NEVER)).subscribe("a/b")
    client = await rig.connected()
    client.send(*(Publish("a/b", b"x", 1, packet_id=number) for number in (7, 8, 9)))
    await rig.settle()
    assert client.packets() == []
    assert reader.packets() == []
    await rig.flush()
    assert [(each.packet_id, each.reason_code) for each in client.all_of(Puback)] == [
        (7, ReasonCode.SUCCESS), (8, ReasonCode.SUCCESS), (9, ReasonCode.SUCCESS),
    ]  # fmt: skip
    assert len(reader.all_of(Publish)) == 3


@on_rig()
async def test_nobody_there_is_told_to_clients_of_mqtt_5_alone(rig: MqttRig) -> None:
    for version, code in ((V5, ReasonCode.NO_MATCHING_SUBSCRIBERS), (V3, ReasonCode.SUCCESS)):
        client = await rig.connected(version=version)
        client.send(Publish("a/b", b"x", 1, packet_id=7))
        await rig.flush()
        assert client.one(Puback) == Puback(7, code)


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_of_qos_2_that_comes_again_is_stored_once(durable: bool) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r")
        await reader.subscribe("a/b")
        client = await rig.connected(clean_start=not durable, properties=NEVER if durable else {})
        for dup in (False, True, True):
            client.send(Publish("a/b", b"x", 2, packet_id=7, dup=dup))
            await rig.settle()
            if durable and not dup:
                assert client.packets() == []  # its note is not on the disk
            await rig.flush()
            assert client.one(Pubrec).packet_id == 7
        assert len(await reader.received()) == 1
        for code in (ReasonCode.SUCCESS, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND):
            client.send(Pubrel(7))
            await rig.flush()
            assert client.one(Pubcomp) == Pubcomp(7, code)
        client.send(Publish("a/b", b"y", 2, packet_id=7))
        await rig.flush()
        assert client.one(Pubrec).packet_id == 7
        assert [each.payload for each in await reader.received()] == [b"y"]

    scenario()


@on_rig()
async def test_pubcomp_leaves_behind_the_flush_that_forgets_the_id(rig: MqttRig) -> None:
    client = await rig.connected(clean_start=False, properties=NEVER)
    client.send(Publish("a/b", b"x", 2, packet_id=7))
    await rig.flush()
    client.one(Pubrec)
    client.send(Pubrel(7))
    await rig.settle()
    assert client.packets() == []
    await rig.flush()
    client.one(Pubcomp)


@on_rig()
async def test_packets_wait_for_the_one_before(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("#")
    client = await rig.connected()
    # The first of QoS 2 has to make its queue, the retained one too; the others wait in order.
    client.send(
        Publish("t", b"1", 2, packet_id=1),
        Publish("t", b"2", 1, packet_id=2),
        Publish("t", b"3", 1, packet_id=3, retain=True),
        Publish("t", b"4", 0),
        Publish("t", b"5", 1, packet_id=4),
    )
    await rig.flush()
    await rig.flush()
    assert [type(each).__name__ for each in client.packets()] == [
        "Pubrec", "Puback", "Puback", "Puback",
    ]  # fmt: skip
    assert [each.payload for each in await reader.received()] == [b"1", b"2", b"3", b"4", b"5"]


@on_rig()
async def test_topic_aliases(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("a/+", qos=0)
    client = await rig.connected()
    client.send(
        Publish("a/b", b"1", properties={Property.TOPIC_ALIAS: 1}),
        Publish("", b"2", properties={Property.TOPIC_ALIAS: 1}),
        Publish("a/c", b"3", properties={Property.TOPIC_ALIAS: 1}),
        Publish("", b"4", properties={Property.TOPIC_ALIAS: 1}),
    )
    assert [(each.topic, each.payload) for each in await reader.received()] == [
        ("a/b", b"1"), ("a/b", b"2"), ("a/c", b"3"), ("a/c", b"4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (Publish("", b"", properties={Property.TOPIC_ALIAS: 1}), ReasonCode.PROTOCOL_ERROR),
        (Publish("a", b"", properties={Property.TOPIC_ALIAS: 33}), ReasonCode.TOPIC_ALIAS_INVALID),
    ],
)
def test_what_ends_the_connection(packet: Publish, code: ReasonCode) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        client = await rig.connected()
        client.send(packet)
        await rig.flush()
        last = client.one(Disconnect)
        assert last.reason_code is code
        assert last.properties[Property.REASON_STRING]
        assert client.is_ended

    scenario()


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("topic", ["$SYS/x", "$SYS", "$SYS/broker/connection/state", "$mqtt/x"])
def test_a_message_to_a_topic_of_the_brokers_own_is_dropped(topic: str, version: Version) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        client = await rig.connected("c", version)
        client.send(Publish(topic, b""), Publish(topic, b"", 1, packet_id=3))
        client.send(Publish(topic, b"", 2, packet_id=4), Pubrel(4))
        await rig.flush()
        await rig.flush()
        kinds = [type(each) for each in client.packets()]
        assert kinds == [Puback, Pubrec, Pubcomp]
        assert not client.is_ended
        assert rig.cycle.errors["topic-not-writable"] == 3
        assert not [name for name in rig.engine.registry.addresses if name.startswith("$SYS")]

    scenario()


@pytest.mark.parametrize(
    "topic", ["$SYS/broker/connection/edge.1/state", "$SYS/broker/connection/a/b/state", "$x/y"]
)
def test_other_topics_that_begin_with_a_dollar_are_ordinary(topic: str) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        await ordinary(rig, topic)

    scenario()


async def ordinary(rig: MqttRig, topic: str) -> None:
    """Check that named filters take a topic, and wildcards in front do not."""
    named = await rig.connected("named")
    levels = topic.split("/")
    await named.subscribe("/".join([*levels[:-1], "+"]), qos=1)
    wild = await rig.connected("wild")
    for topic_filter in ("#", "+/#", "+/y", "/".join(["+"] * len(levels))):
        await wild.subscribe(topic_filter, qos=1)
    writer = await rig.connected("w")
    writer.send(Publish(topic, b"1", 1, packet_id=1, retain=True))
    await rig.flush()
    await rig.flush()
    assert writer.one(Puback).reason_code is ReasonCode.SUCCESS
    assert [each.payload for each in await named.received()] == [b"1"]
    assert await wild.received() == []
    late = await rig.connected("late")
    assert await late.subscribe("#") == []
    assert len(await late.subscribe("/".join([*levels[:-1], "+"]))) == 1


@on_rig()
async def test_a_topic_of_the_brokers_own_is_refused_by_message(rig: MqttRig) -> None:
    client = await rig.connected()
    client.send(Publish("$SYS/x", b"", 1, packet_id=3), Publish("$SYS/x", b"", 2, packet_id=4))
    await rig.flush()
    one, two = client.packets()
    assert (type(one), type(two)) == (Puback, Pubrec)
    for answer in (one, two):
        assert answer.reason_code is ReasonCode.NOT_AUTHORIZED  # type: ignore[union-attr]
    assert not client.is_ended


@on_rig(limits=lambda: MqttLimits(receive_maximum=3))
async def test_receive_maximum_is_told_and_held(rig: MqttRig) -> None:
    client = rig.client()
    answer = await client.login("c")
    assert answer.properties[Property.RECEIVE_MAXIMUM] == 3
    client.send(*(Publish("a", b"", 2, packet_id=number) for number in (1, 2, 3)))
    await rig.flush()
    assert len(client.all_of(Pubrec)) == 3
    client.send(Publish("a", b"", 2, packet_id=4))
    await rig.flush()
    assert client.one(Disconnect).reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


@on_rig(limits=lambda: MqttLimits(receive_maximum=3))
async def test_receive_maximum_counts_what_waits_for_a_flush(rig: MqttRig) -> None:
    await (await rig.connected("r", clean_start=False, properties=NEVER)).subscribe("a")
    client = await rig.connected()
    client.send(*(Publish("a", b"", 1, packet_id=number) for number in range(1, 10)))
    await rig.flush()
    *acknowledged, last = client.packets()
    assert isinstance(last, Disconnect)
    assert last.reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    assert 3 <= len(acknowledged) < 9


@on_rig(
    settings=lambda: {
        "full": AddressSettings(max_size_messages=1, address_full_policy=AddressFullPolicy.FAIL)
    }
)
async def test_a_full_address_refuses_by_message(rig: MqttRig) -> None:
    await (await rig.connected("r", clean_start=False, properties=NEVER)).subscribe("full")
    rig.hub.sessions.get("r").client.taken_over()  # type: ignore[union-attr]
    client = await rig.connected()
    for number in range(1, 4):
        client.send(Publish("full", b"x", 1, packet_id=number))
        await rig.flush()
    codes = [each.reason_code for each in client.all_of(Puback)]
    assert codes[0] is ReasonCode.SUCCESS
    assert codes[-1] is ReasonCode.QUOTA_EXCEEDED
    assert not client.is_ended


@on_rig(journal=lambda: MemoryJournal(files=1, file_bytes=64 * 1024))
async def test_a_full_journal_lets_publishers_wait(rig: MqttRig) -> None:
    await (await rig.connected("r", clean_start=False, properties=NEVER)).subscribe("a")
    client = await rig.connected("w", clean_start=False, properties=NEVER)
    numbers = list(range(1, 101))
    for qos in (1, 2):
        client.send(*(Publish("a", b"x" * 900, qos, packet_id=number) for number in numbers))
        await rig.flush()
        answered = client.packets()
        assert len(answered) < 100
        while len(answered) < 100:
            rig.journal.add_file()
            rig.cycle.on_space()
            await rig.flush()
            answered += client.packets()
        assert [each.packet_id for each in answered] == numbers  # type: ignore[union-attr]
        with suppress(NoRoom):
            while True:
                rig.core.publish(rig.core.open_route([1]), b"", b"x" * 9000, persistent=True)
    client.send(*(Pubrel(number) for number in numbers))
    rig.journal.add_file()
    rig.cycle.on_space()
    await rig.flush()
    assert len(client.all_of(Pubcomp)) == 100


@on_rig()
async def test_a_message_that_asks_for_repeated_delivery_is_refused(rig: MqttRig) -> None:
    client = await rig.connected("w")
    repeated = {Property.USER_PROPERTY: [("AMQ_SCHEDULED_REPEAT", "9")]}
    client.send(Publish("a", b"x", 1, packet_id=1, properties=repeated))
    await rig.flush()
    (answer,) = client.packets()
    assert ReasonCode(answer.reason_code).is_failure  # type: ignore[attr-defined]
