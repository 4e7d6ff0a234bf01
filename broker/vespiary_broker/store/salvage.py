"""`vespiary journal recover`: what can be saved of a damaged journal, written to a new folder.

Owns: which records of a journal with holes are taken, and the account of what is not. The old
folder is read alone. The new journal holds live messages only, each under its old queue and number,
so that it means the same whatever the holes took: no acknowledgement or COMMIT is needed any more
to understand it. Called by the CLI; it blocks.

Rules: a block counts when its checksum holds, wherever it stands. A transaction counts when its
COMMIT is there, with the members that are left. Prepared branches are copied as they are. Records
of types that this version does not know are copied too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vespiary_broker.store.body_files import CopiedBodies
from vespiary_broker.store.builder import JournalBuilder, move_to_place
from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.exporting import STRUCTURAL_TYPES
from vespiary_broker.store.files import FileForm
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.scanning import Block, Hole, ScannedFolder, scan_file, scan_folder
from vespiary_broker.store.survey import SurveyedFile
from vespiary_codec.journal.block import HEADER_BYTES
from vespiary_codec.journal.description import transaction_of
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.file_header import (
    CHECKED_BYTES,
    FileHeader,
    FileState,
    JournalKind,
    decode_file_header,
    mend_file_header,
)
from vespiary_codec.journal.file_header import HEADER_BYTES as HEADER_END
from vespiary_codec.journal.record import (
    ADD,
    PLACE,
    START,
    TRANSACTION,
    CountRecord,
    PutRecord,
    QueuesRecord,
    QueueState,
    RawRecord,
    RecordFlag,
    RecordType,
    decode_add_layout,
    decode_record,
    encode_record,
    walk_records,
)
from vespiary_native.abc import BlockFacts, BlockVerifier
from vespiary_spec.errors import StorageError

WORK_FOLDER = "recover.unfinished"
_QUEUES_PER_RECORD = 2048
_NO_CONTENT = frozenset({"lost+found", "server.lock", "jms.lock"})
_OWN_PREFIX = ".vespiary-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageRules:
    """What is taken beyond what a healthy journal would hold.

    Attributes:
        includes_acknowledged: Messages that were acknowledged, also from files that were freed.
        includes_uncommitted: Members of transactions without COMMIT.
    """

    includes_acknowledged: bool = False
    includes_uncommitted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A piece of the journal that could not be read.

    Attributes:
        file: Name of the file.
        offset: Where it begins.
        end: Where the next good block begins, or the file's size.
        first_sequence: First block that is missing; 0 if it cannot be told.
        last_sequence: Last block that is missing; 0 if it cannot be told.
        what: What was found there.
    """

    file: str
    offset: int
    end: int
    first_sequence: int
    last_sequence: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageReport:
    """What was saved, and what was not.

    Attributes:
        folder: The old folder.
        target: The new folder.
        kind: Kind of the journal.
        files_read: Files that were read.
        blocks: Good blocks.
        records: Records written.
        live_messages: Messages saved by queue id.
        bodies: Bodies of large messages that were copied, and those that could not be.
        bindings: Keys saved.
        losses: What could not be read.
        uncommitted: Members of transactions without COMMIT, by transaction; taken only if asked.
        incomplete: Transactions with a COMMIT of which members are missing.
        prepared: Branches that are prepared; copied as they are.
        highest_queue_id: Highest queue id that any record names, 0 if none.
        left_in_pages: Messages that stand in page files alone, and were not saved.
    """

    folder: str
    target: str
    kind: str
    files_read: int
    blocks: int
    records: int
    live_messages: dict[int, int]
    bodies: CopiedBodies
    bindings: dict[str, bytes]
    losses: tuple[Loss, ...]
    uncommitted: dict[int, int]
    incomplete: tuple[int, ...]
    prepared: tuple[int, ...]
    highest_queue_id: int
    left_in_pages: int


