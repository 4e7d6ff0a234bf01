"""Prepared branches: what a transaction holds between PREPARE and its COMMIT or ROLLBACK.

Owns the members of each branch, and the files that must stay for it. Added messages have their
places and are not deliverable; acknowledged ones are locked: nobody gets them. Never decides an
outcome. Called by the core, by `staging` while members are staged, and by `recovery`.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from vespiary_codec.journal.branch import END, PrepareRecord, RollbackRecord
from vespiary_codec.journal.record import COUNT, CommitRecord, encode_record
from vespiary_native.abc import BranchFacts, BranchMember
from vespiary_native.twin.image import JournalFile
from vespiary_native.twin.state import Message, Note, Queue

if TYPE_CHECKING:
    from vespiary_native.twin.staging import Staging

BRANCH_DATA_BYTES_MAX: Final = 4096
COMMITTED: Final = 1
ROLLED_BACK: Final = 2
_U32: Final = struct.Struct("<I")


@dataclass(eq=False, slots=True)
class Member:
    """One place of a branch, as it stands in a queue, and the file of its record."""

    queue_id: int
    sequence: int
    is_acknowledgement: bool
    file: JournalFile | None
    is_missing: bool = False


@dataclass(eq=False, slots=True)
class Branch:
    """A branch, from its first member on.

    Attributes:
        transaction: Its id.
        journal_id: Its id in its records: those of a copy have another.
        block: Block of its PREPARE, then of the record that ends it.
        records: Number of its member records.
        digest: Their digest.
        data: What its PREPARE record ends in.
        outcome: 0, `COMMITTED` or `ROLLED_BACK`: staged, and not durable yet.
        is_whole: All members were found when it was restored.
        members: Its places, in the order of the journal.
        pins: Files that must stay until its end is durable.
    """

    transaction: int
    journal_id: int = 0
    block: int = 0
    records: int = 0
    digest: int = 0
    data: bytes = b""
    outcome: int = 0
    is_whole: bool = True
    members: list[Member] = field(default_factory=list)
    pins: set[JournalFile] = field(default_factory=set)

    def pin(self, files: Iterable[JournalFile]) -> None:
        """Keep files until the branch's end is durable."""
        for file in files:
            if file not in self.pins:
                self.pins.add(file)
                file.live += 1
                file.pins += 1

    def unpin_files(self) -> None:
        """Let go of the files; pages with messages that the branch acknowledges stay."""
        for file in [file for file in self.pins if not file.is_page]:
            self.pins.discard(file)
            file.live -= 1
            file.pins -= 1

    def facts(self) -> BranchFacts:
        """Return what the engine wants to know of it."""
        return BranchFacts(
            transaction=self.transaction,
            block=self.block,
            records=self.records,
            places=len(self.members),
            missing=sum(member.is_missing for member in self.members),
            is_whole=self.is_whole,
            outcome=self.outcome,
        )


