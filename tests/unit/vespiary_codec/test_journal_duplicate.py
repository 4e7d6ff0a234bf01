"""DUPLICATE records: bytes as the format page says, and nothing that is cut off is taken."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.journal.duplicate import (
    DuplicateId,
    DuplicateRecord,
    decode_duplicate,
    duplicate_body,
)
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.record import RawRecord, RecordType, decode_record, encode_record

IDS = st.lists(st.builds(DuplicateId, st.integers(0, 2**64 - 1), st.binary(max_size=50)))


def test_the_bytes_are_those_of_the_format_page():
    record = DuplicateRecord("ab", (DuplicateId(5, b"xyz"),), 7)
    expected = (
        struct.pack("<IBBH", 8 + 8 + 2 + 10 + 3 + 8, 11, 1, 0)
        + struct.pack("<IHH", 1, 2, 0)
        + b"ab"
        + struct.pack("<QH", 5, 3)
        + b"xyz"
        + struct.pack("<Q", 7)
    )
    assert encode_record(record) == expected


@given(st.text(max_size=20), IDS, st.integers(0, 2**64 - 1))
def test_what_is_encoded_is_read_back(address: str, ids: list[DuplicateId], transaction: int):
    record = DuplicateRecord(address, tuple(ids), transaction)
    data = memoryview(encode_record(record))
    assert decode_record(RawRecord(0, data[4], data[5], data)) == record
    assert data[4] == RecordType.DUPLICATE
    assert data[5] == bool(transaction)


@given(IDS, st.integers(0, 1), st.data())
def test_what_is_cut_off_is_no_other_record(ids: list[DuplicateId], t: int, data: st.DataObject):
    record = DuplicateRecord("orders", tuple(ids), t)
    body = duplicate_body(record)
    cut = data.draw(st.integers(0, len(body) - 1))
    try:
        found = decode_duplicate(body[:cut])
    except JournalFormatError:
        return
    assert found == record._replace(transaction=0), "without its last 8 bytes it is no member"


def test_an_id_that_is_too_long_is_refused():
    with pytest.raises(ValueError):
        duplicate_body(DuplicateRecord("a", (DuplicateId(1, bytes(65536)),)))
