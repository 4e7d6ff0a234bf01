"""The column scan in C against its twin: the same of any blocks, whole, cut off, damaged."""

from __future__ import annotations

import gc
import random
from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vespiary_codec.journal import column_parts, column_scan
from vespiary_codec.journal.block import BlockHeader, encode_block
from vespiary_codec.journal.columns import Columns, Scan, Strings
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    Place,
    SequenceRange,
    align8,
    encode_record,
    general_record,
)
from vespiary_native import columns, loader
from vespiary_testkit.scanned_blocks import FILE_ID, SALT, encoded, records, window_of
from vespiary_testkit.seeds import seed_for

pytestmark = pytest.mark.skipif(not loader.is_wanted(), reason="VESPIARY_NATIVE=0: the twin alone")

WHERE: dict[str, Any] = {"offset": 4096, "salt": SALT, "file_id": FILE_ID}
_blocks = st.lists(st.lists(records, max_size=5), min_size=1, max_size=4)


def flat(scan: Scan) -> tuple[object, ...]:
    """Return all that a scan says, buffers as bytes."""
    return (*(bytes(one) for one in scan.columns[1:]), scan.columns.rows, *scan[1:])


def plain(strings: Strings) -> tuple[bytes, ...]:
    return tuple(bytes(part) for part in strings)


def assert_same(window: bytes | bytearray, **asked: Any) -> Scan:
    """Scan in both ways, compare all that they say, and return it."""
    found, expected = (way.scan(window, **WHERE | asked) for way in (columns, column_scan))
    assert flat(found) == flat(expected)
    mine, theirs = (way.properties(window, found.columns) for way in (columns, column_parts))
    assert bytes(mine.offsets) == bytes(theirs.offsets)
    assert [plain(part) for part in mine[1:]] == [plain(part) for part in theirs[1:]]
    for name in (b"destination", b"a", b"", b"none"):
        assert plain(columns.header(window, found.columns, name)) == plain(
            column_parts.header(window, found.columns, name)
        )
    for at, length in (("body_at", "body_bytes"), ("record_at", "length")):
        asked_for = (getattr(found.columns, at), getattr(found.columns, length))
        for chosen in (None, [row % 3 > 0 for row in range(found.columns.rows)]):
            assert plain(columns.gather(window, *asked_for, chosen)) == plain(
                column_parts.gather(window, *asked_for, chosen)
            )
    return found


@given(
    _blocks,
    st.one_of(st.none(), st.sets(st.sampled_from([1, 2, 3, 4, 11, 13, 77, 140]))),
    st.booleans(),
    st.integers(0, 12),
    st.data(),
)
def test_both_say_the_same_of_any_blocks(
    blocks: list[list[Any]],
    kinds: set[int] | None,
    members: bool,
    rows_max: int,
    data: st.DataObject,
) -> None:
    window = bytearray(window_of(blocks))
    assert_same(window, kinds=kinds, members=members, rows_max=rows_max)
    assert_same(window[: data.draw(st.integers(0, len(window)))], kinds=kinds)
    window[data.draw(st.integers(0, len(window) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert_same(window, members=members)


def sealed_over(payload: bytes, number: int, *, offset: int = 4096, **changed: Any) -> bytes:
    """Return a block whose checksum holds, whatever the payload is."""
    facts = {
        "sequence": 1,
        "file_id": FILE_ID,
        "watermark": 0,
        "payload_bytes": len(payload),
        "records": number,
        "previous_crc": 0,
        "time_ms": 5,
    }
    return encode_block(BlockHeader(**facts | changed), payload, salt=SALT, offset=offset)


_fields = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from([0, 1, 2, 7, 8, 64, 127, 128, 255])), max_size=3
)


@given(st.lists(records, min_size=1, max_size=4), _fields, st.integers(0, 5), st.integers(0, 30))
def test_both_refuse_the_same_records_for_the_same_reason(
    own: list[Any], changes: list[tuple[int, int]], more: int, cut: int
) -> None:
    """The checksum holds, so that the fields of records are all that is looked at."""
    payload = bytearray(b"".join(one.ljust(align8(len(one)), b"\0") for one in map(encoded, own)))
    for at, value in changes:
        payload[at % len(payload)] = value
    payload = payload[: len(payload) - cut] if not more else payload
    assert_same(sealed_over(bytes(payload), max(len(own) + more - 1, 0)))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sequence": 2**47 - 1}, "window"),
        ({"sequence": 2**47}, "invalid"),
        ({"sequence": 2**64 - 1}, "invalid"),
        ({"sequence": 0}, "window"),
        ({"records": 65537}, "invalid"),
        ({"time_ms": 2**64 - 1, "watermark": 2**64 - 1}, "window"),
        ({"flags": 0xFFFF}, "end"),
    ],
)
def test_numbers_of_headers_at_their_bounds(changed: dict[str, Any], reason: str) -> None:
    ack = encode_record(AckRecord(1, (SequenceRange(2**63 - 1, 1),)))
    scan = assert_same(sealed_over(ack, 1, **changed))
    assert scan.stop.reason == reason
    assert_same(sealed_over(ack, 1, **changed), previous=(2**64 - 1, 0))


