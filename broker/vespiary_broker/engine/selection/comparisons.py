"""Comparing and calculating with values whose kinds only the message tells.

Owns the rules: numbers compare with numbers; strings and booleans compare for `=` and `<>` alone;
a comparison of different kinds is false; one with NULL is unknown. A text out of a header has no
kind, since STOMP has none: beside a number it is a number if it can be read as one, and beside a
boolean a boolean (docs/decisions, "Texts in selectors"). A `Text` is a string and nothing else.
Must never raise for any value. Called by the closures of `compiling`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any, Final

from vespiary_broker.engine.selection.expressions import Value

_NUMBER: Final = re.compile(
    r"[ \t]*(?:([+-]?[0-9]+)|[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[ \t]*", re.ASCII
)
_NUMBER_CHARACTERS_MAX: Final = 64
_SHORT_CHARACTERS: Final = 18
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1

ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
EQUALITIES: Final[dict[str, Callable[[Any, Any], bool]]] = {"=": operator.eq, "<>": operator.ne}
OPERATORS: Final = ORDERS | EQUALITIES


def number_of(text: str) -> int | float | None:
    """Return the number that a text says in decimal digits, or None."""
    if len(text) <= _SHORT_CHARACTERS and text.isdigit() and text.isascii():
        return int(text)
    if len(text) > _NUMBER_CHARACTERS_MAX:
        return None
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    if found[1] is not None:
        return within_long(int(found[1]))
    return float(text)


def boolean_of(text: str) -> bool | None:
    """Return the boolean that a text says in any case, or None."""
    if len(text) not in (4, 5):
        return None
    return {"true": True, "false": False}.get(text.lower())


def within_long(number: int) -> int | float:
    """Return a whole number; one that 64 bits cannot hold becomes a floating-point one."""
    return number if _LONG_MIN <= number <= _LONG_MAX else float(number)


def as_number(value: Value) -> int | float | None:
    """Return the number that a value is, or None: it is none, or NULL."""
    kind = value.__class__
    if kind is str:
        return number_of(value)  # type: ignore[arg-type]
    return value if kind is int or kind is float else None  # type: ignore[return-value]


def truth_of(value: Value) -> bool | None:
    """Return what a value says as a condition: as if it were compared with TRUE."""
    if value is None or value is True or value is False:
        return value
    return value.__class__ is str and boolean_of(value) is True


def compare_with_number(
    compare: Callable[[Any, Any], bool], value: Value, number: float
) -> bool | None:
    """Compare a value with what surely is a number; None is unknown."""
    if value is None:
        return None
    known = as_number(value)
    return known is not None and compare(known, number)


def compare(name: str, left: Value, right: Value) -> bool | None:
    """Compare two values of any kinds; None is unknown.

    Two texts are compared as numbers if both can be read as numbers: `low < high` would never
    match otherwise.

    Args:
        name: One of `= <> < <= > >=`.
        left: Its left side.
        right: Its right side.
    """
    if left is None or right is None:
        return None
    is_left_text, is_right_text = left.__class__ is str, right.__class__ is str
    if left.__class__ is bool or right.__class__ is bool:
        if is_left_text:
            left = boolean_of(left)  # type: ignore[arg-type]
        if is_right_text:
            right = boolean_of(right)  # type: ignore[arg-type]
        are_alike = left.__class__ is right.__class__
        return are_alike and name in EQUALITIES and EQUALITIES[name](left, right)
    numbers = as_number(left), as_number(right)
    if None not in numbers:
        return OPERATORS[name](*numbers)
    if isinstance(left, str) and isinstance(right, str) and name in EQUALITIES:
        return EQUALITIES[name](left, right)
    return False


def calculate(name: str, left: Value, right: Value) -> int | float | None:
    """Return `left name right`; None if a side is no number, or it is divided by 0.

    As in Java whole numbers are divided without a rest, toward 0; unlike there, what 64 bits cannot
    hold goes on as a floating-point number.

    Args:
        name: One of `+ - * /`.
        left: Its left side.
        right: Its right side.
    """
    first, second = as_number(left), as_number(right)
    if first is None or second is None:
        return None
    result: int | float
    if name == "+":
        result = first + second
    elif name == "-":
        result = first - second
    elif name == "*":
        result = first * second
    elif second == 0:
        return None
    elif isinstance(first, int) and isinstance(second, int):
        whole = abs(first) // abs(second)
        result = whole if (first < 0) == (second < 0) else -whole
    else:
        result = first / second
    if isinstance(result, int):
        return within_long(result)
    return None if math.isnan(result) else result
