"""`NativeCore`: the contract of `vespiary_native.abc.Core` over the C core (native/src/core.h).

Owns the one `vespiary_core` pointer and nothing else: every method is one call into C, with numbers
and pointers in and numbers and bytes out. No cffi object leaves this module. Made by
`vespiary_native.choice`.
"""

from __future__ import annotations

import errno
from operator import attrgetter
from typing import Any

from vespiary_native.abc import (
    BLOCK_BYTES,
    SLAB_BYTES,
    AckMode,
    BlockFacts,
    BranchFacts,
    BranchMember,
    DeliverStatus,
    ImageStatistics,
    LargeBody,
    LargeDelivery,
    NoSequenceLeft,
    QueueStatistics,
    Relocation,
    WriteRequest,
)
from vespiary_native.abc_amqp import LINKS_MAX
from vespiary_native.answers import DELIVER_STATUS, check
from vespiary_native.core_accounts import NativeAccounts
from vespiary_native.core_amqp import NativeAmqp
from vespiary_native.core_amqp_sending import NativeAmqpSending
from vespiary_native.core_counts import NativeCounts
from vespiary_native.core_mqtt import NativeMqtt
from vespiary_native.core_pages import NativePages
from vespiary_native.core_ranges import NativeRanges
from vespiary_native.core_routes import NativeRoutes
from vespiary_native.core_switching import SCAN_STATUS, NativeSwitching
from vespiary_native.inspection import NativeInspection
from vespiary_native.loader import ffi, lib

_IMAGE_FIELDS = attrgetter(*ImageStatistics._fields)  # asked for with every write
_BATCH = 1024  # ids fetched with one call