@pytest.mark.ci
def test_as_many_records_as_positions_tell_apart_are_taken() -> None:
    data = b"\x08\0\0\0\x4d\0\0\0" * 65536
    scan = assert_same(sealed_over(data, 65536))
    assert (scan.columns.rows, scan.stop.reason) == (65536, "window")


def test_thousands_of_records_and_places_outgrow_the_first_buffers() -> None:
    chosen = random.Random(seed_for("many records"))
    acks = [
        AckRecord(queue, tuple(SequenceRange(chosen.randrange(99), 1) for _ in range(7)), queue % 2)
        for queue in range(3000)
    ]
    scan = assert_same(window_of([list[Any](acks), list[Any](acks)]))
    assert (scan.columns.rows, len(scan.columns.place_queue)) == (6000, 42000)


def general(type_: int, *numbers: tuple[int, int], flags: int = 0, text: bytes = b"") -> bytes:
    """Return a record of numbers, each with its length, and a text."""
    body = b"".join(value.to_bytes(size, "little") for value, size in numbers) + text
    return general_record(type_, body, flags)


def add_of(body: bytes, *, flags: int = 0, places: int = 1) -> bytes:
    fields = ((0, 8), (len(body), 4), (0, 2), (places, 2), *(((1, 8), (1, 8)) * places))
    return general(1, *fields, flags=flags, text=body)


def page_of(*queues: tuple[int, int, int, int, bytes]) -> bytes:
    """Return a PAGE record; of each queue id, first, last, places, bitmap."""
    head = general(140, (5, 8), (1, 8), (8192, 8), (len(queues), 4), (0, 4))
    for queue_id, first, last, places, bits in queues:
        own = ((queue_id, 4), (len(bits), 4), (first, 8), (last, 8), (places, 4), (0, 12))
        head += b"".join(value.to_bytes(size, "little") for value, size in own) + bits
    return len(head).to_bytes(4, "little") + head[4:]


def duplicate_of(
    address: bytes, *ids: bytes, rest: bytes = b"", number: int | None = None
) -> bytes:
    count = len(ids) if number is None else number
    own = b"".join(bytes(8) + len(one).to_bytes(2, "little") + one for one in ids)
    return general(11, (count, 4), (len(address), 2), (0, 2), text=address + own + rest)


