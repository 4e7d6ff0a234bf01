"""A small life of a message journal on a `MemoryDisk`, and what recovery finds there.

`Client` leaves marks in the disk's log (`journal_model`); `judge` compares an image's marks with
what recovery finds there. `LiveSet` finds it by the rules of the format.
"""

from __future__ import annotations

import asyncio
import functools
import random
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.kept import KeptRecords
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.recovery import Recovered, Recovery
from vespiary_broker.store.survey import survey_folder
from vespiary_broker.store.takeover import seal_tail
from vespiary_broker.store.writer import MessageJournal
from vespiary_codec.journal.branch import PrepareRecord, RollbackRecord
from vespiary_codec.journal.duplicate import DuplicateRecord
from vespiary_codec.journal.page_record import PageDoneRecord, PagedRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    decode_record,
    digest_members,
    walk_records,
)
from vespiary_native.abc import AckMode, Core, DeliverStatus
from vespiary_native.choice import block_verifier, open_core
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_model import Key, Marks, Model
from vespiary_testkit.virtual_time import run_virtual
from vespiary_testkit.waiting import WAIT_S

POLL_S = 0.001  # the least that the loop waits
FILE_BYTES = 64 * 1024
QUEUES = (1, 2)
_MEMBERS = AddRecord | AckRecord | DuplicateRecord


def _runs_with(runner: Callable[[Coroutine[Any, Any, None]], None]) -> Callable[..., Any]:
    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def wrapper(**names: Any) -> None:
            runner(test(**names))

        return wrapper

    return decorate


run = _runs_with(product_loop.run)
"""Runs an async test on an event loop of the product's kind."""

run_in_virtual_time = _runs_with(run_virtual)
"""Runs an async test on a virtual clock: a journal in memory then writes the same blocks always."""


async def until(condition: Callable[[], bool], *, seconds: float = WAIT_S) -> None:
    """Wait for what another task or a timer of a millisecond brings about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (there is nothing to be told by)
            await asyncio.sleep(POLL_S)


def small_options(folder: Path, **changes: Any) -> JournalOptions:
    """Options of a journal that rolls every few dozen messages and never waits."""
    values: dict[str, Any] = {
        "directory": folder,
        "file_size_bytes": FILE_BYTES,
        "slab_bytes": FILE_BYTES,
        "memory_bytes": 64 * FILE_BYTES,
        "record_bytes_max": 24 * 1024,
        "reclaim_period_s": 0.001,
        "quiet_delay_s": 0.001,
        "acknowledgement_delay_s": 0.001,
        "max_disk_usage_percent": 100,
    }
    return JournalOptions(**(values | changes))


def memory_parts(
    disk: MemoryDisk, make_ring: Callable[[MemoryDisk], Any] = MemoryRing, seed: int = 1
) -> OpeningParts:
    """Parts of a journal on that disk; salts come from the seed."""
    chance = random.Random(seed)
    return OpeningParts(
        disk=disk,
        open_ring=lambda _kind, _depth, strict: (make_ring(disk), None),
        new_salt=lambda: chance.getrandbits(64),
        retention_thread=InlineExecutor,
    )


async def open_memory(
    folder: Path,
    disk: MemoryDisk,
    make_ring: Callable[[MemoryDisk], Any] = MemoryRing,
    *,
    kept: KeptRecords | None = None,
    **changes: Any,
) -> MessageJournal:
    """Open a journal on a `MemoryDisk`; blocking calls are made at once, in the loop's thread."""
    return await MessageJournal.open(
        small_options(folder, **changes),
        queue_ids=QUEUES,
        parts=memory_parts(disk, make_ring),
        executor=InlineExecutor(),
        kept=kept,
    )


