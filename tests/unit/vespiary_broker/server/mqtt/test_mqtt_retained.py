"""Retained messages: what is kept, and who gets it when."""

from __future__ import annotations

import random

from vespiary_broker.server.mqtt.retained import Retained
from vespiary_codec.wire.mqtt import Disconnect, Property, Puback, Publish
from vespiary_codec.wire.mqtt.topics import matches
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.seeds import seed_for

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


async def retain(rig: MqttRig, topic: str, payload: bytes, qos: int = 1, **fields: object) -> None:
    client = await rig.connected("writer")
    client.send(
        Publish(topic, payload, qos, retain=True, packet_id=1 if qos else 0, **fields)  # type: ignore[arg-type]
    )
    await rig.flush()
    await rig.flush()
    client.lose()


def kept(rig: MqttRig) -> tuple[int, int]:
    """Return how many are known, and how many stand in the queue."""
    queue = rig.engine.registry.queues["$mqtt.retained"]
    statistics = rig.core.queue_statistics(queue.id)
    return rig.hub.retained.count, statistics.ready


@on_rig()
async def test_the_latest_is_kept_until_an_empty_one_comes(rig: MqttRig) -> None:
    for payload in (b"1", b"2", b"3"):
        await retain(rig, "a/b", payload)
    assert kept(rig) == (1, 1)
    reader = await rig.connected("r")
    (got,) = await reader.subscribe("a/b")
    assert isinstance(got, Publish)
    assert (got.payload, got.retain, got.qos) == (b"3", True, 1)
    await retain(rig, "a/b", b"4", qos=0)
    (got,) = await reader.received()
    assert (got.payload, got.retain, got.qos) == (b"4", False, 0)
    await retain(rig, "a/b", b"")
    (got,) = await reader.received()
    assert (got.payload, got.retain) == (b"", False)
    assert kept(rig) == (0, 0)
    assert await (await rig.connected("s")).subscribe("#") == []


@on_rig()
async def test_retain_handling_and_as_published(rig: MqttRig) -> None:
    await retain(rig, "a/b", b"x")
    client = await rig.connected("c")
    assert await client.subscribe("a/b", retain_handling=2) == []
    assert await client.subscribe("a/b", retain_handling=1) == []  # it is there already
    assert len(await client.subscribe("a/+", retain_handling=1)) == 1
    assert len(await client.subscribe("a/+", retain_handling=0)) == 1
    assert await client.subscribe("$share/g/a/+") == []
    other = await rig.connected("o")
    await other.subscribe("a/b", retain_as_published=True, retain_handling=2)
    await retain(rig, "a/b", b"y")
    assert [each.retain for each in await other.received()] == [True]


@on_rig()
async def test_a_copy_that_was_not_acknowledged_stays_with_the_session(rig: MqttRig) -> None:
    await retain(rig, "a", b"x")
    client = await rig.connected("c", clean_start=False, properties=NEVER)
    (first,) = await client.subscribe("a")
    client.lose()
    again = rig.client()
    await again.login("c", clean_start=False, properties=NEVER)
    (second,) = again.early
    assert isinstance(first, Publish)
    assert isinstance(second, Publish)
    assert (second.packet_id, second.retain, second.dup) == (first.packet_id, True, True)
    again.send(Puback(second.packet_id), Disconnect())
    await rig.flush()
    statistics = rig.core.queue_statistics(rig.engine.registry.queues["c.a"].id)
    assert (statistics.ready, statistics.acknowledged) == (0, 1)


@on_rig()
async def test_what_is_retained_is_found_again_in_the_journal(rig: MqttRig) -> None:
    """As after a restart: the tree is read from the queue."""
    for topic, payload in (("a/b", b"1"), ("a/c", b"2"), ("a/b", b"3"), ("a/c", b"")):
        await retain(rig, topic, payload)
    fresh = Retained(rig.hub.retained._notes, rig.hub.topics, rig.hub._give_way)
    found = [message.body async for message in fresh.matching("a/#")]
    assert found == [b"3"]
    assert fresh.count == 1


@on_rig()
async def test_filters_find_what_they_match(rig: MqttRig) -> None:
    pick = random.Random(seed_for("retained filters"))
    levels = ["a", "b", "", "$x", "c d"]
    topics = {"/".join(pick.choices(levels, k=pick.randint(1, 4))) for _ in range(60)}
    topics = {topic for topic in topics if topic and not topic.startswith("$")}
    client = await rig.connected("w")
    for topic in topics:
        client.send(Publish(topic, topic.encode(), retain=True))
    await rig.flush()
    await rig.flush()
    wild = [*levels, "+", "+"]
    for _ in range(300):
        parts = pick.choices(wild, k=pick.randint(1, 4))
        if pick.random() < 0.4:
            parts.append("#")
        topic_filter = "/".join(parts)
        if not topic_filter:
            continue
        found = {m.body.decode() async for m in rig.hub.retained.matching(topic_filter)}
        assert found == {topic for topic in topics if matches(topic_filter, topic)}, topic_filter