_EIGHT = bytes(7) + b"\1"
_TAKEN = {
    "add": add_of(b"body"),
    "large": add_of(bytes(24), flags=4),
    "commit": general(4, (1, 8), (2, 4), (3, 4)),
    "prepare with a name": general(8, (1, 8), (2, 4), (3, 4), text=b"name"),
    "rollback": general(9, (1, 8), (2, 4), (3, 4)),
    "put": general(32, (1, 4), (0, 4), text=b"kvalue"),
    "remove": general(33, (1, 4), (0, 4), text=b"k"),
    "files": general(5, (1, 4), (0, 4), (3, 8), (3, 8)),
    "page, whole": page_of((1, 5, 9, 5, b"")),
    "page, bits": page_of((1, 5, 12, 2, b"\x81" + bytes(7)), (2, 1, 1, 1, b"")),
    "duplicate": duplicate_of(b"a", b"id"),
    "duplicate in a transaction": duplicate_of(b"a", rest=_EIGHT),
    "unknown": general(127),
}
_REFUSED = {
    "add without places": add_of(b"", places=0),
    "add, shorter than it says": add_of(b"body")[:20],
    "large, not a reference": add_of(bytes(23), flags=4),
    "ack, member without transaction": general(2, (1, 4), (0, 4), flags=1),
    "commit, longer": general(4, (1, 8), (2, 4), (3, 4), (0, 8)),
    "rollback, longer": general(9, (1, 8), (2, 4), (3, 4), (0, 8)),
    "prepare, cut": general(8, (1, 8), (2, 4)),
    "count, longer": general(3, (1, 4), (2, 4), (3, 8), (0, 8)),
    "seal, longer": general(7, (0, 8), (0, 8)),
    "page done, longer": general(13, (0, 8), (0, 8)),
    "put, key too long": general(32, (9, 4), (0, 4), text=b"key"),
    "put, key no UTF-8": general(32, (1, 4), (0, 4), text=b"\xff"),
    "put, key cut in a character": general(32, (1, 4), (0, 4), text="ä".encode()),
    "remove with a value": general(33, (1, 4), (0, 4), text=b"kv"),
    "files, upside down": general(5, (1, 4), (0, 4), (4, 8), (3, 8)),
    "files, fewer": general(5, (2, 4), (0, 4), (3, 8), (3, 8)),
    "queues, fewer": general(6, (2, 4), (0, 4), text=bytes(24)),
    "duplicate, address no UTF-8": duplicate_of(b"\xed\xa0\x80", b"id"),
    "duplicate, more ids": duplicate_of(b"a", b"id", number=2),
    "duplicate, id cut": duplicate_of(b"a", b"id", rest=b"x"),
    "duplicate, no transaction": duplicate_of(b"a", rest=bytes(8)),
    "page without sequence": page_of((1, 0, 3, 4, b"")),
    "page, last before first": page_of((1, 5, 4, 0, b"")),
    "page, span": page_of((1, 1, 1 << 24 | 1, (1 << 24) + 1, b"")),
    "page, sequences of 64 bits": page_of((1, 1 << 63, 1 << 63, 1, b"")),
    "page, queues that descend": page_of((2, 1, 1, 1, b""), (1, 1, 1, 1, b"")),
    "page, a queue twice": page_of((2, 1, 1, 1, b""), (2, 2, 2, 1, b"")),
    "page, a bit behind the last": page_of((1, 5, 12, 3, b"\x81\1" + bytes(6))),
    "page, the first is not there": page_of((1, 5, 12, 1, b"\x80" + bytes(7))),
    "page, the last is not there": page_of((1, 5, 12, 1, b"\1" + bytes(7))),
    "page, other number": page_of((1, 5, 12, 3, b"\x81" + bytes(7))),
    "page, whole, other number": page_of((1, 5, 9, 4, b"")),
    "page, bitmap too long": page_of((1, 5, 12, 2, b"\x81" + bytes(15))),
    "page, bytes behind": general(140, (5, 8), (1, 8), (8192, 8), (0, 4), (0, 4), (0, 8)),
    "page, fewer queues": general(140, (5, 8), (1, 8), (8192, 8), (1, 4), (0, 4)),
    "must know": general(128),
}


@pytest.mark.parametrize("name", _TAKEN)
def test_records_at_the_edge_of_their_rules_are_taken(name: str) -> None:
    scan = assert_same(window_of([[_TAKEN["add"]], [_TAKEN[name]]]))
    assert (scan.columns.rows, scan.stop.reason) == (2, "window")


