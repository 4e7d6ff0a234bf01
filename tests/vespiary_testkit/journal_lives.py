"""Lives of a message journal, made up from a seed: the workloads of the power cuts.

A `Life` is one opened journal with a client that marks in the disk's log what it asks for and what
it was promised (`journal_model` says which marks there are). `record_lives` runs several lives over
one `MemoryDisk` and returns the log. The acts are functions in `ACTS`: a new feature of the journal
adds its own there, with the marks that say what must come back, and is cut at every step from then
on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from vespiary_broker.engine.large_bodies import reference_of
from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_broker.store.paging.folders import PageFolders
from vespiary_broker.store.paging.page_files import PageFile, PageFiles
from vespiary_broker.store.paging.page_recovery import remove_leftovers, survey_pages
from vespiary_broker.store.paging.pager import Pager, PagingOptions
from vespiary_broker.store.survey import survey_folder
from vespiary_broker.store.writer import MessageJournal
from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.block import FIRST_OFFSET
from vespiary_codec.journal.branch import BranchName, Xid, decode_branch, encode_branch
from vespiary_codec.journal.page import block_file_id, check_footer
from vespiary_native.abc import AckMode, Core, DeliverStatus, NoRoom
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import DiskFull, JournalError, VespiaryError
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk, Op
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_model import Group, Key, Marks
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    QUEUES,
    memory_parts,
    recover_live,
    small_options,
)
from vespiary_testkit.paging_rig import RigAddress
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
        self.branches: dict[int, Group] = branches_of(journal.core)
        journal.on_durable = lambda: large.remove(done_bodies(journal.core))
        self.disk = disk
        self.marks = Marks(disk)
        self.core = journal.core
        self.chance = chance
        self.held: list[Key] = []
        self.waiting: set[Key] = set()
        self.transaction = first_transaction(journal.core)
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
        self.marks.restart(known, self.branches)
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
        self.marks.sent(keys, transaction)
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
        self.marks.confirmed(keys)
        self.waiting.update(keys)

    def stage_acknowledgement(self, key: Key, transaction: int = 0) -> None:
        """Stage the acknowledgement of a held message; NoRoom is the caller's."""
        self.marks.acking([key], transaction)
        count = self.core.acknowledge(self.consumers[key[0]], key[1], transaction=transaction)
        assert count == 1, key

    def acknowledged(self, keys: list[Key]) -> None:
        """Mark acknowledgements as confirmed."""
        self.marks.acked(keys)


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
    life.marks.settled(number)
    life.held = [key for key in life.held if key not in set(ends)]
    life.confirm(keys)
    life.acknowledged(ends)


async def purge(life: Life) -> None:
    """Acknowledge all that waits in one queue."""
    queue_id = life.chance.choice(QUEUES)
    keys = sorted(key for key in life.waiting if key[0] == queue_id)
    life.marks.acking(keys)
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


# --- acts with prepared branches ------------------------------------------------------------------


async def prepare_branch(life: Life) -> None:
    """Prepare a branch that sends and acknowledges; it may be ended much later, or after a cut."""
    await life.receive()
    life.transaction += 1
    number, core = life.transaction, life.core
    sends = life.chance.randrange(4)
    acks = life.chance.sample(life.held, min(len(life.held), life.chance.randrange(4)))
    try:
        core.begin(number, sends * 10_000, 2 * sends + len(acks), branch=True)
    except NoRoom:
        return
    adds: list[Key] = []
    for _ in range(sends):
        route = life.chance.randrange(len(life.routes))
        adds += life.next_keys(route)
        core.publish(life.routes[route], b"a:b\n", life.body(), persistent=True, transaction=number)
    for queue_id, sequence in acks:
        assert core.acknowledge(life.consumers[queue_id], sequence, transaction=number) == 1
    group = Group(set(adds), set(acks))
    life.marks.preparing(number, group)
    core.prepare(number, branch_name(number))
    life.held = [key for key in life.held if key not in set(acks)]
    life.branches[number] = group
    await life.journal.wait_durable()
    life.marks.prepared(number)