class Client:
    """Sends to and acknowledges from the queues of a journal, and marks what it did.

    A test of one behaviour gives it a fixed seed, so that the files and sizes are those it needs; a
    test that cuts or damages what the client wrote takes the seed from `seeds.seed_for`.
    """

    body_sizes = range(100, 6000)

    def __init__(self, journal: MessageJournal, disk: MemoryDisk, seed: int) -> None:
        self.journal = journal
        self.disk = disk
        self.marks = Marks(disk)
        self.core = journal.core
        self.chance = random.Random(seed)
        self.routes = {queue_id: self.core.open_route([queue_id]) for queue_id in QUEUES}
        self.connection = self.core.open_connection()
        self.consumers = {
            queue_id: self.core.open_consumer(
                self.connection, queue_id, AckMode.INDIVIDUAL, 1_000_000, b"s", 12
            )
            for queue_id in QUEUES
        }
        self.held: list[Key] = []
        self.transaction = 0

    def _publish(self, queue_id: int, transaction: int = 0) -> Key:
        key = (queue_id, self.core.queue_statistics(queue_id).tail)
        self.marks.sent([key], transaction)
        body = bytes(self.chance.choice(self.body_sizes))
        self.core.publish(
            self.routes[queue_id], b"a:b\n", body, persistent=True, transaction=transaction
        )
        return key

    async def send(self, count: int) -> None:
        """Send messages outside of transactions and wait until they are confirmed."""
        keys = [self._publish(self.chance.choice(QUEUES)) for _ in range(count)]
        await self.journal.wait_durable()
        self.marks.confirmed(keys)

    async def send_transaction(self, count: int) -> None:
        """Send messages in one transaction and wait until it is confirmed."""
        self.transaction += 1
        self.core.begin(self.transaction, count * 7000, count)
        keys = [self._publish(self.chance.choice(QUEUES), self.transaction) for _ in range(count)]
        self.core.commit(self.transaction)
        await self.journal.wait_durable()
        self.marks.settled(self.transaction)
        self.marks.confirmed(keys)

    async def receive(self) -> None:
        """Take all deliverable messages, those that must be read back included."""
        for consumer in self.consumers.values():
            status = DeliverStatus.LIMIT
            while status is not DeliverStatus.DRAINED:
                status, _, frames = self.core.deliver(consumer, 1_000_000, 1 << 30)
                found = re.findall(rb"^message-id:(\d+)-(\d+)$", frames, re.MULTILINE)
                self.held += [(int(queue_id), int(sequence)) for queue_id, sequence in found]
                if status is DeliverStatus.ABSENT:
                    await self.journal.load_slab(*self.core.absent_slab(consumer))

    async def acknowledge(self, count: int) -> None:
        """Acknowledge the oldest messages held and wait until that is confirmed."""
        keys, self.held = self.held[:count], self.held[count:]
        for queue_id, sequence in keys:
            self.marks.acking([(queue_id, sequence)])
            assert self.core.acknowledge(self.consumers[queue_id], sequence) == 1
        await self.journal.wait_durable()
        self.marks.acked(keys)


class _Open:
    """The members so far of a transaction without its COMMIT.

    Attributes:
        members: Their bytes and records.
        is_cut: Block sequences are missing right before one of them: a file was reclaimed there.
        gaps: Places with missing blocks before the last of them.
        is_prepared: There is a PREPARE: it is in doubt.
        name: The name in that.
        is_good: The members fit that.
    """

    def __init__(self) -> None:
        self.is_prepared = False
        self.name = b""
        self.is_good = False
        self.members: list[tuple[bytes, Any]] = []
        self.is_cut = False
        self.gaps = 0


