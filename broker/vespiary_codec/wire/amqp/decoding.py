"""Encoded values in, Python values out.

Owns the format codes of AMQP and the bounds of what is nested. Must never know a performative.
Called by `composites`, `frames` and `messages`.

Rules, where the specification leaves a choice:

- A map's keys are different from one another, and none is a list, a map or an array: what Python
  cannot look up, no broker can either.
- `size` of a list, map or array is that of what it holds, to the byte; no byte is left over.
- Of one value at most `items` items are read, whatever their sizes say: of an array of nulls a
  million take nothing on the wire.

Source: AMQP 1.0 (OASIS, 2012) §1.2 and §1.6.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final
from uuid import UUID

from vespiary_codec.wire.amqp.errors import LimitExceeded, RemoteProtocolError, Violation
from vespiary_codec.wire.amqp.limits import AmqpLimits
from vespiary_codec.wire.amqp.values import (
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

DESCRIBED: Final = 0x00
_MAP_CODES: Final = (0xC1, 0xD1)
_LIST_CODES: Final = (0xC0, 0xD0)
_ARRAY_CODES: Final = (0xE0, 0xF0)
_CODE_POINTS: Final = 0x110000
_SURROGATES: Final = range(0xD800, 0xE000)

_USUAL: Final = AmqpLimits()

Octets = bytes | bytearray | memoryview


class Decoder:
    """Reads values, one behind the other. Owner: whoever has the bytes.

    Args:
        data: Bytes with whole values in them.
        limits: How much is read of one value; None means the defaults.
        at: Where the first one begins.
    """

    def __init__(self, data: Octets, limits: AmqpLimits | None = None, at: int = 0) -> None:
        self._view = memoryview(data)
        self._limits = _USUAL if limits is None else limits
        self._end = len(self._view)
        self._items = 0
        self.at = at

    @property
    def left_bytes(self) -> int:
        """How much was not read yet."""
        return self._end - self.at

    def value(self) -> Value:
        """Read one value.

        Raises:
            LimitExceeded: It is nested too deep, or has too many items.
            RemoteProtocolError: It is cut off, of no type that there is, or not what its type says.
        """
        self._items = 0
        return self._value(0)

    def descriptor(self) -> Value:
        """Read the descriptor of a described value, which stands at `at`, and nothing else.

        Raises:
            RemoteProtocolError: No described value stands there.
        """
        self._items = 0
        if self._octet() != DESCRIBED:
            raise RemoteProtocolError(
                Violation.UNKNOWN_DESCRIPTOR, "a value without a descriptor stands where one has it"
            )
        return self._value(1)

    def end(self, what: str) -> None:
        """Refuse what has more in it than it should have."""
        if self.left_bytes:
            raise RemoteProtocolError(
                Violation.TRAILING_BYTES, f"{self.left_bytes} bytes stand behind the end of {what}"
            )

    # --- the walk ---------------------------------------------------------------------------------

    def _value(self, depth: int) -> Value:
        code = self._octet()
        read = _PRIMITIVES.get(code)
        if read is not None:
            return read(self)
        if code == DESCRIBED:
            self._deeper(depth)
            descriptor = self._value(depth + 1)
            return Described(descriptor, self._value(depth + 1))
        return self._of_code(code, depth)

    def _of_code(self, code: int, depth: int) -> Value:
        if code in _LIST_CODES:
            return self._list(code, depth)
        if code in _MAP_CODES:
            return self._map(code, depth)
        if code in _ARRAY_CODES:
            return self._array(code, depth)
        read = _PRIMITIVES.get(code)
        if read is None:
            raise RemoteProtocolError(
                Violation.UNKNOWN_TYPE, f"there is no type with the format code 0x{code:02x}"
            )
        return read(self)

    def _deeper(self, depth: int) -> None:
        if depth >= self._limits.depth:
            raise LimitExceeded(
                Violation.DEPTH,
                f"a value is nested deeper than {self._limits.depth} levels",
            )

    def _more(self, number: int) -> None:
        self._items += number
        if self._items > self._limits.items:
            raise LimitExceeded(
                Violation.ITEMS,
                f"a value has {self._items} items or more; at most {self._limits.items} are read",
            )

    def _take(self, size_bytes: int) -> memoryview:
        if size_bytes > self.left_bytes:
            raise RemoteProtocolError(
                Violation.TRUNCATED_VALUE,
                f"a value needs {size_bytes} bytes, and there are {self.left_bytes} more",
            )
        begin, self.at = self.at, self.at + size_bytes
        return self._view[begin : self.at]

    def _octet(self) -> int:
        at = self.at
        if at >= self._end:
            self._take(1)  # refuses it
        self.at = at + 1
        return self._view[at]

    def _number(self, size_bytes: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size_bytes), "big", signed=signed)

    # --- what holds others ------------------------------------------------------------------------

    def _head(self, code: int, depth: int) -> tuple[int, int]:
        """Read size and count of a compound value or an array; return its end and its count."""
        self._deeper(depth)
        width = 1 if code in (0xC0, 0xC1, 0xE0) else 4
        size = self._octet() if width == 1 else self._number(width)
        if size > self.left_bytes:
            raise RemoteProtocolError(
                Violation.TRUNCATED_VALUE,
                f"a value needs {size} bytes, and there are {self.left_bytes} more",
            )
        end = self.at + size
        if size < width:
            raise RemoteProtocolError(
                Violation.SIZE_MISMATCH, f"a size of {size} has no room for the count behind it"
            )
        count = self._octet() if width == 1 else self._number(width)
        self._more(count)
        return end, count

    def _at_end(self, end: int) -> None:
        if self.at != end:
            raise RemoteProtocolError(
                Violation.SIZE_MISMATCH,
                f"what a value holds ends {abs(end - self.at)} bytes"
                f" {'before' if self.at < end else 'behind'} the end that its size names",
            )

    def _list(self, code: int, depth: int) -> list[Value]:
        end, count = self._head(code, depth)
        found = [self._value(depth + 1) for _ in range(count)]
        self._at_end(end)
        return found

    def _map(self, code: int, depth: int) -> dict[Value, Value]:
        end, count = self._head(code, depth)
        if count % 2:
            raise RemoteProtocolError(
                Violation.MAP_KEYS, f"a map has {count} items: a key is without a value"
            )
        found: dict[Value, Value] = {}
        for _ in range(count // 2):
            key = self._value(depth + 1)
            if isinstance(key, list | dict | Array | Described):
                raise RemoteProtocolError(
                    Violation.MAP_KEYS, f"a key of a map is a {type(key).__name__.lower()}"
                )
            if key in found:
                raise RemoteProtocolError(Violation.MAP_KEYS, "a map has one key twice")
            found[key] = self._value(depth + 1)
        self._at_end(end)
        return found

    def _array(self, code: int, depth: int) -> Array:
        end, count = self._head(code, depth)
        descriptor = None
        item = self._number(1)
        if item == DESCRIBED:
            descriptor = self._value(depth + 1)
            item = self._number(1)
            if item == DESCRIBED:
                raise RemoteProtocolError(
                    Violation.UNKNOWN_TYPE, "the items of an array are described twice"
                )
        items = [self._of_code(item, depth + 1) for _ in range(count)]
        if not count and item not in _PRIMITIVES and item not in _COMPOUND:
            raise RemoteProtocolError(
                Violation.UNKNOWN_TYPE, f"there is no type with the format code 0x{item:02x}"
            )
        self._at_end(end)
        return Array(item, items, descriptor)

    # --- primitive values -------------------------------------------------------------------------

    def _boolean(self) -> bool:
        octet = self._number(1)
        if octet > 1:
            raise RemoteProtocolError(
                Violation.INVALID_VALUE, f"a boolean is {octet}; it must be 0 or 1"
            )
        return bool(octet)

    def _char(self) -> Char:
        number = self._number(4)
        if number >= _CODE_POINTS or number in _SURROGATES:
            raise RemoteProtocolError(
                Violation.INVALID_VALUE, f"0x{number:x} is no Unicode character"
            )
        return Char(chr(number))

    def _binary(self, width: int) -> bytes:
        return bytes(self._take(self._octet() if width == 1 else self._number(width)))

    def _string(self, width: int) -> str:
        data = self._binary(width)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(
                Violation.NOT_UTF8, f"a string is not valid UTF-8 at byte {error.start}"
            ) from None

    def _symbol(self, width: int) -> Symbol:
        data = self._binary(width)
        try:
            return Symbol(data.decode("ascii"))
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(
                Violation.NOT_ASCII, f"a symbol is not ASCII at byte {error.start}"
            ) from None


_Read = Callable[[Decoder], Value]


def _unsigned(made: type[int], size_bytes: int) -> _Read:
    return lambda decoder: made(decoder._number(size_bytes))


def _signed(made: type[int], size_bytes: int) -> _Read:
    return lambda decoder: made(decoder._number(size_bytes, signed=True))


def _octets(made: type[bytes], size_bytes: int) -> _Read:
    return lambda decoder: made(decoder._take(size_bytes))


_PRIMITIVES: Final[dict[int, _Read]] = {
    0x40: lambda _: None,
    0x41: lambda _: True,
    0x42: lambda _: False,
    0x43: lambda _: UInt(0),
    0x44: lambda _: ULong(0),
    0x45: lambda _: [],
    0x50: lambda decoder: UByte(decoder._octet()),
    0x51: _signed(Byte, 1),
    0x52: lambda decoder: UInt(decoder._octet()),
    0x53: lambda decoder: ULong(decoder._octet()),
    0x54: _signed(Int, 1),
    0x55: _signed(int, 1),
    0x56: Decoder._boolean,
    0x60: _unsigned(UShort, 2),
    0x61: _signed(Short, 2),
    0x70: _unsigned(UInt, 4),
    0x71: _signed(Int, 4),
    0x72: lambda decoder: Float(struct.unpack(">f", decoder._take(4))[0]),
    0x73: Decoder._char,
    0x74: _octets(Decimal32, 4),
    0x80: _unsigned(ULong, 8),
    0x81: _signed(int, 8),
    0x82: lambda decoder: float(struct.unpack(">d", decoder._take(8))[0]),
    0x83: _signed(Timestamp, 8),
    0x84: _octets(Decimal64, 8),
    0x94: _octets(Decimal128, 16),
    0x98: lambda decoder: UUID(bytes=bytes(decoder._take(16))),
    0xA0: lambda decoder: decoder._binary(1),
    0xA1: lambda decoder: decoder._string(1),
    0xA3: lambda decoder: decoder._symbol(1),
    0xB0: lambda decoder: decoder._binary(4),
    0xB1: lambda decoder: decoder._string(4),
    0xB3: lambda decoder: decoder._symbol(4),
}
_COMPOUND: Final = {*_LIST_CODES, *_MAP_CODES, *_ARRAY_CODES}
