"""Lives of a message journal, made up from a seed: the workloads of the power cuts.

A `Life` is one opened journal with a client that marks in the disk's log what it asks for and what
it was promised (`power_cuts` says which marks there are). `record_lives` runs several lives over
one `MemoryDisk` and returns the log. The acts are functions in `ACTS`: a new feature of the journal
adds its own there, with the marks that say what must come back, and is cut at every step from then
on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from vespiary_broker.store.large_messages import LargeMessages
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom
from vespiary_spec.errors import JournalError
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk, Op
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_fates import Tries, end_unheld, give_special, move, set_aside
from vespiary_testkit.journal_features import (
    Doubt,
    branches_of,
    done_bodies,
    end_branch,
    open_large,
    prepare_branch,
    send_large,
)
from vespiary_testkit.journal_pages import (
    LifePages,
    look_after_pages,
    name_anew,
    page,
    page_beside_others,
)
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    QUEUES,
    Key,
    memory_parts,
    recover_live,
    small_options,
)
from vespiary_testkit.virtual_time import run_virtual

MakeRing = Callable[[MemoryDisk], Any]


class Life:
    """One opened journal and the client of it. Owner: the loop that runs it.

    Attributes:
        journal: The journal.
        disk: Its disk, with the log that gets the marks.
        chance: What decides; nothing else does.
        held: Messages that were delivered and not acknowledged, oldest first.
        waiting: Confirmed messages that were not delivered, by queue.
        branches: Prepared branches.
        large: Bodies of large messages.
        pages: Messages that wait in files of their own.
    """

    def __init__(
        self,
        journal: MessageJournal,
        disk: MemoryDisk,
        chance: random.Random,
        large: LargeMessages,
        pages: LifePages,
    ) -> None:
        self.journal = journal
        self.large = large
        self.pages = pages
        self.branches: dict[int, Doubt] = branches_of(journal.core)
        journal.on_durable = lambda: large.remove(done_bodies(journal.core))
        self.disk = disk
        self.core = journal.core
        self.chance = chance
        self.held: list[Key] = []
        self.waiting: set[Key] = set()
        # Above those of earlier lives: a seed may come twice.
        self.transaction = max([chance.getrandbits(40) << 8, *self.branches])
        self.routes = [self.core.open_route([queue_id]) for queue_id in QUEUES]
        self.routes.append(self.core.open_route(list(QUEUES)))
        self.connection = self.core.open_connection()
        self.consumers = {
            queue_id: self.core.open_consumer(
                self.connection, queue_id, AckMode.INDIVIDUAL, 1_000_000, b"s", 12
            )
            for queue_id in QUEUES
        }

    def brought_back(self, known: set[Key]) -> None:
        """Mark what a recovery found.

        A killed process may have left more, or less, than the model can know: what was found is
        flushed and sealed now, so from here on it is what there is.
        """
        self.disk.mark("restart")
        for queue_id, sequence in sorted(known):
            self.disk.mark(f"found {queue_id} {sequence}")
        for number in sorted(self.branches):
            self.disk.mark(f"doubt {number}")
        self.waiting = known - self.locked

    @property
    def locked(self) -> set[Key]:
        """Messages that prepared branches acknowledge."""
        return {key for branch in self.branches.values() for key in branch.acks}

    async def receive(self) -> None:
        """Take what is deliverable."""
        await receive(self)

    async def close(self) -> None:
        """Let go of everything."""
        await self.large.close()
        await self.pages.pager.close()
        await self.journal.close()

    def body(self) -> bytes:
        """Return a body: mostly small, so that blocks hold many, at times one of many pages."""
        size = self.chance.choice((0, 20, 20, 200, 900, 3000, 9000))
        return bytes(size)

    def next_keys(self, route: int) -> list[Key]:
        """Return the places that the next message to a route gets."""
        queues = list(QUEUES) if route == len(QUEUES) else [QUEUES[route]]
        return [(queue_id, self.core.queue_statistics(queue_id).tail) for queue_id in queues]

    def publish(self, transaction: int = 0) -> list[Key]:
        """Stage one message to one queue or to all; return its places; NoRoom is the caller's."""
        route = self.chance.randrange(len(self.routes))
        keys = self.next_keys(route)
        for queue_id, sequence in keys:
            self.disk.mark(f"sent {queue_id} {sequence}")
            if transaction:
                self.disk.mark(f"adds {transaction} {queue_id} {sequence}")
        self.core.publish(
            self.routes[route],
            b"a:b\n",
            self.body(),
            persistent=True,
            special=self.chance.random() < 0.1,
            transaction=transaction,
        )
        return keys

    def try_publish(self) -> list[Key]:
        """Stage one message; return its places, none if there is no room."""
        try:
            return self.publish()
        except NoRoom:
            return []

    def confirm(self, keys: list[Key]) -> None:
        """Mark messages as confirmed: their wait is over."""
        for queue_id, sequence in keys:
            self.disk.mark(f"confirmed {queue_id} {sequence}")
        self.waiting.update(keys)

    def stage_acknowledgement(self, key: Key, transaction: int = 0) -> None:
        """Stage the acknowledgement of a held message; NoRoom is the caller's."""
        self.disk.mark(f"acking {key[0]} {key[1]}")
        if transaction:
            self.disk.mark(f"acks {transaction} {key[0]} {key[1]}")
        count = self.core.acknowledge(self.consumers[key[0]], key[1], transaction=transaction)
        assert count == 1, key

    def acknowledged(self, keys: list[Key]) -> None:
        """Mark acknowledgements as confirmed."""
        for queue_id, sequence in keys:
            self.disk.mark(f"acked {queue_id} {sequence}")


