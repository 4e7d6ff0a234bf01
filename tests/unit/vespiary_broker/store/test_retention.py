"""Kept copies: made before a file is freed, whole or not counted, removed by age and size, and
never in the journal's way."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.options import RetentionOptions
from vespiary_broker.store.retained import Copy, choose_expired
from vespiary_broker.store.retention_folder import RetentionFolder, copy_name, parse_name
from vespiary_broker.store.survey import survey_folder
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import CorruptRecord
from vespiary_testkit.faulty_disk import MemoryDisk, crash_images
from vespiary_testkit.journal_workload import (
    FILE_BYTES,
    Client,
    open_memory,
    run,
    run_in_virtual_time,
    until,
)
from vespiary_testkit.seeds import seed_for

KEPT = Path("/kept")


def options(**limits: Any) -> RetentionOptions:
    return RetentionOptions(directory=KEPT, **limits)


async def opened(folder: Path, disk: MemoryDisk, **limits: Any) -> tuple[MessageJournal, Client]:
    journal = await open_memory(folder, disk, retention=options(**limits), disk_scan_period_s=0.003)
    return journal, Client(journal, disk, 1)


async def send(client: Client, messages: int) -> None:
    """Send messages that stay."""
    for _ in range(messages):
        await client.send(1)
        await asyncio.sleep(0)


async def pass_by(client: Client, messages: int) -> None:
    """Send and acknowledge messages, so that files fill and hold nothing."""
    for _ in range(messages):
        await client.send(1)
        await client.receive()
        await client.acknowledge(len(client.held))
        await asyncio.sleep(0)


def copies(disk: MemoryDisk) -> dict[int, bytes]:
    """Return the content of the copies by file id."""
    found = {}
    for path, inode in disk.files.items():
        parsed = parse_name(path.name)
        if path.parent == KEPT and parsed:
            found[parsed[1]] = bytes(inode.data)
    return found


@pytest.mark.parametrize(
    ("period_ms", "looks_s"), [(None, 60), (7 * 86_400_000, 60), (5_000, 5), (200, 1)]
)
def test_old_copies_are_looked_for_once_a_period(period_ms: int | None, looks_s: float):
    """A period shorter than a minute once had no effect before the minute was over."""
    folder = RetentionFolder(
        options(period_ms=period_ms), MemoryDisk(), block_verifier(), is_direct=True
    )
    assert folder.prune_period_s == looks_s


# --- pure ---------------------------------------------------------------------------------------


@given(st.integers(0, 4_000_000_000), st.integers(1, 2**62))
def test_names_say_time_and_file(seconds: int, file_id: int):
    assert parse_name(copy_name(seconds * 1000 + 999, file_id)) == (seconds * 1000, file_id)


@pytest.mark.parametrize(
    "name",
    [
        "activemq-data-7.hq",
        "activemq-data-20261301000000-7.hq",
        "activemq-data-20260101000000-7.hq~",
    ],
)
def test_other_names_are_none(name: str):
    assert parse_name(name) is None


def copy(time_ms: int, file_id: int, size: int = 10) -> Copy:
    return Copy(time_ms, file_id, size, KEPT / f"{file_id}")


def test_copies_go_by_age_and_then_by_size_the_oldest_first():
    kept = [copy(t, t, 10) for t in (5, 1, 4, 2, 3)]

    def gone(period: int | None, limit: int | None) -> list[int]:
        found = choose_expired(kept, now_ms=10, period_ms=period, limit_bytes=limit)
        return [one.file_id for one in found]

    assert gone(None, None) == []
    assert gone(7, None) == [1, 2]
    assert gone(None, 25) == [1, 2, 3]
    assert gone(8, 30) == [1, 2]
    assert gone(0, 0) == [1, 2, 3, 4, 5]


# --- a life -------------------------------------------------------------------------------------


@run
async def test_every_full_file_is_copied_before_it_is_freed(tmp_path: Path):
    disk = MemoryDisk()
    journal, client = await opened(tmp_path, disk)
    await pass_by(client, 100)
    await until(lambda: journal.statistics().files_reclaimed >= 5)
    current = journal.core.current_file()
    await until(lambda: set(copies(disk)) == set(range(1, current)))
    await until(lambda: "files_waiting=0" in str(journal.statistics().retention))
    kept = journal.statistics().retention
    assert kept is not None
    assert (kept.copies, kept.blocked_reason) == (current - 1, None)
    assert kept.copies_bytes == (current - 1) * FILE_BYTES
    await journal.close()
    assert not [path for path in disk.files if path.name.endswith(".tmp")]


@run
async def test_a_copy_is_the_file_byte_for_byte(tmp_path: Path):
    disk = MemoryDisk()
    journal, client = await opened(tmp_path, disk)
    await send(client, 40)
    await until(lambda: 1 in copies(disk))
    assert copies(disk)[1] == bytes(disk.files[tmp_path / "activemq-data-1.hq"].data)
    await journal.close()


@run
async def test_without_its_copy_no_file_is_freed_and_the_journal_goes_on(tmp_path: Path):
    disk = MemoryDisk()
    journal, client = await opened(tmp_path, disk)
    disk.fail = lambda step, path: errno.ENOSPC if step == "write" and path.parent == KEPT else 0
    await pass_by(client, 80)
    assert journal.failure is None
    kept = journal.statistics().retention
    assert kept is not None
    assert "cannot write" in (kept.blocked_reason or "") or "ENOSPC" in (kept.blocked_reason or "")
    assert kept.files_waiting >= 3
    assert journal.statistics().files_reclaimed == 0
    assert copies(disk) == {}
    disk.fail = lambda _step, _path: 0
    await until(lambda: journal.statistics().files_reclaimed >= 3)
    await until(lambda: journal.statistics().retention.blocked_reason is None)  # type: ignore[union-attr]
    await journal.close()


@run
async def test_a_defect_while_copying_is_told_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    disk = MemoryDisk()
    journal, client = await opened(tmp_path, disk)

    def break_down(step: str, path: Path) -> int:
        if step == "write" and path.parent == KEPT:
            raise RuntimeError("index out of range")
        return 0

    disk.fail = break_down
    await pass_by(client, 80)
    kept = journal.statistics().retention
    assert kept is not None
    assert kept.blocked_reason == "a defect (RuntimeError: index out of range)"
    assert kept.files_waiting >= 3
    assert journal.failure is None
    assert journal.statistics().files_reclaimed == 0
    (record,) = [each for each in caplog.records if "can't be copied" in each.message]
    assert record.exc_info, "the log says where the defect is, once"
    disk.fail = lambda _step, _path: 0
    await until(lambda: journal.statistics().files_reclaimed >= 3)
    await until(lambda: journal.statistics().retention.blocked_reason is None)  # type: ignore[union-attr]
    await journal.close()


@run_in_virtual_time
async def test_what_a_crash_left_out_is_made_at_the_start(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk)
    await send(Client(journal, disk, 1), 60)
    newest = journal.core.current_file()
    await journal.close()
    disk.files[KEPT / (copy_name(0, 1) + ".tmp")] = disk.files[tmp_path / "activemq-data-1.hq"]
    again, _ = await opened(tmp_path, disk)
    await until(lambda: set(copies(disk)) >= set(range(1, newest + 1)))
    await until(lambda: KEPT / (copy_name(0, 1) + ".tmp") not in disk.files)
    await until(lambda: again.statistics().retention.copied == len(copies(disk)))  # type: ignore[union-attr]
    await again.close()
    third, _ = await opened(tmp_path, disk)
    await asyncio.sleep(1)
    kept = third.statistics().retention
    assert kept is not None
    assert kept.files_waiting == 0, "it has looked at them"
    assert kept.copied == 1, "the one just filled; those that are there are not made again"
    await third.close()


@run
async def test_the_oldest_copies_go_when_there_are_too_many(tmp_path: Path):
    disk = MemoryDisk()
    journal, client = await opened(tmp_path, disk, storage_limit_bytes=2 * FILE_BYTES)
    await pass_by(client, 100)

    def is_settled() -> bool:
        kept = journal.statistics().retention
        assert kept is not None
        newest = journal.core.current_file() - 1
        is_done = kept.copied == newest and kept.removed == newest - 2
        return is_done and set(copies(disk)) == {newest - 1, newest}

    await until(is_settled)
    await journal.close()


# --- one copy -----------------------------------------------------------------------------------


async def sealed_file(folder: Path, disk: MemoryDisk) -> Any:
    journal = await open_memory(folder, disk)
    await send(Client(journal, disk, 1), 40)
    file = journal._pool.file(1)
    await journal.close()
    return file


def folder_of(disk: Any, now_ms: int = 0, **limits: Any) -> RetentionFolder:
    made = RetentionFolder(
        options(**limits), disk, block_verifier(), is_direct=True, clock_ms=lambda: now_ms
    )
    made.survey(b"x" * 16)
    return made


@run
async def test_a_copy_counts_only_when_it_reads_back_whole(tmp_path: Path):
    disk = MemoryDisk()
    file = await sealed_file(tmp_path, disk)
    folder = folder_of(disk)

    def rot(step: str, path: Path) -> int:
        if step == "flush" and path.parent == KEPT:
            disk.flip(path, 5000, 1)
        return 0

    disk.fail = rot
    with pytest.raises(CorruptRecord):
        folder.copy(file)
    assert copies(disk) == {}
    assert not [path for path in disk.files if path.parent == KEPT]


@pytest.mark.parametrize("offset", [5000, FILE_BYTES // 2])
@run
async def test_a_damaged_file_is_not_copied(tmp_path: Path, offset: int):
    disk = MemoryDisk()
    file = await sealed_file(tmp_path, disk)
    folder = folder_of(disk)
    for at in range(offset, offset + 8192, 512):
        disk.flip(file.path, at, 1)
    with pytest.raises(CorruptRecord, match="does not end in a seal"):
        folder.copy(file)
    assert copies(disk) == {}


@run
async def test_a_damaged_file_does_not_keep_the_others(tmp_path: Path):
    disk = MemoryDisk()
    journal, client = await opened(tmp_path, disk)
    disk.fail = lambda step, path: errno.ENOSPC if step == "write" and path.parent == KEPT else 0
    await pass_by(client, 80)
    damaged = tmp_path / "activemq-data-1.hq"
    disk.flip(damaged, 5000, 1)
    disk.fail = lambda _step, _path: 0
    await until(lambda: len(copies(disk)) >= 3)
    await until(lambda: "does not end in a seal" in str(journal.statistics().retention))
    assert 1 not in copies(disk)
    assert 1 in journal._pool.active_ids
    disk.flip(damaged, 5000, 1)
    await until(lambda: 1 in copies(disk))
    await until(lambda: journal.statistics().files_reclaimed >= 3)
    await journal.close()


@run
async def test_a_file_that_is_too_old_is_not_copied(tmp_path: Path):
    disk = MemoryDisk()
    file = await sealed_file(tmp_path, disk)
    folder = folder_of(disk, now_ms=2**42, period_ms=1000)
    assert folder.copy(file) is None
    assert copies(disk) == {}


@run
async def test_a_copy_that_somebody_took_out_of_the_folder_is_gone_when_it_grows_old(
    tmp_path: Path,
):
    disk = MemoryDisk()
    file = await sealed_file(tmp_path, disk)
    folder = folder_of(disk, storage_limit_bytes=0)
    made = folder.copy(file)
    assert made is not None
    disk.rename(made.path, made.path.with_name("damaged"))
    assert folder.prune() == 1
    assert folder.copies == []


@run
async def test_a_damaged_copy_is_put_aside_and_one_of_another_journal_does_not_count(
    tmp_path: Path,
):
    disk = MemoryDisk()
    file = await sealed_file(tmp_path, disk)
    made = folder_of(disk).copy(file)
    assert made is not None
    again = RetentionFolder(options(), disk, block_verifier(), is_direct=True)
    assert again.survey(b"other journal 16") == set()
    assert len(again.copies) == 1
    disk.flip(made.path, 20, 1)
    assert again.survey(b"other journal 16") == set()
    assert again.copies == []
    assert made.path.with_name(made.path.name + ".damaged") in disk.files


@pytest.mark.ci
@run
async def test_power_cuts_leave_whole_copies_and_no_file_goes_without_one(tmp_path: Path):
    disk = MemoryDisk()
    journal, client = await opened(tmp_path, disk)
    start = len(disk.log)
    await pass_by(client, 60)
    await until(lambda: journal.statistics().files_reclaimed >= 3)
    await journal.close()
    whole = copies(disk)
    seen: set[int] = set()
    gone: set[int] = set()
    for image in crash_images(
        disk.log, seed=seed_for("retention"), start=start, torn_max=1, subsets_max=4
    ):
        kept = copies(image.disk)
        for file_id, data in kept.items():
            assert data == whole[file_id], f"cut {image.cut}, {image.label}"
        survey = survey_folder(tmp_path, MESSAGE_FORM, image.disk, is_direct=True)
        active = {file.file_id for file in survey.active}
        without = set(range(1, max(active))) - active
        assert without <= set(kept), f"freed without a copy: cut {image.cut}, {image.label}"
        seen |= set(kept)
        gone |= without
    assert seen == set(whole)
    assert len(gone) >= 3
