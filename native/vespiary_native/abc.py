"""The contract of the broker's core: journal image, queues, connections, in integers and batches.

Two implementations keep it: `vespiary_native.core.NativeCore` (C) and `TwinCore` of
`vespiary_native.twin` (pure Python, which is the specification: the two are fuzzed against each
other and must produce the same journal bytes and the same output bytes for the same calls).
`vespiary_native.choice.open_core` chooses.

The core owns bytes and per-message state. It does no I/O, knows no clock but the one it is told
(`set_time`), no names but those that it was taught (`teach`), and makes no decision: which consumer
gets how many, who may send where, when to write. Those belong to `vespiary_broker.engine` and
`.store`, which are its only callers. One thread, the event loop's, calls it.

How records become blocks (both implementations give the same bytes)
    - A record goes into the filling block if the block, its 64-byte header included, stays within
      `block_bytes` and ends before the end of its slab and before the file's last 4096 bytes. Else
      the filling block is closed first. A block's payload length counts the records' padding.
    - A record that alone exceeds `block_bytes` gets a block of its own: nothing is added to it.
    - If a new block does not fit before its slab's end, a block without records closes the slab
      (its payload is zeros up to the end); if it does not fit before the file's last 4096 bytes, a
      seal block closes the file and the next file is begun, at offset 4096. The nearer of the two
      ends decides, and the seal if they coincide. All room is checked before anything is changed.
    - ADD leaves room to the others: with no file ahead it is refused (`NoRoom`) once
      `align4k(end of its block) > file size - 4096 - min(1 MiB, file size // 8)`, so
      acknowledgements and checkpoints still fit when the disk is full. Members of a transaction are
      not refused by this: `begin` has looked.
    - Acknowledgements outside transactions are merged, message by message: if the queue's latest
      such ACK record stands in the filling block and its last range ends where the new message
      begins, that range is extended; else, if that record is the block's last, a range is added to
      it (if it fits); else a new ACK record is made. Inside a transaction each message has a record
      of its own. None is extended across a moved copy or a PAGE record of its queue.
    - Only what happens to journalled messages in durable queues is journalled: acknowledgements and
      COUNT records. A journalled message has all queues of its route as places, also those that
      are not durable.
    - A block's watermark is the highest durable sequence, and its time the clock, at its closing.
    - `cancels`: the file of an ACK record depends on the files of the messages that it ends, that
      of a COUNT on the file of its message. The file of a COMMIT depends on those of its members,
      and of the messages that they end. The file of a moved record depends on the one that it was
      moved from; in a recovery, that of any record on the file of the one that it replaces.
    - A COMMIT that finds fewer members than it names, and blocks missing right before the first one
      that is there, counts: the others stood in a file that was reclaimed, which happens only when
      the COMMIT is durable and nothing in the file is live. (Without this, a message of a
      transaction that spans two files would be lost once the first is reclaimed.)
    - `seal_write` takes sealed blocks in order while they are neighbours in one slab and the sum
      stays within `WRITE_BYTES` (the first always); if none is left over and the filling block has
      records and still fits, it is closed and taken too.
    - Eviction: when a slab is needed and none is free, the durable, closed slab of the journal that
      was closed last is dropped, except the four that were closed most recently of those present.
      If there is no such slab, memory is made, up to `slabs_max`; then the slab that was loaded
      longest ago is dropped. Slabs being loaded stay. Closed, durable slabs without live places go
      at once.

What waits for what
    - A message is deliverable once its record's block is durable, and everything before it in its
      queue is. One that is not journalled is deliverable at once if nothing before it waits, else
      with the last of those that do. Members of a transaction become deliverable with its COMMIT,
      those that are not journalled too.
    - A receipt of the fast path leaves at once when nothing that its connection staged is unwritten
      and no earlier receipt of it waits; else it waits for everything staged so far by anybody (and
      makes that urgent), as `receipt()` always does.

Terms
    image       memory that mirrors journal files byte for byte: what is written is a piece of it.
    slab        the image's unit of memory: `slab_bytes` of one file, present or not. A write, a
                block and a record never cross a slab's end. Messages that need not survive stand in
                slabs of their own.
    block       the unit of CRC and of loss (docs/internals/journal-format.md §2).
    filling     the block that records are added to; sealed: closed, waits for its write.
    sequence    a queue's own 64-bit number of a message, from 1. head <= next <= available <= tail:
                oldest unacknowledged (below next, else next), next to deliver, first not yet
                durable, next to assign.
    place       (queue, sequence): one message may have several.
    route       where a destination leads: one queue or several, each once.
    urgent      somebody waits for the flush: a receipt or an add. Acknowledgements alone are not.

Errors: `NoRoom` and `ValueError` (an argument is not what the contract says) change nothing, but
where a method says otherwise.
"""

