"""A page in order of priority, in Python: the specification of `native/src/page_arrange.c`.

Owns the layout: which record stands where. Pure. A page that is arranged is as long as it was, each
of its parts is, and it says the same; only the order of its records differs. What its new blocks
leave over at the end of a part, and in front of the seal, is a block that holds nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal import block as blocks
from vespiary_codec.journal.block import FIRST_OFFSET, FLAG_SEAL, SEED, BlockHeader, align4k
from vespiary_codec.journal.page import (
    ALIGNMENT,
    PLACE,
    QUEUE,
    RECORD,
    TRAILER,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    block_file_id,
)
from vespiary_codec.journal.record import ADD, SealRecord, align8, encode_record
from vespiary_codec.journal.record import PLACE as RECORD_PLACE
from vespiary_native.values_pages import PageView

BLOCK_BYTES: Final = 256 * 1024
"""A block ends here: they are larger than the core's, so that less is left over at their ends."""

_ENDS: Final = struct.Struct("<IIII")
"""Of the trailer: number of blocks, CRC of the seal, CRC of the index, its own CRC."""
_ENDS_AT: Final = TRAILER_BYTES - _ENDS.size
_OFFSET: Final = struct.Struct("<I")
_NO_PAGE: Final = "the parts are no page"


class _Page:
    """A page as it was closed."""

    def __init__(self, pieces: Sequence[PageView]) -> None:
        at = FIRST_OFFSET
        for piece in pieces:
            if piece.offset != at or not piece.data or len(piece.data) % ALIGNMENT:
                raise ValueError(_NO_PAGE)
            at += len(piece.data)
        if len(pieces) < 2:
            raise ValueError(_NO_PAGE)
        self.pieces = pieces[:-1]
        self.footer = bytes(pieces[-1].data)
        self.footer_offset = pieces[-1].offset
        self.seal_at = self.footer_offset - ALIGNMENT
        fields = TRAILER.unpack_from(self.footer, len(self.footer) - TRAILER_BYTES)
        self.page_id, queues, places, self.records = fields[3], *fields[6:9]
        self.places_at = queues * QUEUE.size
        self.rows_at = self.places_at + places * PLACE.size
        self.rows_end = self.rows_at + self.records * RECORD.size
        magic, _, flags, *_, self.time_ms, _ = blocks.HEADER.unpack_from(
            self.memory(self.seal_at, ALIGNMENT)
        )
        if (fields[0], fields[4]) != (TRAILER_MAGIC, self.footer_offset) or (
            self.rows_end > len(self.footer) - TRAILER_BYTES
            or magic != blocks.MAGIC
            or not flags & FLAG_SEAL
        ):
            raise ValueError(_NO_PAGE)

    def memory(self, offset: int, length: int) -> memoryview:
        for piece in self.pieces:
            at = offset - piece.offset
            if at >= 0 and at + length <= len(piece.data):
                return piece.data[at : at + length]
        raise ValueError(_NO_PAGE)


def arranged_footer(pieces: Sequence[PageView]) -> bytes | None:
    """Return the footer of a page in order of priority (see `page_arrange.h`).

    Its records' offsets are those that they have, and there are no checksums yet.

    Returns:
        None: it is in this order, or does not fit into its length.

    Raises:
        ValueError: The parts are no page.
    """
    page = _Page(pieces)
    places = list(PLACE.iter_unpack(page.footer[page.places_at : page.rows_at]))
    rows = list(RECORD.iter_unpack(page.footer[page.rows_at : page.rows_end]))
    if any(number >= len(rows) for _, number in places):
        raise ValueError(_NO_PAGE)
    for row in rows:
        page.memory(row[0], _length(row))
    if all(before[5] >= behind[5] for before, behind in pairwise(rows)):
        return None
    order = sorted(range(len(rows)), key=lambda number: -rows[number][5])
    numbers = {before: number for number, before in enumerate(order)}
    footer = bytearray(page.footer)
    footer[page.places_at : page.rows_end] = b"".join(
        [
            *(PLACE.pack(offset, numbers[number]) for offset, number in places),
            *(RECORD.pack(*rows[number]) for number in order),
        ]
    )
    measured = Arranging(pieces, memoryview(bytearray(footer)), 0)
    for _ in page.pieces:
        measured.next_part()
    return bytes(footer) if measured.is_complete else None


