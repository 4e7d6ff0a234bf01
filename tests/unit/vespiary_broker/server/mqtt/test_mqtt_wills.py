"""Wills of sessions that outlive their connection: noted, sent once, also after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vespiary_broker.server.mqtt.wills import Wills
from vespiary_codec.wire.mqtt import Connack, Connect, Disconnect, Property, ReasonCode, Will
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.virtual_time import run_virtual

ODD = "c:\\1\n\u00e9"


def expiring(seconds: int) -> dict[str, object]:
    properties = {Property.SESSION_EXPIRY_INTERVAL: seconds}
    return {"clean_start": False, "properties": properties}


def will(delay_s: int = 0, *, retain: bool = False, qos: int = 1) -> Will:
    said: Any = {
        Property.CONTENT_TYPE: "text",
        Property.USER_PROPERTY: [("a", "b"), ("a", "c")],
        Property.CORRELATION_DATA: b"\xff",
    }
    if delay_s:
        said[Property.WILL_DELAY_INTERVAL] = delay_s
    return Will("gone/x", b"bye", qos, retain, said)


def notes(rig: MqttRig) -> int:
    """Return how many wills are noted."""
    queue = rig.engine.registry.queues.get("$mqtt.wills")
    if queue is None:
        return 0
    counters = rig.core.queue_statistics(queue.id)
    return counters.added - counters.acknowledged


async def restarted(rig: MqttRig) -> None:
    """As after a restart: nothing of wills is in memory."""
    for session in rig.hub.sessions._by_client.values():
        session.client = None
    rig.hub.wills.close()
    before = rig.hub.wills
    rig.hub.wills = Wills(rig.cycle, rig.hub.topics, before._notes, rig.hub.retained)
    await rig.hub.load_wills()
    await rig.flush()


async def reader_of(rig: MqttRig) -> MqttClientPeer:
    reader = await rig.connected("r")
    await reader.subscribe("gone/#", 2)
    return reader


@on_rig()
async def test_connack_waits_until_the_will_is_durable(rig: MqttRig) -> None:
    client = rig.client()
    client.send(Connect(V5, "c", will=will(), **expiring(100)))  # type: ignore[arg-type]
    for _ in range(3):
        await rig.settle()
    assert client.packets() == []
    assert notes(rig) == 1
    await rig.flush()
    assert client.one(Connack).reason_code is ReasonCode.SUCCESS


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_sent_once_and_its_note_ends_with_it(qos: int, retain: bool) -> None:
    @on_rig(journal=lambda: MemoryJournal(is_automatic=True))
    async def scenario(rig: MqttRig) -> None:
        reader = await reader_of(rig)
        client = await rig.connected(ODD, will=will(retain=retain, qos=qos), **expiring(100))
        assert notes(rig) == 1
        client.lose()
        (got,) = await reader.received()
        assert (got.topic, got.payload, got.qos) == ("gone/x", b"bye", qos)
        assert notes(rig) == 0
        assert rig.hub.retained.count == retain
        await restarted(rig)
        assert await reader.received() == []

    scenario()


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("version", [V3, V5])
def test_a_will_of_a_client_that_was_connected_is_sent_after_a_restart(
    version: Any,
    retain: bool,
) -> None:
    @on_rig(journal=lambda: MemoryJournal(is_automatic=True))
    async def scenario(rig: MqttRig) -> None:
        reader = await reader_of(rig)
        of_5 = expiring(100) if version is V5 else {"clean_start": False}
        said = will(retain=retain)
        if version is V3:
            said = Will(said.topic, said.payload, said.qos, said.retain)
        await rig.connected(ODD, version, will=said, **of_5)
        assert rig.hub.wills.sent == 0
        await restarted(rig)
        (got,) = await reader.received()
        assert (got.topic, got.payload, got.qos) == ("gone/x", b"bye", 1)
        if version is V5:
            assert got.properties == said.properties
        assert rig.hub.retained.count == retain
        assert notes(rig) == 0

    scenario()


@pytest.mark.parametrize("end", ["good-bye", "comes back", "new will"])
def test_a_will_that_is_withdrawn_stays_away(end: str) -> None:
    @on_rig(journal=lambda: MemoryJournal(is_automatic=True))
    async def scenario(rig: MqttRig) -> None:
        reader = await reader_of(rig)
        client = await rig.connected("c", will=will(50), **expiring(100))
        if end == "good-bye":
            client.send(Disconnect())
        else:
            client.lose()
            await rig.flush()
            assert rig.hub.wills.waiting == 1
            await rig.connected("c", will=will(50) if end == "new will" else None, **expiring(100))
        await rig.flush()
        assert notes(rig) == (end == "new will")
        assert rig.hub.wills.waiting == 0
        if end != "new will":
            await restarted(rig)
        assert await reader.received() == []

    scenario()


@pytest.mark.parametrize(("delay_s", "expiry_s"), [(5, 100), (100, 5), (5, 0xFFFFFFFF)])
def test_a_will_waits_on_after_a_restart(delay_s: int, expiry_s: int) -> None:
    @on_rig(run_virtual, journal=lambda: MemoryJournal(is_automatic=True))
    async def scenario(rig: MqttRig) -> None:
        reader = await reader_of(rig)
        client = await rig.connected("c", will=will(delay_s), **expiring(expiry_s))
        client.lose()
        await rig.flush()
        await restarted(rig)
        await asyncio.sleep(4)
        assert await reader.received() == []
        assert rig.hub.wills.waiting == 1
        await asyncio.sleep(1.5)
        assert [each.payload for each in await reader.received()] == [b"bye"]
        assert notes(rig) == 0

    scenario()


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_who_comes_back_after_a_restart_withdraws_its_will(rig: MqttRig) -> None:
    reader = await reader_of(rig)
    client = await rig.connected("c", will=will(50), **expiring(100))
    client.lose()
    await rig.flush()
    await restarted(rig)
    assert rig.hub.wills.waiting == 1
    await rig.connected("c", **expiring(100))
    assert rig.hub.wills.waiting == 0
    assert notes(rig) == 0
    await restarted(rig)
    assert await reader.received() == []


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_a_note_that_cannot_be_read_keeps_nobody_out(rig: MqttRig) -> None:
    reader = await reader_of(rig)
    await rig.connected("c", will=will(), **expiring(100))
    queue = rig.engine.registry.queues["$mqtt.wills"]
    route = rig.engine.registry.queue_route(queue).next_handle()
    rig.core.publish(route, b"will-id:x\nclient-id:d\ndelay:0\n", b"\xff\xff", persistent=True)
    await rig.flush()
    await restarted(rig)
    assert [each.payload for each in await reader.received()] == [b"bye"]
    assert notes(rig) == 0


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_a_session_that_ends_with_its_connection_has_no_note(rig: MqttRig) -> None:
    reader = await reader_of(rig)
    client = await rig.connected("c", will=will(50))
    assert notes(rig) == 0
    client.lose()
    assert [each.payload for each in await reader.received()] == [b"bye"]


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_who_is_refused_for_its_will_leaves_no_session_behind(rig: MqttRig) -> None:
    wrong = Will("$SYS/broker/x", b"bye", 1, False)
    client = rig.client()
    client.send(Connect(V5, "c", will=wrong, **expiring(100)))  # type: ignore[arg-type]
    await rig.flush()
    assert client.one(Connack).reason_code.is_failure
    assert rig.hub.sessions.get("c") is None
    assert not any("mqtt" in key for key in rig.bindings.values)
    assert rig.engine.registry.limits.durable_sessions == 0
    known = await rig.connected("c", **expiring(100))
    await known.subscribe("a", 1)
    known.lose()
    again = rig.client()
    again.send(Connect(V5, "c", will=wrong, **expiring(100)))  # type: ignore[arg-type]
    await rig.flush()
    assert again.one(Connack).reason_code.is_failure
    kept = rig.hub.sessions.get("c")
    assert kept is not None
    assert list(kept.subscriptions) == ["a"], "what was there before stays"