# --- acts -----------------------------------------------------------------------------------------


async def send(life: Life) -> None:
    """Send some messages and wait for their confirms."""
    keys = [key for _ in range(life.chance.choice((1, 1, 2, 4, 8))) for key in life.try_publish()]
    await life.journal.wait_durable()
    life.confirm(keys)


async def send_in_two_writes(life: Life) -> None:
    """Send while a write is under way: confirms of two writes, one behind the other."""
    first = life.try_publish()
    life.journal.kick()
    task = asyncio.ensure_future(life.journal.wait_durable())
    await asyncio.sleep(0)
    second = life.try_publish()
    await task
    life.confirm(first)
    await life.journal.wait_durable()
    life.confirm(second)


async def receive(life: Life) -> None:
    """Take what is deliverable, what must be read back from the disk included."""
    by_consumer = {consumer: queue_id for queue_id, consumer in life.consumers.items()}
    for consumer in by_consumer:
        status = DeliverStatus.LIMIT
        tries = Tries()
        while status is not DeliverStatus.DRAINED:
            status, _, frames = life.core.deliver(consumer, 1_000_000, 1 << 30)
            found = re.findall(rb"^message-id:(\d+)-(\d+)$", frames, re.MULTILINE)
            keys = [(int(queue_id), int(sequence)) for queue_id, sequence in found]
            if status is DeliverStatus.LARGE:
                given = life.core.take_large(consumer)
                assert given is not None
                keys.append((by_consumer[consumer], given.sequence))
            elif status is DeliverStatus.SPECIAL:
                keys += await give_special(life, consumer, by_consumer[consumer])
            assert life.waiting.issuperset(keys), "delivered before its confirm, or twice"
            life.waiting.difference_update(keys)
            life.held += keys
            if status is DeliverStatus.ABSENT:
                await tries.load(life, *life.core.absent_slab(consumer))
            elif status is DeliverStatus.PAGED:
                await tries.open_page(life)


async def acknowledge(life: Life) -> None:
    """Acknowledge some held messages: the oldest ones, or any."""
    await receive(life)
    count = life.chance.randrange(len(life.held) + 1)
    keys = life.held[:count] if life.chance.random() < 0.6 else life.chance.sample(life.held, count)
    await _end(life, keys)


