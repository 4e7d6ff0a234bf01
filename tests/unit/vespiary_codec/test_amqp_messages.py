"""Sections of AMQP messages: where they stand, what they say, and which order they may have."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from vespiary_codec.wire.amqp import (
    AmqpLimits,
    Header,
    LimitExceeded,
    LocalProtocolError,
    MessageProperties,
    RemoteProtocolError,
    Section,
    Violation,
    encode_section,
    read_section,
    sections,
)
from vespiary_codec.wire.amqp.values import Described, Symbol, Timestamp, UInt, ULong

ID = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
PROPERTIES = MessageProperties(
    message_id=ULong(7), user_id=b"u", to="orders", subject="new", reply_to="answers",
    correlation_id=ID, content_type="text/plain", content_encoding="gzip",
    absolute_expiry_time=1000, creation_time=Timestamp(1), group_id="g", group_sequence=3,
    reply_to_group_id="r",
)  # fmt: skip
WHOLE: list[tuple[Section, Any]] = [
    (Section.HEADER, Header(durable=True, priority=7, ttl=9000, delivery_count=2)),
    (Section.DELIVERY_ANNOTATIONS, {Symbol("d"): 1}),
    (Section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-delay"): UInt(5), ULong(9): None}),
    (Section.PROPERTIES, PROPERTIES),
    (Section.APPLICATION_PROPERTIES, {"region": "north", "n": 3, "f": 1.5, "none": None}),
    (Section.DATA, b"\x00\xff"),
    (Section.DATA, b"more"),
    (Section.FOOTER, {Symbol("crc"): UInt(1)}),
]
BODY = encode_section(Section.DATA, b"x")


def encoded(parts: list[tuple[Section, Any]]) -> bytes:
    return b"".join(encode_section(section, value) for section, value in parts)


def refused(data: bytes) -> Violation:
    with pytest.raises(RemoteProtocolError) as caught:
        sections(data)
    return caught.value.violation


def test_all_sections_are_found_and_read() -> None:
    data = encoded(WHOLE)
    found = sections(data)
    assert [one.section for one in found] == [section for section, _ in WHOLE]
    assert [read_section(data, one) for one in found] == [value for _, value in WHOLE]
    edges = [0, *(one.end for one in found)]
    assert [one.begin for one in found] == edges[:-1]
    assert edges[-1] == len(data)


def test_a_section_that_is_passed_on_keeps_its_bytes() -> None:
    """Encodings that are not the smallest, and a descriptor that is a symbol, stay as they are."""
    symbolic = b"\0\xa3\x10amqp:data:binary\xb0\0\0\0\x01x"
    wide = b"\0\x80" + bytes(7) + b"\x77" + b"\x71\0\0\0\x05"
    (one,) = sections(symbolic)
    assert (one.section, read_section(symbolic, one)) == (Section.DATA, b"x")
    assert symbolic[one.begin : one.end] == symbolic
    (one,) = sections(wide)
    assert (one.section, read_section(wide, one)) == (Section.AMQP_VALUE, 5)


@pytest.mark.parametrize("value", [None, "text", {"k": [1]}, [UInt(1)], b"\x01", 1.5, ID])
def test_a_body_may_be_any_value(value: Any) -> None:
    data = encode_section(Section.AMQP_VALUE, value)
    (one,) = sections(data)
    assert read_section(data, one) == value


def test_defaults_of_the_header() -> None:
    data = encode_section(Section.HEADER, Header()) + BODY
    header = read_section(data, sections(data)[0])
    assert (header.durable, header.priority, header.ttl, header.delivery_count) == (
        False, 4, None, 0
    )  # fmt: skip
    assert data[:4] == bytes.fromhex("00537045")


@pytest.mark.parametrize(
    "order",
    [
        [Section.DATA, Section.HEADER],
        [Section.PROPERTIES, Section.MESSAGE_ANNOTATIONS, Section.DATA],
        [Section.HEADER, Section.HEADER, Section.DATA],
        [Section.AMQP_VALUE, Section.AMQP_VALUE],
        [Section.DATA, Section.AMQP_SEQUENCE],
        [Section.AMQP_SEQUENCE, Section.AMQP_VALUE],
        [Section.FOOTER, Section.DATA],
    ],
)
def test_orders_that_are_none(order: list[Section]) -> None:
    usual = dict(WHOLE) | {Section.AMQP_SEQUENCE: [1], Section.AMQP_VALUE: 1}
    assert refused(encoded([(one, usual[one]) for one in order])) is Violation.SECTION_ORDER


@pytest.mark.parametrize("order", [[Section.HEADER], [Section.FOOTER], []])
def test_a_message_may_have_no_body(order: list[Section]) -> None:
    usual = dict(WHOLE)
    data = encoded([(one, usual[one]) for one in order])
    assert [one.section for one in sections(data)] == order


def test_a_sequence_may_come_in_pieces() -> None:
    data = encoded([(Section.AMQP_SEQUENCE, [1]), (Section.AMQP_SEQUENCE, [2, 3])])
    assert [read_section(data, one) for one in sections(data)] == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("data", "violation"),
    [
        (b"\x41", Violation.UNKNOWN_DESCRIPTOR),
        (b"\0\x53\x79\x41", Violation.UNKNOWN_DESCRIPTOR),
        (b"\0\xa3\x01x\x41", Violation.UNKNOWN_DESCRIPTOR),
        (b"\0\x52\x75\xa0\x01x", Violation.UNKNOWN_DESCRIPTOR),
        (b"\0\x53\x75\xa1\x01x", Violation.FIELD_TYPE),
        (b"\0\x53\x76\xa1\x01x", Violation.FIELD_TYPE),
        (b"\0\x53\x70\xc1\x01\x00" + BODY, Violation.FIELD_TYPE),
        (b"\0\x53\x70\xc0\x03\x01\x52\x07" + BODY, Violation.FIELD_TYPE),
        (b"\0\x53\x73\xc0\x02\x01\x41" + BODY, Violation.FIELD_TYPE),
        (b"\0\x53\x70\xc0\x07\x06\x40\x40\x40\x40\x40\x40" + BODY, Violation.FIELD_COUNT),
        (b"\0\x53\x74\xc1\x05\x02\xa3\x01a\x41" + BODY, Violation.MAP_KEYS),
        (b"\0\x53\x72\xc1\x05\x02\xa1\x01a\x41" + BODY, Violation.MAP_KEYS),
        (b"\0\x53\x75\xa0\x05x", Violation.TRUNCATED_VALUE),
        (BODY + b"\0", Violation.TRUNCATED_VALUE),
    ],
)
def test_refusals(data: bytes, violation: Violation) -> None:
    assert refused(data) is violation


def test_values_of_messages_have_the_same_limits() -> None:
    data = encode_section(Section.AMQP_VALUE, [True] * 17)
    with pytest.raises(LimitExceeded):
        sections(data, AmqpLimits(items=16))
    assert sections(data)


def test_what_is_no_value_of_amqp_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError):
        encode_section(Section.AMQP_VALUE, object())
    with pytest.raises(LocalProtocolError):
        encode_section(Section.AMQP_VALUE, Described(Symbol("ü"), 1))
