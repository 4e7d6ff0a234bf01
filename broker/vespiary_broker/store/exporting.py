"""A journal as text: every record that counts, in order, a line each (journal-format §6).

Owns: the export. It reads as a broker's start does (`recovery`), so a damaged journal is refused
with its place and its text is never taken for a whole one. Must never write to the journal's
folder, and holds one block at a time in memory. Called by the CLI.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vespiary_broker.store.body_files import CopiedBodies
from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.files import FileForm
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.recovery import Recovery
from vespiary_broker.store.survey import FolderSurvey, survey_folder
from vespiary_codec.journal.block import HEADER_BYTES
from vespiary_codec.journal.file_header import CHECKED_BYTES, JournalKind, decode_file_header
from vespiary_codec.journal.record import RecordType, walk_records
from vespiary_codec.journal.text import TextWriter
from vespiary_native.abc import BlockVerifier
from vespiary_native.memory import AlignedBuffer
from vespiary_spec.errors import StorageError

STRUCTURAL_TYPES = frozenset({RecordType.FILES, RecordType.SEAL})
"""Records about files and not about content: a journal made from the text has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What was exported.

    Attributes:
        folder: The journal's folder.
        kind: Kind of the journal.
        files: Files read.
        records: Records written.
        record_bytes: Bytes of them.
        torn_at: `file:offset` of the unconfirmed work at the end that was left out; empty if none.
        bodies: Bodies of large messages that were copied, and those that were not.
    """

    folder: str
    kind: str
    files: int
    records: int
    record_bytes: int
    torn_at: str
    bodies: CopiedBodies


class _Lines:
    """A sink of the recovery that writes each record as it comes."""

    def __init__(self, survey: FolderSurvey, write: Callable[[bytes], object]) -> None:
        self.text = TextWriter()
        self.live = LiveSet()
        self._names = {file.file_id: file.path.name for file in survey.active}
        self._write = write
        self._sequence = 0
        self._is_after_gap = False

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        self.live.restore_file(file_id, salt, size_bytes)
        self._write(self.text.file(self._names[file_id], file_id, size_bytes))

    def restore_block(
        self,
        file_id: int,
        offset: int,
        block: memoryview,
    ) -> list[tuple[int, bytes]]:
        self.live.restore_block(file_id, offset, block)
        (sequence,) = struct.unpack_from("<Q", block, 8)
        (records,) = struct.unpack_from("<I", block, 36)
        if sequence != self._sequence + 1:
            self._is_after_gap = True
        self._sequence = sequence
        for raw in walk_records(block[HEADER_BYTES:], records, offset=offset + HEADER_BYTES):
            if raw.type not in STRUCTURAL_TYPES:
                if self._is_after_gap:  # says of a transaction that members of it were reclaimed
                    self._write(self.text.gap())
                    self._is_after_gap = False
                self._write(self.text.record(raw))
        return []


def form_of(
    folder: Path, prefix: str, extension: str, disk: DiskLike, *, size_bytes: int = 0
) -> tuple[FileForm, list[int]]:
    """Return the form of a journal by the first header found, and the sizes of its files.

    Args:
        folder: The journal's folder.
        prefix: Prefix of the names of its files.
        extension: Their extension, without the dot.
        disk: The file system.
        size_bytes: Not counted as a size: what the caller expects.

    Raises:
        StorageError: There is no such file, or none has a header.
        NativeError: A file can't be read.
    """
    kind: JournalKind | None = None
    sizes: set[int] = set()
    form = FileForm(prefix, extension, JournalKind.MESSAGE)
    for name in disk.names(folder):
        if form.number(name) is None or name.endswith(".tmp"):
            continue
        handle = disk.open(folder / name, is_direct=False, is_readonly=True)
        try:
            sizes.add(handle.size_bytes())
            buffer = AlignedBuffer(CHECKED_BYTES)
            count = handle.read_into(buffer.memoryview, 0)
            sector = bytes(buffer.memoryview[:count])
        finally:
            handle.close()
        kind = kind or _kind(sector)
    if kind is None:
        raise StorageError(
            f"no journal file {form.name(1)} or the like is here"
            if not sizes
            else f"no file {form.name(1)} or the like has a readable header",
            where=str(folder),
            cure="look at the folder, the prefix and the extension",
        )
    return FileForm(prefix, extension, kind), sorted(sizes - {size_bytes})


def _kind(sector: bytes) -> JournalKind | None:
    """Return the kind that a header says; a bad header is for the survey to judge and to name."""
    try:
        header = decode_file_header(sector)
    except ValueError:
        return None
    return header.kind if header else None


def export_journal(
    folder: Path,
    form: FileForm,
    write: Callable[[bytes], object],
    *,
    disk: DiskLike,
    verify: BlockVerifier,
    bring_bodies: Callable[[LiveSet], CopiedBodies] = lambda _: CopiedBodies(),
) -> ExportReport:
    """Write a journal as text.

    Args:
        folder: The journal's folder.
        form: Names and kind of its files.
        write: Takes each line; raises if it can't.
        disk: The file system.
        verify: The walk over valid blocks.
        bring_bodies: Given what is live, copies the bodies of large messages; what it raises leaves
            the text without totals.

    Raises:
        CorruptRecord: Confirmed data is damaged: file and offset; the text has no totals line.
        ForeignJournal: A file is of another journal.
        NativeError: A file cannot be read.
        StorageError: Messages stand in page files; the text has no totals line.
    """
    survey = survey_folder(folder, form, disk, is_direct=False)
    lines = _Lines(survey, write)
    write(lines.text.header(form.kind, survey.journal_id or bytes(16)))
    found = Recovery(survey, disk, verify, is_direct=False).run(lines)
    if paged := lines.live.pages.messages:
        pages = len(lines.live.pages.page_ids)
        raise StorageError(
            "messages stand in page files, which the text does not carry; it was not finished",
            where=str(folder),
            measured=f"{sum(paged.values())} messages in {pages} pages",
            allowed="none",
            cure="start the broker and have them consumed, or raise max-size-bytes until the "
            "address fits, then export again",
        )
    bodies = bring_bodies(lines.live)
    write(lines.text.totals())
    is_torn = bool(found.dropped_blocks or (found.tail and found.tail.is_torn))
    return ExportReport(
        folder=str(folder),
        kind=form.kind.name,
        files=len(found.used),
        records=lines.text.records,
        record_bytes=lines.text.record_bytes,
        torn_at=f"{found.tail.file.path}:{found.tail.offset}" if is_torn and found.tail else "",
        bodies=bodies,
    )
