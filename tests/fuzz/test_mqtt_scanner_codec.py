"""MQTT's scanner against the codec: the same packets, however the bytes were cut.

What the scanner takes has to be what the codec makes of the same bytes, what it leaves has to be
one whole packet, and where it says ODD the codec has to refuse.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from vespiary_codec.stored_message import STORED_VERSION, read_stored
from vespiary_codec.wire.mqtt import (
    NEED_DATA,
    MqttDecoder,
    MqttLimits,
    Packet,
    Publish,
    RemoteProtocolError,
    Version,
)
from vespiary_native import abc_mqtt
from vespiary_native.abc import AckMode, Core, ScanStatus
from vespiary_testkit.core_rig import IMPLEMENTATIONS
from vespiary_testkit.mqtt_stream import PacketSource
from vespiary_testkit.seeds import seed_for

TOPICS = (b"t/0", b"t/1", b"t/\xc3\xa9")
BUFFER_BYTES = 1 << 18
PACKET_BYTES = 20_000


def decoded(data: bytes, version: Version) -> Iterator[Packet | None]:
    """Yield what the codec makes of a stream; None where it refuses."""
    decoder = MqttDecoder(MqttLimits(packet_bytes=PACKET_BYTES), version=version)
    decoder.feed(data)
    try:
        while not isinstance(found := decoder.next_packet(), type(NEED_DATA)):
            yield found
    except RemoteProtocolError:
        yield None


class Scanned:
    """A core that scans a stream in pieces."""

    def __init__(self, make: Callable[..., Core], version: Version) -> None:
        core = self.core = make(
            slab_bytes=1 << 21, block_bytes=1 << 18, slabs_max=64, record_bytes_max=100_000
        )
        core.add_file(1, 7, 1 << 25)
        core.start(1, 0, 0)
        core.open_queue(1)
        self.version = version
        self.memory = bytearray(BUFFER_BYTES)
        self.buffer = core.attach_buffer(self.memory)
        self.handle = core.open_connection()
        core.set_ready_mqtt(
            self.handle, version, abc_mqtt.MqttLimits(PACKET_BYTES, PACKET_BYTES, 65_535)
        )
        route = core.open_route([1])
        for topic in TOPICS:
            core.teach_mqtt(self.handle, topic, b"destination:%b\n" % topic, route)

    def run(self, data: bytes, pick: random.Random) -> list[Packet | None]:
        """Return the packets that were left, and None at the end for what is odd."""
        self.memory[: len(data)] = data
        left: list[Packet | None] = []
        at = end = 0
        while end < len(data):
            end = min(len(data), end + pick.choice([1, 2, 7, 100, 5000, BUFFER_BYTES]))
            while True:
                status, at, detail = self.core.scan_mqtt(self.handle, self.buffer, at, end)
                if status == ScanStatus.ODD:
                    assert [*decoded(data[at:], self.version)][:1] == [None]
                    return [*left, None]
                if status == ScanStatus.NEED_DATA:
                    break
                assert status == ScanStatus.FRAME
                (packet,) = decoded(data[at : at + detail], self.version)
                left.append(packet)
                at += detail
                if packet is None:
                    return left
        return left

    def taken(self) -> list[tuple[str, bytes, int]]:
        """Return topic, payload and QoS of what was taken."""
        core = self.core
        while (request := core.seal_write()) is not None:
            core.write_done(request.sequence)
        consumer = core.open_consumer(self.handle, 1, AckMode.AUTO, 1, b"", STORED_VERSION)
        _, _, data = core.deliver(consumer, 1 << 20, 1 << 30)
        found = []
        for message in read_stored(data):
            line, *rest = message.properties.split(b"\n")
            assert rest in ([b""], [b"persistent:true", b""])
            topic = line.removeprefix(b"destination:").decode()
            found.append((topic, message.body, len(rest) - 1))
        return found


def is_plain(packet: Packet) -> bool:
    return (
        isinstance(packet, Publish)
        and packet.qos < 2
        and not (packet.retain or packet.properties)
        and packet.topic.encode() in TOPICS
    )


@pytest.mark.parametrize("case", range(60))
@pytest.mark.parametrize("which", IMPLEMENTATIONS)
def test_scanner_and_codec_agree(which: str, case: int) -> None:
    pick = random.Random(seed_for(f"mqtt scanner {case}"))
    version = Version(pick.choice([3, 4, 5]))
    source = PacketSource(pick, int(version), [])
    data = b"".join(source.next() for _ in range(pick.choice([3, 30])))
    if pick.random() < 0.3:
        at = pick.randrange(len(data))
        data = data[:at] + pick.randbytes(1) + data[at + 1 :]
    scanned = Scanned(IMPLEMENTATIONS[which][0], version)
    left = scanned.run(data, pick)
    expected = [*decoded(data, version)]
    assert [each for each in expected if each is None or not is_plain(each)] == left
    plain = [each for each in expected if each is not None and is_plain(each)]
    assert scanned.taken() == [
        (each.topic, each.payload, each.qos) for each in plain if isinstance(each, Publish)
    ]
