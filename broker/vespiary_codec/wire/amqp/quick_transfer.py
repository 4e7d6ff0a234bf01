"""Transfers as stock clients write them, read without the general decoder.

Owns a short way for the one frame that comes for each message. Must never read a transfer otherwise
than `composites.read` does: what looks unusual is left to that, and a test compares the two. Called
by `frames`.

Source: AMQP 1.0 (OASIS, 2012) §2.7.5.
"""

from __future__ import annotations

from typing import Any, Final

from vespiary_codec.wire.amqp.performatives import Transfer
from vespiary_codec.wire.amqp.values import UInt

_HEAD: Final = b"\0\x53\x14\xc0"
_FIELDS_MAX: Final = 6
_NULL: Final = 0x40
_BOOLEANS: Final = {0x40: None, 0x41: True, 0x42: False}


def read_transfer(data: bytes) -> tuple[Transfer, bytes] | None:
    """Return a transfer and what stands behind it; None: it is another frame, or an unusual one.

    Args:
        data: The body of a frame.
    """
    if not data.startswith(_HEAD) or len(data) < 8:
        return None
    end, count = 5 + data[4], data[5]
    if not 1 <= count <= _FIELDS_MAX or end > len(data):
        return None
    try:
        at, handle = _uint(data, 6)
        values: list[Any] = []
        if count > 1:
            at, delivery_id = _uint(data, at)
            values.append(delivery_id)
        if count > 2:
            at, tag = _tag(data, at)
            values.append(tag)
        if count > 3:
            at, message_format = _uint(data, at)
            values.append(message_format)
        while len(values) < count - 1:
            values.append(_BOOLEANS[data[at]])
            at += 1
    except (KeyError, IndexError, ValueError):
        return None
    if at != end or handle is None:
        return None
    values += [None] * (_FIELDS_MAX - 1 - len(values))
    transfer = Transfer(
        handle=handle,
        delivery_id=values[0],
        delivery_tag=values[1],
        message_format=values[2],
        settled=values[3],
        more=bool(values[4]),
    )
    return transfer, data[end:]


def _uint(data: bytes, at: int) -> tuple[int, UInt | None]:
    code = data[at]
    if code == 0x43:
        return at + 1, UInt(0)
    if code == 0x52:
        return at + 2, UInt(data[at + 1])
    if code == 0x70 and at + 5 <= len(data):
        return at + 5, UInt(int.from_bytes(data[at + 1 : at + 5], "big"))
    if code == _NULL:
        return at + 1, None
    raise ValueError


def _tag(data: bytes, at: int) -> tuple[int, bytes | None]:
    code = data[at]
    if code == _NULL:
        return at + 1, None
    if code != 0xA0:
        raise ValueError
    end = at + 2 + data[at + 1]
    if end > len(data):
        raise ValueError
    return end, data[at + 2 : end]
