"""XIDs as text and in records, and what a PREPARE record ends in."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.journal.branch import (
    BranchName,
    PrepareRecord,
    Xid,
    decode_branch,
    encode_branch,
    parse_xid,
)
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.record import encode_record

XIDS = st.builds(
    Xid,
    st.integers(0, 2**31 - 1),
    st.binary(min_size=1, max_size=64),
    st.binary(max_size=64),
)
NAMES = st.builds(BranchName, XIDS, st.integers(0, 2**64 - 1), st.text(max_size=100))


@given(XIDS)
def test_an_xid_has_one_text(xid: Xid) -> None:
    assert parse_xid(str(xid)) == xid
    assert str(parse_xid(str(xid))) == str(xid)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1:0a",
        "1::",
        "-1:0a:",
        "1:0A:",
        "1:0a:0",
        "2147483648:0a:",
        "1:" + "00" * 65 + ":",
        "1:0a:" + "00" * 65,
        "1:0a:00:",
        " 1:0a:00",
        "\u0661:0a:00",
        "1:0a:00\n",
    ],
)
def test_what_is_no_xid_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="FORMAT:GLOBAL:QUALIFIER"):
        parse_xid(text)


@given(NAMES)
def test_a_name_comes_back(name: BranchName) -> None:
    assert decode_branch(encode_branch(name)) == name


def test_bytes_stand_where_the_format_page_says() -> None:
    data = encode_branch(BranchName(Xid(4660, b"\x0a\x0b", b"\x01"), 1234, "amy"))
    assert encode_record(PrepareRecord(77, 2, 99, data)) == (
        struct.pack("<IBBHQII", 46, 8, 0, 0, 77, 2, 99)
        + struct.pack("<QiBBH", 1234, 4660, 2, 1, 3)
        + b"\x0a\x0b\x01amy"
    )


@given(st.binary(max_size=60))
def test_garbage_is_a_name_or_refused_and_nothing_else(data: bytes) -> None:
    fault = 0
    name = None
    try:
        name = decode_branch(data)
    except JournalFormatError as error:
        fault = error.offset
    assert 0 <= fault <= len(data)
    assert name is None or encode_branch(name) == data


@pytest.mark.parametrize(
    "name",
    [
        BranchName(Xid(-1, b"g", b""), 0, ""),
        BranchName(Xid(1, b"", b""), 0, ""),
        BranchName(Xid(1, bytes(65), b""), 0, ""),
        BranchName(Xid(1, b"g", bytes(65)), 0, ""),
        BranchName(Xid(1, b"g", b""), 0, "u" * 1025),
    ],
)
def test_what_the_format_cannot_hold_is_refused(name: BranchName) -> None:
    with pytest.raises(ValueError, match="out of range"):
        encode_branch(name)
