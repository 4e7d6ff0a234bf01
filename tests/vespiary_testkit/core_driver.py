"""Random calls to both cores, the files that they write, the clients that use them, crashes.

Owns `Driver`: one run, chosen by its seed. Compares results, writes, frames, and what is restored.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import struct
from collections.abc import Callable
from typing import Any

from vespiary_codec.journal.page import PAGE_BIT
from vespiary_codec.stored_message import STORED_VERSION, read_stored
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom, ScanStatus
from vespiary_native.core import verify_blocks as native_verify_blocks
from vespiary_native.twin import verify_blocks as twin_verify_blocks
from vespiary_testkit.core_driver_accounts import AccountCalls
from vespiary_testkit.core_driver_counts import CountingCalls
from vespiary_testkit.core_driver_inspection import InspectionCalls
from vespiary_testkit.core_driver_mqtt import MqttCalls, MqttClient
from vespiary_testkit.core_driver_pages import PagingCalls
from vespiary_testkit.core_driver_switching import SwitchingCalls
from vespiary_testkit.core_driver_transactions import TransactionCalls
from vespiary_testkit.core_pair import Both
from vespiary_testkit.stomp_stream import FrameSource

BUFFER_BYTES = 1 << 17
LIMITS = (12, 300, 1200, 30_000)
SALT = 0x9E3779B97F4A7C15


class Driver(
    AccountCalls,
    CountingCalls,
    InspectionCalls,
    SwitchingCalls,
    PagingCalls,
    TransactionCalls,
    MqttCalls,
):
    """One run: two cores, the files they write, the clients that use them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.is_paging = self.random.random() < 0.6
        self.is_mqtt = seed % 4 == 1  # much of it
        self.given: list[tuple[int, int]] = []
        self.frames = FrameSource(self.random, self.given)
        self.slab_bytes = self.random.choice([32, 64, 128]) * 1024
        self.sizes = {
            "slab_bytes": self.slab_bytes,
            "block_bytes": self.random.choice([4096, 8192, 16384, 65536]),
            "slabs_max": self.random.choice([3, 6, 8, 16, 64]),
            "record_bytes_max": self.random.choice([2000, 12_000, self.slab_bytes - 8192]),
        }
        self.is_starved = self.random.random() < 0.3
        self.files: dict[int, bytearray] = {}
        self.last_file = 0
        self.last_transaction = 0
        self.last_queue = 0
        self.last_large = 0
        self.done_large: set[int] = set()
        self.queues: dict[int, bool] = {}
        self.now = 1_700_000_000_000
        self.begin_life()

    def begin_life(self) -> None:
        self.core = Both(**self.sizes)
        self.routes: list[int] = []
        self.connections: dict[int, tuple[int, bytearray]] = {}
        self.waiting: dict[int, bytes] = {}
        self.accounts = [0]
        self.clients: list[MqttClient] = []
        self.consumers: dict[int, int] = {}
        self.choosers: dict[int, int] = {}
        self.given.clear()
        self.in_flight: Any = None
        self.is_started = False
        self.begin_counting()

    # --- the world around ------------------------------------------------------------------------
    def start(self, sequence: int = 1, crc: int = 0, durable: int = 0) -> None:
        self.core.start(sequence, crc, durable)
        self.is_started = True
        self.add_file()
        self.keep_files()
        while len(self.queues) < 4:
            self.open_queue()
        self.open_switches()
        for _ in range(3):
            self.open_route()
            self.open_connection()

    def add_file(self) -> None:
        self.last_file += self.random.randint(1, 3)
        sizes = [16, 24, 40] if self.is_starved else [24, 64, 68, 128, 196, 256]
        size = self.random.choice(sizes) * 4096
        self.core.add_file(self.last_file, SALT * self.last_file % 2**64, size)
        self.files[self.last_file] = bytearray(size)

    def open_queue(self) -> None:
        self.last_queue += 1
        is_durable = self.random.random() < 0.8
        self.core.open_queue(self.last_queue, self.random.choice([1, 1, 5000]), durable=is_durable)
        self.queues[self.last_queue] = is_durable

    def some_queues(self) -> list[int]:
        known = sorted(self.queues)
        return self.random.sample(known, min(len(known), self.random.choice([0, 1, 1, 1, 1, 2, 3])))

    def open_route(self) -> None:
        self.routes.append(self.core.open_route(self.some_queues()))

    def open_connection(self) -> None:
        handle = self.core.open_connection()
        version = self.random.choice([10, 11, 12, 12])
        memory = bytearray(BUFFER_BYTES)
        attached = [core.attach_buffer(memory) for core in self.core.cores]
        assert attached[0] == attached[1]
        self.connections[handle] = (attached[0], memory)
        self.waiting[handle] = b""
        if self.random.random() < 0.9:
            self.core.set_ready(handle, version, LIMITS)
        for number, route in enumerate(self.routes[-6:]):
            self.core.teach(handle, b"/queue/%d" % number, route)
            if self.random.random() < 0.3:
                self.core.teach(handle, b"/queue/%d\0ANYCAST" % number, route)
        self.teach_switch(handle)

    def close_connection(self, handle: int) -> None:
        for consumer in [c for c, owner in self.consumers.items() if owner == handle]:
            self.core.close_consumer(consumer, counted=self.random.random() < 0.5)
            del self.consumers[consumer]
            self.choosers.pop(consumer, None)
        self.core.close_connection(handle)
        attached, _ = self.connections.pop(handle)
        for core in self.core.cores:
            core.detach_buffer(attached)
        del self.waiting[handle]

    # --- the disk --------------------------------------------------------------------------------
    def write(self) -> None:
        if self.in_flight is None:
            twin, _ = self.core.seal_write()
            if twin is not None:
                self.in_flight = (twin, ctypes.string_at(twin.address, twin.length))
        self.settle()

    def settle(self) -> None:
        self.core.has_unwritten()
        self.core.is_urgent()

    def written(self) -> None:
        if self.in_flight is None:
            return
        request, data = self.in_flight
        self.in_flight = None
        again = ctypes.string_at(request.address, request.length)
        assert again == data, "a block changed while it was being written"
        self.files[request.file_id][request.offset : request.offset + request.length] = data
        self.core.write_done(request.sequence)
        self.core.take_receipts()
        self.core.take_ready_queues()

    def flush(self) -> None:
        while True:
            self.written()
            self.write()
            if self.in_flight is None:
                return

    def load(self, consumer: int) -> None:
        self.load_slab(*self.core.absent_slab(consumer))

    def load_slab(self, file_id: int, slab: int) -> bool:
        twin, native = self.core.load_begin(file_id, slab)
        if twin is None:
            return False
        is_good = self.random.random() < 0.9
        for address, length, offset in (twin, native):
            file = self.page_files.get(file_id ^ PAGE_BIT) or self.files[file_id]
            data = bytes(file[offset : offset + length])
            ctypes.memmove(address, data, length)
        if self.random.random() < 0.2:
            self.operate()
        self.core.load_done(file_id, slab, good=is_good)
        return is_good

    def reclaim(self) -> None:
        current = self.core.current_file()
        for file_id in sorted(self.files):
            if file_id >= current:
                return
            free = self.core.live_places(file_id) == 0 and not self.core.cancels(file_id)
            if free and self.is_durable(file_id):
                self.core.forget_file(file_id)
                del self.files[file_id]

    def compact(self) -> None:
        """Move what is live in an old file, slab by slab, loading what is absent."""
        current = self.core.current_file()
        old = [file_id for file_id in sorted(self.files) if file_id < current]
        file_id = self.random.choice(old or sorted(self.files))
        for slab in range(-(-len(self.files[file_id]) // self.slab_bytes)):
            offset = record = 0
            for _ in range(self.random.choice([1, 3, 30])):
                max_bytes = self.random.choice([1, 9000, 10**6])
                max_places = self.random.choice([1, 5, 10**6])
                moved = self.core.relocate(file_id, slab, offset, record, max_bytes, max_places)
                offset, record = moved.next_offset, moved.next_record
                if not offset:
                    break
                if moved.is_absent and not self.load_slab(file_id, slab):
                    break

    def is_durable(self, file_id: int) -> bool:
        """Whether the file's last block is on disk: it ends in a seal,
        or an older life wrote it."""
        data = memoryview(self.files[file_id])
        found = twin_verify_blocks(data[4096:], 4096, SALT * file_id % 2**64, file_id, 10**6)
        return bool(found) and (found[-1].is_seal or file_id < self.first_own_file)

    first_own_file = 0

    # --- clients ---------------------------------------------------------------------------------
    def feed(self, handle: int) -> None:
        pick = self.random
        rest = self.waiting[handle]
        stream = rest + b"".join(self.frames.frame() for _ in range(pick.choice([1, 1, 2, 5, 12])))
        attached, memory = self.connections[handle]
        stream = stream[: BUFFER_BYTES - 8]
        start = pick.randint(0, 7)
        memory[start : start + len(stream)] = stream
        at = start
        end = start + len(rest)  # what was seen before is not taken away again
        status = ScanStatus.NEED_DATA
        while end < start + len(stream) and status == ScanStatus.NEED_DATA:
            end = min(start + len(stream), end + pick.choice([1, 3, 17, 100, 4096, 10**6]))
            at, status = self.scan(handle, attached, at, end)
        if status == ScanStatus.ODD:
            self.close_connection(handle)
            self.open_connection()
            return
        # What is left is half a frame, or, when the core is full, frames to try again.
        self.waiting[handle] = bytes(memory[at : start + len(stream)])[: BUFFER_BYTES // 2]

    def scan(self, handle: int, attached: int, at: int, end: int) -> tuple[int, int]:
        while True:
            status, at, detail = self.core.scan_stomp(handle, attached, at, end)
            if status == ScanStatus.SWITCHED:
                if self.random.random() < 0.1:
                    return at, ScanStatus.NEED_DATA  # nothing is taken until it is sent on
                status, at, detail = self.choose()
                if status == ScanStatus.NEED_DATA:
                    continue
            is_passed = status == ScanStatus.BLOCKED and self.random.random() < 0.3
            if status != ScanStatus.FRAME and not is_passed:
                return at, status
            at += detail

    # --- what engines do -------------------------------------------------------------------
    def publish(self, transaction: int = 0) -> None:
        pick = self.random
        body, large = self.frames.body(), pick.random() < 0.15
        if large:
            self.last_large += 1
            body = struct.pack(
                "<QQII", self.last_large, pick.getrandbits(40), pick.getrandbits(32), 0
            )
        properties = pick.choice(
            [
                b"",
                b"destination:/queue/1\n",
                b"na\\c\\r\\n\\\\me:\\c\\n\\r\\\\x\nb:1\n",
                b"k:v\n" * 40,
                b"a:b\n\0\x01\x75\xa0\0native\nc:d\n\\",
                b"\0",
            ]
        )
        self.core.publish(
            pick.choice(self.routes),
            properties,
            body,
            persistent=pick.random() < 0.8,
            protocol=3 if b"\0" in properties else pick.choice([1, 3]),
            priority=pick.randint(0, 9),
            escaped=pick.random() < 0.5,
            large=large,
            special=pick.random() < 0.1,
            transaction=transaction,
        )

    def open_consumer(self) -> None:
        pick = self.random
        connection = pick.choice(sorted(self.connections))
        queue = pick.choice(sorted(self.queues))
        handle = self.core.open_consumer(
            connection,
            queue,
            AckMode(pick.choice([0, 1, 2, 2])),
            pick.choice([1, 3, 50, 2**31 - 1]),
            pick.choice([b"s1", b"", b"sub\\cx"]),
            pick.choice([STORED_VERSION, 10, 11, 12]),
        )
        self.consumers[handle], self.choosers[handle] = connection, queue

    def deliver(self) -> None:
        pick = self.random
        if not self.consumers:
            self.open_consumer()
        consumer = pick.choice(sorted(self.consumers))
        for _ in range(4):
            status, _, frames = self.core.deliver(
                consumer, pick.choice([1, 5, 100]), pick.choice([1, 4000, 10**6])
            )
            self.note_given(consumer, frames)
            if status == DeliverStatus.LARGE:
                self.take_large(consumer)
            elif status == DeliverStatus.WORN:
                if self.take_worn(consumer):
                    continue
            elif status == DeliverStatus.SPECIAL and self.decide(consumer):
                continue
            is_entered = status == DeliverStatus.PAGED and self.enter_wanted()
            if is_entered:
                continue
            if status != DeliverStatus.ABSENT:
                return
            self.load(consumer)
            if consumer not in self.consumers:
                return

    def take_large(self, consumer: int) -> None:
        assert self.core.next_large(consumer) is not None
        given = self.core.take_large(consumer)
        if given is None:
            assert self.is_ahead, "only a count may find no room"
            return
        self.note_given(consumer, given.head)
        if self.random.random() < 0.5:
            self.core.acknowledge(consumer, given.sequence)

    def end_large(self) -> None:
        done = self.core.take_done_large()
        live = {body.large_id for body in self.core.live_large()}
        assert len(done) == len(set(done))
        assert not self.done_large & {*done, *live}, "a body that was given up is needed, or again"
        assert not live & {*done}
        self.done_large.update(done)

    def note_given(self, consumer: int, frames: bytes) -> None:
        if not frames.startswith(b"MESSAGE"):
            queue_id = self.choosers.get(consumer, 0)
            self.given += [(queue_id, each.sequence) for each in read_stored(frames)]
        at = frames.find(b"message-id:")
        while at >= 0:
            queue, _, sequence = frames[at + 11 : frames.find(b"\n", at)].partition(b"-")
            if queue.isdigit() and sequence.isdigit():
                self.given.append((int(queue), int(sequence)))
            at = frames.find(b"message-id:", at + 1)
        del self.given[:-200]

    def settle_message(self) -> None:
        """Acknowledge or give back something through the slow path."""
        pick = self.random
        if not self.consumers:
            return
        queue, sequence = pick.choice(self.given) if self.given else (1, 1)
        for connection in self.connections:
            self.core.holder(connection, queue, sequence)
        consumer = pick.choice(sorted(self.consumers))
        act = pick.choice(
            [self.core.acknowledge, self.core.acknowledge, self.core.give_back, self._release]
        )
        act(consumer, sequence)

    def operate(self) -> None:
        pick = self.random
        weights: list[tuple[int, Callable[[], object]]] = [
            (14, lambda: self.feed(pick.choice(sorted(self.connections)))),
            (150 if self.is_mqtt else 10, self.serve_client),
            (6, self.publish),
            (3, self.end_large),
            (3, self.transaction),
            (3, self.resolve),
            (12, self.write),
            (12, self.written),
            (3, self.open_consumer),
            (14, self.deliver),
            (12, self.inspect),
            (16 if self.is_paging else 0, self.page),
            (6, self.settle_message),
            (1, self.close_a_consumer),
            (3, self.disorder),
            (1, lambda: self.core.receipt(pick.choice(sorted(self.connections)), b"RECEIPT x")),
            (2, self.core.take_receipts),
            (2, self.core.take_ready_queues),
            (1, self.core.stage_empty_block),
            (1, self.append),
            (1, self.churn),
            (1, self.replace_switch),
            (1, self.misuse_switch),
            (2, self.account),
            (2, self.count),
            (2, self.core.take_changed_accounts),
            (5, self.keep_files),
            (2, self.reclaim),
            (4, self.compact),
            (1, lambda: self.core.grow(pick.randint(0, 3))),
            (2, self.tick),
        ]
        operation = pick.choices([op for _, op in weights], [weight for weight, _ in weights])[0]
        with contextlib.suppress(NoRoom, ValueError):  # both said the same
            operation()
        self.compare()

    def _release(self, consumer: int, sequence: int) -> int:
        """Have a message given back that counts as not delivered."""
        return self.core.give_back(consumer, sequence, counted=False)

    def disorder(self) -> None:
        """Have a cumulative consumer be given messages that come back behind higher ones."""
        pick = self.random
        queue, connection = pick.choice(sorted(self.queues)), pick.choice(sorted(self.connections))
        first, other = (
            self.core.open_consumer(connection, queue, mode, 50, b"s", 12)
            for mode in (AckMode.CLIENT, AckMode.INDIVIDUAL)
        )
        self.consumers[first] = self.consumers[other] = connection
        for consumer in (other, first, other, first):
            self.note_given(consumer, self.core.deliver(consumer, pick.randint(1, 4), 10**6)[2])
        self.core.close_consumer(other)
        del self.consumers[other]
        self.choosers.pop(other, None)
        _, _, frames = self.core.deliver(first, pick.randint(1, 6), 10**6)
        self.note_given(first, frames)
        for act in pick.choices([self.core.acknowledge, self.core.give_back], k=2):
            act(first, pick.choice(self.given)[1] if self.given else 1)

    def tick(self) -> None:
        self.now += self.random.randint(0, 5)
        self.core.set_time(self.now)

    def append(self) -> None:
        pick = self.random
        if pick.random() < 0.3:
            states = self.core.queue_states()
            body = (len(states) // 24).to_bytes(8, "little") + states
            self.core.append_record(6, body)
            return
        if pick.random() < 0.2:
            self.core.append_record(11, self.duplicate(pick.choice([0, 7])), flags=0)
            return
        self.core.append_record(
            pick.choice([5, 32, 33, 40]),
            pick.randbytes(pick.choice([0, 8, 17, 300])),
            urgent=pick.random() < 0.5,
        )

    def keep_files(self) -> None:
        wanted = 2
        if self.is_starved:
            wanted = 1 if self.random.random() < 0.3 else 0
        if self.core.files_ahead() < wanted:
            self.add_file()

    def close_a_consumer(self) -> None:
        if self.consumers:
            consumer = self.random.choice(sorted(self.consumers))
            held = self.core.held(consumer)
            assert held == sorted(held)
            for sequence, _ in held[:3]:
                self.core.held(consumer, sequence, deliveries=self.random.randint(0, 2))
            self.core.close_consumer(consumer, counted=self.random.random() < 0.5)
            del self.consumers[consumer]
            self.choosers.pop(consumer, None)

    def churn(self) -> None:
        """Make, change and drop queues, routes and connections."""
        pick = self.random
        act = pick.randint(0, 7)
        if act == 0:
            self.open_queue()
        elif act == 1 and len(self.queues) > 3:
            queue = pick.choice(sorted(self.queues))
            self.core.drop_queue(queue)
            del self.queues[queue]
        elif act == 2:
            change = pick.choice(self.routes)
            if pick.randint(0, 1):
                self.core.extend_route(change, pick.choice(sorted(self.queues)))
            else:
                self.core.set_route(change, self.some_queues())
        elif act == 3 and len(self.routes) > 3:
            self.core.close_route(self.routes.pop(0))
        elif act == 4:
            self.open_route()
        elif act == 5:
            self.close_connection(pick.choice(sorted(self.connections)))
            self.open_connection()
        elif act == 6:
            self.core.purge_queue(pick.choice(sorted(self.queues)))
        elif self.consumers:
            self.core.set_credit(pick.choice(sorted(self.consumers)), pick.choice([0, 1, 2, 40]))

    def compare(self) -> None:
        for account in self.accounts:
            self.core.account_statistics(account)
        self.core.account_share(self.random.choice([0, 1000, 60_000, 400_000]))
        for route in self.routes:
            self.core.is_held(route)
        for queue in self.queues:
            self.core.queue_statistics(queue)
        self.core.queue_totals()
        self.core.queue_states()
        self.core.image_statistics()
        self.core.live_large()
        self.core.current_file()
        for file_id in self.files:
            self.core.live_places(file_id)
            self.core.live_bytes(file_id)
            self.core.cancels(file_id)
            self.core.prepared_in(file_id)
            self.core.pages_in(file_id)
        self.compare_pages()
        for facts in self.core.branches():
            self.core.branch_members(facts.transaction)
            self.core.branch_data(facts.transaction)

    # --- restarts --------------------------------------------------------------------------------
    def restart(self, *, is_clean: bool) -> None:
        live = None
        if is_clean:
            for connection in list(self.connections):
                self.close_connection(connection)
            for client in list(self.clients):
                self.close_client(client)
            try:
                self.flush()
                for queue, is_durable in self.queues.items():
                    if not is_durable:
                        self.core.purge_queue(queue)
                self.flush()
                for queue in [q for q, is_durable in self.queues.items() if not is_durable]:
                    self.core.drop_queue(queue)  # and what branches hold there
                    del self.queues[queue]
                live = sum(self.core.live_places(file_id) for file_id in self.files)
            except NoRoom:
                pass
        states = {q: self.core.queue_statistics(q).tail for q in self.queues}
        self.begin_life()
        self.queues = {queue: True for queue, durable in self.queues.items() if durable}
        for queue in self.queues:
            self.core.open_queue(queue)
        last = self.restore()
        self.restore_pages()
        self.compare()
        if live is not None:
            restored = sum(self.core.live_places(file_id) for file_id in self.files)
            assert restored == live, f"{live} live places before the restart, {restored} after"
            for queue in self.queues:
                # The highest sequences may have been of messages that need not survive.
                assert self.core.queue_statistics(queue).tail <= states[queue]
        self.first_own_file = self.last_file + 1
        self.start(*last)

    def restore(self) -> tuple[int, int, int]:
        """Restore both cores as the store does; return where the journal goes on."""
        expected = crc = watermark = 0
        for file_id in sorted(self.files):
            data = self.files[file_id]
            salt = SALT * file_id % 2**64
            view = memoryview(data)[4096:]
            blocks = twin_verify_blocks(view, 4096, salt, file_id, 10**6)
            assert native_verify_blocks(view, 4096, salt, file_id, 10**6) == blocks
            if not blocks:
                del self.files[file_id]
                continue
            self.core.restore_file(file_id, salt, len(data))
            for block in blocks:
                assert block.sequence > expected
                if block.sequence == expected + 1 and expected:
                    assert block.previous_crc == crc
                self.core.restore_block(
                    file_id,
                    block.offset,
                    memoryview(data)[block.offset : block.offset + block.length],
                )
                expected, crc = block.sequence, block.crc
                watermark = max(watermark, block.watermark)
        assert watermark <= expected
        self.core.restore_done()
        assert not self.core.take_done_large()
        self.end_large()  # what was given up before the crash stays so
        self.core.take_ready_queues()
        return expected + 1, crc, expected
