"""Messages and acknowledgements become records, and wait for their flush.

Owns the records of the message journal, the transaction that is being staged, and the notes: what
is released when a block is durable. Never decides who may send or receive. Called by the core and
by the scanner.
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from enum import Enum, auto
from typing import Final, NamedTuple

from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.branch import RollbackRecord
from vespiary_codec.journal.large_reference import REFERENCE_BYTES
from vespiary_codec.journal.record import (
    ACK,
    ADD,
    PLACE,
    RANGE,
    SEQUENCE_MAX,
    START,
    TRANSACTION,
    CommitRecord,
    RawRecord,
    RecordFlag,
    RecordType,
    decode_add_layout,
    encode_record,
)
from vespiary_native.abc import NoRoom, NoSequenceLeft
from vespiary_native.twin.accounts import Accounts
from vespiary_native.twin.blocks import RESERVE_BYTES, Blocks, room_left
from vespiary_native.twin.branches import Branch, Member, note_queues
from vespiary_native.twin.counting import Counting
from vespiary_native.twin.image import PAGE, Image, JournalFile, Slab
from vespiary_native.twin.large import LargeMessages
from vespiary_native.twin.state import (
    Connection,
    Consumer,
    Message,
    Note,
    Queue,
    Route,
    place_bytes,
)

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_ADD_AND_PLACE: Final = struct.Struct(ADD.format + PLACE.format.removeprefix("<"))
_FLAGS_AT: Final = 5  # in a record's start
_PLACES_AT: Final = 22
_TRANSACTIONAL: Final = RecordFlag.TRANSACTIONAL.value
_LARGE: Final = RecordFlag.LARGE.value
_SPECIAL: Final = RecordFlag.SPECIAL.value
_VOLATILE: Final = RecordFlag.VOLATILE.value
PROPERTIES_BYTES_MAX: Final = 65535
PLACES_MAX: Final = 65535


class Kind(Enum):
    """What a place of the open transaction is: added, or where it was before its end."""

    ADDED = auto()
    READY = auto()
    RETURNED = auto()
    ASIDE = auto()
    HELD = auto()
    TAKEN = auto()  # held, and at `next` or behind it


class Staged(NamedTuple):
    """A place of the transaction that is being staged."""

    queue: Queue
    sequence: int
    kind: Kind


class Staging:
    """The journal's end as the core sees it.

    Attributes:
        image: The image.
        blocks: Where records go.
        transaction: Id of the transaction that is being staged, 0 none.
        branch: That transaction, if it is a branch that will be prepared.
        ready: Queues to look at, in the order in which they became ready.
        released: Connections with output, in the order in which they got it.
        large: Bodies in files.
        wanted: Queues whose consumers met a place in a closed extent, in that order.
        accounts: What messages cost in memory.
        counting: How often they were given out.
        withheld: Messages that queues did not take, as their routes say.
    """

    def __init__(
        self, *, slab_bytes: int, block_bytes: int, slabs_max: int, record_bytes_max: int
    ) -> None:
        if slab_bytes < 4 * PAGE or slab_bytes & slab_bytes - 1:
            raise ValueError(f"slab_bytes {slab_bytes} is not a power of two from {4 * PAGE} on")
        if block_bytes < PAGE or block_bytes % PAGE:
            raise ValueError(f"block_bytes {block_bytes} is not a multiple of {PAGE}")
        if slabs_max < 2:
            raise ValueError(f"slabs_max {slabs_max} is below 2")
        if not 64 <= record_bytes_max <= slab_bytes - 2 * PAGE:
            raise ValueError(
                f"record_bytes_max {record_bytes_max} is not from 64 to {slab_bytes - 2 * PAGE}"
            )
        self.image = Image(slab_bytes, slabs_max)
        self.blocks = Blocks(self.image, block_bytes)
        self.record_bytes_max = record_bytes_max
        self.withheld = 0
        self.transaction = 0
        self.branch: Branch | None = None
        self.ready: dict[Queue, None] = {}
        self.released: dict[Connection, None] = {}
        self.large = LargeMessages()
        self.wanted: dict[Queue, None] = {}
        self.accounts = Accounts()
        self.counting = Counting(self)
        self._notes: deque[Note] = deque()
        self._volatile: Slab | None = None
        self._volatile_at = 0
        self._digest = 0
        self._members = 0
        self._transaction_queues: dict[Queue, None] = {}
        self._transaction_files: set[JournalFile] = set()
        self._staged: list[Staged] = []
        self._held_before: dict[Consumer, dict[int, Message]] = {}

    # --- adding -----------------------------------------------------------------------------------
    def add(
        self,
        route: Route,
        properties: bytes,
        body: bytes | memoryview,
        *,
        is_persistent: bool,
        protocol: int = 1,
        priority: int = 4,
        flags: int = 0,
    ) -> int:
        """Stage a message to all queues of a route; return its block, 0 if it is not journalled.

        `flags` are those of its record: ESCAPED, LARGE, SPECIAL.

        Raises:
            NoRoom: No slab or no file; nothing was staged.
            NoSequenceLeft: A queue has had its highest sequence; nothing was staged.
            ValueError: The record would be too large.
        """
        queues, is_large = route.queues, flags & _LARGE
        if is_large and len(body) != REFERENCE_BYTES:
            raise ValueError(f"a reference of {len(body)} bytes: {REFERENCE_BYTES} are allowed")
        if not queues:
            route.unrouted += 1
            self.withheld += route.withheld
            return 0
        properties_bytes, body_bytes = len(properties), len(body)
        start = ADD.size + PLACE.size * len(queues) + (TRANSACTION.size if self.transaction else 0)
        length = start + properties_bytes + body_bytes
        self._check(queues, length, properties_bytes)
        is_journalled = is_persistent and route.has_durable
        blocks = self.blocks
        if is_journalled:
            at = blocks.place(length, is_add=not self.transaction)
            slab, view = blocks.slab, blocks.view
        else:
            slab, at = self._place_volatile(length)
            assert slab.view is not None
            view = slab.view
        self.withheld += route.withheld
        # The first place goes with the start: mostly it is the only one.
        first = queues[0]
        _ADD_AND_PLACE.pack_into(
            view, at, length, 1, flags, protocol, priority, blocks.now_ms, body_bytes,
            properties_bytes, len(queues), first.queue_id, 0, first.tail,
        )  # fmt: skip
        if self.transaction or len(queues) > 1:
            self._add_rest(view, at, queues)
        properties_at, body_at = at + start, at + start + properties_bytes
        view[properties_at:body_at] = properties
        view[body_at : at + length] = body
        share_bytes = place_bytes(len(queues), properties_bytes + body_bytes)
        message = (slab, properties_at, properties_bytes, body_bytes, flags, share_bytes, at)
        for queue in queues:
            queue.has_special |= bool(flags & _SPECIAL)
            if is_large:
                self.large.place(queue, queue.tail, body)
            self._enter(queue, message, is_journalled=is_journalled)
        if not is_journalled:
            slab.live += len(queues)
            return 0
        self.image.pin(slab, len(queues), share_bytes)
        if self.transaction and slab.file is not None:
            self._transaction_files.add(slab.file)
            self._member(view, at, length)
        block = blocks.urgent_sequence = blocks.sequence
        return block

    def _check(self, queues: list[Queue], length: int, properties_bytes: int) -> None:
        """Refuse a message that no record may hold, or that a queue has no sequence for."""
        if length > self.record_bytes_max:
            raise ValueError(
                f"a message of {length} bytes with its start is too large:"
                f" at most {self.record_bytes_max} are allowed"
            )
        if properties_bytes > PROPERTIES_BYTES_MAX or len(queues) > PLACES_MAX:
            raise ValueError(
                f"{properties_bytes} bytes of properties in {len(queues)} queues:"
                f" at most {PROPERTIES_BYTES_MAX} in {PLACES_MAX} are allowed"
            )
        for queue in queues:
            if queue.tail > SEQUENCE_MAX:
                raise NoSequenceLeft

    def _add_rest(self, view: memoryview, at: int, queues: list[Queue]) -> None:
        """Write what few ADD records have: more places than one, and a transaction."""
        place_at = at + _ADD_AND_PLACE.size
        for queue in queues[1:]:
            PLACE.pack_into(view, place_at, queue.queue_id, 0, queue.tail)
            place_at += PLACE.size
        if self.transaction:
            view[at + _FLAGS_AT] |= _TRANSACTIONAL
            TRANSACTION.pack_into(view, place_at, self.transaction)

    def _enter(self, queue: Queue, message: Message, *, is_journalled: bool) -> None:
        """Give a message its place in a queue."""
        sequence = queue.tail
        queue.entries[sequence] = message
        queue.tail = tail = sequence + 1
        queue.added += 1
        queue.live_bytes += message[2] + message[3]
        self.accounts.enter(queue.account, message)
        if self.transaction:
            self._transaction_queues[queue] = None
            self._staged.append(Staged(queue, sequence, Kind.ADDED))
            if self.branch is not None:
                queue.reserved.add(sequence)
                queue.added -= 1
                file = message[0].file
                self.branch.members.append(Member(queue.queue_id, sequence, False, file))
        elif is_journalled:
            note = queue.note
            block = self.blocks.sequence
            if note is None or note.block != block:
                note = queue.note = Note(block, queue=queue)
                self._notes.append(note)
            note.tail = queue.staged_tail = tail
        elif queue.available == sequence:
            queue.available = tail
            self.queue_ready(queue)

    def _place_volatile(self, length: int) -> tuple[Slab, int]:
        """Find room for a message that need not survive."""
        slab = self._volatile
        is_full = slab is not None and self._volatile_at + length > self.image.slab_bytes
        if slab is None or is_full:
            # A transaction has asked for its room when it began.
            left = 0 if self.transaction else self.image.slabs_left
            if not self.image.can_take(1 + left):
                raise NoRoom("no slab of memory is free")
        if slab is not None and is_full:
            slab.is_closed = True  # it has live messages, or its position would be 0
            slab = self._volatile = None
        if slab is None:
            slab = Slab(None, 0)
            self.image.take(slab)
            assert slab.buffer is not None
            slab.view = slab.buffer.memoryview
            self._volatile = slab
            self._volatile_at = 0
        at = self._volatile_at
        self._volatile_at += length + 7 & ~7
        return slab, at

    # --- acknowledging ----------------------------------------------------------------------------
    @staticmethod
    def is_journalled(queue: Queue, message: Message) -> bool:
        """Whether what happens to a message of a queue is journalled."""
        return queue.is_durable and message[0].file is not None and not message[4] & _VOLATILE

    def finish(
        self, queue: Queue, sequence: int, message: Message, by: Consumer | None = None
    ) -> int:
        """Journal that a message is done, and let it go; return the record's block, 0 without one.

        In a transaction it is locked, and let go by the COMMIT. `by` is the consumer that holds it.

        Raises:
            NoRoom: No slab or no file for the record; nothing was changed.
        """
        slab, _, properties_bytes, body_bytes, flags, _, _ = message
        file = slab.file
        block = 0
        if file is not None and queue.is_durable and not flags & _VOLATILE:
            blocks = self.blocks
            if queue.ack_end == sequence and queue.ack_block == blocks.sequence and blocks.is_open \
                    and not self.transaction:  # fmt: skip
                self._extend_range(queue)
            else:
                self._acknowledge(queue, sequence, file)
            own = blocks.slab.file
            if own is not file and own is not None:
                own.cancels.add(file)
            block = blocks.sequence
        if self.transaction:
            if self.branch is not None:
                record_file = self.blocks.slab.file if block else None
                self.branch.members.append(Member(queue.queue_id, sequence, True, record_file))
            self._staged.append(Staged(queue, sequence, self._kind_of(queue, sequence, by)))
            queue.locked.add(sequence)
            return block
        del queue.entries[sequence]
        if queue.deliveries:
            queue.deliveries.pop(sequence, None)
        queue.acknowledged += 1
        queue.live_bytes -= properties_bytes + body_bytes
        if queue.large:
            self.large.ended(queue, sequence, self._block_of_now())
        self.unpin(queue, message)
        return block

    def _block_of_now(self) -> int | None:
        """Return the block that everything done so far waits for; None for a COMMIT to come."""
        if self.transaction:
            return None
        return 0 if self.blocks.is_all_durable else self.blocks.latest

    def end_large(self, queue: Queue, sequence: int) -> None:
        """Note that a place is done, if its message is large."""
        if queue.large:
            self.large.ended(queue, sequence, self._block_of_now())

    def forget_message(self, queue: Queue, sequence: int) -> None:
        """Let go of a message that a branch held."""
        message = queue.entries.pop(sequence)
        self.end_large(queue, sequence)
        queue.deliveries.pop(sequence, None)
        queue.live_bytes -= message[2] + message[3]
        self.unpin(queue, message)

    def unpin(self, queue: Queue, message: Message) -> None:
        """Count one live place of a queue less where a message stands."""
        self.accounts.leave(queue.account, message)
        slab = message[0]
        if slab.file is not None:
            self.image.unpin(slab, message[5])
            return
        slab.live -= 1
        if slab.live:
            return
        if slab.is_closed:
            self.image.give(slab)
        else:
            self._volatile_at = 0

    def _extend_range(self, queue: Queue) -> None:
        """Count one more in the last range of the queue's ACK record."""
        view, at = self.blocks.view, queue.ack_at
        (length,) = _U32.unpack_from(view, at)
        at += length - 8
        (count,) = _U64.unpack_from(view, at)
        _U64.pack_into(view, at, count + 1)
        queue.ack_end += 1

    def _acknowledge(self, queue: Queue, sequence: int, file: JournalFile) -> None:
        """Stage a range of one: in the queue's latest ACK record if that is the block's last."""
        blocks = self.blocks
        if self.transaction:
            self._acknowledge_in_transaction(queue.queue_id, sequence)
            self._transaction_files.add(file)
            return
        if blocks.is_open and queue.ack_block == blocks.sequence:
            view, at = blocks.view, queue.ack_at
            length, _, _, _, _, ranges = ACK.unpack_from(view, at)
            is_last = at + length == blocks.base + blocks.used
            if is_last and blocks.used + RANGE.size <= blocks.end:
                ACK.pack_into(
                    view, at, length + RANGE.size, RecordType.ACK, 0, 0, queue.queue_id, ranges + 1
                )
                RANGE.pack_into(view, at + length, sequence, 1)
                blocks.extend(RANGE.size)
                queue.ack_end = sequence + 1
                return
        length = ACK.size + RANGE.size
        at = blocks.place(length)
        ACK.pack_into(blocks.view, at, length, RecordType.ACK, 0, 0, queue.queue_id, 1)
        RANGE.pack_into(blocks.view, at + ACK.size, sequence, 1)
        queue.ack_block = blocks.sequence
        queue.ack_at = at
        queue.ack_end = sequence + 1

    def _acknowledge_in_transaction(self, queue_id: int, sequence: int) -> None:
        """Stage a range of one as a member."""
        blocks = self.blocks
        length = ACK.size + RANGE.size + TRANSACTION.size
        at = blocks.place(length)
        ACK.pack_into(
            blocks.view, at, length, RecordType.ACK, RecordFlag.TRANSACTIONAL, 0, queue_id, 1
        )
        RANGE.pack_into(blocks.view, at + ACK.size, sequence, 1)
        TRANSACTION.pack_into(blocks.view, at + ACK.size + RANGE.size, self.transaction)
        self._member(blocks.view, at, length)
        assert blocks.slab.file is not None
        self._transaction_files.add(blocks.slab.file)

    # --- copies of records ------------------------------------------------------------------------
    def copy_add(
        self,
        record: bytes,
        places: list[tuple[int, int]],
        message: Message,
        *,
        is_member: bool,
    ) -> Message:
        """Stage a copy of an ADD record with some of its places; return where the message is.

        Args:
            record: The record.
            places: Queue ids and sequences.
            message: Where it is so far.
            is_member: The copy is a member of the transaction that is being staged.
        """
        raw = RawRecord(0, RecordType.ADD, record[_FLAGS_AT], memoryview(record))
        layout = decode_add_layout(raw)
        content = record[layout.properties_at :]
        start = bytearray(record[: ADD.size])
        start[_FLAGS_AT] = start[_FLAGS_AT] & ~_TRANSACTIONAL | RecordFlag.MOVED
        middle = b"".join(PLACE.pack(queue_id, 0, at) for queue_id, at in places)
        if is_member:
            start[_FLAGS_AT] |= _TRANSACTIONAL
            middle += TRANSACTION.pack(self.transaction)
        length = len(start) + len(middle) + len(content)
        start[:4] = _U32.pack(length)
        start[_PLACES_AT : _PLACES_AT + 2] = len(places).to_bytes(2, "little")
        blocks = self.blocks
        at = blocks.append(bytes(start) + middle + content)
        slab = blocks.slab
        assert slab.file is not None
        self._transaction_files.add(slab.file)
        if is_member:
            self._member(blocks.view, at, length)
        share_bytes = place_bytes(len(places), len(content))
        content_at = at + len(start) + len(middle)
        return (slab, content_at, message[2], message[3], message[4], share_bytes, at)

    def copy_acknowledgement(self, queue_id: int, sequence: int) -> JournalFile:
        """Stage an ACK record as a member of the transaction; return its file."""
        self._acknowledge_in_transaction(queue_id, sequence)
        file = self.blocks.slab.file
        assert file is not None
        return file

    def point(self, queue: Queue, sequence: int, message: Message) -> None:
        """Point a queue's entry at a copy of its message."""
        self.unpin(queue, queue.entries[sequence])
        queue.entries[sequence] = message
        queue.ack_block = 0  # an ACK record before the copy must not be extended by others
        self.image.pin(message[0], 1, message[5])
        self.accounts.enter(queue.account, message)

    def append(self, type_: int, body: bytes, *, flags: int, is_urgent: bool) -> int:
        """Stage a record of the general form; return its block (see `abc.Core.append_record`)."""
        length = START.size + len(body)
        if length > self.image.slab_bytes - PAGE - 64:
            raise ValueError(
                f"a record of {length} bytes is too large:"
                f" at most {self.image.slab_bytes - PAGE - 64} are allowed"
            )
        is_member = type_ == RecordType.DUPLICATE and bool(flags & _TRANSACTIONAL)
        if is_member and (
            len(body) < 16 or not self.transaction or body[-8:] != _U64.pack(self.transaction)
        ):
            raise ValueError(f"a member does not end with the open transaction {self.transaction}")
        record = START.pack(length, type_, flags, 0) + body
        self.blocks.append(record)
        if is_member:
            self._digest = crc32c(record, self._digest)
            self._members += 1
            assert self.blocks.slab.file is not None
            self._transaction_files.add(self.blocks.slab.file)
        if is_urgent:
            self.blocks.mark_urgent()
        return self.blocks.sequence

    # --- transactions -----------------------------------------------------------------------------
    def begin(self, transaction: int, size_bytes: int, records: int, *, is_branch: bool) -> None:
        """Start a transaction (see `abc.Core.begin`)."""
        if self.transaction or not 0 < transaction < 1 << 64:
            raise ValueError(
                f"transaction {transaction} cannot begin: {self.transaction or 'none'} is open"
            )
        image = self.image
        # A record's start, place and padding; a block's start and padding for each 64 KiB.
        needed = size_bytes + (records + 1) * 128 + (size_bytes // 65536 + 2) * 2 * PAGE
        room = room_left(image, self.blocks.position)
        reserve = min(image.files[-1].size // 8, RESERVE_BYTES) if image.files else 0
        if self.blocks.are_adds_held or needed + reserve + self.blocks.used > room:
            raise NoRoom(f"a transaction of {needed} bytes does not fit the journal's {room}")
        if not image.can_take((needed >> image.slab_shift) + 2):
            raise NoRoom(f"a transaction of {needed} bytes does not fit in memory")
        self.transaction = transaction
        self.branch = Branch(transaction) if is_branch else None
        self._digest = self._members = 0

    def _member(self, view: memoryview, at: int, length: int) -> None:
        self._digest = crc32c(view[at : at + length], self._digest)
        self._members += 1

    def abandon(self) -> set[JournalFile]:
        """Forget the transaction, but not what it did to queues; return the files that it touched.

        Its members are void, unless a PREPARE record was staged for them.
        """
        files = self._transaction_files
        self._transaction_files = set()
        self.transaction = 0
        self.branch = None
        return files

    def commit(self, transaction: int) -> None:
        """End a transaction (see `abc.Core.commit`)."""
        if not transaction or transaction != self.transaction or self.branch is not None:
            raise ValueError(
                f"transaction {transaction} cannot end: {self.transaction or 'none'} is open"
            )
        blocks = self.blocks
        blocks.append(encode_record(CommitRecord(transaction, self._members, self._digest)))
        own = blocks.slab.file
        assert own is not None
        for queue, sequence, kind in self._staged:
            if kind is not Kind.ADDED:
                queue.locked.discard(sequence)
                self.forget_message(queue, sequence)
                queue.acknowledged += 1
        own.cancels |= self.end_staging() - {own}

    # --- giving a transaction up ------------------------------------------------------------------
    def _kind_of(self, queue: Queue, sequence: int, by: Consumer | None) -> Kind:
        """Return how a message stands that is acknowledged in a transaction."""
        if by is not None:
            self._held_before.setdefault(by, dict(by.held))
            return Kind.TAKEN if sequence in queue.taken else Kind.HELD
        if sequence in queue.aside:
            return Kind.ASIDE
        return Kind.RETURNED if sequence in queue.returned else Kind.READY

    def abort(self, transaction: int) -> None:
        """Give up the transaction that is being staged (see `abc.Core.abort`).

        Members without a COMMIT are void, so the ROLLBACK may be missing: it only spares a recovery
        to remember them.
        """
        if not transaction or transaction != self.transaction:
            raise ValueError(
                f"transaction {transaction} cannot end: {self.transaction or 'none'} is open"
            )
        is_branch = self.branch is not None
        if self._members:
            with contextlib.suppress(NoRoom):
                self.blocks.append(
                    encode_record(RollbackRecord(transaction, self._members, self._digest))
                )
                self.blocks.mark_urgent()
        self.abandon()
        for one in reversed(self._staged):
            if one.kind is not Kind.ADDED:
                self._undo_acknowledgement(one)
                continue
            one.queue.reserved.discard(one.sequence)
            self.large.void(one.queue, one.sequence)
            self.forget_message(one.queue, one.sequence)
            one.queue.added -= not is_branch
            one.queue.tail -= 1  # its sequence is given again
        for consumer, held in self._held_before.items():
            consumer.held = held
        for one in self._staged:
            self.queue_ready(one.queue)
        self._forget_staged()

    def _undo_acknowledgement(self, one: Staged) -> None:
        queue, sequence, kind = one
        queue.locked.discard(sequence)
        if kind in (Kind.HELD, Kind.TAKEN):
            queue.delivering += 1
            if kind is Kind.TAKEN:
                queue.taken.add(sequence)
        elif kind is Kind.ASIDE:
            queue.aside.add(sequence)
        elif kind is Kind.RETURNED or sequence < queue.next:  # `next` went past it
            queue.put_first(sequence)

    def _forget_staged(self) -> None:
        self._transaction_queues.clear()
        self._staged.clear()
        self._held_before.clear()

    @property
    def members_so_far(self) -> tuple[int, int]:
        """Number and digest of the members staged."""
        return self._members, self._digest

    def end_staging(self) -> set[JournalFile]:
        """End the transaction behind its last record; return the files that it touched."""
        self.blocks.mark_urgent()
        notes: list[Note] = []
        note_queues(self, self._transaction_queues, notes)
        self._notes += notes
        files = self._transaction_files
        self._transaction_files = set()
        self._forget_staged()
        self.transaction = 0
        self.large.committed(self.blocks.sequence)
        self.branch = None
        return files

    # --- what waits -------------------------------------------------------------------------------
    def receipt(self, connection: Connection, data: bytes, *, is_for_all: bool) -> None:
        """Send `data` when it may go, behind what waits already.

        Args:
            connection: Where to.
            data: A RECEIPT frame, or whatever stands in line with them.
            is_for_all: It waits for what anybody staged; else only if the connection itself did.
        """
        blocks = self.blocks
        if not connection.notes_pending:
            if is_for_all:
                is_waiting = not blocks.is_all_durable
            else:
                is_waiting = connection.last_block > self.image.durable_sequence
            if not is_waiting:
                connection.output.append(data)
                self.released[connection] = None
                return
        blocks.mark_urgent()
        block = blocks.latest
        note = connection.note
        if note is None or note.block != block or not connection.notes_pending:
            note = connection.note = Note(block, connection=connection)
            connection.notes_pending += 1
            self._notes.append(note)
        note.receipts.append(data)

    def output_waiting(self, connection: Connection) -> int:
        """Return how many bytes of a connection's output wait (see `CoreCounts`)."""
        return sum(map(len, self.waiting_output(connection)))

    def waiting_output(self, connection: Connection) -> list[bytes]:
        """Return the output of a connection that waits, in order."""
        waiting = (note.receipts for note in self._notes if note.connection is connection)
        return [data for receipts in waiting for data in receipts]

    def queue_ready(self, queue: Queue) -> None:
        """List a queue, if a consumer would find something in it."""
        if not queue.is_listed and queue.is_deliverable:
            queue.is_listed = True
            self.ready[queue] = None

    def want_page(self, queue: Queue) -> None:
        """Note that a consumer met a place in a closed extent."""
        queue.extents.is_wanted = True
        self.wanted[queue] = None

    def write_done(self, sequence: int) -> None:
        """Release what waited for the blocks up to `sequence` (see `abc.Core.write_done`)."""
        self.blocks.write_done(sequence)
        notes = self._notes
        while notes and notes[0].block <= sequence:
            note = notes.popleft()
            queue, connection = note.queue, note.connection
            if queue is not None:
                # What follows the last place that waits for a flush need not wait itself.
                available = queue.tail if note.tail >= queue.staged_tail else note.tail
                if available > queue.available:
                    queue.available = available
                    self.queue_ready(queue)
            elif connection is not None:
                connection.notes_pending -= 1
                if connection.is_open:
                    connection.output += note.receipts
                    self.released[connection] = None

    def forget_queue(self, queue: Queue) -> None:
        """Let go of everything in a queue."""
        for sequence in list(queue.large):
            self.large.ended(queue, sequence, self._block_of_now())
        for message in queue.entries.values():
            self.unpin(queue, message)
        queue.entries.clear()
        queue.reserved.clear()
        queue.locked.clear()
        queue.returned.clear()
        queue.aside.clear()
        queue.taken.clear()
        self.wanted.pop(queue, None)
        queue.next = queue.available = queue.staged_tail = queue.tail
        self.ready.pop(queue, None)
