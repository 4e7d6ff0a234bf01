"""Values of AMQP 1.0 as Python has them, each with its type.

Owns the Python type for each primitive type of AMQP. Must never parse or print bytes. Used by every
module of this package and by its callers.

| AMQP | Python |
|---|---|
| null, boolean, string, binary, uuid | None, bool, str, bytes, UUID |
| ubyte, ushort, uint, ulong | `UByte`, `UShort`, `UInt`, `ULong` |
| byte, short, int, long | `Byte`, `Short`, `Int`, int |
| float, double | `Float`, float |
| decimal32, decimal64, decimal128 | `Decimal32`, `Decimal64`, `Decimal128`: their bytes |
| char, timestamp, symbol | `Char`, `Timestamp` (milliseconds since 1970), `Symbol` |
| list, map, array | list, dict, `Array` |
| described | `Described` |

The numbers are subclasses, so that they count and compare as what they are; two values of different
types may therefore be equal. `same` is exact.

Source: AMQP 1.0 (OASIS, 2012) part 1.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

_FLOAT_DIGITS_MAX: Final = 9
"""So many digits tell every number of 32 bits from its neighbours."""
_FLOAT_MAX: Final = 3.4028235e38
"""The largest of 32 bits, as it is written."""

Value = Any
"""Any of the values above."""


class _Whole(int):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"


class UByte(_Whole):
    """0 to 255."""

    __slots__ = ()


class UShort(_Whole):
    """0 to 65535."""

    __slots__ = ()


class UInt(_Whole):
    """0 to 4294967295."""

    __slots__ = ()


class ULong(_Whole):
    """0 to 2**64 - 1."""

    __slots__ = ()


class Byte(_Whole):
    """-128 to 127."""

    __slots__ = ()


class Short(_Whole):
    """-32768 to 32767."""

    __slots__ = ()


class Int(_Whole):
    """-2**31 to 2**31 - 1."""

    __slots__ = ()


class Timestamp(_Whole):
    """Milliseconds since 1970, UTC."""

    __slots__ = ()


class Float(float):
    """A number of 32 bits."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float({float(self)})"

    @property
    def text(self) -> str:
        """The shortest decimal text of the same number of 32 bits: `0.1`, not that of 64 bits."""
        if math.isfinite(self):
            for digits in range(1, _FLOAT_DIGITS_MAX + 1):
                near = float(f"{float(self):.{digits}g}")
                if abs(near) <= _FLOAT_MAX and struct.pack(">f", near) == struct.pack(">f", self):
                    return repr(near)
        return repr(float(self))


class _Octets(bytes):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"


class Decimal32(_Octets):
    """Four bytes of IEEE 754-2008, in the order of the wire."""

    __slots__ = ()


class Decimal64(_Octets):
    """Eight bytes of it."""

    __slots__ = ()


class Decimal128(_Octets):
    """Sixteen bytes of it."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str(self)!r})"


class Symbol(str):
    """A name of the protocol's or of an extension's: ASCII."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


@dataclass(slots=True)
class Described:
    """A value whose descriptor says what it means.

    Attributes:
        descriptor: A symbol or a ulong for all that is known; any value.
        value: The value.
    """

    descriptor: Value
    value: Value


@dataclass(slots=True)
class Array:
    """Values of one type, written with one constructor.

    Attributes:
        code: Format code of the constructor, 0x40 to 0xf0.
        items: The values, without descriptors.
        descriptor: Of every item; None: they are not described.
    """

    code: int
    items: list[Value]
    descriptor: Value = None


RANGES: Final = {
    UByte: (0, 2**8 - 1),
    UShort: (0, 2**16 - 1),
    UInt: (0, 2**32 - 1),
    ULong: (0, 2**64 - 1),
    Byte: (-(2**7), 2**7 - 1),
    Short: (-(2**15), 2**15 - 1),
    Int: (-(2**31), 2**31 - 1),
    int: (-(2**63), 2**63 - 1),
    Timestamp: (-(2**63), 2**63 - 1),
}
"""Smallest and largest value of each type of whole numbers."""


def same(one: Value, other: Value) -> bool:
    """Return whether two values are the same, types and the bits of numbers included.

    Args:
        one: A value.
        other: Another.
    """
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return struct.pack(">d", one) == struct.pack(">d", other) or (
                math.isnan(one) and math.isnan(other)
            )
        case list():
            return len(one) == len(other) and all(map(same, one, other))
        case dict():
            return same([*one.keys()], [*other.keys()]) and same([*one.values()], [*other.values()])
        case Described():
            return same(one.descriptor, other.descriptor) and same(one.value, other.value)
        case Array():
            return (one.code, len(one.items)) == (other.code, len(other.items)) and same(
                [one.descriptor, *one.items], [other.descriptor, *other.items]
            )
    return bool(one == other)


__all__ = [
    "RANGES",
    "UUID",
    "Array",
    "Byte",
    "Char",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "Float",
    "Int",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "Value",
    "same",
]
