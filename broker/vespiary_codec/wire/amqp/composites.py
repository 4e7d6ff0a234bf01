"""Described lists with named fields: how a dataclass is read and written as one.

Owns descriptors, the types of fields, what is mandatory. Must never know which composites there
are: `performatives`, `delivery` and `sasl` declare theirs. Called by these, `frames` and
`messages`.

Source: AMQP 1.0 (OASIS, 2012) §1.4 (composite types, multiple values, mandatory fields).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, TypeVar, dataclass_transform
from uuid import UUID

from vespiary_codec.wire.amqp.decoding import Decoder
from vespiary_codec.wire.amqp.encoding import encode_list, encode_value, symbols
from vespiary_codec.wire.amqp.errors import (
    Condition,
    LocalProtocolError,
    RemoteProtocolError,
    Violation,
)
from vespiary_codec.wire.amqp.values import (
    Array,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
)

C = TypeVar("C", bound=type)

ANY: Final = "*"
SYMBOLS: Final = "symbols"
"""A symbol, or an array of them: "multiple" in the specification. Here always a tuple."""
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "boolean": (bool,),
    "ubyte": (UByte,),
    "ushort": (UShort,),
    "uint": (UInt,),
    "ulong": (ULong,),
    "timestamp": (Timestamp,),
    "binary": (bytes,),
    "string": (str,),
    "symbol": (Symbol,),
    "map": (dict,),
    "message-id": (ULong, UUID, bytes, str),
}
_MADE: Final[dict[str, Callable[[Any], Value]]] = {
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "timestamp": Timestamp,
    "symbol": Symbol,
}


class _Shape(NamedTuple):
    """How a composite is spelled.

    Attributes:
        made: Its class.
        name: Its name in the specification, without `amqp:` and `:list`.
        code: Its descriptor.
        symbol: Its other descriptor.
        fields: Name, type, whether it is mandatory, and the value that stands for null.
    """

    made: type
    name: str
    code: int
    symbol: str
    fields: tuple[tuple[str, str, bool, Any], ...]


_SHAPES: dict[type, _Shape] = {}
_BY_DESCRIPTOR: dict[Value, _Shape] = {}


def of(kind: str, default: Any = None, *, mandatory: bool = False) -> Any:
    """Return a field of a composite.

    Args:
        kind: Its type: a primitive one, `SYMBOLS`, `message-id`, `ANY`, or names of composites with
            `|` between them.
        default: What null means.
        mandatory: Whether null is refused.
    """
    about = {"kind": kind, "mandatory": mandatory}
    if kind == SYMBOLS:
        default = ()
    if mandatory:
        return field(metadata=about)
    return field(default=default, metadata=about)


@dataclass_transform(kw_only_default=True)
def composite(code: int, name: str, form: str = "list") -> Callable[[C], C]:
    """Make a class a composite; its fields are those of the list, in order.

    Args:
        code: The descriptor, of the domain 0x00000000.
        name: Its name in the specification.
        form: What its symbol ends with.
    """

    def declare(cls: C) -> C:
        made: Any = dataclass(slots=True, kw_only=True)(cls)
        shape = _Shape(
            made, name, code, f"amqp:{name}:{form}",
            tuple(
                (one.name, one.metadata["kind"], one.metadata["mandatory"], one.default)
                for one in fields(made)
            ),
        )  # fmt: skip
        _SHAPES[made] = _BY_DESCRIPTOR[code] = _BY_DESCRIPTOR[shape.symbol] = shape
        return made  # type: ignore[no-any-return]

    return declare


def name_of(value: object) -> str:
    """Return what the specification calls a composite.

    Args:
        value: A composite.
    """
    return _SHAPES[type(value)].name


def descriptor_of(made: type) -> int:
    """Return the descriptor of a class of composites, of the domain 0x00000000."""
    return _SHAPES[made].code


# --- reading --------------------------------------------------------------------------------------


def read(decoder: Decoder, *allowed: type) -> Any:
    """Read a composite.

    Args:
        decoder: Stands at it.
        allowed: The classes that may stand here; none: any.

    Raises:
        LimitExceeded: It is nested too deep, or has too many items.
        RemoteProtocolError: No composite stands there, or none of these, or a field is wrong.
    """
    found = made_of(decoder.value())
    if isinstance(found, Described) or type(found) not in _SHAPES:
        raise _unknown(found)
    if allowed and type(found) not in allowed:
        names = ", ".join(_SHAPES[one].name for one in allowed)
        raise RemoteProtocolError(
            Violation.UNKNOWN_DESCRIPTOR, f"{name_of(found)} stands where there may be: {names}"
        )
    return found


def made_of(value: Value) -> Value:
    """Return a value with the composites that it is or holds as such.

    Args:
        value: From `Decoder.value`. Described values that nobody knows stay as they are.

    Raises:
        RemoteProtocolError: A field of a composite is wrong.
    """
    if not isinstance(value, Described):
        return value
    shape = _shape_of(value.descriptor)
    if shape is None or not isinstance(value.value, list):
        return value
    return _made(shape, value.value)


def _shape_of(descriptor: Value) -> _Shape | None:
    if isinstance(descriptor, ULong | Symbol):
        return _BY_DESCRIPTOR.get(descriptor if isinstance(descriptor, Symbol) else int(descriptor))
    return None


def _unknown(found: Value) -> RemoteProtocolError:
    what = f"the descriptor {found.descriptor!r}" if isinstance(found, Described) else "it"
    return RemoteProtocolError(
        Violation.UNKNOWN_DESCRIPTOR, f"a composite stands here, and {what} is that of none"
    )


def _made(shape: _Shape, values: list[Value]) -> Any:
    if len(values) > len(shape.fields):
        raise RemoteProtocolError(
            Violation.FIELD_COUNT,
            f"{shape.name} has {len(values)} fields; it has {len(shape.fields)} at the most",
        )
    found = {}
    for at, (name, kind, mandatory, default) in enumerate(shape.fields):
        value = values[at] if at < len(values) else None
        if value is None:
            if mandatory:
                raise RemoteProtocolError(
                    Violation.FIELD_MISSING, f"{shape.name} needs {_spelled(name)}",
                    Condition.INVALID_FIELD,
                )  # fmt: skip
            found[name] = default
            continue
        found[name] = _field(shape, name, kind, value)
    return shape.made(**found)


def _field(shape: _Shape, name: str, kind: str, value: Value) -> Value:
    if kind == ANY:
        return made_of(value)
    if kind == SYMBOLS:
        if isinstance(value, Symbol):
            return (value,)
        if isinstance(value, Array) and all(isinstance(one, Symbol) for one in value.items):
            return tuple(value.items)
    elif kind in _TYPES:
        if type(value) in _TYPES[kind]:
            return value
    else:
        made = made_of(value)
        if type(made) in _SHAPES and name_of(made) in kind.split("|"):
            return made
    raise RemoteProtocolError(
        Violation.FIELD_TYPE,
        f"{_spelled(name)} of {shape.name} is a {_type_name(value)}; it must be a {kind}",
        Condition.INVALID_FIELD,
    )


def _spelled(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


def _type_name(value: Value) -> str:
    usual = {
        int: "long",
        str: "string",
        bytes: "binary",
        dict: "map",
        float: "double",
        bool: "boolean",
    }
    return usual.get(type(value), type(value).__name__.lower())


# --- writing --------------------------------------------------------------------------------------


def write(value: Any) -> bytes:
    """Return a composite as bytes, without the nulls at its end.

    Args:
        value: A composite.

    Raises:
        LocalProtocolError: A field has a value that its type does not have, or lacks one.
    """
    shape = _SHAPES[type(value)]
    written: list[bytes] = []
    last = 0
    for name, kind, mandatory, default in shape.fields:
        one = getattr(value, name)
        if one is None or (not mandatory and one is default):
            if mandatory:
                raise LocalProtocolError(f"{shape.name} needs {_spelled(name)}")
            written.append(b"\x40")
            continue
        written.append(_encoded(shape, name, kind, one))
        last = len(written)
    return b"\0" + encode_value(ULong(shape.code)) + encode_list(written[:last])


def encode_any(value: Value) -> bytes:
    """Return a value as bytes, also if it is a composite."""
    return write(value) if type(value) in _SHAPES else encode_value(value)


def _encoded(shape: _Shape, name: str, kind: str, value: Any) -> bytes:
    if kind == SYMBOLS:
        return encode_value(Symbol(value[0]) if len(value) == 1 else symbols(value))
    if made := _MADE.get(kind):
        return encode_value(made(value))
    if kind in _TYPES and type(value) not in _TYPES[kind]:
        raise LocalProtocolError(
            f"{_spelled(name)} of {shape.name} is a {_type_name(value)}; it must be a {kind}"
        )
    return encode_any(value)
