"""Retained messages: what is kept, and who gets it when."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.turn_time import Stint, TurnTime
from vespiary_broker.server.mqtt.retained import _STALE_MAX, Retained
from vespiary_codec.wire.mqtt import (
    Disconnect,
    Property,
    Puback,
    Publish,
    Subscribe,
    Subscription,
)
from vespiary_codec.wire.mqtt.topics import matches
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.turn_clock import CountedTurns
from vespiary_testkit.virtual_time import run_virtual

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}


def anyone(topic: str) -> bool:
    """Let a subscriber have what is retained for every topic."""
    return True


def unbounded() -> Stint:
    """Return what somebody has of turns that have no bound."""
    return Stint(TurnTime())


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
    fresh = Retained(rig.hub.retained._notes, rig.hub.topics)
    found = [message.body async for message in fresh.matching("a/#", anyone, unbounded())]
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
        found = {
            m.body.decode()
            async for m in rig.hub.retained.matching(topic_filter, anyone, unbounded())
        }
        assert found == {topic for topic in topics if matches(topic_filter, topic)}, topic_filter


def lasting(seconds: int) -> dict[str, object]:
    return {"properties": {Property.MESSAGE_EXPIRY_INTERVAL: seconds}}


async def processed(rig: MqttRig) -> None:
    """Wait until what all clients have sent is done with."""
    await rig.flush()
    while any(connection.is_busy for connection in rig.cycle.connections.values()):
        await rig.flush()
    await rig.flush()


@on_rig(runner=run_virtual)
async def test_expired_messages_are_forgotten_although_nobody_subscribes(rig: MqttRig) -> None:
    client = await rig.connected("writer")
    for number in range(600):
        topic = f"a/{number}"
        client.send(Publish(topic, b"x", retain=True, **lasting(10 + number % 2 * 80)))  # type: ignore[arg-type]
    client.send(Publish("a/2", b"later", retain=True, **lasting(200)))  # type: ignore[arg-type]
    client.send(Publish("a/4", b"always", retain=True))
    await processed(rig)
    assert kept(rig) == (600, 600)
    for later_s, left in ((11, 302), (91, 2), (201, 1)):
        later_ns = time.time_ns() + later_s * 1_000_000_000
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "time_ns", lambda later_ns=later_ns: later_ns)
            await asyncio.sleep(3)
        assert rig.hub.retained.count == left
    assert list(rig.hub.retained._root.children["a"].children) == ["4"]


@on_rig()
async def test_replaced_messages_leave_no_expiry_times_behind(rig: MqttRig) -> None:
    client = await rig.connected("writer")
    for _ in range(3000):
        client.send(Publish("a", b"x", retain=True, **lasting(1000)))  # type: ignore[arg-type]
    await processed(rig)
    assert kept(rig) == (1, 1)
    assert len(rig.hub.retained._expiring) <= _STALE_MAX + 2


@on_rig()
async def test_messages_that_expire_are_known_after_a_restart(rig: MqttRig) -> None:
    await retain(rig, "a", b"x", **lasting(1000))
    again = Retained(rig.hub.retained._notes, rig.hub.topics)
    await again.ready()
    assert again.count == 1
    assert not again.expire(time.time_ns() // 1_000_000)
    assert again.count == 1
    again.expire(time.time_ns() // 1_000_000 + 1_001_000)
    assert again.count == 0


@on_rig(runner=run_virtual)
async def test_what_expired_stays_gone_if_the_clock_goes_back(rig: MqttRig) -> None:
    """Its note would be there after a restart, also if the client has cleared the topic."""
    await retain(rig, "a", b"old", **lasting(3600))
    later_ns = time.time_ns() + 7200 * 1_000_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: later_ns)
        await asyncio.sleep(2.5)
    await retain(rig, "a", b"")
    assert kept(rig) == (0, 0)
    again = Retained(rig.hub.retained._notes, rig.hub.topics)
    await again.ready()
    assert [message.body async for message in again.matching("a", anyone, unbounded())] == []


@on_rig()
async def test_what_has_expired_is_kept_until_there_is_room_to_end_it(rig: MqttRig) -> None:
    for topic in ("a", "b"):
        await retain(rig, topic, b"x", **lasting(10))
    later_ms = time.time_ns() // 1_000_000 + 11_000
    finish, left = rig.core.finish, 1

    def full(*call: Any, **options: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise NoRoom
        return finish(*call, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.core, "finish", full)
        assert not rig.hub.retained.expire(later_ms)
    assert kept(rig) == (1, 1)
    assert not rig.hub.retained.expire(later_ms)
    assert kept(rig) == (0, 0)


async def _filled(rig: MqttRig, count: int) -> None:
    client = await rig.connected("writer")
    for number in range(count):
        client.send(Publish(f"t/{number}", b"%d" % number, retain=True))
    await processed(rig)
    assert kept(rig) == (count, count)


@on_rig()
async def test_retained_messages_are_copied_over_as_many_turns_as_they_need(rig: MqttRig) -> None:
    await _filled(rig, 60)
    payloads = {b"%d" % number for number in range(60)}
    readers = [await rig.connected(f"r{number}") for number in range(3)]
    for reader in readers:  # the queues are made one after the other
        assert await reader.subscribe("#", retain_handling=2) == []
    counted, routes = CountedTurns(rig.engine.turn_time), list[int]()
    publish = rig.core.publish

    def publish_counted(route: int, *call: Any, **options: Any) -> Any:
        counted.done += 1
        routes.append(route)
        return publish(route, *call, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.core, "publish", publish_counted)
        for reader in readers:
            reader.send(Subscribe(1, (Subscription("#"),)))
        await processed(rig)
    for reader in readers:
        _, *copies = reader.packets()
        assert {each.payload for each in copies if isinstance(each, Publish)} == payloads
        assert len(copies) == 60
    assert counted.done == 180
    assert counted.most <= 4
    assert len(set(routes[:30])) == 3, "others have their part before somebody has all"


@on_rig()
async def test_topics_that_a_filter_passes_over_take_their_turns_as_well(rig: MqttRig) -> None:
    await _filled(rig, 2000)
    retained = rig.hub.retained
    counted = CountedTurns(rig.engine.turn_time)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retained, "_enter", counted.counted(retained._enter))
        stint = Stint(rig.engine.turn_time)
        found = [message async for message in retained.matching("+/+/9", anyone, stint)]
    assert not found
    assert counted.done > 2000
    assert counted.most <= 400


@on_rig()
async def test_what_was_retained_before_a_start_is_read_over_some_turns_once(rig: MqttRig) -> None:
    await _filled(rig, 500)
    counted = CountedTurns(rig.engine.turn_time)
    again = Retained(rig.hub.retained._notes, rig.hub.topics)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(again, "_put", counted.counted(again._put))
        await asyncio.gather(*(again.ready() for _ in range(5)))
    assert again.count == counted.done == 500, "nobody reads what others read already"
    assert counted.most <= 150


@on_rig()
async def test_what_is_cleared_before_it_is_written_stays_cleared(rig: MqttRig) -> None:
    writer = await rig.connected("w")
    writer.send(Publish("other", b"0", 1, retain=True, packet_id=1))
    await rig.flush()
    writer.send(
        Publish("a", b"1", 1, retain=True, packet_id=2),
        Publish("a", b"", 1, retain=True, packet_id=3),
    )
    await processed(rig)
    again = Retained(rig.hub.retained._notes, rig.hub.topics)  # as after a restart
    stint = Stint(rig.engine.turn_time)
    assert [each async for each in again.matching("a", anyone, stint)] == []
    assert kept(rig) == (1, 1)


@pytest.mark.parametrize("newer", [b"2", b""])
def test_a_copy_that_waits_for_room_does_not_follow_what_replaced_it(newer: bytes) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        await retain(rig, "a", b"1")
        writer, reader = await rig.connected("w"), await rig.connected("r")
        publish, is_full = rig.core.publish, True

        def refusing(route: int, properties: bytes, *more: Any, **named: Any) -> Any:
            if is_full and b"retained" in properties:
                raise NoRoom
            return publish(route, properties, *more, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rig.core, "publish", refusing)
            reader.send(Subscribe(1, (Subscription("a", 1),)))
            await rig.flush()
            writer.send(Publish("a", newer, 1, retain=True, packet_id=2))
            await rig.flush()
            is_full = False
            rig.cycle.on_space()
            await processed(rig)
        got = [each.payload for each in reader.packets() if isinstance(each, Publish)]
        assert got == [newer]

    scenario()