@pytest.mark.parametrize("name", _REFUSED)
def test_records_that_break_one_rule_end_the_scan(name: str) -> None:
    scan = assert_same(window_of([[_TAKEN["add"]], [_TAKEN["add"], _REFUSED[name]]]))
    assert (scan.columns.rows, scan.stop.reason) == (1, "invalid")
    assert scan.stop.found


def test_more_records_than_positions_tell_apart_are_refused() -> None:
    data = b"\x08\0\0\0\x4d\0\0\0" * 65537
    assert assert_same(sealed_over(data, 65537)).stop.reason == "invalid"


def test_the_highest_watermark_counts_wherever_it_stands() -> None:
    first = sealed_over(b"", 0, watermark=9)
    follows = {
        "sequence": 2,
        "watermark": 3,
        "previous_crc": int.from_bytes(first[44:48], "little"),
    }
    window = first + sealed_over(b"", 0, offset=8192, **follows)
    scan = assert_same(window)
    assert (scan.blocks, scan.watermark) == (2, 9)


_texts = st.lists(
    st.sampled_from(
        [b"a", b"b:", b":", b"\n", b"\\", b"\\n", b"\\c", b"\\r", b"\\\\", b"\\t", b"a:b\n",
         b"\xc3", b"\xa4", b"\xe0\x80", b"\xe2\x82", b"\xac", b"\xed\xa0\x80", b"\xf0\x9f\x98",
         b"\xf4\x90", b"\xc0\xaf", b"\xff", b"\0"]
    ),
    max_size=25,
).map(b"".join)  # fmt: skip


@given(st.lists(st.tuples(_texts, st.booleans()), max_size=4))
@example([(b"a:" + bytes(range(256)), False)])
@example([(b"a:\xf0\x80\x80\x80\xf0\x8f\xbf\xbf\xf0\x90\x80\x80", False)])
@example([(b"a:\xe0\x9f\xbf\xed\xa0\x80\xf4\x90\x80\x80\xf4\x8f\xbf\xbf", False)])
def test_both_read_headers_of_any_bytes_alike(messages: list[tuple[bytes, bool]]) -> None:
    own = [
        AddRecord((Place(1, 1),), lines, b"", 0, has_escapes=has_escapes)
        for lines, has_escapes in messages
    ]
    assert_same(window_of([list[Any](own)]))


@pytest.mark.parametrize("way", [columns, column_parts])
@pytest.mark.parametrize(("at", "length"), [(0, 9), (8, 1), (-1, 1), (1, -1), (2**62, 2**62)])
def test_entries_outside_of_the_window_are_refused(way: Any, at: int, length: int) -> None:
    window = bytes(8)
    with pytest.raises(ValueError, match="not stand in the window"):
        way.gather(window, array("q", [0, at]), array("q", [8, length]))
    assert plain(way.gather(window, array("q", [at]), array("q", [length]), [False]))[1] == b""


@pytest.mark.parametrize("way", [columns, column_parts])
def test_columns_of_different_lengths_and_too_many_bytes_are_refused(way: Any) -> None:
    with pytest.raises(ValueError):
        way.gather(b"1234", array("q", [0, 1]), array("q", [1]))
    with pytest.raises(ValueError):
        way.gather(b"1234", array("q", [0, 1]), array("q", [1, 1]), [True])


def test_more_bytes_than_offsets_can_say_are_refused() -> None:
    window = bytes(2**20)
    with pytest.raises(ValueError, match="at most 2147483647"):
        columns.gather(window, array("q", [0] * 2048), array("q", [2**20] * 2048))


def test_buffers_outlive_what_made_them() -> None:
    window = window_of([[AckRecord(queue, (SequenceRange(1, 1),)) for queue in range(5000)]])
    places = columns.scan(window, **WHERE).columns.place_queue
    gc.collect()
    others = [columns.scan(window, **WHERE) for _ in range(20)]
    assert memoryview(places).tolist() == list(range(5000))
    del others


def test_the_form_of_the_columns_is_that_of_the_header() -> None:
    out = loader.ffi.new("vespiary_columns *")
    assert len(Columns._fields) == 1 + len(out.octets) + len(out.numbers) + 1 + len(
        out.place_numbers
    )
