"""A stored message on its way out as one of AMQP 1.0, whoever sent it.

Owns the sections that a client is given: those of a sender of AMQP as it wrote them, those of
others made from the header lines. Pure: the clock is an argument. Called by `sending`; `storing` is
the way in, and has the table.

What STOMP and MQTT send has a body of bytes. Where its `content-type` or its payload format says
that it is text, the body is an amqp-value with a string, else a data section. What a field cannot
say (a `timestamp` that is none) is an application property.

Clients of JMS have queues and topics, and `reply-to` is a name alone: they are told which of both
it is by the annotation of Qpid JMS, x-opt-jms-reply-to. Without it they take it for what they read
the message from, and their answer to a topic would go to a queue that nobody reads.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from functools import lru_cache
from typing import Any, Final

from vespiary_broker.engine.names import PREFIXES
from vespiary_broker.engine.original_headers import ORIGINAL_HEADERS
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.server.amqp.storing import (
    APPLICATION_PREFIX,
    BINARY_CORRELATION,
    PROTOCOL,
    TEXT_BODY,
    id_of,
)
from vespiary_codec.stored_message import StoredMessage
from vespiary_codec.wire.amqp import (
    Decoder,
    Header,
    MessageProperties,
    ProtocolError,
    Section,
    encode_section,
)
from vespiary_codec.wire.amqp.native_part import FIRST_ACQUIRER, NATIVE, NATIVE_VERSION
from vespiary_codec.wire.amqp.values import Byte, Symbol, Timestamp, UByte, UInt
from vespiary_codec.wire.stomp.errors import RemoteProtocolError
from vespiary_codec.wire.stomp.escapes import unescape
from vespiary_codec.wire.stomp.properties import NATIVE as END_OF_LINES
from vespiary_codec.wire.stomp.properties import TRANSPORT_HEADERS, lines_in

REJECTED: Final = ("_AMQ_REJECT_CONDITION", "_AMQ_REJECT_DESCRIPTION")
"""Lines of a dead letter that say why its consumer has rejected it."""
_ANNOTATED: Final = {
    **{name.decode(): f"x-opt-{name.decode()[5:].replace('_', '-')}" for name in ORIGINAL_HEADERS},
    REJECTED[0]: "x-opt-reject-condition",
    REJECTED[1]: "x-opt-reject-description",
    "ingress-timestamp": "x-opt-ingress-time",
    "AMQ_SCHEDULED_TIME": "x-opt-delivery-time",
    "mqtt-qos": "x-opt-mqtt-qos",
    "mqtt-retain": "x-opt-mqtt-retain",
    "mqtt-retained": "x-opt-mqtt-retained",
}
"""Lines that the broker adds, or that another protocol alone knows, as annotations."""
REPEATS: Final = "x-opt-repeated-properties"
"""Annotation that has the further values of names that stand more than once: a map of lists."""
_ANSWER_KIND: Final = Symbol("x-opt-jms-reply-to")
_QUEUE: Final = Byte(0)
_TOPIC: Final = Byte(1)
_MQTT: Final = 2
"""MQTT's number in the journal: where it wants its answer is a topic."""
_BROKERS: Final = (b"_AMQ_ORIG_", b"_AMQ_REJECT_", b"ingress-timestamp:", b"_AMQ_ACTUAL_EXPIRY:")
_ANNOTATIONS: Final = (Section.MESSAGE_ANNOTATIONS, "amqp:message-annotations:map")
_NUMBERS: Final = ("ingress-timestamp", "AMQ_SCHEDULED_TIME", "mqtt-qos")
_TEXT_TYPES: Final = ("text/",)
_FIELDS: Final = frozenset(
    {
        "destination", "persistent", "priority", "expires", "JMSExpiration", "JMSMessageID",
        "correlation-id", "reply-to", "type", "content-type", "content-encoding", "timestamp",
        "JMSXGroupID", "JMSXGroupSeq", "JMSXUserID", "amqp-body", BINARY_CORRELATION, TEXT_BODY[0],
    }
) | TRANSPORT_HEADERS  # fmt: skip
_Where = tuple[str, str, bool]
"""Prefixes of queues and of topics, and whether the message came by MQTT."""
_UINT_MAX: Final = 2**32 - 1
_PATTERN_LINES_MAX: Final = 2048
"""Longest lines whose sections are kept for the next message with the same ones."""


