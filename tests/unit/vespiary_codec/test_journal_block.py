"""Blocks: the checksum binds them to file, life and place, and the walk ends where it must."""

from __future__ import annotations

import struct

import pytest

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import (
    BlockHeader,
    decode_block,
    decode_block_header,
    encode_block,
    walk_blocks,
)
from vespiary_codec.journal.errors import JournalFormatError

SALT = 0xA1B2C3D4E5F60718


def make(sequence: int, payload: bytes, offset: int, *, crc: int = 0, flags: int = 0) -> bytes:
    header = BlockHeader(
        sequence=sequence,
        file_id=3,
        watermark=sequence - 1,
        payload_bytes=len(payload),
        records=1,
        previous_crc=crc,
        time_ms=99,
        flags=flags,
    )
    return encode_block(header, payload, salt=SALT, offset=offset)


def chain(payloads: list[bytes], *, seal: bool = False) -> bytes:
    data = b""
    crc = 0
    for number, payload in enumerate(payloads, 1):
        is_last = number == len(payloads)
        block = make(number, payload, 4096 + len(data), crc=crc, flags=int(seal and is_last))
        crc = struct.unpack_from("<I", block, 44)[0]
        data += block
    return data


def test_bytes_stand_where_the_format_page_says() -> None:
    payload = b"p" * 40
    block = make(5, payload, 8192, crc=77, flags=1)
    assert len(block) == 4096
    header = block[:44] + bytes(4) + block[48:64]
    assert struct.unpack("<IHHQQQIIIIQQ", header) == (
        0x4B4C4256, 1, 1, 5, 3, 4, 40, 1, 77, 0, 99, 0,
    )  # fmt: skip
    seed = struct.pack("<QQ", SALT, 8192)
    assert struct.unpack_from("<I", block, 44)[0] == crc32c(payload, crc32c(header, crc32c(seed)))
    assert block[64:104] == payload
    assert not any(block[104:])


def test_round_trip_with_padding() -> None:
    payload = bytes(range(256)) * 20
    block = make(1, payload, 4096)
    assert len(block) == 8192
    header, found = decode_block(block, offset=4096, salt=SALT, file_id=3)
    assert (bytes(found), header.length, header.is_seal) == (payload, 8192, False)


@pytest.mark.parametrize(
    "place",
    [
        {"offset": 8192, "salt": SALT, "file_id": 3},
        {"offset": 4096, "salt": SALT ^ 1, "file_id": 3},
        {"offset": 4096, "salt": SALT, "file_id": 4},
    ],
)
def test_another_place_life_or_file_never_validates(place: dict[str, int]) -> None:
    with pytest.raises(JournalFormatError):
        decode_block(make(1, b"x" * 8, 4096), **place)


def test_a_flipped_bit_in_header_or_payload_never_validates() -> None:
    good = make(1, b"y" * 24, 4096)
    for at in range(64 + 24):
        data = bytearray(good)
        data[at] ^= 0x10
        with pytest.raises(JournalFormatError):
            decode_block(data, offset=4096, salt=SALT, file_id=3)


def test_errors_name_place_and_rule_and_no_content() -> None:
    with pytest.raises(JournalFormatError, match="found zeros") as caught:
        decode_block_header(bytes(64), offset=12288)
    assert caught.value.offset == 12288
    data = bytearray(make(1, b"secret!!", 4096))
    data[64] ^= 1
    with pytest.raises(JournalFormatError) as caught:
        decode_block(data, offset=4096, salt=SALT, file_id=3)
    assert caught.value.offset == 4096 + 44
    assert "ecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "found"), [(None, 3), (0, 0), (4096, 1), (8192 + 70, 2), (3 * 4096 - 1, 3)]
)
def test_walk_ends_at_the_first_block_that_is_not_valid(spoil: int | None, found: int) -> None:
    data = bytearray(chain([b"a" * 8, b"b" * 8, b"c" * 8]))
    if spoil is not None:
        data[spoil] ^= 1
    walked = list(walk_blocks(data, offset=4096, salt=SALT, file_id=3))
    assert [header.sequence for _, header, _ in walked] == list(range(1, found + 1))
    assert [offset for offset, _, _ in walked] == [4096 * (n + 1) for n in range(found)]


def test_walk_ends_at_a_seal_and_at_a_block_that_is_cut_off() -> None:
    data = chain([b"a" * 8, b"b" * 8], seal=True)
    stale = make(3, b"c" * 8, 4096 + len(data))
    assert len(list(walk_blocks(data + stale, offset=4096, salt=SALT, file_id=3))) == 2
    long = chain([b"a" * 8, b"b" * 5000])
    assert len(list(walk_blocks(long[:-4096], offset=4096, salt=SALT, file_id=3))) == 1
    assert len(list(walk_blocks(long[:4100], offset=4096, salt=SALT, file_id=3))) == 1


def test_encoder_refuses_wrong_lengths_and_places() -> None:
    header = BlockHeader(
        sequence=1, file_id=1, watermark=0, payload_bytes=8, records=1, previous_crc=0, time_ms=0
    )
    with pytest.raises(ValueError, match="8 bytes"):
        encode_block(header, b"seven77", salt=1, offset=4096)
    with pytest.raises(ValueError, match="multiple"):
        encode_block(header, b"eight888", salt=1, offset=4100)
