"""The file header: round trip, the bytes of the specification, and every way to be wrong."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import (
    FileHeader,
    FileState,
    JournalKind,
    decode_file_header,
    encode_file_header,
    mend_file_header,
)

HEADER = FileHeader(
    state=FileState.ACTIVE,
    kind=JournalKind.MESSAGE,
    journal_id=bytes(range(16)),
    file_id=7,
    salt=0x1122334455667788,
    size_bytes=10 * 1024 * 1024,
    activated_ms=1_700_000_000_123,
    watermark=0x0102030405060708,
)


def spoiled(at: int, value: bytes, *, with_crc: bool = True) -> bytes:
    data = bytearray(encode_file_header(HEADER))
    data[at : at + len(value)] = value
    if with_crc:
        data[508:512] = struct.pack("<I", crc32c(data[:508]))
    return bytes(data)


def test_bytes_stand_where_the_format_page_says() -> None:
    data = encode_file_header(HEADER)
    assert len(data) == 4096
    assert data[:8] == b"VSPYJRNL"
    assert data[8:12] == b"\x01\x00\x02\x01"
    assert struct.unpack_from("<I", data, 12) == (4096,)
    assert data[16:32] == bytes(range(16))
    assert struct.unpack_from("<QQQQI", data, 32) == (
        7,
        0x1122334455667788,
        10 * 1024 * 1024,
        1_700_000_000_123,
        1,
    )
    assert not any(data[68:72])
    assert data[72:80] == bytes(range(8, 0, -1))
    assert not any(data[80:508])
    assert struct.unpack_from("<I", data, 508) == (crc32c(data[:508]),)
    assert not any(data[512:])


@pytest.mark.parametrize("state", FileState)
@pytest.mark.parametrize("kind", JournalKind)
def test_round_trip(state: FileState, kind: JournalKind) -> None:
    header = replace(HEADER, state=state, kind=kind, is_growing=kind is JournalKind.MESSAGE)
    assert decode_file_header(encode_file_header(header)) == header
    assert decode_file_header(encode_file_header(header)[:512]) == header


def test_a_header_from_before_the_watermark_says_nothing() -> None:
    header = decode_file_header(spoiled(72, bytes(8)))
    assert header is not None
    assert header.watermark == 0


def test_zeros_are_a_free_file() -> None:
    assert decode_file_header(bytes(4096)) is None


@pytest.mark.parametrize(
    ("data", "offset", "what"),
    [
        (spoiled(0, b"X"), 0, "magic"),
        (spoiled(8, b"\x02"), 8, "format version"),
        (spoiled(10, b"\x03"), 10, "state"),
        (spoiled(11, b"\x05"), 11, "journal kind"),
        (spoiled(12, b"\x00\x02\x00\x00"), 12, "block alignment"),
        (spoiled(32, bytes(8)), 32, "file id"),
        (spoiled(48, b"\x01"), 48, "file size"),
        (spoiled(48, struct.pack("<Q", 32768)), 48, "file size"),
        (spoiled(64, b"\x02"), 64, "software format"),
        (spoiled(68, b"\x02"), 68, "flags"),
        (spoiled(100, b"\x01"), 80, "padding"),
        (spoiled(40, b"\x99", with_crc=False), 508, "checksum"),
        (bytes(100), 0, "cut off"),
    ],
)
def test_faults_are_named_with_their_place(data: bytes, offset: int, what: str) -> None:
    with pytest.raises(JournalFormatError, match=what) as caught:
        decode_file_header(data)
    assert caught.value.offset == offset
    assert str(caught.value.expected) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"journal_id": b"short"},
        {"size_bytes": 4096},
        {"size_bytes": 70_001},
        {"salt": 2**64},
        {"watermark": 2**64},
    ],
)
def test_encoder_refuses_what_the_format_cannot_hold(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        encode_file_header(replace(HEADER, **change))  # type: ignore[arg-type]


def test_every_bit_of_the_checked_sector_matters() -> None:
    good = encode_file_header(HEADER)
    for at in range(512):
        data = bytearray(good)
        data[at] ^= 1
        with pytest.raises(JournalFormatError):
            decode_file_header(data)


def test_a_damaged_byte_is_mended():
    header = FileHeader(
        state=FileState.ACTIVE,
        kind=JournalKind.MESSAGE,
        journal_id=bytes(range(16)),
        file_id=7,
        salt=0x1234_5678_9ABC_DEF0,
        size_bytes=1 << 20,
        activated_ms=1_790_000_000_000,
    )
    whole = encode_file_header(header)[:512]
    assert mend_file_header(whole) is None
    assert mend_file_header(whole[:100]) is None
    for at in (*range(0, 508, 7), 507, 508, 509, 510, 511):
        damaged = bytearray(whole)
        damaged[at] ^= 1 + at % 255
        assert mend_file_header(damaged) == whole, at
