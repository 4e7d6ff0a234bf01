"""Page files: messages of one address that were moved out of the journal (journal-format §7).

Owns the encoding of a page's header, its index and its trailer; what stands between them are blocks
as in the journal (`block`, `record`). Never reads a file, and never decides what a damaged page
means. Called by the store's paging, by the pure-Python core and by the tools that read pages.

Layout of the file, whose size is a multiple of 4096:

    0                  header, 4096 bytes: which page, of which address and journal; its sketch
    4096               blocks, the last of which is a seal; their file id is `block_file_id(page)`
    footer offset      queues, 32 bytes each: id, places, first and last sequence, index of a place
                       places, 8 bytes each: sequence less the queue's first, number of the record
                       records, 16 bytes each: offset, lengths, flags
                       zeros
    file size - 64     trailer: counts and checksums
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import SEED, align4k
from vespiary_codec.journal.errors import JournalFormatError

MAGIC: Final = b"VSPYPAGE"
TRAILER_MAGIC: Final = 0x54475056
"""`VPGT` as a little-endian number."""

FORMAT_VERSION: Final = 1
SKETCH_FORMAT_VERSION: Final = 2
"""Format version of headers with a sketch."""

READABLE_VERSIONS: Final = (FORMAT_VERSION, SKETCH_FORMAT_VERSION)
ALIGNMENT: Final = 4096
HEADER_BYTES: Final = 4096
TRAILER_BYTES: Final = 64
PAGE_BIT: Final = 1 << 62
"""Set in the file id of a page's blocks: pages and journal files share one space of ids."""

FILE_BYTES_MAX: Final = 2**32 - ALIGNMENT
"""Offsets of records have 32 bits."""

HEADER: Final = struct.Struct("<8sHHI16sQQQHHI")
"""magic, version, length of sketch, alignment, journal id, page id, salt, time, length of address,
zeros."""

QUEUE: Final = struct.Struct("<IIQQII")
"""queue id, places, first sequence, last sequence, index of its first place, zero."""

PLACE: Final = struct.Struct("<II")
"""sequence less the first one of its queue, number of the record."""

RECORD: Final = struct.Struct("<IIHHBBBB")
"""offset, body length, properties length, places, flags, priority, protocol, zero."""

_RECORD_PRIORITY_AT: Final = 13

TRAILER: Final = struct.Struct("<IHHQQQIIIIIIII")
"""magic, version, zero, page id, footer offset, file size, queues, places, records, zero, blocks,
CRC of the seal block, CRC of the index, CRC of the trailer."""

_CRC: Final = struct.Struct("<I")
_HEADER_CRC_AT: Final = HEADER_BYTES - _CRC.size
_TRAILER_CRC_AT: Final = TRAILER_BYTES - _CRC.size
ADDRESS_BYTES_MAX: Final = _HEADER_CRC_AT - HEADER.size
_HEADER_AT: Final = {
    "magic": 0,
    "format version": 8,
    "length of the sketch": 10,
    "padding": 58,
    "block alignment": 12,
    "page id": 32,
    "length of the address": 56,
    "address": HEADER.size,
    "checksum": _HEADER_CRC_AT,
}
_TRAILER_AT: Final = {
    "magic": 0,
    "format version": 4,
    "padding": 6,
    "page id": 8,
    "footer offset": 16,
    "file size": 24,
    "number of queues": 32,
    "number of places": 36,
    "number of records": 40,
    "number of blocks": 48,
    "checksum": _TRAILER_CRC_AT,
}

assert TRAILER.size == TRAILER_BYTES


def block_file_id(page_id: int) -> int:
    """Return the file id that stands in the headers of a page's blocks."""
    return page_id | PAGE_BIT


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHeader:
    """What the first 4096 bytes of a page say.

    Attributes:
        page_id: Ascending over all pages of a journal, below 2**62, never used twice.
        salt: 64 random bits, the seed of all checksums of this file but the header's.
        journal_id: 16 bytes: the journal that names this page.
        address: Name of the address that its messages were sent to.
        created_ms: Time of its making, milliseconds since 1970-01-01 UTC.
        sketch: What its messages may be (`page_sketch`); empty: not known.
    """

    page_id: int
    salt: int
    journal_id: bytes
    address: str
    created_ms: int
    sketch: bytes = b""