def salvage_journal(
    folder: Path,
    form: FileForm,
    target: Path,
    *,
    disk: DiskLike,
    verify: BlockVerifier,
    file_size_bytes: int,
    rules: SalvageRules,
    complete: Callable[[dict[str, bytes], bool], dict[str, bytes]] = lambda _, __: {},
    bring_bodies: Callable[[LiveSet], CopiedBodies] = lambda _: CopiedBodies(),
) -> SalvageReport:
    """Save what can be saved of a journal into a new one.

    Args:
        folder: The old folder; nothing in it is changed.
        form: Names and kind of its files.
        target: The new folder, empty or missing.
        disk: The file system.
        verify: The walk over valid blocks.
        file_size_bytes: Size of the new files, unless the old ones are larger.
        rules: What is taken.
        complete: Given the values by key that were saved of a bindings journal, and whether
            anything was lost, returns values to add or to replace.
        bring_bodies: Given what is live, copies the bodies of large messages, durably.

    Raises:
        StorageError: The new folder is not empty.
        RecordTooLarge: A record does not fit into a new file.
        DiskFull: No room for the new files.
        NativeError: A call failed.

    Durability: on return the new journal survives a power cut.
    """
    _check_target(target, disk)
    salvage = _Salvage(folder, form, disk, verify, rules)
    salvage.read()
    work = target / WORK_FOLDER
    disk.make_folder(work)
    size = max([file_size_bytes, *(file.size_bytes for file in salvage.files)])
    builder = JournalBuilder(work, form, size, disk, journal_id=uuid.uuid4().bytes)
    live = salvage.live
    bindings = {**live.bindings, **complete(live.bindings, bool(salvage.losses))}
    try:
        for record in _all_records(salvage, form, bindings):
            builder.add(record)
        builder.finish()
    finally:
        builder.close()
    bodies = bring_bodies(live)  # before the messages that refer to them can be found
    move_to_place(work, target, form, disk)
    return SalvageReport(
        folder=str(folder),
        target=str(target),
        kind=form.kind.name,
        files_read=len(salvage.files),
        blocks=salvage.blocks,
        records=salvage.records,
        live_messages=live.live_messages,
        bodies=bodies,
        bindings=bindings,
        losses=tuple(salvage.losses),
        uncommitted=salvage.uncommitted,
        incomplete=tuple(live.incomplete),
        prepared=tuple(n for n, entry in live.transactions.items() if entry.is_prepared),
        highest_queue_id=max(live.tails, default=0),
        left_in_pages=live.beyond_reach,
    )


def _check_target(target: Path, disk: DiskLike) -> None:
    for name in disk.names(target):
        if name not in _NO_CONTENT and not name.startswith(_OWN_PREFIX):
            raise StorageError(
                "what is saved needs an empty or a new folder",
                where=str(target),
                measured=f"{name} is there",
                cure="give another folder, or remove this one if a recovery was interrupted",
            )


def _all_records(salvage: _Salvage, form: FileForm, bindings: dict[str, bytes]) -> Iterator[bytes]:
    if form.kind in (JournalKind.BINDINGS, JournalKind.JMS):
        for key, value in sorted(bindings.items()):
            salvage.records += 1
            yield encode_record(PutRecord(key, value))
    else:
        yield from salvage.message_records()


