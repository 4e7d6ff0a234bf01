"""A small life with duplicate ids on a `MemoryDisk`, and what must hold after any power cut.

Marks: `sent ID Q S` before a message is staged, `confirmed ID`, `acking Q S`, `clearing Q` and
`cleared Q`. `judge` says what is wrong with what a recovery finds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.duplicates import DuplicateIds
from vespiary_broker.engine.engine import make_engine
from vespiary_broker.engine.publishing import Target
from vespiary_broker.engine.transactions import Outgoing, Transaction, stage, stage_once
from vespiary_broker.store.kept import KeptSink
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.choice import open_core
from vespiary_testkit.engine_rig import destination
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_workload import FILE_BYTES, QUEUES, LiveSet, open_memory, recover
from vespiary_testkit.memory_journal import MemoryBindings, NoLock

Key = tuple[int, int]


def new_ids(size: int = 10_000) -> DuplicateIds:
    return DuplicateIds(lambda _: size, is_persistent=True)


def bindings() -> MemoryBindings:
    values: dict[str, Any] = {
        f"queue/{n}": {
            "name": f"q{n}",
            "address": f"q{n}",
            "routing-type": "ANYCAST",
            "auto-created": False,
        }
        for n in QUEUES
    }
    return MemoryBindings(values)


class Producer:
    """Sends messages with ids, some of them twice, and consumes them."""

    def __init__(self, journal: MessageJournal, disk: MemoryDisk, ids: DuplicateIds, seed: int):
        self.journal, self.disk, self.ids = journal, disk, ids
        self.core = journal.core
        self.chance = random.Random(seed)
        self.seed = seed
        engine = make_engine(
            journal.core,
            bindings(),
            lock=NoLock(),
            make_event=asyncio.Event,
            duplicates=ids,
            spawn=lambda work: work.close(),
            load_slab=lambda *_: None,
            users=dict,
            is_anonymous_allowed=True,
            address_settings={},
            transaction_bytes_max=1 << 20,
            transaction_room_bytes=1 << 20,
        )
        engine.registry.restore()
        self.registry = engine.registry
        self.sent = 0
        connection = self.core.open_connection()
        self.consumers = {
            queue_id: self.core.open_consumer(
                connection, queue_id, AckMode.INDIVIDUAL, 1_000_000, b"s", 12
            )
            for queue_id in QUEUES
        }
        self.held: dict[int, int] = {}

    def message(self, queue_id: int, text: str) -> Outgoing:
        return Outgoing(
            destination=destination(f"/queue/q{queue_id}"),
            properties=b"a:b\n",
            body=bytes(self.chance.randrange(100, 6000)),
            is_persistent=True,
            duplicate_id=text.encode(),
        )

    def new(self, queue_id: int, ahead: int = 0) -> tuple[str, Outgoing]:
        self.sent += 1
        text = f"{self.seed}-{self.sent}"
        tail = self.core.queue_statistics(queue_id).tail + ahead
        self.disk.mark(f"sent {text} {queue_id} {tail}")
        return text, self.message(queue_id, text)

    def publish(self, message: Outgoing) -> bool:
        queue = self.registry.queues[message.destination.address]
        target = Target(self.registry.queue_route(queue).next_handle(), is_teachable=True)
        return stage_once(self.core, self.registry, self.ids, message, target)

    async def send(self, count: int) -> None:
        """Send messages; send one again while it is being written, and confirm both."""
        texts = []
        for _ in range(count):
            text, message = self.new(self.chance.choice(QUEUES))
            assert self.publish(message)
            texts.append(text)
        writing = asyncio.ensure_future(self.journal.wait_durable())
        await asyncio.sleep(0)
        assert not self.publish(message), "it is known at once"
        await writing
        await self.journal.wait_durable()
        for text in texts:
            self.disk.mark(f"confirmed {text}")

    async def send_transaction(self, count: int) -> None:
        made = [self.new(1, ahead) for ahead in range(count)]
        stage(self.core, self.registry, self.ids, Transaction([message for _, message in made]))
        await self.journal.wait_durable()
        for text, _ in made:
            self.disk.mark(f"confirmed {text}")

    async def consume(self) -> None:
        """Receive and acknowledge all but the newest messages of each queue."""
        for queue_id, consumer in self.consumers.items():
            first = self.core.queue_statistics(queue_id).next
            while True:
                _, number, _ = self.core.deliver(consumer, 1_000_000, 1 << 30)
                if number:
                    continue
                file_id, slab = self.core.absent_slab(consumer)
                if not file_id:
                    break
                await self.journal.load_slab(file_id, slab)
            start = self.held.pop(queue_id, first)
            end = self.core.queue_statistics(queue_id).next
            for sequence in range(start, end):
                self.disk.mark(f"acking {queue_id} {sequence}")
                self.core.acknowledge(consumer, sequence)
            self.held[queue_id] = end
        await self.journal.wait_durable()

    async def clear(self, queue_id: int) -> None:
        self.disk.mark(f"clearing {queue_id}")
        self.ids.clear(f"q{queue_id}")
        await self.journal.wait_durable()
        self.disk.mark(f"cleared {queue_id}")


async def live(folder: Path, disk: MemoryDisk, make_ring: Callable[..., Any] = MemoryRing) -> None:
    """Send with ids, consume, roll over files, move ids, clear, restart."""
    for life in range(2):
        ids = new_ids()
        journal = await open_memory(folder, disk, make_ring, kept=ids)
        producer = Producer(journal, disk, ids, life + 1)
        for turn in range(10):
            await producer.send(1 + turn % 4)
            if turn % 3 == 0:
                await producer.send_transaction(3)
            if turn % 2:
                await producer.consume()
            if turn == 7:
                await producer.clear(2)
            await asyncio.sleep(0.002)  # the keeper's turn
        await producer.consume()
        await asyncio.sleep(0.01)
        await journal.close()


class Found:
    """What a recovery finds: messages by the format's rules, ids by the engine's."""

    def __init__(self) -> None:
        self.messages = LiveSet()
        self.core = open_core(slab_bytes=FILE_BYTES, slabs_max=64, record_bytes_max=24 * 1024)
        for queue_id in QUEUES:
            self.core.open_queue(queue_id)
        self.ids = new_ids()
        self.sink = KeptSink(self.core, self.ids)

    def restore_file(self, file_id: int, salt: int, size_bytes: int) -> None:
        self.sink.restore_file(file_id, salt, size_bytes)

    def restore_block(self, file_id: int, offset: int, block: memoryview) -> list[Any]:
        self.messages.restore_block(file_id, offset, block)
        return self.sink.restore_block(file_id, offset, block)


def found_on(disk: MemoryDisk, folder: Path) -> tuple[set[Key], DuplicateIds]:
    """Return the live messages and the ids that a recovery finds."""
    found = Found()
    recover(disk, folder, found)
    found.core.restore_done()
    found.ids.start(found.core, lambda _: True)
    return found.messages.live, found.ids


def judge(marks: Iterable[str], alive: set[Key], ids: DuplicateIds) -> list[str]:
    """Return what is wrong after a cut; nothing if all is well."""
    keys: dict[str, Key] = {}
    confirmed: set[str] = set()
    acking: set[Key] = set()
    before: dict[int, set[str]] = {}
    cleared: set[str] = set()
    for mark in marks:
        kind, *values = mark.split()
        if kind == "sent":
            keys[values[0]] = (int(values[1]), int(values[2]))
        elif kind == "confirmed":
            confirmed.add(values[0])
        elif kind == "acking":
            acking.add((int(values[0]), int(values[1])))
        elif kind == "clearing":
            before[int(values[0])] = {t for t, key in keys.items() if key[0] == int(values[0])}
        elif kind == "cleared":
            cleared |= before[int(values[0])]
    clearing = set().union(*before.values())
    wrong = []
    for text, key in keys.items():
        is_seen = ids.is_seen(f"q{key[0]}", text.encode())
        if text in cleared and is_seen:
            wrong.append(f"{text} was cleared and is back")
        elif text in clearing:
            continue
        elif is_seen and key not in alive and key not in acking:
            wrong.append(f"the id {text} is there and its message is not: a resend would be lost")
        elif key in alive and not is_seen:
            wrong.append(f"the message {text} is there and its id is not: a resend would double it")
        elif text in confirmed and not is_seen:
            wrong.append(f"{text} was confirmed and its id is gone")
        elif text in confirmed and key not in alive and key not in acking:
            wrong.append(f"{text} was confirmed and is lost")
    return wrong