def encode_page_header(header: PageHeader) -> bytes:
    """Return the 4096 bytes of a page's header.

    Raises:
        ValueError: A field is out of its range.
    """
    address = header.address.encode()
    if len(header.journal_id) != 16:
        raise ValueError(f"the journal id has {len(header.journal_id)} bytes; it must have 16")
    if not 0 < header.page_id < PAGE_BIT:
        raise ValueError(f"page id {header.page_id} is not 1 to {PAGE_BIT - 1}")
    if not 0 < len(address) <= ADDRESS_BYTES_MAX:
        raise ValueError(f"the address has {len(address)} bytes; 1 to {ADDRESS_BYTES_MAX} fit")
    if len(header.sketch) > ADDRESS_BYTES_MAX - len(address):
        raise ValueError(f"a sketch of {len(header.sketch)} bytes does not fit behind the address")
    try:
        fields = HEADER.pack(
            MAGIC,
            SKETCH_FORMAT_VERSION if header.sketch else FORMAT_VERSION,
            len(header.sketch),
            ALIGNMENT,
            header.journal_id,
            header.page_id,
            header.salt,
            header.created_ms,
            len(address),
            0,
            0,
        )
    except struct.error as error:
        raise ValueError(f"a field of the page header is out of range: {error}") from error
    checked = (fields + address + header.sketch).ljust(_HEADER_CRC_AT, b"\0")
    return checked + _CRC.pack(crc32c(checked))


def decode_page_header(data: bytes | bytearray | memoryview) -> PageHeader:
    """Return what the header of a page says.

    Args:
        data: The first 4096 bytes of the file, or more.

    Raises:
        JournalFormatError: It is not the header of a page: offset in the file, found, expected.
    """
    if len(data) < HEADER_BYTES:
        _refuse_length("the page header", 0, len(data), HEADER_BYTES)
    octets = bytes(data[:HEADER_BYTES])
    magic, version, sketch_bytes, alignment, journal_id, page_id, salt, created, length, *zeros = (
        HEADER.unpack_from(octets)
    )
    if magic != MAGIC:
        _refuse_header("magic", "another magic", "the magic of a page")
    if version not in READABLE_VERSIONS:
        expected = " or ".join(map(str, READABLE_VERSIONS))
        _refuse_header("format version", version, expected)
    (crc,) = _CRC.unpack_from(octets, _HEADER_CRC_AT)
    computed = crc32c(octets[:_HEADER_CRC_AT])
    if crc != computed:
        _refuse_header("checksum", f"{crc:#010x}", f"{computed:#010x}")
    if not 0 < length <= ADDRESS_BYTES_MAX:
        _refuse_header("length of the address", length, f"1 to {ADDRESS_BYTES_MAX}")
    sketch_at = HEADER.size + length
    end = sketch_at + sketch_bytes
    if bool(sketch_bytes) != (version == SKETCH_FORMAT_VERSION) or end > _HEADER_CRC_AT:
        _refuse_header("length of the sketch", sketch_bytes, "one that fits version and address")
    if any(zeros) or any(octets[end:_HEADER_CRC_AT]):
        _refuse_header("padding", "something else", "zeros")
    if alignment != ALIGNMENT:
        _refuse_header("block alignment", alignment, ALIGNMENT)
    if not 0 < page_id < PAGE_BIT:
        _refuse_header("page id", page_id, f"1 to {PAGE_BIT - 1}")
    try:
        address = octets[HEADER.size : HEADER.size + length].decode()
    except UnicodeDecodeError as error:
        raise JournalFormatError(
            "bad address in the page header",
            offset=HEADER.size + error.start,
            found="an octet that is not UTF-8",
            expected="UTF-8",
        ) from error
    return PageHeader(
        page_id=page_id,
        salt=salt,
        journal_id=journal_id,
        address=address,
        created_ms=created,
        sketch=octets[sketch_at:end],
    )


