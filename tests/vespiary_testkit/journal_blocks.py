"""Blocks of journals, encoded with the codec alone: for journals that no writer has written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from vespiary_codec.journal.block import FIRST_OFFSET, BlockHeader, encode_block
from vespiary_codec.journal.record import Record, align8, encode_record

_HEADER_BYTES = 64
_CRC_AT = 44
STORY_SALT = 1
STORY_FILE_BYTES = 64 * 1024


def encoded(record: bytes | Record) -> bytes:
    """Return the bytes of a record."""
    return record if isinstance(record, bytes) else encode_record(record)


class BlockChain:
    """Encodes blocks one after the other, each with the checksum of the one before it.

    Attributes:
        sequence: Sequence of the last block.
        crc: Its checksum.
        length: Its bytes without the padding at its end.
    """

    def __init__(self, sequence: int = 0, crc: int = 0) -> None:
        self.sequence = sequence
        self.crc = crc
        self.length = 0

    def block(
        self,
        records: Sequence[bytes | Record],
        *,
        file_id: int,
        offset: int,
        salt: int,
        time_ms: int = 1,
        watermark: int = 0,
        sequence: int | None = None,
        previous_crc: int | None = None,
        is_seal: bool = False,
    ) -> bytes:
        """Return the next block.

        Args:
            records: What it holds.
            file_id: Its file.
            offset: Where it is in that file.
            salt: Of the file.
            time_ms: When it was made.
            watermark: Up to which block everything is durable.
            sequence: Its sequence; None: the next one.
            previous_crc: Checksum of the block before it; None: as it was.
            is_seal: It seals its file.
        """
        payload = b"".join(
            data.ljust(align8(len(data)), b"\0") for data in (encoded(each) for each in records)
        )
        header = BlockHeader(
            sequence=self.sequence + 1 if sequence is None else sequence,
            file_id=file_id,
            watermark=watermark,
            payload_bytes=len(payload),
            records=len(records),
            previous_crc=self.crc if previous_crc is None else previous_crc,
            time_ms=time_ms,
            flags=int(is_seal),
        )
        block = encode_block(header, payload, salt=salt, offset=offset)
        self.sequence = header.sequence
        self.length = _HEADER_BYTES + len(payload)
        self.crc = int.from_bytes(block[_CRC_AT : _CRC_AT + 4], "little")
        return block


class Step(NamedTuple):
    """A block of a story, or the begin of a file."""

    file_id: int
    offset: int
    block: memoryview | None

    def tell(self, sink: Any) -> None:
        """Give it to a sink."""
        if self.block is None:
            sink.restore_file(self.file_id, STORY_SALT, STORY_FILE_BYTES)
        else:
            sink.restore_block(self.file_id, self.offset, self.block)


class Story:
    """A journal told block by block; call it with a sink. Owner: the test."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._chain = BlockChain()
        self._file_id, self._offset = 0, FIRST_OFFSET

    def file(self, file_id: int) -> None:
        """Begin a file."""
        self._file_id, self._offset = file_id, FIRST_OFFSET
        self.steps.append(Step(file_id, 0, None))

    def block(self, *records: bytes | Record, gap: int = 0) -> None:
        """Tell of a block; `gap` blocks before it are missing."""
        block = self._chain.block(
            records,
            file_id=self._file_id,
            offset=self._offset,
            salt=STORY_SALT,
            time_ms=5,
            sequence=self._chain.sequence + 1 + gap,
            previous_crc=0,
        )
        view = memoryview(block)[: self._chain.length]
        self.steps.append(Step(self._file_id, self._offset, view))
        self._offset += len(block)

    def __call__(self, sink: Any) -> None:
        """Give all of it to a sink."""
        for step in self.steps:
            step.tell(sink)
