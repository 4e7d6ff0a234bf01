"""Subscriptions of one client that take the same message: it comes once, for all of them."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from vespiary_broker.server.mqtt import overlaps, subscribing
from vespiary_codec.wire.mqtt import (
    Packet,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Unsuback,
    Unsubscribe,
)
from vespiary_codec.wire.mqtt.topics import can_both_match
from vespiary_spec.settings import MqttLimits
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import V3, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
DURABLE = {"clean_start": False, "properties": NEVER}


async def publish(
    rig: MqttRig, topic: str, *payloads: bytes, qos: int = 2, **fields: object
) -> None:
    """Have another client publish, and all of it be durable."""
    client = await rig.connected("writer")
    client.send(
        *(
            Publish(topic, payload, qos, packet_id=number if qos else 0, **fields)  # type: ignore[arg-type]
            for number, payload in enumerate(payloads, start=1)
        )
    )
    for _ in range(4):
        await rig.flush()
    client.lose()
    await rig.flush()


async def subscribe(
    client: MqttClientPeer, topic_filter: str, qos: int, identifier: int = 0, **options: Any
) -> list[Packet]:
    said = {Property.SUBSCRIPTION_IDENTIFIER: [identifier]} if identifier else None
    return await client.subscribe(topic_filter, qos, said, **options)


async def unsubscribe(rig: MqttRig, client: MqttClientPeer, *topic_filters: str) -> list[Packet]:
    """Unsubscribe; return what came before and behind UNSUBACK."""
    client.send(Unsubscribe(9, topic_filters))
    for _ in range(4):
        await rig.flush()
    found = client.packets()
    assert [each for each in found if isinstance(each, Unsuback)], found
    return [each for each in found if not isinstance(each, Unsuback)]


def said(messages: list[Publish]) -> list[tuple[bytes, int, list[int]]]:
    """Return payload, QoS and identifiers of messages."""
    return [
        (each.payload, each.qos, sorted(each.properties.get(Property.SUBSCRIPTION_IDENTIFIER, [])))  # type: ignore[arg-type]
        for each in messages
    ]


def counts(rig: MqttRig, *names: str) -> list[int]:
    """Return how many messages queues have taken."""
    queues = rig.engine.registry.queues
    return [rig.core.queue_statistics(queues[name].id).added for name in names]


@pytest.mark.parametrize("order", list(permutations([("#", 0, 1), ("a/+", 2, 2), ("a/b", 1, 3)])))
def test_one_copy_with_the_highest_qos_and_all_identifiers(order: Any) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r")
        for topic_filter, qos, identifier in order:
            await subscribe(reader, topic_filter, qos, identifier)
        for topic, qos, identifiers in (
            ("a/b", 2, [1, 2, 3]), ("a/c", 2, [1, 2]), ("x", 0, [1]), ("a/b/c", 0, [1]),
        ):  # fmt: skip
            await publish(rig, topic, b"x")
            assert said(await reader.received()) == [(b"x", qos, identifiers)]

    scenario()


@on_rig()
async def test_mqtt_3_gets_one_copy_from_senders_whose_topic_the_core_knows(rig: MqttRig) -> None:
    reader = await rig.connected("r", V3)
    await subscribe(reader, "a/b", 0)
    writer = await rig.connected("w")
    for number in range(4):  # the core takes those behind the first
        writer.send(Publish("a/b", b"%d" % number, 1, packet_id=1))
        await rig.flush()
        await rig.flush()
        if number == 1:
            assert said(await reader.received()) == [(b"0", 0, []), (b"1", 0, [])]
            await subscribe(reader, "#", 1)
    assert said(await reader.received()) == [(b"2", 1, []), (b"3", 1, [])]


@on_rig()
async def test_an_identifier_counts_also_where_the_core_would_encode(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await subscribe(reader, "#", 1)
    await subscribe(reader, "a/+", 1, 7)
    await publish(rig, "a/b", b"x", qos=1)
    await publish(rig, "b", b"y", qos=1)
    assert said(await reader.received()) == [(b"x", 1, [7]), (b"y", 1, [])]


@on_rig()
async def test_a_subscription_counts_from_its_suback_on(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await subscribe(reader, "#", 1, 1)
    await publish(rig, "a", b"1")
    assert said(await reader.received()) == [(b"1", 1, [1])]
    await subscribe(reader, "a", 0, 2)
    await publish(rig, "a", b"2")
    assert said(await reader.received()) == [(b"2", 1, [1, 2])]
    await subscribe(reader, "a", 2, 3)
    await publish(rig, "a", b"3")
    got = said(await unsubscribe(rig, reader, "#"))  # type: ignore[arg-type]
    await publish(rig, "a", b"4")
    got += said(await reader.received())
    assert got == [(b"3", 2, [1, 3]), (b"4", 2, [3])]


@on_rig()
async def test_the_queue_of_the_highest_qos_takes_the_message(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await subscribe(reader, "#", 1)
    await subscribe(reader, "a", 0)
    await publish(rig, "a", b"1")
    assert [each.qos for each in await reader.received()] == [1]
    await subscribe(reader, "a", 2)
    await publish(rig, "a", b"2", b"3")
    assert counts(rig, "r.#", "r.a") == [1, 2]
    assert [each.qos for each in await reader.received()] == [2, 2]


@on_rig()
async def test_retain_as_published_of_any_of_them_counts(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await subscribe(reader, "#", 1)
    await subscribe(reader, "a", 0, retain_as_published=True)
    await publish(rig, "a", b"x", retain=True)
    await publish(rig, "b", b"x", retain=True)
    assert [each.retain for each in await reader.received()] == [True, False]


@on_rig()
async def test_what_is_retained_comes_for_the_new_subscription_alone(rig: MqttRig) -> None:
    await publish(rig, "a", b"x", retain=True)
    reader = await rig.connected("r")
    assert said(await subscribe(reader, "#", 2, 1)) == [(b"x", 2, [1])]  # type: ignore[arg-type]
    assert said(await subscribe(reader, "a", 1, 2)) == [(b"x", 1, [2])]  # type: ignore[arg-type]


@on_rig()
async def test_no_local_and_shares_give_copies_of_their_own(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await subscribe(reader, "#", 1, 1)
    await subscribe(reader, "a", 2, 2, no_local=True)
    await subscribe(reader, "$share/s/+", 0, 3)
    await publish(rig, "a", b"x")
    got = said(await reader.received())
    assert sorted(got) == [(b"x", 0, [3]), (b"x", 1, [1]), (b"x", 2, [2])]
    reader.send(Publish("a", b"own"))
    assert sorted(said(await reader.received())) == [(b"own", 0, [1]), (b"own", 0, [3])]


@on_rig()
async def test_the_brokers_own_topics_come_if_one_of_them_takes_them(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await subscribe(reader, "#", 2, 1)
    await subscribe(reader, "$own/x", 1, 2)
    stomp = rig.peer()
    await stomp.login()
    stomp.send(b"SEND\ndestination:/topic/$own.x\npersistent:true\n\nx\0")
    assert said(await reader.received()) == [(b"x", 1, [2])]


@on_rig()
async def test_a_lower_qos_from_now_on_does_not_count_for_what_waits(rig: MqttRig) -> None:
    reader = await rig.connected(
        "r", clean_start=True, properties=NEVER | {Property.RECEIVE_MAXIMUM: 1}
    )
    await subscribe(reader, "#", 1)
    await subscribe(reader, "a", 0)
    await publish(rig, "a", b"1", b"2")
    (first,) = await reader.received()
    await subscribe(reader, "a", 1)
    await subscribe(reader, "#", 0)
    reader.send(Puback(first.packet_id))
    assert said([first, *await reader.received()]) == [(b"1", 1, []), (b"2", 1, [])]


# --- ends -----------------------------------------------------------------------------------------


def queue_names(rig: MqttRig) -> set[str]:
    return {name for name in rig.engine.registry.queues if not name.startswith("$")}


async def gone(rig: MqttRig, name: str) -> None:
    """Wait until a queue is dropped."""
    for _ in range(400):
        await rig.flush()
        if name not in queue_names(rig):
            return
        await rig.settle()
    raise AssertionError(f"{name} is there: {queue_names(rig)}")


@pytest.fixture(autouse=True)
def _drained_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscribing, "_DRAIN_S", 0.001)


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "clean"])
def test_who_ends_one_subscription_loses_nothing_of_the_other(durable: bool) -> None:
    @on_rig(journal=lambda: MemoryJournal(is_automatic=True))
    async def scenario(rig: MqttRig) -> None:
        few = {Property.RECEIVE_MAXIMUM: 1} | (NEVER if durable else {})
        reader = await rig.connected("r", properties=few)
        await subscribe(reader, "#", 1, 1)
        await subscribe(reader, "a", 2, 2)
        await subscribe(reader, "a/+", 2, 3)
        await publish(rig, "a", b"1", b"2")
        await publish(rig, "a/b", b"x")
        (first,) = [each for each in reader.packets() if isinstance(each, Publish)]
        got = [first]
        assert not await unsubscribe(rig, reader, "a", "a/+")
        assert queue_names(rig) == {"r.#", "r.a", "r.a.*"}
        await publish(rig, "a", b"3")
        assert counts(rig, "r.#", "r.a") == [1, 2]
        reader.send(Pubrec(first.packet_id), Pubcomp(first.packet_id))
        for _ in range(20):
            await rig.flush()
            for each in reader.packets():
                if isinstance(each, Publish):
                    got.append(each)
                    assert each.qos == 1
                    reader.send(Puback(each.packet_id))
                else:
                    assert isinstance(each, Pubrel)
        assert sorted(said(got)) == [
            (b"1", 2, [1, 2]),
            (b"2", 1, [1]),
            (b"3", 1, [1]),
            (b"x", 1, [1]),
        ]
        for name in ("r.a", "r.a.*"):
            await gone(rig, name)
        session = rig.hub.sessions.get("r")
        assert session is not None
        assert list(session.subscriptions) == ["#"]
        assert not session.retired

    scenario()


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_what_an_ended_subscription_has_left_comes_on_the_next_connection(
    rig: MqttRig,
) -> None:
    reader = await rig.connected("r", properties=NEVER | {Property.RECEIVE_MAXIMUM: 1})
    await subscribe(reader, "#", 1)
    await subscribe(reader, "a", 2)
    await publish(rig, "b", b"fills the window")
    await publish(rig, "a", b"1", b"2")
    (before,) = [each for each in reader.packets() if isinstance(each, Publish)]
    await unsubscribe(rig, reader, "a")
    reader.lose()
    await rig.flush()
    await publish(rig, "a", b"3")
    stored = rig.bindings.snapshot()["mqtt-session/r"]
    assert list(stored["retired"]) == ["a"]
    again = rig.client()
    await again.login("r", **DURABLE)
    await rig.flush()
    got = [each for each in again.early + again.packets() if isinstance(each, Publish)]
    again.send(*(Puback(each.packet_id) for each in got))
    assert sorted(each.payload for each in got) == [b"1", b"2", b"3", before.payload]
    assert {each.qos for each in got} == {1}
    await gone(rig, "r.a")
    await rig.flush()
    assert "retired" not in rig.bindings.snapshot()["mqtt-session/r"]


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_a_subscription_that_begins_again_takes_its_messages_again(rig: MqttRig) -> None:
    reader = await rig.connected("r", properties=NEVER | {Property.RECEIVE_MAXIMUM: 1})
    await subscribe(reader, "#", 1)
    await subscribe(reader, "a", 2)
    await publish(rig, "a", b"1", b"2")
    (first,) = [each for each in reader.packets() if isinstance(each, Publish)]
    await unsubscribe(rig, reader, "a")
    await subscribe(reader, "a", 2, 5)
    await publish(rig, "a", b"3")
    reader.send(Pubrec(first.packet_id), Pubcomp(first.packet_id))
    got = []
    for _ in range(20):
        await rig.flush()
        for each in reader.packets():
            if isinstance(each, Publish):
                got.append(each)
                reader.send(Pubrec(each.packet_id), Pubcomp(each.packet_id))
    assert said(got) == [(b"2", 2, [5]), (b"3", 2, [5])]
    for _ in range(20):
        await rig.settle()
    assert queue_names(rig) == {"r.#", "r.a"}
    assert counts(rig, "r.#", "r.a") == [0, 3]


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_what_is_retained_comes_for_a_subscription_that_begins_again(rig: MqttRig) -> None:
    await publish(rig, "a", b"kept", retain=True)
    reader = await rig.connected("r", properties={Property.RECEIVE_MAXIMUM: 1})
    await subscribe(reader, "#", 0, retain_handling=2)
    await subscribe(reader, "a", 1, retain_handling=2)
    await publish(rig, "a", b"1", b"2", qos=1)
    (first,) = [each for each in reader.packets() if isinstance(each, Publish)]
    await unsubscribe(rig, reader, "a")
    assert not await subscribe(reader, "a", 1)  # the window is full
    got = [first]
    for _ in range(20):
        reader.send(Puback(got[-1].packet_id))
        await rig.flush()
        got += [each for each in reader.packets() if isinstance(each, Publish)]
    assert [(each.payload, each.retain) for each in got] == [
        (b"1", False), (b"2", False), (b"kept", True),
    ]  # fmt: skip


@on_rig(
    journal=lambda: MemoryJournal(is_automatic=True), limits=lambda: MqttLimits(maximum_in_flight=1)
)
async def test_the_core_sends_nothing_for_a_subscription_that_ended(rig: MqttRig) -> None:
    reader = await rig.connected("r", V3, clean_start=False)
    await subscribe(reader, "#", 0)
    await subscribe(reader, "a", 1)
    await publish(rig, "a", b"1", b"2", qos=1)
    (first,) = [each for each in reader.packets() if isinstance(each, Publish)]
    assert rig.core.sent_count(reader.connection.handle) == 1
    assert not await unsubscribe(rig, reader, "a")
    reader.send(Puback(first.packet_id))
    await rig.flush()
    assert said([first, *await reader.received()]) == [(b"1", 1, []), (b"2", 0, [])]


@on_rig(journal=lambda: MemoryJournal(is_automatic=True))
async def test_a_session_that_ends_takes_what_it_has_left_with_it(rig: MqttRig) -> None:
    reader = await rig.connected("r", properties=NEVER | {Property.RECEIVE_MAXIMUM: 1})
    await subscribe(reader, "#", 1)
    await subscribe(reader, "a", 2)
    await publish(rig, "a", b"1", b"2")
    reader.packets()
    await unsubscribe(rig, reader, "a")
    assert queue_names(rig) == {"r.#", "r.a"}
    clean = await rig.connected("r")
    assert not clean.early
    await rig.flush()
    assert not queue_names(rig)


@pytest.mark.parametrize("qos", [0, 1])
def test_subscriptions_are_not_held_against_all_others_of_the_client(
    monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    """A client may have thousands: the next one must not take longer and longer."""
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return can_both_match(one, other)

    @on_rig()
    async def run(rig: MqttRig) -> None:
        reader = await rig.connected("r")
        for number in range(50):
            await subscribe(reader, f"plain/{number}", 0)
        await subscribe(reader, "wild/+", 0)
        monkeypatch.setattr(overlaps, "can_both_match", compare)
        await subscribe(reader, "plain/50", qos)
        assert len(compared) <= 1
        compared.clear()
        await subscribe(reader, "other/+", qos)
        assert len(compared) <= 51, "a wildcard may take what each of them takes"
        await publish(rig, "plain/50", b"1")
        assert said(await reader.received()) == [(b"1", qos, [])]

    run()
