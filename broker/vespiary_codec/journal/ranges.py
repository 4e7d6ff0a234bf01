"""Messages of a queue on the wire of a stream: journal blocks of ADD records, then a trailer.

Owns this form, its writer and its reader. Never knows a queue or a socket: the broker's
`app.streaming` writes it, readers of streams (the pipeline) read it.

    blocks    as in journal-format §2 with salt 0, file id = queue id, block sequences from 1, their
              watermark and time 0; the offset in the checksum is that in the answer. Records are
              ADD records (§3.2) with one place, flags 2, 4 and 16 at most
    trailer   JSON: `through`: all up to this sequence is answered; `count` of records; `gaps`, a
              list of `first`, `last`, `reason`: sequences of the range that have no message

The same messages give the same blocks, whatever became of them in the broker's files meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from vespiary_codec.journal.block import (
    CRC_AT,
    HEADER_BYTES,
    BlockHeader,
    align4k,
    encode_block_header,
    walk_blocks,
)
from vespiary_codec.journal.errors import JournalFormatError

PAYLOAD_BYTES_MAX: Final = 256 * 1024 - HEADER_BYTES
"""Largest payload of a block with more than one record."""
SALT: Final = 0


class RangeBlocks:
    """Packs records into blocks, bounded in all.

    Args:
        queue_id: The queue.
        max_bytes: Bound of all blocks together; the first record comes in any case.
    """

    def __init__(self, queue_id: int, max_bytes: int) -> None:
        self.count = 0
        self.is_full = False
        self._queue_id = queue_id
        self._max_bytes = max_bytes
        self._data = bytearray()  # closed blocks, then the one that is being filled
        self._begin = 0  # of that one
        self._blocks = 0
        self._records = 0
        self._previous_crc = 0

    @property
    def is_fresh(self) -> bool:
        """Whether no record stands in the block that is being filled."""
        return not self._records

    @property
    def _used_bytes(self) -> int:
        return len(self._data) - self._begin - HEADER_BYTES if self._records else 0

    @property
    def room_bytes(self) -> int:
        """Bytes of records that the block which is being filled takes yet."""
        left = self._max_bytes - self._begin - HEADER_BYTES
        return max(0, min(PAYLOAD_BYTES_MAX, left) - self._used_bytes)

    def add(self, records: bytes, count: int) -> bool:
        """Add records to the block that is being filled.

        Args:
            records: ADD records, each padded to a multiple of 8: at most `room_bytes`, or a single
                one where the block is fresh.
            count: How many.

        Returns:
            False if the single one exceeds the bound of all blocks: it is not added, and `is_full`.
        """
        end = self._begin + align4k(HEADER_BYTES + self._used_bytes + len(records))
        if end > align4k(self._max_bytes) and self.count:
            self.is_full = True
            return False
        if not self._records:
            self._data += bytes(HEADER_BYTES)
        self._data += records
        self._records += count
        self.count += count
        return True

    def close_block(self) -> None:
        """End the block that is being filled; the next record begins another one."""
        if not self._records:
            return
        data, begin = self._data, self._begin
        self._blocks += 1
        with memoryview(data)[begin + HEADER_BYTES :] as payload:
            header = BlockHeader(
                sequence=self._blocks,
                file_id=self._queue_id,
                watermark=0,
                payload_bytes=len(payload),
                records=self._records,
                previous_crc=self._previous_crc,
                time_ms=0,
            )
            encoded = encode_block_header(header, payload, salt=SALT, offset=begin)
        data[begin : begin + HEADER_BYTES] = encoded
        data += bytes(begin + header.length - len(data))
        self._previous_crc = int.from_bytes(encoded[CRC_AT : CRC_AT + 4], "little")
        self._begin, self._records = len(data), 0
        self.is_full = self._begin >= self._max_bytes

    def finish(self) -> bytearray:
        """Return all blocks."""
        self.close_block()
        return self._data


class RangeGap(NamedTuple):
    """Neighbouring sequences of a range that have no message, and why; both ends belong to it."""

    first: int
    last: int
    reason: str


class RangeAnswer(NamedTuple):
    """What an answer says.

    Attributes:
        through: All up to this sequence is answered: go on behind it.
        messages: How many.
        gaps: Where there are none, ascending.
        payloads: The payload of each block, and how many records it has.
    """

    through: int
    messages: int
    gaps: tuple[RangeGap, ...]
    payloads: tuple[tuple[memoryview, int], ...]


def encode_trailer(through: int, count: int, gaps: Iterable[tuple[int, int, str]]) -> bytes:
    """Return the trailer of an answer."""
    listed = [{"first": a, "last": b, "reason": str(why)} for a, b, why in gaps]
    return json.dumps({"through": through, "count": count, "gaps": listed}).encode()


def decode_range(
    answer: bytes | bytearray | memoryview, blocks_bytes: int, queue_id: int
) -> RangeAnswer:
    """Return what an answer says, its checksums verified.

    Args:
        answer: All of it.
        blocks_bytes: Where the trailer begins.
        queue_id: The queue that was asked for.

    Raises:
        JournalFormatError: It is cut off, damaged, or of another queue.
    """
    found = list(_walk(memoryview(answer)[:blocks_bytes], queue_id))
    trailer = decode_trailer(answer, blocks_bytes)
    records = sum(number for _, number in found)
    if records != trailer.messages:
        raise JournalFormatError(
            "records of a range are missing", offset=0, found=records, expected=trailer.messages
        )
    return trailer._replace(payloads=tuple(found))


def decode_trailer(answer: bytes | bytearray | memoryview, blocks_bytes: int) -> RangeAnswer:
    """Return what the trailer of an answer says; its blocks are not looked at.

    Args:
        answer: All of it.
        blocks_bytes: Where the trailer begins.

    Raises:
        JournalFormatError: It is cut off or damaged.
    """
    try:
        trailer: dict[str, Any] = json.loads(bytes(memoryview(answer)[blocks_bytes:]))
        gaps = tuple(RangeGap(g["first"], g["last"], g["reason"]) for g in trailer["gaps"])
        return RangeAnswer(int(trailer["through"]), int(trailer["count"]), gaps, ())
    except (ValueError, KeyError, TypeError) as error:
        raise JournalFormatError(
            "a range has no trailer", offset=blocks_bytes, found=str(error), expected="JSON"
        ) from error


def _walk(blocks: memoryview, queue_id: int) -> Iterator[tuple[memoryview, int]]:
    end = 0
    for offset, header, payload in walk_blocks(blocks, offset=0, salt=SALT, file_id=queue_id):
        yield payload, header.records
        end = offset + header.length
    if end != len(blocks):
        raise JournalFormatError(
            "a block of a range is damaged", offset=end, found="no valid block", expected="one"
        )