class PageRecord(NamedTuple):
    """One ADD record of a page, less its content.

    Attributes:
        offset: Where it stands in the file.
        body_bytes: Length of its body.
        properties_bytes: Length of its properties.
        places: Number of its places.
        flags: Flags of the record.
        priority: 0 to 9.
        protocol: Protocol of the sender.
    """

    offset: int
    body_bytes: int
    properties_bytes: int
    places: int
    flags: int
    priority: int
    protocol: int


class PagePlace(NamedTuple):
    """A message's place in a queue, and the number of its record within the page."""

    sequence: int
    record: int


class PageQueue(NamedTuple):
    """What one queue has in a page: its places, sequences ascending."""

    queue_id: int
    places: tuple[PagePlace, ...]


class PageTrailer(NamedTuple):
    """The last 64 bytes of a page.

    Attributes:
        page_id: The page.
        footer_offset: Where the index begins: right behind the seal block.
        size_bytes: Size of the file.
        queues: Number of queues.
        places: Number of places, of all queues.
        records: Number of ADD records.
        blocks: Number of blocks, the seal included.
        seal_crc: Checksum of the seal block, which is chained to all before it.
        index_crc: Checksum of the bytes from `footer_offset` to the trailer.
    """

    page_id: int
    footer_offset: int
    size_bytes: int
    queues: int
    places: int
    records: int
    blocks: int
    seal_crc: int
    index_crc: int

    @property
    def index_bytes(self) -> int:
        """Length of the three tables."""
        return self.queues * QUEUE.size + self.places * PLACE.size + self.records * RECORD.size


class PageIndex(NamedTuple):
    """The footer of a page: what is in it, without its messages."""

    trailer: PageTrailer
    queues: tuple[PageQueue, ...]
    records: tuple[PageRecord, ...]


def highest_priority(footer: bytes | memoryview) -> int:
    """Return the highest priority of the messages of a page.

    Args:
        footer: All of it, verified.

    Returns:
        0 if it has none.
    """
    fields = TRAILER.unpack_from(footer, len(footer) - TRAILER_BYTES)
    queues, places, records = fields[6], fields[7], fields[8]
    start = queues * QUEUE.size + places * PLACE.size + _RECORD_PRIORITY_AT
    end = start + records * RECORD.size - _RECORD_PRIORITY_AT
    return max(bytes(footer[start : max(end, start) : RECORD.size]), default=0)


def footer_size_bytes(queues: int, places: int, records: int) -> int:
    """Return how long the footer with so many entries is, its padding and the trailer included."""
    tables = queues * QUEUE.size + places * PLACE.size + records * RECORD.size
    return align4k(tables + TRAILER_BYTES)


def encode_footer(
    *,
    page_id: int,
    salt: int,
    footer_offset: int,
    queues: Sequence[PageQueue],
    records: Sequence[PageRecord],
    blocks: int,
    seal_crc: int,
) -> bytes:
    """Return the end of a page: its index and its trailer.

    Args:
        page_id: The page.
        salt: Its salt.
        footer_offset: Where the footer will stand: behind the seal block, a multiple of 4096.
        queues: Ids ascending, each with one place or more, sequences ascending.
        records: In the order of the file.
        blocks: Number of blocks, the seal included.
        seal_crc: Checksum of the seal block.

    Raises:
        ValueError: The order is another, or a field is out of its range.
    """
    if footer_offset % ALIGNMENT:
        raise ValueError(f"footer offset {footer_offset} is not a multiple of {ALIGNMENT}")
    try:
        tables = _encode_tables(queues, records)
        trailer = bytearray(
            TRAILER.pack(
                TRAILER_MAGIC,
                FORMAT_VERSION,
                0,
                page_id,
                footer_offset,
                footer_offset + len(tables) + TRAILER_BYTES,
                len(queues),
                sum(len(queue.places) for queue in queues),
                len(records),
                0,
                blocks,
                seal_crc,
                _seeded(tables, salt, footer_offset),
                0,
            )
        )
    except struct.error as error:
        raise ValueError(f"a field of the page index is out of range: {error}") from error
    crc = _seeded(trailer[:_TRAILER_CRC_AT], salt, footer_offset + len(tables))
    _CRC.pack_into(trailer, _TRAILER_CRC_AT, crc)
    return bytes(tables + trailer)


