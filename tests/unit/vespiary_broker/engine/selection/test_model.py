"""Selectors against the model of the testkit, and against any text at all."""

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vespiary_broker.engine.selection.selector import Selector, compile_selector
from vespiary_spec.errors import InvalidSelector
from vespiary_testkit.selector_oracle import (
    comparisons,
    conditions,
    messages,
    pairs,
    selects,
    text_of,
    truth,
)
from vespiary_testkit.step_counter import steps_of

WORDS = (
    *("a", "b", "1", "2.5", "0x1F", "'x'", "'%'", '"c-d"', "(", ")", ",", "=", "<>", "<", "+"),
    *("AND", "or", "NOT", "between", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "-", "*", "/"),
    *("'", '"', ".", "1L", "07", "é", "\0", "convert_string_expressions:"),
)


@given(node=conditions, message=messages)
def test_a_selector_says_what_the_model_says(node, message):
    _check(node, message)


@settings(max_examples=300)
@given(node=comparisons, message=pairs)
def test_a_comparison_says_what_the_model_says(node, message):
    _check(node, message)


def _check(node, message):
    selector = compile_selector(text_of(node))
    assert selector.matches(message) == selects(node, message)
    # Its negation tells false from unknown.
    negated = compile_selector(f"NOT ({text_of(node)})")
    assert negated.matches(message) == (truth(node, message) is False)


@given(node=conditions, message=messages)
def test_only_the_names_that_it_tells_count(node, message):
    selector = compile_selector(text_of(node))
    needed = {name: value for name, value in message.items() if name in selector.names}
    assert selector.matches(needed) == selector.matches(message)
    if selector.is_constant:
        assert (selector.constant is True) == selects(node, message)


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)))
@example("'")
@example("a like 'x' escape 'yy'")
@example("9" * 5000)
@example("1e999 = a")
@example("\ud800")
def test_any_text_is_a_selector_or_refused_with_its_place(text):
    found = _compiled(text)
    if not isinstance(found, InvalidSelector):
        assert found.matches({}) in (True, False)
        return
    assert 0 <= found.position <= len(text)
    assert text == found.selector
    if text:
        shown, caret, end = found.details.split("\n")
        assert end == ""
        assert caret.strip() == "^"
        assert len(caret) <= len(shown) + 1


def _compiled(text: str) -> Selector | InvalidSelector:
    try:
        return compile_selector(text)
    except InvalidSelector as error:
        return error


LONG_TEXTS: dict[str, Callable[[int], str]] = {
    "terms": lambda n: "a=1 OR " * (n // 7) + "a=2",
    "brackets": lambda n: "(" * (n // 2) + "a" + ")" * (n // 2),
    "open brackets": lambda n: "(" * n,
    "strings": lambda n: "a IN (" + "'x'," * (n // 4) + "'y')",
    "sum": lambda n: "a = 1" + "+1" * (n // 2),
    "product": lambda n: "a = b" + "*b" * (n // 2),
    "signs": lambda n: "-" * n + "1 = a",
    "nots": lambda n: "NOT " * (n // 4) + "a",
    "quotes": lambda n: "'" * (n + 1),
    "digits": lambda n: "a = " + "9" * n,
    "pattern": lambda n: "a LIKE '" + "%a_" * (n // 3) + "'",
}
"""Texts of about so many characters each."""


def _judge(text: str, value: str) -> None:
    """Compile a text, and ask the selector, if it is one, about a message."""
    found = _compiled(text)
    if isinstance(found, InvalidSelector):
        assert len(str(found)) < 500
        assert len(found.details) < 200
    else:
        found.matches({"a": value, "b": "9" * 18})


@pytest.mark.ci
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_the_longest_texts_take_no_longer_than_their_length(name: str):
    longest = LONG_TEXTS[name](65_000)
    assert 60_000 < len(longest) <= 65_536
    _judge(longest, "a" * 60_000)
    short, twice = (
        steps_of(lambda n=n: _judge(LONG_TEXTS[name](n), "a" * n)) for n in (2_000, 4_000)
    )
    assert twice < 2.5 * short