async def _end(life: Life, keys: list[Key]) -> None:
    staged: list[Key] = []
    try:
        for key in keys:
            life.stage_acknowledgement(key)
            staged.append(key)
    except NoRoom:
        pass
    gone = set(staged)
    life.held = [key for key in life.held if key not in gone]
    await life.journal.wait_durable()
    life.acknowledged(staged)


async def give_back(life: Life) -> None:
    """Give some held messages back: they stay in the journal, counted as delivered."""
    await receive(life)
    for key in life.held[: life.chance.randrange(4)]:
        assert life.core.give_back(life.consumers[key[0]], key[1]) == 1
        life.held.remove(key)
        life.waiting.add(key)
    await life.journal.wait_durable()


async def transact(life: Life) -> None:
    """Send and acknowledge in one transaction; at times the journal rolls within it."""
    await receive(life)
    life.transaction += 1
    sends = life.chance.choice((0, 1, 3, 3, 12))
    ends = life.held[: life.chance.randrange(4)] if sends else life.held[:2]
    number = life.transaction
    try:
        life.core.begin(number, sends * 10_000, 2 * sends + len(ends))
    except NoRoom:
        return
    keys: list[Key] = []
    for _ in range(sends):
        keys += life.publish(number)
    for key in ends:
        life.stage_acknowledgement(key, number)
    try:
        life.core.commit(number)
    except NoRoom as error:
        raise AssertionError("begin made room for the members, and commit found none") from error
    await life.journal.wait_durable()
    life.disk.mark(f"settled {number}")
    life.held = [key for key in life.held if key not in set(ends)]
    life.confirm(keys)
    life.acknowledged(ends)


async def purge(life: Life) -> None:
    """Acknowledge all that waits in one queue."""
    queue_id = life.chance.choice(QUEUES)
    keys = sorted(key for key in life.waiting if key[0] == queue_id)
    for _, sequence in keys:
        life.disk.mark(f"acking {queue_id} {sequence}")
    try:
        assert life.core.purge_queue(queue_id) == len(keys)
    except NoRoom:
        # Some are acknowledged, those in front; the journal says which.
        life.waiting.difference_update(keys)
        await life.journal.wait_durable()
        return
    life.waiting.difference_update(keys)
    await life.journal.wait_durable()
    life.acknowledged(keys)


async def rest(life: Life) -> None:
    """Give the keeper its turns, and the block that covers the last confirms its time."""
    await asyncio.sleep(life.chance.choice((0.0005, 0.003, 0.01)))


async def fill_the_disk(life: Life) -> None:
    """Let the disk be full for a while; acknowledgements go on, then there is room again."""
    room, life.disk.capacity_bytes = life.disk.capacity_bytes, life.disk.used_bytes()
    for _ in range(life.chance.randrange(2, 8)):
        await send(life)
        await rest(life)
    await acknowledge(life)
    await rest(life)
    life.disk.capacity_bytes = room
    await rest(life)


async def drain(life: Life) -> None:
    """Acknowledge everything: all files but the newest can go."""
    await receive(life)
    await _end(life, list(life.held))
    await rest(life)


async def leave_a_little(life: Life) -> None:
    """Acknowledge nearly everything: the compaction moves what keeps nearly empty files."""
    await receive(life)
    await _end(life, [key for key in life.held if life.chance.random() < 0.9])
    await asyncio.sleep(life.chance.choice((0.02, 0.1)))


class Act(NamedTuple):
    """What a life may do next, and how often it does."""

    run: Callable[[Life], Awaitable[None]]
    weight: int


ACTS: dict[str, Act] = {
    "send": Act(send, 12),
    "send in two writes": Act(send_in_two_writes, 4),
    "acknowledge": Act(acknowledge, 8),
    "give back": Act(give_back, 2),
    "transact": Act(transact, 6),
    "purge": Act(purge, 1),
    "rest": Act(rest, 4),
    "fill the disk": Act(fill_the_disk, 1),
    "drain": Act(drain, 2),
    "leave a little": Act(leave_a_little, 3),
    "prepare a branch": Act(prepare_branch, 4),
    "end a branch": Act(end_branch, 3),
    "send large": Act(send_large, 3),
    "end unheld": Act(end_unheld, 2),
    "move": Act(move, 2),
    "set aside": Act(set_aside, 2),
    "page": Act(page, 6),
    "page beside others": Act(page_beside_others, 3),
    "look after pages": Act(look_after_pages, 2),
    "name pages anew": Act(name_anew, 2),
}
"""By name. What is added here is cut, replayed and counted without more ado."""