def _length(row: tuple[int, ...]) -> int:
    """Return how long the record of a row is."""
    return ADD.size + row[3] * RECORD_PLACE.size + row[2] + row[1]


class Arranging:
    """The parts of a page in order of priority, one after the other.

    Args:
        pieces: The page as it was closed.
        footer: From `arranged_footer`; it is completed as the parts are made.
        salt: The seed of the checksums.
    """

    def __init__(self, pieces: Sequence[PageView], footer: memoryview, salt: int) -> None:
        self._page = _Page(pieces)
        self._footer = footer
        self._salt = salt
        self._part = self._record = 0
        self._sequence = self._crc = 0
        self._begin = 0
        self._out = bytearray()
        self._payload = bytearray()
        self._records = self._end = 0

    @property
    def is_complete(self) -> bool:
        """Whether all records are written."""
        return bool(self._record == self._page.records)

    @property
    def _at(self) -> int:
        """Where the block stands that is filled, or the next one."""
        return self._begin + len(self._out)

    def next_part(self) -> bytes:
        """Return what stands where the next part stood."""
        page, piece = self._page, self._page.pieces[self._part]
        self._part += 1
        is_last = self._part == len(page.pieces)
        self._begin, self._out = piece.offset, bytearray()
        end = page.seal_at if is_last else piece.offset + len(piece.data)
        while self._record < page.records and self._add(end):
            self._record += 1
        self._close()
        if self._at < end:
            self._write(bytes(end - self._at - blocks.HEADER_BYTES), 0, 0)
        if is_last:
            self._write(encode_record(SealRecord()), 1, FLAG_SEAL)
            self._complete()
        return bytes(self._out)

    def _add(self, end: int) -> bool:
        """Write the next record; False: there is no room in front of `end`."""
        row_at = self._page.rows_at + self._record * RECORD.size
        row = RECORD.unpack_from(self._footer, row_at)
        length = _length(row)
        padded = align8(length)
        if not self._records or blocks.HEADER_BYTES + len(self._payload) + padded > self._end:
            self._close()
            need = align4k(blocks.HEADER_BYTES + padded)
            if self._at + need > end:
                return False
            self._end = min(max(need, BLOCK_BYTES), end - self._at)
        offset = self._at + blocks.HEADER_BYTES + len(self._payload)
        self._payload += bytes(self._page.memory(row[0], length)).ljust(padded, b"\0")
        self._records += 1
        _OFFSET.pack_into(self._footer, row_at, offset)
        return True

    def _close(self) -> None:
        if self._records:
            self._write(bytes(self._payload), self._records, 0)
            self._payload.clear()
            self._records = 0

    def _write(self, payload: bytes, records: int, flags: int) -> None:
        self._sequence += 1
        header = BlockHeader(
            sequence=self._sequence,
            file_id=block_file_id(self._page.page_id),
            watermark=0,
            payload_bytes=len(payload),
            records=records,
            previous_crc=self._crc,
            time_ms=self._page.time_ms,
            flags=flags,
        )
        block = blocks.encode_block(header, payload, salt=self._salt, offset=self._at)
        self._crc = int.from_bytes(block[blocks.CRC_AT : blocks.CRC_AT + 4], "little")
        self._out += block

    def _complete(self) -> None:
        footer, page = self._footer, self._page
        at = len(footer) - TRAILER_BYTES
        index_crc = _seeded(footer[:at], self._salt, page.footer_offset)
        _ENDS.pack_into(footer, at + _ENDS_AT, self._sequence, self._crc, index_crc, 0)
        crc = _seeded(footer[at:-4], self._salt, page.footer_offset + at)
        _OFFSET.pack_into(footer, len(footer) - 4, crc)


def _seeded(data: memoryview, salt: int, offset: int) -> int:
    return crc32c(data, crc32c(SEED.pack(salt, offset)))
