"""A core with what surrounds it: files that it writes, one queue, one route, one connection.

Owns `CoreRig` and the list of implementations. What was written is read by the codec alone, so that
a core is never its own witness. Used by the tests of the core.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from vespiary_codec.journal.block import decode_block
from vespiary_codec.journal.large_reference import LargeReference, encode_large_reference
from vespiary_codec.journal.record import AckRecord, Record, decode_record, walk_records
from vespiary_native.abc import (
    AckMode,
    BlockVerifier,
    Core,
    DeliverStatus,
    NoRoom,
    Relocation,
    ScanStatus,
    WriteRequest,
)
from vespiary_native.loader import is_wanted
from vespiary_native.twin import TwinCore
from vespiary_native.twin import verify_blocks as twin_verify_blocks

KIB = 1024
EVERYTHING = 1 << 30
SALT = 0x0123456789ABCDEF
SLAB = 64 * KIB
LIMITS = (10, 200, 1000, 5000)
DESTINATION = b"destination:/queue/a\n"

IMPLEMENTATIONS: dict[str, tuple[Callable[..., Core], BlockVerifier]] = {
    "twin": (TwinCore, twin_verify_blocks)
}
if is_wanted():
    from vespiary_native.core import NativeCore
    from vespiary_native.core import verify_blocks as native_verify_blocks

    IMPLEMENTATIONS["native"] = (NativeCore, native_verify_blocks)


def send(headers: bytes = b"persistent:true\n", body: bytes = b"hello") -> bytes:
    """Return a SEND frame to the rig's queue."""
    return b"SEND\n" + DESTINATION + headers + b"\n" + body + b"\0"


def ids(frames: list[bytes]) -> list[int]:
    """Return the sequences of MESSAGE frames."""
    return [int(frame.split(b"message-id:1-")[1].split(b"\n")[0]) for frame in frames]


