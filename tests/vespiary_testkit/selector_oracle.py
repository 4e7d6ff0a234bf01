"""Selectors as trees of tuples, their text, and what they say: the model that tests compare with.

Shares no code with the broker: truth tables instead of logic, `re` instead of the LIKE matcher,
`divmod` instead of a division toward 0. Nodes:

    ("literal", value)  ("name", name)  ("and" | "or", left, right)  ("not", term)
    ("compare", operator, left, right)  ("between", is_not, term, low, high)
    ("in", is_not, term, strings)  ("like", is_not, term, pattern, escape)  ("null", is_not, name)
    ("calculate", operator, left, right)  ("minus", term)
"""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

Node = tuple[Any, ...]

NAMES = ("a", "b", "colour", "$x_1", "Größe", "content-type")
TEXTS = ("", "red", "1", "1.0", "-7", " 5 ", "1e2", "0x10", "true", "FALSE", "it's", "a%b_c", "007")
LONG = 2**63

AND = {
    (True, True): True,
    (True, None): None,
    (None, True): None,
    (None, None): None,
}
"""What is not here is false."""
OR = {
    (False, False): False,
    (False, None): None,
    (None, False): None,
    (None, None): None,
}
"""What is not here is true."""


# --- making -------------------------------------------------------------------------------------

values = st.one_of(
    st.none(),
    st.sampled_from(TEXTS),
    st.text(max_size=4),
    st.booleans(),
    st.integers(-10, 10),
    st.integers(-LONG, LONG - 1),
    st.floats(allow_nan=False, width=32),
)
messages = st.dictionaries(st.sampled_from(NAMES), values)
pairs = st.fixed_dictionaries({"a": values, "b": values})

_names = st.sampled_from(NAMES).map(lambda name: ("name", name))
_strings = st.one_of(st.sampled_from(TEXTS), st.text(max_size=3))
_string_literals = _strings.map(lambda text: ("literal", text))
_numbers = st.one_of(
    st.integers(0, 12), st.integers(0, LONG), st.sampled_from((0.0, 0.5, 10.0, 1e300, 2.5e-3))
).map(lambda number: ("literal", number))


def _grow_numbers(inner: Any) -> Any:
    return st.one_of(
        st.tuples(st.just("calculate"), st.sampled_from("+-*/"), inner, inner),
        st.tuples(st.just("minus"), inner),
    )


numbers = st.recursive(st.one_of(_names, _numbers), _grow_numbers, max_leaves=5)
_patterns = st.text("ab%_r1x", max_size=6)
_equal = st.sampled_from(("=", "<>"))
_order = st.sampled_from(("=", "<>", "<", "<=", ">", ">="))
_simple = st.one_of(
    st.booleans().map(lambda value: ("literal", value)),
    _names,
    st.tuples(st.just("compare"), _order, numbers, numbers),
    st.tuples(st.just("compare"), _order, _names, _numbers),
    st.tuples(st.just("compare"), _order, _names, _names),
    st.tuples(st.just("compare"), _equal, _names, _string_literals),
    st.tuples(st.just("compare"), _equal, _string_literals, _names),
    st.tuples(st.just("compare"), _equal, _string_literals, _string_literals),
    st.tuples(st.just("between"), st.booleans(), numbers, numbers, numbers),
    st.tuples(
        st.just("in"),
        st.booleans(),
        st.one_of(_names, _string_literals),
        st.lists(_strings, min_size=1, max_size=3),
    ),
    st.tuples(st.just("like"), st.booleans(), _names, _patterns, st.just("")),
    st.tuples(
        st.just("like"),
        st.booleans(),
        _names,
        st.lists(st.sampled_from(("a", "%", "_", "!%", "!_", "!!", "1")), max_size=5).map("".join),
        st.just("!"),
    ),
    st.tuples(st.just("null"), st.booleans(), st.sampled_from(NAMES)),
)


comparisons = st.one_of(
    st.tuples(st.just("compare"), _order, st.just(("name", "a")), st.just(("name", "b"))),
    st.tuples(st.just("compare"), _order, st.just(("name", "a")), _numbers),
    st.tuples(st.just("compare"), _equal, st.just(("name", "a")), _string_literals),
)
"""Single comparisons of `pairs`."""


def _grow(inner: Any) -> Any:
    return st.one_of(
        st.tuples(st.sampled_from(("and", "or")), inner, inner),
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("compare"), _equal, inner, inner),
    )


conditions = st.recursive(_simple, _grow, max_leaves=8)


# --- text ---------------------------------------------------------------------------------------

_LEVELS = {"or": 1, "and": 2, "not": 3, "compare": 4, "between": 4, "in": 4, "like": 4, "null": 4}


def _level(node: Node) -> int:
    if node[0] == "calculate":
        return 5 if node[1] in "+-" else 6
    if node[0] == "minus":
        return 7
    return _LEVELS.get(node[0], 8)


