"""The sections of a message, found in its bytes and read where somebody asks.

Owns where each section begins and ends, which may stand where, and the fields of those that a
broker looks into. A message without a body, which §3.2 does not know, is one: Qpid JMS sends such.
Must never change a byte of what a sender wrote: what is passed on are the bytes.
Called by the broker's sessions.

Source: AMQP 1.0 (OASIS, 2012) §3.2.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

from vespiary_codec.wire.amqp.composites import composite, made_of, of, write
from vespiary_codec.wire.amqp.decoding import Decoder
from vespiary_codec.wire.amqp.encoding import encode_value
from vespiary_codec.wire.amqp.errors import RemoteProtocolError, Violation
from vespiary_codec.wire.amqp.limits import AmqpLimits
from vespiary_codec.wire.amqp.values import Described, Symbol, ULong, Value


class Section(IntEnum):
    """Descriptors of sections, in the order in which they stand."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    AMQP_SEQUENCE = 0x76
    AMQP_VALUE = 0x77
    FOOTER = 0x78


BODIES: Final = (Section.DATA, Section.AMQP_SEQUENCE, Section.AMQP_VALUE)
_REPEATABLE: Final = (Section.DATA, Section.AMQP_SEQUENCE)
_SYMBOLS: Final = {
    f"amqp:{section.name.lower().replace('_', '-')}:{form}": section
    for section, form in zip(
        Section,
        ("list", "map", "map", "list", "map", "binary", "list", "*", "map"),
        strict=True,
    )
}


@composite(0x70, "header")
class Header:
    """What intermediaries look at and change."""

    durable: bool = of("boolean", False)
    priority: int = of("ubyte", 4)
    ttl: int | None = of("uint")
    first_acquirer: bool = of("boolean", False)
    delivery_count: int = of("uint", 0)


@composite(0x73, "properties")
class MessageProperties:
    """What a sender says of its message; nobody else changes it."""

    message_id: Any = of("message-id")
    user_id: bytes | None = of("binary")
    to: str | None = of("string")
    subject: str | None = of("string")
    reply_to: str | None = of("string")
    correlation_id: Any = of("message-id")
    content_type: str | None = of("symbol")
    content_encoding: str | None = of("symbol")
    absolute_expiry_time: int | None = of("timestamp")
    creation_time: int | None = of("timestamp")
    group_id: str | None = of("string")
    group_sequence: int | None = of("uint")
    reply_to_group_id: str | None = of("string")


class Found(NamedTuple):
    """Where a section stands.

    Attributes:
        section: Which.
        begin: Of its descriptor.
        value: Where its value begins.
        end: Behind it.
    """

    section: Section
    begin: int
    value: int
    end: int


def sections(data: bytes | memoryview, limits: AmqpLimits | None = None) -> list[Found]:
    """Return where the sections of a whole message stand.

    Args:
        data: The message.
        limits: How much of each value is read; None means the defaults.

    Raises:
        LimitExceeded: A value is nested too deep, or has too many items.
        RemoteProtocolError: A section is none, stands twice or where it may not, is cut off, or is
            of another type than it should be.
    """
    return [found for found, _ in read_sections(data, limits)]


def read_sections(
    data: bytes | memoryview, limits: AmqpLimits | None = None
) -> list[tuple[Found, Any]]:
    """Return the sections of a whole message, where they stand and what they say.

    Args:
        data: The message.
        limits: How much of each value is read; None means the defaults.

    Returns:
        Each section with `Header`, `MessageProperties`, or what it is made of.

    Raises:
        LimitExceeded: As for `sections`.
        RemoteProtocolError: As for `sections`.
    """
    found: list[tuple[Found, Any]] = []
    decoder = Decoder(data, limits)
    last: Section | None = None
    while decoder.left_bytes:
        begin = decoder.at
        section = _section_of(decoder.descriptor())
        at = decoder.at
        value = _checked(section, decoder.value())
        _check_order(last, section)
        last = section
        found.append((Found(section, begin, at, decoder.at), value))
    return found


def _section_of(descriptor: Value) -> Section:
    if isinstance(descriptor, Symbol) and descriptor in _SYMBOLS:
        return _SYMBOLS[descriptor]
    if isinstance(descriptor, ULong) and Section.HEADER <= descriptor <= Section.FOOTER:
        return Section(descriptor)
    raise RemoteProtocolError(
        Violation.UNKNOWN_DESCRIPTOR, f"no section of a message has the descriptor {descriptor!r}"
    )


def _check_order(last: Section | None, section: Section) -> None:
    if last is None or last < section or (last is section and section in _REPEATABLE):
        if last in BODIES and section in BODIES and last is not section:
            raise _misplaced(last, section)
        return
    raise _misplaced(last, section)


def _misplaced(last: Section, section: Section) -> RemoteProtocolError:
    return RemoteProtocolError(
        Violation.SECTION_ORDER, f"{_spelled(section)} stands behind {_spelled(last)}"
    )


_VALUES: Final[dict[Section, type]] = {
    Section.HEADER: list,
    Section.DELIVERY_ANNOTATIONS: dict,
    Section.MESSAGE_ANNOTATIONS: dict,
    Section.PROPERTIES: list,
    Section.APPLICATION_PROPERTIES: dict,
    Section.DATA: bytes,
    Section.AMQP_SEQUENCE: list,
    Section.FOOTER: dict,
}
_SHAPED: Final = (Section.HEADER, Section.PROPERTIES)
_KEYS: Final = {
    Section.APPLICATION_PROPERTIES: (str,),
    Section.MESSAGE_ANNOTATIONS: (Symbol, ULong),
    Section.DELIVERY_ANNOTATIONS: (Symbol, ULong),
    Section.FOOTER: (Symbol, ULong),
}


def _checked(section: Section, value: Value) -> Any:
    wanted = _VALUES.get(section)
    if wanted is not None and type(value) is not wanted:
        raise RemoteProtocolError(
            Violation.FIELD_TYPE, f"{_spelled(section)} is no {wanted.__name__}"
        )
    if section in _SHAPED:
        return made_of(Described(ULong(section), value))
    for key in value if section in _KEYS else ():
        if type(key) not in _KEYS[section]:
            raise RemoteProtocolError(
                Violation.MAP_KEYS,
                f"a key of {_spelled(section)} is a {type(key).__name__.lower()}",
            )
    return value


def _spelled(section: Section) -> str:
    return section.name.lower().replace("_", "-")


def read_section(data: bytes | memoryview, found: Found) -> Any:
    """Return a section's value: `Header`, `MessageProperties`, or what it is made of.

    Args:
        data: The message.
        found: Where it stands.
    """
    value = Decoder(data, at=found.value).value()
    return made_of(Described(ULong(found.section), value)) if found.section in _SHAPED else value


def encode_section(section: Section, value: Any) -> bytes:
    """Return a section as bytes.

    Args:
        section: Which.
        value: `Header`, `MessageProperties`, or what it is made of.

    Raises:
        LocalProtocolError: A value is none of AMQP's.
    """
    if isinstance(value, Header | MessageProperties):
        return write(value)
    return b"\0" + encode_value(ULong(section)) + encode_value(value)