async def end_branch(life: Life) -> None:
    """Commit or roll back a prepared branch, of this life or of an earlier one."""
    if not life.branches:
        return
    number = life.chance.choice(sorted(life.branches))
    is_commit = life.chance.random() < 0.5
    try:
        life.core.resolve(id_of(life.core, number), commit=is_commit)
    except NoRoom:
        return
    group = life.branches.pop(number)
    life.marks.ending(number, group, commit=is_commit)
    await life.journal.wait_durable()
    life.marks.ended(number, group, commit=is_commit)
    life.waiting.update(group.adds if is_commit else group.acks)


def branch_name(number: int) -> bytes:
    """Return the name that a branch gets."""
    return encode_branch(BranchName(Xid(1, number.to_bytes(8), b""), 1, "amy"))


def number_in(name: bytes) -> int:
    """Return the number that `branch_name` has made a name of."""
    return int.from_bytes(decode_branch(name).xid.global_id)


def id_of(core: Core, number: int) -> int:
    """Return the id of a prepared branch: another one than its number once it was copied."""
    ids = (facts.transaction for facts in core.branches())
    return next(each for each in ids if core.branch_data(each) == branch_name(number))


def branches_of(core: Core) -> dict[int, Group]:
    """Return what the prepared branches of a core hold, by the number in their names.

    None of it may be missing, and no two may have one name.
    """
    found: dict[int, Group] = {}
    for facts in core.branches():
        assert facts.is_whole, facts
        assert not facts.missing, facts
        members = core.branch_members(facts.transaction)
        keys = [((m.queue_id, m.sequence), m.is_acknowledgement) for m in members]
        number = number_in(core.branch_data(facts.transaction))
        assert number not in found, facts
        found[number] = Group(
            {key for key, is_ack in keys if not is_ack}, {key for key, is_ack in keys if is_ack}
        )
    return found


# --- acts with large messages ---------------------------------------------------------------------


def large_folder(folder: Path) -> Path:
    """Return where the bodies of a journal's large messages are."""
    return folder / "large"


async def open_large(folder: Path, disk: MemoryDisk, core: Core, now_ms: int) -> LargeMessages:
    """Open the bodies as a broker does; ids follow from `now_ms`."""
    made = await LargeMessages.open(
        LargeMessageOptions(directory=large_folder(folder)),
        core.live_large(),
        disk=disk,
        executor=InlineExecutor(),
    )
    made._clock_ms = lambda: now_ms
    assert not made.damaged, made.damaged
    return made


async def send_large(life: Life) -> None:
    """Send a message whose body is in a file, to one queue or to all, and wait for its confirm."""
    writer = life.large.begin()
    for _ in range(life.chance.randrange(3)):
        writer.put(life.chance.randbytes(life.chance.choice((1, 600, 5000))))
    try:
        body = await writer.finish(is_persistent=True)
    except VespiaryError:
        return  # the disk is full
    route = life.chance.randrange(len(life.routes))
    keys = life.next_keys(route)
    life.marks.sent(keys)
    try:
        life.core.publish(
            life.routes[route], b"a:b\n", reference_of(body), persistent=True, large=True
        )
    except NoRoom:
        life.large.remove([body.large_id])
        return
    life.large.adopt(body)
    await life.journal.wait_durable()
    life.confirm(keys)


def done_bodies(core: Core) -> list[int]:
    """Return the bodies that nobody needs any more."""
    return core.take_done_large()


def lost_bodies(disk: MemoryDisk, folder: Path, core: Core) -> list[str]:
    """Return what is wrong with the bodies that live messages refer to."""
    wrong = []
    for body in core.live_large():
        inode = disk.files.get(large_folder(folder) / f"{body.large_id:016x}.msg")
        if inode is None:
            wrong.append(f"the body {body.large_id:016x} of a live message is gone")
        elif (len(inode.data), crc32c(bytes(inode.data))) != (body.size_bytes, body.crc):
            wrong.append(f"the body {body.large_id:016x} of a live message is another")
    return wrong


# --- acts in which Python decides over messages: ends, moves, sets aside --------------------------

