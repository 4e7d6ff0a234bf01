"""A message of AMQP 1.0 on its way in: the header lines that all protocols read, and its own form.

Owns which section, field and property becomes which line, and what is kept bit by bit for other
clients of AMQP (journal-format.md §3.2.1). Pure: the clock is an argument. Called by `receiving`;
`restoring` is the way back.

| AMQP | line |
|---|---|
| header: durable, priority | `persistent:true`, `priority` (not 4) |
| header ttl, properties absolute-expiry-time (which wins) | `expires` |
| message-annotations x-opt-delivery-time, x-opt-delivery-delay | `AMQ_SCHEDULED_TIME` |
| properties message-id, correlation-id | `JMSMessageID`, `correlation-id`, spelled as below |
| properties user-id, reply-to, subject | `JMSXUserID`, `reply-to`, `type` |
| properties content-type, content-encoding | `content-type`, `content-encoding` |
| properties creation-time | `timestamp` |
| properties group-id, group-sequence | `JMSXGroupID`, `JMSXGroupSeq` |
| application-properties | a line each; `user-property.` before a name that means something else |
| a correlation-id that is binary | `mqtt-correlation-data` as well, in base64 |
| a body that is a string | `mqtt-payload-format:1` |
| a body that is no single data section, string, binary or null | `amqp-body:encoded` |
| what has no line | `amqp-omitted`: sections and names, with a blank between them |

Ids that are no strings are spelled as the JMS mapping of AMQP has it: `AMQP_ULONG:7`,
`AMQP_UUID:…`, `AMQP_BINARY:` and hexadecimal digits. A NUL in a name or a value becomes U+FFFD,
since the lines end at the first one.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final, NamedTuple
from uuid import UUID

from vespiary_broker.engine.duplicates import HEADER as DUPLICATE_ID
from vespiary_broker.engine.message_times import REPETITIONS, TIME_HEADERS, MessageTimes
from vespiary_broker.engine.property_lines import lines_of
from vespiary_codec.wire.amqp import (
    BODIES,
    AmqpLimits,
    Decoder,
    Found,
    Header,
    MessageProperties,
    RemoteProtocolError,
    Section,
    Violation,
    read_sections,
    sections,
)
from vespiary_codec.wire.amqp.native_part import FIRST_ACQUIRER, NATIVE, NATIVE_VERSION
from vespiary_codec.wire.amqp.values import Float, ULong
from vespiary_codec.wire.stomp.properties import BROKER_HEADERS, TRANSPORT_HEADERS

PROTOCOL: Final = 3
"""AMQP's number in the journal."""
APPLICATION_PREFIX: Final = "user-property."
"""The same as for user properties of MQTT, which know them by their names then."""
BINARY_CORRELATION: Final = "mqtt-correlation-data"
TEXT_BODY: Final = ("mqtt-payload-format", "1")
_MARKS: Final = ("mqtt-qos", "mqtt-retain", "mqtt-retained")
ENCODED_BODY: Final = ("amqp-body", "encoded")
OMITTED: Final = "amqp-omitted"
_OMITTED_CHARACTERS: Final = 1000
_TIMES: Final = ("x-opt-delivery-time", "x-opt-delivery-delay")
_REPETITIONS: Final = ("x-opt-delivery-cron", "x-opt-delivery-period", "x-opt-delivery-repeat")
"""What ActiveMQ calls `REPETITIONS` here."""
_JMS: Final = "x-opt-jms-"
"""Of the library of JMS, for itself: what they say of body and destinations is told otherwise."""
BEFORE_BODY: Final = (
    Section.MESSAGE_ANNOTATIONS,
    Section.PROPERTIES,
    Section.APPLICATION_PROPERTIES,
)
"""What is kept of the sections before the body."""
_OWN_NAMES: Final = frozenset(
    {
        "destination", "persistent", "priority", "expires", "reply-to", "correlation-id", "type",
        "content-type", "content-encoding", "timestamp", "amqp-body", "ingress-timestamp", OMITTED,
        "JMSMessageID", "JMSXUserID", "JMSXGroupID", "JMSXGroupSeq",
        BINARY_CORRELATION, TEXT_BODY[0], *_MARKS,
    }
)  # fmt: skip
_RESERVED: Final = _OWN_NAMES | TRANSPORT_HEADERS | {name.decode() for name in TIME_HEADERS}
_RESERVED_BEGINNINGS: Final = (APPLICATION_PREFIX, *BROKER_HEADERS)
_SMALL_CODES: Final = {Section.DATA: (0xA0,), Section.AMQP_VALUE: (0xA0, 0xA1)}
_LARGE_CODES: Final = {Section.DATA: (0xB0,), Section.AMQP_VALUE: (0xB0, 0xB1)}
_NULL: Final = 0x40
_LONG_STRING: Final = 0xB1
_STRINGS: Final = (0xA1, _LONG_STRING)
_LONG_HEADS: Final = {
    b"\0\x53\x75\xb0": (Section.DATA, 0xB0),
    b"\0\x53\x77\xb0": (Section.AMQP_VALUE, 0xB0),
    b"\0\x53\x77\xb1": (Section.AMQP_VALUE, 0xB1),
}
_BODY_HEADS: Final = (b"\0\x53\x75", b"\0\x53\x77")
BODY_HEAD_BYTES: Final = 4
_LONG_HEAD_BYTES: Final = 4 + 4
_EMPTY_DATA: Final = b"\0\x53\x75\xa0\0"
_TIME_MS_MAX: Final = 2**53
_LINES_MAX: Final = 16
_LAST_OF_GROUP: Final = 2**32 - 1
"""What a client of JMS makes of -1, which closes a group."""


