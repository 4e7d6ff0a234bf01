"""PUBLISHes that the core takes by itself: as Python would have them, and no others."""

from __future__ import annotations

import random
from typing import Any

import pytest

from vespiary_broker.engine.core import MessageView
from vespiary_codec.wire.mqtt import (
    Connect,
    Disconnect,
    Property,
    Puback,
    Publish,
    ReasonCode,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from vespiary_spec.settings import AddressSettings, MqttLimits
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.seeds import seed_for

NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
TOPICS = ("a", "v1.2/a", "my topic", "a/*/b", "a%20b", "a/::/b", "x:y", "q\\r", "ü/é", "expires:1")


async def away(rig: MqttRig, *filters: str) -> list[int]:
    """Return numbers of the queues of a client that has subscribed and gone."""
    before = set(rig.engine.registry.queues)
    reader = await rig.connected("away", clean_start=False, properties=NEVER)
    for topic_filter in filters:
        await reader.subscribe(topic_filter, 1)
    reader.send(Disconnect())
    await rig.flush()
    queues = rig.engine.registry.queues
    return [queues[name].id for name in queues if name not in before]


def views(rig: MqttRig, queue: int) -> list[MessageView]:
    return [view._replace(time_ms=0) for view in rig.core.look(queue, 0, 10_000).messages]


class Counting:
    """Counts the frames that the handler is given."""

    def __init__(self, rig: MqttRig) -> None:
        self._rig, self._before = rig, rig.cycle.frames

    @property
    def by_python(self) -> int:
        return self._rig.cycle.frames - self._before


@on_rig()
async def test_the_core_stores_what_python_stores(rig: MqttRig) -> None:
    (queue,) = await away(rig, "#")
    for version in (V3, V5, Version.V3_1):
        client = await rig.connected(f"c{version}", version)
        for topic in TOPICS:
            for qos in (0, 1):
                client.send(Publish(topic, b"x", qos, packet_id=qos and 7))
            await rig.flush()
            slow = views(rig, queue)[-2:]
            count = Counting(rig)
            for qos in (0, 1):
                client.send(Publish(topic, b"x", qos, packet_id=qos and 7, dup=qos > 0))
            await rig.flush()
            assert count.by_python == 0, topic
            fast = views(rig, queue)[-2:]
            assert [each._replace(sequence=0) for each in fast] == [
                each._replace(sequence=0) for each in slow
            ]
            assert [each.packet_id for each in client.all_of(Puback)] == [7, 7]


@on_rig()
async def test_pubacks_of_the_core_leave_behind_the_flush(rig: MqttRig) -> None:
    await away(rig, "a")
    client = await rig.connected()
    client.send(Publish("a", b"x", 1, packet_id=1))
    await rig.flush()
    client.one(Puback)
    count = Counting(rig)
    client.send(*(Publish("a", b"x", 1, packet_id=number) for number in (5, 6)))
    await rig.settle()
    assert client.packets() == []
    request = rig.core.seal_write()
    assert request is not None
    client.send(Publish("a", b"x", 1, packet_id=7))
    rig.core.write_done(request.sequence)
    rig.cycle.on_durable()
    await rig.settle()
    assert [each.packet_id for each in client.all_of(Puback)] == [5, 6]
    await rig.flush()
    assert [each.packet_id for each in client.all_of(Puback)] == [7]
    assert count.by_python == 0


@on_rig()
async def test_packets_keep_their_order_whoever_takes_them(rig: MqttRig) -> None:
    (queue,) = await away(rig, "#")
    client = await rig.connected()
    client.send(Publish("t", b"-1", 1, packet_id=9))
    await rig.flush()
    client.one(Puback)
    pick, sent = random.Random(seed_for("order of packets")), []
    for number in range(300):
        properties: Any = {Property.CONTENT_TYPE: "x"} if pick.random() < 0.2 else {}
        topic = "t" if pick.random() < 0.7 else f"new/{number}"  # has to be made first
        sent.append(Publish(topic, b"%d" % number, 1, packet_id=number + 1, properties=properties))
    data = b"".join(encode(packet, V5) for packet in sent)
    while data:
        step = pick.choice([1, 10, 300, 3000])
        client.send_bytes(data[:step])
        data = data[step:]
        while not client.transport.is_reading_now:
            await rig.flush()
    await rig.flush()
    assert [each.packet_id for each in client.all_of(Puback)] == list(range(1, 301))
    bodies = [rig.core.body(queue, view.sequence) for view in views(rig, queue)]
    assert bodies == [b"-1", *(b"%d" % number for number in range(300))]


@on_rig()
async def test_a_large_packet_in_pieces_arrives_whole(rig: MqttRig) -> None:
    (queue,) = await away(rig, "#")
    client = await rig.connected()
    payload = random.Random(seed_for("large packet")).randbytes(300_000)
    for size in (10, 70_000, 300_000, 40):
        data = encode(Publish("t", payload[:size], 1, packet_id=3), V5)
        for at in range(0, len(data), 9_000):
            client.send_bytes(data[at : at + 9_000])
        await rig.flush()
        client.one(Puback)
        assert rig.core.body(queue, views(rig, queue)[-1].sequence) == payload[:size]


@on_rig(limits=lambda: MqttLimits(receive_maximum=5))
async def test_receive_maximum_holds_for_what_the_core_takes(rig: MqttRig) -> None:
    await away(rig, "#")
    client = await rig.connected()
    client.send(Publish("t", b"x", 1, packet_id=3))
    await rig.flush()
    client.one(Puback)
    client.send(*(Publish("t", b"x", 1, packet_id=number) for number in range(1, 9)))
    await rig.flush()
    *pubacks, last = client.packets()
    assert isinstance(last, Disconnect)
    assert last.reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    assert len(pubacks) <= 6


@on_rig()
async def test_a_subscriber_that_comes_gets_what_is_sent_from_then_on(rig: MqttRig) -> None:
    client = await rig.connected(version=V3)
    client.send(Publish("t", b"x", 1, packet_id=3))
    await rig.flush()
    count = Counting(rig)
    client.send(Publish("t", b"nobody", 1, packet_id=3))
    await rig.flush()
    assert count.by_python == 0
    (queue,) = await away(rig, "t")
    client.send(Publish("t", b"away", 1, packet_id=3))
    await rig.flush()
    assert [rig.core.body(queue, view.sequence) for view in views(rig, queue)] == [b"away"]


@pytest.mark.parametrize("settings", [{"expiry_delay": 5}, {"enable_ingress_timestamp": True}])
def test_what_the_settings_stamp_is_not_left_to_the_core(settings: dict[str, Any]) -> None:
    @on_rig(settings=lambda: {"t": AddressSettings(**settings)})
    async def scenario(rig: MqttRig) -> None:
        await away(rig, "t")
        client = await rig.connected()
        count = Counting(rig)
        for _ in range(3):
            client.send(Publish("t", b"x", 1, packet_id=3))
            await rig.flush()
        assert count.by_python == 3

    scenario()


@on_rig()
async def test_a_subscriber_who_wants_nothing_of_its_own_gets_nothing(rig: MqttRig) -> None:
    client = await rig.connected()
    other = await rig.connected("other")
    await other.subscribe("t")
    wanted = Subscription("t", 1, no_local=True)
    client.send(Subscribe(1, (wanted,), {}))
    await rig.flush()
    client.packets()
    for number in range(4):
        client.send(Publish("t", b"%d" % number, 1, packet_id=3))
        other_sent = len(await other.received())
        assert other_sent == 1
        client.all_of(Puback)


@on_rig()
async def test_what_comes_with_connect_in_one_piece_is_taken(rig: MqttRig) -> None:
    (queue,) = await away(rig, "t")
    client: MqttClientPeer = rig.client()
    publishes = [Publish("t", b"%d" % number, 1, packet_id=number) for number in (1, 2, 3)]
    client.send(Connect(V5, "eager"), *publishes)
    await rig.flush()
    await rig.flush()
    assert [type(each).__name__ for each in client.packets()] == ["Connack", *["Puback"] * 3]
    assert len(views(rig, queue)) == 3