# Acts of a journal's life in which Python decides over messages: ends, moves, sets aside. What a
# message is, these acts learn from the core alone (`abc_inspection`).


class Tries:
    """Reads slabs back; one that never comes (a file that is gone) fails the life, not its time."""

    def __init__(self) -> None:
        self._failed = 0

    async def load(self, life: Life, file_id: int, slab: int) -> None:
        """Read a slab back.

        Raises:
            AssertionError: Too many could not be read.
        """
        if not await life.journal.load_slab(file_id, slab):
            self._failed += 1
            assert self._failed < 1000, f"slab {slab} of file {file_id} does not come back"
            await asyncio.sleep(0)

    async def open_page(self, life: Life) -> None:
        """Have the page opened that a consumer stands in front of.

        Raises:
            AssertionError: That was tried too often.
        """
        self._failed += 1
        assert self._failed < 1000, f"a page does not open: {life.pages.pager.statistics()}"
        life.pages.pager.serve()
        await asyncio.sleep(0.0005)


async def look(life: Life, queue_id: int) -> list[Key]:
    """Return the deliverable messages of a queue; what is not in memory is read back."""
    found: list[Key] = []
    sequence = 0
    tries = Tries()
    async with life.pages.opened(queue_id):
        while sequence < life.core.queue_statistics(queue_id).available:
            seen = life.core.look(queue_id, sequence, life.chance.choice((1, 5, 100)))
            assert seen.absent is not None or seen.next_sequence > sequence
            found += [(queue_id, view.sequence) for view in seen.messages]
            sequence = seen.next_sequence
            if seen.absent is not None:
                await tries.load(life, *seen.absent)
    waiting = sorted(key for key in life.waiting if key[0] == queue_id)
    assert found == waiting, "what is seen is what was confirmed and not taken"
    return found


async def give_special(life: Life, consumer: int, queue_id: int) -> list[Key]:
    """Give a consumer all special messages of a queue, at which `deliver` stops."""
    given: list[Key] = []
    sequence = 0
    tries = Tries()
    while sequence < life.core.queue_statistics(queue_id).available:
        seen = life.core.look(queue_id, sequence, 100, special_only=True)
        for view in seen.messages:
            await give_one(life, consumer, queue_id, view.sequence)
            given.append((queue_id, view.sequence))
        sequence = seen.next_sequence
        if seen.absent is not None:
            await tries.load(life, *seen.absent)
    life.core.specials_seen(queue_id)
    return given


async def give_one(life: Life, consumer: int, queue_id: int, sequence: int) -> None:
    """Give a consumer a message; what is not in memory is read back."""
    tries = Tries()
    while True:
        status, count, passed, _ = life.core.give(consumer, [sequence], 1)
        if status is DeliverStatus.LARGE:
            assert life.core.give_large(consumer, sequence) is not None
            return
        if status is not DeliverStatus.ABSENT:
            assert (status, count, passed) == (DeliverStatus.DRAINED, 1, 1)
            return
        await tries.load(life, *life.core.absent_for(queue_id, sequence))


async def end_unheld(life: Life) -> None:
    """End some messages that nobody holds, as if they had expired."""
    queue_id = life.chance.choice(QUEUES)
    keys = [key for key in await look(life, queue_id) if life.chance.random() < 0.4]
    life.marks.acking(keys)
    try:
        assert life.core.finish(queue_id, [sequence for _, sequence in keys]) == len(keys)
    except NoRoom:
        # Some are ended, those in front; the journal says which, and the core too.
        left = {view.sequence for view in life.core.look(queue_id, 0, 10**6).messages}
        life.waiting.difference_update(key for key in keys if key[1] not in left)
        await life.journal.wait_durable()
        return
    life.waiting.difference_update(keys)
    await life.journal.wait_durable()
    life.acknowledged(keys)


