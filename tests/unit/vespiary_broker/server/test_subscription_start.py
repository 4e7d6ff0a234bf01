"""A subscription takes effect when SUBSCRIBE is processed, before the answer leaves.

In each test another connection publishes in the same turn of the event loop, after SUBSCRIBE (or
attach) was read. Where something has to be written first, the bindings journal is held up: the
message reaches the queue although nothing of the subscription is on the disk yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from vespiary_broker.engine.address_table import STEP_ADDRESSES
from vespiary_codec.wire.amqp import Attach, Source
from vespiary_codec.wire.amqp.values import Symbol, UInt
from vespiary_codec.wire.mqtt import (
    Packet,
    Property,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
)
from vespiary_spec.errors import JournalError, RemoteProtocolError
from vespiary_spec.settings import AddressSettings, Divert, RoutingType
from vespiary_testkit.amqp_peer import RECEIVER, AmqpPeer, with_rig
from vespiary_testkit.mqtt_rig import MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.server_rig import Peer, ServerRig

DEAD = {"#": AddressSettings(dead_letter_address="dead")}
NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}
SEND = b"SEND\ndestination:/topic/a.b\n\n%s\0"
SUBSCRIBE = "SUBSCRIBE\nid:1\ndestination:/topic/{}\nreceipt:r\n{}\n\0"


def hold_bindings(rig: ServerRig) -> asyncio.Event:
    """Hold up the bindings journal until the event is set."""
    rig.bindings.gate = asyncio.Event()
    return rig.bindings.gate


async def stomp_peer(rig: ServerRig, **headers: str) -> Peer:
    peer = rig.peer()
    await peer.login(**headers)
    return peer


async def warm(rig: ServerRig) -> Peer:
    """Return a STOMP client for whose messages address and route exist already.

    Numbers of queues are reserved as well, as the broker does it at its start.
    """
    await rig.engine.registry.configure([])
    writer = await stomp_peer(rig)
    writer.send(SEND % b"before")
    await rig.flush()
    return writer


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "#", "$share/g/a/b"])
@pytest.mark.parametrize("is_durable", [False, True])
def test_mqtt_subscribe(is_durable: bool, topic_filter: str, qos: int) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("c", properties=NEVER if is_durable else {})
        await warm(rig)
        writer = await rig.connected("w")
        writer.send(Publish("a/b", b"before"))
        await rig.flush()
        gate = hold_bindings(rig)
        reader.send(Subscribe(7, (Subscription("other", 0), Subscription(topic_filter, qos))))
        writer.send(Publish("a/b", b"after", qos=1, packet_id=3))
        received: list[Packet] = []
        await rig.flush()
        received += reader.packets()
        if is_durable:
            assert received == [], "SUBACK does not wait for the flush"
        gate.set()
        for _ in range(3):
            await rig.flush()
            received += reader.packets()
        answer, message = received
        assert isinstance(answer, Suback)
        assert isinstance(message, Publish)
        assert message.payload == b"after"

    scenario()


@pytest.mark.parametrize("is_durable", [False, True])
def test_stomp_subscribe(is_durable: bool) -> None:
    @on_rig()
    async def scenario(rig: MqttRig) -> None:
        reader = await stomp_peer(rig, client_id="c")
        writer = await warm(rig)
        gate = hold_bindings(rig)
        name = "durable-subscription-name:d\n" if is_durable else ""
        reader.send(SUBSCRIBE.format("a.b", name).encode())
        writer.send(SEND % b"after")
        await rig.flush()
        frames = reader.frames()
        if is_durable:
            assert frames == [], "RECEIPT does not wait for the flush"
        gate.set()
        for _ in range(3):
            await rig.flush()
            frames += reader.frames()
        assert sorted(frame.command for frame in frames) == ["MESSAGE", "RECEIPT"]

    scenario()


@pytest.mark.parametrize("kind", ["plain", "durable", "shared"])
@with_rig()
async def test_amqp_attach(rig: ServerRig, kind: str) -> None:
    reader = AmqpPeer(rig)
    await reader.open()
    await reader.begin()
    writer = await warm(rig)
    gate = hold_bindings(rig)
    source = Source(
        address="/topic/a.b",
        durable=UInt(0 if kind == "plain" else 2),
        capabilities=(Symbol("shared"),) if kind == "shared" else (),
    )
    attach = Attach(name="s", handle=UInt(1), role=RECEIVER, source=source)
    reader.frame(attach)
    writer.send(SEND % b"after")
    await rig.flush()
    if kind != "plain":
        assert reader.all(Attach) == [], "attach does not wait for the flush"
    gate.set()
    await rig.flush()
    await reader.credit(10)
    await rig.flush()
    assert len(reader.messages()) == 1


@on_rig()
async def test_queue_that_cannot_be_written_is_gone_again(rig: MqttRig) -> None:
    """What was routed to it is dropped with it; the subscription was never confirmed."""
    reader = await rig.connected("c", properties=NEVER)
    await warm(rig)
    writer = await rig.connected("w")
    await rig.flush()
    put = rig.bindings.put

    async def put_no_queue(key: str, value: dict[str, Any]) -> None:
        if key.startswith("queue/"):
            raise JournalError("no room")
        await put(key, value)

    rig.bindings.put = put_no_queue  # type: ignore[method-assign]
    reader.send(Subscribe(7, (Subscription("a/b", 1),)))
    writer.send(Publish("a/b", b"after", qos=1, packet_id=3))
    await rig.flush()
    await rig.flush()
    (code,) = reader.one(Suback).reason_codes
    assert ReasonCode(code).is_failure
    assert "c.a.b" not in rig.engine.registry.queues
    assert rig.bindings.values["mqtt-session/c"]["subscriptions"] == {}
    rig.bindings.put = put  # type: ignore[method-assign]
    assert await reader.subscribe("a/b") == []


@on_rig()
async def test_unwritten_queue_takes_nothing_in_place_of_another_one(rig: MqttRig) -> None:
    """What a confirmed subscription wants stays in its queue: the new one is gone after a crash."""
    reader = await rig.connected("c", properties=NEVER)
    await reader.subscribe("a/#", qos=1)
    writer = await rig.connected("w")
    gate = hold_bindings(rig)
    reader.send(Subscribe(7, (Subscription("a/b", 2),)))
    writer.send(Publish("a/b", b"before", qos=1, packet_id=3))
    await rig.flush()
    queues = rig.engine.registry.queues
    added = {name: rig.core.queue_statistics(queues[name].id).added for name in ("c.a.#", "c.a.b")}
    assert added == {"c.a.#": 1, "c.a.b": 0}
    gate.set()
    await rig.flush()
    await rig.flush()
    writer.send(Publish("a/b", b"after", qos=1, packet_id=4))
    await rig.flush()
    assert rig.core.queue_statistics(queues["c.a.b"].id).added == 1, "the one with the higher QoS"
    payloads = [each.payload for each in reader.packets() if isinstance(each, Publish)]
    assert payloads == [b"before", b"after"]


@on_rig()
async def test_sending_to_the_queue_itself_waits_until_it_is_written(rig: MqttRig) -> None:
    """The sender's RECEIPT depends on the queue, so the queue has to be durable first."""
    reader = await rig.connected("c", properties=NEVER)
    writer = await warm(rig)
    gate = hold_bindings(rig)
    reader.send(Subscribe(7, (Subscription("a/b", 1),)))
    writer.send(b"SEND\ndestination:/topic/a.b::c.a.b\nreceipt:r\n\nbody\0")
    await rig.flush()
    await rig.flush()
    assert writer.frames() == []
    gate.set()
    for _ in range(3):
        await rig.flush()
    (frame,) = writer.frames()
    assert frame.command == "RECEIPT"
    assert [type(packet) for packet in reader.packets()] == [Suback, Publish]


