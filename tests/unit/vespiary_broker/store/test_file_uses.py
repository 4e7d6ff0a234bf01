"""What a running journal says of its files, beside what `journal info` says of the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vespiary_broker.store.file_uses import file_uses, kept_by
from vespiary_broker.store.reader import read_journal
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import Client, open_memory, run


@run
async def test_each_file_says_what_keeps_it_as_the_tool_does(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, reclaim_period_s=1000.0)
    client = Client(journal, disk, 1)
    for _ in range(40):
        await client.send(1)
    await client.receive()
    await client.acknowledge(3)
    for _ in range(20):
        await client.send(1)
    uses = journal.file_uses(0, 1000)
    current = journal.core.current_file()
    assert current >= 3
    assert [use.id for use in uses] == journal._pool.active_ids
    states = {use.id: use.state for use in uses}
    assert all(states[number] == "full" for number in range(1, current))
    assert states[current] == "filling"
    assert {states[use.id] for use in uses if use.id > current} == {"ahead"}
    assert [use.id for use in journal.file_uses(1, 2)] == [2, 3]
    await journal.wait_durable()
    report = read_journal(tmp_path, disk=disk)
    told = {file.file_id: file for file in report.files if file.state == "used"}
    for use in uses[: current - 1]:
        assert use.live_places == told[use.id].live_messages
        assert told[use.id].pinned_by in use.kept_by
        assert f"{use.live_places} live messages" in use.kept_by
    await journal.close()


def test_reasons_are_named_together():
    nothing: dict[str, Any] = {
        "live_places": 0,
        "live_pages": 0,
        "transactions": 0,
        "live_ids": 0,
        "ends_of": (),
        "is_waiting": False,
    }
    assert kept_by(**nothing) == ""
    assert kept_by(**nothing | {"is_waiting": True}) == "it has no kept copy yet"
    every = {"live_places": 2, "live_pages": 1, "transactions": 4, "live_ids": 1}
    assert (
        kept_by(**nothing | every)
        == "2 live messages; 1 page; 4 prepared transactions; 1 duplicate id"
    )
    assert (
        kept_by(**nothing | {"ends_of": range(1, 13)})
        == "acknowledges messages of file 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"
    )


@run
async def test_without_a_file_to_write_to_they_are_full_and_not_ahead(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, reclaim_period_s=1000.0)
    client = Client(journal, disk, 1)
    for _ in range(40):
        await client.send(1)
    await journal.close()
    again = await open_memory(tmp_path, disk, reclaim_period_s=1000.0)
    pool, core = again._pool, again.core
    ahead = [use.id for use in again.file_uses(0, 1000) if use.state == "ahead"]
    for number in ahead:  # as after a start on a full disk
        del pool._active[number]
    uses = file_uses(
        pool,
        core,
        first_ahead=0,
        live_records=lambda _: 0,
        is_waiting=lambda _: False,
        after_id=0,
        limit=1000,
    )
    assert {use.state for use in uses} == {"full"}
    await again.close()


@run
async def test_a_file_that_the_worker_frees_meanwhile_is_left_out(tmp_path: Path):
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, reclaim_period_s=1000.0)
    client = Client(journal, disk, 1)
    for _ in range(40):
        await client.send(1)
    seen = []

    def free_next(file_id: int) -> bool:
        seen.append(file_id)
        journal._pool._active.pop(file_id + 1, None)
        return False

    current = journal.core.current_file()
    uses = file_uses(
        journal._pool,
        journal.core,
        first_ahead=0,
        live_records=lambda _: 0,
        is_waiting=free_next,
        after_id=0,
        limit=2,
    )
    assert current > 4
    assert [use.id for use in uses] == [1, 3], "as many as were asked for, if there are"
    await journal.close()
