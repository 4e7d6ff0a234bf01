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

from vespiary_codec.journal.block import BlockHeader
from vespiary_codec.journal.columns import Scan
from vespiary_codec.journal.record_types import RecordFlag, RecordType
from vespiary_native.columns import scan
from vespiary_pipeline.files import WINDOW_BYTES, BlockFile
from vespiary_pipeline.plan import Part
from vespiary_pipeline.schema import FILES

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

    def add_alone(self, header: BlockHeader) -> None:
        """Count a block that is one message and too large to be read at once."""
        self.types[RecordType.ADD] += header.records
        self.blocks += 1
        self.records += header.records
        self.last_block, self.last_ms = header.sequence, header.time_ms


def file_row(part: Part) -> dict[str, Any]:
    """Return the row of a file.

    Args:
        part: The whole file.

    Raises:
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
    count, stop, found = _walk(part)
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
    offset, previous = part.begin, part.previous
    size = WINDOW_BYTES
    with BlockFile(Path(part.path), part.file_id, part.salt) as file:
        first = file.header_at(offset)
        while part.end is None or offset < part.end:
            room = size if part.end is None else min(size, part.end - offset)
            window = file.read(room, offset)
            found = scan(
                window, offset=offset, salt=part.salt, file_id=part.file_id, previous=previous
            )
            count.add(found)
            count.used_bytes += found.stop.offset - offset
            offset = found.stop.offset
            if found.blocks:
                if count.first_block is None and first is not None:
                    count.first_block, count.first_ms = first.sequence, first.time_ms
                previous, size = (found.sequence, found.crc), WINDOW_BYTES
                if found.stop.reason == "end":
                    return count, offset, "end"
                continue
            needed = found.stop.needed_bytes
            if found.stop.reason == "invalid" or needed <= len(window):
                return count, offset, found.stop.found or "the end of the file"
            if needed > _WHOLE_BYTES_MAX:
                header = file.header_at(offset)
                if header is None or file.checksums(offset, header)[0] != header.crc:
                    return count, offset, "bad checksum of a block"
                count.add_alone(header)
                previous = (header.sequence, header.crc)
                offset += header.length
                count.used_bytes += header.length
                continue
            size = needed
    return count, offset, "the end of what counts"


def file_batches(parts: list[Part], columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some files as one batch.

    Args:
        parts: Whole files.
        columns: Columns that are asked for, in order.

    Raises:
        NativeError: A file can't be read.
    """
    rows = [file_row(part) for part in parts]
    if rows:
        schema = FILES.arrow(columns)
        yield pa.RecordBatch.from_pylist(
            [{name: row[name] for name in columns} for row in rows], schema=schema
        )
