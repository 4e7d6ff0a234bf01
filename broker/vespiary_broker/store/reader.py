"""Looking at a journal without owning it: `vespiary journal info` and `vespiary journal verify`.

Owns: the report of what a folder holds. Must never write, lock or create anything, and needs the
codec alone, not the native part. The decisions are those of `recovery`, so what this calls good a
broker will open. On a folder that a running broker writes to, the newest blocks may look torn: they
are being written. Called by the CLI and the administration API.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from vespiary_broker.store.disk import Disk, DiskLike
from vespiary_broker.store.file_uses import kept_by
from vespiary_broker.store.files import MESSAGE_FORM, FileForm
from vespiary_broker.store.live_set import FileCount, LivePlace, LiveSet
from vespiary_broker.store.recovery import Recovered, Recovery
from vespiary_broker.store.survey import (
    FolderSurvey,
    SurveyedFile,
    survey_folder,
    verify_blocks_python,
)
from vespiary_codec.journal.description import type_name
from vespiary_codec.journal.record import ADD, PLACE, TRANSACTION, RecordFlag
from vespiary_codec.wire.stomp.properties import lines_in
from vespiary_native.abc import BlockVerifier
from vespiary_spec.errors import JournalError, StorageError

_PROPERTIES_WINDOW_BYTES = 96 * 1024
"""Properties are at most 64 KiB, and places few: what lies behind is not looked for."""


class Finding(StrEnum):
    """What `verify` found."""

    GOOD = "good"
    TORN = "torn"
    """The journal ends in unconfirmed work that was cut off: expected after a crash."""
    BAD = "bad"
    """Confirmed data is damaged, or the folder holds something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestMessage:
    """A live message and where it stands.

    Attributes:
        queue_id: Its queue.
        sequence: Its number there.
        address: The destination that it was sent to; empty if it does not say.
        arrival_ms: Time of arrival, milliseconds since 1970.
        file: Name of its file.
        offset: Of its record.
    """

    queue_id: int
    sequence: int
    address: str
    arrival_ms: int
    file: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """One file of the folder.

    Attributes:
        name: Its name.
        state: used, ahead (made ready, not begun), leftover (of an interrupted reclaim), free,
            unfinished, or unread (a problem came before it).
        file_id: The id in its header, 0 if none.
        size_bytes: Its size.
        blocks: Blocks that count.
        records: Records in them.
        used_bytes: Bytes of them.
        first_sequence: Of the first, 0 if none.
        last_sequence: Of the last, 0 if none.
        is_sealed: It ends with a seal.
        activated_ms: When it was last made ready, milliseconds since 1970; 0 if never.
        last_time_ms: When its last block was closed, milliseconds since 1970; 0 if none.
        live_messages: Live messages in it, counted once for each queue.
        live_bytes: Their bytes.
        oldest: The live message that stands in it longest; None if none is live.
        pinned_by: Why it can't be freed, as a clause; empty if it can or is not used.
    """

    name: str
    state: str
    file_id: int
    size_bytes: int
    blocks: int = 0
    records: int = 0
    used_bytes: int = 0
    first_sequence: int = 0
    last_sequence: int = 0
    is_sealed: bool = False
    activated_ms: int = 0
    last_time_ms: int = 0
    live_messages: int = 0
    live_bytes: int = 0
    oldest: OldestMessage | None = None
    pinned_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalReport:
    """What a folder holds.

    Attributes:
        folder: Where.
        kind: Kind of the journal.
        journal_id: Its id in hexadecimal digits, empty if no file has one.
        finding: Good, torn or bad.
        error: The problem as data (`VespiaryError.to_dict`), None unless bad.
        error_text: The same for people.
        files: The files by id, those without one last.
        sequence: Last block that counts.
        watermark: Highest block that is known to be durable.
        unproven_blocks: Blocks above that.
        dropped_blocks: Valid blocks behind the torn end.
        torn_at: `file:offset` where the journal ends without a seal, empty if it does not.
        records_by_type: Number of records by the name of their type.
        live_messages: Messages by queue id that are neither acknowledged nor part of a transaction
            without COMMIT. Whether the queue still exists stands in the bindings.
        paged_messages: The same of those that stand in page files; they are not among the others.
        pages: Page files that hold any of these.
        live_bytes: Bytes of them.
        live_percent: Share of the bytes of all files with blocks that is live, 0 to 100.
        oldest: The live message that arrived first; None if none is live.
        bindings: Live keys of a bindings or JMS journal.
        voided_transactions: Transactions without a valid COMMIT.
        prepared_transactions: Ids of branches that are prepared and wait for their outcome.
    """

    folder: str
    kind: str
    journal_id: str
    finding: Finding
    error: dict[str, Any] | None
    error_text: str
    files: tuple[FileReport, ...]
    sequence: int
    watermark: int
    unproven_blocks: int
    dropped_blocks: int
    torn_at: str
    records_by_type: dict[str, int]
    live_messages: dict[int, int]
    paged_messages: dict[int, int]
    pages: int
    live_bytes: int
    live_percent: float
    oldest: OldestMessage | None
    bindings: int
    voided_transactions: int
    prepared_transactions: tuple[int, ...]


