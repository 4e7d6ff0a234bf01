"""One row for each file: counted while its records are walked, none of which is handed on.

Owns the table of files. Called by `source` on executors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from vespiary_codec.journal.block import HEADER_BYTES, BlockHeader
from vespiary_codec.journal.columns import Scan
from vespiary_codec.journal.record import START
from vespiary_codec.journal.record_types import RecordFlag, RecordType
from vespiary_native.columns import scan
from vespiary_pipeline.files import WINDOW_BYTES, BlockFile, planned_file
from vespiary_pipeline.options import Options
from vespiary_pipeline.plan import Part
from vespiary_pipeline.schema import FILES
from vespiary_spec.errors import SourceChanged

_WHOLE_BYTES_MAX: Final = 64 * 1024 * 1024
_MEMBERS: Final = (RecordType.ADD, RecordType.ACK, RecordType.DUPLICATE)


@dataclass
class _Count:
    """What was seen in one file."""

    blocks: int = 0
    records: int = 0
    used_bytes: int = 0
    types: Counter[int] = field(default_factory=Counter)
    transactional: int = 0
    first_block: int | None = None
    last_block: int | None = None
    first_ms: int | None = None
    last_ms: int | None = None

    def add(self, found: Scan) -> None:
        """Count what one scan found."""
        if not found.blocks:
            return
        kinds, flags = memoryview(found.columns.kind), memoryview(found.columns.flags)
        self.types.update(kinds)
        self.transactional += sum(
            kind in _MEMBERS and bool(flag & RecordFlag.TRANSACTIONAL)
            for kind, flag in zip(kinds, flags, strict=True)
        )
        self.blocks += found.blocks
        self.records += found.records
        self.last_block, self.last_ms = found.sequence, found.time_ms

    def add_alone(self, header: BlockHeader, start: bytes) -> None:
        """Count a block that is one record and too large to be read at once.

        Args:
            header: Its header.
            start: What its record begins with.
        """
        _, kind, flags, *_ = START.unpack(start)
        self.types[kind] += 1
        self.transactional += kind in _MEMBERS and bool(flags & RecordFlag.TRANSACTIONAL)
        self.blocks += 1
        self.records += header.records
        if self.first_block is None:
            self.first_block, self.first_ms = header.sequence, header.time_ms
        self.last_block, self.last_ms = header.sequence, header.time_ms


def file_row(part: Part, *, is_strict: bool = True) -> dict[str, Any]:
    """Return the row of a file.

    Args:
        part: The whole file.
        is_strict: A file that its broker used again is an error; else the row says so.

    Raises:
        SourceChanged: It was used again or removed since it was planned.
        NativeError: It can't be read.
    """
    row: dict[str, Any] = dict.fromkeys(FILES.names)
    row |= {
        "journal": part.journal,
        "path": part.path,
        "file_id": part.shown_id or None,
        "state": part.state,
        "size_bytes": part.size_bytes,
        "error": part.error or None,
    }
    if part.state != "used":
        return row
    try:
        count, stop, found = _walk(part)
    except SourceChanged as error:
        if is_strict:
            raise
        return row | {"error": str(error)}
    row |= {
        "used_bytes": count.used_bytes,
        "blocks": count.blocks,
        "records": count.records,
        "adds": count.types[RecordType.ADD],
        "acks": count.types[RecordType.ACK],
        "transactional": count.transactional,
        "first_block": count.first_block,
        "last_block": count.last_block,
        "first_time": _micros(count.first_ms),
        "last_time": _micros(count.last_ms),
        "sealed": found == "end",
        "torn_at": part.torn_at if part.torn_at >= 0 else None,
    }
    if found != "end" and (part.end is None or stop < part.end):
        row["error"] = f"{part.path}:{stop}: confirmed data is damaged: {found}"
    return row


def _micros(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


def _walk(part: Part) -> tuple[_Count, int, str]:
    """Count a file; return where its blocks end and what stands there (`end`: a seal)."""
    count = _Count()
    with planned_file(Path(part.path), part.file_id, part.salt) as file:
        stop, found = _count_blocks(count, file, part)
        if found != "end" and part.journal != "page":
            file.check_life()  # what looks like damage may be the next life of the file
    return count, stop, found


def _count_blocks(count: _Count, file: BlockFile, part: Part) -> tuple[int, str]:
    offset, previous = part.begin, part.previous
    size = WINDOW_BYTES
    end = file.size_bytes if part.end is None else part.end
    first = file.header_at(offset)
    while offset < end:
        window = file.read(min(size, end - offset), offset)
        found = scan(window, offset=offset, salt=part.salt, file_id=part.file_id, previous=previous)
        count.add(found)
        count.used_bytes += found.stop.offset - offset
        offset = found.stop.offset
        if found.blocks:
            if count.first_block is None and first is not None:
                count.first_block, count.first_ms = first.sequence, first.time_ms
            previous, size = (found.sequence, found.crc), WINDOW_BYTES
            if found.stop.reason == "end":
                return offset, "end"
            continue
        needed = found.stop.needed_bytes
        if found.stop.reason == "invalid" or not len(window) < needed <= end - offset:
            return offset, found.stop.found or "the end of the file"
        if needed <= _WHOLE_BYTES_MAX:
            size = needed
            continue
        checked = file.check_block(offset, previous)
        if isinstance(checked, str):
            return offset, checked
        count.add_alone(checked.header, file.read(START.size, offset + HEADER_BYTES))
        previous = (checked.header.sequence, checked.header.crc)
        offset += checked.header.length
        count.used_bytes += checked.header.length
    return offset, "the end of what counts"


def file_batches(
    parts: list[Part], options: Options, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files as one batch.

    Args:
        parts: Whole files.
        options: What was asked for.
        columns: Columns that are asked for, in order.

    Raises:
        SourceChanged: A file was used again or removed, and that is to be an error.
        NativeError: A file can't be read.
    """
    rows = [file_row(part, is_strict=options.consistency == "snapshot") for part in parts]
    if rows:
        schema = FILES.arrow(columns)
        yield pa.RecordBatch.from_pylist(
            [{name: row[name] for name in columns} for row in rows], schema=schema
        )
