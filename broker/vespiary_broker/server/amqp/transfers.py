"""Transfers as bytes: the one frame that is made for each message, without a detour.

Owns the fast way to write them; `vespiary_codec.wire.amqp` is the specification, and a test
compares the two. Must never know a session. Called by `sending`.

Source: AMQP 1.0 (OASIS, 2012) §2.7.5.
"""

from __future__ import annotations

import struct
from typing import Final

_FRAME: Final = struct.Struct(">IBBH")
_SMALL: Final = 255
_HALF: Final = 2**31
_MODULUS: Final = 2**32


def serial_distance(one: int, other: int) -> int:
    """Return how far one serial number is ahead of another, RFC 1982: -2**31 to 2**31 - 1."""
    distance = (one - other) % _MODULUS
    return distance - _MODULUS if distance >= _HALF else distance


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    if value <= _SMALL:
        return bytes([0x52, value])
    return b"\x70" + value.to_bytes(4, "big")


def transfer_frame(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    piece: bytes | memoryview,
    *,
    is_settled: bool,
    is_more: bool,
) -> bytes:
    """Return a transfer.

    Args:
        channel: Of the session.
        handle: Of the link.
        delivery_id: Of the delivery.
        tag: Of the delivery, at most 32 bytes.
        piece: Bytes of the message.
        is_settled: Whether it is settled by this.
        is_more: Whether more of the message follows.
    """
    fields = b"%b%b\xa0%c%b\x43%c%c" % (
        _uint(handle), _uint(delivery_id), len(tag), tag,
        0x41 if is_settled else 0x42, 0x41 if is_more else 0x42,
    )  # fmt: skip
    body = b"\0\x53\x14\xc0%c\x06%b" % (len(fields) + 1, fields)
    return b"".join((_FRAME.pack(8 + len(body) + len(piece), 2, 0, channel), body, piece))


HEAD_BYTES_MAX: Final = 8 + 5 + 1 + 5 + 5 + 2 + 32 + 3
"""What a frame of a transfer has beside its piece, at the most."""


def transfer_frames(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    payload: bytes,
    frame_bytes: int,
    *,
    is_settled: bool,
) -> list[bytes]:
    """Return the transfers of a message.

    Args:
        channel: Of the session.
        handle: Of the link.
        delivery_id: Of the delivery.
        tag: Of the delivery.
        payload: The message.
        frame_bytes: Largest frame that the client takes.
        is_settled: Whether it is settled by this.
    """
    piece_bytes = frame_bytes - HEAD_BYTES_MAX
    if len(payload) <= piece_bytes:
        return [
            transfer_frame(
                channel, handle, delivery_id, tag, payload, is_settled=is_settled, is_more=False
            )
        ]
    view = memoryview(payload)
    return [
        transfer_frame(
            channel, handle, delivery_id, tag, view[at : at + piece_bytes],
            is_settled=is_settled, is_more=at + piece_bytes < len(payload),
        )
        for at in range(0, len(payload), piece_bytes)
    ]  # fmt: skip
