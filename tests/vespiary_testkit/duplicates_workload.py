"""A small life with duplicate ids on a `MemoryDisk`, and what must hold after any power cut.

Marks: those of `journal_model`, `id TEXT Q S` before a message with this duplicate id is staged,
`clearing Q` and `cleared Q`. `judge` says what is wrong with what a recovery finds.
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
from vespiary_testkit.engine_rig import destination
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_model import Key, Marks, Model
from vespiary_testkit.journal_workload import (
    QUEUES,
    LiveSet,
    RulesAnd,
    new_core,
    open_memory,
    recover,
)
from vespiary_testkit.memory_journal import MemoryBindings, NoLock
from vespiary_testkit.seeds import seed_for


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

    def __init__(self, journal: MessageJournal, disk: MemoryDisk, ids: DuplicateIds, number: int):
        self.journal, self.disk, self.ids = journal, disk, ids
        self.marks = Marks(disk)
        self.core = journal.core
        self.chance = random.Random(seed_for(f"duplicates {number}"))
        self.number = number
        engine = make_engine(
            journal.core,
            bindings(),
            lock=NoLock(),
            make_event=asyncio.Event,
            duplicates=ids,
            spawn=lambda work: work.close(),
            load_slab=lambda *_: None,
            users=dict,
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

    def new(self, queue_id: int, ahead: int = 0, *, transaction: int = 0) -> tuple[Key, Outgoing]:
        self.sent += 1
        text = f"{self.number}-{self.sent}"
        key = (queue_id, self.core.queue_statistics(queue_id).tail + ahead)
        self.disk.mark(f"id {text} {key[0]} {key[1]}")
        self.marks.sent([key], transaction)
        return key, self.message(queue_id, text)

    def publish(self, message: Outgoing) -> bool:
        queue = self.registry.queues[message.destination.address]
        target = Target(self.registry.queue_route(queue).next_handle(), is_teachable=True)
        return stage_once(self.core, self.registry, self.ids, message, target) is not None

    async def send(self, count: int) -> None:
        """Send messages; send one again while it is being written, and confirm both."""
        keys = []
        for _ in range(count):
            key, message = self.new(self.chance.choice(QUEUES))
            assert self.publish(message)
            keys.append(key)
        writing = asyncio.ensure_future(self.journal.wait_durable())
        await asyncio.sleep(0)
        assert not self.publish(message), "it is known at once"
        await writing
        await self.journal.wait_durable()
        self.marks.confirmed(keys)

    async def send_transaction(self, count: int) -> None:
        number = self.number << 32 | self.sent  # of the marks: no other transaction has it
        made = [self.new(1, ahead, transaction=number) for ahead in range(count)]
        stage(self.core, self.registry, self.ids, Transaction([message for _, message in made]))
        await self.journal.wait_durable()
        self.marks.settled(number)
        self.marks.confirmed([key for key, _ in made])

    async def consume(self) -> None:
        """Receive and acknowledge all but the newest messages of each queue."""
        ended = []
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
                self.marks.acking([(queue_id, sequence)])
                self.core.acknowledge(consumer, sequence)
                ended.append((queue_id, sequence))
            self.held[queue_id] = end
        await self.journal.wait_durable()
        self.marks.acked(ended)

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


def found_on(disk: MemoryDisk, folder: Path) -> tuple[set[Key], DuplicateIds]:
    """Return what a recovery finds: messages by the format's rules, ids by the engine's."""
    core, ids, rules = new_core(), new_ids(), LiveSet()
    recover(disk, folder, RulesAnd(KeptSink(core, ids), rules))
    core.restore_done()
    ids.start(core, lambda _: True)
    return rules.live, ids


class IdModel(Model):
    """Adds the duplicate ids of messages.

    Attributes:
        ids: The message of each id.
        known: Confirmed messages, those too that are acknowledged by now.
        ending: Messages that are acknowledged, or about to be.
        clearing: Ids of queues whose ids are about to be forgotten, or are.
        cleared: Ids that are certainly forgotten.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ids: dict[str, Key] = {}
        self.known: set[Key] = set()
        self.ending: set[Key] = set()
        self.clearing: dict[int, set[str]] = {}
        self.cleared: set[str] = set()

    def apply(self, mark: str) -> None:
        kind, *values = mark.split()
        if kind == "id":
            self.ids[values[0]] = (int(values[1]), int(values[2]))
        elif kind == "clearing":
            queue_id = int(values[0])
            self.clearing[queue_id] = {t for t, key in self.ids.items() if key[0] == queue_id}
        elif kind == "cleared":
            self.cleared |= self.clearing[int(values[0])]
        else:
            super().apply(mark)

    def confirmed(self, key: Key) -> None:
        super().confirmed(key)
        self.known.add(key)

    def acking(self, key: Key) -> None:
        super().acking(key)
        self.ending.add(key)

    def judge_ids(self, live: set[Key], ids: DuplicateIds) -> list[str]:
        """Return what is wrong with the ids that came back."""
        clearing = set[str]().union(*self.clearing.values())
        wrong = []
        for text, key in self.ids.items():
            is_seen = ids.is_seen(f"q{key[0]}", text.encode())
            if text in self.cleared and is_seen:
                wrong.append(f"{text} was cleared and is back")
            elif text in clearing:
                continue
            elif is_seen and key not in live and key not in self.ending:
                wrong.append(f"the id {text} is there, its message is not: a resend would be lost")
            elif key in live and not is_seen:
                wrong.append(f"the message {text} is there, its id is not: a resend doubles it")
            elif key in self.known and not is_seen:
                wrong.append(f"{text} was confirmed and its id is gone")
        return wrong


def judge(marks: Iterable[str], live: set[Key], ids: DuplicateIds) -> list[str]:
    """Return what is wrong after a cut; nothing if all is well."""
    model = IdModel.of_marks(marks)
    return model.judge(live) + model.judge_ids(live, ids)
