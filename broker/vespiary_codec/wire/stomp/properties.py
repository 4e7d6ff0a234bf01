r"""The application headers of a message, as the journal stores them.

Owns the canonical form: each header of a SEND frame that belongs to the message as the line
`name:value`, escaped as in STOMP 1.2, ended by a line feed, in the order of the wire, repeats
included. Headers that belong to the transfer, and those that only the broker may set, are not
part of it. Whatever version the producer speaks, equal headers give equal bytes, and a 1.2
connection can be sent them as they are. Must never do I/O. Called by the store's slow lane, by
selectors and by the encoders.

    destination:/queue/a\n
    note:one\ctwo\n               the value is "one:two"

The lines end at the first NUL. Behind it another protocol keeps what lines cannot say
(journal-format.md, section 3.2.1); others read that for the types of values alone.
"""

from __future__ import annotations

import re
from typing import Final

from vespiary_codec.wire.stomp.errors import LocalProtocolError, RemoteProtocolError
from vespiary_codec.wire.stomp.escapes import escape, unescape
from vespiary_codec.wire.stomp.frames import Frame, Headers, Version

TRANSPORT_HEADERS: Final = frozenset(
    {
        "receipt",
        "content-length",
        "transaction",
        "message-id",
        "subscription",
        "ack",
        "redelivered",
        "delivery-count",
    }
)
"""Headers of a SEND frame that are not handed on: the transfer's, or the broker's own."""

BROKER_HEADERS: Final = ("_AMQ_ORIG_", "_AMQ_REJECT_", "_AMQ_ACTUAL_EXPIRY")
"""How headers begin by which the broker says where a message was and why it left. It relies on what
they say, so nothing that a client sends is stored as one of them."""

NATIVE: Final = b"\0"
"""Ends the lines; what is behind it belongs to the sender's protocol."""
_ESCAPE: Final = re.compile(rb"\\(.)")
_VALUE_1_0: Final = {b"\\c": b":", b"\\\\": b"\\"}


def lines_in(properties: bytes) -> bytes:
    """Return the header lines of properties, without what a protocol keeps behind them.

    Args:
        properties: As stored.
    """
    end = properties.find(NATIVE)
    return properties if end < 0 else properties[:end]


def canonical_properties(frame: Frame) -> bytes:
    """Return the properties of a message in their canonical form.

    Args:
        frame: A SEND frame, decoded.
    """
    lines = [
        f"{escape(name, '1.2')}:{escape(value, '1.2')}\n"
        for name, value in frame.headers
        if name not in TRANSPORT_HEADERS and not name.startswith(BROKER_HEADERS)
    ]
    return "".join(lines).encode()


def parse_properties(properties: bytes) -> Headers:
    """Return the headers that canonical properties stand for, in order.

    Args:
        properties: Properties in their canonical form; may be empty.

    Raises:
        LocalProtocolError: They are not in that form: the one who stored them erred, or they were
            damaged.
    """
    properties = lines_in(properties)
    if not properties:
        return []
    if not properties.endswith(b"\n"):
        raise LocalProtocolError("properties do not end in a line feed")
    headers = []
    try:
        for number, line in enumerate(properties[:-1].decode().split("\n"), start=1):
            name, colon, value = line.partition(":")
            if not name or not colon or ":" in value or "\r" in line or "\0" in line:
                raise LocalProtocolError(f"line {number} of the properties is not name:value")
            headers.append((unescape(name, "1.2"), unescape(value, "1.2")))
    except UnicodeDecodeError as error:
        raise LocalProtocolError(f"properties are not UTF-8 at offset {error.start}") from error
    except RemoteProtocolError as error:
        raise LocalProtocolError(f"line {number} of the properties: {error.reason}") from error
    return headers


def properties_for_version(properties: bytes, version: Version) -> bytes:
    r"""Return canonical properties as header lines for a consumer that speaks `version`.

    What stands behind the lines is not for STOMP. 1.2 takes the lines as they are. 1.1 has no
    escape for a carriage return and gets the octet itself, which is data there. 1.0 has no escapes
    at all: backslashes, and colons in values, go out plain. What it cannot say must not let a
    producer forge headers for its consumers: in a value a line feed or a carriage return becomes a
    space, and in a name `\c`, `\n` and `\r` stay as they are.

    Args:
        properties: Properties in their canonical form.
        version: The version of the consumer's connection.
    """
    properties = lines_in(properties)
    if version == "1.2" or b"\\" not in properties:
        return properties
    if version == "1.1":
        return _ESCAPE.sub(lambda escaped: b"\r" if escaped[1] == b"r" else escaped[0], properties)
    lines = []
    for line in properties.split(b"\n"):
        name, colon, value = line.partition(b":")
        name = _ESCAPE.sub(lambda escaped: b"\\" if escaped[1] == b"\\" else escaped[0], name)
        value = _ESCAPE.sub(lambda escaped: _VALUE_1_0.get(escaped[0], b" "), value)
        lines.append(name + colon + value)
    return b"\n".join(lines)