class Branches:
    """The prepared branches of a core, in the order in which they were prepared."""

    def __init__(self, queues: dict[int, Queue]) -> None:
        self._queues = queues
        self.prepared: dict[int, Branch] = {}
        self._ending: list[Branch] = []

    @property
    def is_ending(self) -> bool:
        """Whether the outcome of a branch is staged and not durable."""
        return bool(self._ending)

    # --- while it is staged -----------------------------------------------------------------------
    def prepare(self, staging: Staging, transaction: int, data: bytes) -> int:
        """End the staging of a branch (see `abc.Core.prepare`)."""
        branch = staging.branch
        if branch is None or transaction != branch.transaction:
            raise ValueError(f"no branch {transaction} is being staged")
        if len(data) > BRANCH_DATA_BYTES_MAX:
            raise ValueError(
                f"a branch's name has {len(data)} bytes:"
                f" at most {BRANCH_DATA_BYTES_MAX} are allowed"
            )
        members, digest = staging.members_so_far
        staging.blocks.append(encode_record(PrepareRecord(transaction, members, digest, data)))
        own = staging.blocks.slab.file
        assert own is not None
        branch.pin([own])
        branch.journal_id = transaction
        branch.records, branch.digest, branch.data = members, digest, bytes(data)
        branch.block = staging.blocks.sequence
        self.prepared[transaction] = branch
        branch.pin(staging.end_staging())
        return branch.block

    # --- copying it to the end of the journal -----------------------------------------------------
    def copy(self, staging: Staging, transaction: int, journal_id: int) -> tuple[int, int] | None:
        """Stage copies of a branch's records (see `abc.Core.branch_copy`).

        Durability: the copies count, and the records before them are void, from one block on.
        """
        branch = self.prepared.get(transaction)
        if (
            branch is None
            or not branch.is_whole
            or branch.outcome
            or staging.transaction
            or branch.block > staging.image.durable_sequence
            or any(member.is_missing for member in branch.members)
        ):
            raise ValueError(f"branch {transaction} cannot be copied")
        groups = [*self._grouped(branch.members)]
        records: list[bytes] = []
        for _, message in groups:
            if message is not None and message[0].view is None:
                file = message[0].file
                assert file is not None
                return file.file_id, message[0].index
            records.append(_record_of(message) if message is not None else b"")
            if len(records[-1]) > staging.record_bytes_max:
                raise ValueError(f"a message of branch {transaction} is too large to be copied")
        size_bytes = sum(len(record) + 7 & ~7 for record in records) + len(branch.data)
        staging.begin(journal_id, size_bytes, 3 * len(branch.members) + 1, is_branch=False)
        copies: list[tuple[list[Member], Message]] = []
        # No other record may stand between the members and the PREPARE: recovery accepts
        # missing members as reclaimed only if blocks are missing right before those that are left.
        for (members, message), record in zip(groups, records, strict=True):
            if members[0].is_acknowledgement and message is not None:
                self._copy_acknowledged(staging, members[0], message, record)
        for (members, message), record in zip(groups, records, strict=True):
            (first, *_) = members
            if not first.is_acknowledgement and message is not None:
                copies.append((members, self._copy_added(staging, members, message, record)))
            elif first.is_acknowledgement and first.file is not None:
                first.file = staging.copy_acknowledgement(first.queue_id, first.sequence)
        self._end_copies(staging, branch, copies)
        return None

    def _grouped(self, members: list[Member]) -> Iterator[tuple[list[Member], Message | None]]:
        """Yield groups of members, each with the message to copy, or None.

        Members that one ADD record has added form a group; every other member is one by itself.
        Messages in memory only, or in pages, are not copied.
        """
        group: list[Member] = []
        group_message: Message | None = None
        for member in members:
            message = self._journalled_message(member)
            is_shared = (
                group_message is not None
                and message is not None
                and not member.is_acknowledgement
                and not group[-1].is_acknowledgement
                and (message[0], message[6]) == (group_message[0], group_message[6])
            )
            if group and not is_shared:
                yield group, group_message
                group = []
            group.append(member)
            group_message = message
        if group:
            yield group, group_message

    def _journalled_message(self, member: Member) -> Message | None:
        queue = self._queues.get(member.queue_id)
        if queue is None:
            return None
        held = queue.locked if member.is_acknowledgement else queue.reserved
        message = queue.entries.get(member.sequence) if member.sequence in held else None
        file = message[0].file if message is not None else None
        return message if file is not None and not file.is_page else None

    def _copy_added(
        self, staging: Staging, members: list[Member], message: Message, record: bytes
    ) -> Message:
        """Stage the ADD record of members; return where the message is, with its share."""
        places = [(member.queue_id, member.sequence) for member in members]
        return staging.copy_add(record, places, message, is_member=True)

    def _copy_acknowledged(
        self, staging: Staging, member: Member, message: Message, record: bytes
    ) -> None:
        """Stage a copy of an acknowledged message; its acknowledgement is staged again later.

        The file of the acknowledgement depends on the file of the message. If that were the later
        one, the two could depend on each other, and neither would ever be freed.
        """
        queue = self._queues[member.queue_id]
        before = message[0].file
        deliveries = staging.counting.journalled(queue, member.sequence)
        is_counted = bool(queue.is_durable and deliveries)
        if is_counted:
            with contextlib.suppress(ValueError):
                staging.blocks.reserve(len(record) + 8 + COUNT.size)
        place = (member.queue_id, member.sequence)
        copy = staging.copy_add(record, [place], message, is_member=False)
        own = copy[0].file
        assert own is not None
        if before is not None and before is not own:
            own.cancels.add(before)
        staging.point(queue, member.sequence, copy)
        if is_counted:
            staging.counting.record(queue, member.sequence, deliveries, own)

    def _end_copies(
        self, staging: Staging, branch: Branch, copies: list[tuple[list[Member], Message]]
    ) -> None:
        """Prepare the copies and roll back the members before them, in one block."""
        blocks = staging.blocks
        members, digest = staging.members_so_far
        prepare = encode_record(PrepareRecord(staging.transaction, members, digest, branch.data))
        rollback = RollbackRecord(branch.journal_id, branch.records, branch.digest)
        blocks.reserve((len(prepare) + 7 & ~7) + END.size)
        blocks.append(prepare)
        blocks.append(encode_record(rollback))
        blocks.mark_urgent()
        own = blocks.slab.file
        assert own is not None
        branch.journal_id, branch.records, branch.digest = staging.transaction, members, digest
        own.cancels |= branch.pins - {own}
        branch.unpin_files()
        files = staging.abandon()
        own.cancels |= files - {own}
        branch.pin([own, *files])
        for group, copy in copies:
            for member in group:
                staging.point(self._queues[member.queue_id], member.sequence, copy)
                member.file = copy[0].file

    # --- its end ----------------------------------------------------------------------------------
    def resolve(self, staging: Staging, transaction: int, *, is_commit: bool) -> int:
        """Stage the end of a branch (see `abc.Core.resolve`)."""
        branch = self.prepared.get(transaction)
        is_open = branch is None or branch.outcome or staging.transaction
        if branch is None or is_open or branch.block > staging.image.durable_sequence:
            raise ValueError(f"branch {transaction} is not prepared durably, or is ending already")
        kind = CommitRecord if is_commit else RollbackRecord
        blocks = staging.blocks
        blocks.append(encode_record(kind(branch.journal_id, branch.records, branch.digest)))
        blocks.mark_urgent()
        own = blocks.slab.file
        assert own is not None
        branch.block = blocks.sequence
        branch.outcome = COMMITTED if is_commit else ROLLED_BACK
        own.cancels |= branch.pins - {own}
        self._ending.append(branch)
        for member in branch.members:
            found = self._locked(member)
            if found is None:
                continue
            queue, message_file = found
            if not is_commit:
                staging.counting.count_delivery(queue, member.sequence)
            elif message_file is not None and member.file is not None:
                # Its acknowledgement must stay as long as the message, and so must the COMMIT.
                for file in (member.file, own):
                    if file is not message_file:
                        file.cancels.add(message_file)
        return branch.block

    def _locked(self, member: Member) -> tuple[Queue, JournalFile | None] | None:
        """Return the queue and the file of a message that the branch acknowledges."""
        if not member.is_acknowledgement or member.is_missing:
            return None
        queue = self._queues.get(member.queue_id)
        if queue is None:
            return None
        if member.sequence in queue.locked:
            return queue, queue.entries[member.sequence][0].file
        extent = queue.extents.holding(member.sequence)
        if extent is None or member.sequence not in extent.locked:
            return None
        return queue, extent.page

    def write_done(self, staging: Staging, sequence: int) -> None:
        """Carry out what became durable: the members of ended branches are let go."""
        while self._ending and self._ending[0].block <= sequence:
            branch = self._ending.pop(0)
            for member in branch.members:
                queue = self._queues.get(member.queue_id)
                if queue is not None and not member.is_missing:
                    _let_go(staging, queue, member, is_commit=branch.outcome == COMMITTED)
            for file in branch.pins:
                file.live -= 1
                file.pins -= 1
            del self.prepared[branch.transaction]

    # --- questions --------------------------------------------------------------------------------
    def facts(self) -> list[BranchFacts]:
        """Return what is known of all branches, by transaction."""
        return [branch.facts() for _, branch in sorted(self.prepared.items())]

    def in_file(self, file: JournalFile) -> list[int]:
        """Return the branches that need a file, by transaction."""
        return sorted(number for number, branch in self.prepared.items() if file in branch.pins)

    def data(self, transaction: int) -> bytes:
        """Return what the PREPARE record of a branch ends in."""
        branch = self.prepared.get(transaction)
        if branch is None:
            raise ValueError(f"branch {transaction} is not prepared")
        return branch.data

    def members(self, transaction: int) -> list[BranchMember]:
        """Return the members of a branch (see `abc.Core.branch_members`)."""
        branch = self.prepared.get(transaction)
        if branch is None:
            raise ValueError(f"branch {transaction} is not prepared")
        return [
            BranchMember(m.queue_id, m.sequence, m.is_acknowledgement, m.is_missing)
            for m in branch.members
        ]


