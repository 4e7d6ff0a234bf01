"""Random packets of MQTT clients: plain ones, unusual ones, and such as no client may send.

Owns the stream's content alone. Used by the fuzz test of the core.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

PUBLISH = 0x30
PUBACK = 0x40


def packet(first: int, rest: bytes, *, padded: int = 0) -> bytes:
    """Return a packet.

    Args:
        first: Type and flags.
        rest: What stands behind the fixed header.
        padded: Bytes that its length has more than it needs.
    """
    length, digits = len(rest), b""
    while True:
        length, digit = length >> 7, length & 0x7F
        if not length and not padded:
            return bytes([first]) + digits + bytes([digit]) + rest
        padded -= not length
        digits += bytes([digit | 0x80])


def publish(
    topic: bytes, payload: bytes, *, flags: int, packet_id: int, properties: bytes
) -> bytes:
    """Return a PUBLISH; `properties` is empty before MQTT 5."""
    identifier = packet_id.to_bytes(2, "big") if flags & 6 else b""
    rest = len(topic).to_bytes(2, "big") + topic + identifier + properties + payload
    return packet(PUBLISH | flags, rest)


class PacketSource:
    """Makes packets.

    Args:
        pick: The run's random numbers.
        version: 3, 4 or 5.
        sent: Packet ids that the client may acknowledge; others fill it.
    """

    def __init__(self, pick: random.Random, version: int, sent: Sequence[int]) -> None:
        self._pick = pick
        self._version = version
        self._sent = sent

    def next(self) -> bytes:
        """Return a packet, or what looks like one."""
        pick = self._pick
        kind = pick.random()
        if kind < 0.6:
            return self._publish()
        if kind < 0.85:
            return self._any_puback()
        if kind < 0.998:
            return self._other()
        return pick.choice(
            [
                pick.randbytes(pick.randint(1, 6)),
                packet(0x10, b"\0\4MQTT\4\2\0\0\0\0"),
                packet(PUBLISH, bytes(40_000)),
                packet(0x61, b"\0\1"),
                b"\x30\xff\xff\xff\xff\x01",
            ]
        )

    def _publish(self) -> bytes:
        pick = self._pick
        topic = pick.choice([b"t/0", b"t/1", b"t/2", b"t/\xc3\xa9"])
        if pick.random() < 0.1:
            topic = pick.choice([b"t/3", b"other", b"", b"t/0\0"])
        size = pick.choice([0, 1, 30, 300, 3000, 9000]) if pick.random() < 0.3 else 40
        properties = b""
        if self._version == 5:
            properties = b"\0" if pick.random() < 0.9 else b"\2\1\1"
        data = publish(
            topic,
            pick.randbytes(size),
            flags=pick.choice([0, 2, 2, 10] if pick.random() < 0.9 else [1, 3, 4, 8, 6, 15]),
            packet_id=pick.randint(1, 65_535) if pick.random() < 0.95 else 0,
            properties=properties,
        )
        if pick.random() < 0.03:  # its topic or its id is not whole
            rest = pick.randrange(0, 6)
            data = packet(data[0], data[2 : 2 + rest])
        return data

    def _any_puback(self) -> bytes:
        pick = self._pick
        packet_id = pick.choice(self._sent) if self._sent else 1
        if pick.random() < 0.1:
            packet_id = pick.choice([0, 1, 32_767, 32_768, 65_535])
        return self.puback(packet_id)

    def puback(self, packet_id: int) -> bytes:
        """Return a PUBACK for an id, in one of its forms."""
        pick = self._pick
        rest = packet_id.to_bytes(2, "big")
        if pick.random() < 0.2:
            rest += pick.choice(
                [b"\0", b"\x10", b"\x80", b"\0\0", b"\x10\0", b"\x87\0", b"\0\2\1\1"]
            )
        return packet(PUBACK, rest, padded=pick.choice([0, 0, 0, 0, 0, 0, 1, 2]))

    def _other(self) -> bytes:
        pick = self._pick
        first = pick.choice([0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0, 0xF0, 0x6A, 0x8A])
        return packet(first, pick.randbytes(pick.choice([0, 2, 5, 200])))
