"""A blocking MQTT client over a socket, which can also misbehave.

Owns the socket; packets are made and read by the codec's own encoder and decoder. For what stock
clients do, tests use `mqtt_client`.
"""

from __future__ import annotations

import socket
from typing import Any, Self, TypeVar

from vespiary_codec.wire.mqtt import (
    Connack,
    Connect,
    MqttDecoder,
    MqttLimits,
    NeedData,
    Packet,
    Version,
    encode,
)
from vespiary_testkit.waiting import WAIT_S

P = TypeVar("P")
_LIMITS = MqttLimits(packet_bytes=64 * 1024 * 1024, topic_bytes=65_535, topic_levels=65_535)


class Ended(AssertionError):  # noqa: N818 (a state of the peer)
    """The broker closed the connection where a packet was expected."""


class MqttWire:
    """One connection to a broker. Use as a context manager.

    Args:
        port: Port on loopback.
        version: Version that it speaks.
    """

    def __init__(self, port: int, version: Version = Version.V5) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.version = version
        self._decoder = MqttDecoder(_LIMITS, role="client", version=version)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def connect(self, client_id: str = "", **said: Any) -> Connack:
        """Log in; return what CONNACK said."""
        self.send(Connect(self.version, client_id, **said))
        return self.receive(Connack)

    def send(self, *packets: Packet) -> None:
        """Send packets, all in one write."""
        self.send_bytes(b"".join(encode(each, self.version) for each in packets))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes."""
        self.socket.sendall(data)

    def receive_any(self) -> Packet:
        """Return the next packet.

        Raises:
            Ended: There is none.
        """
        while isinstance(packet := self._decoder.next_packet(), NeedData):
            try:
                data = self.socket.recv(65_536)
            except ConnectionError:
                data = b""
            if not data:
                raise Ended("the broker closed the connection")
            self._decoder.feed(data)
        return packet

    def receive(self, kind: type[P]) -> P:
        """Return the next packet, which is of a kind."""
        packet = self.receive_any()
        assert isinstance(packet, kind), f"{kind.__name__} was expected: {packet!r:.300}"
        return packet

    def is_ended(self) -> bool:
        """Read to the end of the connection, whatever comes before it."""
        try:
            while self.socket.recv(65_536):
                pass
        except ConnectionError:
            pass
        return True
