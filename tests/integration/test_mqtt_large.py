"""Large payloads of MQTT through a whole broker: not in its memory, and nothing left of halves."""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_codec.wire.mqtt import (
    Connect,
    Property,
    Puback,
    Pubcomp,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_wire import MqttWire
from vespiary_testkit.waiting import wait_for
from vespiary_testkit.websocket_peer import handshake

MIB = 1024 * 1024
PIECE = bytes(range(256)) * 4096
NEVER = {Property.SESSION_EXPIRY_INTERVAL: 0xFFFFFFFF}

pytestmark = pytest.mark.ci


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process


class Wire(MqttWire):
    """A connection that sends large packets piece by piece, over TCP or in a WebSocket.

    A packet is one WebSocket message, masked with zeros: as it is.
    """

    def __init__(self, broker: BrokerProcess, *, is_web: bool) -> None:
        super().__init__(broker.port())
        self._is_web = is_web
        self._buffered = b""
        if is_web:
            self.socket.sendall(handshake("mqtt"))
            while b"\r\n\r\n" not in self._buffered:
                self._buffered += self.socket.recv(4096)
            head, _, self._buffered = self._buffered.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101")

    def begin(self, size_bytes: int) -> None:
        """Begin a packet."""
        if self._is_web:
            length = b"\xff" + struct.pack(">Q", size_bytes)
            if size_bytes < 126:
                length = bytes((0x80 | size_bytes,))
            self.socket.sendall(b"\x82" + length + bytes(4))

    def send_bytes(self, data: bytes) -> None:
        self.begin(len(data))
        self.socket.sendall(data)

    def read(self, count: int) -> bytes:
        """Return the next bytes of the socket."""
        while len(self._buffered) < count:
            data = self.socket.recv(MIB)
            assert data, "the broker closed the connection"
            self._buffered += data
        found, self._buffered = self._buffered[:count], self._buffered[count:]
        return found

    def begin_reading(self) -> int:
        """Return the size of the next WebSocket message, of one frame; 0 over TCP."""
        if not self._is_web:
            return 0
        first, length = self.read(2)
        assert first == 0x82, "a whole message"
        wide = {126: 2, 127: 8}.get(length)
        return length if wide is None else int.from_bytes(self.read(wide), "big")

    def packet(self) -> bytes:
        """Return the next packet, a small one."""
        self.begin_reading()
        head = self.read(2)
        return head + self.read(head[1])


def beginning(topic: str, payload_bytes: int, qos: int, packet_id: int) -> bytes:
    """Return a PUBLISH of MQTT 5 up to its payload."""
    fields = struct.pack(">H", len(topic)) + topic.encode() + struct.pack(">H", packet_id) + b"\0"
    left, data = len(fields) + payload_bytes, bytes((0x30 | qos << 1,))
    while left > 0x7F:
        data += bytes((left & 0x7F | 0x80,))
        left >>= 7
    return data + bytes((left,)) + fields


def login(wire: Wire, client_id: str, **more: object) -> None:
    wire.send(Connect(Version.V5, client_id, **more))  # type: ignore[arg-type]
    wire.begin_reading()
    head = wire.read(2)
    wire.read(head[1] if head[1] < 0x80 else 0)
    assert head[0] == 0x20


def files(broker: BrokerProcess) -> list[Path]:
    return list((broker.data / "large-messages").iterdir())


def peak_bytes(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


@pytest.mark.parametrize("is_web", [False, True], ids=["tcp", "websocket"])
def test_a_large_payload_is_in_a_file_and_not_in_memory(
    broker: BrokerProcess, *, is_web: bool
) -> None:
    pieces = 200
    with Wire(broker, is_web=is_web) as reader, Wire(broker, is_web=is_web) as writer:
        login(reader, "r")
        login(writer, "w")
        reader.send(Subscribe(1, (Subscription("big", 1),)))
        assert reader.packet()[0] == 0x90
        Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
        before = peak_bytes(broker)
        head = beginning("big", pieces * MIB, 2, 7)
        writer.begin(len(head) + pieces * MIB)
        writer.socket.sendall(head)
        for _ in range(pieces):
            writer.socket.sendall(PIECE)
        assert writer.packet() == encode(Pubrec(7), Version.V5)
        writer.send(Pubrel(7))
        assert writer.packet() == encode(Pubcomp(7), Version.V5)
        whole = reader.begin_reading()
        head = reader.read(5 + 2 + 3 + 2 + 1)
        assert head[7:10] == b"big"
        assert whole in (0, len(head) + pieces * MIB)
        digest, wanted = hashlib.sha256(), hashlib.sha256()
        for _ in range(pieces):
            digest.update(reader.read(MIB))
            wanted.update(PIECE)
        assert digest.digest() == wanted.digest()
        assert peak_bytes(broker) - before < 64 * MIB
        reader.send(Puback(int.from_bytes(head[10:12], "big")))
        wait_for(lambda: not files(broker), what="the file to go")


@pytest.mark.parametrize("is_web", [False, True], ids=["tcp", "websocket"])
def test_nothing_is_left_of_a_payload_that_does_not_come_to_its_end(
    broker: BrokerProcess, *, is_web: bool
) -> None:
    for end in ("close", "reset"):
        with Wire(broker, is_web=is_web) as writer:
            login(writer, "w")
            head = beginning("big", 100 * MIB, 1, 7)
            writer.begin(len(head) + 100 * MIB)
            writer.socket.sendall(head)
            for _ in range(10):
                writer.socket.sendall(PIECE)
            wait_for(lambda: files(broker), what="a file")
            if end == "reset":
                linger = struct.pack("ii", 1, 0)
                writer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        wait_for(lambda: not files(broker), what="the file to go")


def test_what_was_confirmed_is_there_after_a_crash(broker: BrokerProcess) -> None:
    with Wire(broker, is_web=False) as reader:
        login(reader, "r", properties=NEVER)
        reader.send(Subscribe(1, (Subscription("big", 1),)))
        assert reader.packet()[0] == 0x90
    with Wire(broker, is_web=False) as writer:
        login(writer, "w")
        writer.socket.sendall(beginning("big", MIB, 1, 9) + PIECE)
        assert writer.packet() == encode(Puback(9), Version.V5)
    broker.kill()
    broker.start()
    with Wire(broker, is_web=False) as reader:
        login(reader, "r", clean_start=False, properties=NEVER)
        head = reader.read(4 + 2 + 3 + 2 + 1)
        assert head[6:9] == b"big"
        assert reader.read(MIB) == PIECE