class LiveSet:
    """A sink that keeps the live messages as a set: the rules of the format, written a second time.

    Not one with the core, nor with the live set of the tools (`store.live_set`): the power cuts
    compare the core with this, and a rule that both had from one place could be wrong in both.
    """

    def __init__(self) -> None:
        self.live: set[Key] = set()
        self._open: dict[int, _Open] = defaultdict(_Open)
        self._pages: dict[int, set[Key]] = {}
        self._sequence = 0
        self._gaps = 0

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        pass

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        (sequence,) = struct.unpack_from("<Q", block, 8)
        is_gap, self._sequence = sequence != self._sequence + 1, sequence
        self._gaps += is_gap
        for data, record in self.decode(offset, block):
            if isinstance(record, _MEMBERS) and record.transaction:
                of = self._open[record.transaction]
                of.members.append((data, record))
                of.is_cut |= is_gap
                of.gaps = self._gaps
            elif isinstance(record, CommitRecord):
                self._commit(record)
            elif isinstance(record, PrepareRecord):
                of = self._open[record.transaction]
                of.is_prepared, of.is_good = True, self._fits(of, record, is_cut=is_gap)
                of.name = record.branch
            elif isinstance(record, RollbackRecord):
                self._open.pop(record.transaction, None)
            else:
                self._apply(record)
            is_gap = False
        return []

    @property
    def in_doubt(self) -> set[bytes]:
        """Names of the branches that are prepared: their ids change when they are copied."""
        return {of.name for of in self._open.values() if of.is_prepared}

    @property
    def locked(self) -> set[Key]:
        """Live messages that these acknowledge."""
        return {
            (member.queue_id, first + index)
            for of in self._open.values()
            if of.is_prepared
            for _, member in of.members
            if isinstance(member, AckRecord)
            for first, count in member.ranges
            for index in range(count)
        } & self.live

    @staticmethod
    def _fits(of: _Open, end: CommitRecord | PrepareRecord, *, is_cut: bool) -> bool:
        """Whether members fit a COMMIT or PREPARE: whole, or where files were reclaimed fewer."""
        digest = digest_members([data for data, _ in of.members])
        is_whole = (len(of.members), digest) == (end.members, end.digest)
        return is_whole or ((of.is_cut or is_cut) and len(of.members) < end.members)

    def _commit(self, commit: CommitRecord) -> None:
        """Apply a transaction: whole, or what is left of it where files were reclaimed (§3.3)."""
        found = self._open.pop(commit.transaction, _Open())
        fits = self._fits(found, commit, is_cut=found.gaps != self._gaps)
        if found.is_good if found.is_prepared else fits:
            for _, member in found.members:
                self._apply(member)

    def decode(self, offset: int, block: memoryview) -> list[tuple[bytes, Any]]:
        """Return the records of a block, each with its bytes."""
        (records,) = struct.unpack_from("<I", block, 36)
        raws = walk_records(block[64:], records, offset=offset + 64)
        return [(bytes(raw.data), decode_record(raw)) for raw in raws]

    def _apply(self, record: Any) -> None:
        if isinstance(record, AddRecord):
            self.live |= set(record.places)
        elif isinstance(record, AckRecord):
            for first, number in record.ranges:
                self.live -= {(record.queue_id, first + index) for index in range(number)}
        elif isinstance(record, PagedRecord):
            # In place of all that was said of this page: what it no longer names has ended.
            named = {(queue.queue_id, s) for queue in record.queues for s in queue.sequences}
            self.live -= self._pages.get(record.page_id, set()) - named
            self.live |= named
            self._pages[record.page_id] = named
        elif isinstance(record, PageDoneRecord):
            self.live -= self._pages.pop(record.page_id, set())


def recover(
    disk: MemoryDisk,
    folder: Path,
    sink: Any,
    *,
    is_flushed: bool = True,
    verify: Any = None,
    **options: Any,
) -> Recovered:
    """Run a recovery of the journal on a disk, without changing the disk."""
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    verify = verify or block_verifier()
    return Recovery(survey, disk, verify, is_flushed=is_flushed, **options).run(sink)


def recover_rules(disk: MemoryDisk, folder: Path) -> LiveSet:
    """Return what a recovery finds, by the rules of the format."""
    sink = LiveSet()
    recover(disk, folder, sink)
    return sink


def recover_live(disk: MemoryDisk, folder: Path) -> set[Key]:
    """Return the live messages that a recovery finds."""
    return recover_rules(disk, folder).live


def recover_and_seal(disk: MemoryDisk, folder: Path) -> set[Key]:
    """Recover as a broker does at its start, the seal included; return the live messages."""
    sink = LiveSet()
    seal_tail(recover(disk, folder, sink), disk, is_direct=True, now_ms=1)
    return sink.live


def new_core(slabs_max: int = 64) -> Core:
    """Return a core of this run with the queues of these journals, to be restored."""
    core = open_core(slab_bytes=FILE_BYTES, slabs_max=slabs_max, record_bytes_max=24 * 1024)
    for queue_id in QUEUES:
        core.open_queue(queue_id)
    return core


class RulesAnd:
    """A sink that gives each block to the rules of the format and to a core.

    Args:
        other: The core, or a sink around it.
        rules: The rules.
    """

    def __init__(self, other: Any, rules: LiveSet) -> None:
        self.rules = rules
        self._other = other

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        self._other.restore_file(file_id, salt, size_bytes)

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        self.rules.restore_block(file_id, offset, block)
        return self._other.restore_block(file_id, offset, block)


def core_counts(disk: MemoryDisk, folder: Path) -> dict[int, int]:
    """Return the number of messages by queue that the core of this run restores."""
    core = new_core()
    recover(disk, folder, core)
    core.restore_done()
    return {queue_id: core.queue_statistics(queue_id).ready for queue_id in QUEUES}


def judge(marks: Iterable[str], live: set[Key]) -> list[str]:
    """Return what is wrong with the messages that came back after a cut; nothing if all is well."""
    return Model.of_marks(marks).judge(live)
