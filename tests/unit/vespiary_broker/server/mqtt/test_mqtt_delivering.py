"""Messages on their way out: windows, ids, what leaves when, and what comes again."""

from __future__ import annotations

import pytest

from vespiary_codec.wire.mqtt import (
    Disconnect,
    Packet,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from vespiary_native.abc import NoRoom
from vespiary_spec.settings import MqttLimits
from vespiary_testkit.mqtt_rig import V3, V5, MqttRig
from vespiary_testkit.rig_runner import on_rig

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
DURABLE = {"clean_start": False, "properties": NEVER}


async def publish(
    rig: MqttRig, topic: str, *payloads: bytes, qos: int = 1, **fields: object
) -> None:
    """Have another client publish, and all of it be durable."""
    client = await rig.connected("writer")
    client.send(
        *(
            Publish(topic, payload, qos, packet_id=number if qos else 0, **fields)  # type: ignore[arg-type]
            for number, payload in enumerate(payloads, start=1)
        )
    )
    await rig.flush()
    await rig.flush()
    client.lose()


def refuse_for_lack_of_room(*_: object) -> None:
    raise NoRoom("the journal is full")


@on_rig()
async def test_the_lower_qos_counts(rig: MqttRig) -> None:
    readers = [await rig.connected(f"r{qos}") for qos in range(3)]
    for qos, reader in enumerate(readers):
        await reader.subscribe("a", qos)
    for published in range(3):
        await publish(rig, "a", b"x", qos=published)
        got = [(await reader.received())[0].qos for reader in readers]
        assert got == [min(published, qos) for qos in range(3)]


@pytest.mark.parametrize("version", [V3, V5])
def test_the_window_is_shared_and_opens_with_each_puback(version: object) -> None:
    @on_rig(limits=lambda: MqttLimits(maximum_in_flight=2))
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("r", version=version)
        await reader.subscribe("a")
        await reader.subscribe("b", 2)
        await publish(rig, "a", *(b"%d" % number for number in range(5)))
        await publish(rig, "b", b"x", b"y")
        got = await reader.received()
        assert [each.payload for each in got] == [b"0", b"1"]
        order = []
        while got:
            order += [each.payload for each in got]
            assert len({each.packet_id for each in got}) == len(got)
            answers: list[Packet] = []
            for each in got:
                answers += [Puback(each.packet_id)] if each.qos == 1 else [
                    Pubrec(each.packet_id), Pubcomp(each.packet_id)
                ]  # fmt: skip
            reader.send(*answers)
            await rig.flush()
            await rig.flush()
            got = [each for each in reader.packets() if isinstance(each, Publish)]
        assert sorted(order) == [b"0", b"1", b"2", b"3", b"4", b"x", b"y"]

    scenario()


@on_rig()
async def test_receive_maximum_of_the_client_is_kept(rig: MqttRig) -> None:
    reader = await rig.connected("r", properties={Property.RECEIVE_MAXIMUM: 1})
    await reader.subscribe("a")
    await publish(rig, "a", b"1", b"2", qos=1)
    first = (await reader.received())[0]
    assert await reader.received() == []
    reader.send(Puback(first.packet_id, ReasonCode.UNSPECIFIED_ERROR))  # it counts all the same
    assert [each.payload for each in await reader.received()] == [b"2"]


@on_rig()
async def test_what_was_not_acknowledged_comes_again_with_its_id_and_order(rig: MqttRig) -> None:
    reader = await rig.connected("r", **DURABLE)
    await reader.subscribe("a")
    await publish(rig, "a", b"1", b"2", b"3")
    before = await reader.received()
    reader.send(Puback(before[1].packet_id))
    await rig.flush()
    reader.lose()
    await publish(rig, "a", b"4")
    again = rig.client()
    answer = await again.login("r", **DURABLE)
    assert answer.session_present
    got = again.early + again.packets()
    assert [(each.payload, each.dup) for each in got] == [  # type: ignore[union-attr]
        (b"1", True), (b"3", True), (b"4", False),
    ]  # fmt: skip
    assert [each.packet_id for each in got[:2]] == [before[0].packet_id, before[2].packet_id]  # type: ignore[union-attr]


@on_rig()
async def test_qos_2_leaves_once_its_id_is_durable(rig: MqttRig) -> None:
    reader = await rig.connected("r", **DURABLE)
    await reader.subscribe("a", 2)
    writer = await rig.connected("w")
    writer.send(Publish("a", b"x", 2, packet_id=1))
    await rig.flush()  # the message is durable now, and its id is noted
    await rig.settle()
    assert reader.packets() == []
    await rig.flush()
    sent = reader.one(Publish)
    reader.send(Pubrec(sent.packet_id))
    await rig.settle()
    assert reader.packets() == []  # that the message is done is not durable
    await rig.flush()
    assert reader.one(Pubrel).packet_id == sent.packet_id
    reader.send(Pubcomp(sent.packet_id))
    await rig.flush()
    assert reader.packets() == []


@on_rig()
async def test_qos_2_goes_on_where_it_was(rig: MqttRig) -> None:
    reader = await rig.connected("r", **DURABLE)
    await reader.subscribe("a", 2)
    await publish(rig, "a", b"1", b"2", qos=2)
    first, second = await reader.received()
    reader.send(Pubrec(first.packet_id))
    await rig.flush()
    reader.one(Pubrel)
    reader.lose()
    again = rig.client()
    await again.login("r", **DURABLE)
    await rig.flush()
    got = again.early + again.packets()
    assert [(type(each), each.packet_id) for each in got] == [  # type: ignore[union-attr]
        (Pubrel, first.packet_id), (Publish, second.packet_id),
    ]  # fmt: skip
    assert got[1].dup  # type: ignore[union-attr]
    again.send(Pubcomp(first.packet_id), Pubrec(second.packet_id))
    await rig.flush()
    assert again.one(Pubrel).packet_id == second.packet_id


@on_rig()
async def test_ids_of_qos_2_are_read_back_from_the_journal(rig: MqttRig) -> None:
    """As after a restart: nothing of the session is in memory but what is in its queues."""
    reader = await rig.connected("r", **DURABLE)
    await reader.subscribe("a", 2)
    await publish(rig, "a", b"1", b"2", qos=2)
    first, second = await reader.received()
    reader.send(Pubrec(first.packet_id))
    reader.send(Publish("t", b"mine", 2, packet_id=77))
    await rig.flush()
    reader.packets()
    reader.lose()
    await rig.flush()
    session = rig.hub.sessions.get("r")
    assert session is not None
    session.resumed = session.received = None
    again = rig.client()
    await again.login("r", **DURABLE)
    await rig.flush()
    got = again.early + again.packets()
    assert [(type(each), each.packet_id) for each in got] == [  # type: ignore[union-attr]
        (Pubrel, first.packet_id), (Publish, second.packet_id),
    ]  # fmt: skip
    again.send(Publish("t", b"mine", 2, packet_id=77, dup=True))
    await rig.flush()
    assert again.one(Pubrec) == Pubrec(77)
    assert rig.core.queue_statistics(rig.engine.registry.queues["r.a"].id).added == 2


@on_rig()
async def test_a_stale_release_does_not_outlive_the_next_message_with_its_id(rig: MqttRig) -> None:
    """A PUBREL sent again for it would have the client forget the id, and take the message twice.

    The release stays noted because the journal is full when PUBCOMP comes and the connection is
    lost before there is room. The crash comes before upkeep has ended the older of the two notes.
    """
    reader = await rig.connected("r", **DURABLE)
    await reader.subscribe("a", 2)
    (notes,) = [queue for name, queue in rig.engine.registry.queues.items() if "out." in name]
    notes.upkeeps = ()
    await publish(rig, "a", b"1", qos=2)
    (first,) = await reader.received()
    reader.send(Pubrec(first.packet_id))
    await rig.flush()
    assert reader.one(Pubrel).packet_id == first.packet_id
    with pytest.MonkeyPatch.context() as full:
        full.setattr(rig.core, "finish", refuse_for_lack_of_room)
        reader.send(Pubcomp(first.packet_id))
        await rig.settle()
        reader.lose()
    reader = rig.client()
    await reader.login("r", **DURABLE)
    assert reader.early == []
    await publish(rig, "a", b"2", qos=2)
    (second,) = await reader.received()
    assert second.packet_id == first.packet_id
    reader.lose()
    await rig.flush()
    assert rig.core.queue_statistics(notes.id).ready == 2, "the release and the message"

    session = rig.hub.sessions.get("r")
    assert session is not None
    session.resumed = session.received = None
    again = rig.client()
    await again.login("r", **DURABLE)
    await rig.flush()
    (got,) = again.early + again.packets()
    assert isinstance(got, Publish)
    assert (got.packet_id, got.payload, got.dup) == (second.packet_id, b"2", True)


@on_rig()
async def test_a_stale_place_does_not_outlive_the_release_of_its_id(rig: MqttRig) -> None:
    """Else the message in that place would be sent under an id that waits for PUBCOMP."""
    reader = await rig.connected("r", **DURABLE)
    await reader.subscribe("a", 2)
    (notes,) = [queue for name, queue in rig.engine.registry.queues.items() if "out." in name]
    notes.upkeeps = ()
    session = rig.hub.sessions.get("r")
    assert session is not None
    rig.hub.exactly_once.note_sent(session, 1, (rig.engine.registry.queues["r.a"].id, 99))
    await publish(rig, "a", b"1", qos=2)
    (first,) = await reader.received()
    assert first.packet_id == 1
    reader.send(Pubrec(1))
    await rig.flush()
    reader.lose()
    await rig.flush()
    assert rig.core.queue_statistics(notes.id).ready == 2, "the stale place and the release"
    session.resumed = None
    await rig.hub.exactly_once.resume(session)
    assert session.resumed is not None
    assert (session.resumed.sent, list(session.resumed.released)) == ({}, [1])


@on_rig()
async def test_a_refusing_pubrec_ends_the_message(rig: MqttRig) -> None:
    reader = await rig.connected("r", **DURABLE)
    await reader.subscribe("a", 2)
    await publish(rig, "a", b"1", qos=2)
    (first,) = await reader.received()
    reader.send(Pubrec(first.packet_id, ReasonCode.QUOTA_EXCEEDED))
    await rig.flush()
    assert reader.packets() == []
    assert rig.core.queue_statistics(rig.engine.registry.queues["r.a"].id).acknowledged == 1
    reader.send(Pubrec(99))
    await rig.flush()
    assert reader.one(Pubrel) == Pubrel(99, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)


@on_rig()
async def test_too_large_for_the_client_is_dropped_and_the_next_comes(rig: MqttRig) -> None:
    reader = await rig.connected("r", properties={Property.MAXIMUM_PACKET_SIZE: 100})
    await reader.subscribe("a")
    await publish(rig, "a", b"x" * 200, b"small")
    assert [each.payload for each in await reader.received()] == [b"small"]
    assert rig.core.queue_statistics(rig.engine.registry.queues["r.a"].id).acknowledged == 1


@on_rig()
async def test_aliases_towards_the_client(rig: MqttRig) -> None:
    reader = await rig.connected("r", properties={Property.TOPIC_ALIAS_MAXIMUM: 1})
    await reader.subscribe("#", 0)
    for topic in ("a", "b", "a", "b"):
        await publish(rig, topic, b"x", qos=0)
    got = await reader.received()
    assert [(each.topic, each.properties.get(Property.TOPIC_ALIAS)) for each in got] == [
        ("a", 1), ("b", None), ("", 1), ("b", None),
    ]  # fmt: skip


@on_rig()
async def test_identifiers_and_what_else_mqtt_5_says(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    await reader.subscribe("a/+", properties={Property.SUBSCRIPTION_IDENTIFIER: [9]})
    old = await rig.connected("old", version=V3)
    await old.subscribe("a/b")
    said = {
        Property.PAYLOAD_FORMAT_INDICATOR: 1,
        Property.MESSAGE_EXPIRY_INTERVAL: 100,
        Property.CONTENT_TYPE: "text/plain",
        Property.RESPONSE_TOPIC: "answers/r.1",
        Property.CORRELATION_DATA: b"\x00\xff",
        Property.USER_PROPERTY: [("k", "1"), ("k", "2"), ("destination", "x"), ("", "y:\n")],
    }
    await publish(rig, "a/b", b"x", properties=said)
    (got,) = await reader.received()
    assert got.properties == said | {Property.SUBSCRIPTION_IDENTIFIER: [9]}
    (got,) = await old.received()
    assert (got.topic, got.payload, got.properties) == ("a/b", b"x", {})


@on_rig()
async def test_no_wildcard_takes_the_brokers_own_topics(rig: MqttRig) -> None:
    reader = await rig.connected("r")
    for topic_filter in ("#", "+/x"):
        await reader.subscribe(topic_filter)
    stomp = rig.peer()
    await stomp.login()
    stomp.send(b"SEND\ndestination:/topic/$own.x\n\nx\0SEND\ndestination:/topic/own.x\n\ny\0")
    assert [each.payload for each in await reader.received()] == [b"y"]


@on_rig()
async def test_no_local(rig: MqttRig) -> None:
    client = await rig.connected("c")
    await client.subscribe("a", no_local=True)
    other = await rig.connected("o")
    for sender in (client, other):
        sender.send(Publish("a", sender.connection.handler.client_id.encode()))  # type: ignore[union-attr]
    assert [each.payload for each in await client.received()] == [b"o"]
    await client.subscribe("a", no_local=False)
    client.send(Publish("a", b"c"))
    assert [each.payload for each in await client.received()] == [b"c"]


@on_rig()
async def test_a_bridge_of_mqtt_3_gets_no_message_of_its_own_and_all_retain_flags(
    rig: MqttRig,
) -> None:
    bridge = await rig.connected("b", V3, is_bridge=True)
    await bridge.subscribe("a")
    await bridge.subscribe("$share/g/s")
    other = await rig.connected("o")
    bridge.send(Publish("a", b"b"), Publish("s", b"shared"))
    other.send(Publish("a", b"o", retain=True), Publish("a", b"p"))
    got = [(each.topic, each.payload, each.retain) for each in await bridge.received()]
    assert sorted(got) == [("a", b"o", True), ("a", b"p", False), ("s", b"shared", False)]


@on_rig()
async def test_a_share_gives_each_message_to_one(rig: MqttRig) -> None:
    workers = [await rig.connected(f"w{number}") for number in range(3)]
    for worker in workers:
        await worker.subscribe("$share/workers/jobs/#")
    await publish(rig, "jobs/a", *(b"%d" % number for number in range(9)))
    got = [await worker.received() for worker in workers]
    assert all(got)
    assert sorted(each.payload for part in got for each in part) == [b"%d" % n for n in range(9)]
    workers[0].lose()
    rest = [each.payload for worker in workers[1:] for each in await worker.received()]
    assert sorted(rest) == sorted(each.payload for each in got[0])
    for worker in workers[1:]:
        worker.send(Disconnect())
    await rig.flush()
    await rig.flush()
    assert not [name for name in rig.engine.registry.queues if name.startswith("$share")]