def payload_of(
    message: StoredMessage,
    queue_id: int,
    now_ms: int,
    annotations: dict[Any, Any] | None = None,
    *,
    prefixes: tuple[str, str] = PREFIXES,
) -> bytes:
    """Return a message as it goes out.

    Args:
        message: The message.
        queue_id: Its queue, for its id where its sender gave it none.
        now_ms: Milliseconds since 1970.
        annotations: Those that a client has changed.
        prefixes: Of queues and of topics, as the client knows them.
    """
    size_bytes = len(message.body)
    head = head_of(message, queue_id, now_ms, size_bytes, annotations, prefixes=prefixes)
    return head + _tail_of(message)


def head_of(
    message: StoredMessage,
    queue_id: int,
    now_ms: int,
    body_bytes: int,
    annotations: dict[Any, Any] | None = None,
    *,
    prefixes: tuple[str, str] = PREFIXES,
) -> bytes:
    """Return what stands before the bytes of a body.

    Args:
        message: The message; its body is not looked at if it has none.
        queue_id: Its queue.
        now_ms: Milliseconds since 1970.
        body_bytes: Bytes of its body.
        annotations: Those that a client has changed.
        prefixes: Of queues and of topics, as the client knows them.
    """
    lines = lines_in(message.properties)
    header = _header(lines, message, now_ms)
    native = _native_of(message)
    if native is not None:
        section, code, before, _ = native
        if annotations or any(mark in lines for mark in _BROKERS):
            added = _annotations_of(_headers_in(lines)) | (annotations or {})
            before = _annotated(before, added) if added else before
        return header + before + _value_head(section, code, body_bytes)
    where = (*prefixes, message.protocol == _MQTT)
    return header + _converted(lines, message, queue_id, annotations or {}, body_bytes, where)


def tail_of(message: StoredMessage) -> bytes:
    """Return what stands behind the bytes of a body: the footer."""
    native = _native_of(message)
    return b"" if native is None else native[3]


def _native_of(message: StoredMessage) -> tuple[int, int, bytes, bytes] | None:
    """Return what is kept of a message of AMQP: section and code of its body, and other sections.

    Returns:
        None: it is another's, or came into the journal by another way.
    """
    if message.protocol != PROTOCOL:
        return None
    native = message.properties.partition(END_OF_LINES)[2]
    if len(native) < NATIVE.size:
        return None
    version, section, code, _, before_bytes = NATIVE.unpack_from(native)
    footer_at = NATIVE.size + before_bytes
    if version != NATIVE_VERSION or footer_at > len(native):
        return None
    return section, code, native[NATIVE.size : footer_at], native[footer_at:]


def _headers_in(lines: bytes) -> list[tuple[str, str]]:
    """Return headers as they are, also where whoever stored them did it wrong."""
    found = []
    for line in lines.decode(errors="replace").split("\n"):
        name, colon, value = line.partition(":")
        if name and colon:
            found.append((_plain(name), _plain(value)))
    return found


def _plain(text: str) -> str:
    try:
        return unescape(text, "1.2") if "\\" in text else text
    except RemoteProtocolError:
        return text  # an escape that nobody knows


def _tail_of(message: StoredMessage) -> bytes:
    return message.body + tail_of(message)


def _value_head(section: int, code: int, body_bytes: int) -> bytes:
    """Return a section's begin, up to the bytes of its value."""
    if not section:
        return b""
    start = bytes([0, 0x53, section, code])
    if code in (0xA0, 0xA1):
        return start + body_bytes.to_bytes(1, "big")
    return start + body_bytes.to_bytes(4, "big") if code in (0xB0, 0xB1) else start


# --- header ---------------------------------------------------------------------------------------


def _header(lines: bytes, message: StoredMessage, now_ms: int) -> bytes:
    is_durable = lines.startswith(b"persistent:true\n") or b"\npersistent:true\n" in lines
    ttl = 0
    if b"expires:" in lines:
        expires = value_of(lines, b"expires") or ""
        if expires.isascii() and expires.isdigit() and expires != "0":
            ttl = min(max(int(expires) - now_ms, 1), _UINT_MAX)
    is_first = not message.deliveries and _may_be_first(message)
    return _header_of(is_durable, message.priority, ttl, message.deliveries, is_first)