# The name is part of the contract; nothing here is imported as plain `abc`.
# ruff: noqa: A005

from __future__ import annotations

from typing import Protocol

from vespiary_codec.journal.record import RecordType as RecordType
from vespiary_native.abc_accounts import CoreAccounts as CoreAccounts
from vespiary_native.abc_amqp import CoreAmqp as CoreAmqp
from vespiary_native.abc_amqp_sending import CoreAmqpSending as CoreAmqpSending
from vespiary_native.abc_blocks import BlockVerifier as BlockVerifier
from vespiary_native.abc_branches import CoreBranches as CoreBranches
from vespiary_native.abc_counts import CoreCounts as CoreCounts
from vespiary_native.abc_inspection import CoreInspection as CoreInspection
from vespiary_native.abc_mqtt import CoreMqtt as CoreMqtt
from vespiary_native.abc_pages import CorePages as CorePages
from vespiary_native.abc_ranges import CoreRanges as CoreRanges
from vespiary_native.abc_routes import CoreRoutes as CoreRoutes
from vespiary_native.abc_stomp import CoreStomp as CoreStomp
from vespiary_native.abc_switching import CoreSwitching as CoreSwitching
from vespiary_native.values import BLOCK_BYTES as BLOCK_BYTES
from vespiary_native.values import SLAB_BYTES as SLAB_BYTES
from vespiary_native.values import WRITE_BYTES as WRITE_BYTES
from vespiary_native.values import AckMode as AckMode
from vespiary_native.values import BlockFacts as BlockFacts
from vespiary_native.values import BranchFacts as BranchFacts
from vespiary_native.values import BranchMember as BranchMember
from vespiary_native.values import DeliverStatus as DeliverStatus
from vespiary_native.values import ImageStatistics as ImageStatistics
from vespiary_native.values import LargeBody as LargeBody
from vespiary_native.values import LargeDelivery as LargeDelivery
from vespiary_native.values import NoRoom as NoRoom
from vespiary_native.values import NoSequenceLeft as NoSequenceLeft
from vespiary_native.values import QueueStatistics as QueueStatistics
from vespiary_native.values import Relocation as Relocation
from vespiary_native.values import ScanStatus as ScanStatus
from vespiary_native.values import WriteRequest as WriteRequest