def _encode_tables(queues: Sequence[PageQueue], records: Sequence[PageRecord]) -> bytearray:
    """Return the three tables and the zeros up to the trailer."""
    tables = bytearray()
    places = bytearray()
    before = -1
    for queue_id, entries in queues:
        if queue_id <= before or not _ascends(entries):
            raise ValueError("queues and sequences of a page index must ascend")
        before = queue_id
        first, last = entries[0].sequence, entries[-1].sequence
        index = len(places) // PLACE.size
        tables += QUEUE.pack(queue_id, len(entries), first, last, index, 0)
        for sequence, number in entries:
            places += PLACE.pack(sequence - first, number)
    count = len(places) // PLACE.size
    tables += places
    for record in records:
        tables += RECORD.pack(*record, 0)
    size = footer_size_bytes(len(queues), count, len(records))
    tables += bytes(size - TRAILER_BYTES - len(tables))
    return tables


def _ascends(entries: Sequence[PagePlace]) -> bool:
    return all(a.sequence < b.sequence for a, b in pairwise(entries))


def decode_trailer(
    data: bytes | bytearray | memoryview, *, page_id: int, salt: int, size_bytes: int
) -> PageTrailer:
    """Return what the trailer of a page says.

    Args:
        data: The last 64 bytes of the file.
        page_id: The page that it must be.
        salt: Its salt.
        size_bytes: Size of the file.

    Raises:
        JournalFormatError: It is not the trailer of this page: offset in the file, found, expected.
    """
    at = max(size_bytes - TRAILER_BYTES, 0)
    octets = bytes(data)
    if len(octets) != TRAILER_BYTES or size_bytes % ALIGNMENT:
        _refuse_length("the trailer of a page", at, size_bytes, f"a multiple of {ALIGNMENT}")
    magic, version, zero, *fields = TRAILER.unpack(octets)
    if magic != TRAILER_MAGIC:
        _refuse_trailer("magic", at, "zeros" if not any(octets) else f"{magic:#010x}", "VPGT")
    if version != FORMAT_VERSION:
        _refuse_trailer("format version", at, version, FORMAT_VERSION)
    computed = _seeded(octets[:_TRAILER_CRC_AT], salt, at)
    if fields[-1] != computed:
        _refuse_trailer("checksum", at, f"{fields[-1]:#010x}", f"{computed:#010x}")
    trailer = PageTrailer(*fields[:6], *fields[7:10])
    if zero or fields[6]:
        _refuse_trailer("padding", at, "something else", "zeros")
    if trailer.page_id != page_id:
        _refuse_trailer("page id", at, trailer.page_id, page_id)
    if trailer.size_bytes != size_bytes:
        _refuse_trailer("file size", at, trailer.size_bytes, size_bytes)
    expected = size_bytes - footer_size_bytes(trailer.queues, trailer.places, trailer.records)
    if trailer.footer_offset != expected or expected < HEADER_BYTES:
        _refuse_trailer("footer offset", at, trailer.footer_offset, expected)
    return trailer