def _may_be_first(message: StoredMessage) -> bool:
    """Return whether its sender set first-acquirer; those of other protocols cannot."""
    native = message.properties.partition(END_OF_LINES)[2]
    if message.protocol != PROTOCOL or len(native) < NATIVE.size:
        return False
    return bool(NATIVE.unpack_from(native)[3] & FIRST_ACQUIRER)


@lru_cache(1024)
def _header_of(is_durable: bool, priority: int, ttl: int, deliveries: int, is_first: bool) -> bytes:
    header = Header(
        durable=is_durable,
        priority=UByte(priority),
        ttl=UInt(ttl) if ttl else None,
        first_acquirer=is_first,
        delivery_count=UInt(deliveries),
    )
    return encode_section(Section.HEADER, header)


# --- annotations that the broker adds -------------------------------------------------------------


def _annotated(before: bytes, added: dict[Any, Any]) -> bytes:
    """Return the sections before a body with annotations added to them.

    They stay as they came if this side cannot write again what their sender wrote.
    """
    decoder = Decoder(before)
    kept: dict[Any, Any] = {}
    rest = before
    try:
        if before and decoder.descriptor() in _ANNOTATIONS:
            kept = decoder.value()
            rest = before[decoder.at :]
        return encode_section(Section.MESSAGE_ANNOTATIONS, kept | added) + rest
    except ProtocolError:
        return before


