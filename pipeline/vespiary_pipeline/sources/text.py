"""Exports: a journal as text (journal-format §6), one line for each record.

Owns reading them. The lines of a text have one digest over all, so one task reads a text, and gives
its rows as they come; totals that do not fit are told at the end. Called by `source`.

Records become blocks in memory, which are scanned like those of a file: so an export has the same
columns. Blocks, their times and offsets are not in a text; `offset` is the number of the line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from vespiary_codec.journal.block import FIRST_OFFSET, BlockHeader, encode_block
from vespiary_codec.journal.file_header import JournalKind
from vespiary_codec.journal.record import align8
from vespiary_codec.journal.record_types import RecordFlag, RecordType
from vespiary_codec.journal.text import LineKind, TextFormError, TextReader
from vespiary_native.columns import scan
from vespiary_pipeline.files import unreadable
from vespiary_pipeline.layout import Place
from vespiary_pipeline.options import Options
from vespiary_pipeline.plan import Part
from vespiary_pipeline.schema import RECORDS
from vespiary_pipeline.sources.batches import Batch, Wanted, error_row
from vespiary_spec.errors import BadExport, ConfigError

_LINE_BYTES_MAX: Final = 128 * 1024 * 1024
"""More than any record has; what has no ends of lines is not taken into memory."""

_ENDS: Final = (RecordType.COMMIT, RecordType.PREPARE, RecordType.ROLLBACK)
_JOURNALS: Final = {
    JournalKind.MESSAGE: "message",
    JournalKind.BINDINGS: "bindings",
    JournalKind.JMS: "jms",
}


class TextPart(NamedTuple):
    """A text that is read.

    Attributes:
        path: Its file.
        bindings: Folder that names the queues; None: nobody does.
        large_messages: Folders of large bodies; the first that has one counts.
    """

    path: str
    bindings: str | None
    large_messages: tuple[str, ...]


def plan_text(place: Place, options: Options) -> list[TextPart]:
    """Return the one part of a text.

    Args:
        place: The file.
        options: What was asked for.

    Raises:
        ConfigError: The table of files was: a text has none.
    """
    if options.table != "records":
        raise ConfigError(
            "an export has records only",
            path="table",
            value=options.table,
            allowed="records",
            cure=f"read {place.path} with table=records",
        )
    bindings = str(place.bindings) if place.bindings else None
    return [TextPart(str(place.path), bindings, tuple(map(str, place.large_messages)))]


class _Chunk:
    """Records that become one batch."""

    def __init__(self) -> None:
        self.payload = bytearray()
        self.lines: list[int] = []
        self.positions: list[int] = []
        self.gaps: list[int] = []
        self.after_gap: list[bool] = []

    def put(self, record: bytes, line: int, position: int, gaps: int, *, after_gap: bool) -> None:
        """Take a record."""
        self.payload += record.ljust(align8(len(record)), b"\0")
        self.lines.append(line)
        self.positions.append(position)
        self.gaps.append(gaps)
        self.after_gap.append(after_gap)

    def batches(self, part: Part, wanted: Wanted) -> Iterator[pa.RecordBatch]:
        """Yield its records, if it has any."""
        if not self.lines:
            return
        header = BlockHeader(
            sequence=1, file_id=1, watermark=0, payload_bytes=len(self.payload),
            records=len(self.lines), previous_crc=0, time_ms=0,
        )  # fmt: skip
        window = encode_block(header, bytes(self.payload), salt=0, offset=FIRST_OFFSET)
        found = scan(window, offset=FIRST_OFFSET, salt=0, file_id=1)
        own: dict[str, list[Any]] = {
            "offset": self.lines,
            "position": self.positions,
            "gaps": self.gaps,
            "after_gap": self.after_gap,
            "file_id": [None] * len(self.lines),
            "block": [None] * len(self.lines),
            "block_time": [None] * len(self.lines),
        }
        arrays = {name: pa.array(own[name], RECORDS.column(name).arrow) for name in own}
        begin = 0
        for batch in Batch(part, window, found.columns, wanted).batches():
            columns = [
                arrays[name].slice(begin, batch.num_rows) if name in own else batch.column(name)
                for name in wanted.columns
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=batch.schema)
            begin += batch.num_rows


def read_text(part: TextPart, options: Options, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield the records of a text.

    Args:
        part: The text.
        options: What was asked for.
        wanted: What batches are made of.

    Raises:
        BadExport: A line is damaged or the text is cut off, and that is to be an error.
        NativeError: The file can't be read.
    """
    shown = Part(part.path, "message", 0, 0, 0)
    try:
        yield from _rows(part, shown, options, wanted)
    except TextFormError as problem:
        error = BadExport(
            problem.what,
            where=f"{part.path}:{problem.line}",
            measured=problem.found,
            allowed=str(problem.expected),
            cure="export it again; nothing behind this line was read",
        )
        if options.on_corrupt == "fail":
            raise error from problem
        yield error_row(shown, problem.line, str(error), wanted.columns)


def _rows(
    part: TextPart, shown: Part, options: Options, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    reader = TextReader()
    chunk = _Chunk()
    gaps = position = 0
    after_gap = False
    for text in _lines(Path(part.path)):
        try:
            line = reader.read(text)
        except TextFormError:
            yield from chunk.batches(shown, wanted)
            raise
        if line.header is not None:
            shown = Part(part.path, _JOURNALS[line.header.kind], 0, 0, 0)
        elif line.kind is LineKind.GAP:
            gaps, after_gap = gaps + 1, True
        if line.kind is not LineKind.RECORD:
            continue
        position += 1
        if _is_wanted(line.record, options):
            chunk.put(line.record, line.number, position, gaps, after_gap=after_gap)
        after_gap = False
        is_full = len(chunk.payload) >= options.batch_bytes
        if is_full or len(chunk.lines) >= min(options.batch_rows, 65535):
            yield from chunk.batches(shown, wanted)
            chunk = _Chunk()
    yield from chunk.batches(shown, wanted)
    reader.end()


def _is_wanted(record: bytes, options: Options) -> bool:
    kind, flags = record[4], record[5]
    is_of_transaction = kind in _ENDS or bool(flags & RecordFlag.TRANSACTIONAL)
    is_kind = options.kinds is None or kind in options.kinds
    return is_kind or (options.members and is_of_transaction)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file; one that is too long is cut off, which is seen by its form."""
    try:
        with path.open("rb") as file:
            while line := file.readline(_LINE_BYTES_MAX):
                yield line
    except OSError as error:
        raise unreadable("the file can't be read", error, path) from error
