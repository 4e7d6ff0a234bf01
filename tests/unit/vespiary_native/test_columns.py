"""The column scan against the codec's records: every field, every end."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_codec.journal.columns import Strings
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    Place,
    SealRecord,
    SequenceRange,
)
from vespiary_native import columns
from vespiary_testkit.scanned_blocks import (
    FILE_ID,
    SALT,
    expected_rows,
    numbers,
    records,
    rows_of,
    window_of,
)
from vespiary_testkit.seeds import seed_for

WHERE = {"offset": 4096, "salt": SALT, "file_id": FILE_ID}
_blocks = st.lists(st.lists(records, max_size=5), min_size=1, max_size=4)


def entries(strings: Strings) -> list[bytes | None]:
    offsets, data, valid = numbers(strings.offsets, "i"), bytes(strings.data), bytes(strings.valid)
    return [
        data[offsets[at] : offsets[at + 1]] if not valid or valid[at // 8] >> at % 8 & 1 else None
        for at in range(len(offsets) - 1)
    ]


def add(body: bytes = b"body", properties: bytes = b"destination:a\n", **facts: Any) -> AddRecord:
    return AddRecord((Place(1, 2),), properties, body, 1000, **facts)


@settings(deadline=None)
@given(_blocks)
def test_columns_say_what_the_records_say(blocks: list[list[Any]]) -> None:
    window = window_of(blocks)
    scan = columns.scan(window, **WHERE)
    assert rows_of(scan.columns) == expected_rows(blocks)
    assert scan.stop == (4096 + len(window), "window", 0, "")
    assert (scan.blocks, scan.records) == (len(blocks), sum(map(len, blocks)))
    assert (scan.sequence, scan.watermark) == (len(blocks), len(blocks) - 1)
    assert scan.time_ms == 1_000_000 + len(blocks) - 1


def test_a_seal_ends_the_scan_and_what_stands_behind_it_is_not_looked_at() -> None:
    window = window_of([[add()], [SealRecord()]], seal=True) + b"garbage" * 1000
    scan = columns.scan(window, **WHERE)
    assert scan.stop == (4096 + 8192, "end", 0, "")
    assert scan.columns.rows == 2


def test_a_block_that_is_not_whole_in_the_window_is_asked_for() -> None:
    window = window_of([[add()], [add(b"x" * 9000)]])
    for cut in (4096 + 64, 4096 + 5000, len(window) - 1):
        scan = columns.scan(window[:cut], **WHERE)
        assert scan.stop == (8192, "window", 12288, "")
        assert scan.columns.rows == 1
    assert columns.scan(window[: 4096 + 63], **WHERE).stop == (8192, "window", 0, "")
    assert columns.scan(b"", **WHERE).stop == (4096, "window", 0, "")


def test_a_scan_goes_on_where_it_stopped() -> None:
    blocks = [[add(b"%d" % number)] for number in range(5)]
    window = window_of(blocks)
    first = columns.scan(window, **WHERE, rows_max=2)
    assert (first.stop.reason, first.columns.rows) == ("rows", 2)
    at = first.stop.offset
    rest = columns.scan(
        window[at - 4096 :],
        offset=at,
        salt=SALT,
        file_id=FILE_ID,
        previous=(first.sequence, first.crc),
    )
    positions = [row["position"] for scan in (first, rest) for row in rows_of(scan.columns)]
    assert positions == [row["position"] for row in expected_rows(blocks)]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"salt": SALT + 1}, "checksum"),
        ({"file_id": FILE_ID + 1}, "file id"),
        ({"offset": 8192}, "checksum"),
        ({"previous": (4, 0)}, "does not follow block 4"),
        ({"previous": (0, 99)}, "does not follow block 0"),
    ],
)
def test_a_block_of_another_life_or_place_is_not_taken(changed: dict[str, Any], found: str) -> None:
    scan = columns.scan(window_of([[add()]]), **WHERE | changed)
    assert (scan.stop.reason, scan.columns.rows, scan.blocks) == ("invalid", 0, 0)
    assert found in scan.stop.found


def test_zeros_are_no_block() -> None:
    scan = columns.scan(window_of([[add()]]) + bytes(4096), **WHERE)
    assert (scan.stop.offset, scan.stop.reason) == (8192, "invalid")
    assert "zeros" in scan.stop.found


def test_every_flipped_bit_of_a_block_ends_the_scan_before_it() -> None:
    window = window_of([[add()], [add(), AckRecord(1, (SequenceRange(1, 2),))]])
    used = 4096 + 64 + 96
    chosen = random.Random(seed_for("column bits"))
    for bit in chosen.sample(range(4096 * 8, used * 8), 200):
        damaged = bytearray(window)
        damaged[bit // 8] ^= 1 << bit % 8
        scan = columns.scan(damaged, **WHERE)
        assert scan.columns.rows == 1
        assert scan.stop.offset == 8192
        assert scan.stop.reason in ("invalid", "window")


def malformed(data: bytes) -> bytes:
    return window_of([[add()], [add(), data]])


@pytest.mark.parametrize(
    "data",
    [
        b"\x04\0\0\0\x01\0\0\0",
        b"\xff\0\0\0\x01\0\0\0",
        b"\x08\0\0\0\xff\0\0\0",
        b"\x18\0\0\0\x01\0\0\0" + bytes(16),
        b"\x10\0\0\0\x02\0\0\0" + b"\0\0\0\0\x01\0\0\0",
        b"\x10\0\0\0\x04\0\0\0" + bytes(8),
        b"\x10\0\0\0\x03\0\0\0" + bytes(8),
        b"\x10\0\0\0\x20\0\0\0" + b"\x05\0\0\0" + bytes(4),
        b"\x10\0\0\0\x8c\0\0\0" + bytes(8),
    ],
    ids=["length 4", "length 255", "must know", "add", "ack", "commit", "count", "put", "page"],
)
def test_a_record_that_does_not_fit_ends_the_scan_with_its_block(data: bytes) -> None:
    scan = columns.scan(malformed(data), **WHERE)
    assert (scan.stop.offset, scan.stop.reason) == (8192, "invalid")
    assert scan.stop.found
    assert (scan.columns.rows, scan.blocks, scan.sequence) == (1, 1, 1)


def test_kinds_choose_rows_and_all_records_are_counted() -> None:
    blocks = [[add(), AckRecord(1, (SequenceRange(1, 1),)), add(transaction=5)]]
    blocks.append([AckRecord(1, (), 5), CommitRecord(5, 2, 0), AckRecord(2, ())])
    window = window_of(blocks)
    scan = columns.scan(window, **WHERE, kinds={2}, members=False)
    assert [row["position"] & 0xFFFF for row in rows_of(scan.columns)] == [1, 0, 2]
    assert scan.records == 6
    scan = columns.scan(window, **WHERE, kinds=set(), members=True)
    assert [row["kind"] for row in rows_of(scan.columns)] == [1, 2, 4]
    assert [bool(row["crc"]) for row in rows_of(scan.columns)] == [True, True, False]


# --- parts ----------------------------------------------------------------------------------------


def test_bodies_are_copied_out_and_nulls_take_no_room() -> None:
    window = window_of([[add(b"one"), AckRecord(1, ()), add(b"three")]])
    scan = columns.scan(window, **WHERE)
    bodies = columns.gather(window, scan.columns.body_at, scan.columns.body_bytes)
    assert entries(bodies) == [b"one", b"", b"three"]
    chosen = columns.gather(
        window, scan.columns.body_at, scan.columns.body_bytes, [True, False, True]
    )
    assert entries(chosen) == [b"one", None, b"three"]
    assert bytes(chosen.data) == b"onethree"


@pytest.mark.parametrize(
    ("lines", "has_escapes", "expected"),
    [
        (b"a:b\nc:d\n", False, {b"a": b"b", b"c": b"d"}),
        (b"a:b\na:c\n", False, {b"a": b"b"}),
        (b"a:\n:x\nnothing\n", False, {b"a": b""}),
        (b"a:b:c\n", False, {b"a": b"b:c"}),
        (b"a\\cb:\\n\\r\\\\\n", True, {b"a:b": b"\n\r\\"}),
        (b"a\\cb:\\n\n", False, {b"a\\cb": b"\\n"}),
        (b"a:\\x\\\n", True, {b"a": b"\\x\\"}),
        (b"a:\xff\xc3\xa4\xe2\x82\n", False, {b"a": "\ufffdä\ufffd".encode()}),
        (b"", False, {}),
        (b"a:no line feed", False, {b"a": b"no line feed"}),
        (b"a:b\n\0\x01c:d\n", False, {b"a": b"b"}),
        (b"\0a:b\n", False, {}),
    ],
)
def test_headers(lines: bytes, has_escapes: bool, expected: dict[bytes, bytes]) -> None:
    window = window_of([[AckRecord(1, ()), add(properties=lines, has_escapes=has_escapes)]])
    scan = columns.scan(window, **WHERE)
    maps = columns.properties(window, scan.columns)
    assert numbers(maps.offsets, "i") == [0, 0, len(expected)]
    assert dict(zip(entries(maps.keys), entries(maps.values), strict=True)) == expected
    assert entries(columns.header(window, scan.columns, b"a")) == [None, expected.get(b"a")]