class _Salvage:
    """Two readings of the old folder: the first decides, the second hands out records."""

    def __init__(
        self,
        folder: Path,
        form: FileForm,
        disk: DiskLike,
        verify: BlockVerifier,
        rules: SalvageRules,
    ) -> None:
        self._form = form
        self._disk = disk
        self._verify = verify
        self._rules = rules
        # A message whose record is still here is saved from here: the page may be lost.
        self.live = LiveSet(
            counts_acknowledged=rules.includes_acknowledged,
            counts_incomplete=True,
            follows_pages=False,
        )
        self.losses: list[Loss] = []
        self.uncommitted: dict[int, int] = {}
        self._end: Loss | None = None
        self._tail: Loss | None = None
        self.blocks = 0
        self.records = 0
        self.files = self._choose(scan_folder(folder, form, disk))

    def _choose(self, found: ScannedFolder) -> list[SurveyedFile]:
        """Return the files to read by id; what can't be read at all is a loss."""
        mended = []
        for path, error in found.refused:
            file = self._mend(path)
            if file is not None:
                mended.append(file)
            self.losses.append(
                Loss(
                    file=path.name,
                    offset=0,
                    end=HEADER_END if file else 0,
                    first_sequence=0,
                    last_sequence=0,
                    what=f"the header, mended for reading: {error.what}"
                    if file
                    else f"all of the file: {error.what}",
                )
            )
        files: dict[int, SurveyedFile] = {}
        freed = [file for file in found.free if file.file_id]
        active = [*found.active, *mended]
        for file in (*(freed if self._rules.includes_acknowledged else []), *active):
            if file.file_id in files and file in active:
                other = files[file.file_id]
                if other in active:
                    self.losses.append(
                        Loss(
                            file=file.path.name,
                            offset=0,
                            end=0,
                            first_sequence=0,
                            last_sequence=0,
                            what=f"not read: {other.path.name} has the same file id",
                        )
                    )
                    continue
            files[file.file_id] = file
        return [files[file_id] for file_id in sorted(files)]

    def _mend(self, path: Path) -> SurveyedFile | None:
        """Return a file whose header has one damaged byte, if a block of it proves the guess."""
        handle = self._disk.open(path, is_direct=False, is_readonly=True)
        try:
            size = handle.size_bytes()
            sector = memoryview(bytearray(CHECKED_BYTES))
            count = handle.read_into(sector, 0)
        finally:
            handle.close()
        header = mended_header(sector[:count])
        if header is None or header.state is not FileState.ACTIVE:
            return None
        file = SurveyedFile(path, self._form.number(path.name) or 0, size, header)
        items = scan_file(file, self._disk, self._verify)
        is_proved = any(isinstance(item, Block) for item in items)
        return file if is_proved else None

    # --- first reading ----------------------------------------------------------------------------

    def read(self) -> None:
        """Read all blocks, find what is live, and what is lost."""
        last: BlockFacts | None = None
        for file in self.files:
            self.live.restore_file(file.file_id, file.salt, file.size_bytes)
            for item in scan_file(file, self._disk, self._verify, last):
                if isinstance(item, Hole):
                    self._lose(item, last)
                    continue
                last = item.facts
                self._take(item)
        self._lose_tail()
        for number, entry in list(self.live.transactions.items()):
            if not entry.is_prepared:
                self.uncommitted[number] = len(entry.members)
                if self._rules.includes_uncommitted:
                    self.live.commit(number)

    def _take(self, block: Block) -> None:
        facts = block.facts
        self._tail = None
        if self._end is not None:  # a file that has no seal, and yet the journal goes on
            self.losses.append(replace(self._end, last_sequence=facts.sequence - 1))
            self._end = None
        try:
            self.live.restore_block(block.file.file_id, facts.offset, block.data)
        except JournalFormatError as error:
            self.losses.append(
                Loss(
                    file=block.file.path.name,
                    offset=facts.offset,
                    end=facts.offset + facts.length,
                    first_sequence=facts.sequence,
                    last_sequence=facts.sequence,
                    what=f"the rest of a good block with a bad record: {error}",
                )
            )
        self.blocks += 1

    def _lose(self, hole: Hole, last: BlockFacts | None) -> None:
        """Note a hole; the end of a file that is not full is one only if blocks follow it."""
        loss = Loss(
            file=hole.file.path.name,
            offset=hole.offset,
            end=hole.end,
            first_sequence=last.sequence + 1 if last else int(hole.file.file_id == 1),
            last_sequence=hole.after.sequence - 1 if hole.after else 0,
            what=hole.found,
        )
        if hole.after is None:
            self._tail = self._tail or loss
        if hole.after is not None or hole.is_ours:
            self.losses.append(loss)
        elif hole.before is not None:
            self._end = loss

    def _lose_tail(self) -> None:
        """Note blocks behind the last good one that the header of some file says were durable."""
        witnessed = max((file.watermark for file in self.files), default=0)
        if self._tail is None or not 0 < self._tail.first_sequence <= witnessed:
            return
        if self._tail in self.losses:
            self.losses.remove(self._tail)
        self.losses.append(replace(self._tail, last_sequence=witnessed))

    # --- second reading ---------------------------------------------------------------------------

    def message_records(self) -> Iterator[bytes]:
        """Yield the records of the new journal."""
        for file in self.files:
            for item in scan_file(file, self._disk, self._verify):
                if isinstance(item, Block):
                    yield from self._block(item)
        states = [
            QueueState(queue_id, self.live.head(queue_id), tail)
            for queue_id, tail in self.live.tails.items()
        ]
        for start in range(0, len(states), _QUEUES_PER_RECORD):
            yield encode_record(QueuesRecord(tuple(states[start : start + _QUEUES_PER_RECORD])))

    def _block(self, block: Block) -> Iterator[bytes]:
        start = block.facts.offset + HEADER_BYTES
        try:
            for raw in walk_records(block.data[HEADER_BYTES:], block.facts.records, offset=start):
                record = self._record(block.file.file_id, raw)
                if record:
                    self.records += 1
                    yield record
        except JournalFormatError:
            return  # noted as a loss by the first reading

    def _record(self, file_id: int, raw: RawRecord) -> bytes:
        """Return what is written for a record; nothing if it is not needed any more."""
        number = transaction_of(raw)
        entry = self.live.transactions.get(number) if number else None
        if entry is not None:
            return bytes(raw.data) if entry.is_prepared else b""
        if number in self.live.rolled_back:
            return b""
        if raw.type == RecordType.ADD:
            return self._message(file_id, raw)
        if raw.type == RecordType.PREPARE:
            (transaction,) = TRANSACTION.unpack_from(raw.data, START.size)
            prepared = self.live.transactions.get(transaction)
            is_kept = prepared is not None and prepared.prepare == (file_id, bytes(raw.data))
            return bytes(raw.data) if is_kept else b""
        if raw.type == RecordType.COUNT:
            record = decode_record(raw)
            assert isinstance(record, CountRecord)
            is_needed = self.live.has(record.queue_id, record.sequence)
            return bytes(raw.data) if is_needed else b""
        if raw.type in STRUCTURAL_TYPES or raw.type in _DONE_TYPES:
            return b""
        return _without_transaction(raw) if number else bytes(raw.data)

    def _message(self, file_id: int, raw: RawRecord) -> bytes:
        """Return an ADD record with those of its places that are live, outside of transactions."""
        add = decode_add_layout(raw)
        places = [
            place
            for place in add.places
            if self.live.is_live(place.queue_id, place.sequence, file_id, raw.offset)
        ]
        if not places:
            return b""
        content = bytes(raw.data[add.properties_at :])
        flags = raw.flags & ~RecordFlag.TRANSACTIONAL
        fields = ADD.unpack_from(raw.data)
        length = ADD.size + PLACE.size * len(places) + len(content)
        start = ADD.pack(length, fields[1], flags, *fields[3:8], len(places))
        middle = b"".join(PLACE.pack(queue_id, 0, sequence) for queue_id, sequence in places)
        return start + middle + content


_DONE_TYPES = frozenset(
    {
        *(RecordType.ACK, RecordType.COMMIT, RecordType.ROLLBACK, RecordType.QUEUES),
        *(RecordType.PAGE, RecordType.PAGE_DONE),
    }
)
"""What they say is in the live set."""


def _without_transaction(raw: RawRecord) -> bytes:
    """Return a record that was a member of a committed transaction as one that stands alone."""
    data = bytes(raw.data[: -TRANSACTION.size])
    flags = raw.flags & ~RecordFlag.TRANSACTIONAL
    return START.pack(len(data), raw.type, flags, 0) + data[START.size :]


def mended_header(sector: memoryview) -> FileHeader | None:
    """Return what a header with one damaged byte said; None if it can't be told.

    Args:
        sector: The first 512 bytes of its file.
    """
    mended = mend_file_header(sector)
    if mended is None:
        return None
    try:
        return decode_file_header(mended)
    except JournalFormatError:
        return None  # the guess is no header, so more than a byte is damaged