class NativeCore(
    NativeAccounts,
    NativeAmqp,
    NativeAmqpSending,
    NativeCounts,
    NativeInspection,
    NativeMqtt,
    NativePages,
    NativeRanges,
    NativeRoutes,
    NativeSwitching,
):
    """The C core. Owner: the event loop's thread, through the store and the engine."""

    def __init__(
        self,
        *,
        slab_bytes: int = SLAB_BYTES,
        block_bytes: int = BLOCK_BYTES,
        slabs_max: int,
        record_bytes_max: int,
    ) -> None:
        super().__init__()
        self._record_bytes_max = record_bytes_max
        self._slab_bytes = slab_bytes
        self._page_bytes = {}
        core = lib.vespiary_core_new(slab_bytes, block_bytes, slabs_max, record_bytes_max)
        if core == ffi.NULL:
            raise ValueError(
                f"core: slab_bytes={slab_bytes} (a power of two, 16384 or more), "
                f"block_bytes={block_bytes} (4096 or more), slabs_max={slabs_max} (2 or more), "
                f"record_bytes_max={record_bytes_max} (64 to slab_bytes - 8192): "
                "one is out of range"
            )
        self._core: Any = ffi.gc(core, lib.vespiary_core_free)
        self._result = ffi.new("vespiary_result *")
        self._write = ffi.new("vespiary_write *")
        self._frames = ffi.new("const uint8_t **")
        self._image = ffi.new("vespiary_image_statistics *")
        self._relocation = ffi.new("vespiary_relocation *")
        self._handle = ffi.new("uint32_t *")
        self._length = ffi.new("uint32_t *")
        self._file_id = ffi.new("uint64_t *")
        self._ids = ffi.new(f"uint32_t[{_BATCH}]")
        self._large = ffi.new("vespiary_large *")
        self._taken = ffi.new(f"vespiary_taken[{LINKS_MAX}]")
        self._statistics = ffi.new("vespiary_queue_statistics *")
        self._counters = ffi.cast("uint64_t *", self._statistics)  # its fields, all of one type
        self._look = ffi.new("vespiary_look *")
        self._large_ids = ffi.new(f"uint64_t[{_BATCH}]")
        self._buffers: dict[int, Any] = {}

    @property
    def record_bytes_max(self) -> int:
        """See `Core.record_bytes_max`."""
        return self._record_bytes_max

    # --- the image and its files ----------------------------------------------------------------
    def set_time(self, now_ms: int) -> None:
        """See `Core.set_time`."""
        lib.vespiary_core_set_time(self._core, now_ms)

    def add_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """See `Core.add_file`."""
        check(lib.vespiary_core_add_file(self._core, file_id, salt, size_bytes), "add_file")

    def start(self, sequence: int, previous_crc: int, durable_sequence: int) -> None:
        """See `Core.start`."""
        check(
            lib.vespiary_core_start(self._core, sequence, previous_crc, durable_sequence), "start"
        )

    def grow(self, slabs: int) -> int:
        """See `Core.grow`."""
        return int(lib.vespiary_core_grow(self._core, slabs))

    def make_slab(self) -> object:
        """See `Core.make_slab`."""
        memory = lib.vespiary_slab_map(self._slab_bytes)
        if memory == ffi.NULL:
            raise MemoryError(f"no memory for a slab of {self._slab_bytes} bytes")
        return memory

    def add_slab(self, slab: object) -> bool:
        """See `Core.add_slab`."""
        return bool(lib.vespiary_core_add_slab(self._core, slab))

    def hold_adds(self, *, held: bool) -> None:
        """See `Core.hold_adds`."""
        lib.vespiary_core_hold_adds(self._core, held)

    def files_ahead(self) -> int:
        """See `Core.files_ahead`."""
        return int(lib.vespiary_core_files_ahead(self._core))

    def current_file(self) -> int:
        """See `Core.current_file`."""
        return int(lib.vespiary_core_current_file(self._core))

    def live_places(self, file_id: int) -> int:
        """See `Core.live_places`."""
        return check(lib.vespiary_core_live_places(self._core, file_id), "live_places")

    def live_bytes(self, file_id: int) -> int:
        """See `Core.live_bytes`."""
        return check(lib.vespiary_core_live_bytes(self._core, file_id), "live_bytes")

    def relocate(
        self, file_id: int, slab: int, offset: int, record: int, max_bytes: int, max_places: int
    ) -> Relocation:
        """See `Core.relocate`.

        Durability: the copies are durable with their blocks.
        """
        out = self._relocation
        bad = lib.vespiary_core_relocate(
            self._core, file_id, slab, offset, record, max_bytes, max_places, out
        )
        check(bad, f"relocate({file_id}, {slab}, {offset}, {record})")
        return Relocation(out.next, out.next_record, out.bytes, out.places, bool(out.is_absent))

    def cancels(self, file_id: int) -> list[int]:
        """See `Core.cancels`."""
        room = 64
        while True:
            out = ffi.new("uint64_t[]", room)
            count = check(lib.vespiary_core_cancels(self._core, file_id, out, room), "cancels")
            if count <= room:
                return sorted(ffi.unpack(out, count)) if count else []
            room = count

    def forget_file(self, file_id: int) -> None:
        """See `Core.forget_file`."""
        check(lib.vespiary_core_forget_file(self._core, file_id), "forget_file")

    def image_statistics(self) -> ImageStatistics:
        """See `Core.image_statistics`."""
        out = self._image
        lib.vespiary_core_image_statistics(self._core, out)
        return ImageStatistics._make(_IMAGE_FIELDS(out))

    # --- writing --------------------------------------------------------------------------------
    def has_unwritten(self) -> bool:
        """See `Core.has_unwritten`."""
        return bool(lib.vespiary_core_has_unwritten(self._core))

    def is_urgent(self) -> bool:
        """See `Core.is_urgent`."""
        return bool(lib.vespiary_core_is_urgent(self._core))

    def seal_write(self) -> WriteRequest | None:
        """See `Core.seal_write`."""
        out = self._write
        if not check(lib.vespiary_core_seal_write(self._core, out), "seal_write"):
            return None
        return WriteRequest(out.file_id, out.offset, out.address, out.length, out.sequence)

    def write_done(self, sequence: int) -> None:
        """See `Core.write_done`."""
        check(lib.vespiary_core_write_done(self._core, sequence), f"write_done({sequence})")

    def stage_empty_block(self) -> None:
        """See `Core.stage_empty_block`."""
        lib.vespiary_core_stage_empty_block(self._core)

    def append_record(self, type_: int, body: bytes, *, flags: int = 0, urgent: bool = True) -> int:
        """See `Core.append_record`."""
        return check(
            lib.vespiary_core_append_record(self._core, type_, flags, body, len(body), urgent),
            "append_record",
        )

    # --- queues ---------------------------------------------------------------------------------
    def open_queue(self, queue_id: int, tail: int = 1, *, durable: bool = True) -> None:
        """See `Core.open_queue`."""
        check(
            lib.vespiary_core_open_queue(self._core, queue_id, tail, durable),
            f"open_queue({queue_id})",
        )

    def drop_queue(self, queue_id: int) -> None:
        """See `Core.drop_queue`."""
        check(lib.vespiary_core_drop_queue(self._core, queue_id), f"drop_queue({queue_id})")

    def purge_queue(self, queue_id: int) -> int:
        """See `Core.purge_queue`."""
        return check(
            lib.vespiary_core_purge_queue(self._core, queue_id), f"purge_queue({queue_id})"
        )

    def queue_statistics(self, queue_id: int) -> QueueStatistics:
        """See `Core.queue_statistics`."""
        bad = lib.vespiary_core_queue_statistics(self._core, queue_id, self._statistics)
        if bad:
            check(bad, f"queue_statistics({queue_id})")
        return QueueStatistics._make(ffi.unpack(self._counters, len(QueueStatistics._fields)))

    def queue_states(self) -> bytes:
        """See `Core.queue_states`."""
        needed = check(lib.vespiary_core_queue_states(self._core, ffi.NULL, 0), "queue_states")
        out = ffi.new("uint8_t[]", needed)
        check(lib.vespiary_core_queue_states(self._core, out, needed), "queue_states")
        return bytes(ffi.buffer(out, needed))

    # --- connections ----------------------------------------------------------------------------
    def open_connection(self) -> int:
        """See `Core.open_connection`."""
        return check(lib.vespiary_core_open_connection(self._core), "open_connection")

    def set_ready(self, connection: int, version: int, limits: tuple[int, int, int, int]) -> None:
        """See `Core.set_ready`."""
        check(lib.vespiary_core_set_ready(self._core, connection, version, *limits), "set_ready")

    def teach(self, connection: int, destination: bytes, route: int) -> None:
        """See `Core.teach`."""
        check(
            lib.vespiary_core_teach(self._core, connection, destination, len(destination), route),
            "teach",
        )

    def close_connection(self, connection: int) -> None:
        """See `Core.close_connection`."""
        check(lib.vespiary_core_close_connection(self._core, connection), "close_connection")

    def attach_buffer(self, buffer: bytearray) -> int:
        """See `Core.attach_buffer`."""
        memory = ffi.from_buffer("uint8_t[]", buffer)
        handle = check(
            lib.vespiary_core_attach_buffer(self._core, memory, len(buffer)), "attach_buffer"
        )
        self._buffers[handle] = memory  # keeps the bytearray from being resized
        return handle

    def detach_buffer(self, buffer: int) -> None:
        """See `Core.detach_buffer`."""
        check(lib.vespiary_core_detach_buffer(self._core, buffer), "detach_buffer")
        ffi.release(self._buffers.pop(buffer))

    def scan_stomp(
        self, connection: int, buffer: int, start: int, end: int
    ) -> tuple[int, int, int]:
        """See `Core.scan_stomp`."""
        out = self._result
        bad = lib.vespiary_core_scan_stomp(self._core, connection, buffer, start, end, out)
        if bad:
            check(bad, "scan_stomp")
        return SCAN_STATUS[out.status], out.position, out.detail

    def receipt(self, connection: int, data: bytes) -> None:
        """See `Core.receipt`."""
        check(lib.vespiary_core_receipt(self._core, connection, data, len(data)), "receipt")

    def take_receipts(self) -> list[tuple[int, bytes]]:
        """See `Core.take_receipts`."""
        taken = []
        take, core = lib.vespiary_core_take_receipt, self._core
        handle, data, length = self._handle, self._frames, self._length
        while take(core, handle, data, length):
            taken.append((handle[0], bytes(ffi.buffer(data[0], length[0]))))
        return taken

    def take_ready_queues(self) -> list[int]:
        """See `Core.take_ready_queues`."""
        ids: list[int] = []
        while count := lib.vespiary_core_take_ready_queues(self._core, self._ids, _BATCH):
            ids += ffi.unpack(self._ids, count)
            if count < _BATCH:
                break
        return ids

    # --- the slow path --------------------------------------------------------------------------
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
        """See `Core.publish`."""
        result = lib.vespiary_core_publish(
            self._core, route, properties, len(properties), ffi.from_buffer(body), len(body),
            persistent, protocol, priority, escaped, large, special, transaction,
        )  # fmt: skip
        if result == -errno.EMSGSIZE:
            raise ValueError(
                f"a message of {len(properties)} bytes of headers and {len(body)} bytes of body "
                f"does not fit into a journal record of {self._record_bytes_max} bytes"
            )
        if result == -errno.EOVERFLOW:
            raise NoSequenceLeft
        return check(result, "publish")

    def begin(
        self, transaction: int, size_bytes: int, records: int, *, branch: bool = False
    ) -> None:
        """See `Core.begin`."""
        check(
            lib.vespiary_core_begin(self._core, transaction, size_bytes, records, branch), "begin"
        )

    def abort(self, transaction: int) -> None:
        """See `Core.abort`.

        Durability: nothing of the transaction counts, whatever of it is in the journal.
        """
        check(lib.vespiary_core_abort(self._core, transaction), "abort")

    def commit(self, transaction: int) -> None:
        """See `Core.commit`."""
        check(lib.vespiary_core_commit(self._core, transaction), "commit")

    # --- prepared branches ----------------------------------------------------------------------
    def prepare(self, transaction: int, data: bytes) -> int:
        """See `Core.prepare`."""
        return check(lib.vespiary_core_prepare(self._core, transaction, data, len(data)), "prepare")

    def resolve(self, transaction: int, *, commit: bool) -> int:
        """See `Core.resolve`."""
        return check(lib.vespiary_core_resolve(self._core, transaction, commit), "resolve")

    def branches(self) -> list[BranchFacts]:
        """See `Core.branches`."""
        room = check(lib.vespiary_core_branches(self._core, ffi.NULL, 0), "branches")
        out = ffi.new("vespiary_branch_facts[]", room)
        lib.vespiary_core_branches(self._core, out, room)
        found = [
            BranchFacts(
                facts.transaction,
                facts.block,
                facts.records,
                facts.places,
                facts.missing,
                bool(facts.is_whole),
                facts.outcome,
            )
            for facts in out
        ]
        return sorted(found, key=lambda facts: facts.transaction)

    def branch_members(self, transaction: int) -> list[BranchMember]:
        """See `Core.branch_members`."""
        members = lib.vespiary_core_branch_members
        room = check(members(self._core, transaction, ffi.NULL, 0), "branch_members")
        out = ffi.new("vespiary_branch_member[]", room)
        members(self._core, transaction, out, room)
        return [
            BranchMember(m.queue_id, m.sequence, bool(m.is_acknowledgement), bool(m.is_missing))
            for m in out
        ]

    def branch_data(self, transaction: int) -> bytes:
        """See `Core.branch_data`."""
        length = check(
            lib.vespiary_core_branch_data(self._core, transaction, self._frames), "branch_data"
        )
        return bytes(ffi.buffer(self._frames[0], length))

    def branches_in(self, file_id: int) -> list[int]:
        """See `Core.branches_in`."""
        asked = lib.vespiary_core_branches_in
        room = check(asked(self._core, file_id, ffi.NULL, 0), f"branches_in({file_id})")
        if not room:
            return []
        out = ffi.new("uint64_t[]", room)
        asked(self._core, file_id, out, room)
        return sorted(out)

    def branch_copy(self, transaction: int, journal_id: int) -> tuple[int, int] | None:
        """See `Core.branch_copy`."""
        block = lib.vespiary_core_branch_copy(
            self._core, transaction, journal_id, self._file_id, self._length
        )
        if check(block, f"branch_copy({transaction})"):
            return None
        return self._file_id[0], self._length[0]

    # --- consumers ------------------------------------------------------------------------------
    def open_consumer(
        self,
        connection: int,
        queue_id: int,
        mode: AckMode,
        credit: int,
        subscription: bytes,
        version: int,
    ) -> int:
        """See `Core.open_consumer`."""
        return check(
            lib.vespiary_core_open_consumer(
                self._core, connection, queue_id, mode, credit, subscription, len(subscription),
                version,
            ),
            "open_consumer",
        )  # fmt: skip

    def deliver(
        self, consumer: int, max_messages: int, max_bytes: int
    ) -> tuple[DeliverStatus, int, bytes]:
        """See `Core.deliver`."""
        out, frames = self._result, self._frames
        count = lib.vespiary_core_deliver(
            self._core, consumer, max_messages, max_bytes, out, frames
        )
        if count < 0:
            check(count, f"deliver({consumer})")
        data = bytes(ffi.buffer(frames[0], out.position)) if count else b""
        return DELIVER_STATUS[out.status], count, data

    def next_large(self, consumer: int) -> LargeBody | None:
        """See `Core.next_large`."""
        out = self._large
        found = lib.vespiary_core_next_large(self._core, consumer, out)
        if not check(found, f"next_large({consumer})"):
            return None
        return LargeBody(out.id, out.size, out.crc)

    def take_large(self, consumer: int) -> LargeDelivery | None:
        """See `Core.take_large`."""
        out, head = self._large, self._frames
        found = lib.vespiary_core_take_large(self._core, consumer, out, head)
        return self._large_delivery(check(found, f"take_large({consumer})"))

    def take_done_large(self) -> list[int]:
        """See `Core.take_done_large`."""
        ids: list[int] = []
        while count := lib.vespiary_core_take_done_large(self._core, self._large_ids, _BATCH):
            ids += ffi.unpack(self._large_ids, count)
            if count < _BATCH:
                break
        return ids

    def live_large(self) -> list[LargeBody]:
        """See `Core.live_large`."""
        count = lib.vespiary_core_live_large(self._core, ffi.NULL, 0)
        out = ffi.new("vespiary_large[]", count)
        lib.vespiary_core_live_large(self._core, out, count)
        return [LargeBody(one.id, one.size, one.crc) for one in out[0:count]]

    def absent_slab(self, consumer: int) -> tuple[int, int]:
        """See `Core.absent_slab`."""
        lib.vespiary_core_absent_slab(self._core, consumer, self._file_id, self._length)
        return self._file_id[0], self._length[0]

    def load_begin(self, file_id: int, slab: int) -> tuple[int, int, int] | None:
        """See `Core.load_begin`."""
        result = lib.vespiary_core_load_begin(self._core, file_id, slab, self._write)
        if result in (-errno.ENOSPC, -errno.EALREADY):
            return None
        check(result, f"load_begin({file_id}, {slab})")
        return self._write.address, self._write.length, self._write.offset

    def load_done(self, file_id: int, slab: int, *, good: bool) -> None:
        """See `Core.load_done`."""
        check(
            lib.vespiary_core_load_done(self._core, file_id, slab, good),
            f"load_done({file_id}, {slab})",
        )

    def acknowledge(self, consumer: int, sequence: int, *, transaction: int = 0) -> int:
        """See `Core.acknowledge`."""
        return check(
            lib.vespiary_core_acknowledge(self._core, consumer, sequence, transaction),
            f"acknowledge({consumer})",
        )

    def holder(self, connection: int, queue_id: int, sequence: int) -> int:
        """See `Core.holder`."""
        return int(lib.vespiary_core_holder(self._core, connection, queue_id, sequence))

    def give_back(self, consumer: int, sequence: int, *, counted: bool = True) -> int:
        """See `Core.give_back`."""
        return check(
            lib.vespiary_core_give_back(self._core, consumer, sequence, counted),
            f"give_back({consumer})",
        )

    def set_credit(self, consumer: int, credit: int) -> None:
        """See `Core.set_credit`."""
        check(lib.vespiary_core_set_credit(self._core, consumer, credit), "set_credit")

    def close_consumer(self, consumer: int, *, counted: bool = True) -> int:
        """See `Core.close_consumer`."""
        return check(
            lib.vespiary_core_close_consumer(self._core, consumer, counted),
            f"close_consumer({consumer})",
        )

    # --- recovery -------------------------------------------------------------------------------
    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        """See `Core.restore_file`."""
        check(lib.vespiary_core_restore_file(self._core, file_id, salt, size_bytes), "restore_file")

    def restore_block(
        self, file_id: int, offset: int, block: memoryview
    ) -> list[tuple[int, bytes]]:
        """See `Core.restore_block`."""
        # As many as the block says, but never more than fit into it: a record has 8 bytes at least.
        room = min(int.from_bytes(block[36:40], "little"), len(block) // 8)
        others = ffi.new("vespiary_other_record[]", max(room, 1))
        bad_offset = self._length
        count = lib.vespiary_core_restore_block(
            self._core, file_id, offset, ffi.from_buffer(block), len(block), others, room,
            bad_offset,
        )  # fmt: skip
        if count == -errno.EBADMSG:
            at = bad_offset[0]
            raise ValueError(
                f"file {file_id}, block at {offset}: malformed record {at} bytes into the block "
                f"(starts with {bytes(block[at : at + 8]).hex()})"
            )
        return [
            (other.type, bytes(block[other.offset : other.offset + other.length]))
            for other in others[0 : check(count, "restore_block")]
        ]

    def restore_done(self) -> int:
        """See `Core.restore_done`."""
        return check(lib.vespiary_core_restore_done(self._core), "restore_done")


def verify_blocks(
    data: memoryview, offset: int, salt: int, file_id: int, limit: int
) -> list[BlockFacts]:
    """See `vespiary_native.abc.BlockVerifier`."""
    out = ffi.new("vespiary_block_facts[]", limit)
    count = lib.vespiary_verify_blocks(
        ffi.from_buffer(data), len(data), offset, salt, file_id, out, limit
    )
    return [
        BlockFacts(
            facts.offset,
            facts.length,
            facts.sequence,
            facts.watermark,
            facts.previous_crc,
            facts.crc,
            facts.records,
            bool(facts.is_seal),
            facts.time_ms,
        )
        for facts in out[0:count]
    ]
