"""The records of one part: windows of a file in, Arrow batches out.

Owns the walk over a part, and what becomes of a place where a block ought to be and is not. Must
never see another file than the part's. Called by `source` on executors.

A window is read, scanned and made into one batch, so a worker needs about twice `batchBytes`. A
block that is larger than a window is one record (journal-format §2): up to `maxBodyBytes` it is
read whole if its body is wanted; else its checksum is computed piece by piece, and what stands in
front of the body makes the row.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from vespiary_codec.journal.block import (
    FIRST_OFFSET,
    HEADER_BYTES,
    BlockHeader,
    encode_block,
)
from vespiary_codec.journal.columns import POSITION_BITS, Columns, Scan
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import CHECKED_BYTES, decode_file_header
from vespiary_codec.journal.page import block_file_id
from vespiary_codec.journal.record import ADD, START, RecordType
from vespiary_native.columns import scan
from vespiary_pipeline.files import BlockFile
from vespiary_pipeline.options import Options
from vespiary_pipeline.plan import Part
from vespiary_pipeline.sources.batches import Batch, Wanted, error_row
from vespiary_spec.errors import CorruptRecord, SourceChanged

_FRONT_BYTES: Final = 2 * 1024 * 1024
"""More than a record has in front of its body: 65535 places and 65535 bytes of properties."""
_Walk = Generator[pa.RecordBatch, None, str | None]
"""Batches, then what stands at a hole; None: there is none."""

_CURE: Final = "keep a copy of the folder, run `vespiary journal verify`, then restore the volume"


class PartReader:
    """Reads one part once. Owner: the task.

    Args:
        part: What is read.
        options: What was asked for.
        wanted: What batches are made of.
    """

    def __init__(self, part: Part, options: Options, wanted: Wanted) -> None:
        self.part = part
        self._options = options
        self._wanted = wanted
        self._at = part.begin
        self._previous = part.previous
        self._gap_position = -1

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records.

        Raises:
            CorruptRecord: Confirmed data is damaged, and that is to be an error.
            SourceChanged: The file was used again meanwhile, and that is to be an error.
            NativeError: The file can't be read.
        """
        part = self.part
        if part.error:
            yield from self._told(-1, CorruptRecord(part.error, where=part.path))
            return
        if part.state != "used":
            return
        try:
            yield from self._used()
        except SourceChanged as error:
            if self._options.consistency == "snapshot":
                raise
            yield error_row(part, -1, str(error), self._wanted.columns)

    def _used(self) -> Iterator[pa.RecordBatch]:
        part = self.part
        with BlockFile(Path(part.path), part.file_id, part.salt) as file:
            self._check_life(file)
            self._gap_position = self._first_position(file) if part.is_after_gap else -1
            while (hole := (yield from self._walk(file))) is not None:
                self._check_life(file)  # what looks like damage may be the next life of the file
                error = self._damage(hole)
                yield from self._told(self._at, error)
                if self._options.on_corrupt != "report":
                    return
                following = file.next_valid(self._at + 1 + -(self._at + 1) % 4096)
                if following is None or (part.end is not None and following.offset >= part.end):
                    return
                self._at, self._previous = following.offset, None

    def _damage(self, found: str) -> CorruptRecord:
        return CorruptRecord(
            "confirmed data is damaged: no block that follows the one before it stands here",
            where=f"{self.part.path}:{self._at}",
            measured=found,
            cure=_CURE,
        )

    def _told(self, offset: int, error: CorruptRecord) -> Iterator[pa.RecordBatch]:
        if self._options.on_corrupt == "fail":
            raise error
        yield error_row(self.part, offset, str(error), self._wanted.columns)

    def _check_life(self, file: BlockFile) -> None:
        """Refuse a file that is not the one that was planned any more."""
        if self.part.journal == "page":
            return  # a page is never written again
        try:
            header = decode_file_header(file.read(CHECKED_BYTES, 0))
        except JournalFormatError:
            header = None
        if header is None or (header.salt, header.file_id) != (self.part.salt, self.part.file_id):
            raise SourceChanged(
                "the broker used this file again while it was read",
                where=self.part.path,
                cure="read a copy (`vespiary journal snapshot`), or say consistency=best-effort",
            )

    # --- blocks -----------------------------------------------------------------------------------

    def _walk(self, file: BlockFile) -> _Walk:
        """Yield batches up to the part's end; return what stands at a hole, None at the end."""
        part = self.part
        size = self._options.batch_bytes
        while part.end is None or self._at < part.end:
            room = size if part.end is None else min(size, part.end - self._at)
            window = file.read(room, self._at)
            found = self._scan(window)
            yield from self._batch(window, found)
            stop = found.stop
            self._at = stop.offset
            if stop.reason == "end":
                break
            if stop.reason == "invalid":
                return stop.found
            if stop.reason == "rows" or found.blocks:
                size = self._options.batch_bytes
                continue
            left = (part.end or file.size_bytes) - self._at
            if not stop.needed_bytes or stop.needed_bytes > left or len(window) < min(room, left):
                return stop.found or "the end of the file"
            if not self._reads_whole(stop.needed_bytes):
                hole = yield from self._oversized(file)
                if hole is not None:
                    return hole
                continue
            size = stop.needed_bytes
        return self._check_end()

    def _check_end(self) -> str | None:
        """Compare the last block with what the next file says of it."""
        follows, last = self.part.follows, self._previous
        if follows is None or last is None or follows == last:
            return None
        return f"block {last[0]} as the last one, where the next file follows block {follows[0]}"

    def _reads_whole(self, block_bytes: int) -> bool:
        most = self._options.batch_bytes
        if {"body", "data"} & set(self._wanted.columns):
            most = max(most, self._options.max_body_bytes + _FRONT_BYTES)
        return block_bytes <= most

    def _scan(self, window: bytes) -> Scan:
        return scan(
            window,
            offset=self._at,
            salt=self.part.salt,
            file_id=self.part.file_id,
            previous=self._previous,
            kinds=self._options.kinds,
            members=False,
            rows_max=self._options.batch_rows,
        )

    def _batch(self, window: bytes, found: Scan) -> Iterator[pa.RecordBatch]:
        if not found.blocks:
            return
        if found.columns.rows:
            made = Batch(
                self.part, window, found.columns, self._wanted, gap_position=self._gap_position
            ).make()
            if (chosen := self._chosen(made, found.columns)).num_rows:
                yield chosen
        self._previous = (found.sequence, found.crc)

    def _chosen(self, batch: pa.RecordBatch, columns: Columns) -> pa.RecordBatch:
        """Leave out what stands in front of `minPosition`."""
        least = self._options.min_position
        if memoryview(columns.position).cast("B").cast("q")[0] >= least:
            return batch
        buffers = [None, pa.py_buffer(columns.position)]
        positions = pa.Array.from_buffers(pa.int64(), columns.rows, buffers)
        return batch.filter(pc.greater_equal(positions, least))

    def _first_position(self, file: BlockFile) -> int:
        """Return the position of the part's first record, -1 if it has none."""
        for _, header in file.headers(self.part.begin, file.size_bytes):
            if header.records:
                return header.sequence << POSITION_BITS
        return -1

    # --- blocks that are larger than a window -----------------------------------------------------

    def _oversized(self, file: BlockFile) -> _Walk:
        """Yield the row of a block that is not read whole; return what is wrong with it."""
        header = file.header_at(self._at)
        assert header is not None
        last = self._previous
        if last is not None and (header.sequence, header.previous_crc) != (last[0] + 1, last[1]):
            return f"block {header.sequence}, which does not follow block {last[0]}"
        block_crc, record_crc = file.checksums(self._at, header)
        if block_crc != header.crc:
            return f"bad checksum of a block ({header.crc:#010x})"
        front = file.read(min(header.payload_bytes, _FRONT_BYTES), self._at + HEADER_BYTES)
        length, kind = START.unpack_from(front)[:2]
        if kind == RecordType.ADD and header.records == 1 and length <= header.payload_bytes:
            yield from self._front_row(front, header, record_crc)
        else:
            return f"a block of {header.payload_bytes} bytes that is not one message"
        self._previous = (header.sequence, header.crc)
        self._at += header.length
        return None

    def _front_row(
        self, front: bytes, header: BlockHeader, record_crc: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the row of a message whose body is left out.

        The record without its body, in a block made for it, is scanned as any other; what the body
        has a share in is put right behind that.
        """
        fields = list(ADD.unpack_from(front))
        body_bytes = fields[6]
        length = fields[0]
        fields[0], fields[6] = length - body_bytes, 0
        record = (ADD.pack(*fields) + front[ADD.size :])[: fields[0]]
        payload = record.ljust(-(-len(record) // 8) * 8, b"\0")
        small = encode_block(
            replace(header, payload_bytes=len(payload)),
            payload,
            salt=self.part.salt,
            offset=self._at,
        )
        previous = self._previous
        found = self._scan(small)
        columns = found.columns
        if columns.rows:
            columns = columns._replace(
                length=_one(length),
                body_size=_one(body_bytes),
                crc=_one(record_crc if memoryview(columns.transaction)[0] else 0),
            )
            made = Batch(
                self.part,
                small,
                columns,
                self._wanted,
                gap_position=self._gap_position,
                is_cut=True,
            ).make()
            if (chosen := self._chosen(made, columns)).num_rows:
                yield chosen
        self._previous = previous


def _one(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def page_part(path: Path, page_id: int, salt: int, size_bytes: int, large: str | None) -> Part:
    """Return the part of a page: its blocks are like those of a journal file.

    Args:
        path: Its file.
        page_id: Its id.
        salt: Its salt.
        size_bytes: Its size.
        large: Folder of large bodies; None: there is none.
    """
    return Part(
        path=str(path),
        journal="page",
        file_id=block_file_id(page_id),
        shown_id=page_id,
        salt=salt,
        begin=FIRST_OFFSET,
        size_bytes=size_bytes,
        large_messages=large,
    )
