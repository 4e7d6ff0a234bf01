"""Python values in, encoded values out.

Owns the smallest encoding of each value. Must never know a performative. Called by `composites` and
`messages`.

Source: AMQP 1.0 (OASIS, 2012) §1.6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from vespiary_codec.wire.amqp.errors import LocalProtocolError
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
    Value,
)

_SMALL: Final = 255


def encode_value(value: Value) -> bytes:
    """Return a value in its smallest encoding.

    Args:
        value: One of `values`.

    Raises:
        LocalProtocolError: It is of no such type, or out of its type's range.
    """
    if value is None:
        return b"\x40"
    write = _WRITERS.get(type(value))
    if write is None:
        raise LocalProtocolError(f"AMQP has no type for {type(value).__name__}")
    return write(value)


def encode_list(fields: Sequence[bytes]) -> bytes:
    """Return a list of values that are encoded already.

    Args:
        fields: The values.
    """
    if not fields:
        return b"\x45"
    return _compound(0xC0, 0xD0, fields)


def _compound(small: int, large: int, items: Sequence[bytes]) -> bytes:
    body = b"".join(items)
    if len(body) < _SMALL and len(items) <= _SMALL:
        return bytes([small, len(body) + 1, len(items)]) + body
    return bytes([large]) + struct.pack(">II", len(body) + 4, len(items)) + body


def _checked(value: int, made: type[int]) -> int:
    least, most = RANGES[made]
    if not least <= value <= most:
        name = "Long" if made is int else made.__name__
        raise LocalProtocolError(f"{name} is {int(value)}; it must be {least} to {most}")
    return int(value)


def _fixed(
    made: type[int], code: int, form: str, small: int | None = None
) -> Callable[[int], bytes]:
    """Return the writer of a type of whole numbers, with a form of one byte if there is one."""
    packed = struct.Struct(form)
    signed = RANGES[made][0] < 0

    def write(value: int) -> bytes:
        number = _checked(value, made)
        fits = -128 <= number <= 127 if signed else number <= _SMALL
        if small is not None and fits:
            return bytes([small, number & 0xFF])
        return bytes([code]) + packed.pack(number)

    return write


def _of_zero(zero: bytes, write: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda value: write(value) if value else zero


def _variable(small: int, large: int, data: bytes) -> bytes:
    if len(data) <= _SMALL:
        return bytes([small, len(data)]) + data
    return bytes([large]) + struct.pack(">I", len(data)) + data


def _string(text: str) -> bytes:
    try:
        return _variable(0xA1, 0xB1, text.encode())
    except UnicodeEncodeError:
        raise LocalProtocolError("a string is no Unicode text") from None


def _symbol(text: Symbol) -> bytes:
    try:
        return _variable(0xA3, 0xB3, text.encode("ascii"))
    except UnicodeEncodeError:
        raise LocalProtocolError(f"a symbol is not ASCII: {text[:40]!r}") from None


def _char(text: Char) -> bytes:
    if len(text) != 1:
        raise LocalProtocolError(f"a char has {len(text)} characters; it must have one")
    return b"\x73" + struct.pack(">I", ord(text))


def _octets(code: int, size_bytes: int) -> Callable[[bytes], bytes]:
    def write(data: bytes) -> bytes:
        if len(data) != size_bytes:
            raise LocalProtocolError(f"a decimal has {len(data)} bytes; it must have {size_bytes}")
        return bytes([code]) + data

    return write


def _map(pairs: dict[Value, Value]) -> bytes:
    items = [encode_value(one) for pair in pairs.items() for one in pair]
    return _compound(0xC1, 0xD1, items)


def _described(value: Described) -> bytes:
    return b"\0" + encode_value(value.descriptor) + encode_value(value.value)


def _array(array: Array) -> bytes:
    head = bytes([array.code])
    if array.descriptor is not None:
        head = b"\0" + encode_value(array.descriptor) + head
    write = _ITEMS.get(array.code)
    if write is None:
        raise LocalProtocolError(f"items of arrays are not written with 0x{array.code:02x}")
    try:
        body = head + b"".join(map(write, array.items))
    except (struct.error, TypeError, AttributeError, OverflowError) as error:
        raise LocalProtocolError(
            f"an item of an array does not fit 0x{array.code:02x}: {error}"
        ) from None
    if len(body) < _SMALL and len(array.items) <= _SMALL:
        return bytes([0xE0, len(body) + 1, len(array.items)]) + body
    return b"\xf0" + struct.pack(">II", len(body) + 4, len(array.items)) + body


def symbols(names: Sequence[str]) -> Array:
    """Return symbols as an array.

    Args:
        names: ASCII.
    """
    return Array(
        0xA3 if all(len(name) <= _SMALL for name in names) else 0xB3, [*map(Symbol, names)]
    )


_WRITERS: Final[dict[type, Callable[..., bytes]]] = {
    bool: lambda value: b"\x41" if value else b"\x42",
    UByte: _fixed(UByte, 0x50, ">B"),
    UShort: _fixed(UShort, 0x60, ">H"),
    UInt: _of_zero(b"\x43", _fixed(UInt, 0x70, ">I", 0x52)),
    ULong: _of_zero(b"\x44", _fixed(ULong, 0x80, ">Q", 0x53)),
    Byte: _fixed(Byte, 0x51, ">b"),
    Short: _fixed(Short, 0x61, ">h"),
    Int: _fixed(Int, 0x71, ">i", 0x54),
    int: _fixed(int, 0x81, ">q", 0x55),
    Timestamp: _fixed(Timestamp, 0x83, ">q"),
    Float: lambda value: b"\x72" + struct.pack(">f", value),
    float: lambda value: b"\x82" + struct.pack(">d", value),
    Decimal32: _octets(0x74, 4),
    Decimal64: _octets(0x84, 8),
    Decimal128: _octets(0x94, 16),
    Char: _char,
    UUID: lambda value: b"\x98" + value.bytes,
    bytes: lambda value: _variable(0xA0, 0xB0, value),
    str: _string,
    Symbol: _symbol,
    list: lambda items: encode_list([encode_value(one) for one in items]),
    dict: _map,
    Array: _array,
    Described: _described,
}


def _packed(form: str) -> Callable[[Value], bytes]:
    return struct.Struct(form).pack


def _sized(form: str, encoding: str | None) -> Callable[[Value], bytes]:
    size = struct.Struct(form)

    def write(value: Value) -> bytes:
        data = value.encode(encoding) if encoding else bytes(value)
        return size.pack(len(data)) + data

    return write


def _large(
    items: Callable[[Value], list[bytes]], form: str, width: int
) -> Callable[[Value], bytes]:
    head = struct.Struct(form)

    def write(value: Value) -> bytes:
        encoded = items(value)
        body = b"".join(encoded)
        return head.pack(len(body) + width, len(encoded)) + body

    return write


def _of_list(value: Value) -> list[bytes]:
    return [encode_value(one) for one in value]


def _of_map(value: Value) -> list[bytes]:
    return [encode_value(one) for pair in value.items() for one in pair]


_ITEMS: Final[dict[int, Callable[[Value], bytes]]] = {
    **dict.fromkeys((0x40, 0x41, 0x42, 0x43, 0x44, 0x45), lambda _: b""),
    0x50: _packed(">B"), 0x51: _packed(">b"), 0x52: _packed(">B"), 0x53: _packed(">B"),
    0x54: _packed(">b"), 0x55: _packed(">b"), 0x56: _packed(">B"),
    0x60: _packed(">H"), 0x61: _packed(">h"), 0x70: _packed(">I"), 0x71: _packed(">i"),
    0x72: _packed(">f"), 0x73: lambda value: struct.pack(">I", ord(value)), 0x74: bytes,
    0x80: _packed(">Q"), 0x81: _packed(">q"), 0x82: _packed(">d"), 0x83: _packed(">q"),
    0x84: bytes, 0x94: bytes, 0x98: lambda value: value.bytes,
    0xA0: _sized(">B", None), 0xB0: _sized(">I", None),
    0xA1: _sized(">B", "utf-8"), 0xB1: _sized(">I", "utf-8"),
    0xA3: _sized(">B", "ascii"), 0xB3: _sized(">I", "ascii"),
    0xC0: _large(_of_list, ">BB", 1), 0xD0: _large(_of_list, ">II", 4),
    0xC1: _large(_of_map, ">BB", 1), 0xD1: _large(_of_map, ">II", 4),
    0xE0: lambda value: _array8(value), 0xF0: lambda value: _array32(value),
}  # fmt: skip
"""How an item of an array is written behind the constructor that all share."""


def _array8(array: Array) -> bytes:
    """Return size, count, constructor and items of an array in the form of one byte."""
    whole = _array(array)
    if whole[0] != 0xE0:
        raise OverflowError("it has more than 255 bytes")
    return whole[1:]


def _array32(array: Array) -> bytes:
    """Return size, count, constructor and items of an array in the form of four bytes."""
    whole = _array(array)
    if whole[0] == 0xF0:
        return whole[1:]
    body = whole[3:]
    return struct.pack(">II", len(body) + 4, len(array.items)) + body
