"""A journal from text: lines checked one by one, files written, and only then given their names.

Owns: the import, its working folder `import.unfinished`, and the order in which the files get to
their place. Until then a broker sees no journal in the folder; should the power go while they move,
the newest file is there first, lists all others, and a broker refuses to start without them. Must
never touch a folder that holds anything else. Called by the CLI; it blocks.

Resuming needs no record of its own: the sealed files of the working folder are read again, compared
record by record with the text, and the import goes on behind them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, Protocol

from vespiary_broker.store.body_files import CopiedBodies
from vespiary_broker.store.builder import Continuation, JournalBuilder, move_to_place
from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.exporting import STRUCTURAL_TYPES
from vespiary_broker.store.files import (
    BINDINGS_FORM,
    JMS_FORM,
    MESSAGE_FORM,
    FileForm,
    StoredFile,
)
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.reader import read_journal
from vespiary_broker.store.survey import BlockReader, SurveyedFile, survey_folder
from vespiary_codec.journal.block import FIRST_OFFSET, HEADER_BYTES
from vespiary_codec.journal.file_header import JournalKind
from vespiary_codec.journal.record import walk_records
from vespiary_codec.journal.text import (
    Line,
    LineKind,
    TextFormError,
    TextHeader,
    TextReader,
)
from vespiary_native.abc import BlockFacts, BlockVerifier
from vespiary_spec.errors import BadExport, JournalError, RecordTooLarge, StorageError

logger = logging.getLogger(__name__)

WORK_FOLDER = "import.unfinished"
_NO_CONTENT = frozenset({"lost+found", "server.lock", "jms.lock", WORK_FOLDER})
_OWN_PREFIX = ".vespiary-"
_GAP = b""
"""Stands for a gap in a stream of records; no record is empty."""


class TextSource(Protocol):
    """Where the text comes from: a binary file."""

    def readline(self, limit: int, /) -> bytes:
        """Return the next line with its line feed, at most `limit` bytes; empty at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What was imported.

    Attributes:
        folder: Where the journal lies now.
        kind: Kind of the journal.
        files: Its files.
        records: Records taken from the text.
        resumed_records: Those of them that were durable before.
        bodies: Bodies of large messages that were copied, and those that were not.
    """

    folder: str
    kind: str
    files: int
    records: int
    resumed_records: int
    bodies: CopiedBodies


class _Kept(NamedTuple):
    """What an interrupted import left: sealed files, in order, and their last block."""

    journal_id: bytes
    files: list[SurveyedFile]
    last: BlockFacts


class JournalImport:
    """One import into one folder. Owner: the thread that runs it; used once."""

    def __init__(
        self,
        folder: Path,
        prefix: str,
        extension: str,
        file_size_bytes: int,
        *,
        disk: DiskLike,
        verify: BlockVerifier,
        is_resumed: bool = False,
        source_name: str = "line",
        bring_bodies: Callable[[LiveSet], CopiedBodies] = lambda _: CopiedBodies(),
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Prepare; nothing is read or made yet.

        Args:
            folder: Where the journal shall be: empty or missing. The caller holds its lock.
            prefix: Prefix of the files' names.
            extension: Their extension, without the dot.
            file_size_bytes: Size of each file: a multiple of 4096, at least 64 KiB.
            disk: The file system.
            verify: The walk over valid blocks.
            is_resumed: Go on with what an interrupted import left.
            source_name: Name of the text, for errors.
            bring_bodies: Given what is live, copies the bodies of large messages, durably; what it
                raises leaves the files where `is_resumed` finds them.
            progress: Told the bytes of each line.
        """
        self._folder = folder
        self._work = folder / WORK_FOLDER
        self._prefix = prefix
        self._extension = extension
        self._file_size_bytes = file_size_bytes
        self._disk = disk
        self._verify = verify
        self._is_resumed = is_resumed
        self._source_name = source_name
        self._bring_bodies = bring_bodies
        self._progress = progress
        self._reader = TextReader()
        self._line_bytes_max = 2 * file_size_bytes + 64 * 1024

    def run(self, source: TextSource) -> ImportReport:
        """Import the text.

        Args:
            source: The text, from its first line on.

        Raises:
            BadExport: The text is damaged, cut off, not the one that was begun, or of another kind
                than the names: line number.
            StorageError: The folder is not empty, or an import was interrupted here.
            RecordTooLarge: A record does not fit into a file of this size.
            DiskFull: No room; `is_resumed` goes on later.
            NativeError: A call failed.

        Durability: on return the journal survives a power cut.
        """
        is_publishing = self._check_folder()
        header = self._header(source)
        form = FileForm(self._prefix, self._extension, header.kind)
        self._check_names(form)
        records = self._records(source)
        if not is_publishing:
            self._disk.make_folder(self._work)
            resumed = self._write(records, form)
        elif self._disk.names(self._work):  # all is written and sealed: the text is only checked
            resumed = sum(1 for record in records if record != _GAP)
        else:
            resumed = self._check_moved(records, form)
            self._disk.make_folder(self._work)  # an empty one, which goes again below
        bodies = self._bring_bodies(self._live(form, is_publishing=is_publishing))
        files = move_to_place(self._work, self._folder, form, self._disk)
        return ImportReport(
            folder=str(self._folder),
            kind=header.kind.name,
            files=files,
            records=self._reader.records,
            resumed_records=resumed,
            bodies=bodies,
        )

    def _live(self, form: FileForm, *, is_publishing: bool) -> LiveSet:
        """Read what was imported again; once files are at their place, their bodies are too."""
        live = LiveSet()
        if form.kind is JournalKind.MESSAGE and not is_publishing:
            read_journal(self._work, form=form, disk=self._disk, verify=self._verify, live=live)
        return live

    def _check_names(self, form: FileForm) -> None:
        """Refuse names by which a broker would take the files for a journal of another kind."""
        for usual in (MESSAGE_FORM, BINDINGS_FORM, JMS_FORM):
            taken = form.prefix == usual.prefix or form.extension == usual.extension
            if taken and form.kind is not usual.kind:
                raise BadExport(
                    "the text is of a journal of another kind than these names stand for",
                    where=f"{self._source_name}:1",
                    measured=f"a text of kind {form.kind.name}, files named {form.prefix}-N."
                    f"{form.extension}",
                    allowed=f"a text of kind {usual.kind.name} for such names",
                    cure="nothing was imported: give the prefix and extension of that kind, or "
                    "another text",
                )

    def _check_folder(self) -> bool:
        """Refuse a folder that holds anything else; return whether files are at their place."""
        form = FileForm(self._prefix, self._extension, JournalKind.MESSAGE)
        names = [
            name
            for name in self._disk.names(self._folder)
            if name not in _NO_CONTENT and not name.startswith(_OWN_PREFIX)
        ]
        is_begun = bool(self._disk.names(self._work))
        is_journal = all(form.number(name) is not None for name in names)
        if names and not (self._is_resumed and is_journal):
            raise self._not_empty(names[0])
        if is_begun and not self._is_resumed:
            raise StorageError(
                "an import was interrupted here",
                where=str(self._work),
                cure="go on with --resume, or remove that folder to begin again",
            )
        return bool(names)

    def _not_empty(self, name: str) -> StorageError:
        return StorageError(
            "an import needs an empty or a new folder",
            where=str(self._folder),
            measured=f"{name} is there",
            cure="give another folder",
        )

    def _check_moved(self, records: Iterator[bytes], form: FileForm) -> int:
        """Refuse a journal that is not the text's; return its number of records.

        An import that fails after its last file is moved leaves a whole journal, which nothing but
        the text tells from that of a broker.
        """
        kept = self._kept_files(form, self._folder)
        if kept is None:
            raise self._not_empty("another journal")
        count = 0
        for record, durable in zip_longest(records, self._durable_records(kept)):
            if record != durable:
                raise self._not_empty("another journal")
            count += record != _GAP
        return count

    # --- the text ---------------------------------------------------------------------------------

    def _header(self, source: TextSource) -> TextHeader:
        line = self._read(source)
        if line is None or line.header is None:
            raise BadExport(
                "the text is empty", where=f"{self._source_name}:1", cure="export the journal again"
            )
        return line.header

    def _records(self, source: TextSource) -> Iterator[bytes]:
        """Yield the records, and `_GAP` for gaps; at the end the totals are checked."""
        while (line := self._read(source)) is not None:
            if line.kind is LineKind.RECORD:
                yield line.record
            elif line.kind is LineKind.GAP:
                yield _GAP

    def _read(self, source: TextSource) -> Line | None:
        octets = source.readline(self._line_bytes_max)
        try:
            if not octets:
                if self._reader.number:
                    self._reader.end()
                return None
            line = self._reader.read(octets)
        except TextFormError as error:
            raise BadExport(
                error.what,
                where=f"{self._source_name}:{error.line}",
                measured=str(error.found),
                allowed=str(error.expected),
                cure="nothing was imported: copy or export the text again; what was written stays "
                "for --resume",
            ) from error
        self._progress(len(octets))
        return line

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, records: Iterator[bytes], form: FileForm) -> int:
        """Write all records into the working folder; return how many were there before."""
        kept = self._kept_files(form, self._work) if self._is_resumed else None
        resumed = self._compare(records, kept) if kept else 0
        keep = {file.path.name for file in kept.files} if kept else set()
        for name in self._disk.names(self._work):
            if name not in keep:
                self._disk.remove(self._work / name)
        builder = JournalBuilder(
            self._work,
            form,
            self._file_size_bytes,
            self._disk,
            journal_id=kept.journal_id if kept else uuid.uuid4().bytes,
            before=_continuation(kept) if kept else None,
        )
        try:
            for record in records:
                if record == _GAP:
                    builder.gap()
                else:
                    self._add(builder, record)
            builder.finish()
        finally:
            builder.close()
        return resumed

    def _add(self, builder: JournalBuilder, record: bytes) -> None:
        try:
            builder.add(record)
        except RecordTooLarge as error:
            raise RecordTooLarge(
                error.what,
                where=f"{self._source_name}:{self._reader.number}",
                measured=error.measured,
                allowed=error.allowed,
                cure="import with a larger file size",
            ) from error

    def _kept_files(self, form: FileForm, folder: Path) -> _Kept | None:
        """Return the files that an interrupted import had finished; None if there are none."""
        try:
            survey = survey_folder(folder, form, self._disk, is_direct=False)
        except JournalError as error:
            logger.warning("the interrupted import is begun again: %s", error)
            return None
        kept: list[SurveyedFile] = []
        last: BlockFacts | None = None
        for file in survey.active:
            seal = self._seal_of(file, last)
            if seal is None:
                break
            kept.append(file)
            last = seal
        if last is None or survey.journal_id is None:
            return None
        return _Kept(survey.journal_id, kept, last)

    def _seal_of(self, file: SurveyedFile, before: BlockFacts | None) -> BlockFacts | None:
        """Return the seal of a file whose blocks follow one another and the file before."""
        last: BlockFacts | None = None
        for facts, _ in self._blocks(file):
            previous = last or before
            if previous and facts.previous_crc != previous.crc:
                return None
            last = facts
        return last if last and last.is_seal else None

    def _blocks(self, file: SurveyedFile) -> Iterator[tuple[BlockFacts, memoryview]]:
        handle = self._disk.open(file.path, is_direct=False, is_readonly=True)
        try:
            reader = BlockReader(
                handle,
                file_id=file.file_id,
                salt=file.salt,
                size_bytes=file.size_bytes,
                verify=self._verify,
            )
            yield from reader.walk(FIRST_OFFSET)
        finally:
            handle.close()

    def _durable_records(self, kept: _Kept) -> Iterator[bytes]:
        """Yield what stands in the finished files, as `_records` yields the text."""
        expected_id = 1
        for file in kept.files:
            if file.file_id != expected_id:
                yield _GAP
            expected_id = file.file_id + 1
            for facts, block in self._blocks(file):
                for raw in walk_records(block[HEADER_BYTES:], facts.records):
                    if raw.type not in STRUCTURAL_TYPES:
                        yield bytes(raw.data)

    def _compare(self, records: Iterator[bytes], kept: _Kept) -> int:
        """Read the text up to the end of the finished files; return the number of records.

        Raises:
            BadExport: They do not come from this text.
        """
        count = 0
        for record in self._durable_records(kept):
            if next(records, None) != record:
                raise BadExport(
                    "this is not the text that the interrupted import was begun with",
                    where=f"{self._source_name}:{self._reader.number}",
                    cure=f"give that text, or remove {self._work} to begin again",
                )
            count += record != _GAP
        return count


def _continuation(kept: _Kept) -> Continuation:
    files = [
        StoredFile(file.path, file.number, file.file_id, file.salt, file.size_bytes)
        for file in kept.files
    ]
    return Continuation(files, kept.last.sequence, kept.last.crc, files[-1].file_id + 1)
