"""Application properties of AMQP in selectors: they keep their types, in queues and in sketches."""

from __future__ import annotations

import itertools
import uuid
from typing import Any, Final, NamedTuple

import pytest

from vespiary_broker.engine.matching import SelectorMatch
from vespiary_broker.engine.selection.message_values import values_of
from vespiary_broker.server.amqp.storing import take
from vespiary_codec.journal.page_sketch import PageSketch, decode_page_sketch
from vespiary_codec.wire.amqp import AmqpLimits, MessageProperties, Section, encode_section
from vespiary_codec.wire.amqp.native_part import application_properties
from vespiary_codec.wire.amqp.values import Array, Described, Float, Short, Symbol, UByte, ULong
from vespiary_native.page_sketch import page_sketch
from vespiary_testkit.page_builder import Message, build_page, whole_parts_of
from vespiary_testkit.step_counter import steps_of

VALUES: Final = (
    5, "5", "05", 6, "6", 0.5, 1e20, float("inf"), float("nan"), True, "true", False, "x",
    ULong(2**64 - 1), -7, Float(0.10000000149011612),
)  # fmt: skip
COMPOUND: Final = ("list", "map", "array")
TESTS: Final = (
    "{} = 5", "{} <> 5", "{} > 4", "{} < 6", "{} BETWEEN 5 AND 6", "{} = '5'", "{} <> '5'",
    "{} IN ('5', 'true', 'x')", "{} LIKE '5%'", "{} = TRUE", "{} <> TRUE", "{}", "{} IS NULL",
    "{} = 0.5", "{} > 1E19", "{} = 'true'", "{} = 'x'", "{} = 'inf'", "{} + 1 = 6", "{} = {}",
    "{} > 0.1", "{} = 0.1",
)  # fmt: skip


class Stored(NamedTuple):
    """A message of AMQP, as selectors see it."""

    properties: bytes
    is_escaped: bool = False
    sequence: int = 1
    deliveries: int = 0
    priority: int = 4
    time_ms: int = 1
    is_journalled: bool = True
    body_length: int = 0


def stored(application: dict[str, Any], properties: MessageProperties | None = None) -> bytes:
    data = encode_section(Section.PROPERTIES, properties or MessageProperties(to="q"))
    data += encode_section(Section.APPLICATION_PROPERTIES, application)
    data += encode_section(Section.AMQP_VALUE, "body")
    return take(data, AmqpLimits()).stored_properties("q")


def sketch_of(pages: list[bytes]) -> PageSketch:
    messages = [
        Message(b"", places=((1, number),), properties=one) for number, one in enumerate(pages, 1)
    ]
    found = decode_page_sketch(page_sketch(whole_parts_of(build_page(messages)), 2048))
    assert found is not None
    return found


def matches(selector: str, **application: Any) -> bool:
    return SelectorMatch(selector, "q").wants(Stored(stored(application)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "true", "false"),
    [
        (5, ["{} = 5", "{} = 5.0", "{} + 1 = 6", "NOT ({} = '5')"], ["{} = '5'", "{} LIKE '5'"]),
        (UByte(5), ["{} = 5"], ["{} IN ('5')"]),
        (Float(0.5), ["{} = 0.5", "{} < 1"], ["{} = '0.5'"]),
        ("5", ["{} = '5'", "{} <> '6'", "NOT ({} = 5)"], ["{} = 5", "{} <> 5", "{} < 6"]),
        (Symbol("5"), ["{} = '5'"], ["{} = 5"]),
        (True, ["{}", "{} = TRUE", "{} <> FALSE"], ["{} = 'true'", "{} LIKE 'true'", "{} = 1"]),
        ("true", ["{} = 'true'", "NOT {}"], ["{}", "{} = TRUE", "{} <> FALSE"]),
        (2.75e10, ["{} = 2.75E10"], ["{} = '27500000000.0'"]),
        (ULong(2**64 - 1), ["{} > 1E19"], ["{} < 1E19"]),
    ],
)
def test_values_keep_their_types(value: Any, true: list[str], false: list[str]) -> None:
    for selector in true:
        assert matches(selector.format("v"), v=value), selector
    for selector in false:
        assert not matches(selector.format("v"), v=value), selector


def test_two_properties() -> None:
    assert not matches("a = b", a=5, b="5")
    assert matches("a = b", a="5", b="5")
    assert not matches("a = b", a="5", b="05")
    assert not matches("a = b", a=True, b="true")


