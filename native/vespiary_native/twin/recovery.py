"""Restored blocks become queues again (journal-format §3.3 and §4).

Owns the transactions that wait for their COMMIT. Never reads a file and never judges a block:
blocks come validated and in journal order. Called by the core.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import HEADER_BYTES, decode_block_header
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.page_record import decode_page_done, decode_paged
from vespiary_codec.journal.record import (
    START,
    TRANSACTION,
    AckRecord,
    AddLayout,
    CommitRecord,
    CountRecord,
    QueuesRecord,
    RawRecord,
    RecordFlag,
    RecordType,
    decode_ack,
    decode_add_layout,
    decode_record,
    walk_records,
)
from vespiary_native.twin.accounts import Accounts
from vespiary_native.twin.branches import BRANCH_DATA_BYTES_MAX, Branch, Branches, Member
from vespiary_native.twin.image import Image, JournalFile, Slab
from vespiary_native.twin.large import LargeMessages
from vespiary_native.twin.page_recovery import PageRecovery
from vespiary_native.twin.state import Message, Queue, place_bytes

_KEPT = (
    RecordType.COUNT,
    RecordType.COMMIT,
    RecordType.QUEUES,
    RecordType.PREPARE,
    RecordType.ROLLBACK,
)


@dataclass(slots=True)
class _Pending:
    """A transaction whose COMMIT has not come.

    Attributes:
        members: Its records with the files that they stand in, and the reference of a large body.
        digest: Checksum of the members so far.
        is_cut: Blocks are missing right before one of its members: a reclaimed file.
        gaps: Places without blocks that were met up to its last member.
        prepare: Its PREPARE record, and the file of that.
        has_other: Some are kept by Python (None in `members`), which is told of the COMMIT.
        is_good: Number and digest fit the PREPARE record, or members went with reclaimed files.
    """

    is_cut: bool = False
    gaps: int = 0
    prepare: PrepareRecord | None = None
    prepare_file: JournalFile | None = None
    is_good: bool = False
    is_whole: bool = False
    members: list[tuple[JournalFile, int, AddLayout | AckRecord | None, bytes]] = field(
        default_factory=list
    )
    digest: int = 0
    has_other: bool = False


class Recovery:
    """Applies records in journal order."""

    def __init__(self, image: Image, large: LargeMessages, accounts: Accounts) -> None:
        self._image = image
        self._accounts = accounts
        self._large = large
        self._pending: dict[int, _Pending] = {}
        self._sequence = 0
        self._is_after_gap = False
        self._gaps = 0
        self._pages = PageRecovery(image, large, accounts)

    def restore_block(
        self, queues: dict[int, Queue], file: JournalFile, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """Apply the records of one block (see `abc.Core.restore_block`)."""
        header = decode_block_header(block, offset=0)
        end = HEADER_BYTES + header.payload_bytes
        if end > len(block):
            raise JournalFormatError(
                "a block is cut off", offset=0, found=f"{len(block)} bytes", expected=end
            )
        if header.sequence != self._sequence + 1:
            self._is_after_gap = True
            self._gaps += 1
        self._sequence = header.sequence
        others = []
        payload = block[HEADER_BYTES:end]
        for raw in walk_records(payload, header.records, offset=HEADER_BYTES):
            if not self._apply(queues, file, offset + raw.offset, raw):
                others.append((raw.type, bytes(raw.data[START.size :])))
            self._is_after_gap = False
        return others

    def done(self, queues: dict[int, Queue], branches: Branches) -> int:
        """Keep prepared branches; drop transactions without a COMMIT and return how many."""
        dropped = 0
        for transaction, pending in self._pending.items():
            if pending.prepare is not None:
                branches.prepared[transaction] = self._prepared(queues, pending, pending.prepare)
            else:
                dropped += 1
        self._pending.clear()
        self._large.forget_done()  # the folder shows what ended before
        return dropped

    def _prepared(
        self, queues: dict[int, Queue], pending: _Pending, prepare: PrepareRecord
    ) -> Branch:
        """Hold the members of a prepared branch; those of unknown queues are missing."""
        branch = Branch(prepare.transaction, is_whole=pending.is_whole)
        branch.journal_id = prepare.transaction
        branch.records, branch.digest = prepare.members, prepare.digest
        branch.data = prepare.branch
        assert pending.prepare_file is not None
        branch.pin([pending.prepare_file])
        for file, offset, record, reference in pending.members:
            branch.pin([file])
            if record is None:
                continue
            if isinstance(record, AddLayout):
                self._add(queues, file, offset, record, reference)
                for queue_id, sequence in record.places:
                    is_known = queue_id in queues
                    if is_known:
                        queues[queue_id].reserved.add(sequence)
                    branch.members.append(
                        Member(queue_id, sequence, False, file, is_missing=not is_known)
                    )
                continue
            for sequence in _acknowledged(queues, record):
                queue = queues.get(record.queue_id)
                extent = queue.extents.holding(sequence) if queue is not None else None
                is_there = queue is not None and queue.is_free(sequence)
                if queue is not None and is_there:
                    queue.locked.add(sequence)
                    message_file = queue.entries[sequence][0].file
                    branch.pin([message_file] if message_file is not None else [])
                elif extent is not None and sequence not in extent.locked:
                    is_there = True
                    extent.locked.add(sequence)
                    branch.pin([extent.page])
                branch.members.append(
                    Member(record.queue_id, sequence, True, file, is_missing=not is_there)
                )
        return branch

    def _apply(
        self, queues: dict[int, Queue], file: JournalFile, offset: int, raw: RawRecord
    ) -> bool:
        """Apply one record; False if it is not for the core."""
        if raw.type == RecordType.ADD:
            add = decode_add_layout(raw)
            reference = _reference(raw, add)
            if add.transaction:
                self._member(add.transaction, file, offset, raw, add, reference)
            else:
                self._add(queues, file, offset, add, reference)
        elif raw.type == RecordType.ACK:
            ack = decode_ack(raw)
            if ack.transaction:
                self._member(ack.transaction, file, offset, raw, ack)
            else:
                self._acknowledge(queues, file, file, ack)
        elif raw.type in _KEPT:
            record = decode_record(raw)
            if isinstance(record, CountRecord):
                queue = queues.get(record.queue_id)
                if queue is not None:
                    self._pages.count(queue, record.sequence, record.deliveries, file)
                if queue is not None and record.sequence in queue.entries:
                    queue.restore_deliveries(record.sequence, record.deliveries)
                    _cancel(file, queue.entries[record.sequence][0])
            elif isinstance(record, CommitRecord):
                return not self._commit(queues, file, record)
            elif isinstance(record, PrepareRecord):
                self._prepare(file, record)
            elif isinstance(record, RollbackRecord):
                self._roll_back(file, record)
            elif isinstance(record, QueuesRecord):
                for queue_id, _, tail in record.queues:
                    if queue_id in queues:
                        queues[queue_id].tail = max(queues[queue_id].tail, tail)
        elif raw.type == RecordType.PAGE:
            self._pages.apply_paged(queues, file, decode_paged(raw.data, offset=raw.offset))
        elif raw.type == RecordType.PAGE_DONE:
            done = decode_page_done(raw.data, offset=raw.offset)
            self._pages.apply_done(queues, file, done.page_id)
        elif raw.type == RecordType.DUPLICATE:
            self._duplicate(file, offset, raw)
            return False
        else:
            return raw.type == RecordType.SEAL
        return True

    def _add(
        self,
        queues: dict[int, Queue],
        file: JournalFile,
        offset: int,
        add: AddLayout,
        reference: bytes,
    ) -> None:
        slab = file.slabs[offset >> self._image.slab_shift]
        record_at = offset % self._image.slab_bytes
        at = record_at + add.properties_at
        content_bytes = add.properties_bytes + add.body_bytes
        share_bytes = place_bytes(len(add.places), content_bytes)
        flags = (
            add.has_escapes * RecordFlag.ESCAPED.value
            | add.is_large * RecordFlag.LARGE.value
            | add.is_special * RecordFlag.SPECIAL.value
        )
        message = (
            slab, at, add.properties_bytes, add.body_bytes, flags, share_bytes, record_at
        )  # fmt: skip
        for queue_id, sequence in add.places:
            queue = queues.get(queue_id)
            if queue is None:
                continue  # the queue was deleted: the bindings decide
            queue.tail = max(queue.tail, sequence + 1)
            before = queue.entries.get(sequence)
            if before is not None:  # moved to a newer file: the later record counts
                # The old one stands until its file is freed: what ends the new one must not be gone
                # before.
                _cancel(file, before[0])
                self._forget(queue, before)
            queue.entries[sequence] = message
            queue.has_special = queue.has_special or add.is_special
            queue.live_bytes += content_bytes
            self._image.pin(slab, 1, share_bytes)
            self._accounts.enter(queue.account, message)
            if add.is_large:
                self._large.place(queue, sequence, reference)

    def _forget(self, queue: Queue, message: Message) -> None:
        queue.live_bytes -= message[2] + message[3]
        self._accounts.leave(queue.account, message)
        self._image.unpin(message[0], message[5])

    def _acknowledge(
        self, queues: dict[int, Queue], file: JournalFile, commit: JournalFile, ack: AckRecord
    ) -> None:
        queue = queues.get(ack.queue_id)
        if queue is None:
            return
        for first, number in ack.ranges:
            end = min(first + number, queue.tail)
            queue.tail = max(queue.tail, first + number)
            entries = queue.entries
            few = range(first, end) if number <= len(entries) else sorted(entries)
            for sequence in few:
                if not first <= sequence < end or sequence not in entries:
                    continue
                message = entries.pop(sequence)
                queue.deliveries.pop(sequence, None)
                _cancel(file, message[0])
                _cancel(commit, message[0])
                self._forget(queue, message)
                self._large.ended(queue, sequence, 0)
            self._pages.acknowledge(queue, first, end, (file, commit))

    # --- transactions -----------------------------------------------------------------------------
    def _member(
        self,
        transaction: int,
        file: JournalFile,
        offset: int,
        raw: RawRecord,
        record: AddLayout | AckRecord | None,
        reference: bytes = b"",
    ) -> None:
        pending = self._pending.get(transaction)
        if pending is None:
            pending = self._pending[transaction] = _Pending()
        pending.is_cut |= self._is_after_gap
        pending.gaps = self._gaps
        pending.digest = crc32c(raw.data, pending.digest)
        pending.members.append((file, offset, record, reference))

    def _duplicate(self, file: JournalFile, offset: int, raw: RawRecord) -> None:
        """Count a record that Python keeps as a member, if it is one."""
        is_member = bool(raw.flags & RecordFlag.TRANSACTIONAL)
        if len(raw.data) < 16 + (TRANSACTION.size if is_member else 0):
            raise JournalFormatError(
                "a DUPLICATE record is cut off",
                offset=raw.offset,
                found=f"{len(raw.data)} bytes",
                expected="16 and a transaction's id",
            )
        if is_member:
            (transaction,) = TRANSACTION.unpack_from(raw.data, len(raw.data) - TRANSACTION.size)
            self._member(transaction, file, offset, raw, None)
            self._pending[transaction].has_other = True

    def _commit(self, queues: dict[int, Queue], file: JournalFile, commit: CommitRecord) -> bool:
        """Apply a transaction if its COMMIT is valid; return whether Python is told of it."""
        pending = self._pending.get(commit.transaction)
        if pending is None:
            return False  # of volatile messages, or all its members were reclaimed
        if pending.prepare is not None:
            if not pending.is_good:
                return False
        else:
            # A file goes only when nothing in it is live and the COMMIT is durable. So members that
            # are missing with blocks before one of them, or before the COMMIT, were committed and
            # are done. A PREPARE may be among what went.
            found = len(pending.members)
            is_whole = found == commit.members and pending.digest == commit.digest
            is_cut = pending.is_cut or self._gaps != pending.gaps
            if not is_whole and not (is_cut and found < commit.members):
                return False
        if pending.prepare_file is not None and pending.prepare_file is not file:
            file.cancels.add(pending.prepare_file)
        del self._pending[commit.transaction]
        for member_file, offset, record, reference in pending.members:
            if isinstance(record, AddLayout):
                self._add(queues, member_file, offset, record, reference)
            elif record is not None:
                self._acknowledge(queues, member_file, file, record)
            if member_file is not file:
                file.cancels.add(member_file)
        return pending.has_other

    def _prepare(self, file: JournalFile, prepare: PrepareRecord) -> None:
        pending = self._pending.setdefault(prepare.transaction, _Pending())
        if pending.prepare is not None:
            return
        if len(prepare.branch) > BRANCH_DATA_BYTES_MAX:
            raise JournalFormatError(
                "a PREPARE record is too long",
                offset=0,
                found=f"{len(prepare.branch)} bytes of name",
                expected=f"at most {BRANCH_DATA_BYTES_MAX}",
            )
        found = len(pending.members)
        is_cut = pending.is_cut or self._is_after_gap
        pending.prepare, pending.prepare_file = prepare, file
        pending.is_whole = found == prepare.members and pending.digest == prepare.digest
        pending.is_good = pending.is_whole or (is_cut and found < prepare.members)

    def _roll_back(self, file: JournalFile, rollback: RollbackRecord) -> None:
        pending = self._pending.pop(rollback.transaction, None)
        if pending is None:
            return
        files = {member_file for member_file, _, _, _ in pending.members}
        if pending.prepare_file is not None:
            files.add(pending.prepare_file)
        file.cancels |= files - {file}


def _acknowledged(queues: dict[int, Queue], ack: AckRecord) -> list[int]:
    """Return the sequences of an ACK record: one is there or not, of many those that are there."""
    queue = queues.get(ack.queue_id)
    sequences: list[int] = []
    for first, count in ack.ranges:
        if count == 1:
            sequences.append(first)
        elif queue is not None:
            sequences += sorted(s for s in queue.entries if first <= s < first + count)
    return sequences


def _reference(raw: RawRecord, add: AddLayout) -> bytes:
    """Return the reference of a large message; nothing for others."""
    if not add.is_large:
        return b""
    at = add.properties_at + add.properties_bytes
    reference = bytes(raw.data[at:])
    decode_large_reference(reference, offset=raw.offset + at)
    return reference


def _cancel(file: JournalFile, slab: Slab) -> None:
    if slab.file is not None and slab.file is not file:
        file.cancels.add(slab.file)
