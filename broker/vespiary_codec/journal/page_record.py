"""Records of the message journal that speak of page files (journal-format §3.8).

Owns the encoding of PAGE and PAGE_DONE. Must never know what a page file holds: that is
`vespiary_codec.journal.page`. Called by the pure-Python core and by the journal tools.

PAGE says which places stand in a page now, in place of all that was said of them before:

    u64 page id, u64 salt, u64 size of the file, u32 number of queues, u32 zero, then per queue:
        u32 queue id, u32 length of the bitmap, u64 first sequence, u64 last sequence,
        u32 number of places, u32 number of large ones, u32 number of counts, u32 zero
        bitmap (a multiple of 8 bytes), large ones (32 bytes each), counts (16 bytes each)

PAGE_DONE: u64 page id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.large_reference import REFERENCE_BYTES
from vespiary_codec.journal.record_types import RecordType

PAGED: Final = struct.Struct("<IBBHQQQII")
"""length, type, flags, zero, page id, salt, size, queues, zero."""

PAGED_QUEUE: Final = struct.Struct("<IIQQIIII")
"""queue id, bitmap bytes, first, last, places, large ones, counts, zero."""

_LARGE: Final = struct.Struct(f"<Q{REFERENCE_BYTES}s")
_COUNT: Final = struct.Struct("<QII")
_DONE: Final = struct.Struct("<IBBHQ")
LARGE_BYTES: Final = _LARGE.size
COUNT_BYTES: Final = _COUNT.size
SPAN_MAX: Final = 1 << 24
"""From a queue's first to its last sequence in one page; a reader refuses more."""
PLACES_MAX: Final = 32768
"""Places in one page; a reader refuses more."""


class PagedQueue(NamedTuple):
    """What one queue has in a page.

    Attributes:
        queue_id: The queue.
        sequences: Its places that are not done, ascending; one or more.
        large: Those of them that are large messages: sequence and reference (24 bytes), ascending.
        counts: Those that were given out before: sequence and how often, ascending.
    """

    queue_id: int
    sequences: tuple[int, ...]
    large: tuple[tuple[int, bytes], ...] = ()
    counts: tuple[tuple[int, int], ...] = ()


class PagedRecord(NamedTuple):
    """A PAGE record: these places stand in this page, and no longer where they stood before."""

    page_id: int
    salt: int
    size_bytes: int
    queues: tuple[PagedQueue, ...]


class PageDoneRecord(NamedTuple):
    """A PAGE_DONE record: nobody needs this page any more."""

    page_id: int


def bitmap_bytes(first: int, last: int) -> int:
    """Return the length of a bitmap from one sequence to another: a bit each, in words of 8."""
    return (last - first + 64) // 64 * 8


def encode_paged(record: PagedRecord) -> bytes:
    """Return the bytes of a PAGE record.

    Raises:
        ValueError: A field is out of its range.
    """
    body = bytearray()
    for queue in record.queues:
        body += _encode_queue(queue)
    try:
        return (
            PAGED.pack(
                PAGED.size + len(body), RecordType.PAGE, 0, 0, record.page_id, record.salt,
                record.size_bytes, len(record.queues), 0,
            )
            + body
        )  # fmt: skip
    except struct.error as error:
        raise ValueError(f"a field of a PAGE record is out of range: {error}") from error


def _encode_queue(queue: PagedQueue) -> bytes:
    sequences = queue.sequences
    if not sequences:
        raise ValueError(f"queue {queue.queue_id} has no place in the page")
    first, last = sequences[0], sequences[-1]
    bitmap = b""
    if len(sequences) != last - first + 1:
        bits = bytearray(bitmap_bytes(first, last))
        for sequence in sequences:
            bits[(sequence - first) >> 3] |= 1 << ((sequence - first) & 7)
        bitmap = bytes(bits)
    head = PAGED_QUEUE.pack(
        queue.queue_id, len(bitmap), first, last, len(sequences), len(queue.large),
        len(queue.counts), 0,
    )  # fmt: skip
    large = b"".join(_LARGE.pack(*one) for one in queue.large)
    return head + bitmap + large + b"".join(_COUNT.pack(*one, 0) for one in queue.counts)


