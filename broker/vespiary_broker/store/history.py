"""Reading kept copies of a journal's files: the messages that were confirmed, each once.

Owns: the order of copies, and which records of them are messages: members of a transaction count
with its valid COMMIT alone, and a message that stands in several files (the compaction moves them)
is given once. Must never write. Blocks are checked as they are read: a damaged copy is an error
that names file and offset. Called by the CLI's replay.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.retention_folder import parse_name, read_header
from vespiary_broker.store.survey import BlockReader
from vespiary_codec.journal.block import FIRST_OFFSET, HEADER_BYTES
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import FileHeader
from vespiary_codec.journal.record import (
    AddRecord,
    CommitRecord,
    RawRecord,
    RecordFlag,
    RecordType,
    decode_record,
    digest_members,
    walk_records,
)
from vespiary_native.abc import BlockVerifier
from vespiary_spec.errors import CorruptRecord, JournalError

_TRANSACTION_BYTES = 8


@dataclass(slots=True)
class HistoryCounts:
    """What was read.

    Attributes:
        files: Copies read.
        gaps: Places where copies are missing in between.
        messages: Messages given.
        repeated: ADD records of messages that were given before.
        void: Messages of transactions without a valid COMMIT.
        first_ms: Earliest time of a block, milliseconds since 1970; 0 if there is none.
        last_ms: Latest time of a block.
    """

    files: int = 0
    gaps: int = 0
    messages: int = 0
    repeated: int = 0
    void: int = 0
    first_ms: int = 0
    last_ms: int = 0


@dataclass(slots=True)
class _Open:
    """A transaction whose end has not come."""

    members: list[tuple[bytes, AddRecord | None]] = field(default_factory=list)
    is_cut: bool = False
    gaps: int = 0
    is_prepared: bool = False


class _Ranges:
    """A set of numbers that mostly follow one another."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, number: int) -> bool:
        """Put a number in; False if it is there."""
        at = bisect.bisect_right(self._starts, number) - 1
        if at >= 0 and number < self._ends[at]:
            return False
        joins_left = at >= 0 and self._ends[at] == number
        joins_right = at + 1 < len(self._starts) and self._starts[at + 1] == number + 1
        if joins_left and joins_right:
            self._ends[at] = self._ends.pop(at + 1)
            del self._starts[at + 1]
        elif joins_left:
            self._ends[at] = number + 1
        elif joins_right:
            self._starts[at + 1] = number
        else:
            self._starts.insert(at + 1, number)
            self._ends.insert(at + 1, number + 1)
        return True


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    header: FileHeader