# --- lives ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a seed decided about the lives.

    Attributes:
        seed: The seed.
        lives: Number of lives, one after the other on the same disk.
        acts: Acts of each.
        options: What differs from `small_options`.
    """

    seed: int
    lives: int
    acts: int
    options: dict[str, Any]


def plan(seed: int) -> Plan:
    """Decide from a seed how many lives there are, how long, and with which options."""
    chance = random.Random(f"plan {seed}")
    options = {
        "file_size_bytes": chance.choice((1, 1, 1, 2)) * FILE_BYTES,
        "min_files": chance.choice((2, 2, 4)),
        "pool_files": chance.choice((-1, -1, 0, 2)),
        "memory_bytes": chance.choice((8, 64)) * FILE_BYTES,
        "disk_scan_period_s": 0.001,
        "compact_min_files": chance.choice((0, 2, 2, 3)),
        "compact_percentage": chance.choice((30, 60, 90)),
    }
    return Plan(seed, chance.choice((2, 3)), chance.choice((12, 25, 40)), options)


async def open_life(
    folder: Path,
    disk: MemoryDisk,
    chance: random.Random,
    options: dict[str, Any],
    make_ring: MakeRing = MemoryRing,
    **parts: Any,
) -> Life:
    """Open the journal; `parts` replace some of its `OpeningParts`."""
    made = memory_parts(disk, make_ring, seed=chance.getrandbits(32))
    journal = await MessageJournal.open(
        small_options(folder, **options),
        queue_ids=QUEUES,
        parts=dataclasses.replace(made, **parts),
        executor=InlineExecutor(),
    )
    try:
        large = await open_large(folder, disk, journal.core, chance.getrandbits(40))
        pages = await LifePages.open(folder, disk, journal, chance)
    except BaseException:
        await journal.close()
        raise
    return Life(journal, disk, chance, large, pages)


async def live(
    folder: Path,
    disk: MemoryDisk,
    seed: int,
    *,
    lives: int,
    acts: int,
    options: dict[str, Any],
    make_ring: MakeRing = MemoryRing,
) -> None:
    """Run lives on a disk, each ended by a stop or by a killed process."""
    chance = random.Random(f"lives {seed}")
    names = list(ACTS)
    weights = [ACTS[name].weight for name in names]
    for _ in range(lives):
        known = recover_live(disk, folder)
        life = await open_life(folder, disk, chance, options, make_ring)
        life.brought_back(known)
        for name in chance.choices(names, weights, k=acts):
            await ACTS[name].run(life)
        if chance.random() < 0.5:
            if chance.random() < 0.7:
                life.try_publish()
                life.journal.kick()
            life.journal.fail(JournalError("the process is killed here"))
        disk.mark(f"compacted {life.journal.statistics().compaction.files}")
        await life.close()


def record_lives(folder: Path, seed: int, make_ring: MakeRing = MemoryRing) -> list[Op]:
    """Run the lives that a seed decides on and return what the disk saw."""
    made = plan(seed)
    disk = MemoryDisk()
    return record_more(folder, disk, made, make_ring)


def record_more(
    folder: Path, disk: MemoryDisk, made: Plan, make_ring: MakeRing = MemoryRing
) -> list[Op]:
    """Run the lives of a plan on a disk that may hold something; return its whole log."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        run_virtual(
            live(
                folder,
                disk,
                made.seed,
                lives=made.lives,
                acts=made.acts,
                options=made.options,
                make_ring=make_ring,
            )
        )
    finally:
        logging.disable(before)
    return disk.log