class Taken(NamedTuple):
    """A message that a client has sent.

    Attributes:
        header: Its header; the defaults if it has none.
        properties: Its properties, likewise.
        annotations: Its message annotations.
        application: Its application properties.
        native: What is stored behind the lines.
        body: What is stored as its body.
        is_encoded: Whether that is sections of AMQP.
        is_text: Whether it is a string.
        lines: Its header lines by destination, once they were made.
    """

    header: Header
    properties: MessageProperties
    annotations: dict[Any, Any]
    application: dict[str, Any]
    native: bytes
    body: bytes
    is_encoded: bool
    is_text: bool
    lines: dict[str, bytes]

    @property
    def duplicate_id(self) -> bytes:
        """The id by which it is known if it comes again; empty for none."""
        found = text_of(self.application.get(DUPLICATE_ID, self.annotations.get(DUPLICATE_ID)))
        return (found or "").encode()

    @property
    def repetition(self) -> str:
        """Name of what asks for repeated delivery of it; empty: nothing does."""
        found = (name for name in REPETITIONS if name in self.application)
        annotations = (name for name in _REPETITIONS if name in self.annotations)
        return next(found, next(annotations, ""))

    def times(self, now_ms: int) -> MessageTimes:
        """Return what its sender says of its times."""
        expires_ms = int(self.properties.absolute_expiry_time or 0)
        if not expires_ms and self.header.ttl:
            expires_ms = now_ms + self.header.ttl
        if expires_ms < 0:
            expires_ms = 1  # before 1970: it is over
        deliver_at_ms = _whole(self.annotations.get("x-opt-delivery-time"))
        delay_ms = _whole(self.annotations.get("x-opt-delivery-delay"))
        if not deliver_at_ms and delay_ms:
            deliver_at_ms = now_ms + delay_ms
        return MessageTimes(
            expires_ms if expires_ms <= _TIME_MS_MAX else 0,
            min(deliver_at_ms, _TIME_MS_MAX),
        )

    def stored_properties(self, destination: str) -> bytes:
        """Return what is stored as its properties, without its times.

        Args:
            destination: Where it was sent to, as its sender wrote it.
        """
        lines = self.lines.get(destination)
        if lines is None:
            if len(self.lines) >= _LINES_MAX:
                self.lines.clear()
            lines = self.lines[destination] = self._make_lines(destination)
        return lines + b"\0" + self.native

    def _make_lines(self, destination: str) -> bytes:
        headers = [("destination", destination), *self._own_headers()]
        if self.is_encoded:
            headers.append(ENCODED_BODY)
        if self.is_text:
            headers.append(TEXT_BODY)
        omitted = self._omitted()
        if omitted:
            headers.append((OMITTED, omitted))
        for name, value in self.application.items():
            text = text_of(value)
            if not name or text is None:
                continue
            is_taken = name in _RESERVED or name.startswith(_RESERVED_BEGINNINGS)
            headers.append((f"{APPLICATION_PREFIX}{name}" if is_taken else name, text))
        plain = [
            (name.replace("\0", "\ufffd"), value.replace("\0", "\ufffd")) for name, value in headers
        ]
        return lines_of(plain)

    def _omitted(self) -> str:
        """Return what other protocols are not given, cut where it is long; empty: nothing."""
        found = [
            f"message-annotations:{name}"
            for name in self.annotations
            if name not in _TIMES and name != DUPLICATE_ID and not str(name).startswith(_JMS)
        ]
        if self.properties.reply_to_group_id:
            found.append("properties:reply-to-group-id")
        found += [
            f"application-properties:{name}"
            for name, value in self.application.items()
            if not name or text_of(value) is None
        ]
        if len(self.native) > NATIVE.size + NATIVE.unpack_from(self.native)[4]:
            found.append("footer")
        text = " ".join(found)
        return text if len(text) <= _OMITTED_CHARACTERS else f"{text[:_OMITTED_CHARACTERS]}…"

    def _own_headers(self) -> list[tuple[str, str]]:
        header, properties = self.header, self.properties
        found: list[tuple[str, str | None]] = [
            ("persistent", "true" if header.durable else None),
            ("priority", None if header.priority == 4 else str(min(int(header.priority), 9))),
            ("JMSMessageID", id_text(properties.message_id)),
            ("correlation-id", id_text(properties.correlation_id)),
            ("reply-to", properties.reply_to),
            ("type", properties.subject),
            ("content-type", properties.content_type),
            ("content-encoding", properties.content_encoding),
            ("timestamp", text_of(properties.creation_time)),
            ("JMSXGroupID", properties.group_id),
            ("JMSXGroupSeq", _group_sequence(properties.group_sequence)),
        ]
        if isinstance(properties.correlation_id, bytes):
            found.append((BINARY_CORRELATION, b64encode(properties.correlation_id).decode()))
        if properties.user_id:
            found.append(("JMSXUserID", properties.user_id.decode(errors="replace")))
        return [(name, value) for name, value in found if value]