class CoreRig:
    """A core with one queue (1), a route to it, a connection, and the files that it writes."""

    def __init__(
        self,
        make: Callable[..., Core],
        verify: BlockVerifier,
        *,
        file_bytes: int = 256 * KIB,
        files: int = 2,
        **sizes: int,
    ) -> None:
        defaults = {
            "slab_bytes": SLAB,
            "block_bytes": 16 * KIB,
            "slabs_max": 16,
            "record_bytes_max": 40 * KIB,
        }
        self.core = make(**defaults | sizes)
        self.verify = verify
        self.files: dict[int, bytearray] = {}
        self.file_bytes = file_bytes
        self.writes: list[WriteRequest] = []
        self.memory = bytearray(64 * KIB)
        self.core.set_time(1000)
        for _ in range(files):
            self.add_file()

    def begin(self, version: int = 12) -> CoreRig:
        self.core.start(1, 0, 0)
        self.serve(version)
        return self

    def serve(self, version: int = 12) -> None:
        self.core.open_queue(1)
        self.route = self.core.open_route([1])
        self.connection = self.connect(version)

    def connect(self, version: int = 12) -> int:
        connection = self.core.open_connection()
        self.buffer = self.core.attach_buffer(self.memory)
        self.core.set_ready(connection, version, LIMITS)
        self.core.teach(connection, b"/queue/a", self.route)
        return connection

    def add_file(self, size_bytes: int = 0) -> int:
        file_id = max(self.files, default=0) + 1
        self.files[file_id] = bytearray(size_bytes or self.file_bytes)
        self.core.add_file(file_id, SALT + file_id, len(self.files[file_id]))
        return file_id

    def publish(self, body: bytes = b"body", *, persistent: bool = True, **named: Any) -> int:
        return self.core.publish(self.route, DESTINATION, body, persistent=persistent, **named)

    def write(self) -> WriteRequest | None:
        request = self.core.seal_write()
        if request is not None:
            data = ctypes.string_at(request.address, request.length)
            self.files[request.file_id][request.offset : request.offset + request.length] = data
            self.writes.append(request)
        return request

    def relocate(
        self,
        file_id: int,
        slab: int,
        offset: int = 0,
        record: int = 0,
        *,
        max_bytes: int = EVERYTHING,
        max_places: int = EVERYTHING,
    ) -> Relocation:
        return self.core.relocate(file_id, slab, offset, record, max_bytes, max_places)

    def flush(self) -> int:
        """Write everything; return the number of writes."""
        number = 0
        while (request := self.write()) is not None:
            self.core.write_done(request.sequence)
            number += 1
        return number

    def scan(self, data: bytes, connection: int | None = None) -> tuple[ScanStatus, int, int]:
        self.memory[: len(data)] = data
        at = self.connection if connection is None else connection
        status, position, detail = self.core.scan_stomp(at, self.buffer, 0, len(data))
        return ScanStatus(status), position, detail

    def consume(self, mode: AckMode = AckMode.INDIVIDUAL, credit: int = 100, **named: Any) -> int:
        named = {"subscription": b"s", "version": 12, "queue": 1} | named
        queue = named.pop("queue")
        return self.core.open_consumer(self.connection, queue, mode, credit, **named)

    def deliver(self, consumer: int, number: int = 1000) -> list[bytes]:
        _, count, frames = self.core.deliver(consumer, number, 10**6)
        found = []
        while frames:
            body_at = frames.index(b"\n\n") + 2
            length = int(frames.split(b"content-length:", 1)[1].split(b"\n", 1)[0])
            assert frames[body_at + length] == 0
            found.append(frames[: body_at + length])
            frames = frames[body_at + length + 1 :]
        assert len(found) == count
        return found

    def blocks(self, file_id: int = 1) -> list[tuple[Any, list[Record | None]]]:
        """Return the blocks of a file with their records, read by the codec alone."""
        data = memoryview(self.files[file_id])
        found = []
        for facts in self.verify(data[4096:], 4096, SALT + file_id, file_id, 10_000):
            header, payload = decode_block(
                data[facts.offset :], offset=facts.offset, salt=SALT + file_id, file_id=file_id
            )
            records = [decode_record(raw) for raw in walk_records(payload, header.records)]
            found.append((facts, records))
        return found

    def records(self, file_id: int = 1) -> list[Record | None]:
        return [record for _, records in self.blocks(file_id) for record in records]

    def restored(self, *, without: tuple[int, ...] = (), queues: tuple[int, ...] = (1,)) -> CoreRig:
        """Return a rig of the same implementation with what is in this one's files."""
        again = CoreRig(type(self.core), self.verify, files=0)
        for queue in queues:
            again.core.open_queue(queue)
        for file_id, data in self.files.items():
            blocks = self.verify(memoryview(data)[4096:], 4096, SALT + file_id, file_id, 10_000)
            if not blocks or file_id in without:
                continue
            again.core.restore_file(file_id, SALT + file_id, len(data))
            again.files[file_id] = data
            for facts in blocks:
                block = memoryview(data)[facts.offset : facts.offset + facts.length]
                again.core.restore_block(file_id, facts.offset, block)
                again.last = facts
        again.dropped = again.core.restore_done()
        return again

    def go_on(self) -> None:
        self.core.start(self.last.sequence + 1, self.last.crc, self.last.sequence)
        self.add_file()
        self.route = self.core.open_route([1])
        self.connection = self.connect()

    def load(self, consumer: int, *, good: bool = True) -> tuple[int, int]:
        return self.load_slab(*self.core.absent_slab(consumer), good=good)

    def load_slab(self, file_id: int, slab: int, *, good: bool = True) -> tuple[int, int]:
        reserved = self.core.load_begin(file_id, slab)
        assert reserved is not None
        address, length, offset = reserved
        assert self.core.load_begin(file_id, slab) is None, "it is being loaded"
        ctypes.memmove(address, bytes(self.files[file_id][offset : offset + length]), length)
        self.core.load_done(file_id, slab, good=good)
        return file_id, slab

    def fill(self, number: int, size: int = 20 * KIB) -> None:
        """Publish and write messages, with files enough; a body starts with its number."""
        for n in range(number):
            while self.core.files_ahead() < 2:
                self.add_file()
            self.publish(n.to_bytes(4, "little") + bytes(size))
            self.flush()

    last: Any
    dropped: int


# --- inspection -----------------------------------------------------------------------------------

# A core rig filled with messages, and what tests of the inspection calls ask of it.

REFERENCE = encode_large_reference(LargeReference(77, 5_000_000, 0xABCD))
PLENTY = 10**6


def filled(rig: CoreRig, count: int = 6) -> CoreRig:
    """Publish messages with their number as body, durably."""
    for number in range(1, count + 1):
        rig.publish(b"%d" % number)
    rig.flush()
    return rig


def seen(rig: CoreRig, sequence: int = 0, max_messages: int = 100, **named: bool) -> list[int]:
    """Look until the end; return the sequences."""
    found: list[int] = []
    while True:
        look = rig.core.look(1, sequence, max_messages, **named)
        assert look.absent is None
        found += [view.sequence for view in look.messages]
        if look.next_sequence >= rig.core.queue_statistics(1).available:
            return found
        sequence = look.next_sequence


def give(
    rig: CoreRig, consumer: int, *sequences: int, max_bytes: int = PLENTY
) -> tuple[DeliverStatus, list[int], int]:
    status, count, passed, frames = rig.core.give(consumer, list(sequences), max_bytes)
    given = ids(frames.split(b"MESSAGE\n")[1:])
    assert len(given) == count
    return status, given, passed


def ended(rig: CoreRig) -> list[tuple[int, int]]:
    """Return the ranges of all ACK records."""
    return [
        tuple(one)
        for file_id in rig.files
        for record in rig.records(file_id)
        if isinstance(record, AckRecord)
        for one in record.ranges
    ]


def exhaust(rig: CoreRig) -> None:
    """Fill the journal's last file to its last page."""
    for size in (15 * KIB, 3000, 0):
        try:
            while True:
                rig.core.append_record(40, bytes(size))
                rig.flush()
        except NoRoom:
            pass
