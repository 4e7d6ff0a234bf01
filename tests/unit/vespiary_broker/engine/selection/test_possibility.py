"""What a sketch rules out is in no message, and what it could rule out it does."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from vespiary_broker.engine.matching import SelectorMatch
from vespiary_broker.engine.selection.message_values import Extractor
from vespiary_broker.engine.selection.selector import compile_selector
from vespiary_codec.journal.page_sketch import PageSketch, decode_page_sketch
from vespiary_codec.wire.stomp.escapes import escape
from vespiary_native.page_sketch import page_sketch
from vespiary_testkit.page_builder import Message, build_page, whole_parts_of
from vespiary_testkit.selector_oracle import NAMES, TEXTS, conditions, selects, text_of

ESCAPED, MOVED, SPECIAL, VOLATILE = 2, 8, 16, 32
ADDRESS = "orders.of.a.name.that.is.longer.than.a.bound"


class View(NamedTuple):
    """A message as the core shows it."""

    sequence: int
    deliveries: int
    priority: int
    time_ms: int
    is_journalled: bool
    is_escaped: bool
    body_length: int
    properties: bytes


def view_of(message: Message, number: int) -> View:
    return View(
        sequence=number,
        deliveries=number % 3,
        priority=message.priority,
        time_ms=message.arrival_ms,
        is_journalled=not message.flags & VOLATILE,
        is_escaped=bool(message.flags & ESCAPED),
        body_length=len(message.body),
        properties=message.properties,
    )


def sketch_of(messages: list[Message], room: int = 2048) -> PageSketch:
    placed = [one._replace(places=((1, number),)) for number, one in enumerate(messages, start=1)]
    found = decode_page_sketch(page_sketch(whole_parts_of(build_page(placed)), room))
    assert found is not None
    return found


# --- nothing is ruled out that is there -----------------------------------------------------------

_BESIDE = ("JMSPriority", "JMSTimestamp", "JMSDeliveryMode", "JMSXDeliveryCount", "JMSExpiration")
_MORE = (
    "JMSType",
    "AMQSize",
    "AMQAddress",
    "AMQDurable",
    "expires",
    "type",
    "a\\b",
    "a:b",
    "x\ufffdy",
)
_ALL_NAMES = st.sampled_from((*NAMES, *_BESIDE, *_MORE))
_texts = st.one_of(
    st.sampled_from((*TEXTS, "True", "fAlSe", "PERSISTENT", "4", "a" * 40, "a" * 40 + "b")),
    st.integers(-20, 20).map(str),
    st.sampled_from(("9007199254740993", "9223372036854775808", "1e400", "-0", "5.", "\t3")),
    st.text(st.characters(codec="utf-8"), max_size=4),
)
_headers = st.lists(st.tuples(_ALL_NAMES, _texts), max_size=6)
_names_of_nodes = st.fixed_dictionaries(
    {name: st.one_of(st.just(name), _ALL_NAMES) for name in NAMES}
)


@st.composite
def stored(draw: Any) -> Message:
    """Return a message as a client may have sent it."""
    is_escaped = draw(st.booleans())
    lines = []
    for name, value in draw(_headers):
        if is_escaped:
            lines.append(f"{escape(name, '1.2')}:{escape(value, '1.2')}\n".encode())
        else:
            lines.append(f"{name}:{value}".replace("\n", "").encode() + b"\n")
    if draw(st.integers(0, 9)) == 0:
        lines.append(b"a:\xff1\n")
    flags = MOVED | (ESCAPED if is_escaped else 0) | draw(st.sampled_from((0, SPECIAL, VOLATILE)))
    return Message(
        draw(st.binary(max_size=2)),
        ((1, 1),),
        b"".join(lines),
        flags,
        draw(st.integers(0, 9)),
        draw(st.integers(0, 12)),
    )


def renamed(node: Any, names: dict[str, str]) -> Any:
    """Return a tree with other names."""
    if node[0] == "name":
        return ("name", names[node[1]])
    if node[0] == "null":
        return (node[0], node[1], names[node[2]])
    if node[0] == "literal":
        return node
    return tuple(renamed(one, names) if _is_node(one) else one for one in node)


def _is_node(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], str)


def check(page: list[Message], node: Any, room: int = 2048) -> bool:
    """Check that nothing matches that is ruled out; return whether the page is."""
    text = text_of(node)
    match = SelectorMatch(text, ADDRESS)
    if match.may_match(sketch_of(page, room)):
        return False
    extractor = Extractor(compile_selector(text).names, address=ADDRESS)
    for number, message in enumerate(page):
        view = view_of(message, number)
        assert not match.wants(view)  # type: ignore[arg-type]
        assert not selects(node, extractor.values_of(view))
    return True


@settings(max_examples=120)
@given(
    page=st.lists(stored(), min_size=1, max_size=5),
    node=conditions,
    names=_names_of_nodes,
    room=st.one_of(st.just(2048), st.integers(48, 300)),
)
@example(
    [Message(b"", properties=b"a:\xff\n")],
    ("compare", "=", ("name", "a"), ("literal", "\ufffd")),
    dict.fromkeys(NAMES, "a"),
    2048,
)
def test_what_is_ruled_out_is_in_no_message(
    page: list[Message], node: Any, names: dict[str, str], room: int
) -> None:
    is_ruled_out = check(page, renamed(node, names), room)
    event(f"ruled out: {is_ruled_out}")


@settings(max_examples=100)
@given(
    page=st.lists(stored(), min_size=1, max_size=4),
    name=st.sampled_from(("a", "b", "JMSPriority", "JMSTimestamp", "expires", "JMSExpiration")),
    operator=st.sampled_from(("=", "<>", "<", "<=", ">", ">=")),
    value=st.one_of(_texts, st.integers(0, 2**63), st.floats(0, 1e300)),
    is_not=st.booleans(),
)
def test_what_a_comparison_rules_out_is_in_no_message(
    page: list[Message], name: str, operator: str, value: Any, *, is_not: bool
) -> None:
    if isinstance(value, str) and operator not in ("=", "<>"):
        operator = "="
    node = ("compare", operator, ("name", name), ("literal", value))
    check(page, ("not", node) if is_not else node)


# --- what is not there is ruled out ---------------------------------------------------------------

PAGE = [
    Message(b"12345", ((1, 1),), line, MOVED, priority, 1000 + priority)
    for line, priority in (
        (b"colour:red\nprice:7\nid:ORD-0100\nwhen:2026-11-22\nurgent:TRUE\ntype:x\n", 4),
        (b"colour:blue\nprice:9\nid:ORD-0200\nwhen:2026-11-23\nurgent:no\n", 6),
        (b"colour:green\nprice:12\nid:ORD-0300\nwhen:2026-11-24\nsize:1.50\nfixed:one\n", 5),
    )
]


@pytest.mark.parametrize(
    "selector",
    [
        "colour = 'black'",
        "'black' = colour",
        "colour IN ('black', 'white')",
        "colour LIKE 's%'",
        "colour LIKE 'black'",
        "colour LIKE 'bl_ckish%' AND colour = 'blackish'",
        "id = 'ORD-0301'",
        "id LIKE 'ORD-04%'",
        "when LIKE '2026-10-%'",
        "colour = '7'",
        "price = 8",
        "price = 8.0",
        "price = 7.5",
        "price < 7",
        "price > 12",
        "12 < price",
        "price >= 6 * 2 + 1",
        "price BETWEEN 13 AND 20",
        "price BETWEEN 1 AND -3 + 5",
        "price = -7",
        "size = 2",
        "size < 1.5",
        "colour = 7",
        "weight = 1",
        "weight = 'x'",
        "weight <> 'x'",
        "NOT weight = 'x'",
        "weight IS NOT NULL",
        "weight LIKE '%'",
        "weight IN ('a')",
        "NOT weight IN ('a')",
        "weight = colour",
        "weight",
        "NOT weight",
        "colour",
        "colour = TRUE",
        "urgent = FALSE",
        "urgent <> TRUE",
        "colour IS NULL",
        "fixed <> 'one'",
        "NOT fixed = 'one'",
        "fixed NOT LIKE 'o%'",
        "fixed NOT IN ('one', 'two')",
        "fixed LIKE 't%'",
        "JMSPriority > 6",
        "JMSPriority = 3",
        "JMSPriority = '4'",
        "JMSPriority LIKE '4'",
        "JMSPriority IS NULL",
        "AMQPriority < 4",
        "JMSTimestamp < 1004",
        "AMQTimestamp > 1006",
        "JMSDeliveryMode = 'NON_PERSISTENT'",
        "JMSDeliveryMode <> 'PERSISTENT'",
        "AMQDurable = 'NON_DURABLE'",
        "JMSXDeliveryCount < 1",
        "AMQSize > 80",
        "AMQSize < 10",
        "JMSType = 'y'",
        "JMSExpiration > 0",
        "JMSCorrelationID IS NOT NULL",
        "AMQAddress = 'others'",
        "colour = 'black' AND price = 7",
        "price = 7 AND colour = 'black'",
        "colour = 'black' OR price > 12",
        "(colour = 'black' OR price > 12) AND id IS NOT NULL",
        "NOT (colour IS NOT NULL OR price = 7)",
        "1 = 2",
        "weight IS NULL AND FALSE",
        "'a' = 'b' OR colour = 'x'",
    ],
)
def test_what_is_not_there_is_ruled_out(selector: str) -> None:
    match = SelectorMatch(selector, ADDRESS)
    assert not match.may_match(sketch_of(PAGE))
    assert not any(match.wants(view_of(one, 0)) for one in PAGE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "selector",
    [
        "colour = 'red'",
        "colour <> 'red'",
        "NOT colour = 'red'",
        "colour IN ('black', 'blue')",
        "colour NOT IN ('blue')",
        "colour LIKE 'gr%'",
        "colour LIKE '%e'",
        "colour LIKE '_ed'",
        "price = 7",
        "price = 7.0",
        "price = '7'",
        "price < 8",
        "price <= 7",
        "price >= 12",
        "price > 11",
        "price BETWEEN 12 AND 13",
        "price <> 7",
        "NOT colour = 7",
        "NOT colour > 1",
        "price + 1 = 8",
        "-price < -6",
        "size = 1.5",
        "urgent",
        "urgent = TRUE",
        "NOT urgent",
        "urgent <> FALSE",
        "urgent IS NULL",
        "type = 'x'",
        "JMSType = 'x'",
        "JMSType IS NULL",
        "weight IS NULL",
        "colour <> id",
        "JMSPriority = 5",
        "JMSPriority <> 5",
        "JMSDeliveryMode = 'PERSISTENT'",
        "JMSXDeliveryCount = 1",
        "AMQSize < 90",
        f"AMQAddress = '{ADDRESS}'",
        "colour = 'black' OR price = 9",
        "(price > 1) = TRUE",
        "1 = 1",
    ],
)
def test_what_is_there_is_not_ruled_out(selector: str) -> None:
    match = SelectorMatch(selector, ADDRESS)
    assert match.may_match(sketch_of(PAGE))
    assert any(match.wants(view_of(one, 0)) for one in PAGE)  # type: ignore[arg-type]


def test_names_that_are_not_in_the_sketch_may_be_anything() -> None:
    page = [Message(b"", properties=b"".join(b"n%d:1\n" % number for number in range(40)))]
    sketch = sketch_of(page)
    assert not sketch.is_complete
    assert SelectorMatch("n39 = 1", "").may_match(sketch)
    assert SelectorMatch("n39 IS NULL", "").may_match(sketch)
    assert not SelectorMatch("n0 = 2", "").may_match(sketch)


def test_names_that_a_sketch_does_not_see_may_be_anything() -> None:
    plain = Message(b"", properties=b"a:b:1\nc\\d:2\n")
    escaped = plain._replace(properties=b"odd\\cname:1\n", flags=MOVED | ESCAPED)
    for message, selector in (
        (plain, '"a:b" = 1'),
        (plain, '"c\\d" = 2'),
        (escaped, '"odd:name" = 1'),
        (plain._replace(properties=b"\xff:1\n"), '"\ufffd" = 1'),
        (plain._replace(properties=b"a:\xff\n"), "a = '\ufffd'"),
        (plain._replace(properties=b"a:\xffx\n"), "a LIKE '\ufffdx%'"),
    ):
        match = SelectorMatch(selector, "")
        assert match.wants(view_of(message, 0)), selector  # type: ignore[arg-type]
        assert match.may_match(sketch_of([message])), selector


def test_a_header_of_a_name_that_stands_for_another_counts_where_that_is_not() -> None:
    lines = (b"type:x\n", b"JMSType:y\n", b"")
    sketch = sketch_of([Message(b"", properties=line) for line in lines])
    for selector in ("JMSType = 'x'", "JMSType = 'y'", "JMSType IS NULL"):
        assert SelectorMatch(selector, "").may_match(sketch)
    assert not SelectorMatch("JMSType = 'z'", "").may_match(sketch)
    sketch = sketch_of([Message(b"", properties=b"type:x\nJMSType:y\n")])
    assert not SelectorMatch("JMSType = 'y'", "").may_match(sketch)


def test_a_message_may_have_been_given_out_any_number_of_times() -> None:
    sketch = sketch_of([Message(b"", properties=b"")])
    for count in (1, 2, 1000):
        assert SelectorMatch(f"JMSXDeliveryCount = {count}", "").may_match(sketch)


def test_messages_that_need_not_survive_may_be_of_either_mode() -> None:
    sketch = sketch_of([Message(b"", properties=b"", flags=MOVED | VOLATILE)])
    assert SelectorMatch("JMSDeliveryMode = 'PERSISTENT'", "").may_match(sketch)
    assert SelectorMatch("JMSDeliveryMode = 'NON_PERSISTENT'", "").may_match(sketch)
    assert not SelectorMatch("JMSDeliveryMode = 'X'", "").may_match(sketch)
