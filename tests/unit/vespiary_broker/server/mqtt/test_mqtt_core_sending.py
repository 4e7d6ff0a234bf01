"""Messages that the core sends to MQTT clients by itself, beside those that Python sends."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from vespiary_codec.wire.mqtt import (
    Disconnect,
    Property,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Unsubscribe,
    Version,
)
from vespiary_spec.settings import MqttLimits
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.virtual_time import run_virtual

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


class Encodings:
    """Counts the messages that Python encodes for a client."""

    def __init__(self, client: MqttClientPeer) -> None:
        login = client.connection.handler._login  # type: ignore[union-attr]
        self.by_python = 0
        deliveries = login.deliveries  # type: ignore[attr-defined]
        give = deliveries.give

        def count(*arguments: Any) -> bytes:
            self.by_python += 1
            return bytes(give(*arguments))

        deliveries.give = count


async def publish(rig: MqttRig, *payloads: bytes, topic: str = "a/b", qos: int = 1) -> None:
    """Have messages published by a client of their own."""
    sender = await rig.connected("sender", V3)
    for payload in payloads:
        sender.send(Publish(topic, payload, qos, packet_id=qos and 1))
        await rig.flush()
    await rig.flush()


def answer(client: MqttClientPeer, *messages: Publish) -> None:
    client.send(*(Puback(message.packet_id) for message in messages))


def numbers(messages: list[Publish]) -> list[bytes]:
    return [message.payload for message in messages]


@pytest.mark.parametrize("version", [Version.V3_1, V3, V5])
@pytest.mark.parametrize("topic_filter", ["a/b", "a/#", "#"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_core_and_python_send_the_same(version: Version, topic_filter: str, qos: int) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r", version)
        await reader.subscribe(topic_filter, qos)
        encodings = Encodings(reader)
        await publish(rig, b"1", b"")
        fast = await reader.received()
        await publish(rig, b"0", qos=0)
        fast += await reader.received()
        assert encodings.by_python == 0
        answer(reader, *fast[: 2 * bool(qos)])
        consumer = reader.connection.handler._login.subscribing._subscribers[topic_filter].consumer  # type: ignore
        rig.core.encode_mqtt(consumer.handle, None)
        consumer.is_core_encoding = False
        await publish(rig, b"1", b"")
        await publish(rig, b"0", qos=0)
        slow = await reader.received()
        assert encodings.by_python == 3
        for one in (*fast, *slow):
            assert (one.packet_id > 0) is (one.qos > 0)
            one.packet_id = 0
        assert fast == slow

    scenario()


@on_rig()
async def test_topics_that_are_no_plain_addresses_come_as_they_were_published(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("#")
    topics = ["v1.2/a", "my topic", "a%2Bb", "a/::/b", "x", "queue/x", "/queue/x", "ü", ".queue.x"]
    for topic in topics:
        await publish(rig, b"x", topic=topic)
    assert [each.topic for each in await reader.received()] == topics


@on_rig()
async def test_the_order_holds_whoever_encodes(rig: MqttRig) -> None:
    reader = await rig.connected("r", properties={Property.RECEIVE_MAXIMUM: 7})
    await reader.subscribe("a/#", 2)
    encodings = Encodings(reader)
    sender = await rig.connected("sender")
    pick = random.Random(seed_for("mqtt core sending"))
    for number in range(120):
        properties: Any = {Property.CONTENT_TYPE: "x"} if pick.random() < 0.3 else {}
        sender.send(Publish("a/b", b"%d" % number, 1, packet_id=1, properties=properties))
    found: list[Publish] = []
    for _ in range(400):
        await rig.flush()
        new = reader.all_of(Publish)
        found += new
        assert len(new) <= 7
        answer(reader, *new)
        if len(found) == 120:
            break
    assert numbers(found) == [b"%d" % number for number in range(120)]
    assert 0 < encodings.by_python < 120
    await rig.flush()
    assert rig.core.sent_count(reader.connection.handle) == 0


@pytest.mark.parametrize("version", [V3, V5])
def test_the_window_holds_over_subscriptions_and_opens_with_pubacks(version: Version) -> None:
    @on_rig(limits=lambda: MqttLimits(maximum_in_flight=4))
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r", version)
        for topic in ("a", "b"):
            await reader.subscribe(topic, 1)
        for topic in ("a", "b"):
            await publish(rig, *[topic.encode()] * 6, topic=topic)
        first = await reader.received()
        assert numbers(first) == [b"a"] * 4
        found, waiting = numbers(first), [first[2], *first[:2], first[3]]
        pick = random.Random(seed_for("mqtt window"))
        while waiting:
            count = pick.randint(1, len(waiting))
            answer(reader, *waiting[:count])
            new = await reader.received()
            assert len(new) == min(count, 12 - len(found))
            waiting = [*waiting[count:], *new]
            found += numbers(new)
        assert sorted(found) == [b"a"] * 6 + [b"b"] * 6

    scenario()


@on_rig(limits=lambda: MqttLimits(maximum_in_flight=2))
async def test_what_python_sends_and_the_core_sends_share_the_window(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("a/b", 2)
    await publish(rig, b"two", qos=2)
    await publish(rig, b"one", b"more")
    first = await reader.received()
    assert [(each.payload, each.qos) for each in first] == [(b"two", 2), (b"one", 1)]
    reader.send(Pubrec(first[0].packet_id, ReasonCode.UNSPECIFIED_ERROR))
    second = await reader.received()
    assert numbers(second) == [b"more"]
    await publish(rig, b"two", qos=2)
    assert await reader.received() == []
    answer(reader, first[1], *second)
    assert numbers(await reader.received()) == [b"two"]


@pytest.mark.parametrize("order", [(1, 2, 1, 2), (2, 1, 1, 2)])
def test_packet_ids_of_a_session_start_at_1_whoever_sends(order: tuple[int, ...]) -> None:
    """The core sends what has QoS 1, Python what has QoS 2."""

    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r", properties=NEVER)
        await reader.subscribe("a/b", 2)
        for qos in order:
            await publish(rig, b"x", qos=qos)
        sent = sorted(await reader.received(), key=lambda each: each.packet_id)
        assert [each.packet_id for each in sent] == [1, 2, 3, 4]
        assert sorted(each.qos for each in sent) == sorted(order)

    scenario()


@pytest.mark.parametrize("times", [1, 3])
def test_what_was_not_acknowledged_comes_again_with_its_id(times: int) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r", clean_start=False, properties=NEVER)
        await reader.subscribe("a/b", 1)
        await publish(rig, b"1", b"2", b"3")
        sent = await reader.received()
        ids = {each.payload: each.packet_id for each in sent}
        assert rig.core.sent_count(reader.connection.handle) == len(ids)
        answer(reader, sent[1])
        del ids[b"2"]
        for number in range(times):
            reader.lose()
            await publish(rig, b"new %d" % number)
            reader = await rig.connected("r", clean_start=False, properties=NEVER)
            again = [*reader.early, *await reader.received()]
            old = [each for each in again if isinstance(each, Publish) and each.payload in ids]
            assert {each.payload: each.packet_id for each in old} == ids
            assert all(each.dup for each in old)
            (new,) = [each for each in again if each not in old]
            assert isinstance(new, Publish)
            assert new.payload == b"new %d" % number
            assert not new.dup
            assert new.packet_id not in ids.values()
            ids[new.payload] = new.packet_id
        answer(reader, *old, new)
        await rig.flush()
        reader.lose()
        reader = await rig.connected("r", clean_start=False, properties=NEVER)
        assert [*reader.early, *await reader.received()] == []
        await publish(rig, b"last")
        assert [each.dup for each in await reader.received()] == [False]

    scenario()


async def scan(rig: MqttRig) -> None:
    """Look for expired messages in all queues, twice: the first time notes may have to be read."""
    fates = rig.engine.fates
    for _ in range(2):
        fates._scan_at_ms = fates._next_full_ms = fates._steady_ms()
        for _ in range(20):
            rig.cycle.touch()
            await asyncio.sleep(0.1)
            await rig.flush()
        assert fates._scan is None, "it has ended"


@pytest.mark.parametrize("topic_filter", ["a/b", "$share/g/a/b"])
@pytest.mark.parametrize("is_scanned", [False, True])
@pytest.mark.parametrize("is_orderly", [False, True])
@pytest.mark.parametrize(("qos", "is_restarted"), [(1, False), (2, False), (2, True)])
def test_what_was_sent_comes_again_although_it_has_expired(
    qos: int, is_restarted: bool, is_orderly: bool, is_scanned: bool, topic_filter: str
) -> None:
    """MQTT 5.0 §4.4; what was not sent yet is gone.

    After a restart nothing is known of what was sent with QoS 1.
    """

    @on_rig(runner=run_virtual)
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r", clean_start=False, properties=NEVER)
        await reader.subscribe(topic_filter, qos)
        lasting = {Property.MESSAGE_EXPIRY_INTERVAL: 10}
        writer = await rig.connected("w")
        for number, payload in enumerate((b"1", b"2"), 1):
            writer.send(Publish("a/b", payload, qos, packet_id=number, properties=lasting))
            await rig.flush()
            writer.send(Pubrel(number))
            await rig.flush()
        sent = {each.payload: each.packet_id for each in await reader.received()}
        assert sorted(sent) == [b"1", b"2"]
        if is_orderly:
            reader.send(Disconnect())
            await rig.flush()
        reader.lose()
        if is_restarted:  # the notes of QoS 2 were not read yet
            session = rig.hub.sessions.get("r")
            assert session is not None
            session.resumed = session.received = None
        writer.send(Publish("a/b", b"3", qos, packet_id=3, properties=lasting))
        await rig.flush()
        later_ns = time.time_ns() + 20_000_000_000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: later_ns)
            if is_scanned:
                await scan(rig)
                queue = rig.engine.registry.queues[
                    f"{'$share.g' if '$' in topic_filter else 'r'}.a.b"
                ]
                assert rig.core.queue_statistics(queue.id).ready == len(sent)
            reader = await rig.connected("r", clean_start=False, properties=NEVER)
            again = [*reader.early, *await reader.received()]
            await rig.flush()
            assert not [each for each in again if isinstance(each, Pubrel)]
            assert {each.payload: each.packet_id for each in again} == sent  # type: ignore[union-attr]
            assert all(each.dup for each in again)  # type: ignore[union-attr]

    scenario()


@pytest.mark.parametrize("is_scanned", [False, True])
def test_no_other_member_of_a_share_gets_what_expired_unsent(is_scanned: bool) -> None:
    """Even while the notes of a former run were not read yet."""

    @on_rig(runner=run_virtual)
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r", clean_start=False, properties=NEVER)
        await reader.subscribe("$share/g/a/b", 2)
        reader.lose()
        session = rig.hub.sessions.get("r")
        assert session is not None
        session.resumed = session.received = None
        writer = await rig.connected("w")
        lasting = {Property.MESSAGE_EXPIRY_INTERVAL: 10}
        writer.send(Publish("a/b", b"unsent", 2, packet_id=1, properties=lasting))
        writer.send(Publish("a/b", b"lasting", 2, packet_id=2))
        await rig.flush()
        later_ns = time.time_ns() + 20_000_000_000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: later_ns)
            if is_scanned:
                await scan(rig)
            other = await rig.connected("o", clean_start=False, properties=NEVER)
            taken = [*await other.subscribe("$share/g/a/b", 2), *await other.received()]
            assert numbers(taken) == [b"lasting"]

    scenario()


@pytest.mark.parametrize("is_purged", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_pubrel_is_sent_for_messages_of_qos_2_alone(qos: int, is_purged: bool) -> None:
    """Those that another member of the share took, or that were purged, are not sent again."""

    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r", clean_start=False, properties=NEVER)
        await reader.subscribe("$share/g/a/b", 2)
        await publish(rig, b"1", qos=qos)
        await publish(rig, b"2", qos=qos)
        sent = await reader.received()
        assert len(sent) == 2
        reader.lose()
        if is_purged:
            rig.core.purge_queue(rig.engine.registry.queues["$share.g.a.b"].id)
        else:
            other = await rig.connected("o", clean_start=False, properties=NEVER)
            taken = [*await other.subscribe("$share/g/a/b", 2), *await other.received()]
            assert numbers(taken) == [b"1", b"2"]
            for each in taken:
                other.send((Puback if qos == 1 else Pubrec)(each.packet_id))
            other.send(Unsubscribe(7, ("$share/g/a/b",)))
        await rig.flush()
        await publish(rig, b"3", qos=2)
        reader = await rig.connected("r", clean_start=False, properties=NEVER)
        got = [*reader.early, *await reader.received()]
        released = [each.packet_id for each in got if isinstance(each, Pubrel)]
        assert released == ([each.packet_id for each in sent] if qos == 2 else [])
        assert numbers([each for each in got if isinstance(each, Publish)]) == [b"3"]

    scenario()


@on_rig(limits=lambda: MqttLimits(maximum_in_flight=2))
async def test_who_unsubscribes_owes_the_pubacks_of_what_came(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("a/b", 1)
    await publish(rig, b"1", b"2")
    sent = await reader.received()
    reader.send(Unsubscribe(5, ("a/b",)))
    await rig.flush()
    reader.packets()
    await reader.subscribe("a/c", 1)
    await publish(rig, b"3", topic="a/c")
    assert await reader.received() == []
    answer(reader, *sent)
    assert numbers(await reader.received()) == [b"3"]


@on_rig()
async def test_a_reader_who_stops_reading_gets_the_rest_when_it_goes_on(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("a/b", 0)
    reader.transport.is_stuck = True
    await publish(rig, *[bytes(100_000)] * 12)
    assert len(await reader.received()) < 12
    reader.transport.drain()
    reader.transport.is_stuck = False
    await rig.flush()
    await rig.flush()
    total = rig.engine.dispatcher.messages_out
    assert total == 12


@on_rig()
async def test_a_message_beyond_the_packet_size_of_a_client_is_dropped_alone(rig: MqttRig) -> None:
    reader = await rig.connected("r", properties={Property.MAXIMUM_PACKET_SIZE: 100})
    await reader.subscribe("a/b", 1)
    await publish(rig, b"1", bytes(200), b"3")
    assert numbers(await reader.received()) == [b"1", b"3"]


@pytest.mark.parametrize("reason", [ReasonCode.SUCCESS, ReasonCode.UNSPECIFIED_ERROR])
def test_a_puback_that_says_why_is_one(reason: ReasonCode) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r")
        await reader.subscribe("a/b", 1)
        await publish(rig, b"1")
        (sent,) = await reader.received()
        reader.send(Puback(sent.packet_id, reason, {Property.REASON_STRING: "because"}))
        await rig.flush()
        assert rig.core.sent_count(reader.connection.handle) == 0
        (queue,) = [each for each in rig.engine.registry.queues.values() if each.consumers]
        assert rig.core.queue_statistics(queue.id).acknowledged == 1

    scenario()


@on_rig()
async def test_an_identifier_that_is_set_later_comes_with_the_next_message(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("a/b", 1)
    await publish(rig, b"1")
    await reader.received()
    await reader.subscribe("a/b", 1, {Property.SUBSCRIPTION_IDENTIFIER: [9]})
    await publish(rig, b"2")
    (second,) = await reader.received()
    assert second.properties == {Property.SUBSCRIPTION_IDENTIFIER: [9]}
