"""Power cuts at every moment of prepared branches: none is lost, half, or decided by itself."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import Image, MemoryDisk, Op, crash_images, recorded
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_lives import branch_name
from vespiary_testkit.journal_model import Group, Model
from vespiary_testkit.journal_workload import QUEUES, Client, open_memory
from vespiary_testkit.power_cut_checks import judge, recover_both
from vespiary_testkit.seeds import seed_for

Branch = tuple[int, Group]

# Fixed: the workload must go through what matters, and so must the harness's own tests.
SEED = 20261122
IMAGES_SEED = seed_for("branches")
SHARDS = 3


class BranchClient(Client):
    """A client that prepares branches and ends them, and marks what it did."""

    async def prepare(self, count: int, acknowledge: int) -> Branch:
        """Prepare a branch and wait until that is durable; return it."""
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
        group = Group(set(added), set(acknowledged))
        self.marks.preparing(number, group)
        self.core.prepare(number, branch_name(number))
        await self.journal.wait_durable()
        self.marks.prepared(number)
        return number, group

    async def end(self, branch: Branch, *, commit: bool) -> None:
        """End a branch and wait until that is durable."""
        number, group = branch
        self.marks.ending(number, group, commit=commit)
        self.core.resolve(number, commit=commit)
        await self.journal.wait_durable()
        self.marks.ended(number, group, commit=commit)


async def _live_with_branches(folder: Path, disk: MemoryDisk, make_ring: Any = MemoryRing) -> None:
    """Prepare and end branches among other work: over rolls, reclaims and a restart."""
    open_ones: list[Branch] = []
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


def wrong_with(image: Image, folder: Path) -> list[str]:
    """Return what is wrong with messages and branches after a cut; nothing if all is well."""
    return judge(Model.of_marks(image.marks), recover_both(image.disk, folder))


def test_the_workload_goes_through_what_matters(log: list[Op]) -> None:
    marks = [op.name for op in log if op.kind == "mark"]
    for act, least in (("prepared", 4), ("committing", 4), ("ending", 4), ("ended", 8)):
        assert sum(mark.startswith(act) for mark in marks) >= least, act
    headers = [op for op in log if op.kind == "write" and op.data[:8] == b"VSPYJRNL"]
    freed = [op for op in headers if op.data[10] == 1 and int.from_bytes(op.data[32:40], "little")]
    assert freed, "files are reclaimed"


@pytest.mark.ci
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_power_cut_keeps_prepared_branches_whole(
    folder: Path, log: list[Op], shard: int
) -> None:
    count = in_doubt = 0
    for index, image in enumerate(crash_images(log, seed=IMAGES_SEED, torn_max=3, subsets_max=8)):
        if index % SHARDS != shard:
            continue
        count += 1
        wrong = wrong_with(image, folder)
        assert not wrong, f"{wrong} (cut {image.cut}, {image.label}, seed {IMAGES_SEED})"
        in_doubt += len(recover_both(image.disk, folder).branches) if count % 10 == 0 else 0
    assert count >= 200
    assert in_doubt > 20


def test_without_the_flush_the_cuts_do_find_a_lost_branch(folder: Path) -> None:
    """The mutation: were the flush to go missing, this harness would see it."""
    disk = MemoryDisk()
    forgetful = functools.partial(MemoryRing, is_forgetful=True)
    product_loop.run(_live_with_branches(folder, disk, forgetful))
    for image in crash_images(disk.log, seed=SEED, subsets_max=16, torn_max=0):
        try:
            wrong = wrong_with(image, folder)
        except Exception:
            wrong = ["it cannot be read"]
        if any(mark.startswith("prepared") for mark in image.marks) and wrong:
            return
    pytest.fail("no image showed that the flush was missing")
