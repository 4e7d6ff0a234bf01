"""Looking at a journal without owning it: `vespiary journal info` and `vespiary journal verify`.

Owns: the report of what a folder holds. Must never write, lock or create anything, and needs the
codec alone, not the native part. The decisions are those of `recovery`, so what this calls good a
broker will open. On a folder that a running broker writes to, the newest blocks may look torn: they
are being written. Called by the CLI and the administration API.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from vespiary_broker.store.disk import Disk, DiskLike
from vespiary_broker.store.files import MESSAGE_FORM, FileForm
from vespiary_broker.store.recovery import Recovered, Recovery
from vespiary_broker.store.survey import (
    FolderSurvey,
    SurveyedFile,
    survey_folder,
    verify_blocks_python,
)
from vespiary_codec.journal.record import (
    AckRecord,
    CommitRecord,
    PutRecord,
    QueuesRecord,
    RawRecord,
    RecordFlag,
    RecordType,
    RemoveRecord,
    decode_ack,
    decode_add_layout,
    decode_record,
    digest_members,
    walk_records,
)
from vespiary_native.abc import BlockVerifier
from vespiary_spec.errors import JournalError, StorageError

_BLOCK_HEADER_BYTES = 64


class Finding(StrEnum):
    """What `verify` found."""

    GOOD = "good"
    TORN = "torn"
    """The journal ends in unconfirmed work that was cut off: expected after a crash."""
    BAD = "bad"
    """Confirmed data is damaged, or the folder holds something else."""


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
        bindings: Live keys of a bindings journal.
        voided_transactions: Transactions without a valid COMMIT.
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
    bindings: int
    voided_transactions: int


class _Places:
    """Live sequences of one queue: a byte each, from the first one seen."""

    def __init__(self) -> None:
        self._first = 0
        self._is_live = bytearray()

    def set_live(self, sequence: int, *, is_live: bool) -> None:
        if not self._is_live:
            self._first = sequence
        if sequence < self._first:
            self._is_live[:0] = bytes(self._first - sequence)
            self._first = sequence
        at = sequence - self._first
        if at >= len(self._is_live):
            if not is_live:
                return
            self._is_live.extend(bytes(at + 1 - len(self._is_live)))
        self._is_live[at] = is_live

    def end(self, first: int, number: int) -> None:
        """Acknowledge a range; what lies outside of what was seen is gone already."""
        start = max(first - self._first, 0)
        stop = min(first + number - self._first, len(self._is_live))
        if stop > start:
            self._is_live[start:stop] = bytes(stop - start)

    def count(self) -> int:
        return self._is_live.count(1)


@dataclass(slots=True)
class _Transaction:
    """Members seen of one transaction."""

    members: int = 0
    digest: int = 0
    records: list[RawRecord] = field(default_factory=list)


@dataclass(slots=True)
class _FileCount:
    blocks: int = 0
    records: int = 0
    used_bytes: int = 0
    first_sequence: int = 0
    last_sequence: int = 0
    is_sealed: bool = False


class JournalCounter:
    """Counts what recovery hands out: a sink that keeps no message."""

    def __init__(self) -> None:
        self.types: Counter[str] = Counter()
        self.files: dict[int, _FileCount] = {}
        self.keys: set[str] = set()
        self._queues: dict[int, _Places] = {}
        self._open: dict[int, _Transaction] = {}

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:  # noqa: ARG002
        """Begin to count a file."""
        self.files[file_id] = _FileCount()

    def restore_block(
        self, file_id: int, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """Count the records of one valid block."""
        (sequence,) = struct.unpack_from("<Q", block, 8)
        (records,) = struct.unpack_from("<I", block, 36)
        start = _BLOCK_HEADER_BYTES
        file = self.files[file_id]
        file.blocks += 1
        file.records += records
        file.used_bytes += -(-len(block) // 4096) * 4096
        file.first_sequence = file.first_sequence or sequence
        file.last_sequence = sequence
        for raw in walk_records(block[start:], records, offset=offset + start):
            self.types[_type_name(raw.type)] += 1
            file.is_sealed = raw.type == RecordType.SEAL
            self._apply(raw)
        return []

    def _apply(self, raw: RawRecord) -> None:
        can_be_member = raw.type in (RecordType.ADD, RecordType.ACK)
        if can_be_member and raw.flags & RecordFlag.TRANSACTIONAL:
            number = (
                decode_add_layout(raw).transaction
                if raw.type == RecordType.ADD
                else decode_ack(raw).transaction
            )
            entry = self._open.setdefault(number, _Transaction())
            entry.members += 1
            entry.digest = digest_members([raw.data], entry.digest)
            entry.records.append(raw._replace(data=memoryview(bytes(raw.data))))
        elif raw.type == RecordType.ADD:
            for queue_id, sequence in decode_add_layout(raw).places:
                self._places(queue_id).set_live(sequence, is_live=True)
        else:
            self._apply_other(decode_record(raw))

    def _apply_other(self, record: object) -> None:
        if isinstance(record, AckRecord):
            for first, number in record.ranges:
                self._places(record.queue_id).end(first, number)
        elif isinstance(record, QueuesRecord):
            for queue_id, head, _ in record.queues:
                self._places(queue_id).end(0, head)
        elif isinstance(record, CommitRecord):
            entry = self._open.get(record.transaction, _Transaction())
            if (entry.members, entry.digest) == (record.members, record.digest):
                self._open.pop(record.transaction, None)
                for member in entry.records:
                    self._apply(member._replace(flags=member.flags & ~RecordFlag.TRANSACTIONAL))
        elif isinstance(record, PutRecord):
            self.keys.add(record.key)
        elif isinstance(record, RemoveRecord):
            self.keys.discard(record.key)

    def _places(self, queue_id: int) -> _Places:
        return self._queues.setdefault(queue_id, _Places())

    @property
    def live_messages(self) -> dict[int, int]:
        """Live messages by queue id, queues without any left out."""
        counts = {queue_id: places.count() for queue_id, places in sorted(self._queues.items())}
        return {queue_id: count for queue_id, count in counts.items() if count}

    @property
    def voided_transactions(self) -> int:
        """Transactions whose COMMIT is not there or does not fit."""
        return len(self._open)


def _type_name(number: int) -> str:
    return RecordType(number).name if number in RecordType.__members__.values() else str(number)


def read_journal(
    folder: Path,
    *,
    form: FileForm = MESSAGE_FORM,
    disk: DiskLike | None = None,
    verify: BlockVerifier = verify_blocks_python,
    is_direct: bool = False,
) -> JournalReport:
    """Read all of a journal and say what it holds, good or bad.

    Args:
        folder: The journal's folder.
        form: Names and kind of its files.
        disk: The file system; None takes the real one.
        verify: The walk over valid blocks.
        is_direct: Read past the page cache, to see what the disk itself holds.

    Raises:
        StorageError: The folder does not exist.
        NativeError: A file cannot be read.
    """
    used_disk = disk or Disk()
    if disk is None and not folder.is_dir():
        raise StorageError("there is no such folder", where=str(folder))
    counter = JournalCounter()
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
    return JournalReport(
        folder=str(folder),
        kind=form.kind.name,
        journal_id=survey.journal_id.hex() if survey and survey.journal_id else "",
        finding=finding,
        error=problem.to_dict() if problem else None,
        error_text=str(problem) if problem else "",
        files=tuple(_file_reports(survey, found, counter)) if survey else (),
        sequence=found.sequence
        if found
        else max((file.last_sequence for file in counter.files.values()), default=0),
        watermark=found.watermark if found else 0,
        unproven_blocks=found.unproven_blocks if found else 0,
        dropped_blocks=found.dropped_blocks if found else 0,
        torn_at=f"{found.tail.file.path}:{found.tail.offset}" if found and found.tail else "",
        records_by_type=dict(sorted(counter.types.items())),
        live_messages=counter.live_messages,
        bindings=len(counter.keys),
        voided_transactions=counter.voided_transactions,
    )


def _file_reports(
    survey: FolderSurvey, found: Recovered | None, counter: JournalCounter
) -> list[FileReport]:
    leftovers = {file.file_id for file in found.leftovers} if found else set()
    ahead = {file.file_id for file in found.ahead} if found else set()

    def state(file: SurveyedFile) -> str:
        if file.file_id in counter.files:
            return "used"
        if file.file_id in leftovers:
            return "leftover"
        return "ahead" if file.file_id in ahead else "unread"

    reports = []
    for file in survey.active:
        count = counter.files.get(file.file_id, _FileCount())
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
