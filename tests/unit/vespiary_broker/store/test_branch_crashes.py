"""Power cuts at every moment of prepared branches: none is lost, half, or decided by itself."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest

from vespiary_native.abc import Core
from vespiary_native.choice import open_core
from vespiary_testkit.faulty_disk import Image, MemoryDisk, Op, crash_images, recorded
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    QUEUES,
    Client,
    open_memory,
    recover,
)

SEED = 20261122
SHARDS = 3


Keys = set[tuple[int, int]]


def branches_of(marks: list[str]) -> dict[int, tuple[Keys, Keys]]:
    """Return what each branch of the workload does: (queue, sequence) added and acknowledged."""
    branches: dict[int, tuple[Keys, Keys]] = {}
    for mark in marks:
        act, *numbers = mark.split()
        if act == "preparing":
            branches.setdefault(int(numbers[0]), (set(), set()))
        elif act in ("adds", "acks"):
            number, queue_id, sequence = map(int, numbers)
            branches.setdefault(number, (set(), set()))[act == "acks"].add((queue_id, sequence))
    return branches


class BranchClient(Client):
    """A client that prepares branches and ends them, and marks what it did."""

    async def prepare(self, count: int, acknowledge: int) -> int:
        """Prepare a branch and wait until that is durable; return its number."""
        self.transaction += 1
        number = self.transaction
        acknowledged, self.held = self.held[:acknowledge], self.held[acknowledge:]
        added = []
        self.core.begin(number, count * 7000, count + acknowledge, branch=True)
        for _ in range(count):
            queue_id = self.chance.choice(QUEUES)
            added.append((queue_id, self.core.queue_statistics(queue_id).tail))
            body = bytes(self.chance.randrange(100, 6000))
            self.core.publish(
                self.routes[queue_id], b"a:b\n", body, persistent=True, transaction=number
            )
        for queue_id, sequence in acknowledged:
            done = self.core.acknowledge(self.consumers[queue_id], sequence, transaction=number)
            assert done == 1
        for act, keys in (("adds", added), ("acks", acknowledged)):
            for queue_id, sequence in keys:
                self.disk.mark(f"{act} {number} {queue_id} {sequence}")
        self.disk.mark(f"preparing {number}")
        self.core.prepare(number, b"name %d" % number)
        await self.journal.wait_durable()
        self.disk.mark(f"prepared {number}")
        return number

    async def end(self, number: int, *, commit: bool) -> None:
        """End a branch and wait until that is durable."""
        act = "commit" if commit else "rollback"
        self.disk.mark(f"{act}ting {number}")
        self.core.resolve(number, commit=commit)
        await self.journal.wait_durable()
        self.disk.mark(f"{act}ted {number}")


async def _live_with_branches(folder: Path, disk: MemoryDisk, make_ring: Any = MemoryRing) -> None:
    """Prepare and end branches among other work: over rolls, reclaims and a restart."""
    open_ones: list[int] = []
    for life in range(2):
        journal = await open_memory(folder, disk, make_ring)
        client = BranchClient(journal, disk, SEED + life)
        client.transaction = 100 * (life + 1)
        for turn in range(8):
            await client.send(1 + turn % 3)
            await client.receive()
            open_ones.append(await client.prepare(1 + turn % 3, min(turn % 2, len(client.held))))
            if turn % 3 == 2:
                await client.end(open_ones.pop(0), commit=turn % 2 == 0)
                await client.end(open_ones.pop(), commit=turn % 2 == 1)
            await client.receive()
            await client.acknowledge(len(client.held) * (turn % 3) // 2)
            await asyncio.sleep(0.002)  # the keeper's turn
        await client.receive()
        await client.acknowledge(len(client.held))
        await journal.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("journal")


@pytest.fixture(scope="module")
def log(folder: Path) -> list[Op]:
    return list(recorded(_live_with_branches, folder))


def restored(image: Image, folder: Path) -> Core:
    """Return the core as a start after the cut would have it."""
    core = open_core(slab_bytes=FILE_BYTES, slabs_max=64, record_bytes_max=24 * 1024)
    for queue_id in QUEUES:
        core.open_queue(queue_id)
    recover(image.disk, folder, core)
    core.restore_done()
    return core


def wrong_with(image: Image, folder: Path) -> str:
    """Say what is wrong with the branches after a cut; nothing if all is well."""
    core = restored(image, folder)
    found = {facts.transaction: facts for facts in core.branches()}
    marks = set(image.marks)
    branches = branches_of(list(image.marks))
    if unknown := found.keys() - branches.keys():
        return f"branches {unknown} were never prepared"
    for number, branch in branches.items():
        is_ended = bool({f"committed {number}", f"rollbackted {number}"} & marks)
        is_ending = bool({f"committing {number}", f"rollbackting {number}"} & marks)
        if number in found:
            facts = found[number]
            if is_ended:
                return f"branch {number} is back after its end was confirmed"
            if not facts.is_whole or facts.missing:
                return f"branch {number} is back without all of its members: {facts}"
            members = core.branch_members(number)
            added = {(m.queue_id, m.sequence) for m in members if not m.is_acknowledgement}
            acknowledged = {(m.queue_id, m.sequence) for m in members if m.is_acknowledgement}
            if (added, acknowledged) != branch:
                return f"branch {number} holds {added} and {acknowledged}, not {branch}"
            if core.branch_data(number) != b"name %d" % number:
                return f"branch {number} has another name"
        elif f"prepared {number}" in marks and not is_ending:
            return f"branch {number} is lost"
    return ""


def test_the_workload_goes_through_what_matters(log: list[Op]) -> None:
    marks = [op.name for op in log if op.kind == "mark"]
    for act in ("prepared", "committed", "rollbackted"):
        assert sum(mark.startswith(act) for mark in marks) >= 4, act
    headers = [op for op in log if op.kind == "write" and op.data[:8] == b"VSPYJRNL"]
    freed = [op for op in headers if op.data[10] == 1 and int.from_bytes(op.data[32:40], "little")]
    assert freed, "files are reclaimed"


@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_power_cut_keeps_prepared_branches_whole(
    folder: Path, log: list[Op], shard: int
) -> None:
    count = in_doubt = 0
    for index, image in enumerate(crash_images(log, seed=SEED, torn_max=3, subsets_max=8)):
        if index % SHARDS != shard:
            continue
        count += 1
        wrong = wrong_with(image, folder)
        assert not wrong, f"{wrong} (cut {image.cut}, {image.label}, seed {SEED})"
        in_doubt += len(restored(image, folder).branches()) if count % 10 == 0 else 0
    assert count >= 200
    assert in_doubt > 20


def test_without_the_flush_the_cuts_do_find_a_lost_branch(folder: Path) -> None:
    """The mutation: were the flush to go missing, this harness would see it."""
    disk = MemoryDisk()
    forgetful = functools.partial(MemoryRing, is_forgetful=True)
    asyncio.run(_live_with_branches(folder, disk, forgetful))
    for image in crash_images(disk.log, seed=SEED, subsets_max=2, torn_max=0):
        try:
            wrong = wrong_with(image, folder)
        except Exception:
            wrong = "it cannot be read"
        if any(mark.startswith("prepared") for mark in image.marks) and wrong:
            return
    pytest.fail("no image showed that the flush was missing")
