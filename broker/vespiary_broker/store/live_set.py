"""Which messages of a journal are live, where they stand, and what keeps each file: for tools.

Owns: a sink of the recovery that applies records as the core does (journal-format §3 and §4), but
keeps places and sizes and no content. Must never read a file. The core is what a broker believes;
the tests hold the two against each other on crash images. Called by `reader`, `verifying` and
`salvage`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from vespiary_broker.store.live_pages import LivePages
from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import HEADER_BYTES, align4k
from vespiary_codec.journal.description import transaction_of
from vespiary_codec.journal.large_reference import LargeReference, decode_large_reference
from vespiary_codec.journal.page_record import PageDoneRecord, PagedRecord
from vespiary_codec.journal.record import (
    COMMIT,
    AckRecord,
    AddLayout,
    PutRecord,
    QueuesRecord,
    RawRecord,
    RecordType,
    RemoveRecord,
    decode_ack,
    decode_add_layout,
    decode_record,
    walk_records,
)

_OFFSET_BITS = 40
_BYTES_BITS = 40
_TIME_BITS = 48


class LivePlace(NamedTuple):
    """Where a live message stands.

    Attributes:
        queue_id: Its queue.
        sequence: Its number there.
        file_id: The file.
        offset: Of its ADD record in the file.
        arrival_ms: Time of arrival, milliseconds since 1970.
        size_bytes: Its share of the record: all of it divided by the places it was given.
    """

    queue_id: int
    sequence: int
    file_id: int
    offset: int
    arrival_ms: int
    size_bytes: int


class LiveBody(NamedTuple):
    """A body in a file of its own that a message refers to.

    Attributes:
        reference: Which file, its size and checksum.
        queue_id: A queue of the message.
        sequence: Its number there; 0 in a prepared branch, where it has none yet.
    """

    reference: LargeReference
    queue_id: int
    sequence: int


@dataclass(slots=True)
class FileCount:
    """What was seen in one file.

    Attributes:
        blocks: Blocks that count.
        records: Records in them.
        used_bytes: Bytes of them.
        first_sequence: Of the first, 0 if none.
        last_sequence: Of the last, 0 if none.
        last_time_ms: When the last was closed, milliseconds since 1970.
        is_sealed: The last record is a seal.
        live_places: Live messages in it, counted once for each queue.
        live_bytes: Their bytes.
        pages: Pages that need the file: it holds their latest PAGE record, or acknowledgements of
            some of their messages.
        cancels: Files whose messages its records end, or copies replace: they have to go before it.
    """

    blocks: int = 0
    records: int = 0
    used_bytes: int = 0
    first_sequence: int = 0
    last_sequence: int = 0
    last_time_ms: int = 0
    is_sealed: bool = False
    live_places: int = 0
    live_bytes: int = 0
    pages: set[int] = field(default_factory=set)
    cancels: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Transaction:
    """A transaction that has no COMMIT yet.

    Attributes:
        members: Its records and the files that they stand in.
        digest: Checksum of the members so far.
        is_cut: Blocks are missing right before one of them: a reclaimed file.
        gaps: Gaps seen when the last of them came.
        prepare: The PREPARE record and its file: in doubt until COMMIT or ROLLBACK; else None.
        is_good: The members fit the PREPARE record.
    """

    members: list[tuple[int, int, AddLayout | AckRecord | None]] = field(default_factory=list)
    digest: int = 0
    is_cut: bool = False
    gaps: int = 0
    prepare: tuple[int, bytes] | None = None
    is_good: bool = False

    @property
    def is_prepared(self) -> bool:
        """Whether it is a branch that is prepared."""
        return self.prepare is not None


@dataclass(slots=True)
class _Queue:
    """Packed places by sequence, and the next sequence."""

    entries: dict[int, int] = field(default_factory=dict)
    tail: int = 1


class LiveSet:
    """Applies records in journal order. Owner: the thread that reads; used once.

    Attributes:
        types: Records by type.
        files: Counts by file id.
        bindings: Live values by key, of a bindings or JMS journal.
        former_bindings: Last values of keys that were removed, as far as their records are there.
        transactions: Those without a COMMIT that counts, by id.
        incomplete: Transactions that counted with fewer members than their COMMIT names.
        rolled_back: Transactions that were rolled back.
        pages: What stands in page files.
    """

    def __init__(
        self,
        *,
        counts_acknowledged: bool = False,
        counts_incomplete: bool = False,
        follows_pages: bool = True,
    ) -> None:
        """Begin with nothing.

        Args:
            counts_acknowledged: Take no notice of acknowledgements: what was ever sent is live.
            counts_incomplete: Let a COMMIT count with any part of its members: the others were
                lost, and it could not be there without them.
            follows_pages: A message that was moved into a page is no longer live where it stood;
                else it is, as long as its record is there.
        """
        self.types: Counter[int] = Counter()
        self.files: dict[int, FileCount] = {}
        self.bindings: dict[str, bytes] = {}
        self.former_bindings: dict[str, bytes] = {}
        self.transactions: dict[int, Transaction] = {}
        self.incomplete: list[int] = []
        self.rolled_back: set[int] = set()
        self.pages = LivePages()
        self._follows_pages = follows_pages
        self._ignores_acknowledgements = counts_acknowledged
        self._counts_incomplete = counts_incomplete
        self._queues: dict[int, _Queue] = {}
        self._references: dict[tuple[int, int], LargeReference] = {}  # by file id and offset
        self._page_files: dict[int, int] = {}  # of the latest PAGE record, by page
        self._page_users: dict[int, set[int]] = {}  # files that a page keeps
        self._sequence = 0
        self._gaps = 0
        self._is_after_gap = False

    # --- the sink ---------------------------------------------------------------------------------

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:  # noqa: ARG002
        """Begin to count a file."""
        self.files[file_id] = FileCount()

    def restore_block(
        self, file_id: int, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """Apply the records of one valid block."""
        (sequence,) = struct.unpack_from("<Q", block, 8)
        (records,) = struct.unpack_from("<I", block, 36)
        (time_ms,) = struct.unpack_from("<Q", block, 48)
        file = self.files[file_id]
        file.blocks += 1
        file.records += records
        file.used_bytes += align4k(len(block))
        file.first_sequence = file.first_sequence or sequence
        file.last_sequence, file.last_time_ms = sequence, time_ms
        if sequence != self._sequence + 1:
            self._gaps += 1
            self._is_after_gap = True
        self._sequence = sequence
        start = offset + HEADER_BYTES
        for raw in walk_records(block[HEADER_BYTES:], records, offset=start):
            self.types[raw.type] += 1
            file.is_sealed = raw.type == RecordType.SEAL
            self._apply(file_id, raw)
            self._is_after_gap = False
        return []

    def _apply(self, file_id: int, raw: RawRecord) -> None:
        if number := transaction_of(raw):
            self._member(number, file_id, raw)
        elif raw.type == RecordType.ADD:
            add = decode_add_layout(raw)
            self._note_body(file_id, raw, add)
            self._add(file_id, raw.offset, add)
        elif raw.type == RecordType.ACK:
            self._acknowledge(file_id, file_id, decode_ack(raw))
        elif raw.type in (RecordType.COMMIT, RecordType.PREPARE, RecordType.ROLLBACK):
            self._end(file_id, raw)
        else:
            self._apply_other(file_id, decode_record(raw))

    def _apply_other(self, file_id: int, record: object) -> None:
        if isinstance(record, QueuesRecord):
            for queue_id, _, tail in record.queues:
                queue = self._queues.setdefault(queue_id, _Queue())
                queue.tail = max(queue.tail, tail)
        elif isinstance(record, PagedRecord):
            self._move_to_page(file_id, record)
        elif isinstance(record, PageDoneRecord):
            self.pages.remove(record.page_id)
            self._forget_page(file_id, record.page_id)
        elif isinstance(record, PutRecord):
            self.bindings[record.key] = record.value
        elif isinstance(record, RemoveRecord) and record.key in self.bindings:
            self.former_bindings[record.key] = self.bindings.pop(record.key)

    # --- messages ---------------------------------------------------------------------------------

    def _add(self, file_id: int, offset: int, add: AddLayout) -> None:
        length = add.properties_at + add.properties_bytes + add.body_bytes
        share = length // len(add.places)
        packed = (file_id << _TIME_BITS | add.arrival_ms & (1 << _TIME_BITS) - 1) << _OFFSET_BITS
        packed = (packed | offset) << _BYTES_BITS | share
        for queue_id, sequence in add.places:
            queue = self._queues.setdefault(queue_id, _Queue())
            queue.tail = max(queue.tail, sequence + 1)
            before = queue.entries.get(sequence)
            if before is not None:  # moved to a newer file: the later record counts
                self.files[file_id].cancels |= {self._forget(before)} - {file_id}
            queue.entries[sequence] = packed
            file = self.files[file_id]
            file.live_places += 1
            file.live_bytes += share

    def _forget_page(self, file_id: int, page_id: int) -> None:
        """Note that a record in a file replaces all earlier records about a page."""
        for user in self._page_users.pop(page_id, ()):
            self.files[user].pages.discard(page_id)
        before = self._page_files.pop(page_id, file_id)
        self.files[file_id].cancels |= {before} - {file_id}

    def _move_to_page(self, file_id: int, record: PagedRecord) -> None:
        self.pages.put(record)
        self._forget_page(file_id, record.page_id)
        self._page_files[record.page_id] = file_id
        self._page_users[record.page_id] = {file_id}
        self.files[file_id].pages.add(record.page_id)
        for paged in record.queues:
            queue = self._queues.setdefault(paged.queue_id, _Queue())
            queue.tail = max(queue.tail, paged.sequences[-1] + 1)
            for sequence in paged.sequences if self._follows_pages else ():
                packed = queue.entries.pop(sequence, None)
                if packed is not None:
                    self.files[file_id].cancels |= {self._forget(packed)} - {file_id}

    def _note_body(self, file_id: int, raw: RawRecord, add: AddLayout) -> None:
        if add.is_large:
            body = raw.data[add.properties_at + add.properties_bytes :]
            reference = decode_large_reference(body[: add.body_bytes], offset=raw.offset)
            self._references[file_id, raw.offset] = reference

    def _forget(self, packed: int) -> int:
        """Take a place out of its file's counts; return the file's id."""
        file_id = packed >> _TIME_BITS + _OFFSET_BITS + _BYTES_BITS
        file = self.files[file_id]
        file.live_places -= 1
        file.live_bytes -= packed & (1 << _BYTES_BITS) - 1
        return file_id

    def _acknowledge(self, file_id: int, commit_id: int, ack: AckRecord) -> None:
        queue = self._queues.setdefault(ack.queue_id, _Queue())
        for first, number in ack.ranges:
            queue.tail = max(queue.tail, first + number)
            if self._ignores_acknowledgements:
                continue
            for page_id in self.pages.acknowledge(ack.queue_id, first, number):
                for user in {file_id, commit_id}:
                    self._page_users.setdefault(page_id, set()).add(user)
                    self.files[user].pages.add(page_id)
            entries = queue.entries
            end = first + number
            for sequence in range(first, end) if number <= len(entries) else sorted(entries):
                if not first <= sequence < end or sequence not in entries:
                    continue
                owner = self._forget(entries.pop(sequence))
                for other in {file_id, commit_id} - {owner}:
                    self.files[other].cancels.add(owner)

    # --- transactions -----------------------------------------------------------------------------

    def _member(self, number: int, file_id: int, raw: RawRecord) -> None:
        entry = self.transactions.setdefault(number, Transaction())
        entry.is_cut = entry.is_cut or self._is_after_gap
        entry.gaps = self._gaps
        entry.digest = crc32c(raw.data, entry.digest)
        record: AddLayout | AckRecord | None = None
        if raw.type == RecordType.ADD:
            record = decode_add_layout(raw)
            self._note_body(file_id, raw, record)
        elif raw.type == RecordType.ACK:
            record = decode_ack(raw)
        entry.members.append((file_id, raw.offset, record))

    def _end(self, file_id: int, raw: RawRecord) -> None:
        """Apply a COMMIT, PREPARE or ROLLBACK: all three name number and digest of the members."""
        _, _, _, _, number, members, digest = COMMIT.unpack_from(raw.data)
        if raw.type == RecordType.PREPARE:
            self._prepare(file_id, raw, number, members, digest)
            return
        entry = self.transactions.get(number)
        if entry is None:
            return  # a transaction of volatile messages, or all its members were reclaimed
        if raw.type == RecordType.ROLLBACK:
            files = {member[0] for member in entry.members}
            files |= {entry.prepare[0]} if entry.prepare else set()
            self.files[file_id].cancels |= files - {file_id}
            del self.transactions[number]
            self.rolled_back.add(number)
            return
        found = len(entry.members)
        is_whole = (found, entry.digest) == (members, digest)
        is_cut = entry.is_cut or self._gaps != entry.gaps
        is_cut = is_cut or self._counts_incomplete
        is_good = is_whole or (is_cut and found < members)
        if entry.is_good or (is_good and not (entry.prepare and not self._counts_incomplete)):
            if not is_whole:
                self.incomplete.append(number)
            self.commit(number, file_id)

    def _prepare(
        self, file_id: int, raw: RawRecord, number: int, members: int, digest: int
    ) -> None:
        entry = self.transactions.setdefault(number, Transaction())
        if entry.prepare is not None:
            return
        found = len(entry.members)
        is_cut = entry.is_cut or self._is_after_gap
        entry.prepare = (file_id, bytes(raw.data))
        entry.is_good = (found, entry.digest) == (members, digest) or (is_cut and found < members)

    def commit(self, number: int, file_id: int = 0) -> None:
        """Let the members of a transaction count.

        Args:
            number: Its id.
            file_id: The file of its COMMIT; 0 if there is none.
        """
        entry = self.transactions.pop(number)
        if file_id and entry.prepare and entry.prepare[0] != file_id:
            self.files[file_id].cancels.add(entry.prepare[0])
        for member_file, offset, record in entry.members:
            if isinstance(record, AddLayout):
                self._add(member_file, offset, record)
            elif record is not None:
                self._acknowledge(member_file, file_id or member_file, record)
            if file_id and member_file != file_id:
                self.files[file_id].cancels.add(member_file)

    # --- what came of it --------------------------------------------------------------------------

    @property
    def live_messages(self) -> dict[int, int]:
        """Live messages in the journal by queue id, queues without any left out."""
        counts = ((number, len(queue.entries)) for number, queue in sorted(self._queues.items()))
        return {number: count for number, count in counts if count}

    @property
    def tails(self) -> dict[int, int]:
        """Next sequence by queue id, of all queues that any record names."""
        return {number: queue.tail for number, queue in sorted(self._queues.items())}

    @property
    def voided_transactions(self) -> int:
        """Transactions without COMMIT or PREPARE, or with one that does not fit."""
        return sum(not entry.is_prepared for entry in self.transactions.values())

    def head(self, queue_id: int) -> int:
        """Return the oldest live sequence of a queue, or its next one if none is live."""
        queue = self._queues[queue_id]
        paged = self.pages.head(queue_id) if self._follows_pages else None
        return min(min(queue.entries, default=queue.tail), queue.tail if paged is None else paged)

    def has(self, queue_id: int, sequence: int) -> bool:
        """Whether a message is live, in the journal or in a page."""
        queue = self._queues.get(queue_id)
        if queue is not None and sequence in queue.entries:
            return True
        return self._follows_pages and self.pages.has(queue_id, sequence)

    @property
    def beyond_reach(self) -> int:
        """Live messages of which the page alone is left, and no record in the journal."""
        queues = self._queues
        return sum(s not in queues[queue_id].entries for queue_id, s in self.pages.sequences())

    def is_live(self, queue_id: int, sequence: int, file_id: int, offset: int) -> bool:
        """Whether this record holds that message: the last one that does, and not ended."""
        queue = self._queues.get(queue_id)
        packed = queue.entries.get(sequence) if queue else None
        if packed is None:
            return False
        place = _unpacked(queue_id, sequence, packed)
        return (place.file_id, place.offset) == (file_id, offset)

    def bodies(self, queue_ids: Container[int] | None = None) -> list[LiveBody]:
        """Return the bodies in files that are needed, by live messages and prepared branches.

        Args:
            queue_ids: Queues that exist; messages of others are void. None: all do.
        """
        found: dict[int, LiveBody] = {}
        for place in self.places() if self._references else ():
            reference = self._references.get((place.file_id, place.offset))
            if reference and (queue_ids is None or place.queue_id in queue_ids):
                body = LiveBody(reference, place.queue_id, place.sequence)
                found.setdefault(reference.large_id, body)
        for large, queue_id, sequence in self.pages.bodies() if self._follows_pages else ():
            if queue_ids is None or queue_id in queue_ids:
                found.setdefault(large.large_id, LiveBody(large, queue_id, sequence))
        for entry in self.transactions.values():
            for file_id, offset, record in entry.members if entry.is_prepared else ():
                reference = self._references.get((file_id, offset))
                if reference and isinstance(record, AddLayout):
                    of = [p for p in record.places if queue_ids is None or p.queue_id in queue_ids]
                    if of:
                        found.setdefault(reference.large_id, LiveBody(reference, *of[0]))
        return [found[large_id] for large_id in sorted(found)]

    def places(self) -> Iterator[LivePlace]:
        """Yield all live places, by queue, in no order within it."""
        for queue_id, queue in sorted(self._queues.items()):
            for sequence, packed in queue.entries.items():
                yield _unpacked(queue_id, sequence, packed)


def _unpacked(queue_id: int, sequence: int, packed: int) -> LivePlace:
    size = packed & (1 << _BYTES_BITS) - 1
    packed >>= _BYTES_BITS
    offset = packed & (1 << _OFFSET_BITS) - 1
    packed >>= _OFFSET_BITS
    arrival = packed & (1 << _TIME_BITS) - 1
    return LivePlace(queue_id, sequence, packed >> _TIME_BITS, offset, arrival, size)
