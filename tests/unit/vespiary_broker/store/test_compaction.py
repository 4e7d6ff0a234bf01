"""Compaction in a running journal: what is live moves, space comes back, nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.compaction import STEP_BYTES, STEP_PLACES
from vespiary_broker.store.writer import MessageJournal
from vespiary_spec.errors import CorruptRecord, JournalError
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    Client,
    open_memory,
    recover_live,
    run,
    run_in_virtual_time,
    until,
)

EAGER: dict[str, Any] = {
    "compact_min_files": 1,
    "compact_percentage": 100,
    "compact_bytes_per_s": 1 << 40,
}
OFF: dict[str, Any] = {"compact_min_files": 0}


async def fill(journal: MessageJournal, disk: MemoryDisk, *, keep_every: int) -> Client:
    """Send some 40 files of messages and acknowledge all but every so many-th."""
    client = Client(journal, disk, 1)
    kept = []
    for turn in range(60):
        await until(lambda: journal.core.files_ahead() > 1)
        await client.send(10)
        await client.receive()
        keys, client.held = client.held, []
        kept += [key for n, key in enumerate(keys) if (turn * 10 + n) % keep_every == 0]
        client.held = [key for n, key in enumerate(keys) if (turn * 10 + n) % keep_every]
        await client.acknowledge(len(client.held))
        await asyncio.sleep(0)
    client.held = kept
    return client


def used(journal: MessageJournal) -> int:
    files = journal.statistics().files
    return files.active - files.ahead


@run
async def test_a_journal_that_is_five_percent_live_shrinks_to_its_live_data(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF)
    client = await fill(journal, disk, keep_every=20)
    before = used(journal)
    assert before >= 20, "the chain keeps nearly all files"
    assert journal.statistics().live_percent < 10
    await journal.close()
    again = await open_memory(tmp_path, disk, **EAGER | {"compact_percentage": 30})
    await until(lambda: again.statistics().compaction.files > 0)
    await until(lambda: not again.statistics().compaction.is_running)
    statistics = again.statistics()
    await until(
        lambda: (used(again) - 1) * FILE_BYTES <= again.statistics().live_bytes * 1.5 + FILE_BYTES
    )
    assert statistics.compaction.moved_messages >= len(client.held)
    assert statistics.compaction.moved_bytes < before * FILE_BYTES // 4
    await again.close()
    assert recover_live(disk, tmp_path) == set(client.held)


@pytest.mark.parametrize(
    "rule", [OFF, {"compact_min_files": 1000}, {"compact_min_files": 1, "compact_percentage": 1}]
)
@run_in_virtual_time
async def test_below_the_settings_nothing_is_moved(tmp_path: Path, rule: dict[str, int]):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **EAGER | rule)
    await fill(journal, disk, keep_every=20)
    await asyncio.sleep(0.1)  # in which it is looked at a hundred times
    assert journal.statistics().compaction.moved_messages == 0
    assert used(journal) >= 20
    await journal.close()


@run
async def test_messages_are_delivered_and_acknowledged_while_they_move(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **EAGER)
    client = await fill(journal, disk, keep_every=7)
    await until(lambda: journal.statistics().compaction.moved_messages > 0)
    await client.acknowledge(len(client.held))
    await client.send(3)
    await journal.close()
    assert len(recover_live(disk, tmp_path)) == 3


@run
async def test_the_order_in_each_queue_is_kept_over_a_restart(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **EAGER)
    client = await fill(journal, disk, keep_every=7)
    held = sorted(client.held)
    await until(lambda: journal.statistics().compaction.files > 3)
    await journal.close()
    again = await open_memory(tmp_path, disk, **OFF)
    other = Client(again, disk, 2)
    await other.receive()
    for queue in (1, 2):
        got = [key for key in other.held if key[0] == queue]
        assert got == [key for key in held if key[0] == queue]
    await again.close()


@run
async def test_a_journal_that_is_blocked_or_failed_is_left_alone(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF)
    await fill(journal, disk, keep_every=20)
    journal._keeper.blocked = JournalError("the test says so")
    assert await journal.compact() is False
    assert journal.statistics().compaction.moved_messages == 0
    journal._keeper.blocked = None
    journal.fail(JournalError("the test says so"))
    assert await journal.compact() is False
    await journal.close()


@run
async def test_files_that_are_ready_for_messages_are_left_to_them(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF)
    await fill(journal, disk, keep_every=20)
    await until(lambda: journal.core.files_ahead() >= 2)
    ahead = [journal.core.files_ahead()]
    relocate = journal.core.relocate

    class Watching:
        """The core, noting how many files are ready whenever something is moved."""

        def __getattr__(self, name: str) -> Any:
            return getattr(journal.core, name)

        def relocate(self, *arguments: int) -> Any:
            ahead.append(journal.core.files_ahead())
            return relocate(*arguments)

    journal._compaction._core = Watching()  # type: ignore[assignment]
    assert await journal.compact()
    assert len(ahead) > 10
    assert min(ahead) >= 2
    await journal.close()


@run
async def test_the_budget_bounds_what_is_moved_in_a_second(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF)
    await fill(journal, disk, keep_every=20)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        await asyncio.sleep(0)

    journal._compaction._sleep = sleep
    journal._compaction._bytes_per_s = 1000
    assert await journal.compact()
    moved = journal.statistics().compaction.moved_bytes
    assert moved > 10_000
    assert sum(waited) >= moved / 1000
    await journal.close()


@run
async def test_a_file_that_rots_is_left_where_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF)
    client = await fill(journal, disk, keep_every=20)
    await journal.close()
    again = await open_memory(tmp_path, disk, **OFF)
    victim = again._pool.active_ids[0]
    disk.flip(again._pool.file(victim).path, 9000, 3)
    assert await again.compact()
    assert victim in again._pool.active_ids
    assert "cannot be compacted" in caplog.text
    assert again.failure is None
    with pytest.raises(CorruptRecord):
        await again.load_slab(victim, 0)
    await again.close()
    assert client.held


@run
async def test_a_late_wish_for_a_file_without_live_messages_is_refused(tmp_path: Path):
    """Its file may be on its way out: reading it would keep it from being freed."""
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF)
    client = await fill(journal, disk, keep_every=1000)
    await client.acknowledge(len(client.held))
    await until(lambda: journal.statistics().files_reclaimed > 10)
    assert await journal.load_slab(1, 0) is False
    await journal.close()


@run
async def test_a_victim_that_is_free_before_it_is_emptied_is_passed_over(tmp_path: Path):
    """Between the choice and the first step the last message of a file may be acknowledged."""
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF)
    client = await fill(journal, disk, keep_every=20)
    victim = journal._pool.active_ids[0]
    await client.acknowledge(len(client.held))
    await until(lambda: victim not in journal._pool.active_ids)
    assert await journal._compaction._empty(victim), "the next one may follow"
    await journal.close()


@run
async def test_a_branch_is_copied_once_its_prepare_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Before, it cannot be copied; its file must not be given up for that."""
    disk = MemoryDisk()
    rings: list[MemoryRing] = []

    def make_ring(disk: MemoryDisk) -> MemoryRing:
        rings.append(MemoryRing(disk))
        return rings[-1]

    journal = await open_memory(tmp_path, disk, make_ring, **OFF)
    core, route = journal.core, journal.core.open_route([1])
    await until(lambda: core.files_ahead() >= 2)
    core.begin(7, 11 * 6000, 15, branch=True)
    while not core.current_file() or core.current_file() == journal._pool.active_ids[0]:
        core.publish(route, b"", bytes(6000), persistent=True, transaction=7)
    victim = journal._pool.active_ids[0]
    rings[0].hold()
    core.prepare(7, b"")
    journal.kick()
    monkeypatch.setattr(journal._compaction, "_wait_for_files", lambda: asyncio.sleep(0))
    emptying = asyncio.create_task(journal._compaction._empty(victim))
    for _ in range(3):
        await asyncio.sleep(0)
    rings[0].release()
    assert await emptying
    assert not journal._compaction._stuck
    await until(lambda: victim not in journal._pool.active_ids)
    assert [facts.transaction for facts in core.branches()] == [7]
    await journal.close()


