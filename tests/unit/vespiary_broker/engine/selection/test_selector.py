import subprocess
import sys

import pytest

from vespiary_broker.engine.selection.selector import compile_selector, compile_stored_filter
from vespiary_spec.errors import InvalidSelector, RemoteProtocolError
from vespiary_spec.limits import (
    SELECTOR_CHARACTERS_MAX,
    SELECTOR_COST_MS_MAX,
    SELECTOR_WORDS_MAX,
)
from vespiary_testkit.step_counter import steps_of

MESSAGE = {
    "colour": "red",
    "price": "5",
    "weight": 2.5,
    "count": 7,
    "flag": "true",
    "off": False,
    "on": True,
    "big": "9223372036854775807",
    "quoted": "it's",
    "content-type": "text/plain",
}

TRUE = """
colour = 'red'
colour <> 'blue'
colour = 'red' AND price < 10
price = 5
price = 5.0
5 = price
10 > price
price BETWEEN 5 AND 5
NOT price BETWEEN 6 AND 7
price NOT BETWEEN 6 AND 7
price * 2 + 1 = 11
price + 2 * 3 = 11
(price + 2) * 3 = 21
price - 1 - 1 = 3
-price = -5
- - price = 5
+price = 5
count / 2 = 3
count / 2.0 = 3.5
-7 / 2 = -3
weight = 25e-1
weight < 2.6f
count = 7L
count = 0x7
count = .7e1
count = 7.
weight > count - 5
colour IN ('green', 'red')
colour NOT IN ('green')
quoted = 'it''s'
quoted LIKE '%''s'
colour LIKE 'r_d'
colour NOT LIKE 'b%'
colour LIKE 'R%' OR colour LIKE 'r%'
missing IS NULL
colour IS NOT NULL
flag
flag = TRUE
on and not off
on = TRUE
off <> true
(price = 5) = TRUE
"content-type" = 'text/plain'
big > 9223372036854775806
big + 1 > big
1 = 1 OR missing = 5
NOT (1 = 2)
missing = 5 OR 1 = 1
a = 1 oR colour = 'red'
NOT NOT flag
NOT missing = 5 OR TRUE
NOT colour = 5
NOT colour <> 5
NOT on < count
NOT colour = count
NOT (colour + 1 = 6) OR TRUE
convert_string_expressions:price > 4
1 < price AND price < weight * 4 AND colour LIKE '%'
""".strip().splitlines()

NOT_TRUE = """
colour = 'Red'
missing = 5
missing <> 5
NOT missing = 5
missing = missing
missing + 1 = missing
missing LIKE '%'
missing NOT LIKE '%'
missing IN ('x')
missing NOT IN ('x')
missing BETWEEN 1 AND 2
NOT missing BETWEEN 1 AND 2
colour = 5
colour <> 5
colour <> count
on <> count
colour < 5
colour + 1 = 6
price = '5.0'
price = '05'
count = '7'
count <> '8'
on = 1
on < 5
count LIKE '7'
colour
off
missing
NOT missing
price / 0 = 5
NOT price / 0 = 5
missing AND TRUE
missing OR FALSE
FALSE
""".strip().splitlines()


@pytest.mark.parametrize("text", TRUE)
def test_true(text: str):
    assert compile_selector(text).matches(MESSAGE)


@pytest.mark.parametrize("text", NOT_TRUE)
def test_false_or_unknown(text: str):
    assert not compile_selector(text).matches(MESSAGE)


@pytest.mark.parametrize(
    ("text", "names", "constant"),
    [
        ("1 = 1", set(), True),
        ("1 = 1 AND a = 2", {"a"}, None),
        ("1 = 2 AND a = 2", set(), False),
        ("1 = 1 OR a = 2", set(), True),
        ("a = 2 OR 2 < 1 OR b", {"a", "b"}, None),
        ("NOT FALSE", set(), True),
        ("1 / 0 = 1", set(), None),
        ("'abc' LIKE 'a%' AND 'x' IN ('x')", set(), True),
        ("a BETWEEN b AND c", {"a", "b", "c"}, None),
    ],
)
def test_what_no_message_changes_is_folded(text: str, names: set[str], constant: bool | None):
    selector = compile_selector(text)
    assert selector.names == names
    assert selector.is_constant == (not names)
    assert selector.constant is constant