def check_footer(data: bytes | bytearray | memoryview, *, page_id: int, salt: int) -> PageTrailer:
    """Return the trailer of a footer whose bytes are what was written.

    Args:
        data: The file from the footer's offset to its end.
        page_id: The page that it must be.
        salt: Its salt.

    Raises:
        JournalFormatError: A checksum does not hold: offset in the file, found, expected.
    """
    octets = memoryview(data)
    if len(octets) < TRAILER_BYTES:
        _refuse_length("the footer of a page", 0, len(octets), f"at least {TRAILER_BYTES}")
    end = bytes(octets[-TRAILER_BYTES:])
    trailer = decode_trailer(end, page_id=page_id, salt=salt, size_bytes=TRAILER.unpack(end)[5])
    at, length = trailer.footer_offset, trailer.size_bytes - trailer.footer_offset
    if len(octets) != length:
        _refuse_length("the footer of a page", at, len(octets), length)
    computed = _seeded(octets[:-TRAILER_BYTES], salt, at)
    if computed != trailer.index_crc:
        raise JournalFormatError(
            "bad checksum of a page's index",
            offset=at,
            found=f"{computed:#010x}",
            expected=f"{trailer.index_crc:#010x}",
        )
    return trailer


def decode_footer(data: bytes | bytearray | memoryview, *, page_id: int, salt: int) -> PageIndex:
    """Return the index of a page.

    Args:
        data: The file from the footer's offset to its end.
        page_id: The page that it must be.
        salt: Its salt.

    Raises:
        JournalFormatError: A checksum does not hold, or the tables contradict each other.
    """
    octets = memoryview(data)
    trailer = check_footer(octets, page_id=page_id, salt=salt)
    at = trailer.footer_offset
    places_at = trailer.queues * QUEUE.size
    records_at = places_at + trailer.places * PLACE.size
    records = tuple(
        PageRecord(*fields[:7])
        for fields in RECORD.iter_unpack(octets[records_at : trailer.index_bytes])
    )
    places = list(PLACE.iter_unpack(octets[places_at:records_at]))
    if any(record >= len(records) for _, record in places):
        _refuse_index("a place names no record", at + places_at, "more", f"below {len(records)}")
    queues: list[PageQueue] = []
    taken = 0
    for number, fields in enumerate(QUEUE.iter_unpack(octets[:places_at])):
        queue_id, count, first, last, index, _ = fields
        entry_at = at + number * QUEUE.size
        if index != taken or not count or taken + count > len(places):
            _refuse_index("a queue's places do not add up", entry_at, index, taken)
        entries = tuple(
            PagePlace(first + offset, record) for offset, record in places[index : index + count]
        )
        ends = (entries[0].sequence, entries[-1].sequence)
        if ends != (first, last) or not _ascends(entries):
            _refuse_index("a queue's sequences do not fit", entry_at, entries[-1].sequence, last)
        taken += count
        queues.append(PageQueue(queue_id, entries))
    if taken != len(places):
        _refuse_index("places without a queue", at + places_at, taken, len(places))
    return PageIndex(trailer, tuple(queues), records)


def _seeded(data: bytes | bytearray | memoryview, salt: int, offset: int) -> int:
    """Return a checksum that holds for this file and this place alone."""
    return crc32c(data, crc32c(SEED.pack(salt, offset)))


def _refuse_length(what: str, offset: int, found: int, expected: object) -> None:
    raise JournalFormatError(
        f"{what} is cut off", offset=offset, found=f"{found} bytes", expected=f"{expected} bytes"
    )


def _refuse_header(field: str, found: object, expected: object) -> None:
    raise JournalFormatError(
        f"bad {field} in the page header", offset=_HEADER_AT[field], found=found, expected=expected
    )


def _refuse_trailer(field: str, at: int, found: object, expected: object) -> None:
    raise JournalFormatError(
        f"bad {field} in the trailer of a page",
        offset=at + _TRAILER_AT[field],
        found=found,
        expected=expected,
    )


def _refuse_index(what: str, offset: int, found: object, expected: object) -> None:
    raise JournalFormatError(
        f"{what} in the index of a page", offset=offset, found=found, expected=expected
    )
