"""Header lines of what STOMP, AMQP and others have sent, as MQTT says them.

Owns which of them the core says by itself (`abc_mqtt.CoreMqtt.encode_mqtt`), and how. Never looks
at what MQTT has sent. Used by `mqtt_packets`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from vespiary_codec.wire.stomp.errors import RemoteProtocolError
from vespiary_codec.wire.stomp.escapes import unescape
from vespiary_codec.wire.stomp.properties import NATIVE

_READ: Final = (b"destination", b"persistent")
_ODD: Final = (b"mqtt-retain", b"mqtt-retained")
_ODD_IN_5: Final = (b"expires", b"reply-to", b"mqtt-correlation-data")
_OWN: Final = frozenset(
    {
        b"content-type", b"correlation-id", b"mqtt-payload-format", b"mqtt-qos", b"priority",
        b"receipt", b"content-length", b"transaction", b"message-id", b"subscription", b"ack",
        b"redelivered", b"delivery-count", b"destination-type", b"JMSExpiration", b"_AMQ_DUPL_ID",
        *_READ, *_ODD, *_ODD_IN_5,
    }
)  # fmt: skip
_USER_PREFIX: Final = b"user-property."
_PAYLOAD_FORMAT: Final = 1
_CONTENT_TYPE: Final = 3
_CORRELATION_DATA: Final = 9
_USER_PROPERTY: Final = 38


class Said(NamedTuple):
    """What the lines of a message say.

    Attributes:
        destination: Where it was sent to; None: they do not say that.
        is_persistent: Whether it is persistent.
        properties: Of MQTT 5, as they are written; empty in other versions.
    """

    destination: bytes | None
    is_persistent: bool
    properties: bytes


def read_lines(properties: bytes, version: int, *, is_escaped: bool) -> Said | None:
    """Return what the lines of a message say; None: Python encodes it.

    Args:
        properties: What is stored as its properties.
        version: Of MQTT: 3, 4 or 5.
        is_escaped: Whether the lines have escapes.
    """
    first: dict[bytes, bytes] = {}
    pairs: list[tuple[bytes, bytes]] = []
    for name, value in _lines(properties.partition(NATIVE)[0]):
        if name in _ODD or (name in _ODD_IN_5 and version == 5):
            return None
        if name in _READ and is_escaped and b"\\" in value:
            return None
        if name in _OWN:
            first.setdefault(name, value)
        else:
            pairs.append((name, value))
    made = b""
    if version == 5:
        try:
            made = _properties(properties.partition(NATIVE)[0], first, pairs, is_escaped=is_escaped)
        except (UnicodeDecodeError, RemoteProtocolError):
            return None
    return Said(first.get(b"destination"), first.get(b"persistent") == b"true", made)


def _lines(lines: bytes) -> Iterable[tuple[bytes, bytes]]:
    for line in lines.split(b"\n")[:-1]:
        name, _, value = line.partition(b":")
        yield name, value


def _properties(
    lines: bytes,
    first: dict[bytes, bytes],
    pairs: list[tuple[bytes, bytes]],
    *,
    is_escaped: bool,
) -> bytes:
    """Return properties as they are written.

    Raises:
        UnicodeDecodeError: The lines are no text.
        RemoteProtocolError: They have an escape that means nothing.
    """
    lines.decode()
    for name, value in _lines(lines):  # also of what is not said
        _plain(name, is_escaped=is_escaped)
        _plain(value, is_escaped=is_escaped)
    made = b""
    payload_format = first.get(b"mqtt-payload-format")
    if payload_format in (b"0", b"1"):
        made += bytes([_PAYLOAD_FORMAT, int(payload_format)])
    for code, name in ((_CONTENT_TYPE, b"content-type"), (_CORRELATION_DATA, b"correlation-id")):
        if name in first:
            made += bytes([code]) + _counted(_plain(first[name], is_escaped=is_escaped))
    for name, value in pairs:
        name = _plain(name.removeprefix(_USER_PREFIX), is_escaped=is_escaped)
        made += bytes([_USER_PROPERTY]) + _counted(name)
        made += _counted(_plain(value, is_escaped=is_escaped))
    return made


def _plain(text: bytes, *, is_escaped: bool) -> bytes:
    return unescape(text.decode(), "1.2").encode() if is_escaped and b"\\" in text else text


def _counted(data: bytes) -> bytes:
    return len(data).to_bytes(2, "big") + data


def address_in(destination: bytes, prefixes: tuple[bytes, ...]) -> bytes | None:
    """Return the address in a destination; None: it is none that is text."""
    for prefix in prefixes:
        if prefix and destination.startswith(prefix):
            destination = destination[len(prefix) :]
            break
    try:
        destination.decode()
    except UnicodeDecodeError:
        return None
    return destination