REFUSED = {
    "": (1, "the selector is empty"),
    "  ": (1, "the selector is empty"),
    "price <": (8, "the selector ends too early"),
    "price == 5": (8, "'=' is not expected here"),
    "price > 5 AND": (14, "the selector ends too early"),
    "price > 5 colour = 'x'": (11, "'colour' is not expected here"),
    "colour = 'red": (10, "the string that begins here does not end"),
    '"colour = 5': (1, "the name that begins here does not end"),
    "price @ 5": (7, "the character '@' means nothing here"),
    "colour IN (1)": (12, "'1' is not expected here"),
    "colour IN ()": (12, "')' is not expected here"),
    "price LIKE 5": (12, "'5' is not expected here"),
    "NULL = 5": (1, "'NULL' is not expected here"),
    "(price = 5": (11, "the selector ends too early"),
    "5": (1, "a number stands where a condition is needed"),
    "'x'": (1, "a string stands where a condition is needed"),
    "price + 1": (7, "a number stands where a condition is needed"),
    "colour < 'x'": (8, "< compares numbers, not a string"),
    "price >= TRUE": (7, ">= compares numbers, not a condition"),
    "5 = 'x'": (3, "a number is compared with a string, which is never true"),
    "(a = 1) = 5": (9, "a condition is compared with a number, which is never true"),
    "'x' + 1 = 5": (1, "a string stands where a number is needed"),
    "-TRUE = 5": (2, "a condition stands where a number is needed"),
    "5 LIKE 'x'": (1, "LIKE tests strings, not a number"),
    "(a + 1) IS NULL": (9, "IS NULL needs a name"),
    "a LIKE 'x' ESCAPE ''": (19, "ESCAPE needs one character"),
    "a LIKE 'x!' ESCAPE '!'": (3, "may stand only before"),
    "a = 010": (5, "begins with 0"),
    "a = 9223372036854775809": (5, "a whole number is too large"),
    '"" = 5': (1, "a name in double quotes is empty"),
    "hyphenated_props:a-b = 5": (1, "hyphenated_props: is not known"),
    "convert_string_expressions:a ==": (31, "'=' is not expected here"),
    "1 = 1 OR 5": (10, "a number stands where a condition is needed"),
    "NOT " * 101 + "a": (5, "the selector nests too deeply"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_wrong_is_said_with_its_place(text: str):
    position, what = REFUSED[text]
    with pytest.raises(InvalidSelector) as caught:
        compile_selector(text)
    error = caught.value
    assert what in error.what
    assert error.position == position - 1
    if text:
        assert str(error).startswith(f"selector, character {position}: ")
        shown, caret = error.details.splitlines()
        if len(text) < 40:
            assert shown == text
            assert caret == " " * (position - 1) + "^"
    assert isinstance(error, RemoteProtocolError)


def test_what_was_expected_is_said():
    with pytest.raises(InvalidSelector, match="Expected: a string in single quotes"):
        compile_selector("colour LIKE red")
    with pytest.raises(InvalidSelector, match="Put a name with hyphens into double quotes"):
        compile_selector("content-type = 'text/plain'")


def test_only_the_neighbourhood_of_a_mistake_is_shown():
    text = " OR ".join(f"a{number} = 1" for number in range(200)) + " OR ? OR b = 2" + " " * 100
    with pytest.raises(InvalidSelector) as caught:
        compile_selector(text)
    shown, caret = caught.value.details.splitlines()
    assert len(shown) < 100
    assert shown[0] == shown[-1] == "…"
    assert shown[len(caret) - 1] == "?"


def test_too_long():
    compile_selector("a" + " " * (SELECTOR_CHARACTERS_MAX - 1))
    with pytest.raises(InvalidSelector, match=r"too long \(got 65537 characters, allowed"):
        compile_selector("a" + " " * SELECTOR_CHARACTERS_MAX)


def test_brackets_alone_may_be_deep():
    assert compile_selector("(" * 500 + "1 = 1" + ")" * 500).constant is True


def test_words_are_limited():
    text = "a IN (" + ",".join(f"'{number}'" for number in range(509)) + ")"
    compile_selector(text)
    with pytest.raises(InvalidSelector, match=rf"too many words\..* at most {SELECTOR_WORDS_MAX} "):
        compile_selector(text.removesuffix(")") + ",'x','y')")


def test_what_takes_too_long_for_one_message_is_refused():
    patterns = [f"a LIKE '%{number}%'" for number in range(100)]
    compile_selector(" OR ".join(patterns[:35]))
    with pytest.raises(InvalidSelector) as caught:
        compile_selector(" OR ".join(patterns))
    assert f"at most {SELECTOR_COST_MS_MAX} ms" in str(caught.value)
    assert "too expensive" in str(caught.value)
    compile_selector(" OR ".join(f"a LIKE '{number}%'" for number in range(200)))


def test_a_filter_that_was_stored_stays(caplog: pytest.LogCaptureFixture):
    text = " OR ".join(f"a LIKE '%{number}%'" for number in range(300))
    found = compile_stored_filter(text)
    assert found is not None
    assert found.matches({"a": "x299x"})
    assert "more than a new one may" in caplog.text
    assert compile_stored_filter("") is None


def test_each_part_is_compiled_once():
    text = "1 = 1 OR a = 1"
    for _ in range(90):
        text = f"({text}) OR a = 1"
    # It took 2**90 steps, since a part that decides had all of them compiled again.
    assert steps_of(lambda: compile_selector(text), 200_000) > 0
    with pytest.raises(InvalidSelector):
        compile_selector("1 = 1 OR (a < 'x')")  # what decides nothing has to be right all the same


def test_the_parser_is_loaded_with_the_first_selector():
    code = (
        "import sys; from vespiary_broker.engine.selection.selector import compile_selector;"
        "assert 'lark' not in sys.modules; compile_selector('a = 1'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