class Repeats:
    """Reads the messages of one link, of which most say the same before the body.

    Owns what the last one said there. Must never take a message otherwise than `take` does.

    Args:
        limits: How much of each value is read.
    """

    def __init__(self, limits: AmqpLimits) -> None:
        self._limits = limits
        self._before = b""
        self._last: Taken | None = None

    def key_of(self, data: bytes) -> bytes:
        """Return the message that was taken last up to and with the format code of its body.

        Args:
            data: The message.

        Returns:
            Empty if its body is not one value at its end.
        """
        return data[: len(self._before) + BODY_HEAD_BYTES] if self._last is not None else b""

    def take(self, data: bytes) -> Taken:
        """Return a message (see `take`).

        Raises:
            RemoteProtocolError: It is none.
        """
        last = self._last
        if last is not None and data.startswith(self._before):
            at = len(self._before)
            code, body = _only_value(data, at)
            if body is not None and code == last.native[2] and data[at + 2] == last.native[1]:
                return last._replace(body=body)
        taken = take(data, self._limits)
        self._last = None
        if taken.native[1] and data.endswith(taken.body):  # and no footer
            code = taken.native[2]
            head = 4 + (4 if code in (0xB0, _LONG_STRING) else 1)
            before = data[: len(data) - len(taken.body) - head]
            if code != _NULL and _only_value(data, len(before)) == (code, taken.body):
                self._before, self._last = before, taken
        return taken


def _only_value(data: bytes, at: int) -> tuple[int, bytes | None]:
    """Return code and bytes of the value of a body that ends a message; None: it is no such."""
    if data[at : at + 3] not in _BODY_HEADS or len(data) < at + 5:
        return 0, None
    code = data[at + 3]
    if code in (0xA0, 0xA1):
        begin = at + 5
        size = data[at + 4]
    elif code in (0xB0, _LONG_STRING):
        begin = at + 8
        size = int.from_bytes(data[at + 4 : begin], "big")
    else:
        return 0, None
    if begin + size != len(data):
        return 0, None
    body = data[begin:]
    if code in _STRINGS:
        if data[at + 2] != Section.AMQP_VALUE:
            return 0, None
        try:
            body.decode()
        except UnicodeDecodeError:
            return 0, None
    return code, body


def take(data: bytes, limits: AmqpLimits) -> Taken:
    """Return a message.

    Args:
        data: Its sections.
        limits: How much of each value is read.

    Raises:
        RemoteProtocolError: They are no message.
    """
    found = read_sections(data, limits)
    bodies = [one for one, _ in found if one.section in BODIES]
    section, code, body = _body_of(data, bodies)
    return _taken(data, found, section, code, body)


class LongBody(NamedTuple):
    """A body of one long value, the end of which has not come.

    Attributes:
        section: Its section.
        code: Format code of the value.
        begin: Where the section begins.
        size_bytes: Bytes of the value, which begin behind it.
    """

    section: Section
    code: int
    begin: int
    size_bytes: int

    @property
    def at(self) -> int:
        """Where the bytes of the value begin."""
        return self.begin + _LONG_HEAD_BYTES

    @property
    def is_text(self) -> bool:
        """Whether the value is a string."""
        return self.code == _LONG_STRING