def read_journal(
    folder: Path,
    *,
    form: FileForm = MESSAGE_FORM,
    disk: DiskLike | None = None,
    verify: BlockVerifier = verify_blocks_python,
    is_direct: bool = False,
    live: LiveSet | None = None,
) -> JournalReport:
    """Read all of a journal and say what it holds, good or bad.

    Args:
        folder: The journal's folder.
        form: Names and kind of its files.
        disk: The file system; None takes the real one.
        verify: The walk over valid blocks.
        is_direct: Read past the page cache, to see what the disk itself holds.
        live: An empty set to fill; None makes one.

    Raises:
        StorageError: The folder does not exist.
        NativeError: A file cannot be read.
    """
    used_disk = disk or Disk()
    if disk is None and not folder.is_dir():
        raise StorageError("there is no such folder", where=str(folder))
    counter = live or LiveSet()
    survey: FolderSurvey | None = None
    found: Recovered | None = None
    problem: JournalError | None = None
    try:
        survey = survey_folder(folder, form, used_disk, is_direct=is_direct)
        found = Recovery(survey, used_disk, verify, is_direct=is_direct).run(counter)
    except JournalError as error:
        problem = error
    is_torn = bool(found and (found.dropped_blocks or (found.tail and found.tail.is_torn)))
    finding = Finding.BAD if problem else Finding.TORN if is_torn else Finding.GOOD
    oldest = _oldest(survey, counter, used_disk) if survey else {}
    live_bytes = sum(file.live_bytes for file in counter.files.values())
    used_bytes = sum(file.size_bytes for file in _used(survey, counter))
    return JournalReport(
        folder=str(folder),
        kind=form.kind.name,
        journal_id=survey.journal_id.hex() if survey and survey.journal_id else "",
        finding=finding,
        error=problem.to_dict() if problem else None,
        error_text=str(problem) if problem else "",
        files=tuple(_file_reports(survey, found, counter, oldest)) if survey else (),
        sequence=found.sequence
        if found
        else max((file.last_sequence for file in counter.files.values()), default=0),
        watermark=found.watermark if found else 0,
        unproven_blocks=found.unproven_blocks if found else 0,
        dropped_blocks=found.dropped_blocks if found else 0,
        torn_at=f"{found.tail.file.path}:{found.tail.offset}" if found and found.tail else "",
        records_by_type={type_name(t): count for t, count in sorted(counter.types.items())},
        live_messages=counter.live_messages,
        paged_messages=counter.pages.messages,
        pages=len(counter.pages.page_ids),
        live_bytes=live_bytes,
        live_percent=round(100 * live_bytes / used_bytes, 1) if used_bytes else 0.0,
        oldest=min(oldest.values(), key=lambda message: message.arrival_ms, default=None),
        bindings=len(counter.bindings),
        voided_transactions=counter.voided_transactions,
        prepared_transactions=tuple(
            number for number, entry in counter.transactions.items() if entry.is_prepared
        ),
    )


def _used(survey: FolderSurvey | None, live: LiveSet) -> list[SurveyedFile]:
    return [file for file in survey.active if file.file_id in live.files] if survey else []


