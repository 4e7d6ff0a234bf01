"""`TwinCore`: the contract of `vespiary_native.abc.Core` in pure Python.

Owns the handles and the checks of arguments; the work is done by the other modules of this
package. Never does I/O, knows no clock. Called by the engine and the store, through
`vespiary_native.choice`.
"""

from __future__ import annotations

from vespiary_codec.journal.record import QUEUE_STATE, SEQUENCE_MAX, RecordFlag
from vespiary_codec.stored_message import STORED_VERSION
from vespiary_native.abc import (
    BLOCK_BYTES,
    SLAB_BYTES,
    AckMode,
    BranchFacts,
    BranchMember,
    DeliverStatus,
    ImageStatistics,
    LargeBody,
    LargeDelivery,
    QueueStatistics,
    Relocation,
    WriteRequest,
)
from vespiary_native.memory import AlignedBuffer
from vespiary_native.twin import compaction, delivery, stomp
from vespiary_native.twin.accounts import AccountCalls
from vespiary_native.twin.amqp import TwinAmqp
from vespiary_native.twin.amqp_sending import TwinAmqpSending
from vespiary_native.twin.branches import Branches
from vespiary_native.twin.counting import TwinCounts
from vespiary_native.twin.inspection import TwinInspection
from vespiary_native.twin.mqtt import TwinMqtt
from vespiary_native.twin.mqtt_sending import TwinMqttSending
from vespiary_native.twin.page_calls import TwinPages
from vespiary_native.twin.pages import Pages
from vespiary_native.twin.ranges import TwinRanges
from vespiary_native.twin.recovery import Recovery
from vespiary_native.twin.routes import Routes
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Connection, Consumer, Queue
from vespiary_native.twin.switching import Switched, TwinSwitching
from vespiary_native.twin.tables import free_handle

QUEUE_ID_MAX = 2**31 - 1
CREDIT_MAX = 2**31 - 1
SUBSCRIPTION_BYTES_MAX = 65535
DESTINATIONS_MAX = 4096
"""Destinations that a connection may use without asking; who uses more asks again."""


