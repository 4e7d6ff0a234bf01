"""Pages: round trips, the bytes of the specification, flipped bits and cut-off ends."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.page import (
    ADDRESS_BYTES_MAX,
    PAGE_BIT,
    TRAILER_BYTES,
    PageHeader,
    PageIndex,
    PagePlace,
    PageQueue,
    PageRecord,
    block_file_id,
    check_footer,
    decode_footer,
    decode_page_header,
    decode_trailer,
    encode_footer,
    encode_page_header,
    footer_size_bytes,
)

HEADER = PageHeader(
    page_id=7,
    salt=0x1122334455667788,
    journal_id=bytes(range(16)),
    address="orders/eu",
    created_ms=1_700_000_000_123,
)
SALT = HEADER.salt
QUEUES = (
    PageQueue(3, (PagePlace(10, 0), PagePlace(12, 1))),
    PageQueue(9, (PagePlace(2**40, 1),)),
)
RECORDS = (PageRecord(4160, 5, 20, 1, 8, 4, 1), PageRecord(4300, 1000, 40, 2, 10, 9, 1))


def footer(
    queues: tuple[PageQueue, ...] = QUEUES,
    records: tuple[PageRecord, ...] = RECORDS,
    *,
    offset: int = 8192,
) -> bytes:
    return encode_footer(
        page_id=7,
        salt=SALT,
        footer_offset=offset,
        queues=queues,
        records=records,
        blocks=2,
        seal_crc=0xABCDEF01,
    )


def seeded(data: bytes, offset: int) -> int:
    return crc32c(data, crc32c(struct.pack("<QQ", SALT, offset)))


def signed(data: bytes) -> bytes:
    """The footer with checksums made to hold."""
    octets = bytearray(data)
    octets[-8:-4] = struct.pack("<I", seeded(bytes(octets[:-64]), 8192))
    octets[-4:] = struct.pack("<I", seeded(bytes(octets[-64:-4]), 8192 + len(octets) - 64))
    return bytes(octets)


def spoiled(at: int, value: bytes) -> bytes:
    octets = bytearray(footer())
    octets[at : at + len(value)] = value
    return signed(bytes(octets))


def test_bytes_of_the_header_stand_where_the_format_page_says() -> None:
    data = encode_page_header(HEADER)
    assert len(data) == 4096
    assert data[:8] == b"VSPYPAGE"
    assert data[8:16] == b"\x01\0\0\0\0\x10\0\0"
    assert data[16:32] == bytes(range(16))
    assert struct.unpack_from("<QQQH", data, 32) == (7, SALT, 1_700_000_000_123, 9)
    assert not any(data[58:64])
    assert data[64:73] == b"orders/eu"
    assert not any(data[73:4092])
    assert struct.unpack_from("<I", data, 4092) == (crc32c(data[:4092]),)


def test_bytes_of_the_footer_stand_where_the_format_page_says() -> None:
    data = footer()
    assert len(data) == 4096 == footer_size_bytes(2, 3, 2)
    assert struct.unpack_from("<IIQQII", data, 0) == (3, 2, 10, 12, 0, 0)
    assert struct.unpack_from("<IIQQII", data, 32) == (9, 1, 2**40, 2**40, 2, 0)
    assert struct.unpack_from("<6I", data, 64) == (0, 0, 2, 1, 0, 1)
    assert struct.unpack_from("<IIHHBBBB", data, 88) == (4160, 5, 20, 1, 8, 4, 1, 0)
    assert struct.unpack_from("<IIHHBBBB", data, 104) == (4300, 1000, 40, 2, 10, 9, 1, 0)
    assert not any(data[120:-64])
    trailer = data[-64:]
    assert trailer[:8] == b"VPGT\x01\0\0\0"
    assert struct.unpack_from("<QQQIIIIII", trailer, 8) == (
        7,
        8192,
        12288,
        2,
        3,
        2,
        0,
        2,
        0xABCDEF01,
    )
    assert struct.unpack_from("<I", trailer, 56) == (seeded(data[:-64], 8192),)
    assert struct.unpack_from("<I", trailer, 60) == (seeded(trailer[:60], 12288 - 64),)


def test_blocks_of_a_page_have_ids_of_their_own() -> None:
    assert block_file_id(7) == 7 + 2**62


def test_header_comes_back() -> None:
    assert decode_page_header(encode_page_header(HEADER)) == HEADER


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=1000), st.integers(1, 2**62 - 1))
def test_headers_come_back(address: str, page_id: int) -> None:
    header = replace(HEADER, address=address, page_id=page_id)
    assert decode_page_header(encode_page_header(header)) == header


@pytest.mark.parametrize(
    "header",
    [
        replace(HEADER, page_id=0),
        replace(HEADER, page_id=PAGE_BIT),
        replace(HEADER, salt=2**64),
        replace(HEADER, journal_id=b"short"),
        replace(HEADER, address=""),
        replace(HEADER, address="x" * (ADDRESS_BYTES_MAX + 1)),
    ],
)
def test_a_header_out_of_range_is_not_encoded(header: PageHeader) -> None:
    with pytest.raises(ValueError, match=r"page|journal id|address"):
        encode_page_header(header)


@given(st.integers(0, 4096 * 8 - 1))
def test_no_flipped_bit_of_a_header_goes_unseen(bit: int) -> None:
    data = bytearray(encode_page_header(HEADER))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(JournalFormatError):
        decode_page_header(data)


@pytest.mark.parametrize(
    ("at", "value", "offset", "what"),
    [
        (0, b"X", 0, "magic"),
        (8, b"\x03", 8, "version"),
        (8, b"\x02", 10, "length of the sketch"),
        (10, b"\x01", 10, "length of the sketch"),
        (58, b"\x01", 58, "padding"),
        (100, b"\x01", 58, "padding"),
        (12, b"\x01", 12, "alignment"),
        (32, bytes(8), 32, "page id"),
        (32, b"\xff" * 8, 32, "page id"),
        (56, b"\xff\xff", 56, "length of the address"),
        (64, b"\xff", 64, "address"),
    ],
)
def test_a_wrong_header_is_named(at: int, value: bytes, offset: int, what: str) -> None:
    data = bytearray(encode_page_header(HEADER))
    data[at : at + len(value)] = value
    data[4092:] = struct.pack("<I", crc32c(data[:4092]))
    with pytest.raises(JournalFormatError, match=what) as caught:
        decode_page_header(data)
    assert caught.value.offset == offset


def test_a_header_with_a_sketch_says_so_in_its_version() -> None:
    header = replace(HEADER, sketch=b"sketch")
    data = encode_page_header(header)
    address = len(HEADER.address.encode())
    assert data[8:12] == b"\x02\0\x06\0"
    assert data[64 + address : 70 + address] == b"sketch"
    assert decode_page_header(data) == header
    assert encode_page_header(HEADER)[8:12] == b"\x01\0\0\0"


@given(st.integers(0, 4096 * 8 - 1))
def test_no_flipped_bit_of_a_sketch_goes_unseen(bit: int) -> None:
    data = bytearray(encode_page_header(replace(HEADER, sketch=bytes(range(256)) * 8)))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(JournalFormatError):
        decode_page_header(data)


@pytest.mark.parametrize("length", [1, 1000, ADDRESS_BYTES_MAX - 6])
def test_a_sketch_may_fill_a_header(length: int) -> None:
    header = replace(HEADER, address="orders", sketch=b"s" * length)
    assert decode_page_header(encode_page_header(header)) == header
    with pytest.raises(ValueError, match="does not fit"):
        encode_page_header(replace(header, sketch=b"s" * (ADDRESS_BYTES_MAX - 5)))


def test_a_sketch_longer_than_a_header_is_named() -> None:
    data = bytearray(encode_page_header(replace(HEADER, sketch=b"sketch")))
    data[10:12] = b"\xff\xff"
    data[4092:] = struct.pack("<I", crc32c(data[:4092]))
    with pytest.raises(JournalFormatError, match="length of the sketch"):
        decode_page_header(data)


def test_a_header_that_is_cut_off_is_named() -> None:
    with pytest.raises(JournalFormatError, match="cut off"):
        decode_page_header(encode_page_header(HEADER)[:4095])


def test_footer_comes_back() -> None:
    index = decode_footer(footer(), page_id=7, salt=SALT)
    assert index.queues == QUEUES
    assert index.records == RECORDS
    assert index.trailer[:6] == (7, 8192, 12288, 2, 3, 2)
    assert index.trailer.index_bytes == 120


def test_a_footer_of_no_messages_comes_back() -> None:
    index = decode_footer(footer((), ()), page_id=7, salt=SALT)
    assert (index.queues, index.records) == ((), ())


@st.composite
def indexes(draw: st.DrawFn) -> tuple[tuple[PageQueue, ...], tuple[PageRecord, ...]]:
    small, large = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1)
    octet = st.integers(0, 255)
    records = draw(
        st.lists(
            st.builds(PageRecord, large, large, small, small, octet, octet, octet),
            min_size=1,
            max_size=200,
        )
    )
    queues = []
    for queue_id in sorted(draw(st.sets(large, max_size=8))):
        first = draw(st.integers(1, 2**63))
        steps = sorted(draw(st.sets(large, max_size=100)) | {0})
        numbers = st.integers(0, len(records) - 1)
        places = tuple(PagePlace(first + step, draw(numbers)) for step in steps)
        queues.append(PageQueue(queue_id, places))
    return tuple(queues), tuple(records)


@given(indexes())
def test_footers_come_back(index: tuple[tuple[PageQueue, ...], tuple[PageRecord, ...]]) -> None:
    data = footer(*index)
    assert len(data) % 4096 == 0
    decoded = decode_footer(data, page_id=7, salt=SALT)
    assert (decoded.queues, decoded.records) == index


@given(st.integers(0, 4096 * 8 - 1))
def test_no_flipped_bit_of_a_footer_goes_unseen(bit: int) -> None:
    data = bytearray(footer())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(JournalFormatError):
        decode_footer(data, page_id=7, salt=SALT)
    with pytest.raises(JournalFormatError):
        check_footer(data, page_id=7, salt=SALT)


@given(st.integers(0, 4095), st.booleans())
def test_no_cut_of_a_footer_goes_unseen(length: int, at_the_start: bool) -> None:
    data = footer()
    with pytest.raises(JournalFormatError):
        decode_footer(data[-length or 4096 :] if at_the_start else data[:length], page_id=7, salt=0)
    with pytest.raises(JournalFormatError):
        decode_footer(
            data[4096 - length :] if at_the_start else data[:length], page_id=7, salt=SALT
        )


@pytest.mark.parametrize(
    ("data", "offset", "what"),
    [
        (spoiled(-64, b"X"), 12224, "magic"),
        (spoiled(-60, b"\x02"), 12228, "version"),
        (spoiled(-58, b"\x01"), 12230, "padding"),
        (spoiled(-20, b"\x01"), 12230, "padding"),
        (spoiled(-48, b"\0\0\0\1"), 12240, "footer offset"),
        (spoiled(-32, b"\xff\0"), 12240, "footer offset"),
        (spoiled(16, b"\x0d"), 8192, "sequences do not fit"),
        (spoiled(24, b"\x01"), 8192, "do not add up"),
        (spoiled(4, b"\x03"), 8192, "sequences do not fit"),
        (spoiled(4, b"\x04"), 8192, "do not add up"),
        (spoiled(72, b"\x00"), 8192, "sequences do not fit"),
        (spoiled(36, bytes(4)), 8224, "do not add up"),
        (spoiled(68, b"\x02"), 8256, "names no record"),
    ],
)
def test_a_wrong_footer_is_named(data: bytes, offset: int, what: str) -> None:
    with pytest.raises(JournalFormatError, match=what) as caught:
        decode_footer(data, page_id=7, salt=SALT)
    assert caught.value.offset == offset


def test_places_without_a_queue_are_named() -> None:
    queues = (QUEUES[0], PageQueue(9, (PagePlace(5, 0), PagePlace(6, 1))))
    octets = bytearray(footer(queues))
    octets[36:40] = struct.pack("<I", 1)
    octets[48:56] = struct.pack("<Q", 5)
    with pytest.raises(JournalFormatError, match="without a queue"):
        decode_footer(signed(bytes(octets)), page_id=7, salt=SALT)


def test_sequences_that_do_not_ascend_are_named() -> None:
    queues = (PageQueue(3, (PagePlace(1, 0), PagePlace(2, 0), PagePlace(4, 1))),)
    octets = bytearray(footer(queues))
    octets[40:44] = struct.pack("<I", 7)
    with pytest.raises(JournalFormatError, match="do not fit"):
        decode_footer(signed(bytes(octets)), page_id=7, salt=SALT)


@pytest.mark.parametrize(
    "read",
    [
        lambda data: decode_footer(data, page_id=8, salt=SALT),
        lambda data: decode_footer(data, page_id=7, salt=SALT + 1),
        lambda data: decode_trailer(data[-64:], page_id=7, salt=SALT, size_bytes=16384),
        lambda data: decode_trailer(data[-64:], page_id=7, salt=SALT, size_bytes=12289),
        lambda data: decode_trailer(data[-63:], page_id=7, salt=SALT, size_bytes=12288),
    ],
)
def test_the_footer_of_another_page_is_refused(read: Callable[[bytes], PageIndex]) -> None:
    with pytest.raises(JournalFormatError):
        read(footer())


def test_the_trailer_alone_tells_where_the_footer_begins() -> None:
    trailer = decode_trailer(footer()[-TRAILER_BYTES:], page_id=7, salt=SALT, size_bytes=12288)
    assert (trailer.footer_offset, trailer.blocks, trailer.seal_crc) == (8192, 2, 0xABCDEF01)


@pytest.mark.parametrize(
    "queues",
    [
        (QUEUES[1], QUEUES[0]),
        (PageQueue(1, (PagePlace(2, 0), PagePlace(2, 0))),),
        (PageQueue(1, (PagePlace(2, 0), PagePlace(2**32 + 2, 0))),),
        (PageQueue(2**32, (PagePlace(2, 0),)),),
    ],
)
def test_an_index_out_of_order_or_range_is_not_encoded(queues: tuple[PageQueue, ...]) -> None:
    with pytest.raises(ValueError, match=r"ascend|out of range"):
        footer(queues)


def test_a_footer_stands_at_a_multiple_of_4096() -> None:
    with pytest.raises(ValueError, match="multiple of 4096"):
        footer(offset=8200)
