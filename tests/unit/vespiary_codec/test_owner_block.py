"""The ownership block, byte by byte (journal-format §8)."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.owner_block import (
    OwnerBlock,
    OwnerState,
    decode_owner_block,
    encode_owner_block,
)

BLOCK = OwnerBlock(
    state=OwnerState.HELD,
    epoch=7,
    owner_id=bytes(range(16)),
    boot_id=b"B" * 16,
    lease_ms=3000,
    time_ms=1_700_000_000_000,
    ousted_boot_id=b"O" * 16,
    host="orders-0",
)


def spoiled(offset: int, data: bytes, *, with_crc: bool = True) -> bytes:
    sector = bytearray(encode_owner_block(BLOCK))
    sector[offset : offset + len(data)] = data
    if with_crc:
        sector[508:512] = struct.pack("<I", crc32c(bytes(sector[:508])))
    return bytes(sector)


def test_the_fields_stand_where_the_format_says():
    data = encode_owner_block(BLOCK)
    assert len(data) == 4096
    assert data[:8] == b"VSPYOWNR"
    assert struct.unpack_from("<HBBI", data, 8) == (1, 3, 0, 3000)
    assert data[16:32] == BLOCK.owner_id
    assert data[32:48] == BLOCK.boot_id
    assert struct.unpack_from("<QQ", data, 48) == (7, 1_700_000_000_000)
    assert data[64:80] == BLOCK.ousted_boot_id
    assert struct.unpack_from("<H", data, 80) == (8,)
    assert data[82:90] == b"orders-0"
    assert struct.unpack_from("<I", data, 508) == (crc32c(data[:508]),)
    assert not any(data[512:])


@pytest.mark.parametrize("state", OwnerState)
def test_round_trip(state: OwnerState):
    block = replace(BLOCK, state=state)
    assert decode_owner_block(encode_owner_block(block)) == block


def test_a_long_host_name_is_cut_off():
    host = decode_owner_block(encode_owner_block(replace(BLOCK, host="ä" * 300))).host
    assert host == "ä" * 127 + "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("data", "offset", "what"),
    [
        (bytes(4096), 0, "no ownership block"),
        (b"", 0, "no ownership block"),
        (encode_owner_block(BLOCK)[:511], 0, "no ownership block"),
        (spoiled(8, b"\x02"), 8, "another format version"),
        (spoiled(10, b"\x04"), 508, "damaged"),
        (spoiled(50, b"\xff", with_crc=False), 508, "damaged"),
    ],
)
def test_faults_are_named_with_their_place(data: bytes, offset: int, what: str):
    with pytest.raises(JournalFormatError, match=what) as caught:
        decode_owner_block(data)
    assert caught.value.offset == offset
