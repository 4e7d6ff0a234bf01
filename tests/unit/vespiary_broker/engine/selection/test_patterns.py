import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.selection.patterns import (
    PATTERN_CHARACTERS_MAX,
    PatternError,
    compile_like,
    cost_us,
)
from vespiary_native import loader
from vespiary_native.like import finder_of
from vespiary_native.twin.like import finder_of as twin_finder
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


@pytest.mark.skipif(not loader.is_native(), reason="the twin takes one for each character")
@pytest.mark.parametrize("length", [1_000, 60_000])
def test_no_character_of_the_value_takes_a_step_of_python(length: int):
    matches = compile_like("%" + "a_" * 200 + "b%c_d%")
    assert steps_of(lambda: matches("a" * length)) < 50


@given(
    parts=st.lists(
        st.lists(st.sampled_from(["a", "b", "\u20ac", "\udc80", None]), min_size=1, max_size=70),
        min_size=1,
        max_size=3,
    ),
    text=st.text("ab\u20ac\udc80c", max_size=300),
    begin=st.integers(0, 5),
)
def test_both_cores_find_the_same(parts: list[list[str | None]], text: str, begin: int):
    end = len(text)
    begin = min(begin, end)
    assert finder_of(parts)(text, begin, end) == twin_finder(parts)(text, begin, end)


def test_a_part_has_between_1_and_1024_characters():
    assert finder_of([[None] * 1023 + ["b"]])("a" * 2000 + "b", 0, 2001)
    for part in ([], [None] * 1025):
        with pytest.raises(ValueError, match="1 to 1024"):
            finder_of([part])


def test_the_cost_tells_patterns_that_are_searched_for():
    assert cost_us("abc%") < cost_us("%abc") + 1 < 10
    assert cost_us("%abc%") > 100
    assert cost_us("%" + "a_" * 400 + "%") > 2 * cost_us("%a_%")