def test_what_is_missing_or_null_is_null() -> None:
    assert matches("a IS NULL AND b IS NULL AND c IS NOT NULL", a=None, c=1)


def test_a_header_of_the_same_name_counts() -> None:
    properties = stored({"type": 7}, MessageProperties(subject="order"))
    assert values_of(Stored(properties), {"type", "JMSType"}) == {
        "type": "order",
        "JMSType": "order",
    }


def test_names_and_values_with_escapes() -> None:
    message = Stored(stored({"a:b": "x\ny", "n": 5}), is_escaped=True)
    assert values_of(message, {"a:b", "n"}) == {"a:b": "x\ny", "n": 5}


def test_what_cannot_be_read_is_text() -> None:
    whole = stored({"n": 5})
    for end in range(whole.index(b"\0") + 1, len(whole)):
        assert values_of(Stored(whole[:end]), {"n"})["n"] in (5, "5")
    assert application_properties(b"", {"n"}) == {}
    assert application_properties(b"\x02" + whole.partition(b"\0")[2][1:], {"n"}) == {}


def test_sections_that_are_named_by_symbols_are_read() -> None:
    head, _, native = stored({"n": 5}).partition(b"\0")
    descriptor = b"\0\xa3\x1famqp:application-properties:map"
    begin = native.index(b"\0\x53\x74")
    sections = native[8:begin] + descriptor + native[begin + 3 :]
    changed = native[:4] + len(sections).to_bytes(4, "big") + sections
    assert values_of(Stored(head + b"\0" + changed), {"n"}) == {"n": 5}


@pytest.fixture(scope="module")
def pages() -> list[tuple[list[bytes], PageSketch]]:
    """Pages of one or two messages with all pairs of values, and their sketches."""
    made = []
    for values in itertools.combinations_with_replacement(VALUES, 2):
        page = [stored({"v": value}) for value in values]
        made.append((page, sketch_of(page)))
    return made


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("form", ["{}", "NOT ({})"])
def test_a_sketch_rules_out_nothing_that_matches(
    pages: list[tuple[list[bytes], PageSketch]], test: str, form: str
) -> None:
    match = SelectorMatch(form.format(test.replace("{}", "v")), "q")
    for page, sketch in pages:
        if any(match.wants(Stored(one)) for one in page):  # type: ignore[arg-type]
            assert match.may_match(sketch), page


@pytest.mark.parametrize("test", ["v = 0.1", "v BETWEEN 0.1 AND 0.1", "v <> 0.2"])
def test_a_number_of_32_bits_is_the_shortest_that_it_can_be(test: str) -> None:
    one = Stored(stored({"v": Float(0.10000000149011612)}))
    assert SelectorMatch(test, "q").wants(one)  # type: ignore[arg-type]


def test_a_value_is_found_behind_values_of_all_kinds() -> None:
    before = {
        "null": None, "truth": True, "ubyte": UByte(7), "short": Short(-3), "float": Float(0.5),
        "long": -(2**40), "id": uuid.uuid4(), "text": "a" * 255, "long text": "a" * 256,
        "octets": b"n", "many octets": b"n" * 300, "list": [1, "n"], "map": {"n": 6},
        "array": Array(0x71, [1, 2]), "described": Described(Symbol("d"), 1),
    }  # fmt: skip
    kept: dict[str, Any] = {}
    for name, value in before.items():
        kept[name] = value
        properties = kept | {"n": 5, "m": "5"}
        _, _, native = stored(properties).partition(b"\0")
        assert application_properties(native, {"n", "m", "no"}) == {"n": 5, "m": "5"}, name
        found = application_properties(native, set(properties))
        assert {key: one for key, one in found.items() if key not in COMPOUND} == {
            key: one for key, one in properties.items() if key not in COMPOUND
        }


def test_lists_and_maps_are_not_decoded() -> None:
    application = {f"{number}": [None] * 50 for number in range(100)} | {"n" * 300: 5, "m": 6}
    _, _, native = stored(application).partition(b"\0")
    names = set(application)
    assert application_properties(native, names) == {"n" * 300: 5, "m": 6}
    # Each of them takes the same few steps, however much is in it.
    assert steps_of(lambda: application_properties(native, names)) < 40 * len(application)