def find_long_body(data: bytes, limits: AmqpLimits) -> LongBody | None:
    """Return where the one long value of a body begins, and how many bytes it will have.

    Args:
        data: What has come of a message.
        limits: How much of each value is read.

    Returns:
        None if its body is something else, or that cannot be seen yet.

    Raises:
        RemoteProtocolError: It is no message.
    """
    decoder = Decoder(data, limits)
    try:
        while True:
            begin = decoder.at
            decoder.descriptor()
            kind = _LONG_HEADS.get(data[begin : begin + 4])
            if kind is not None:
                at = begin + _LONG_HEAD_BYTES
                if len(data) < at:
                    return None
                return LongBody(*kind, begin, int.from_bytes(data[at - 4 : at], "big"))
            decoder.value()
    except RemoteProtocolError as error:
        if error.violation is Violation.TRUNCATED_VALUE:
            return None
        raise


def take_head(data: bytes, body: LongBody, limits: AmqpLimits) -> Taken:
    """Return a message whose body, one long value, is elsewhere.

    Args:
        data: Its sections before the body.
        body: What is known of it.
        limits: How much of each value is read.

    Raises:
        RemoteProtocolError: They are none.
    """
    whole = data + _EMPTY_DATA
    return _taken(whole, read_sections(whole, limits), body.section, body.code, b"")


def with_footer(taken: Taken, data: bytes, limits: AmqpLimits) -> Taken:
    """Return a message with what came behind its body.

    Args:
        taken: The message.
        data: What came: nothing, or a footer.
        limits: How much of its value is read.

    Raises:
        RemoteProtocolError: It is something else.
    """
    if not data:
        return taken
    found = sections(_EMPTY_DATA + data, limits)
    if len(found) != 2 or found[1].section is not Section.FOOTER:
        raise RemoteProtocolError(
            Violation.SECTION_ORDER,
            "another section of a body stands behind one that went to a file; such a message is "
            "taken in one frame, or with its body in one section",
        )
    return taken._replace(native=taken.native + data)


def _body_of(data: bytes, bodies: list[Found]) -> tuple[int, int, bytes]:
    """Return section and format code of a body, and what is stored of it."""
    if not bodies:
        return 0, 0, b""
    if len(bodies) == 1:
        section, _, value, end = bodies[0]
        code = data[value]
        if section is Section.AMQP_VALUE and code == _NULL:
            return section, code, b""
        if code in _SMALL_CODES.get(section, ()):
            return section, code, data[value + 2 : end]
        if code in _LARGE_CODES.get(section, ()):
            return section, code, data[value + 5 : end]
    return 0, 0, data[bodies[0].begin : bodies[-1].end]


def _taken(
    data: bytes, found: list[tuple[Found, Any]], section: int, code: int, body: bytes
) -> Taken:
    values: dict[Section, Any] = {}
    before = footer = b""
    for one, value in found:
        if one.section in BEFORE_BODY:
            before += data[one.begin : one.end]
        elif one.section is Section.FOOTER:
            footer = data[one.begin : one.end]
        values[one.section] = value
    header = values.get(Section.HEADER) or Header()
    flags = FIRST_ACQUIRER if header.first_acquirer else 0
    return Taken(
        header,
        values.get(Section.PROPERTIES) or MessageProperties(),
        values.get(Section.MESSAGE_ANNOTATIONS) or {},
        values.get(Section.APPLICATION_PROPERTIES) or {},
        NATIVE.pack(NATIVE_VERSION, section, code, flags, len(before)) + before + footer,
        body,
        not section and bool(body),
        code in _STRINGS,
        {},
    )


def text_of(value: Any) -> str | None:
    """Return a simple value as text; None for null, and for what has no text."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case str():
            return str(value)
        case int():
            return str(int(value))
        case Float():
            return value.text
        case float():
            return repr(float(value))
        case bytes():
            return value.hex()
        case UUID():
            return str(value)
    return None


def id_text(value: Any) -> str | None:
    """Return a message-id or a correlation-id as text, from which `id_of` makes it again."""
    match value:
        case None:
            return None
        case int():
            return f"AMQP_ULONG:{int(value)}"
        case UUID():
            return f"AMQP_UUID:{value}"
        case bytes():
            return f"AMQP_BINARY:{value.hex().upper()}"
    return f"AMQP_STRING:{value}" if value.startswith("AMQP_") else str(value)


def id_of(text: str) -> Any:
    """Return the id that a text stands for; a string where it stands for no other."""
    kind, colon, value = text.partition(":")
    try:
        match kind if colon else "":
            case "AMQP_STRING":
                return value
            case "AMQP_ULONG":
                return ULong(value) if 0 <= int(value) < 2**64 else text
            case "AMQP_UUID":
                return UUID(value)
            case "AMQP_BINARY":
                return bytes.fromhex(value)
    except ValueError:
        return text
    return text


def _group_sequence(value: int | None) -> str | None:
    if value is None:
        return None
    return "-1" if value == _LAST_OF_GROUP else str(int(value))


def _whole(value: Any) -> int:
    return max(int(value), 0) if isinstance(value, int) and not isinstance(value, bool) else 0
