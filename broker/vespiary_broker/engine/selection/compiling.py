"""From the tree of a selector to closures, one for each operator that the text has.

Owns the checks of kinds that need no message, the folding of what no message can change, and the
closures. Must never keep a message. Called by `selector`.

A closure takes the values of the names and returns a value; one of a condition returns True, False,
or None for "unknown". What compares one name with one literal, which is what nearly all selectors
are made of, has closures of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from vespiary_broker.engine.selection.comparisons import (
    EQUALITIES,
    OPERATORS,
    ORDERS,
    as_number,
    calculate,
    compare,
    compare_with_number,
    number_of,
    truth_of,
    within_long,
)
from vespiary_broker.engine.selection.expressions import (
    Calculated,
    Compared,
    Connected,
    Expression,
    Identifier,
    IsNull,
    Kind,
    Like,
    Literal,
    Negated,
    OneOf,
    Signed,
    Value,
)
from vespiary_broker.engine.selection.patterns import PatternError, compile_like
from vespiary_broker.engine.selection.problems import Problem

Values: TypeAlias = Mapping[str, Value]
"""Values by name; a name that is not there is NULL."""

Evaluate: TypeAlias = Callable[[Values], Any]
"""Any: conditions give `bool | None`, the others a `Value`; the kinds were checked."""

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}
_NOTHING: Values = {}
_HYPHENS = "put a name with hyphens into double quotes"


class Compiled(NamedTuple):
    """An expression, ready to be evaluated.

    Attributes:
        evaluate: From values to a value.
        names: Names that it needs; none: it is always the same.
    """

    evaluate: Evaluate
    names: frozenset[str]


def compile_condition(expression: Expression) -> Compiled:
    """Return an expression as a condition.

    Raises:
        Problem: Something in it cannot be what it would have to be.
    """
    if expression.kind in (Kind.NUMBER, Kind.STRING):
        raise Problem(
            expression.position,
            f"{expression.kind.value} stands where a condition is needed",
            "compare it with something",
        )
    found = _compile(expression)
    if expression.kind is Kind.ANY:
        evaluate = found.evaluate
        return _folded(Compiled(lambda values: truth_of(evaluate(values)), found.names))
    return found


def _compile(expression: Expression) -> Compiled:
    match expression:
        case Literal(value=value):
            return _constant(value)
        case Identifier(name=name):
            return Compiled(lambda values: values.get(name), frozenset((name,)))
        case Connected():
            return _connected(expression)
        case Negated(term=term):
            return _negated(compile_condition(term))
        case Compared():
            return _folded(_compared(expression))
        case Calculated():
            return _folded(_calculated(expression))
        case Signed():
            return _folded(_signed(expression))
        case OneOf(term=term, strings=strings):
            return _folded(_text_test(term, "IN", strings.__contains__))
        case Like(term=term, pattern=pattern, escape=escape, position=position):
            try:
                matches = compile_like(pattern, escape)
            except PatternError as error:
                raise Problem(position, str(error)) from error
            return _folded(_text_test(term, "LIKE", matches))
        case IsNull(term=term, position=position):
            if not isinstance(term, Identifier):
                raise Problem(position, "IS NULL needs a name in front of it")
            name = term.name
            return Compiled(lambda values: values.get(name) is None, frozenset((name,)))


def _constant(value: Value) -> Compiled:
    return Compiled(lambda _values: value, frozenset())


def _folded(found: Compiled) -> Compiled:
    """Return an expression without names as its value."""
    return found if found.names else _constant(found.evaluate(_NOTHING))


# --- conditions ---------------------------------------------------------------------------------


def _connected(expression: Connected) -> Compiled:
    """Connect conditions; what no message can change goes: `1 = 1 AND x` is `x`."""
    decisive = expression.operator == "OR"
    terms: list[Compiled] = []
    is_decided = False
    # All are compiled, each once: they have to be right also where one of them decides.
    for found in map(compile_condition, expression.terms):
        if not found.names:
            value = found.evaluate(_NOTHING)
            is_decided = is_decided or value is decisive
            if value is not None:
                continue
        terms.append(found)
    if is_decided:
        return _constant(decisive)
    if not terms:
        return _constant(not decisive)
    if len(terms) == 1:
        return terms[0]
    names = frozenset().union(*(term.names for term in terms))
    evaluators = tuple(term.evaluate for term in terms)
    make = _pair if len(evaluators) == 2 else _row
    return _folded(Compiled(make(decisive, evaluators), names))


def _pair(decisive: bool, evaluators: tuple[Evaluate, ...]) -> Evaluate:
    first, second = evaluators

    def evaluate(values: Values) -> bool | None:
        one = first(values)
        if one is decisive:
            return one
        other: bool | None = second(values)
        return other if one is not None or other is decisive else None

    return evaluate


def _row(decisive: bool, evaluators: tuple[Evaluate, ...]) -> Evaluate:
    def evaluate(values: Values) -> bool | None:
        result: bool | None = not decisive
        for evaluator in evaluators:
            value: bool | None = evaluator(values)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return evaluate


def _negated(term: Compiled) -> Compiled:
    evaluate = term.evaluate

    def negate(values: Values) -> bool | None:
        value = evaluate(values)
        return None if value is None else not value

    return _folded(Compiled(negate, term.names))


def _text_test(term: Expression, name: str, test: Callable[[str], bool]) -> Compiled:
    """Return a test of a string; anything else fails it, NULL makes it unknown."""
    if term.kind not in (Kind.STRING, Kind.ANY):
        raise Problem(term.position, f"{name} tests strings, not {term.kind.value}")
    found = _compile(term)
    if isinstance(term, Identifier):
        key = term.name

        def test_name(values: Values) -> bool | None:
            value = values.get(key)
            if isinstance(value, str):
                return test(value)
            return None if value is None else False

        return Compiled(test_name, found.names)
    evaluate = found.evaluate
    return Compiled(lambda values: test(evaluate(values)), found.names)


# --- comparisons --------------------------------------------------------------------------------


def _compared(expression: Compared) -> Compiled:
    name, left, right = expression.operator, expression.left, expression.right
    _check_kinds(expression)
    if isinstance(left, Literal) and isinstance(right, Identifier):
        name, left, right = _MIRRORED[name], right, left
    if isinstance(left, Identifier) and isinstance(right, Literal):
        if right.kind is Kind.NUMBER:
            return _name_with_number(left.name, name, right.value)
        if right.kind is Kind.STRING:
            return _name_with_string(left.name, name, right.value)
    first, second = _compile(left), _compile(right)
    names = first.names | second.names
    one, other = first.evaluate, second.evaluate
    if Kind.STRING in (left.kind, right.kind):
        equality = EQUALITIES[name]

        def compare_texts(values: Values) -> bool | None:
            a, b = one(values), other(values)
            if a is None or b is None:
                return None
            return isinstance(a, str) and isinstance(b, str) and equality(a, b)

        return Compiled(compare_texts, names)
    if Kind.NUMBER in (left.kind, right.kind):
        return Compiled(_with_number(name, one, other, right.kind is Kind.NUMBER), names)
    return Compiled(lambda values: compare(name, one(values), other(values)), names)


def _with_number(name: str, one: Evaluate, other: Evaluate, is_right: bool) -> Evaluate:
    """Compare when one side is surely a number, or NULL."""
    operator = OPERATORS[name if is_right else _MIRRORED[name]]
    unsure, sure = (one, other) if is_right else (other, one)

    def compare_numbers(values: Values) -> bool | None:
        number = sure(values)
        return None if number is None else compare_with_number(operator, unsure(values), number)

    return compare_numbers


def _check_kinds(expression: Compared) -> None:
    """Check what is known of both sides; a comparison that is never true is a mistake."""
    kinds = {expression.left.kind, expression.right.kind} - {Kind.ANY}
    if expression.operator in ORDERS:
        for kind in (Kind.STRING, Kind.BOOLEAN):
            if kind in kinds:
                raise Problem(
                    expression.position,
                    f"{expression.operator} compares numbers, not {kind.value}",
                    "strings and booleans can be compared with = and <>",
                )
    if len(kinds) > 1:
        raise Problem(
            expression.position,
            f"{expression.left.kind.value} is compared with {expression.right.kind.value}, "
            "which is never true",
            _HYPHENS if _has_minus(expression) else "",
        )


def _has_minus(expression: Compared) -> bool:
    """Whether a side may be a name with a hyphen that was read as a difference."""
    sides = (expression.left, expression.right)
    return any(
        isinstance(side, Calculated) and any(operator == "-" for operator, _ in side.rest)
        for side in sides
    )


def _name_with_number(key: str, name: str, literal: Any) -> Compiled:
    operator, number = OPERATORS[name], literal

    def compare_number(values: Values) -> bool | None:
        value: Any = values.get(key)
        kind = value.__class__
        if kind is str:
            value = number_of(value)
            if value is None:
                return False
        elif kind is not int and kind is not float:
            return None if value is None else False
        return operator(value, number)

    return Compiled(compare_number, frozenset((key,)))


def _name_with_string(key: str, name: str, literal: Any) -> Compiled:
    operator, string = EQUALITIES[name], literal

    def compare_string(values: Values) -> bool | None:
        value = values.get(key)
        if value is None:
            return None
        return isinstance(value, str) and operator(value, string)

    return Compiled(compare_string, frozenset((key,)))


# --- numbers ------------------------------------------------------------------------------------


def _number(expression: Expression) -> Compiled:
    if expression.kind not in (Kind.NUMBER, Kind.ANY):
        raise Problem(
            expression.position, f"{expression.kind.value} stands where a number is needed"
        )
    return _compile(expression)


def _calculated(expression: Calculated) -> Compiled:
    found = _number(expression.first)
    first, names = found.evaluate, found.names
    rest: list[tuple[str, Evaluate]] = []
    for name, term in expression.rest:
        found = _number(term)
        rest.append((name, found.evaluate))
        names |= found.names
    steps = tuple(rest)

    def evaluate(values: Values) -> int | float | None:
        result: Value = first(values)
        for name, evaluator in steps:
            result = calculate(name, result, evaluator(values))
            if result is None:
                return None
        return as_number(result)

    return Compiled(evaluate, names)


def _signed(expression: Signed) -> Compiled:
    found = _number(expression.term)
    evaluate, is_minus = found.evaluate, expression.operator == "-"

    def sign(values: Values) -> int | float | None:
        number = as_number(evaluate(values))
        if number is None:
            return None
        number = -number if is_minus else number
        return within_long(number) if number.__class__ is int else number

    return Compiled(sign, found.names)