def text_of(node: Node) -> str:
    """Return a selector with no more brackets than its tree needs."""
    kind = node[0]
    if kind == "literal":
        return _literal(node[1])
    if kind == "name":
        return _name(node[1])
    if kind in ("and", "or"):
        own = _level(node)
        return f"{_part(node[1], own)} {kind.upper()} {_part(node[2], own + 1)}"
    if kind == "not":
        return f"not {_part(node[1], 3)}"
    if kind == "compare":
        return f"{_part(node[2], 5)} {node[1]} {_part(node[3], 5)}"
    if kind == "calculate":
        own = _level(node)
        return f"{_part(node[2], own)} {node[1]} {_part(node[3], own + 1)}"
    if kind == "minus":
        return f"-{_part(node[1], 7)}"
    negation = "NOT " if node[1] else ""
    if kind == "null":
        return f"{_name(node[2])} Is {negation}Null"
    term = _part(node[2], 5)
    if kind == "between":
        return f"{term} {negation}BETWEEN {_part(node[3], 5)} AND {_part(node[4], 5)}"
    if kind == "in":
        return f"{term} {negation}IN ({', '.join(map(_literal, node[3]))})"
    escape = f" ESCAPE {_literal(node[4])}" if node[4] else ""
    return f"{term} {negation}LIKE {_literal(node[3])}{escape}"


def _part(node: Node, level: int) -> str:
    text = text_of(node)
    return text if _level(node) >= level else f"({text})"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bool):
        return "True" if value else "FALSE"
    return repr(value)


def _name(name: str) -> str:
    return name if re.fullmatch(r"[\w$]+", name) else f'"{name}"'


# --- meaning ------------------------------------------------------------------------------------


def selects(node: Node, message: dict[str, Any]) -> bool:
    """Return whether a condition is true of a message."""
    return truth(node, message) is True


def truth(node: Node, message: dict[str, Any]) -> bool | None:
    """Return True, False, or None for unknown."""
    kind = node[0]
    if kind in ("literal", "name"):
        return _compare("=", node, ("literal", True), message)
    if kind == "and":
        return AND.get((truth(node[1], message), truth(node[2], message)), False)
    if kind == "or":
        return OR.get((truth(node[1], message), truth(node[2], message)), True)
    if kind == "not":
        return {True: False, False: True, None: None}[truth(node[1], message)]
    if kind == "compare":
        return _compare(node[1], node[2], node[3], message)
    negate = {True: False, False: True, None: None} if node[1] else {}
    result = _tests(node, message)
    return negate.get(result, result)


def _tests(node: Node, message: dict[str, Any]) -> bool | None:
    kind = node[0]
    if kind == "null":
        return message.get(node[2]) is None
    if kind == "between":
        low = _compare(">=", node[2], node[3], message)
        high = _compare("<=", node[2], node[4], message)
        return AND.get((low, high), False)
    value = _value(node[2], message)
    if value is None:
        return None
    if not isinstance(value, str):
        return False
    if kind == "in":
        return value in node[3]
    return re.fullmatch(_expression(node[3], node[4]), value, re.DOTALL) is not None


def _expression(pattern: str, escape: str) -> str:
    found, is_escaped = "", False
    for character in pattern:
        if not is_escaped and character == escape:
            is_escaped = True
            continue
        special = {"%": ".*", "_": "."}.get(character) if not is_escaped else None
        found += special or re.escape(character)
        is_escaped = False
    return found


def _value(node: Node, message: dict[str, Any]) -> Any:
    if node[0] == "literal":
        return node[1]
    if node[0] == "name":
        return message.get(node[1])
    if node[0] == "minus":
        number = _number(_value(node[1], message))
        return None if number is None else _bounded(-number)
    if node[0] == "calculate":
        left, right = (_number(_value(side, message)) for side in node[2:])
        return None if left is None or right is None else _calculate(node[1], left, right)
    return truth(node, message)


def _calculate(operator: str, left: Any, right: Any) -> Any:
    if operator == "/":
        if right == 0:
            return None
        if isinstance(left, int) and isinstance(right, int):
            quotient, rest = divmod(left, right)
            return _bounded(quotient + 1 if rest and quotient < 0 else quotient)
    result = {
        "+": lambda: left + right,
        "-": lambda: left - right,
        "*": lambda: left * right,
        "/": lambda: left / right,
    }[operator]()
    return None if result != result else _bounded(result)


def _bounded(number: Any) -> Any:
    if isinstance(number, int) and not -LONG <= number < LONG:
        return float(number)
    return number


def _number(value: Any) -> Any:
    if isinstance(value, str):
        text = value.strip(" \t")
        if re.fullmatch(r"[+-]?[0-9]+", text):
            return _bounded(int(text))
        if re.fullmatch(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
            return float(text)
        return None
    return None if isinstance(value, bool) else value


def _boolean(value: Any) -> Any:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower(), "neither")
    return value


def _compare(operator: str, left: Node, right: Node, message: dict[str, Any]) -> bool | None:
    a, b = _value(left, message), _value(right, message)
    if a is None or b is None:
        return None
    if any(side[0] == "literal" and isinstance(side[1], str) for side in (left, right)):
        if not (isinstance(a, str) and isinstance(b, str)):
            return False
        return _holds(operator, a, b)
    if isinstance(a, bool) or isinstance(b, bool):
        a, b = _boolean(a), _boolean(b)
        is_alike = isinstance(a, bool) and isinstance(b, bool) and operator in ("=", "<>")
        return is_alike and _holds(operator, a, b)
    first, second = _number(a), _number(b)
    if first is not None and second is not None:
        return _holds(operator, first, second)
    is_text = isinstance(a, str) and isinstance(b, str) and operator in ("=", "<>")
    return is_text and _holds(operator, a, b)


def _holds(operator: str, a: Any, b: Any) -> bool:
    return {
        "=": a == b,
        "<>": a != b,
        "<": a < b if operator == "<" else False,
        "<=": a <= b if operator == "<=" else False,
        ">": a > b if operator == ">" else False,
        ">=": a >= b if operator == ">=" else False,
    }[operator]
