"""Ranges of a stream on the wire: bounded blocks of records, and the trailer."""

from __future__ import annotations

import pytest

from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.ranges import (
    PAYLOAD_BYTES_MAX,
    RangeBlocks,
    RangeGap,
    decode_range,
    encode_trailer,
)
from vespiary_codec.journal.record import (
    AddRecord,
    Place,
    align8,
    decode_record,
    encode_record,
    walk_records,
)

QUEUE = 7


def record(sequence: int, size: int = 100) -> bytes:
    data = encode_record(AddRecord((Place(QUEUE, sequence),), b"a:1\n", bytes(size), 1000))
    return data.ljust(align8(len(data)), b"\0")


def packed(sizes: list[int], max_bytes: int) -> tuple[bytes, int]:
    """Pack records as long as they fit; return the blocks, and how many records."""
    blocks = RangeBlocks(QUEUE, max_bytes)
    for number, size in enumerate(sizes, 1):
        one = record(number, size)
        if len(one) > blocks.room_bytes and not blocks.is_fresh:
            blocks.close_block()
        if blocks.is_full or not blocks.add(one, 1):
            break
    return blocks.finish(), blocks.count


def test_blocks_and_trailer_say_what_was_packed():
    data, count = packed([100, 300_000, 0, 5], 2**20)
    assert count == 4
    gaps = [(5, 6, "expired"), (9, 9, "unknown")]
    answer = decode_range(data + encode_trailer(9, count, gaps), len(data), QUEUE)
    assert (answer.through, answer.messages) == (9, 4)
    assert answer.gaps == tuple(RangeGap(*gap) for gap in gaps)
    assert len(answer.payloads) == 3, "the large one has a block to itself"
    found = [
        decode_record(raw) for payload, n in answer.payloads for raw in walk_records(payload, n)
    ]
    places = [one.places[0].sequence for one in found if isinstance(one, AddRecord)]
    assert places == [1, 2, 3, 4]


@pytest.mark.parametrize("max_bytes", [1, 4096, 5000, 70_000, 262_144, 300_000])
def test_answers_are_bounded_and_hold_one_message_at_least(max_bytes: int):
    data, count = packed([1000] * 2000, max_bytes)
    assert count >= 1
    assert len(data) <= -(-max_bytes // 4096) * 4096
    assert packed([400_000, 10], max_bytes)[1] >= 1
    if max_bytes >= 70_000:
        assert count >= max_bytes * 0.85 // 1072


def test_records_fill_blocks_to_their_bound():
    blocks = RangeBlocks(QUEUE, 2**20)
    assert (blocks.room_bytes, blocks.is_fresh) == (PAYLOAD_BYTES_MAX, True)
    assert blocks.add(record(1), 1)
    assert (blocks.room_bytes, blocks.is_fresh) == (PAYLOAD_BYTES_MAX - len(record(1)), False)


def test_the_same_records_are_the_same_bytes():
    assert packed([10, 20, 30], 2**20) == packed([10, 20, 30], 2**20)


def test_no_messages_are_an_answer_too():
    answer = decode_range(encode_trailer(5, 0, [(1, 5, "purged")]), 0, QUEUE)
    assert (answer.payloads, answer.gaps) == ((), (RangeGap(1, 5, "purged"),))


def test_what_is_damaged_or_cut_off_is_refused():
    data, count = packed([100] * 5000, 2**20)
    whole = data + encode_trailer(9, count, [])
    for at in (50, 70_000, len(data) - 4000):
        broken = bytearray(whole)
        broken[at] ^= 1
        with pytest.raises(JournalFormatError):
            decode_range(bytes(broken), len(data), QUEUE)
    for answer, length, queue in (
        (whole, len(data), QUEUE + 1),
        (whole[:-1], len(data), QUEUE),
        (whole[4096:], len(data) - 4096, QUEUE),
        (data[: -(2**18)] + encode_trailer(9, count, []), len(data) - 2**18, QUEUE),
    ):
        with pytest.raises(JournalFormatError):
            decode_range(answer, length, queue)
