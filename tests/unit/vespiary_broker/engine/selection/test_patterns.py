import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.selection.patterns import (
    PATTERN_CHARACTERS_MAX,
    PatternError,
    compile_like,
)
from vespiary_testkit.step_counter import steps_of


@pytest.mark.parametrize(
    ("pattern", "escape", "good", "bad"),
    [
        ("12%3", "", ["123", "12993"], ["1234", "12", "x123"]),
        ("l_se", "", ["lose"], ["loose", "lse", "losex"]),
        ("\\_%", "\\", ["_foo", "_"], ["bar", "x_"]),
        ("", "", [""], ["x"]),
        ("%", "", ["", "anything\nat all"], []),
        ("_", "", ["x", "\n", "é"], ["", "xy"]),
        ("%_b%", "", ["ab", "xxab", "bb"], ["b", "ba"]),
        ("a%a", "", ["aa", "aba"], ["a"]),
        ("%ab%ab%", "", ["abab", "xabyabz"], ["aba"]),
        ("100!%", "!", ["100%"], ["100", "1000"]),
        ("!!", "!", ["!"], ["!!"]),
        (".*", "", [".*"], ["xx"]),
    ],
)
def test_patterns(pattern: str, escape: str, good: list[str], bad: list[str]):
    matches = compile_like(pattern, escape)
    assert [text for text in good if not matches(text)] == []
    assert [text for text in bad if matches(text)] == []


@given(pattern=st.text("ab_%", max_size=12), text=st.text("abc", max_size=20))
def test_it_finds_what_a_regular_expression_finds(pattern: str, text: str):
    expression = "".join({"_": ".", "%": ".*"}.get(c, c) for c in pattern)
    assert compile_like(pattern)(text) == bool(re.fullmatch(expression, text, re.DOTALL))


@pytest.mark.parametrize(("pattern", "escape"), [("x!", "!"), ("!x", "!"), ("a!b%", "!")])
def test_an_escape_before_nothing_that_it_could_escape(pattern: str, escape: str):
    with pytest.raises(PatternError, match="may stand only before"):
        compile_like(pattern, escape)


def test_too_long():
    compile_like("x" * PATTERN_CHARACTERS_MAX)
    with pytest.raises(PatternError, match="1025 characters; 1024 are allowed"):
        compile_like("x" * (PATTERN_CHARACTERS_MAX + 1))


@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 500 + "%b%",
        "%a%b" * 255 + "%",
        "%a_" * 300 + "%b_%",
        "%" + "a_" * 500 + "b%",
        "%a_b" * 250 + "%",
        "%" + "_" * 1000 + "b%",
    ],
)
def test_no_pattern_goes_back(pattern: str):
    matches = compile_like(pattern)
    text = "a" * 60_000
    one_pass = 3 * (len(text) + len(pattern))  # lines for each character
    assert steps_of(lambda: matches(text), one_pass) > 0
