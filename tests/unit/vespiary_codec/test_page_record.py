"""PAGE and PAGE_DONE records: their bytes, and what is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.page_record import (
    PageDoneRecord,
    PagedQueue,
    PagedRecord,
    bitmap_bytes,
    decode_page_done,
    decode_paged,
    encode_page_done,
    encode_paged,
)
from vespiary_codec.journal.record import decode_record, encode_record, walk_records

U64 = st.integers(0, 2**64 - 1)
QUEUES = st.builds(
    lambda first, gaps, large, counts: (first, gaps, large, counts),
    st.integers(1, 2**60),
    st.lists(st.integers(1, 200), max_size=40),
    st.sets(st.integers(0, 40), max_size=5),
    st.sets(st.integers(0, 40), max_size=5),
)


def queue(queue_id: int, parts: tuple[int, list[int], set[int], set[int]]) -> PagedQueue:
    first, gaps, large, counts = parts
    sequences = [first]
    for gap in gaps:
        sequences.append(sequences[-1] + gap)
    return PagedQueue(
        queue_id,
        tuple(sequences),
        tuple((s, bytes([n]) * 24) for n, s in enumerate(sequences) if n in large),
        tuple((s, n + 1) for n, s in enumerate(sequences) if n in counts),
    )


@given(st.integers(1, 2**62), U64, U64, st.dictionaries(st.integers(0, 2**31), QUEUES, max_size=5))
def test_what_is_written_is_read(
    page_id: int, salt: int, size: int, queues: dict[int, tuple[int, list[int], set[int], set[int]]]
) -> None:
    record = PagedRecord(
        page_id, salt, size, tuple(queue(one, parts) for one, parts in sorted(queues.items()))
    )
    data = encode_paged(record)
    assert decode_paged(memoryview(data)) == record
    assert encode_record(record) == data
    (raw,) = walk_records(data, 1)
    assert decode_record(raw) == record


def test_the_bytes_are_those_of_the_format() -> None:
    record = PagedRecord(
        7, 8, 65536, (PagedQueue(3, (10, 11, 74), ((74, b"r" * 24),), ((11, 2),)),)
    )
    bitmap = bytes([0b11, 0, 0, 0, 0, 0, 0, 0, 1]) + bytes(7)
    body = struct.pack("<QQQII", 7, 8, 65536, 1, 0)
    body += struct.pack("<IIQQIIII", 3, 16, 10, 74, 3, 1, 1, 0) + bitmap
    body += struct.pack("<Q", 74) + b"r" * 24 + struct.pack("<QII", 11, 2, 0)
    assert encode_paged(record) == struct.pack("<IBBH", 8 + len(body), 140, 0, 0) + body
    assert encode_page_done(PageDoneRecord(7)) == struct.pack("<IBBHQ", 16, 13, 0, 0, 7)
    assert decode_page_done(memoryview(encode_page_done(PageDoneRecord(7)))) == PageDoneRecord(7)


def test_a_run_without_holes_needs_no_bitmap() -> None:
    data = encode_paged(PagedRecord(1, 2, 4096, (PagedQueue(1, tuple(range(5, 105))),)))
    assert len(data) == 80
    assert [bitmap_bytes(1, last) for last in (1, 64, 65)] == [8, 8, 16]


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (32, 2),  # a queue more than there is
        (44, 8),  # another bitmap
        (48, 0),  # sequence 0
        (48, 9),  # a first sequence that is not the first
        (56, 200),  # and a last one
        (64, 9),  # more places
        (68, 1),  # a large message that is not there
        (72, 3),  # more counts
        (80, 0),  # the first place is done
        (96 - 1, 0x80),  # a bit behind the last
    ],
)
def test_what_does_not_add_up_is_refused(at: int, value: int) -> None:
    data = bytearray(encode_paged(PagedRecord(1, 2, 4096, (PagedQueue(1, (10, 12, 100)),))))
    data[at] = value
    with pytest.raises(JournalFormatError):
        decode_paged(memoryview(data))


def test_what_is_cut_off_is_refused() -> None:
    data = encode_paged(PagedRecord(1, 2, 4096, (PagedQueue(1, (10, 12, 100)),)))
    for length in range(len(data)):
        with pytest.raises(JournalFormatError):
            decode_paged(memoryview(data)[:length])
    with pytest.raises(JournalFormatError):
        decode_paged(memoryview(data + bytes(8)))
    with pytest.raises(JournalFormatError):
        decode_page_done(memoryview(bytes(15)))


def test_queues_ascend_and_are_not_empty() -> None:
    with pytest.raises(ValueError):
        encode_paged(PagedRecord(1, 2, 3, (PagedQueue(1, ()),)))
    with pytest.raises(ValueError):
        encode_paged(PagedRecord(2**64, 2, 3, ()))
    twice = encode_paged(PagedRecord(1, 2, 3, (PagedQueue(2, (1,)), PagedQueue(2, (1,)))))
    with pytest.raises(JournalFormatError):
        decode_paged(memoryview(twice))