def _record_of(message: Message) -> bytes:
    """Return the record of a message that is in memory."""
    view = message[0].view
    assert view is not None
    (length,) = _U32.unpack_from(view, message[6])
    return bytes(view[message[6] : message[6] + length])


def _let_go(staging: Staging, queue: Queue, member: Member, *, is_commit: bool) -> None:
    """Make an added message deliverable or void; end an acknowledged one or give it back."""
    sequence = member.sequence
    if member.is_acknowledgement:
        if sequence not in queue.locked:
            _let_go_paged(staging, queue, sequence, is_commit=is_commit)
            return
        queue.locked.discard(sequence)
        if is_commit:
            staging.forget_message(queue, sequence)
            queue.acknowledged += 1
            return
        queue.redelivered += 1
    else:
        if sequence not in queue.reserved:
            return
        queue.reserved.discard(sequence)
        if not is_commit:
            staging.forget_message(queue, sequence)
            return
        queue.added += 1
    queue.resolved += 1
    if sequence < queue.next:  # consumers went past it: it is first in line now
        queue.returned.put(sequence)
    queue.note_special(sequence)
    staging.queue_ready(queue)


def _let_go_paged(staging: Staging, queue: Queue, sequence: int, *, is_commit: bool) -> None:
    """End a locked message of a closed extent, or unlock it."""
    extent = queue.extents.holding(sequence)
    if extent is None or sequence not in extent.locked:
        return
    extent.locked.discard(sequence)
    if is_commit:
        queue.extents.end(extent, sequence)
        queue.extents.update()
        staging.end_large(queue, sequence)
        queue.acknowledged += 1
        return
    queue.redelivered += 1
    queue.resolved += 1
    staging.queue_ready(queue)


def note_queues(staging: Staging, queues: Iterable[Queue], notes: list[Note]) -> None:
    """Let queues go on behind what was staged in the latest block, once that is durable."""
    block = staging.blocks.sequence
    for queue in queues:
        note = queue.note
        if note is None or note.block != block:
            note = queue.note = Note(block, queue=queue)
            notes.append(note)
        note.tail = queue.staged_tail = queue.tail