class TwinCore(
    AccountCalls,
    Routes,
    TwinAmqp,
    TwinAmqpSending,
    TwinCounts,
    TwinInspection,
    TwinMqtt,
    TwinMqttSending,
    TwinPages,
    TwinRanges,
    TwinSwitching,
):
    """See `vespiary_native.abc.Core`.

    Args:
        slab_bytes: Unit of memory, a power of two.
        block_bytes: Largest block with more than one record.
        slabs_max: Largest number of slabs.
        record_bytes_max: Largest record, at most `slab_bytes - 8192`.
    """

    def __init__(
        self,
        *,
        slab_bytes: int = SLAB_BYTES,
        block_bytes: int = BLOCK_BYTES,
        slabs_max: int,
        record_bytes_max: int,
    ) -> None:
        super().__init__(
            Staging(
                slab_bytes=slab_bytes,
                block_bytes=block_bytes,
                slabs_max=slabs_max,
                record_bytes_max=record_bytes_max,
            )
        )
        self._recovery = Recovery(self._image, self._staging.large, self._staging.accounts)
        self._branches = Branches(self._queues)
        self._pages = Pages(self._staging, self._queues, self._branches)
        self._switched = Switched()

    @property
    def record_bytes_max(self) -> int:
        """See `abc.Core.record_bytes_max`."""
        return self._staging.record_bytes_max

    # --- the image and its files ------------------------------------------------------------------
    def set_time(self, now_ms: int) -> None:
        """See `abc.Core.set_time`."""
        self._blocks.now_ms = now_ms

    def add_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """See `abc.Core.add_file`."""
        self._image.add_file(file_id, salt, size_bytes)
        self._image.files_ahead += 1
        self._blocks.update_add_limit()

    def start(self, sequence: int, previous_crc: int, durable_sequence: int) -> None:
        """See `abc.Core.start`."""
        self._blocks.start(sequence, previous_crc, durable_sequence)

    def grow(self, slabs: int) -> int:
        """See `abc.Core.grow`."""
        return self._image.grow(slabs)

    def make_slab(self) -> object:
        """See `abc.Core.make_slab`."""
        return self._image.make_buffer()

    def add_slab(self, slab: object) -> bool:
        """See `abc.Core.add_slab`."""
        assert isinstance(slab, AlignedBuffer)
        return self._image.add_buffer(slab)

    def hold_adds(self, *, held: bool) -> None:
        """See `abc.Core.hold_adds`."""
        self._blocks.are_adds_held = held

    def files_ahead(self) -> int:
        """See `abc.Core.files_ahead`."""
        return self._image.files_ahead

    def current_file(self) -> int:
        """See `abc.Core.current_file`."""
        return self._image.current.file_id if self._image.current is not None else 0

    def live_places(self, file_id: int) -> int:
        """See `abc.Core.live_places`."""
        return self._image.file(file_id).live

    def live_bytes(self, file_id: int) -> int:
        """See `abc.Core.live_bytes`."""
        return self._image.file(file_id).live_bytes

    def relocate(
        self, file_id: int, slab: int, offset: int, record: int, max_bytes: int, max_places: int
    ) -> Relocation:
        """See `abc.Core.relocate`.

        Durability: the copies are durable with their blocks.
        """
        walk = compaction.Walk(self._staging, self._queues, self._consumers.values())
        return walk.relocate(
            self._image.file(file_id), slab, (offset, record), max_bytes, max_places
        )

    def cancels(self, file_id: int) -> list[int]:
        """See `abc.Core.cancels`."""
        return sorted(file.file_id for file in self._image.file(file_id).cancels)

    def forget_file(self, file_id: int) -> None:
        """See `abc.Core.forget_file`."""
        self._image.forget(file_id)

    def image_statistics(self) -> ImageStatistics:
        """See `abc.Core.image_statistics`."""
        image, blocks = self._image, self._blocks
        return ImageStatistics(
            slabs_total=image.slabs_total,
            slabs_free=image.slabs_free,
            slabs_max=image.slabs_max,
            files_ahead=image.files_ahead,
            blocks_unwritten=blocks.unwritten,
            unwritten_bytes=blocks.unwritten_bytes,
            sequence_sealed=blocks.sequence - 1,
            sequence_durable=image.durable_sequence,
            records_added=blocks.records_added,
            payload_bytes=blocks.payload_bytes,
            live_bytes=image.live_bytes,
        )

    # --- writing ----------------------------------------------------------------------------------
    def has_unwritten(self) -> bool:
        """See `abc.Core.has_unwritten`."""
        return self._blocks.has_unwritten()

    def is_urgent(self) -> bool:
        """See `abc.Core.is_urgent`."""
        return self._blocks.is_urgent()

    def seal_write(self) -> WriteRequest | None:
        """See `abc.Core.seal_write`."""
        return self._blocks.seal_write()

    def write_done(self, sequence: int) -> None:
        """See `abc.Core.write_done`.

        Durability: nothing is confirmed or delivered before this call.
        """
        self._staging.write_done(sequence)
        self._branches.write_done(self._staging, sequence)

    def stage_empty_block(self) -> None:
        """See `abc.Core.stage_empty_block`."""
        self._blocks.want_empty_block()

    def append_record(self, type_: int, body: bytes, *, flags: int = 0, urgent: bool = True) -> int:
        """See `abc.Core.append_record`."""
        return self._staging.append(type_, body, flags=flags, is_urgent=urgent)

    # --- queues -----------------------------------------------------------------------------------
    def open_queue(self, queue_id: int, tail: int = 1, *, durable: bool = True) -> None:
        """See `abc.Core.open_queue`."""
        is_possible = 0 <= queue_id <= QUEUE_ID_MAX and 1 <= tail <= SEQUENCE_MAX + 1
        if not is_possible or queue_id in self._queues:
            raise ValueError(
                f"queue {queue_id} with tail {tail} cannot be opened: its id must be new and at"
                f" most {QUEUE_ID_MAX}, its tail from 1 to {SEQUENCE_MAX + 1}"
            )
        total = self._staging.accounts.total
        total.queues += 1
        self._queues[queue_id] = Queue(queue_id, tail, total, is_durable=durable)

    def drop_queue(self, queue_id: int) -> None:
        """See `abc.Core.drop_queue`."""
        queue = self._queue(queue_id)
        if queue.consumers or self._staging.transaction:
            raise ValueError(
                f"queue {queue_id} cannot be dropped: it has {queue.consumers} consumers,"
                f" transaction {self._staging.transaction or 'none'}"
            )
        is_held = queue.reserved or queue.locked or queue.extents.locked
        if queue.is_durable and is_held:
            raise ValueError(f"queue {queue_id} cannot be dropped: prepared branches hold messages")
        for route in self._routes.values():
            if queue in route.queues:
                route.set([other for other in route.queues if other is not queue])
        del self._queues[queue_id]
        self._pages.forget_queue(queue)
        self._staging.forget_queue(queue)
        queue.account.queues -= 1

    def purge_queue(self, queue_id: int) -> int:
        """See `abc.Core.purge_queue`."""
        queue = self._queue(queue_id)
        if self._staging.transaction:
            raise ValueError("a queue cannot be purged inside a transaction")
        return self._pages.finish(queue) + delivery.purge(self._staging, queue)

    def queue_statistics(self, queue_id: int) -> QueueStatistics:
        """See `abc.Core.queue_statistics`."""
        return self._queue(queue_id).statistics()

    def queue_totals(self) -> tuple[int, int]:
        """See `CoreAccounts.queue_totals`."""
        queues = self._queues.values()
        return sum(queue.added for queue in queues), sum(queue.acknowledged for queue in queues)

    def queue_states(self) -> bytes:
        """See `abc.Core.queue_states`."""
        return b"".join(
            QUEUE_STATE.pack(queue_id, 0, queue.head, queue.tail)
            for queue_id, queue in sorted(self._queues.items())
            if queue.is_durable
        )

    # --- connections ------------------------------------------------------------------------------
    def open_connection(self) -> int:
        """See `abc.Core.open_connection`."""
        for handle, known in list(self._connections.items()):
            # A handle is used again when nothing of its old connection waits any more.
            if not (known.is_open or known.notes_pending or known in self._staging.released):
                del self._connections[handle]
        handle = free_handle(self._connections)
        self._connections[handle] = Connection(handle)
        return handle

    def set_ready(self, connection: int, version: int, limits: tuple[int, int, int, int]) -> None:
        """See `abc.Core.set_ready`."""
        known = self._connection(connection)
        known.is_ready = True
        known.version = version
        known.header_lines_max, known.header_line_max, known.headers_max, known.body_max = limits
        known.safe_bytes = min(limits[1], limits[2])
        known.forget_plans()

    def teach(self, connection: int, destination: bytes, route: int) -> None:
        """See `abc.Core.teach`."""
        known = self._connection(connection)
        if not destination:
            raise ValueError("a destination must not be empty")
        to = self._route(route)
        if len(known.taught) >= DESTINATIONS_MAX:
            known.taught.clear()
        known.taught[bytes(destination)] = to
        known.forget_plans()

    def close_connection(self, connection: int) -> None:
        """See `abc.Core.close_connection`."""
        known = self._connection(connection)
        if any(known.consumers.values()):
            raise ValueError(f"connection {connection} has open consumers")
        self._switched.clear()
        known.is_open = False

    def attach_buffer(self, buffer: bytearray) -> int:
        """See `abc.Core.attach_buffer`."""
        handle = free_handle(self._buffers)
        self._buffers[handle] = memoryview(buffer)
        return handle

    def detach_buffer(self, buffer: int) -> None:
        """See `abc.Core.detach_buffer`."""
        self._switched.clear()
        self._buffer(buffer).release()
        del self._buffers[buffer]

    def scan_stomp(
        self, connection: int, buffer: int, start: int, end: int
    ) -> tuple[int, int, int]:
        """See `abc.Core.scan_stomp`."""
        known, view = self._connection(connection), self._buffer(buffer)
        if not 0 <= start <= end <= len(view):
            raise ValueError(f"bytes {start} to {end} are not in a buffer of {len(view)}")
        return stomp.scan(self._staging, known, self._switched, view, start, end)

    def receipt(self, connection: int, data: bytes) -> None:
        """See `abc.Core.receipt`."""
        self._staging.receipt(self._connection(connection), data, is_for_all=True)

    def take_receipts(self) -> list[tuple[int, bytes]]:
        """See `abc.Core.take_receipts`."""
        released = self._staging.released
        taken = []
        for connection in released:
            if connection.is_open and connection.output:
                taken.append((connection.handle, b"".join(connection.output)))
            connection.output.clear()
        released.clear()
        return taken

    def take_ready_queues(self) -> list[int]:
        """See `abc.Core.take_ready_queues`."""
        ready = self._staging.ready
        taken = []
        for queue in ready:
            queue.is_listed = False
            if queue.is_deliverable:
                taken.append(queue.queue_id)
        ready.clear()
        return taken

    # --- the slow path ----------------------------------------------------------------------------
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
        """See `abc.Core.publish`."""
        to = self._queues_route(route)
        self._check_transaction(transaction)
        self._staging.add(
            to,
            properties,
            body,
            is_persistent=persistent,
            protocol=protocol,
            priority=priority,
            flags=escaped * RecordFlag.ESCAPED.value
            | large * RecordFlag.LARGE.value
            | special * RecordFlag.SPECIAL.value,
        )
        return len(to.queues)

    def begin(
        self, transaction: int, size_bytes: int, records: int, *, branch: bool = False
    ) -> None:
        """See `abc.Core.begin`."""
        if transaction in self._branches.prepared:
            raise ValueError(f"transaction {transaction} is a prepared branch")
        self._staging.begin(transaction, size_bytes, records, is_branch=branch)

    def commit(self, transaction: int) -> None:
        """See `abc.Core.commit`."""
        self._staging.commit(transaction)

    def abort(self, transaction: int) -> None:
        """See `abc.Core.abort`.

        Durability: nothing of the transaction counts, whatever of it is in the journal.
        """
        self._staging.abort(transaction)

    # --- prepared branches ------------------------------------------------------------------------
    def prepare(self, transaction: int, data: bytes) -> int:
        """See `abc.Core.prepare`.

        Durability: the branch is prepared once the block that is returned is durable.
        """
        return self._branches.prepare(self._staging, transaction, data)

    def resolve(self, transaction: int, *, commit: bool) -> int:
        """See `abc.Core.resolve`.

        Durability: the outcome holds once the block that is returned is durable.
        """
        return self._branches.resolve(self._staging, transaction, is_commit=commit)

    def branches(self) -> list[BranchFacts]:
        """See `abc.Core.branches`."""
        return self._branches.facts()

    def branch_members(self, transaction: int) -> list[BranchMember]:
        """See `abc.Core.branch_members`."""
        return self._branches.members(transaction)

    def branch_data(self, transaction: int) -> bytes:
        """See `abc.Core.branch_data`."""
        return self._branches.data(transaction)

    def branches_in(self, file_id: int) -> list[int]:
        """See `abc.Core.branches_in`."""
        return self._branches.in_file(self._image.file(file_id))

    def branch_copy(self, transaction: int, journal_id: int) -> tuple[int, int] | None:
        """See `abc.Core.branch_copy`.

        Durability: a file may be freed once a checkpoint behind the copies is durable.
        """
        return self._branches.copy(self._staging, transaction, journal_id)

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
        """See `abc.Core.open_consumer`."""
        known, queue = self._connection(connection), self._queue(queue_id)
        _check_credit(credit)
        if version not in (STORED_VERSION, 10, 11, 12):
            raise ValueError(f"version {version} is not 0, 10, 11 or 12")
        if len(subscription) > SUBSCRIPTION_BYTES_MAX:
            raise ValueError(
                f"a subscription's id has {len(subscription)} bytes:"
                f" at most {SUBSCRIPTION_BYTES_MAX} are allowed"
            )
        handle = free_handle(self._consumers)
        consumer = Consumer(handle, known, queue, AckMode(mode), credit, subscription, version)
        self._consumers[handle] = consumer
        known.consumers.setdefault(queue_id, []).append(consumer)
        queue.consumers += 1
        self._staging.queue_ready(queue)
        return handle

    def deliver(
        self, consumer: int, max_messages: int, max_bytes: int
    ) -> tuple[DeliverStatus, int, bytes]:
        """See `abc.Core.deliver`."""
        return delivery.deliver(self._staging, self._consumer(consumer), max_messages, max_bytes)

    def next_large(self, consumer: int) -> LargeBody | None:
        """See `abc.Core.next_large`."""
        return delivery.next_large(self._consumer(consumer).queue)

    def take_large(self, consumer: int) -> LargeDelivery | None:
        """See `abc.Core.take_large`."""
        known = self._consumer(consumer)
        return delivery.give_large(self._staging, known, delivery.next_sequence(known.queue))

    def take_done_large(self) -> list[int]:
        """See `abc.Core.take_done_large`.

        Durability: only what ended in durable blocks.
        """
        return self._staging.large.take_done(self._image.durable_sequence)

    def live_large(self) -> list[LargeBody]:
        """See `abc.Core.live_large`."""
        return self._staging.large.live()

    def absent_slab(self, consumer: int) -> tuple[int, int]:
        """See `abc.Core.absent_slab`."""
        return delivery.next_slab(self._consumer(consumer).queue)

    def load_begin(self, file_id: int, slab: int) -> tuple[int, int, int] | None:
        """See `abc.Core.load_begin`."""
        return self._image.load_begin(file_id, slab)

    def load_done(self, file_id: int, slab: int, *, good: bool) -> None:
        """See `abc.Core.load_done`."""
        self._image.load_done(file_id, slab, good=good)
        for queue in self._queues.values():
            if queue.waits_for_slab:
                queue.waits_for_slab = False
                self._staging.queue_ready(queue)

    def acknowledge(self, consumer: int, sequence: int, *, transaction: int = 0) -> int:
        """See `abc.Core.acknowledge`."""
        by = self._consumer(consumer)
        self._check_transaction(transaction)
        return delivery.acknowledge(self._staging, by, sequence)

    def holder(self, connection: int, queue_id: int, sequence: int) -> int:
        """See `abc.Core.holder`."""
        known = self._connections.get(connection)
        consumer = known.holder(queue_id, sequence) if known is not None else None
        return consumer.handle if consumer is not None else -1

    def give_back(self, consumer: int, sequence: int, *, counted: bool = True) -> int:
        """See `abc.Core.give_back`."""
        by = self._consumer(consumer)
        if sequence not in by.held:
            return 0
        return delivery.give_back(self._staging, by, by.held_up_to(sequence), is_counted=counted)

    def set_credit(self, consumer: int, credit: int) -> None:
        """See `abc.Core.set_credit`."""
        known = self._consumer(consumer)
        _check_credit(credit, least=0)
        known.credit = credit
        self._staging.queue_ready(known.queue)

    def close_consumer(self, consumer: int, *, counted: bool = True) -> int:
        """See `abc.Core.close_consumer`."""
        known = self._consumer(consumer)
        returned = delivery.give_back(self._staging, known, sorted(known.held), is_counted=counted)
        known.queue.consumers -= 1
        known.connection.sent.orphan(known)
        session = known.outgoing
        if session is not None:
            session.drop(known)
        of_queue = known.connection.consumers[known.queue.queue_id]
        of_queue.remove(known)
        if not of_queue:
            del known.connection.consumers[known.queue.queue_id]
        del self._consumers[consumer]
        return returned

    # --- recovery ---------------------------------------------------------------------------------
    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """See `abc.Core.restore_file`."""
        if self._image.files_ahead or self._image.current is not None:
            raise ValueError(f"file {file_id} cannot be restored: files were added already")
        self._image.add_file(file_id, salt, size_bytes)

    def restore_block(
        self, file_id: int, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """See `abc.Core.restore_block`."""
        file = self._image.file(file_id)
        return self._recovery.restore_block(self._queues, file, offset, block)

    def restore_done(self) -> int:
        """See `abc.Core.restore_done`."""
        dropped = self._recovery.done(self._queues, self._branches)
        for queue in self._queues.values():
            queue.restored()
            self._staging.queue_ready(queue)
        return dropped


def _check_credit(credit: int, least: int = 1) -> None:
    if not least <= credit <= CREDIT_MAX:
        raise ValueError(f"credit {credit} is not from {least} to {CREDIT_MAX}")
