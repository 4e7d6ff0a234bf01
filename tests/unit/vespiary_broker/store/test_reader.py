"""`vespiary journal info` and `verify`: they look and never write."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from vespiary_broker.store.bindings import BindingsJournal
from vespiary_broker.store.files import BINDINGS_FORM
from vespiary_broker.store.reader import Finding, read_journal
from vespiary_native.abc import AckMode
from vespiary_spec.errors import CorruptRecord, StorageError
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import Client, open_memory, until
from vespiary_testkit.virtual_time import run_virtual


async def _write(folder: Path, disk: MemoryDisk, *, is_closed: bool) -> dict[int, int]:
    journal = await open_memory(folder, disk, quiet_delay_s=1000.0)
    client = Client(journal, disk, 3)
    for turn in range(8):
        await client.send(4)
        await client.receive()
        if not turn:
            del client.held[0]  # stays, and all files with it
        await client.acknowledge(len(client.held) // 2)
        if turn % 3 == 0:
            await client.send_transaction(3)
        await asyncio.sleep(0.001)
    transaction_consumer = journal.core.open_consumer(
        client.connection, 1, AckMode.INDIVIDUAL, 10, b"t", 12
    )
    assert transaction_consumer >= 0
    counts = {}
    for queue_id in (1, 2):
        figures = journal.core.queue_statistics(queue_id)
        counts[queue_id] = figures.ready + figures.delivering
    if not is_closed:
        journal.fail(CorruptRecord("the test pulls the plug"))
    await journal.close()
    return counts


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


def test_a_good_journal(tmp_path: Path, disk: MemoryDisk):
    counts = run_virtual(_write(tmp_path, disk, is_closed=True))
    report = read_journal(tmp_path, disk=disk)
    assert (report.finding, report.error, report.error_text) == (Finding.GOOD, None, "")
    assert report.live_messages == counts
    assert report.kind == "MESSAGE"
    assert len(report.journal_id) == 32
    assert report.sequence == report.watermark + 1 == sum(file.blocks for file in report.files)
    assert report.records_by_type["ADD"] == 8 * 4 + 3 * 3
    assert report.records_by_type["COMMIT"] == 3
    assert {"ACK", "FILES", "QUEUES", "SEAL"} <= set(report.records_by_type)
    assert report.voided_transactions == 0
    states = [file.state for file in report.files]
    assert states.count("ahead") >= 2
    assert states[0] == "used"
    assert report.files[0].is_sealed
    assert report.torn_at.split("/")[-1].startswith("activemq-data-")


def test_a_torn_end(tmp_path: Path, disk: MemoryDisk):
    run_virtual(_write(tmp_path, disk, is_closed=False))
    before = read_journal(tmp_path, disk=disk)
    last = [file for file in before.files if file.state == "used"][-1]
    place = 4096 + last.used_bytes
    data = disk.files[tmp_path / last.name].data
    data[place - 4096 + 40] ^= 1
    report = read_journal(tmp_path, disk=disk)
    assert report.finding is Finding.TORN
    assert report.sequence == before.sequence - 1
    assert report.error is None


def test_damage_is_found_with_its_place(tmp_path: Path, disk: MemoryDisk):
    run_virtual(_write(tmp_path, disk, is_closed=True))
    path = next(p for p in sorted(disk.files) if p.name == "activemq-data-1.hq")
    disk.flip(path, 4096 + 200, 0)
    report = read_journal(tmp_path, disk=disk)
    assert report.finding is Finding.BAD
    assert report.error is not None
    assert report.error["where"] == f"{path}:4096"
    assert report.error["code"] == "VSP-J104"
    assert "block 1 is not there" in report.error_text
    assert f"{path}:4096" in report.error_text


def test_half_a_transaction_counts_for_nothing(tmp_path: Path, disk: MemoryDisk):
    async def live() -> None:
        journal = await open_memory(tmp_path, disk)
        client = Client(journal, disk, 3)
        await client.send(1)
        client.core.begin(1, 1000, 5)
        client._publish(1, 1)
        journal._write_next()  # a block goes out before the COMMIT is staged
        client._publish(1, 1)
        await asyncio.sleep(0)
        journal.fail(CorruptRecord("the test pulls the plug"))
        await journal.close()

    product_loop.run(live())
    report = read_journal(tmp_path, disk=disk)
    assert report.finding is Finding.GOOD
    assert report.voided_transactions == 1
    assert sum(report.live_messages.values()) == 1


def test_bindings(tmp_path: Path):
    async def live() -> None:
        journal = await BindingsJournal.open(tmp_path)
        await journal.put("a", 1)
        await journal.put("b", 1)
        await journal.remove("a")
        await journal.close()

    product_loop.run(live())
    report = read_journal(tmp_path, form=BINDINGS_FORM)
    assert (report.kind, report.bindings, report.finding) == ("BINDINGS", 1, Finding.GOOD)
    assert report.records_by_type == {"FILES": 1, "PUT": 2, "REMOVE": 1}


def test_looking_changes_nothing_and_needs_no_lock(tmp_path: Path):
    def times() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    async def live() -> None:
        journal = await BindingsJournal.open(tmp_path)
        await journal.put("a", 1)
        # The block that covers it, and the file behind this one.
        await until(lambda: journal._durable == 2 and len(journal._pool.active_ids) == 2)
        before = times()
        assert read_journal(tmp_path, form=BINDINGS_FORM).bindings == 1
        assert times() == before
        await journal.close()

    product_loop.run(live())
    for path in tmp_path.iterdir():
        path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        assert read_journal(tmp_path, form=BINDINGS_FORM).bindings == 1
    finally:
        tmp_path.chmod(0o700)


def test_somebody_else_s_files_are_bad_and_named(tmp_path: Path):
    (tmp_path / "activemq-data-1.hq").write_bytes(os.urandom(65536))
    report = read_journal(tmp_path)
    assert report.finding is Finding.BAD
    assert report.error is not None
    assert report.error["code"] == "VSP-J107"
    assert "activemq-data-1.hq" in report.error["where"]


def test_an_empty_folder_is_good_and_a_missing_one_is_an_error(tmp_path: Path):
    assert read_journal(tmp_path).finding is Finding.GOOD
    with pytest.raises(StorageError):
        read_journal(tmp_path / "missing")
