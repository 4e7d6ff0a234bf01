"""UNSUBSCRIBE while messages of the subscription are on their way to the client.

Source: MQTT 5.0 §3.10.4 (MQTT-3.10.4-2, MQTT-3.10.4-3).
"""

from __future__ import annotations

from typing import Any

import pytest

from vespiary_broker.server.mqtt import subscribing
from vespiary_broker.server.mqtt.options import Options
from vespiary_codec.wire.mqtt import (
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsuback,
    Unsubscribe,
    Version,
)
from vespiary_spec.settings import MqttLimits
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig

NEVER: Any = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
QUEUE = "r.a.*"


def of_two(**more: Any) -> Any:
    """Return a decorator: a rig whose clients get two messages ahead."""
    return on_rig(
        journal=lambda: MemoryJournal(is_automatic=True),
        limits=lambda: MqttLimits(maximum_in_flight=2),
        **more,
    )


@pytest.fixture(autouse=True)
def _drained_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribing, "_DRAIN_S", 0.001)


async def reader_of(rig: MqttRig, version: Version, qos: int, **fields: Any) -> MqttClientPeer:
    reader = await rig.connected("r", version, **fields)
    await reader.subscribe("a/+", qos)
    return reader


async def publish(rig: MqttRig, *payloads: bytes, qos: int = 2, topic: str = "a/b") -> None:
    writer = await rig.connected("w")
    numbered = enumerate(payloads, start=1)
    writer.send(*(Publish(topic, payload, qos, packet_id=number) for number, payload in numbered))
    for _ in range(4):
        await rig.flush()
    writer.lose()
    await rig.flush()


async def unsubscribe(rig: MqttRig, client: MqttClientPeer) -> None:
    client.send(Unsubscribe(9, ("a/+",)))
    for _ in range(4):
        await rig.flush()
    assert isinstance(client.packets()[-1], Unsuback)


def is_there(rig: MqttRig) -> bool:
    return QUEUE in rig.engine.registry.queues


def messages(rig: MqttRig) -> int:
    found = rig.core.queue_statistics(rig.engine.registry.queues[QUEUE].id)
    return found.tail - found.head


async def gone(rig: MqttRig) -> None:
    """Wait until the queue is dropped."""
    for _ in range(400):
        await rig.flush()
        if not is_there(rig):
            return
        await rig.settle()
    raise AssertionError("the queue is still there")


async def acknowledge(rig: MqttRig, client: MqttClientPeer, sent: list[Publish]) -> None:
    """End the delivery of messages; nothing else comes."""
    for each in sent:
        if each.qos == 1:
            client.send(Puback(each.packet_id))
            continue
        client.send(Pubrec(each.packet_id))
        await rig.flush()
        await rig.flush()
        assert client.one(Pubrel).packet_id == each.packet_id
        client.send(Pubcomp(each.packet_id))
    await rig.flush()
    assert client.packets() == []


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "clean"])
def test_what_is_on_its_way_comes_to_its_end_and_the_rest_is_dropped(
    version: Version, qos: int, durable: bool
) -> None:
    @of_two()
    async def scenario(rig: MqttRig) -> None:
        of_5: dict[str, Any] = {"properties": NEVER} if durable and version is V5 else {}
        reader = await reader_of(rig, version, qos, clean_start=not durable, **of_5)
        await publish(rig, b"1", b"2", b"3", b"4", qos=qos)
        sent = reader.all_of(Publish)
        assert [(each.payload, each.qos) for each in sent] == [(b"1", qos), (b"2", qos)]
        is_core = qos == 1
        assert rig.core.sent_count(reader.connection.handle) == (len(sent) if is_core else 0)
        await unsubscribe(rig, reader)
        await publish(rig, b"5")
        assert is_there(rig)
        await acknowledge(rig, reader, sent)
        await gone(rig)
        session = rig.hub.sessions.get("r")
        assert session is not None
        assert not session.subscriptions
        assert not session.retired
        assert not reader.is_ended

    scenario()


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_on_its_way_comes_again_on_the_next_connection(qos: int) -> None:
    @of_two()
    async def scenario(rig: MqttRig) -> None:
        reader = await reader_of(rig, V5, qos, properties=NEVER)
        await publish(rig, b"1", b"2", b"3")
        sent = reader.all_of(Publish)
        await unsubscribe(rig, reader)
        stored = rig.bindings.snapshot()["mqtt-session/r"]
        assert not stored["subscriptions"]
        assert stored["retired"]["a/+"]["begun-below"] == 3
        for _ in range(2):
            reader.lose()
            await rig.flush()
            reader = rig.client()
            await reader.login("r", clean_start=False, properties=NEVER)
            again = [each for each in reader.early if isinstance(each, Publish)]
            again += await reader.received()
            assert [each.packet_id for each in again] == [each.packet_id for each in sent]
            assert [(each.payload, each.qos, each.dup) for each in again] == [
                (b"1", qos, True),
                (b"2", qos, True),
            ]
        await acknowledge(rig, reader, again)
        await gone(rig)
        assert "retired" not in rig.bindings.snapshot()["mqtt-session/r"]

    scenario()