def encode_page_done(record: PageDoneRecord) -> bytes:
    """Return the bytes of a PAGE_DONE record."""
    return _DONE.pack(_DONE.size, RecordType.PAGE_DONE, 0, 0, record.page_id)


def decode_page_done(data: memoryview, *, offset: int = 0) -> PageDoneRecord:
    """Return what a PAGE_DONE record says.

    Args:
        data: The record without padding.
        offset: Where it stands, for the error.

    Raises:
        JournalFormatError: It has another length.
    """
    if len(data) != _DONE.size:
        _refuse("a PAGE_DONE record has a wrong length", offset, len(data), _DONE.size)
    return PageDoneRecord(_DONE.unpack(data)[-1])


def decode_paged(data: memoryview, *, offset: int = 0) -> PagedRecord:
    """Return what a PAGE record says.

    Args:
        data: The record without padding.
        offset: Where it stands, for the errors.

    Raises:
        JournalFormatError: Its fields do not fit its length, or each other.
    """
    if len(data) < PAGED.size:
        _refuse("a PAGE record is cut off", offset, len(data), f"at least {PAGED.size} bytes")
    _, _, _, _, page_id, salt, size_bytes, number, _ = PAGED.unpack_from(data)
    queues: list[PagedQueue] = []
    places, at = 0, PAGED.size
    for _ in range(number):
        queue, at = _decode_queue(data, at, offset, PLACES_MAX - places)
        places += len(queue.sequences)
        if queues and queue.queue_id <= queues[-1].queue_id:
            _refuse("queues of a PAGE record do not ascend", offset + at, queue.queue_id, "more")
        queues.append(queue)
    if at != len(data):
        _refuse("bytes behind the queues of a PAGE record", offset + at, len(data), at)
    return PagedRecord(page_id, salt, size_bytes, tuple(queues))


def _decode_queue(
    data: memoryview, at: int, offset: int, places_max: int
) -> tuple[PagedQueue, int]:
    """Return a queue of a PAGE record, and where the next one stands."""
    if at + PAGED_QUEUE.size > len(data):
        _refuse("a queue of a PAGE record is cut off", offset + at, len(data), "more bytes")
    queue_id, length, first, last, places, large, counts, _ = PAGED_QUEUE.unpack_from(data, at)
    bits_at = at + PAGED_QUEUE.size
    large_at = bits_at + length
    counts_at = large_at + large * _LARGE.size
    end = counts_at + counts * _COUNT.size
    span = last - first + 1
    is_whole = not length and places == span
    if end > len(data) or not 0 < span <= SPAN_MAX or not first or last >> 63:
        _refuse("a queue of a PAGE record is out of range", offset + at, (first, last), "less")
    if places > places_max:
        _refuse(
            "a PAGE record has too many places", offset + at, places, f"at most {places_max} more"
        )
    if not is_whole and length != bitmap_bytes(first, last):
        _refuse("the bitmap of a PAGE record has a wrong length", offset + at, length, "another")
    sequences = tuple(range(first, last + 1) if is_whole else _bits(data[bits_at:large_at], first))
    if len(sequences) != places or sequences[:1] + sequences[-1:] != (first, last):
        _refuse("places of a PAGE record do not add up", offset + at, len(sequences), places)
    return (
        PagedQueue(
            queue_id,
            sequences,
            tuple(_pairs(_LARGE, data[large_at:counts_at])),
            tuple((s, n) for s, n, _ in _COUNT.iter_unpack(data[counts_at:end])),
        ),
        end,
    )


def _bits(bitmap: memoryview, first: int) -> Iterator[int]:
    for number, octet in enumerate(bitmap):
        for bit in range(8):
            if octet >> bit & 1:
                yield first + number * 8 + bit


def _pairs(of: struct.Struct, data: memoryview) -> Sequence[tuple[int, bytes]]:
    return [(sequence, bytes(rest)) for sequence, rest in of.iter_unpack(data)]


def _refuse(what: str, offset: int, found: object, expected: object) -> None:
    raise JournalFormatError(what, offset=offset, found=found, expected=expected)
