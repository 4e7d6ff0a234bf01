"""The tree that a selector is parsed to.

Owns the nodes and what is known of them without a message: kind and depth. Must never evaluate
anything. Made by `grammar`, read by `compiling`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

Value: TypeAlias = str | int | float | bool | None
"""What an identifier or an expression can be; None is SQL's NULL, in conditions "unknown"."""


class Text(str):
    """A string of a protocol with types: it is never read as a number or as a boolean."""

    __slots__ = ()


class Kind(enum.Enum):
    """What an expression gives, as far as its text says."""

    BOOLEAN = "a condition"
    NUMBER = "a number"
    STRING = "a string"
    ANY = "the value of an identifier"


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that stands in the text."""

    value: str | int | float | bool
    kind: Kind
    position: int
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Identifier:
    """The name of a header, or of something that the broker knows of a message."""

    name: str
    position: int
    depth: int = 1
    kind: Kind = Kind.ANY


@dataclass(frozen=True, slots=True)
class Connected:
    """Conditions that `AND` or `OR` connects."""

    operator: str
    terms: tuple[Expression, ...]
    position: int
    depth: int
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class Negated:
    """`NOT` and a condition."""

    term: Expression
    position: int
    depth: int
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class Compared:
    """Two expressions and one of `= <> < <= > >=`."""

    operator: str
    left: Expression
    right: Expression
    position: int
    depth: int
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class Calculated:
    """Numbers and `+ -`, or numbers and `* /`, from left to right."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]
    position: int
    depth: int
    kind: Kind = Kind.NUMBER


@dataclass(frozen=True, slots=True)
class Signed:
    """A number with a sign; only `-` does something."""

    operator: str
    term: Expression
    position: int
    depth: int
    kind: Kind = Kind.NUMBER


@dataclass(frozen=True, slots=True)
class OneOf:
    """`IN` and a list of strings."""

    term: Expression
    strings: frozenset[str]
    position: int
    depth: int
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class Like:
    """`LIKE` and a pattern."""

    term: Expression
    pattern: str
    escape: str
    position: int
    depth: int
    kind: Kind = Kind.BOOLEAN


@dataclass(frozen=True, slots=True)
class IsNull:
    """`IS NULL`."""

    term: Expression
    position: int
    depth: int
    kind: Kind = Kind.BOOLEAN


Expression: TypeAlias = (
    Literal
    | Identifier
    | Connected
    | Negated
    | Compared
    | Calculated
    | Signed
    | OneOf
    | Like
    | IsNull
)