@of_two()
async def test_what_was_not_sent_is_dropped_at_once(rig: MqttRig) -> None:
    reader = await reader_of(rig, V5, 1, properties=NEVER)
    await publish(rig, *(b"%d" % number for number in range(500)))
    assert messages(rig) == 500
    await unsubscribe(rig, reader)
    found = rig.core.queue_statistics(rig.engine.registry.queues[QUEUE].id)
    assert (found.acknowledged, found.delivering) == (498, 2)


@of_two()
async def test_what_waits_of_another_subscription_comes(rig: MqttRig) -> None:
    reader = await reader_of(rig, V5, 2)
    await reader.subscribe("b", 2)
    await publish(rig, b"1")
    await publish(rig, b"x", b"y", b"z", topic="b")
    got = reader.all_of(Publish)
    assert [each.payload for each in got] == [b"1", b"x"]
    await unsubscribe(rig, reader)
    reader.send(*(Pubrec(each.packet_id) for each in got))
    await rig.flush()
    await rig.flush()
    reader.send(*(Pubcomp(each.packet_id) for each in reader.all_of(Pubrel)))
    assert [each.payload for each in await reader.received()] == [b"y", b"z"]


@of_two()
async def test_who_ends_it_before_what_comes_again_has_come_gets_it(rig: MqttRig) -> None:
    reader = await reader_of(rig, V5, 1, properties=NEVER)
    await reader.subscribe("b", 1)
    await publish(rig, b"1", b"2", b"3")
    sent = reader.all_of(Publish)
    reader.lose()
    await rig.flush()
    reader = rig.client()
    fields: Any = {"properties": NEVER | {Property.RECEIVE_MAXIMUM: 1}}
    await reader.login("r", clean_start=False, **fields)
    (first,) = [each for each in [*reader.early, *reader.packets()] if isinstance(each, Publish)]
    await unsubscribe(rig, reader)
    reader.send(Puback(first.packet_id))
    (second,) = await reader.received()
    got = [(each.payload, each.packet_id) for each in (first, second)]
    assert got == [(each.payload, each.packet_id) for each in sent]
    await acknowledge(rig, reader, [second])
    await gone(rig)


@of_two()
async def test_a_retained_copy_that_is_on_its_way_comes_again(rig: MqttRig) -> None:
    writer = await rig.connected("w")
    writer.send(Publish("a/b", b"kept", 1, packet_id=1, retain=True))
    await rig.flush()
    reader = await rig.connected("r", V5, properties=NEVER)
    (sent,) = await reader.subscribe("a/+", 1)
    await unsubscribe(rig, reader)
    reader.lose()
    await rig.flush()
    reader = rig.client()
    await reader.login("r", clean_start=False, properties=NEVER)
    again = [each for each in reader.early if isinstance(each, Publish)]
    again += await reader.received()
    assert [(each.payload, each.retain, each.packet_id) for each in again] == [
        (b"kept", True, sent.packet_id),  # type: ignore[union-attr]
    ]


@of_two()
async def test_nothing_on_its_way_leaves_no_queue(rig: MqttRig) -> None:
    reader = await reader_of(rig, V5, 1, properties=NEVER)
    await publish(rig, b"1", b"2")
    await acknowledge(rig, reader, reader.all_of(Publish))
    await unsubscribe(rig, reader)
    assert not is_there(rig)


@of_two()
async def test_a_subscription_that_begins_again_is_whole(rig: MqttRig) -> None:
    reader = await reader_of(rig, V5, 1, properties=NEVER)
    await publish(rig, b"1", b"2", b"3")
    sent = reader.all_of(Publish)
    await unsubscribe(rig, reader)
    await reader.subscribe("a/+", 1)
    await publish(rig, b"4", b"5")
    reader.send(*(Puback(each.packet_id) for each in sent))
    await rig.flush()
    assert [each.payload for each in await reader.received()] == [b"4", b"5"]
    for _ in range(20):
        await rig.settle()
    assert is_there(rig)


@of_two()
async def test_another_subscription_gets_the_rest_and_this_one_what_was_begun(
    rig: MqttRig,
) -> None:
    reader = await reader_of(rig, V5, 2, properties=NEVER)
    await reader.subscribe("a/#", 1)
    await publish(rig, b"1", b"2", b"3")
    sent = reader.all_of(Publish)
    assert [(each.payload, each.qos) for each in sent] == [(b"1", 2), (b"2", 2)]
    await unsubscribe(rig, reader)
    reader.send(*(Pubrec(each.packet_id) for each in sent))
    await rig.flush()
    await rig.flush()
    reader.send(*(Pubcomp(each.packet_id) for each in reader.all_of(Pubrel)))
    assert [(each.payload, each.qos) for each in await reader.received()] == [(b"3", 1)]


def test_options_in_the_bindings() -> None:
    options = Options(1, begun_below=7)
    assert Options.from_json(options.to_json()) == options
    assert "begun-below" not in Options(1).to_json()
