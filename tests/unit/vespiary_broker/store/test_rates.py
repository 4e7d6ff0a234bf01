"""The line of `log-journal-write-rate`: what happened between two readings."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest

from vespiary_broker.store import rates
from vespiary_broker.store.rates import log_write_rates, rates_between
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import Client, open_memory, run, run_in_virtual_time, until


@run
async def test_rates_are_differences_by_time(tmp_path: Path):
    journal = await open_memory(tmp_path, MemoryDisk())
    before = journal.statistics()
    after = dataclasses.replace(
        before,
        writes=before.writes + 10,
        records=before.records + 40,
        written_bytes=before.written_bytes + 81_920,
        flush_sum_us=before.flush_sum_us + 1500,
    )
    found = rates_between(before, after, 2.0)
    assert found is not None
    assert (found.writes_per_s, found.records_per_s, found.bytes_per_s) == (5.0, 20.0, 40_960.0)
    assert (found.records_per_write, found.write_us) == (4.0, 150.0)
    assert rates_between(after, after, 1.0) is None
    await journal.close()


@run_in_virtual_time
async def test_only_periods_with_writes_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
    monkeypatch.setattr(rates, "time", clock)
    caplog.set_level(logging.INFO, "vespiary_broker.store.rates")

    def lines() -> list[str]:
        return [r.message for r in caplog.records if "writes/s" in r.message]

    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, quiet_delay_s=1000.0, reclaim_period_s=1000.0)
    client = Client(journal, disk, 1)
    await client.send(1)  # and with it the checkpoint of the first file
    await until(lambda: journal.statistics().writes >= 2)
    await journal.wait_durable()
    task = asyncio.create_task(log_write_rates(journal.statistics, period_s=0.5))
    await asyncio.sleep(0.7)  # a period without writes, and more
    assert lines() == []
    await client.send(3)
    await asyncio.sleep(5)  # the period of these, and more without
    task.cancel()
    (line,) = lines()
    assert line.startswith("journal writes/s=2 flushes/s=2 records/s=6 ")
    assert "records/write=3.0" in line
    await journal.close()