def _oldest(survey: FolderSurvey, live: LiveSet, disk: DiskLike) -> dict[int, OldestMessage]:
    """Return the live message of each file that arrived first, by file id."""
    first: dict[int, LivePlace] = {}
    for place in live.places():
        known = first.get(place.file_id)
        if known is None or (place.arrival_ms, place.offset) < (known.arrival_ms, known.offset):
            first[place.file_id] = place
    files = {file.file_id: file for file in survey.active}
    return {
        file_id: OldestMessage(
            queue_id=place.queue_id,
            sequence=place.sequence,
            address=destination_of(read_properties(files[file_id], place.offset, disk)),
            arrival_ms=place.arrival_ms,
            file=files[file_id].path.name,
            offset=place.offset,
        )
        for file_id, place in sorted(first.items())
    }


def read_properties(file: SurveyedFile, offset: int, disk: DiskLike) -> bytes:
    """Return the properties of an ADD record; empty if it can't be decoded any more.

    Args:
        file: Its file.
        offset: Of the record in it.
        disk: The file system.

    Raises:
        NativeError: The file cannot be read.
    """
    start = offset - offset % 4096
    buffer = memoryview(bytearray(_PROPERTIES_WINDOW_BYTES))
    handle = disk.open(file.path, is_direct=False, is_readonly=True)
    try:
        count = handle.read_into(buffer, start)
    finally:
        handle.close()
    data = buffer[offset - start : count]
    if len(data) < ADD.size:
        return b""
    _, _, flags, _, _, _, _, properties, places = ADD.unpack_from(data)
    at = ADD.size + places * PLACE.size
    at += TRANSACTION.size if flags & RecordFlag.TRANSACTIONAL else 0
    return bytes(data[at : at + properties])


def destination_of(properties: bytes) -> str:
    """Return the destination that the properties of a message name; empty if none."""
    for line in lines_in(properties).split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"destination":
            return value.decode(errors="replace").replace("\\c", ":")
    return ""


def _pinned_by(file_id: int, live: LiveSet) -> str:
    """Return why a file can't be freed, once it is not the newest."""
    count = live.files[file_id]
    transactions = sum(
        file_id in {entry.prepare[0], *(member[0] for member in entry.members)}
        for entry in live.transactions.values()
        if entry.prepare is not None
    )
    return kept_by(
        live_places=count.live_places,
        live_pages=len(count.pages),
        transactions=transactions,
        ends_of=[other for other in sorted(count.cancels) if other in live.files],
    )


def _file_reports(
    survey: FolderSurvey,
    found: Recovered | None,
    live: LiveSet,
    oldest: dict[int, OldestMessage],
) -> list[FileReport]:
    leftovers = {file.file_id for file in found.leftovers} if found else set()
    ahead = {file.file_id for file in found.ahead} if found else set()

    def state(file: SurveyedFile) -> str:
        if file.file_id in live.files:
            return "used"
        if file.file_id in leftovers:
            return "leftover"
        return "ahead" if file.file_id in ahead else "unread"

    reports = []
    for file in survey.active:
        count = live.files.get(file.file_id, FileCount())
        reports.append(
            FileReport(
                name=file.path.name,
                state=state(file),
                file_id=file.file_id,
                size_bytes=file.size_bytes,
                blocks=count.blocks,
                records=count.records,
                used_bytes=count.used_bytes,
                first_sequence=count.first_sequence,
                last_sequence=count.last_sequence,
                is_sealed=count.is_sealed,
                activated_ms=file.header.activated_ms if file.header else 0,
                last_time_ms=count.last_time_ms,
                live_messages=count.live_places,
                live_bytes=count.live_bytes,
                oldest=oldest.get(file.file_id),
                pinned_by=_pinned_by(file.file_id, live) if file.file_id in live.files else "",
            )
        )
    reports.extend(
        FileReport(
            name=file.path.name, state="free", file_id=file.file_id, size_bytes=file.size_bytes
        )
        for file in survey.free
    )
    reports.extend(
        FileReport(name=path.name, state="unfinished", file_id=0, size_bytes=0)
        for path in survey.unfinished
    )
    return reports