async def move(life: Life) -> None:
    """Move messages to a queue in one transaction: held ones, and ones that nobody holds."""
    await life.receive()
    held = life.chance.sample(life.held, min(len(life.held), life.chance.randrange(3)))
    sent = [key for _ in range(3) for key in life.try_publish()]
    await life.journal.wait_durable()
    life.confirm(sent)
    unheld = (await look(life, life.chance.choice(QUEUES)))[:2]
    life.transaction += 1
    number, ends = life.transaction, held + unheld
    try:
        life.core.begin(number, len(ends) * 10_000, 3 * len(ends))
    except NoRoom:
        return
    added: list[Key] = []
    for key in ends:
        added += life.publish(number)
        life.marks.acking([key], number)
        if key in held:
            count = life.core.finish_held(life.consumers[key[0]], key[1], transaction=number)
        else:
            count = life.core.finish(key[0], [key[1]], transaction=number)
        assert count == 1, key
    life.core.commit(number)
    await life.journal.wait_durable()
    life.marks.settled(number)
    life.held = [key for key in life.held if key not in set(ends)]
    life.waiting.difference_update(ends)
    life.confirm(added)
    life.acknowledged(ends)


async def set_aside(life: Life) -> None:
    """Set messages aside, while others go and the compaction moves them, then put them back."""
    queue_id = life.chance.choice(QUEUES)
    keys = [key for key in await look(life, queue_id) if life.chance.random() < 0.3]
    for _, sequence in keys:
        assert life.core.set_aside(queue_id, sequence)
    life.waiting.difference_update(keys)
    await life.receive()
    assert not life.held or not set(life.held) & set(keys)
    await asyncio.sleep(life.chance.choice((0.0005, 0.03)))
    assert life.core.queue_statistics(queue_id).aside == len(keys)
    for _, sequence in keys:
        assert life.core.put_back(queue_id, sequence)
    life.waiting.update(keys)


# --- acts that page -------------------------------------------------------------------------------

# Acts of a journal's life that page: messages move into files, come back, and end there. Moving
# changes nothing that was promised, so it leaves no mark.


def paging_folder(folder: Path) -> Path:
    """Return where the pages of a journal are."""
    return folder / "paging"


class LifePages:
    """The pager of a life. Owner: the loop that runs the life."""

    def __init__(self, pager: Pager, core: Core) -> None:
        self.pager = pager
        self.address = RigAddress(core)
        self.address.is_wanted = False
        self._core = core

    @classmethod
    async def open(
        cls, folder: Path, disk: MemoryDisk, journal: MessageJournal, chance: random.Random
    ) -> LifePages:
        """Open the pages as a broker does; ids and salts follow from `chance`."""
        pager = await Pager.open(
            PagingOptions(directory=paging_folder(folder), retry_s=0.005),
            journal,
            disk=disk,
            executor=InlineExecutor(),
        )
        now_ms = chance.getrandbits(40)
        pager._clock_ms = pager._mover._clock_ms = lambda: now_ms
        pager._mover._new_salt = lambda: chance.getrandbits(64)
        pager.start()
        made = cls(pager, journal.core)
        pager.page(made.address)
        return made

    async def move(self) -> bool:
        """Move waiting messages into one page; return whether anything was moved.

        The pager's own task wants nothing of the address meanwhile: only one page of an address may
        be filled at a time.
        """
        mover, page = self.pager._mover, None
        try:
            filled = await mover.fill(self.address, self.address.surplus_bytes())
            if filled is not None:
                page = await mover.finish(self.address, filled)
        except (NoRoom, DiskFull):
            return False  # all of them are still in the journal
        if page is not None:
            self.pager._note_written(page)
        return page is not None

    @contextlib.asynccontextmanager
    async def opened(self, queue_id: int) -> AsyncIterator[None]:
        """Have all pages of a queue open: what stands in closed ones is not seen."""
        self.address.remembered = [queue_id]
        try:
            async with asyncio.timeout(60):
                while self._core.queue_statistics(queue_id).paged:
                    self.pager.open_all(queue_id)
                    await asyncio.sleep(0.0005)
            yield
        finally:
            self.address.remembered = []


async def page(life: Life) -> None:
    """Move what waits into pages, as far as that goes."""
    sent = [key for _ in range(life.chance.choice((0, 5, 12))) for key in life.try_publish()]
    await life.journal.wait_durable()
    life.confirm(sent)
    life.pages.address.keep_bytes = life.chance.choice((0, 0, 2000, 20_000))
    for _ in range(life.chance.choice((1, 3))):
        if not await life.pages.move():
            break
    await life.journal.wait_durable()


