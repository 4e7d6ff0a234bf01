"""Large payloads of MQTT: from the socket to a file, never whole in memory, and out again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest
from wsproto.events import Ping

from vespiary_broker.server.listener import LargeLimits
from vespiary_broker.store import large_reader
from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_codec.wire.mqtt import (
    Connack,
    Connect,
    Disconnect,
    MqttDecoder,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from vespiary_codec.wire.mqtt.publish_head import HEAD_BYTES_MAX
from vespiary_spec.settings import MqttLimits, Permission, SecuritySettings
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk
from vespiary_testkit.large_rig import FOLDER
from vespiary_testkit.memory_journal import MemoryJournal
from vespiary_testkit.mqtt_rig import V3, V5, MqttClientPeer, MqttRig
from vespiary_testkit.websocket_rig import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

LIMITS = LargeLimits(over_bytes=1000, record_bytes_max=100_000, size_bytes_max=200_000)
PAYLOAD = bytes(range(256)) * 120
ALL = {permission.value: ("anonymous",) for permission in Permission}


class LargeMqttRig(MqttRig):
    """A server whose large payloads go to a disk in memory."""

    def __init__(self, *, limits: MqttLimits | None = None) -> None:
        self.disk = MemoryDisk(capacity_bytes=1 << 30)
        options = LargeMessageOptions(directory=FOLDER, retry_s=0.001)
        self.large = LargeMessages(options, self.disk, InlineExecutor())
        super().__init__(
            limits=limits,
            journal=MemoryJournal(is_automatic=True, files=4),
            large=self.large,
            large_limits=LIMITS,
        )

    async def flushed(self) -> None:
        for _ in range(8):
            await self.flush()


def on_large_rig(
    **limits: Any,
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @wraps(test)
        def run() -> None:
            async def scenario() -> None:
                rig = LargeMqttRig(limits=MqttLimits(**limits) if limits else None)
                await test(rig)
                await rig.close()

            product_loop.run(scenario())

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for its arguments
        return run

    return decorate


def held_bytes(client: MqttClientPeer) -> int:
    """Return how many bytes of what was received are in memory."""
    intake: Any = client.connection.handler._intake  # type: ignore[union-attr]
    private = 0 if intake._private is None else intake._private.end - intake._private.start
    begun = 0 if intake._receiving is None else len(intake._receiving.begun or b"")
    return private + len(intake._tail) + intake._decoder.buffered_bytes + begun


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_goes_to_a_file_as_it_comes(qos: int, version: Version, size: int) -> None:
    payload = PAYLOAD if size > 1 else PAYLOAD[:1500]

    @on_large_rig()
    async def scenario(rig: LargeMqttRig) -> None:
        reader, writer = await rig.connected("r", version), await rig.connected("w", version)
        await reader.subscribe("t/#", 2)
        properties = {Property.CONTENT_TYPE: "x/y"} if version is V5 else {}
        packet = Publish("t/1", payload, qos, packet_id=qos and 5, properties=properties)
        data = encode(packet, version) + encode(Publish("t/2", b"after", 1, packet_id=6), version)
        most = 0
        for piece in pieces(data, size):
            writer.send_bytes(piece)
            most = max(most, held_bytes(writer))
        if 1 < size < 4096:
            assert most < 1200, "no more than is no large payload yet"
        await rig.flushed()
        answers = [type(each) for each in writer.packets()]
        assert answers == [[], [Puback], [Pubrec]][qos] + [Puback]
        first, second = await reader.received()
        assert (first.topic, first.payload, first.qos) == ("t/1", payload, qos)
        assert first.properties.get(Property.CONTENT_TYPE) == properties.get(Property.CONTENT_TYPE)
        assert second.payload == b"after"
        assert rig.large.statistics().received == 1

    scenario()


@on_large_rig()
async def test_what_comes_of_a_large_payload_is_on_the_disk_and_not_in_memory(
    rig: LargeMqttRig,
) -> None:
    writers = [await rig.connected(f"w{number}") for number in range(20)]
    data = encode(Publish("t", PAYLOAD, 1, packet_id=1), V5)
    for writer in writers:
        writer.send_bytes(data[:-1])
    await rig.settle()
    assert max(map(held_bytes, writers)) == 0
    assert rig.disk.used_bytes() >= 20 * (len(PAYLOAD) - 1)
    for writer in writers:
        writer.lose()
    await rig.flushed()
    assert rig.disk.used_bytes() == 0, "nothing is left of what did not come whole"
    assert not rig.engine.registry.queues


@on_large_rig()
async def test_several_large_payloads_in_one_read(rig: LargeMqttRig) -> None:
    reader, writer = await rig.connected("r"), await rig.connected("w")
    await reader.subscribe("t", 0)
    packets = [Publish("t", bytes((n,)) * 3000, 1, packet_id=n + 1) for n in range(6)]
    writer.send(*packets)
    await rig.flushed()
    await rig.flushed()
    assert [each.packet_id for each in writer.all_of(Puback)] == [1, 2, 3, 4, 5, 6]
    assert [each.payload for each in await reader.received()] == [p.payload for p in packets]


@on_large_rig()
async def test_a_payload_of_qos_2_that_came_before_is_passed_over(rig: LargeMqttRig) -> None:
    reader, writer = await rig.connected("r"), await rig.connected("w")
    await reader.subscribe("t", 0)
    packet = Publish("t", PAYLOAD, 2, packet_id=5)
    writer.send(packet)
    await rig.flushed()
    assert [type(each) for each in writer.packets()] == [Pubrec]
    packet.dup = True
    writer.send(packet, Pubrel(5))
    await rig.flushed()
    assert [type(each) for each in writer.packets()] == [Pubrec, Pubcomp]
    assert [len(each.payload) for each in await reader.received()] == [len(PAYLOAD)]
    assert rig.large.statistics().received == 1


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize("is_retained", [True, False])
def test_what_is_refused_never_goes_to_the_disk(version: Version, is_retained: bool) -> None:
    @on_large_rig()
    async def scenario(rig: LargeMqttRig) -> None:
        rig.engine.registry.permissions.replace(
            {
                "#": SecuritySettings(**ALL),
                "secret": SecuritySettings(**{**ALL, "send": ()}),
            }
        )
        rig.cycle.permissions_changed()
        client = await rig.connected("w", version)
        topic = "open" if is_retained else "secret"
        data = encode(Publish(topic, PAYLOAD, 1, is_retained, packet_id=3), version)
        client.send_bytes(data[:2000])
        await rig.settle()
        assert rig.disk.used_bytes() == 0
        assert client.is_ended is (version is V3), "as soon as it is known"
        if version is V3:
            return
        client.send_bytes(data[2000:])
        client.send(Publish("other", b"x", 1, packet_id=4))
        await rig.flushed()
        first, second = client.all_of(Puback)
        assert first.packet_id == 3
        assert first.reason_code.is_failure
        assert (first.reason_code is ReasonCode.NOT_AUTHORIZED) is not is_retained
        assert not second.reason_code.is_failure
        assert rig.disk.used_bytes() == 0

    scenario()


@on_large_rig(maximum_packet_size=100_000)
async def test_a_packet_beyond_the_limit_ends_the_connection_at_its_header(
    rig: LargeMqttRig,
) -> None:
    client = await rig.connected()
    client.send_bytes(encode(Publish("t", bytes(100_000), 1, packet_id=1), V5)[:10])
    await rig.settle()
    assert client.one(Disconnect).reason_code is ReasonCode.PACKET_TOO_LARGE


@on_large_rig()
async def test_clients_are_told_what_goes_to_files(rig: LargeMqttRig) -> None:
    client = rig.client()
    answer = await client.login("c")
    assert isinstance(answer, Connack)
    told = answer.properties[Property.MAXIMUM_PACKET_SIZE]
    assert told == LIMITS.size_bytes_max + HEAD_BYTES_MAX
    client.send(Publish("t", bytes(LIMITS.size_bytes_max + 1), 1, packet_id=1))
    client.send(Publish("t", bytes(LIMITS.size_bytes_max), 1, packet_id=2))
    await rig.flushed()
    first, second = client.all_of(Puback)
    assert first.reason_code.is_failure
    assert not second.reason_code.is_failure


@on_large_rig()
async def test_no_client_is_told_more_than_paho_takes(rig: LargeMqttRig) -> None:
    rig.listener.large = replace(LIMITS, size_bytes_max=1 << 40)
    answer = await rig.client().login("c")
    assert isinstance(answer, Connack)
    assert answer.properties[Property.MAXIMUM_PACKET_SIZE] == 268_435_455


@on_large_rig()
async def test_other_large_packets_are_collected_and_the_core_goes_on(rig: LargeMqttRig) -> None:
    reader, client = await rig.connected("r"), await rig.connected()
    await reader.subscribe("y", 0)
    filters = tuple(Subscription("x" * 90 + f"/{number}", 1) for number in range(60))
    for piece in pieces(encode(Subscribe(7, filters), V5), 1000):
        client.send_bytes(piece)
    await rig.flushed()
    assert len(client.one(Suback).reason_codes) == 60
    for number in range(2):
        client.send(Publish("y", b"plain", 1, packet_id=number + 1))
        await rig.flushed()
    frames = rig.cycle.frames
    client.send(Publish("y", b"plain", 1, packet_id=3))
    await rig.flushed()
    assert len(client.all_of(Puback)) == 3
    assert rig.cycle.frames == frames, "the core takes plain ones again"
    client.send_bytes(bytes((0x82, 0xFF, 0xFF, 0xFF, 0x7F)))
    await rig.settle()
    assert client.all_of(Disconnect)[0].reason_code is ReasonCode.PACKET_TOO_LARGE


@pytest.mark.parametrize(
    ("beginning", "code"),
    [
        (b"\x00\x01t\x00\x01" + b"\xff\xff\x03", ReasonCode.MALFORMED_PACKET),
        (b"\x00\x01+\x00\x01\x00", ReasonCode.TOPIC_NAME_INVALID),
        (b"\x00\x01t\x00\x00\x00", ReasonCode.PROTOCOL_ERROR),
    ],
)
def test_what_is_wrong_with_a_beginning_is_said_before_the_payload(
    beginning: bytes, code: ReasonCode
) -> None:
    @on_large_rig()
    async def scenario(rig: LargeMqttRig) -> None:
        client = await rig.connected()
        length = 30_000 if code is ReasonCode.MALFORMED_PACKET else 180_000
        header = bytes((0x32, length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14))
        client.send_bytes(header + beginning)
        await rig.settle()
        assert client.one(Disconnect).reason_code is code
        assert rig.disk.used_bytes() == 0

    scenario()


@on_large_rig()
async def test_a_client_that_takes_less_gets_the_next_message(rig: LargeMqttRig) -> None:
    reader = await rig.connected("r", properties={Property.MAXIMUM_PACKET_SIZE: 5000})
    writer = await rig.connected("w")
    await reader.subscribe("t", 1)
    writer.send(Publish("t", PAYLOAD, 1, packet_id=1), Publish("t", bytes(3000), 1, packet_id=2))
    await rig.flushed()
    await rig.flushed()
    (got,) = await reader.received()
    assert got.payload == bytes(3000)


@on_large_rig()
async def test_a_confirm_follows_the_flush_of_the_file(rig: LargeMqttRig) -> None:
    client, in_thread, is_open = await rig.connected(), rig.large.in_thread, asyncio.Event()

    async def held(work: Any) -> Any:
        await is_open.wait()
        return await in_thread(work)

    rig.large.in_thread = held  # type: ignore[method-assign]
    client.send(Publish("t", PAYLOAD, 1, packet_id=1))
    await rig.flushed()
    assert client.packets() == [], "the file is not flushed"
    is_open.set()
    await rig.flushed()
    client.one(Puback)


def test_a_large_payload_leaves_a_websocket_in_one_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paho C loses messages that come in fragments; a ping is answered behind the frame."""
    monkeypatch.setattr(large_reader, "PIECE_BYTES", 8192)

    @on_large_rig()
    async def scenario(rig: LargeMqttRig) -> None:
        client = Client(rig, "mqtt")
        client.arrive(client.web.opening)
        client.look()
        login = encode(Connect(V5, "c"), V5)
        client.message(login + encode(Subscribe(1, (Subscription("t", 1),)), V5))
        await rig.flushed()
        client.look()
        writer, in_thread, is_open = await rig.connected("w"), rig.large.in_thread, asyncio.Event()
        pieces_read = 0

        async def held(work: Any) -> Any:
            nonlocal pieces_read
            pieces_read += getattr(work, "__name__", "") == "_read"
            if pieces_read == 2:
                await is_open.wait()
            return await in_thread(work)

        rig.large.in_thread = held  # type: ignore[method-assign]
        writer.send(Publish("t", PAYLOAD, 1, packet_id=1))
        while pieces_read < 2:
            await rig.flush()
        for word in (b"first", b"second"):
            client.arrive(client.web.send(Ping(word)))
        is_open.set()
        await rig.flushed()
        client.look()
        assert client.web.pongs == [b"second"]
        data, fragments = client.web.messages[-1]
        assert fragments == 1
        assert isinstance(data, bytes)
        decoder = MqttDecoder(role="client", version=V5)
        decoder.feed(data)
        packet = decoder.next_packet()
        assert isinstance(packet, Publish)
        assert packet.payload == PAYLOAD

    scenario()
