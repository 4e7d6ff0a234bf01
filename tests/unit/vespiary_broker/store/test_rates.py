"""The line of `log-journal-write-rate`: what happened between two readings."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path

import pytest

from vespiary_broker.store.rates import log_write_rates, rates_between
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import Client, open_memory, run, until


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
    rates = rates_between(before, after, 2.0)
    assert rates is not None
    assert (rates.writes_per_s, rates.records_per_s, rates.bytes_per_s) == (5.0, 20.0, 40_960.0)
    assert (rates.records_per_write, rates.write_us) == (4.0, 150.0)
    assert rates_between(after, after, 1.0) is None
    await journal.close()


@run
async def test_only_periods_with_writes_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "vespiary_broker.store.rates")
    disk = MemoryDisk()
    journal = await open_memory(tmp_path, disk, quiet_delay_s=1000.0, reclaim_period_s=1000.0)
    client = Client(journal, disk, 1)
    await client.send(1)  # and with it the checkpoint of the first file
    await until(lambda: journal.statistics().writes >= 2)
    await journal.wait_durable()
    task = asyncio.create_task(log_write_rates(journal.statistics, period_s=0.5))
    await asyncio.sleep(0.7)  # a period without writes, and more
    assert [r for r in caplog.records if "writes/s" in r.message] == []
    await client.send(3)
    await until(lambda: any("writes/s" in r.message for r in caplog.records))
    await asyncio.sleep(0.03)
    task.cancel()
    (line,) = [r.message for r in caplog.records if "writes/s" in r.message]
    assert "records/write=3.0" in line
    assert "flushes/s=0 " not in line
    await journal.close()
