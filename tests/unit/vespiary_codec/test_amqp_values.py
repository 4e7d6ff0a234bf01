"""Values of AMQP: octets of every format code, round trips with types, and what is refused."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.wire.amqp import (
    AmqpLimits,
    Decoder,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    Violation,
    encode_value,
    symbols,
)
from vespiary_codec.wire.amqp.values import (
    RANGES,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    same,
)

ID = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")


def octets(text: str) -> bytes:
    return bytes.fromhex(text)


def read(data: bytes, limits: AmqpLimits | None = None) -> Any:
    decoder = Decoder(data, limits)
    value = decoder.value()
    decoder.end("the value")
    return value


def refused(text: str, limits: AmqpLimits | None = None) -> RemoteProtocolError:
    with pytest.raises(RemoteProtocolError) as caught:
        read(octets(text), limits)
    return caught.value


# --- every format code ----------------------------------------------------------------------------

SMALLEST: list[tuple[str, Any]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("43", UInt(0)),
    ("44", ULong(0)),
    ("45", []),
    ("50 ff", UByte(255)),
    ("51 80", Byte(-128)),
    ("52 01", UInt(1)),
    ("53 ff", ULong(255)),
    ("54 80", Int(-128)),
    ("55 7f", 127),
    ("60 ffff", UShort(65_535)),
    ("61 8000", Short(-32_768)),
    ("70 00000100", UInt(256)),
    ("71 00000080", Int(128)),
    ("72 3fc00000", Float(1.5)),
    ("73 0001f41d", Char("🐝")),
    ("74 22500001", Decimal32(octets("22500001"))),
    ("80 0000000000000100", ULong(256)),
    ("81 ffffffffffffff7f", -129),
    ("82 3ff8000000000000", 1.5),
    ("83 00000187a5a5a5a5", Timestamp(0x187A5A5A5A5)),
    ("84 2238000000000001", Decimal64(octets("2238000000000001"))),
    ("94 22080000000000000000000000000001",
     Decimal128(octets("22080000000000000000000000000001"))),
    ("98 f81d4fae7dec11d0a76500a0c91e6bf6", ID),
    ("a0 02 00ff", b"\x00\xff"),
    ("a1 03 c3a4 61", "äa"),
    ("a3 03 612d62", Symbol("a-b")),
    ("c0 04 02 41 52 07", [True, UInt(7)]),
    ("c1 06 02 a1 01 6b 52 07", {"k": UInt(7)}),
    ("e0 05 02 a3 01 61 00", Array(0xA3, [Symbol("a"), Symbol("")])),
    ("e0 05 03 52 0102 03", Array(0x52, [UInt(1), UInt(2), UInt(3)])),
    ("00 53 24 45", Described(ULong(0x24), [])),
    ("00 a3 01 78 c0 02 01 41", Described(Symbol("x"), [True])),
    ("e0 06 01 00 53 24 53 09", Array(0x53, [ULong(9)], ULong(0x24))),
]  # fmt: skip

LARGER: list[tuple[str, Any]] = [
    ("56 01", True),
    ("56 00", False),
    ("70 00000000", UInt(0)),
    ("71 00000001", Int(1)),
    ("80 0000000000000000", ULong(0)),
    ("81 0000000000000001", 1),
    ("b0 00000001 ff", b"\xff"),
    ("b1 00000001 61", "a"),
    ("b3 00000001 61", Symbol("a")),
    ("c0 01 00", []),
    ("d0 00000004 00000000", []),
    ("d0 00000006 00000002 41 42", [True, False]),
    ("d1 00000009 00000002 a1 01 6b 52 07", {"k": UInt(7)}),
    ("f0 00000008 00000003 52 010203", Array(0x52, [UInt(1), UInt(2), UInt(3)])),
    ("e0 02 02 41", Array(0x41, [True, True])),
    ("e0 02 00 70", Array(0x70, [])),
]


@pytest.mark.parametrize(("text", "value"), SMALLEST)
def test_the_smallest_encodings(text: str, value: Any) -> None:
    assert same(read(octets(text)), value)
    assert encode_value(value) == octets(text)


@pytest.mark.parametrize(("text", "value"), LARGER)
def test_other_encodings_are_read_too(text: str, value: Any) -> None:
    assert same(read(octets(text)), value)


def test_a_size_that_needs_four_bytes() -> None:
    for value in ("x" * 256, b"x" * 256, Symbol("x" * 256), [UInt(300)] * 60, {"k": "x" * 300}):
        data = encode_value(value)
        assert data[0] in (0xB1, 0xB0, 0xB3, 0xD0, 0xD1)
        assert same(read(data), value)
    assert encode_value("x" * 255)[0] == 0xA1
    assert encode_value([True] * 254)[0] == 0xC0
    assert encode_value([True] * 255)[0] == 0xD0


# --- round trips ----------------------------------------------------------------------------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol)
WHOLE = st.one_of([st.integers(*RANGES[made]).map(made) for made in RANGES])
SIMPLE = st.one_of(
    st.none(), st.booleans(), WHOLE, st.floats(), st.floats(width=32).map(Float),
    st.characters(exclude_categories=["Cs"]).map(Char), TEXTS, NAMES, st.binary(max_size=20),
    st.uuids(), st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
)  # fmt: skip
KEYS = st.one_of(TEXTS, NAMES, st.integers(0, 2**64 - 1).map(ULong))
ARRAYS = st.one_of(
    st.lists(NAMES, max_size=5).map(symbols),
    st.lists(st.integers(0, 255).map(UByte), max_size=5).map(lambda items: Array(0x50, items)),
    st.lists(st.integers(-9, 9), max_size=5).map(lambda items: Array(0x81, items)),
    st.lists(TEXTS, max_size=5).map(lambda items: Array(0xB1, items, Symbol("d"))),
    st.lists(st.lists(st.booleans(), max_size=2), max_size=3).map(lambda items: Array(0xC0, items)),
    st.lists(st.dictionaries(TEXTS, st.booleans(), max_size=2), max_size=3).map(
        lambda items: Array(0xD1, items)
    ),
    st.lists(st.lists(NAMES, max_size=2).map(symbols), max_size=3).map(
        lambda items: Array(0xF0, items)
    ),
)
VALUES = st.recursive(
    SIMPLE | ARRAYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        st.builds(Described, NAMES, inner),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_there_and_back(value: Any) -> None:
    data = encode_value(value)
    assert same(read(data), value)
    assert encode_value(read(data)) == data


@given(VALUES, st.data())
def test_what_is_cut_off_is_told(value: Any, data: Any) -> None:
    whole = encode_value(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(RemoteProtocolError):
        read(whole[:cut])


@given(st.binary(max_size=80))
def test_whatever_comes_in_is_a_value_or_a_violation(data: bytes) -> None:
    """No other error; and what was read can be written."""
    try:
        value = read(data)
    except RemoteProtocolError:
        return
    assert same(read(encode_value(value)), value)


def test_types_are_told_apart() -> None:
    assert UInt(1) == ULong(1) == 1
    assert not same(UInt(1), ULong(1))
    assert not same(Symbol("a"), "a")
    assert not same(0.0, -0.0)
    assert same(float("nan"), float("nan"))
    assert not same([UInt(1)], [Int(1)])
    assert not same({"a": 1}, {Symbol("a"): 1})
    assert not same(Array(0x52, [UInt(1)]), Array(0x70, [UInt(1)]))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "violation"),
    [
        ("", Violation.TRUNCATED_VALUE),
        ("01", Violation.UNKNOWN_TYPE),
        ("57 00", Violation.UNKNOWN_TYPE),
        ("70 000000", Violation.TRUNCATED_VALUE),
        ("56 02", Violation.INVALID_VALUE),
        ("73 0000d800", Violation.INVALID_VALUE),
        ("73 00110000", Violation.INVALID_VALUE),
        ("73 ffffffff", Violation.INVALID_VALUE),
        ("a1 01 ff", Violation.NOT_UTF8),
        ("a1 03 eda080", Violation.NOT_UTF8),
        ("a3 01 80", Violation.NOT_ASCII),
        ("a1 05 61", Violation.TRUNCATED_VALUE),
        ("b0 ffffffff 61", Violation.TRUNCATED_VALUE),
        ("41 41", Violation.TRAILING_BYTES),
        ("c0 00", Violation.SIZE_MISMATCH),
        ("d0 00000003 000000", Violation.SIZE_MISMATCH),
        ("c0 05 01 41", Violation.TRUNCATED_VALUE),
        ("c0 03 01 41 41", Violation.SIZE_MISMATCH),
        ("c0 02 02 41 41", Violation.SIZE_MISMATCH),
        ("c1 02 01 41", Violation.MAP_KEYS),
        ("c1 05 04 52 01 41", Violation.TRUNCATED_VALUE),
        ("c1 08 04 5201 41 5201 41", Violation.TRUNCATED_VALUE),
        ("c1 07 04 5201 41 5201 41", Violation.MAP_KEYS),
        ("c1 04 02 c001 00 41", Violation.MAP_KEYS),
        ("c1 05 02 c0 01 00 41", Violation.MAP_KEYS),
        ("e0 02 00 57", Violation.UNKNOWN_TYPE),
        ("e0 08 01 00 53 24 00 53 24 41", Violation.UNKNOWN_TYPE),
        ("e0 03 01 41 41", Violation.SIZE_MISMATCH),
        ("00 53", Violation.TRUNCATED_VALUE),
    ],
)
def test_refusals(text: str, violation: Violation) -> None:
    assert refused(text).violation is violation


@pytest.mark.parametrize("around", [[0xC0], [0xD0], [0xC1], [0x00], [0xE0], [0xF0]])
def test_values_within_values_have_a_limit(around: list[int]) -> None:
    def nested(levels: int) -> bytes:
        data = b"\x41"
        for _ in range(levels):
            code = around[0]
            if code == 0x00:
                data = b"\0\x53\x24" + data
            elif code == 0xC1:
                data = bytes([code, len(data) + 2, 2]) + b"\x41" + data
            elif code == 0xC0:
                data = bytes([code, len(data) + 1, 1]) + data
            elif code == 0xD0:
                data = bytes([code]) + struct.pack(">II", len(data) + 4, 1) + data
            elif code == 0xE0:
                data = bytes([code, len(data) + 1, 1]) + data
            else:
                data = bytes([code]) + struct.pack(">II", len(data) + 4, 1) + data
        return data

    limits = AmqpLimits(depth=8)
    read(nested(8), limits)
    with pytest.raises(LimitExceeded, match="deeper than 8") as caught:
        read(nested(9), limits)
    assert caught.value.violation is Violation.DEPTH
    with pytest.raises(LimitExceeded):
        read(nested(60))


def test_items_have_a_limit_whatever_they_take() -> None:
    """An array of four thousand million nulls is eleven bytes."""
    error = refused("f0 00000005 ffffffff 40")
    assert error.violation is Violation.ITEMS
    assert isinstance(error, LimitExceeded)
    limits = AmqpLimits(items=16)
    read(encode_value([[True] * 7, [True] * 7]), limits)
    with pytest.raises(LimitExceeded, match="17 items or more; at most 16"):
        read(encode_value([[True] * 7, [True] * 8]), limits)
    decoder = Decoder(encode_value([True] * 10) * 2, limits)
    assert decoder.value() == decoder.value(), "each value has as many"


@pytest.mark.parametrize(
    "value",
    [UByte(256), UByte(-1), 2**63, Int(2**31), Symbol("ä"), "\ud800", Char("ab"), Decimal32(b"123"),
     object(), Array(0x50, [UInt(300)]), Array(0xA1, ["x" * 256]), Array(0x57, []), {1, 2}],
)  # fmt: skip
def test_what_amqp_cannot_say_is_our_own_error(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        encode_value(value)
