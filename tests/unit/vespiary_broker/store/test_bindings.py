"""The bindings journal: a durable table, its power cuts, its failures, its compaction."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store import bindings
from vespiary_broker.store.bindings import (
    VALUE_BYTES_MAX,
    BindingsJournal,
    BindingsTable,
)
from vespiary_broker.store.files import BINDINGS_FORM
from vespiary_broker.store.recovery import Recovery
from vespiary_broker.store.survey import survey_folder, verify_blocks_python
from vespiary_spec.errors import (
    CorruptRecord,
    JournalError,
    JournalFull,
    JournalLocked,
    RecordTooLarge,
    WriterFailed,
)
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import InlineExecutor, MemoryDisk, crash_images
from vespiary_testkit.journal_workload import run, run_in_virtual_time
from vespiary_testkit.memory_bindings import SIZE
from vespiary_testkit.memory_bindings import open_bindings as open_memory
from vespiary_testkit.seeds import seed_for


def recovered(disk: MemoryDisk, folder: Path) -> dict[str, Any]:
    table = BindingsTable()
    survey = survey_folder(folder, BINDINGS_FORM, disk, is_direct=True)
    Recovery(survey, disk, verify_blocks_python).run(table)
    return {key: json.loads(entry.value) for key, entry in table.entries.items()}


@run
async def test_values_outlive_the_journal_on_a_real_disk(tmp_path: Path):
    folder = tmp_path / "bindings"
    journal = await BindingsJournal.open(folder)
    await journal.put("address/orders", {"routing": ["ANYCAST"], "name": "größer"})
    await asyncio.gather(*(journal.put(f"queue/{n}", {"id": n}) for n in range(50)))
    await journal.put("queue/7", {"id": 7, "again": True})
    await journal.remove("queue/8")
    await journal.remove("queue/never")
    values = journal.snapshot()
    with pytest.raises(JournalLocked):
        await BindingsJournal.open(folder)
    await journal.close()
    await journal.close()
    again = await BindingsJournal.open(folder)
    assert again.snapshot() == values
    assert values["queue/7"] == {"id": 7, "again": True}
    assert "queue/8" not in values
    assert values["address/orders"]["name"] == "größer"
    await again.close()
    names = sorted(path.name for path in folder.iterdir())
    assert [name for name in names if name.endswith(".bindings")] == [
        "activemq-bindings-1.bindings",
        "activemq-bindings-2.bindings",
        "activemq-bindings-3.bindings",
    ], "one that is written, one made ready behind it, one kept for a start on a full disk"
    assert all(
        path.stat().st_size == 1024 * 1024 for path in folder.iterdir() if path.name in names[:2]
    )


@run
async def test_a_value_shows_only_when_it_is_durable(tmp_path: Path):
    journal = await open_memory(tmp_path, MemoryDisk())
    waiting = asyncio.create_task(journal.put("a", 1))
    await asyncio.sleep(0)
    assert journal.snapshot() == {}
    await waiting
    assert journal.snapshot() == {"a": 1}
    await journal.close()


@run
async def test_what_is_asked_for_together_goes_out_together(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    await journal.put("first", 0)
    before = sum(op.token >= 0 and op.kind == "write" for op in disk.log)
    await asyncio.gather(*(journal.put(f"k{n}", n) for n in range(40)))
    after = sum(op.token >= 0 and op.kind == "write" for op in disk.log)
    assert after - before <= 2, "one block, and perhaps the empty one that covers the first"
    await journal.close()


@run
async def test_who_is_cancelled_does_not_withdraw_the_value(tmp_path: Path):
    journal = await open_memory(tmp_path, MemoryDisk())
    waiting = asyncio.create_task(journal.put("a", 1))
    await asyncio.sleep(0)
    waiting.cancel()
    await journal.put("b", 2)
    assert journal.snapshot() == {"a": 1, "b": 2}
    await journal.close()


@run_in_virtual_time
async def test_the_last_values_are_covered_when_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # On virtual time nothing may wait for a thread.
    monkeypatch.setattr(bindings, "ThreadPoolExecutor", lambda *_, **__: InlineExecutor())
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    await journal.put("a", 1)
    survey_length = len(disk.log)
    await asyncio.sleep(50 * bindings._QUIET_S)
    assert sum(op.kind == "done" for op in disk.log[survey_length:]) == 1
    await journal.close()


@run
async def test_too_large_a_value_is_refused_and_the_rest_goes_on(tmp_path: Path):
    journal = await open_memory(tmp_path, MemoryDisk())
    with pytest.raises(RecordTooLarge, match="at most"):
        await journal.put("a", "x" * VALUE_BYTES_MAX)
    await journal.put("b", 1)
    assert journal.snapshot() == {"b": 1}
    await journal.close()


@run
async def test_dead_values_are_compacted_away(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    await journal.put("kept", "from the first file")
    await journal.put("gone", "soon")
    await journal.remove("gone")
    for turn in range(200):
        await journal.put("counter", [turn, "x" * 2000])
    used = survey_folder(tmp_path, BINDINGS_FORM, disk, is_direct=True).active
    assert len(used) <= 3, "400 KB were written, and two values are alive"
    assert used[-1].file_id >= 6
    values = journal.snapshot()
    assert values == {"kept": "from the first file", "counter": [199, "x" * 2000]}
    assert recovered(disk, tmp_path) == values
    await journal.close()
    assert recovered(disk, tmp_path) == values


@run
async def test_many_starts_do_not_pile_up_files(tmp_path: Path):
    disk = MemoryDisk()
    for turn in range(12):
        journal = await open_memory(tmp_path, disk)
        await journal.put("turn", turn)
        await journal.close()
    assert len(disk.files) <= 5
    assert recovered(disk, tmp_path) == {"turn": 11}


@run
async def test_live_values_fill_several_files(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    for n in range(60):
        await journal.put(f"k{n}", "x" * 4000)
    await journal.close()
    again = await open_memory(tmp_path, disk)
    assert len(again.snapshot()) == 60
    assert len(survey_folder(tmp_path, BINDINGS_FORM, disk, is_direct=True).active) >= 4
    await again.close()


async def _live(folder: Path, disk: MemoryDisk) -> None:
    for life in range(2):
        journal = await open_memory(folder, disk)
        for turn in range(30):
            key, value = f"k{turn % 4}", [life, turn, "x" * 3000]
            disk.mark(json.dumps(["asked", key, value]))
            await journal.put(key, value)
            disk.mark(json.dumps(["done", key, value]))
            if turn % 10 == 9:
                disk.mark(json.dumps(["asked", key, None]))
                await journal.remove(key)
                disk.mark(json.dumps(["done", key, None]))
        await journal.close()


@pytest.mark.ci
def test_every_power_cut_keeps_the_values(tmp_path: Path):
    disk = MemoryDisk()
    product_loop.run(_live(tmp_path, disk))
    count = 0
    for image in crash_images(disk.log, seed=seed_for("bindings"), torn_max=2, subsets_max=8):
        count += 1
        allowed: dict[str, list[Any]] = {}
        for mark in image.marks:
            kind, key, value = json.loads(mark)
            if kind == "done":
                allowed[key] = [value]
            else:
                allowed.setdefault(key, [None]).append(value)
        found = recovered(image.disk, tmp_path)
        for key, values in allowed.items():
            assert found.get(key) in values, f"{key} at cut {image.cut}, {image.label}"
        assert set(found) <= set(allowed)
    assert count > 300


# --- failures -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1)


@pytest.mark.parametrize("result", [-errno.EIO, -errno.ENOSPC, 0, 512])
@pytest.mark.parametrize("k", [1, 2, 5])
@run
async def test_a_failed_write_is_final(tmp_path: Path, k: int, result: int):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, fail_at=k, result=lambda _length: result)
    failures: list[WriterFailed] = []
    journal.on_failed = failures.append
    done = []
    with pytest.raises(WriterFailed):  # noqa: PT012 (which one fails is the question)
        for n in range(20):
            await journal.put(f"k{n}", n)
            done.append(f"k{n}")
    assert list(journal.snapshot()) == done
    with pytest.raises(WriterFailed):
        await journal.put("later", 1)
    assert failures == [journal.failure]
    await journal.close()
    assert set(done) <= set(recovered(disk, tmp_path))


@run
async def test_a_full_disk_refuses_and_lets_go(tmp_path: Path):
    disk = MemoryDisk(capacity_bytes=2 * SIZE)
    journal = await open_memory(tmp_path, disk)
    done = 0
    with pytest.raises(JournalFull, match="no room for a new"):  # noqa: PT012 (so is when)
        for n in range(200):
            await journal.put(f"k{n}", "x" * 1000)
            done += 1
    assert done >= 10, "a block each, in the one file that is not kept for the next start"
    assert len(journal.snapshot()) == done
    assert journal.failure is None
    disk.capacity_bytes *= 4
    await journal.put("later", 1)
    assert journal.snapshot()["later"] == 1
    await journal.close()
    assert len(recovered(disk, tmp_path)) == done + 1


@run
async def test_a_flipped_bit_stops_it(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    await journal.put("a", 1)
    await journal.put("b", 1)
    await journal.close()
    disk.flip(tmp_path / "activemq-bindings-1.bindings", 4096 + 70, 1)
    before = len(disk.log)
    with pytest.raises(CorruptRecord, match=r"activemq-bindings-1\.bindings:4096"):
        await open_memory(tmp_path, disk)
    assert len(disk.log) == before


@run
async def test_a_missing_folder_is_refused_when_it_must_be_there(tmp_path: Path):
    with pytest.raises(JournalError, match="create-bindings-dir"):
        await BindingsJournal.open(tmp_path / "missing", create_directory=False)


@run
async def test_a_file_that_was_made_ready_and_never_begun_is_begun_next(tmp_path: Path):
    """Killed between a file's active header and its first block, then started and compacted."""
    disk = MemoryDisk()
    folder = tmp_path
    values: dict[str, Any] = {}
    for life, count in enumerate((40, 30, 2, 25, 1, 40, 3)):
        journal = await open_memory(folder, disk)
        assert journal.snapshot() == values
        for number in range(count):  # fills files, so that the oldest are freed and used again
            key = f"queue/{number % 5}"
            values[key] = {"life": life, "text": "x" * 3000, "number": number}
            await journal.put(key, values[key])
        await journal._run_blocking(journal._pool.activate)
        journal._is_uncovered = False  # killed here: nothing more is written
        await journal.close()
    assert recovered(disk, folder) == values