@run
async def test_files_that_are_gone_are_not_remembered(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF)
    client = await fill(journal, disk, keep_every=20)
    compaction = journal._compaction
    victim = journal._pool.active_ids[0]
    compaction._stuck[victim] = 1
    await client.acknowledge(len(client.held))
    await until(lambda: victim not in journal._pool.active_ids)
    await journal.compact()
    assert victim not in compaction._stuck
    await journal.close()


@run
async def test_a_step_is_bounded_by_places_and_bytes_however_small_messages_are(tmp_path: Path):
    """Counted and not timed: 8000 messages of no body stand in few blocks."""
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, **OFF | {"memory_bytes": 1 << 26})
    core = journal.core
    route = core.open_route([1])
    for _ in range(16):
        await until(lambda: core.files_ahead() > 1)
        for _ in range(500):
            core.publish(route, b"", b"", persistent=True)
        await journal.wait_durable()
    steps = []

    class Watching:
        """The core, noting what each step was allowed and did."""

        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def relocate(self, *arguments: int) -> Any:
            step = core.relocate(*arguments)
            steps.append((*arguments[-2:], step.moved_places))
            return step

    journal._compaction._core = Watching()  # type: ignore[assignment]
    before = sum(journal.statistics().compaction.step_us.counts)
    moved = 0
    for file_id in [n for n in journal._pool.active_ids if n < core.current_file()]:
        moved += core.live_places(file_id)
        assert await journal._compaction._empty(file_id)
    assert moved > STEP_PLACES * 2
    assert sum(places for _, _, places in steps) == moved
    assert max(places for _, _, places in steps) <= STEP_PLACES // 2, "a record and its place"
    assert {allowed[:2] for allowed in steps} == {(STEP_BYTES, STEP_PLACES)}
    statistics = journal.statistics()
    assert sum(statistics.compaction.step_us.counts) - before >= len(steps), "each is measured"
    assert statistics.compaction.step_us_max > 0
    await journal.close()