def _annotations_of(headers: list[tuple[str, str]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, value in headers:
        as_annotation = _ANNOTATED.get(name)
        if as_annotation is not None:
            is_number = name in _NUMBERS and value.isascii() and value.isdigit()
            found.setdefault(Symbol(as_annotation), int(value) if is_number else value)
    return found


# --- what STOMP and MQTT have sent ----------------------------------------------------------------


def _converted(
    lines: bytes,
    message: StoredMessage,
    queue_id: int,
    changes: dict[Any, Any],
    body_bytes: int,
    where: _Where,
) -> bytes:
    message_id = f"{queue_id}-{message.sequence}"
    if changes or len(lines) > _PATTERN_LINES_MAX:
        made, is_text = _sections(lines, changes, message_id, message.time_ms, where)
    else:
        parts, is_timed, is_text = _pattern(lines, len(message_id), where)
        time = message.time_ms.to_bytes(8, "big") if is_timed else b""
        made = b"%b%b%b%b%b" % (
            parts[0], message_id.encode() if parts[1] else b"", parts[2], time, parts[3]
        )  # fmt: skip
    is_there = len(message.body) == body_bytes
    if is_text and is_there and _is_utf8(message.body):
        return made + _value_head(Section.AMQP_VALUE, 0xB1, body_bytes)
    return made + _value_head(Section.DATA, 0xB0, body_bytes)


@lru_cache(512)
def _pattern(
    lines: bytes, id_characters: int, where: _Where
) -> tuple[tuple[bytes, bytes, bytes, bytes], bool, bool]:
    """Return what messages with the same lines have in common.

    Args:
        lines: The lines.
        id_characters: Length of the id that one is given which has none.
        where: What an address says.

    Returns:
        What stands before the id, something if there is one to be put in, what stands between it
        and the time of arrival, and what stands behind that; whether there is that time; and
        whether the body is said to be text.
    """
    made, is_text = _sections(lines, {}, "0" * id_characters, 0, where)
    id_at = _first_difference(made, _sections(lines, {}, "1" * id_characters, 0, where)[0])
    time_at = _first_difference(made, _sections(lines, {}, "0" * id_characters, -1, where)[0])
    is_timed, has_id = time_at < len(made), id_at < len(made)
    id_end = id_at + id_characters if has_id else 0
    before = made[:id_at] if has_id else b""
    behind = made[time_at + 8 :]
    return (before, made[id_at:id_end], made[id_end:time_at], behind), is_timed, is_text


def _first_difference(one: bytes, other: bytes) -> int:
    """Return where two equally long byte strings begin to differ; their length: nowhere."""
    both = enumerate(zip(one, other, strict=True))
    return next((at for at, (here, there) in both if here != there), len(one))


def _sections(
    lines: bytes, changes: dict[Any, Any], message_id: str, time_ms: int, where: _Where
) -> tuple[bytes, bool]:
    """Return the sections between header and body, and whether that is said to be text."""
    headers: dict[str, str] = {}
    repeats: dict[str, list[str]] = {}
    application: dict[str, str] = {}
    for name, value in _headers_in(lines):
        if name in headers:
            _repeat(repeats, name, value)
            continue
        headers[name] = value
        if name in _FIELDS or name in _ANNOTATED:
            continue
        own = name.removeprefix(APPLICATION_PREFIX)
        if application.setdefault(own, value) is not value:
            _repeat(repeats, own, value)
    annotations = _annotations_of(list(headers.items()))
    kind = _kind_of_answer(headers.get("reply-to", ""), where)
    if kind is not None:
        annotations[_ANSWER_KIND] = kind
    annotations |= changes
    if repeats:
        annotations[Symbol(REPEATS)] = repeats
    properties = _properties_of(headers, message_id, time_ms)
    for name, is_said in (
        ("content-type", properties.content_type),
        ("content-encoding", properties.content_encoding),
        ("timestamp", _time(headers.get("timestamp", ""))),
        ("JMSXGroupSeq", properties.group_sequence is not None),
        ("amqp-body", False),
    ):
        if headers.get(name, "") not in ("", "0") and not is_said:
            application.setdefault(name, headers[name])  # the field cannot say it
    made = b""
    if annotations:
        made += encode_section(Section.MESSAGE_ANNOTATIONS, annotations)
    made += encode_section(Section.PROPERTIES, properties)
    if application:
        made += encode_section(Section.APPLICATION_PROPERTIES, application)
    return made, _is_said_text(headers)


def _kind_of_answer(address: str, where: _Where) -> Byte | None:
    """Return what JMS calls an address to which an answer goes; None if it does not say."""
    queues, topics, is_mqtt = where
    if queues and address.startswith(queues):
        return _QUEUE
    is_topic = is_mqtt or bool(topics and address.startswith(topics))
    return _TOPIC if address and is_topic else None


def _repeat(repeats: dict[str, list[str]], name: str, value: str) -> None:
    if name not in TRANSPORT_HEADERS:
        repeats.setdefault(name.removeprefix(APPLICATION_PREFIX), []).append(value)


def _properties_of(headers: dict[str, str], message_id: str, time_ms: int) -> MessageProperties:
    own_id = headers.get("JMSMessageID")
    sequence = headers.get("JMSXGroupSeq", "")
    user = headers.get("JMSXUserID")
    return MessageProperties(
        message_id=message_id if own_id is None else id_of(own_id),
        user_id=None if user is None else user.encode(),
        to=headers.get("destination"),
        subject=headers.get("type"),
        reply_to=headers.get("reply-to"),
        correlation_id=_correlation_of(headers),
        content_type=_symbol(headers.get("content-type")),
        content_encoding=_symbol(headers.get("content-encoding")),
        absolute_expiry_time=_time(headers.get("expires", "")),
        creation_time=_time(headers.get("timestamp", "")) or Timestamp(time_ms),
        group_id=headers.get("JMSXGroupID"),
        group_sequence=(
            UInt(int(sequence) % 2**32)
            if sequence.removeprefix("-").isdecimal() and len(sequence) < 12
            else None
        ),
    )


def _symbol(text: str | None) -> Symbol | None:
    return Symbol(text) if text and text.isascii() else None


def _time(text: str) -> Timestamp | None:
    is_number = text.isascii() and text.isdigit() and len(text) < 17 and text != "0"
    return Timestamp(text) if is_number else None


def _is_said_text(headers: dict[str, str]) -> bool:
    is_text_type = headers.get("content-type", "").startswith(_TEXT_TYPES)
    return is_text_type or headers.get(TEXT_BODY[0]) == TEXT_BODY[1]


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _correlation_of(headers: dict[str, str]) -> Any:
    data = headers.get(BINARY_CORRELATION)
    if data is not None:
        try:
            return b64decode(data, validate=True)
        except binascii.Error:
            return data  # of another sender, who means something else by the name
    text = headers.get("correlation-id")
    return None if text is None else id_of(text)
