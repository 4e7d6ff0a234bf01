"""Messages as the core hands them out to those who encode them in Python.

Owns the form (`abc.Core.deliver`, version 0). Must never know a protocol. Called by both cores and
by the sessions of MQTT and AMQP.

    offset  size
    0       8    sequence in the queue
    8       8    time of arrival, milliseconds since 1970
    16      4    bytes of the body; 0 of a large message, whose body is in a file
    20      2    bytes of the properties
    22      2    how often it was given out and came back
    24      1    priority, 0 to 9
    25      1    protocol of the sender (journal-format.md §3.2)
    26      1    2: the properties contain escapes
    27      1    zero
    28           properties, then body
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

STORED_VERSION: Final = 0
"""What a consumer asks for instead of a version of STOMP."""
STORED_HEAD: Final = struct.Struct("<QQIHHBBBx")
ESCAPED: Final = 2
_PROPERTIES_AT: Final = 20
_PROPERTIES_BYTES: Final = struct.Struct("<H")


class StoredMessage(NamedTuple):
    """A message that a consumer is given.

    Attributes:
        sequence: Its sequence in the queue.
        time_ms: When it came, milliseconds since 1970.
        deliveries: How often it was given out and came back before.
        priority: 0 to 9.
        protocol: Of its sender (journal-format.md §3.2).
        is_escaped: Whether `properties` contain escapes.
        properties: Header lines as stored.
        body: Its body; empty of a large one.
    """

    sequence: int
    time_ms: int
    deliveries: int
    priority: int
    protocol: int
    is_escaped: bool
    properties: bytes
    body: bytes


def stored_head(message: StoredMessage) -> bytes:
    """Return a message in this form, up to its body."""
    return (
        STORED_HEAD.pack(
            message.sequence,
            message.time_ms,
            len(message.body),
            len(message.properties),
            message.deliveries,
            message.priority,
            message.protocol,
            ESCAPED * message.is_escaped,
        )
        + message.properties
    )


def read_stored(data: bytes) -> Iterator[StoredMessage]:
    """Yield the messages that the core has handed out in one go.

    Args:
        data: What it handed out; whole messages.
    """
    at, end = 0, len(data)
    size = STORED_HEAD.size
    while at < end:
        sequence, time_ms, body, properties, deliveries, priority, protocol, flags = (
            STORED_HEAD.unpack_from(data, at)
        )
        at += size
        body_at = at + properties
        yield StoredMessage(
            sequence,
            time_ms,
            deliveries,
            priority,
            protocol,
            bool(flags & ESCAPED),
            data[at:body_at],
            data[body_at : body_at + body],
        )
        at = body_at + body


def with_line(data: bytes, line: bytes) -> bytes:
    """Return messages of which the first has one header line more.

    Args:
        data: Whole messages.
        line: `name:value` and a line feed.
    """
    (first, *_), head_bytes = read_stored(data), STORED_HEAD.size
    rest = data[head_bytes + len(first.properties) :]
    head = bytearray(data[:head_bytes])
    _PROPERTIES_BYTES.pack_into(head, _PROPERTIES_AT, len(first.properties) + len(line))
    return b"%b%b%b%b" % (bytes(head), line, first.properties, rest)