@pytest.mark.parametrize("topic_filter", ["a/b", "a/+", "other"])
@pytest.mark.parametrize(
    ("address", "settings"),
    [
        ("a.b", AddressSettings(send_to_dla_on_no_route=True, dead_letter_address="dla")),
        ("dla", AddressSettings(dead_letter_address="a.b")),
        ("ex", AddressSettings(expiry_address="a.b")),
    ],
)
def test_unwritten_queue_takes_nothing_that_would_be_kept_without_it(
    address: str, settings: AddressSettings, topic_filter: str
) -> None:
    """A crash removes the queue with what it took; without it the message would be kept."""

    @on_rig(settings=lambda: {address: settings})
    async def scenario(rig: MqttRig) -> None:
        reader = await rig.connected("c", properties=NEVER)
        writer = await warm(rig)
        divert = Divert(name="d", address="a.b", forwarding_address="other")
        await rig.engine.registry.diverts.create(divert)
        gate = hold_bindings(rig)
        reader.send(Subscribe(7, (Subscription(topic_filter, 1),)))
        writer.send(SEND % b"before")
        await rig.flush()
        (queue,) = (each for each in rig.engine.registry.queues.values() if each.client_id == "c")
        assert rig.core.queue_statistics(queue.id).added == 0
        gate.set()
        await rig.flush()
        await rig.flush()
        writer.send(SEND % b"after")
        await rig.flush()
        assert rig.core.queue_statistics(queue.id).added == 1

    scenario()