class Core(
    CoreAccounts,
    CoreAmqp,
    CoreAmqpSending,
    CoreBranches,
    CoreCounts,
    CoreInspection,
    CoreMqtt,
    CorePages,
    CoreRanges,
    CoreRoutes,
    CoreStomp,
    CoreSwitching,
    Protocol,
):
    """See the module's docstring.

    Handles (`connection`, `consumer`, `route`, `buffer`) are small ints, and are used again.
    """

    @property
    def record_bytes_max(self) -> int:
        """Most bytes of an ADD record, its start, places and transaction included."""

    # --- the image and its files ------------------------------------------------------------------
    def set_time(self, now_ms: int) -> None:
        """Set the clock for what is staged from now on, in milliseconds since 1970."""

    def add_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """Hand over an activated, empty file; files are filled in the order of adding.

        When the filling file has no room for the next block, the core closes it with a seal block
        and goes on in the next one by itself. `files_ahead` tells how many are left.
        """

    def start(self, sequence: int, previous_crc: int, durable_sequence: int) -> None:
        """Set the sequence of the next block, the chain's CRC and the watermark.

        Once, after the recovery.
        """

    def grow(self, slabs: int) -> int:
        """Allocate and touch up to `slabs` more free slabs; return how many were made.

        Fewer are made where `slabs_max` or enough free ones are reached.
        """

    def make_slab(self) -> object:
        """Make the memory of a slab and touch all of it; hand it to `add_slab`.

        The one method that any thread may call: touching new memory takes a millisecond and more,
        and must not happen while messages wait.

        Raises:
            MemoryError: There is none to be had.
        """

    def add_slab(self, slab: object) -> bool:
        """Take what `make_slab` made as a free slab; False: not wanted, and given back."""

    def hold_adds(self, *, held: bool) -> None:
        """Refuse messages (`NoRoom`) and transactions until told otherwise.

        For a full disk: what room is left goes to acknowledgements and checkpoints, which free
        files.
        """

    def files_ahead(self) -> int:
        """Return how many added files are still untouched."""

    def current_file(self) -> int:
        """Return the id of the file being filled, 0 before the first record."""

    def live_places(self, file_id: int) -> int:
        """Return the number of live places whose message stands in this file.

        And one for each prepared branch that needs the file.
        """

    def live_bytes(self, file_id: int) -> int:
        """Return the size of the live places and of the latest PAGE records in a file, in bytes.

        A place counts 16 bytes and its share of its record's start, properties and body: all of
        them for a message in one queue, an equal part (rounded down) for one in several.
        """

    def relocate(
        self, file_id: int, slab: int, offset: int, record: int, max_bytes: int, max_places: int
    ) -> Relocation:
        """Stage copies of what is live in a slab at the journal's end, and point the queues there.

        Record by record, from the block at `offset` on, until `max_bytes` of blocks were walked,
        `max_places` were looked at, or nothing in the slab is live any more. So the work of a call
        is bounded by both, by one more block and by one more record. A place is moved if its
        queue's entry points at the record (ready, given out or given back), and it is available.
        The copy is an ADD with these places alone, with the flag MOVED and without the
        transactional one, all else as it stood; a COUNT stands behind it for each place that was
        given out before, in the same block if there is room. Its file depends on this one, or an
        acknowledgement of the copy might be freed while the old record stands. A record that the
        files at the end cannot hold (files became smaller) stays where it is.

        Args:
            file_id: A file before the one being filled.
            slab: Index of the slab in it.
            offset: File offset of the block to begin with; 0 for the slab's first one.
            record: Records of that block to pass over: `Relocation.next_record`.
            max_bytes: Blocks behind this many bytes of others are left to the next call.
            max_places: Records behind this many others are left to the next call; each counts one,
                and one for each of its places.

        Raises:
            NoRoom: No slab or no file for a copy, or adds are held; nothing was moved. If something
                was, the call returns, and the next one raises.
            ValueError: The file is being filled or not known, or a transaction is being staged.

        Durability: the copies are durable with their blocks, which stand before any checkpoint that
            lets the old file go.
        """

    def cancels(self, file_id: int) -> list[int]:
        """Return the ids of other files, not forgotten, that this one must not be freed before.

        Those whose messages are ended, counted or moved, or whose transactions are committed, by
        its records; ascending.
        """

    def forget_file(self, file_id: int) -> None:
        """Drop a file that was reclaimed. Its `live_places` must be 0."""

    def image_statistics(self) -> ImageStatistics:
        """Return the image's counters."""

    # --- writing ----------------------------------------------------------------------------------
    def has_unwritten(self) -> bool:
        """Whether anything staged has not been handed out by `seal_write`."""

    def is_urgent(self) -> bool:
        """Whether somebody waits for what is staged and not handed out."""

    def seal_write(self) -> WriteRequest | None:
        """Close the filling block and return the next run to write, or None when there is none.

        The run is everything sealed that is contiguous in one slab, up to `WRITE_BYTES`; so several
        calls may be needed to write all (`has_unwritten`, `is_urgent`). The caller may have one
        request outstanding; call `write_done` before the next.
        """

    def write_done(self, sequence: int) -> None:
        """Say that all blocks up to `sequence` are durable.

        Frees receipts, makes messages deliverable.

        Durability: call only after the flush that covers the blocks has succeeded. Nothing is
        confirmed or delivered before this call.
        """

    def stage_empty_block(self) -> None:
        """Make the next `seal_write` give a block without records if it has nothing else.

        Its watermark covers the last confirms. Without room for it there is none.
        """

    def append_record(self, type_: int, body: bytes, *, flags: int = 0, urgent: bool = True) -> int:
        """Stage a record of the general form; return its block's sequence.

        Args:
            type_: Type of the record.
            body: What follows the 8-byte start.
            flags: Flags in the start. A DUPLICATE record with flag 1 is a member of the open
                transaction, with whose id its body must end.
            urgent: Somebody waits for it.

        Raises:
            NoRoom: No slab or no file.
            ValueError: It is too large for a slab or a file, or no member of what is open.
        """

    # --- queues and routes ------------------------------------------------------------------------
    def open_queue(self, queue_id: int, tail: int = 1, *, durable: bool = True) -> None:
        """Make a queue known, empty; its next sequence is `tail`.

        `queue_id` is below 2**31 and not open yet.
        """

    def drop_queue(self, queue_id: int) -> None:
        """Forget a queue and everything in it, and take it out of all routes.

        Its consumers must be closed, and no transaction be in the making. A durable queue must have
        no members of prepared branches; those of another are void with it.
        """

    def purge_queue(self, queue_id: int) -> int:
        """End what is deliverable or set aside in the queue (journalled); return how many.

        Raises:
            NoRoom: For the rest; those before are acknowledged.
        """

    def queue_statistics(self, queue_id: int) -> QueueStatistics:
        """Return the queue's counters."""

    def queue_states(self) -> bytes:
        """Return the entries of a QUEUES record: all durable queues by id, 24 bytes each."""

    # --- connections; their fast paths: abc_stomp, abc_mqtt ---------------------------------------
    def open_connection(self) -> int:
        """Make a connection of STOMP, or of MQTT once it is said to be one (`set_ready_mqtt`)."""

    def close_connection(self, connection: int) -> None:
        """Forget the connection and what waits for it. Its consumers must be closed first."""

    def attach_buffer(self, buffer: bytearray) -> int:
        """Register memory that frames are read into; it must not be resized while attached."""

    def detach_buffer(self, buffer: int) -> None:
        """Forget a buffer."""

    def receipt(self, connection: int, data: bytes) -> None:
        """Send `data` on the connection once everything staged so far is durable.

        It leaves behind earlier receipts.
        """

    def take_receipts(self) -> list[tuple[int, bytes]]:
        """Return what may be sent now: (connection, bytes), once per connection, in any order."""

    def take_ready_queues(self) -> list[int]:
        """Return the queues to look at: they gained messages or credit.

        Only those that have something to deliver, in any order, each once since the last call.
        """

    # --- the slow path: the same acts, one at a time ----------------------------------------------
    def publish(
        self,
        route: int,
        properties: bytes,
        body: bytes,
        *,
        persistent: bool,
        protocol: int = 1,
        priority: int = 4,
        escaped: bool = False,
        large: bool = False,
        special: bool = False,
        transaction: int = 0,
    ) -> int:
        """Stage one message to all queues of a route; return the number of places.

        With `large` the body is the 24 bytes of a reference to a file (journal-format §3.5), whose
        id was never used before. The file stays until `take_done_large` names it; if there are no
        places, nobody will.

        Raises:
            NoRoom: No slab or no file; nothing was staged.
            NoSequenceLeft: A queue has had its highest sequence; nothing was staged.
            ValueError: The record would be larger than `record_bytes_max`, or a reference has
                another length; measured against allowed.
        """

    def begin(
        self, transaction: int, size_bytes: int, records: int, *, branch: bool = False
    ) -> None:
        """Start staging a transaction.

        `publish` and `acknowledge` with its id follow, then `commit` (`prepare` for a branch) or
        `abort`, nothing between, not even a `seal_write`. No other transaction can begin before:
        whoever begins one ends it, whatever fails.

        Args:
            transaction: Id, not 0, never used before in this journal.
            size_bytes: Sum of the members' properties and bodies, for the room that must be there
                beforehand.
            records: Upper bound of the number of member places.
            branch: It is a branch of a distributed transaction, to be prepared.

        Raises:
            NoRoom: The members would not fit now.
        """

    def commit(self, transaction: int) -> None:
        """End the transaction: its members count once its COMMIT is durable.

        Raises:
            NoRoom: No slab or no file for the COMMIT; the transaction stays open: try again.
        """

    def abort(self, transaction: int) -> None:
        """Give up the transaction that is being staged, so that another one can begin.

        Its messages are void: no queue has them. A body of large ones that no other message refers
        to is the caller's again, as before the `publish`: `take_done_large` never names it. Its
        acknowledgements have not happened: a message that a consumer held is held by it again, one
        that was set aside or deliverable is so again. It needs no room in the journal.

        Durability: nothing of the transaction counts, whatever of it is in the journal: members
        without their COMMIT are void. A ROLLBACK record says so if there were any.
        """

    # --- consumers --------------------------------------------------------------------------------
    def open_consumer(
        self,
        connection: int,
        queue_id: int,
        mode: AckMode,
        credit: int,
        subscription: bytes,
        version: int,
    ) -> int:
        """Make a consumer.

        Args:
            connection: Handle of its connection.
            queue_id: The queue.
            mode: Acknowledgement mode.
            credit: Messages that may be out unacknowledged, 1 to 2**31 - 1 (AUTO: no limit, only
                `deliver`'s).
            subscription: Value of the `subscription` header of its MESSAGE frames, escaped for
                `version`.
            version: 10, 11 or 12; 0: as stored, in the form of `vespiary_codec.stored_message`.
        """

    def deliver(
        self, consumer: int, max_messages: int, max_bytes: int
    ) -> tuple[DeliverStatus, int, bytes]:
        """Take the next messages of the consumer's queue and encode them as MESSAGE frames.

        Returned messages come first, the lowest sequence before others, then those from `next` on.
        At least one message is given even if it is larger than `max_bytes`. Frame: `MESSAGE`,
        `subscription`, `message-id:Q-S`, `ack:Q-S` (version 12 and mode not AUTO),
        `redelivered:true` and `delivery-count:N` (given out N times before, N > 0),
        `content-length`, the stored properties (for versions below 12 as
        `vespiary_codec.wire.stomp.properties.properties_for_version` says), an empty line, body,
        NUL. Of version 0: see `open_consumer`.

        AUTO consumers' messages count as acknowledged at once; without room for that
        acknowledgement the message is not given, and the answer is LIMIT.

        A large message is never among them: the answer before it is LARGE, and it is given by
        `take_large`.

        Returns:
            (status, number of messages, their frames). LIMIT is said before DRAINED when both hold.
        """

    def next_large(self, consumer: int) -> LargeBody | None:
        """Return the body of the consumer's next message; None if that is not large."""

    def take_large(self, consumer: int) -> LargeDelivery | None:
        """Give the consumer its next message, which is large.

        It is held like any other, by AUTO consumers too: `acknowledge` it when its body has left.

        Returns:
            None if the next message is not large or not in memory, or there is no credit.
        """

    def take_done_large(self) -> list[int]:
        """Return the ids of the bodies that nobody needs any more, each once.

        Those of which all places are done, and what says so is durable. After a recovery only what
        ended since then: which bodies are live, `live_large` says.

        Durability: a body named here is in no live message after any crash from now on.
        """

    def live_large(self) -> list[LargeBody]:
        """Return the bodies of all large messages that are live, in any order."""

    def absent_slab(self, consumer: int) -> tuple[int, int]:
        """Return (file id, slab index) that the consumer's next message needs.

        After `DeliverStatus.ABSENT`; (0, 0) when there is no next message.
        """

    def load_begin(self, file_id: int, slab: int) -> tuple[int, int, int] | None:
        """Reserve memory for a slab: (address, length, file offset) to read into.

        None when there is no room, or when it is present or being loaded already.
        """

    def load_done(self, file_id: int, slab: int, *, good: bool) -> None:
        """Say that the read has ended; the queues that wait become ready.

        `good=False` gives the memory back.
        """

    def acknowledge(self, consumer: int, sequence: int, *, transaction: int = 0) -> int:
        """Acknowledge a message that the consumer holds.

        CLIENT: and all that it holds and was given before that message. Mostly these are the lower
        sequences; a message that came back is given behind higher ones.

        Returns:
            Number of messages acknowledged; 0 when it does not hold that message.

        Raises:
            NoRoom: For the rest; those before are acknowledged, and the same call goes on.
        """

    def holder(self, connection: int, queue_id: int, sequence: int) -> int:
        """Return the consumer of this connection that holds the message, or -1."""

    def give_back(self, consumer: int, sequence: int, *, counted: bool = True) -> int:
        """Return a held message to the queue, counted as delivered once more (NACK, `abc_counts`).

        CLIENT: and all that it holds and was given before, in that order.
        Returns how many were given back; 0 when it does not hold that message.

        Args:
            consumer: Handle.
            sequence: The message.
            counted: Whether it counts as delivered.
        """

    def set_credit(self, consumer: int, credit: int) -> None:
        """Change the number of messages that may be out unacknowledged; 0: it gets none."""

    def close_consumer(self, consumer: int, *, counted: bool = True) -> int:
        """Give all held messages back to the queue, lowest first; return how many.

        They count as delivered if that is wanted.
        """

    # --- recovery ---------------------------------------------------------------------------------
    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """Register a file that holds earlier blocks; nothing of it is in memory."""

    def restore_block(
        self, file_id: int, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """Apply the records of one valid block; call in journal order, after `open_queue`.

        Places of queues that are not open are void.

        Args:
            file_id: The file.
            offset: The block's offset in the file.
            block: Header and payload; padding may follow.

        Returns:
            The records that the core does not keep itself: (type, bytes after the first 8), for
            FILES, PUT, REMOVE, DUPLICATE and types that it does not know. DUPLICATE also while its
            transaction has no COMMIT; and the valid COMMIT of a transaction that has any.

        Raises:
            ValueError: A record is malformed: offset within the block, what was found. Those before
                it are applied.
        """

    def restore_done(self) -> int:
        """End the recovery: make messages deliverable, and hold those of prepared branches.

        Returns:
            Number of transactions without a valid COMMIT or PREPARE; they were dropped.
        """
