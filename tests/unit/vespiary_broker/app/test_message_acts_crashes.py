"""Power cuts while messages are moved and changed: each message is there once."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.app.message_acts import MessageActs
from vespiary_broker.app.tasks import Task, Tasks, TaskState
from vespiary_broker.engine.engine import make_engine
from vespiary_broker.engine.wanted import Act, Wanted
from vespiary_broker.store.writer import MessageJournal
from vespiary_codec.journal.record import AckRecord, AddRecord
from vespiary_testkit.duplicates_workload import bindings, new_ids
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images, recorded
from vespiary_testkit.journal_workload import LiveSet, open_memory, recover
from vespiary_testkit.memory_journal import NoLock
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.virtual_time import run_virtual

# Fixed: the workload must go through what matters, and so must the harness's own tests.
SEED = 11
IMAGES_SEED = seed_for("message acts")
COUNT = 40
LIVES_MAX = 5
SHARDS = 2


class Turn:
    """The part of the server's cycle that acts need."""

    def __init__(self, journal: MessageJournal) -> None:
        self._journal = journal

    def touch(self) -> None:
        self._journal.kick()

    async def space(self) -> None:
        self._journal.request_space()
        await self._journal.wait_durable()
        await asyncio.sleep(0.001)


class WithoutTransactions:
    """A core that forgets that its caller wants a transaction."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def begin(self, *_: int) -> None:
        pass

    def commit(self, _: int) -> None:
        pass

    def publish(self, *place: Any, transaction: int = 0, **options: Any) -> Any:
        return self._core.publish(*place, **options)

    def finish(self, *place: Any, transaction: int = 0) -> Any:
        return self._core.finish(*place)


async def live(
    folder: Path, disk: MemoryDisk, wrap: Callable[[Any], Any] = lambda core: core
) -> None:
    """Send to q1, move to q2 and back in parts, give other priorities and expiries."""
    journal = await open_memory(folder, disk)
    running: list[asyncio.Task[None]] = []
    engine = make_engine(
        wrap(journal.core),
        bindings(),
        lock=NoLock(),
        make_event=asyncio.Event,
        duplicates=new_ids(),
        spawn=lambda work: work.close(),
        load_slab=lambda *_: None,
        users=dict,
        address_settings={},
        transaction_bytes_max=1 << 20,
        transaction_room_bytes=24 * 1024,
    )
    engine.registry.restore()
    tasks = Tasks(lambda work: running.append(asyncio.ensure_future(work)))
    acts = MessageActs(engine, Turn(journal), journal, None, tasks)  # type: ignore[arg-type]

    async def act(queue: str, kind: Act, **more: Any) -> Task:
        task = acts.start(Wanted(queue=queue, act=kind, **more))
        await task.wait(10)
        assert task.state is TaskState.DONE, task
        return task

    route = engine.registry.queue_route(engine.registry.queues["q1"]).next_handle()
    for number in range(COUNT):
        body = b"%d:" % number + b"x" * (100 + 37 * number)
        journal.core.publish(route, b"n:%d\n" % number, body, persistent=True)
    await journal.wait_durable()
    disk.mark("sent")
    assert (await act("q1", Act.MOVE, to="q2")).messages == COUNT
    disk.mark("moved")
    assert (await act("q2", Act.MOVE, to="q1", filter_text="n < 20")).messages == 20
    assert (await act("q1", Act.CHANGE_PRIORITY, priority=8)).messages == 20
    assert (await act("q2", Act.CHANGE_EXPIRY, expires_ms=2**50, limit=10)).messages == 10
    await journal.close()
    await asyncio.gather(*running)


class Bodies(LiveSet):
    """Which message stands where, by the first part of its body."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[tuple[int, int], int] = {}

    def _apply(self, record: Any) -> None:
        super()._apply(record)
        if isinstance(record, AddRecord):
            number = int(bytes(record.body).partition(b":")[0])
            self.numbers.update(dict.fromkeys(record.places, number))
        else:
            assert isinstance(record, AckRecord) or not hasattr(record, "ranges")

    def copies(self) -> Counter[int]:
        return Counter(self.numbers[place] for place in self.live)


def wrong_on(disk: MemoryDisk, folder: Path, marks: Any) -> str:
    """Return what is wrong after a cut; nothing if all is well."""
    found = Bodies()
    recover(disk, folder, found)
    copies = found.copies()
    doubled = [number for number, count in copies.items() if count > 1]
    if doubled:
        return f"doubled: {doubled}"
    if "sent" in marks and len(copies) != COUNT:
        return f"lost: {set(range(COUNT)) - set(copies)}"
    if list(marks)[-1:] == ["moved"] and any(
        queue == 1 and found.numbers[queue, at] >= 20 for queue, at in found.live
    ):
        return "a message that was moved stands where it was"
    return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal")


@pytest.mark.ci
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_power_cut_leaves_each_message_once(folder: Path, shard: int):
    count = 0
    images = crash_images(list(recorded(live, folder)), seed=IMAGES_SEED, torn_max=3, subsets_max=8)
    for index, image in enumerate(images):
        if index % SHARDS == shard:
            count += 1
            wrong = wrong_on(image.disk, folder, image.marks)
            assert not wrong, f"{wrong} (cut {image.cut}, {image.label})"
    assert count >= 50


def test_without_the_transaction_the_cuts_do_find_a_message_twice(folder: Path):
    """The mutation: were the two halves of a batch staged one by one, this harness would see it."""
    for _ in range(LIVES_MAX):  # which halves share a block depends on how busy the machine is
        disk = MemoryDisk()
        logging.disable(logging.WARNING)
        run_virtual(live(folder, disk, WithoutTransactions))
        logging.disable(logging.NOTSET)
        for image in crash_images(disk.log, seed=SEED, torn_max=3, subsets_max=8):
            if wrong_on(image.disk, folder, image.marks):
                return
    pytest.fail("no image showed that the transaction was missing")