@on_rig(settings=lambda: {"a.b": AddressSettings(send_to_dla_on_no_route=True)} | DEAD)
async def test_sender_waits_until_a_queue_of_the_dead_letter_address_is_written(
    rig: MqttRig,
) -> None:
    """No queue of its address takes the message, and the only one of the other is not written."""
    reader = await rig.connected("c", properties=NEVER)
    writer = await stomp_peer(rig)
    await rig.engine.registry.configure([])
    await rig.engine.registry.create_address("a.b", {RoutingType.MULTICAST})
    await rig.flush()
    gate = hold_bindings(rig)
    reader.send(Subscribe(7, (Subscription("dead", 1),)))
    await rig.flush()
    writer.send(b"SEND\ndestination:/topic/a.b\nreceipt:r\n\nconfirmed\0")
    await rig.flush()
    assert writer.frames() == []
    gate.set()
    received: list[Packet] = []
    for _ in range(3):
        await rig.flush()
        received += reader.packets()
    (frame,) = writer.frames()
    assert frame.command == "RECEIPT"
    (message,) = (each for each in received if isinstance(each, Publish))
    assert message.payload == b"confirmed"
    assert "dead" not in rig.engine.registry.queues


@pytest.mark.parametrize("is_dropped", [True, False])
def test_queue_that_goes_while_senders_are_led_to_it_takes_no_place_of_others(
    is_dropped: bool,
) -> None:
    """Senders are led to it in steps, and it is deleted between two of them."""

    settings = {"#": AddressSettings(send_to_dla_on_no_route=True, dead_letter_address="dead")}

    @on_rig(settings=lambda: settings)
    async def scenario(rig: MqttRig) -> None:
        registry = rig.engine.registry
        await registry.configure([])
        listener = await stomp_peer(rig)
        for number in range(STEP_ADDRESSES + 1):
            listener.send(b"SEND\ndestination:/topic/t.%d\n\nx\0" % number)
        await rig.flush()
        await rig.flush()
        last = f"t.{STEP_ADDRESSES}"
        listener.send(SUBSCRIBE.format(last, "").encode())
        await rig.flush()
        listener.frames()
        gate = hold_bindings(rig)
        queue = await registry.create_queue("q", "t.*", RoutingType.MULTICAST, is_early=True)
        writing = asyncio.ensure_future(registry.write_queue(queue))
        gate.set()
        for _ in range(100):  # a turn of the loop each, while it is led to in steps
            if queue.is_written:
                break
            await asyncio.sleep(0)
        assert queue.is_written
        assert not writing.done()
        if is_dropped:
            registry.drop_queue(queue)
            with pytest.raises(RemoteProtocolError, match="deleted meanwhile"):
                await writing
        else:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing
        writer = await stomp_peer(rig)
        writer.send(f"SEND\ndestination:/topic/{last}\nreceipt:m\n\nconfirmed\0".encode())
        await rig.flush()
        await rig.flush()
        assert [frame.body for frame in listener.frames()] == [b"confirmed"]
        if not is_dropped:
            assert rig.core.queue_statistics(queue.id).added == 1

    scenario()
