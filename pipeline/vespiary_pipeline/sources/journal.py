"""The records of one part: windows of a file in, Arrow batches out.

Owns the walk over a part, and what becomes of a place where a block ought to be and is not. Must
never see another file than the part's. Called by `source` on executors.

A window is read, scanned and made into one batch, or several where bodies come from files of their
own, so a worker needs about twice `batchBytes`. A block that is larger than a window is one record
(journal-format §2). If that is a message, it is read whole up to `maxBodyBytes` if its body is
wanted; else its checksum is computed piece by piece, and what stands in front of the body makes the
row. All else is read whole.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from vespiary_codec.journal.block import (
    FIRST_OFFSET,
    HEADER_BYTES,
    encode_block,
)
from vespiary_codec.journal.columns import POSITION_BITS, Buffer, Columns, Scan
from vespiary_codec.journal.page import block_file_id
from vespiary_codec.journal.record import ADD, START, RecordType
from vespiary_native.columns import scan
from vespiary_pipeline.files import WINDOW_BYTES, BlockFile, CheckedBlock, planned_file
from vespiary_pipeline.layout import Place
from vespiary_pipeline.options import Options
from vespiary_pipeline.plan import Part
from vespiary_pipeline.sources.batches import Batch, Wanted, error_row
from vespiary_pipeline.sources.dead import Stretch
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
        stretch: Holds what is read until it is seen what is dead; None: all is wanted.
        room: `batch_bytes` to read windows into, for all parts of a task; not with a stretch, which
            holds windows. No batch has a view of it.
    """

    def __init__(
        self,
        part: Part,
        options: Options,
        wanted: Wanted,
        stretch: Stretch | None = None,
        room: memoryview | None = None,
    ) -> None:
        self.part = part
        self._options = options
        self._wanted = wanted
        self._stretch = stretch
        self._room = room
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
        with planned_file(Path(part.path), part.file_id, part.salt) as file:
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
        file.check_life()

    # --- blocks -----------------------------------------------------------------------------------

    def _walk(self, file: BlockFile) -> _Walk:
        """Yield batches up to the part's end; return what stands at a hole, None at the end."""
        part = self.part
        size = self._options.batch_bytes
        while part.end is None or self._at < part.end:
            room = size if part.end is None else min(size, part.end - self._at)
            window = self._window(file, room)
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
                checked = file.check_block(self._at, self._previous)
                if isinstance(checked, str):
                    return checked
                front = file.read(_FRONT_BYTES, self._at + HEADER_BYTES)
                if checked.header.records == 1 and START.unpack_from(front)[1] == RecordType.ADD:
                    yield from self._front_row(front, checked)
                    self._previous = (checked.header.sequence, checked.header.crc)
                    self._at += checked.header.length
                    continue
            size = stop.needed_bytes
        return self._check_end()

    def _window(self, file: BlockFile, size_bytes: int) -> Buffer:
        """Read so many bytes, or fewer at the file's end."""
        if self._room is None or size_bytes > len(self._room):
            return file.read(size_bytes, self._at)
        return file.read_into(self._room[:size_bytes], self._at)

    def _check_end(self) -> str | None:
        """Compare the last block with what the next file says of it."""
        follows, last = self.part.follows, self._previous
        if follows is None or last is None or follows == last:
            return None
        return f"block {last[0]} as the last one, where the next file follows block {follows[0]}"

    def _reads_whole(self, block_bytes: int) -> bool:
        most = max(self._options.batch_bytes, WINDOW_BYTES)
        if {"body", "data"} & set(self._wanted.columns):
            most = max(most, self._options.max_body_bytes + _FRONT_BYTES)
        return block_bytes <= most

    def _scan(self, window: Buffer) -> Scan:
        return scan(
            window,
            offset=self._at,
            salt=self.part.salt,
            file_id=self.part.file_id,
            previous=self._previous,
            kinds=self._options.kinds,
            members=self._options.members,
            rows_max=self._options.batch_rows,
        )

    def _batch(self, window: Buffer, found: Scan) -> Iterator[pa.RecordBatch]:
        if not found.blocks:
            return
        if found.columns.rows:
            make = functools.partial(self._made, window, self._gap_position)
            if self._stretch is None:
                yield from make(found.columns)
            else:
                yield from self._stretch.add(found.columns, make, len(memoryview(window)))
        self._previous = (found.sequence, found.crc)

    def _made(
        self, window: Buffer, gap_position: int, columns: Columns
    ) -> Iterator[pa.RecordBatch]:
        made = Batch(self.part, window, columns, self._wanted, gap_position=gap_position)
        yield from self._chosen(made, columns)

    def _chosen(self, batch: Batch, columns: Columns) -> Iterator[pa.RecordBatch]:
        """Yield what does not stand in front of `minPosition`."""
        positions = memoryview(columns.position).cast("B").cast("q")
        yield from batch.batches(bisect.bisect_left(positions, self._options.min_position))

    def _first_position(self, file: BlockFile) -> int:
        """Return the position of the part's first record, -1 if it has none."""
        for _, header in file.headers(self.part.begin, file.size_bytes):
            if header.records:
                return header.sequence << POSITION_BITS
        return -1

    # --- blocks that are larger than a window -----------------------------------------------------

    def _front_row(self, front: bytes, block: CheckedBlock) -> Iterator[pa.RecordBatch]:
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
            replace(block.header, payload_bytes=len(payload)),
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
                crc=_one(block.record_crc if memoryview(columns.transaction)[0] else 0),
            )
            made = Batch(
                self.part,
                small,
                columns,
                self._wanted,
                gap_position=self._gap_position,
                is_cut=True,
            )
            yield from self._chosen(made, columns)
        self._previous = previous


def _one(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def page_part(path: Path, page_id: int, salt: int, size_bytes: int, place: Place) -> Part:
    """Return the part of a page: its blocks are like those of a journal file.

    Args:
        path: Its file.
        page_id: Its id.
        salt: Its salt.
        size_bytes: Its size.
        place: Where it was found.
    """
    return Part(
        path=str(path),
        journal="page",
        file_id=block_file_id(page_id),
        shown_id=page_id,
        salt=salt,
        begin=FIRST_OFFSET,
        size_bytes=size_bytes,
        bindings=str(place.bindings) if place.bindings else None,
        large_messages=tuple(map(str, place.large_messages)),
    )
