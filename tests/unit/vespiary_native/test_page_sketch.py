"""Sketches of pages: C and its twin give the same bytes, and what they say of messages holds."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.selection.comparisons import number_of
from vespiary_broker.store.paging.page_files import PagePart
from vespiary_codec.journal.page_sketch import (
    BOUND_BYTES,
    NAMES_MAX,
    NO_EXPIRY_MS,
    SKETCH,
    SKETCH_BYTES_MAX,
    NameSketch,
    PageSketch,
    decode_page_sketch,
    probes,
)
from vespiary_codec.wire.stomp.errors import RemoteProtocolError
from vespiary_codec.wire.stomp.escapes import unescape
from vespiary_native import loader
from vespiary_native.page_sketch import page_sketch
from vespiary_native.twin.page_sketch import page_sketch as twin_sketch
from vespiary_native.values_pages import PageView
from vespiary_testkit.page_builder import Message, build_page, whole_parts_of

Sketcher = Callable[[Sequence[PagePart], int], bytes]
ESCAPED, MOVED, SPECIAL, VOLATILE = 2, 8, 16, 32
IN_ALL_AND_MORE = ("a", "b", "colour", "price", "Größe", "expires", "content-type")


def by_twin(parts: Sequence[PagePart], room: int) -> bytes:
    return twin_sketch([PageView(*part) for part in parts], room)


SKETCHERS = [by_twin, page_sketch] if loader.is_wanted() else [by_twin]


@pytest.fixture(params=SKETCHERS)
def sketch(request: pytest.FixtureRequest) -> Sketcher:
    found: Sketcher = request.param
    return found


def parts_of(*properties: str | bytes, flags: int = MOVED) -> list[PagePart]:
    encoded = [one.encode() if isinstance(one, str) else one for one in properties]
    return whole_parts_of(
        build_page(
            [
                Message(b"body", ((1, number),), one, flags)
                for number, one in enumerate(encoded, start=1)
            ]
        )
    )


def decoded(data: bytes) -> PageSketch:
    found = decode_page_sketch(data)
    assert found is not None
    return found


def sketched(sketch: Sketcher, *properties: str | bytes, flags: int = MOVED) -> PageSketch:
    return decoded(sketch(parts_of(*properties, flags=flags), SKETCH_BYTES_MAX))


def test_a_sketch_as_the_format_describes_it(sketch: Sketcher) -> None:
    messages = [
        Message(b"12345", ((1, 1),), b"colour:red\nprice:7\n", MOVED, 2, 1000),
        Message(b"", ((1, 2),), b"colour:blue\nprice:-3\n", MOVED | SPECIAL, 6, 900),
    ]
    data = sketch(whole_parts_of(build_page(messages)), SKETCH_BYTES_MAX)
    assert data[:8] == bytes([1, 1, 2, 6, MOVED, MOVED | SPECIAL, 2, 0])
    assert struct.unpack_from("<5Q", data, 8) == (900, 1000, 21, 24, NO_EXPIRY_MS)
    at = 48
    assert data[at : at + 8] == bytes([6, 1 | 4 | 8 | 16, 4, 3, 8, 0, 0, 0])
    assert data[at + 8 : at + 21] == b"colour" + b"blue" + b"red"
    at += 21 + 8
    assert data[at : at + 8] == bytes([5, 1 | 2 | 8 | 16, 2, 1, 8, 0, 0, 0])
    assert struct.unpack_from("<dd", data, at + 8) == (-3.0, 7.0)
    assert data[at + 24 : at + 32] == b"price" + b"-3" + b"7"
    bits = int.from_bytes(data[at + 32 :], "little")
    expected = 0
    for text in (b"7", b"-3"):
        for bit in probes(text):
            expected |= 1 << bit % 64
    assert bits == expected
    assert len(data) == at + 40


def test_what_a_sketch_tells(sketch: Sketcher) -> None:
    found = sketched(sketch, "colour:red\nprice:7\n", "price:12\ncolour:blue\nurgent:true\n")
    assert found.is_complete
    assert set(found.names) == {b"colour", b"price", b"urgent"}
    colour, price, urgent = (found.names[name] for name in (b"colour", b"price", b"urgent"))
    assert colour.is_in_all
    assert price.is_in_all
    assert not urgent.is_in_all
    assert colour.may_equal(b"red")
    assert colour.may_equal(b"blue")
    assert not any(colour.may_equal(one) for one in (b"green", b"a", b"z", b""))
    assert (colour.numbers, colour.has_others) == (None, True)
    assert (price.numbers, price.has_others, price.is_whole) == ((7.0, 12.0), False, True)
    assert urgent.only == b"true"
    assert colour.only is None
    assert colour.may_begin(b"re")
    assert not colour.may_begin(b"s")
    assert not colour.may_begin(b"a")


def test_the_first_of_a_repeated_header_counts(sketch: Sketcher) -> None:
    found = sketched(sketch, "a:1\na:2\nb:x\na:3\n", "a:1\n")
    assert found.names[b"a"].only == b"1"
    assert found.names[b"a"].is_in_all
    assert not found.names[b"b"].is_in_all


def test_escapes_are_looked_behind_where_there_are_any(sketch: Sketcher) -> None:
    lines = "when:10\\c30\\\\\\n\nbad:10\\c30\\t\nodd\\cname:1\nend:x\\\n"
    found = sketched(sketch, lines, flags=MOVED | ESCAPED)
    assert found.names[b"when"].only == b"10:30\\\n"
    assert found.names[b"bad"].only == b"10\\c30\\t"
    assert found.names[b"end"].only == b"x\\"
    assert found.is_complete
    assert len(found.names) == 3
    assert sketched(sketch, lines).names[b"when"].only == b"10\\c30\\\\\\n"


def test_many_values_have_no_filter_and_many_names_have_no_room(sketch: Sketcher) -> None:
    found = sketched(sketch, *(f"id:ORD-{number:06}\nn:{number}\n" for number in range(3000)))
    order = found.names[b"id"]
    assert order.bloom == b""
    assert (order.low, order.high) == (b"ORD-000000", b"ORD-002999")
    assert order.may_equal(b"ORD-001000")
    assert not order.may_equal(b"ORD-003000")
    assert found.names[b"n"].numbers == (0, 2999)
    names = "".join(f"name-{number}:{number}\n" for number in range(NAMES_MAX + 1))
    found = sketched(sketch, names)
    assert len(found.names) == NAMES_MAX
    assert not found.is_complete
    assert not sketched(sketch, f"{'x' * 256}:1\n").is_complete
    assert sketched(sketch, f"{'x' * 255}:1\n").is_complete


def test_a_filter_is_as_small_as_it_may_be_and_rarely_wrong(sketch: Sketcher) -> None:
    sizes = {}
    for count in (1, 5, 40, 300, 900):
        found = sketched(sketch, *(f"id:{number * 7919}-x\n" for number in range(count)))
        bloom = found.names[b"id"].bloom
        sizes[count] = len(bloom)
        wrong = sum(found.names[b"id"].may_equal(b"%d-y" % number) for number in range(10_000))
        assert wrong < 400
        assert sum(map(int.bit_count, bloom)) <= len(bloom) * 4
    assert list(sizes.values()) == [8, 8, 64, 512, 1024]


@pytest.mark.ci
def test_a_sketch_keeps_to_its_room(sketch: Sketcher) -> None:
    parts = parts_of(*(f"colour:red\nid:{number}-x\nlong:{'y' * 50}\n" for number in range(200)))
    whole = decoded(sketch(parts, SKETCH_BYTES_MAX))
    assert whole.is_complete
    for room in range(SKETCH.size, SKETCH_BYTES_MAX, 7):
        data = sketch(parts, room)
        assert len(data) <= room
        found = decoded(data)
        assert found.is_complete == (len(found.names) == 3)
        for name, facts in found.names.items():
            assert facts.low in (None, whole.names[name].low)
    assert sketch(parts, SKETCH.size - 1) == b""
    assert sketch(parts, 0) == b""


def test_when_the_first_message_of_a_page_expires(sketch: Sketcher) -> None:
    lines = ["expires:5000\n", "expires:0\n", "expires:x\n", "a:1\nexpires:0400\nexpires:3\n"]
    assert sketched(sketch, *lines, flags=MOVED | SPECIAL).first_expiry_ms == 3
    assert sketched(sketch, *lines).first_expiry_ms == NO_EXPIRY_MS
    long = f"expires:{'9' * 5000}\n"
    assert sketched(sketch, long, flags=SPECIAL | MOVED).first_expiry_ms == 10**18


def test_pages_of_other_protocols_have_no_sketch(sketch: Sketcher) -> None:
    message = Message(b"", ((1, 1),), b"a:1\n", protocol=2)
    assert sketch(whole_parts_of(build_page([message])), SKETCH_BYTES_MAX) == b""


def test_what_is_no_page_is_refused(sketch: Sketcher) -> None:
    blocks, footer = parts_of("a:1\n", "b:2\n")
    offset = blocks.offset
    for parts in (
        [],
        [PagePart(memoryview(bytes(4096)), 4096)],
        [blocks],
        [footer],
        [blocks, PagePart(footer.data[:32], footer.offset)],
        [blocks, footer._replace(offset=footer.offset + 4096)],
        [PagePart(blocks.data[: offset + 10], offset)._replace(offset=offset + 4096), footer],
        [blocks._replace(data=blocks.data[:80]), footer],
    ):
        with pytest.raises(ValueError, match="part"):
            sketch(parts, SKETCH_BYTES_MAX)


@pytest.mark.parametrize("version", [0, 2, 255])
def test_a_sketch_of_another_version_says_nothing(version: int) -> None:
    data = bytearray(by_twin(parts_of("a:1\n"), SKETCH_BYTES_MAX))
    data[0] = version
    assert decode_page_sketch(bytes(data)) is None


def test_a_sketch_that_is_cut_off_says_nothing() -> None:
    data = by_twin(parts_of("a:1\nb:x\n"), SKETCH_BYTES_MAX)
    for length in range(len(data)):
        assert decode_page_sketch(data[:length]) is None
    assert decode_page_sketch(data + b"\0") is None


# --- all that a header may be ---------------------------------------------------------------------

_number_texts = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False).map(str),
    st.from_regex(
        r"[ \t]{0,2}[+-]?[0-9]{0,19}\.?[0-9]{0,3}([eE][+-]?[0-9]{0,3})?[ \t]?", fullmatch=True
    ),
    st.sampled_from(
        ["9007199254740993", "-9007199254740993", "1e999", "-1e999", "00", "-0", "0x1"]
    ),
    st.integers(60, 70).map("1".__mul__),
)
_values = st.one_of(
    _number_texts,
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=50),
    st.sampled_from(["red", "green", "", "true", "a\\cb", "x\\q", "y\\", "z" * 40]),
).map(str.encode)
_raw = st.binary(max_size=12).map(lambda data: data.replace(b"\n", b""))
_names = st.one_of(
    st.sampled_from(IN_ALL_AND_MORE).map(str.encode),
    st.sampled_from([b"", b"a\\cb", b"n" * 300]),
    st.integers(0, 60).map(lambda number: b"name-%d" % number),
)
_lines = st.tuples(_names, st.one_of(_values, _raw)).map(b":".join)
_properties = st.lists(st.one_of(_lines, _raw), max_size=10).map(b"\n".join)
_messages = st.builds(
    Message,
    body=st.binary(max_size=3),
    places=st.just(((1, 1),)),
    properties=st.one_of(_properties, _properties.map(lambda lines: lines + b"\n")),
    flags=st.sampled_from([0, ESCAPED, SPECIAL, ESCAPED | SPECIAL]).map(MOVED.__or__),
    priority=st.integers(0, 9),
    arrival_ms=st.integers(0, 2**63),
    protocol=st.just(1),
)
_pages = st.lists(_messages, min_size=1, max_size=12).map(
    lambda messages: [
        message._replace(places=((1, number),)) for number, message in enumerate(messages, start=1)
    ]
)


def _first_values(message: Message) -> dict[bytes, bytes]:
    values: dict[bytes, bytes] = {}
    for line in message.properties.split(b"\n"):
        name, colon, value = line.partition(b":")
        if not colon or not name or b"\\" in name:
            continue
        if message.flags & ESCAPED:
            try:
                text = value.decode("utf-8", "surrogateescape")
                value = unescape(text, "1.2").encode("utf-8", "surrogateescape")
            except RemoteProtocolError:
                pass
        values.setdefault(name, value)
    return values


def _check_value(facts: NameSketch, value: bytes) -> None:
    assert facts.may_equal(value)
    for length in range(min(len(value), BOUND_BYTES + 2) + 1):
        assert facts.may_begin(value[:length])
    number = number_of(value.decode("utf-8", "replace"))
    if number is None:
        assert facts.has_others
        return
    assert facts.numbers is not None
    assert facts.numbers[0] <= number <= facts.numbers[1]
    if facts.is_whole:
        assert str(number).encode() == value


@pytest.mark.parametrize(
    "values", [("0", "-0"), ("-0", "0"), ("-0", "0.0", "1"), ("-1", "0", "-0")]
)
def test_both_write_the_same_of_zeros(values: tuple[str, ...]) -> None:
    parts = parts_of(*(f"a:{value}\n" for value in values))
    assert len({sketch(parts, SKETCH_BYTES_MAX) for sketch in SKETCHERS}) == 1


@pytest.mark.ci
@given(_pages, st.integers(0, SKETCH_BYTES_MAX))
def test_what_a_sketch_says_holds_for_every_message(page: list[Message], room: int) -> None:
    parts = whole_parts_of(build_page(page))
    data = by_twin(parts, room)
    assert len(data) <= room
    if loader.is_wanted():
        assert page_sketch(parts, room) == data
    if not data:
        assert room < SKETCH.size
        return
    found = decoded(data)
    sizes = [len(message.properties) + len(message.body) for message in page]
    assert found.sizes_bytes == (min(sizes), max(sizes))
    times = [message.arrival_ms for message in page]
    assert found.times_ms == (min(times), max(times))
    priorities = [message.priority for message in page]
    assert found.priorities == (min(priorities), max(priorities))
    values = [_first_values(message) for message in page]
    for one in values:
        for name, value in one.items():
            if name in found.names:
                _check_value(found.names[name], value)
            else:
                assert not found.is_complete
    for name, facts in found.names.items():
        assert facts.is_in_all == all(name in one for one in values)
        if facts.only is not None:
            assert {one[name] for one in values if name in one} == {facts.only}


def test_numbers_that_a_double_cannot_tell_apart_are_within_the_bounds(sketch: Sketcher) -> None:
    facts = sketched(sketch, "n:9007199254740993\n", "n:-9007199254740993\n").names[b"n"]
    assert facts.numbers is not None
    low, high = facts.numbers
    assert low < -9007199254740993
    assert high > 9007199254740993
    assert sketched(sketch, "n:1e999\n").names[b"n"].numbers == (
        math.nextafter(math.inf, 0),
        math.inf,
    )