class History:
    """The messages in a folder of copies. Owner: the thread that reads; used once.

    Args:
        folder: The folder of copies.
        disk: The file system; only opened for reading.
        verify: The walk over valid blocks.

    Attributes:
        counts: What was read so far.
    """

    def __init__(self, folder: Path, disk: DiskLike, verify: BlockVerifier) -> None:
        self.counts = HistoryCounts()
        self._folder = folder
        self._disk = disk
        self._verify = verify
        self._open: dict[int, _Open] = {}
        self._seen: dict[int, _Ranges] = defaultdict(_Ranges)
        self._sequence = 0
        self._is_gap = False

    def messages(self) -> Iterator[AddRecord]:
        """Yield the messages in the order in which they were committed.

        Raises:
            JournalError: There are no copies, or copies of several journals.
            CorruptRecord: A copy is damaged: file and offset.
            NativeError: A copy can't be read.
        """
        for file in self._files():
            self.counts.files += 1
            yield from self._read(file)
        for left in self._open.values():
            self.counts.void += _messages_in(left)
        self._open.clear()

    def _files(self) -> list[_File]:
        """Return the copies by file id; of one file the latest name."""
        found: dict[int, _File] = {}
        journals: set[bytes] = set()
        for name in self._disk.names(self._folder):
            if parse_name(name) is None:
                continue
            path = self._folder / name
            handle = self._disk.open(path, is_direct=False, is_readonly=True)
            try:
                header = read_header(handle)
            except JournalFormatError as error:
                raise _damaged(path, 0, str(error)) from error
            finally:
                handle.close()
            if header is None:
                raise _damaged(path, 0, "there is no header")
            journals.add(header.journal_id)
            found[header.file_id] = _File(path, header)
        if not found:
            raise JournalError(
                "there are no kept copies of journal files",
                where=str(self._folder),
                allowed="files activemq-data-YYYYMMDDhhmmss-ID.hq",
                cure="name the journal-retention-directory of a broker",
            )
        if len(journals) > 1:
            raise JournalError(
                "the folder holds copies of several journals",
                where=str(self._folder),
                measured=", ".join(sorted(one.hex()[:8] for one in journals)),
                cure="put the copies of each journal into a folder of its own",
            )
        return [found[file_id] for file_id in sorted(found)]

    def _read(self, file: _File) -> Iterator[AddRecord]:
        handle = self._disk.open(file.path, is_direct=False, is_readonly=True)
        header = file.header
        try:
            reader = BlockReader(
                handle,
                file_id=header.file_id,
                salt=header.salt,
                size_bytes=header.size_bytes,
                verify=self._verify,
            )
            end, is_sealed = FIRST_OFFSET, False
            for facts, block in reader.walk(FIRST_OFFSET):
                self._is_gap = facts.sequence != self._sequence + 1
                if self._is_gap and end != FIRST_OFFSET:
                    break
                self.counts.gaps += self._is_gap and self._sequence > 0
                self._sequence = facts.sequence
                self.counts.first_ms = self.counts.first_ms or facts.time_ms
                self.counts.last_ms = facts.time_ms
                yield from self._block(file, facts.offset, block, facts.records)
                end, is_sealed = facts.offset + facts.length, facts.is_seal
        finally:
            handle.close()
        if not is_sealed:
            raise _damaged(file.path, end, "the next block is not valid")

    def _block(
        self, file: _File, offset: int, block: memoryview, records: int
    ) -> Iterator[AddRecord]:
        try:
            raws = walk_records(block[HEADER_BYTES:], records, offset=offset + HEADER_BYTES)
            for raw in raws:
                yield from self._record(raw)
                self._is_gap = False
        except JournalFormatError as error:
            raise _damaged(file.path, offset, str(error)) from error

    def _record(self, raw: RawRecord) -> Iterator[AddRecord]:
        if raw.type not in _TAKEN:
            return
        record = decode_record(raw)
        is_member = raw.type in _MEMBERS and bool(raw.flags & RecordFlag.TRANSACTIONAL)
        if is_member:
            self._member(raw, record)
        elif isinstance(record, AddRecord):
            yield from self._new([record])
        elif isinstance(record, PrepareRecord):
            of = self._open.setdefault(record.transaction, _Open())
            of.is_prepared = self._is_whole(of, record.members, record.digest)
        elif isinstance(record, RollbackRecord):
            self.counts.void += _messages_in(self._open.pop(record.transaction, _Open()))
        elif isinstance(record, CommitRecord):
            of = self._open.pop(record.transaction, _Open())
            if of.is_prepared or self._is_whole(of, record.members, record.digest):
                yield from self._new(add for _, add in of.members if add is not None)
            else:
                self.counts.void += _messages_in(of)

    def _member(self, raw: RawRecord, record: object) -> None:
        if raw.type == RecordType.DUPLICATE:
            transaction = int.from_bytes(raw.data[-_TRANSACTION_BYTES:], "little")
        else:
            transaction = record.transaction  # type: ignore[attr-defined]
        of = self._open.setdefault(transaction, _Open())
        # The digest needs the bytes: those of the block are gone with the next one.
        of.members.append((bytes(raw.data), record if isinstance(record, AddRecord) else None))
        of.is_cut |= self._is_gap
        of.gaps = self._gap_count()

    def _gap_count(self) -> int:
        return self.counts.gaps

    def _is_whole(self, of: _Open, members: int, digest: int) -> bool:
        """Whether a transaction counts (journal-format §3.3): whole, or cut by a missing copy."""
        found = len(of.members)
        if found == members and digest_members([data for data, _ in of.members]) == digest:
            return True
        is_cut = of.is_cut or self._is_gap or of.gaps != self._gap_count()
        return is_cut and found < members

    def _new(self, adds: Iterable[AddRecord]) -> Iterator[AddRecord]:
        """Yield those that were not given before."""
        for add in adds:
            is_new = [self._seen[place.queue_id].add(place.sequence) for place in add.places]
            if any(is_new):
                self.counts.messages += 1
                yield add
            else:
                self.counts.repeated += 1


_MEMBERS = frozenset({RecordType.ADD, RecordType.ACK, RecordType.DUPLICATE})
_TAKEN = _MEMBERS | {RecordType.COMMIT, RecordType.PREPARE, RecordType.ROLLBACK}


def _messages_in(of: _Open) -> int:
    return sum(add is not None for _, add in of.members)


def _damaged(path: Path, offset: int, found: str) -> CorruptRecord:
    return CorruptRecord(
        "a kept copy is damaged",
        where=f"{path}:{offset}",
        measured=found,
        allowed="valid blocks up to a seal",
        cure="take the copy out of the folder to replay the others",
    )