async def page_beside_others(life: Life) -> None:
    """Move while messages come, are taken and end."""
    moving = asyncio.ensure_future(life.pages.move())
    try:
        for _ in range(life.chance.randrange(1, 4)):
            await life.receive()
            sent, ending = life.try_publish(), []
            for key in life.held[: life.chance.randrange(3)]:
                try:
                    life.stage_acknowledgement(key)
                except NoRoom:
                    break
                life.held.remove(key)
                ending.append(key)
            await life.journal.wait_durable()
            life.confirm(sent)
            life.acknowledged(ending)
    finally:
        await moving


async def look_after_pages(life: Life) -> None:
    """Give the pager its turns: pages that are done go, old ones are named again."""
    for _ in range(3):
        life.pages.pager._wake.set()  # or it would come after 250 rounds of the keeper
        await asyncio.sleep(0.002)


async def name_anew(life: Life) -> None:
    """Have the journal name pages again, with what is left of them."""
    for facts in life.core.pages():
        if facts.places and life.chance.random() < 0.8:
            with contextlib.suppress(NoRoom):
                life.core.page_restage(facts.page_id)
    await life.journal.wait_durable()


# --- what an image must hold of pages -------------------------------------------------------------


def files_of(disk: MemoryDisk, folder: Path) -> PageFiles:
    """Return the page files of a journal on a disk."""
    survey = survey_folder(folder, MESSAGE_FORM, disk, is_direct=True)
    folders = PageFolders(paging_folder(folder), disk)
    return PageFiles(folders, disk, journal_id=survey.journal_id or b"")


def open_pages(disk: MemoryDisk, folder: Path, core: Core) -> None:
    """Have all pages that a recovered journal names in the rings, every byte of them looked at.

    Raises:
        PageDamaged: One is missing or damaged.
        AssertionError: Its blocks are not what its index says.
        ValueError: Its index lacks a place.
    """
    named = {facts.page_id: facts.salt for facts in core.pages() if facts.places}
    if not named:
        return
    files = files_of(disk, folder)
    for found in survey_pages(files, named).pages.values():
        footer = files.read_footer(found)
        _check_blocks(files, disk, found, footer)
        for queue_id in QUEUES:
            if any(facts.page_id == found.page_id for facts in core.extents(queue_id)):
                core.page_enter(found.page_id, queue_id, footer)


def _check_blocks(files: PageFiles, disk: MemoryDisk, found: PageFile, footer: bytes) -> None:
    trailer = check_footer(footer, page_id=found.page_id, salt=found.salt)
    path = files.path(found.address, found.page_id)
    data = memoryview(bytes(disk.files[path].data[FIRST_OFFSET : trailer.footer_offset]))
    file_id = block_file_id(found.page_id)
    blocks = block_verifier()(data, FIRST_OFFSET, found.salt, file_id, FILE_BYTES)
    assert len(blocks) == trailer.blocks, f"{len(blocks)} of {trailer.blocks} blocks in {path}"
    assert blocks[-1].is_seal, path


def remove_unnamed(disk: MemoryDisk, folder: Path, core: Core) -> None:
    """Look at the paging folder as a start does, and remove what crashes left there."""
    files = files_of(disk, folder)
    named = {facts.page_id: facts.salt for facts in core.pages() if facts.places}
    remove_leftovers(files, survey_pages(files, named))


# --- the table of acts ----------------------------------------------------------------------------


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


def first_transaction(core: Core) -> int:
    """Return an id below those of a new life, and above those of earlier ones.

    A broker uses no id twice: members that a power cut left without their COMMIT would count for a
    later transaction of the same id.
    """
    return core.image_statistics().sequence_durable << 32


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
    copies = itertools.count((first_transaction(journal.core) | 1 << 31) + 1)
    journal._compaction._new_transaction = lambda: next(copies)  # a seed copies branches alike
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
