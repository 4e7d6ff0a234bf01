"""What is submitted and not completed is neither confirmed, delivered nor called durable."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from vespiary_native.abc import AckMode
from vespiary_spec.errors import WriterFailed
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import MemoryRing
from vespiary_testkit.journal_workload import open_memory, run


@run
async def test_what_is_under_way_is_not_confirmed(tmp_path: Path) -> None:
    rings: list[MemoryRing] = []

    def make_ring(disk: MemoryDisk) -> MemoryRing:
        rings.append(MemoryRing(disk))
        return rings[-1]

    journal = await open_memory(
        tmp_path, MemoryDisk(), make_ring, quiet_delay_s=1000.0, reclaim_period_s=1000.0
    )
    core = journal.core
    connection = core.open_connection()
    consumer = core.open_consumer(connection, 1, AckMode.INDIVIDUAL, 10, b"s", 12)
    rings[-1].hold()
    core.publish(core.open_route([1]), b"", b"body", persistent=True)
    core.receipt(connection, b"R")
    durable = core.image_statistics().sequence_durable
    waiting = asyncio.ensure_future(journal.wait_durable())
    for _ in range(5):
        await asyncio.sleep(0)
    assert rings[-1].outstanding == 1
    assert core.image_statistics().sequence_durable == durable
    assert core.take_receipts() == []
    assert core.deliver(consumer, 10, 1 << 20)[1] == 0
    assert not waiting.done()
    rings[-1].release()
    await waiting
    assert core.image_statistics().sequence_durable > durable
    assert core.take_receipts() == [(connection, b"R")]
    assert core.deliver(consumer, 10, 1 << 20)[1] == 1
    await journal.close()


@run
async def test_a_block_of_a_file_that_is_not_open_fences(tmp_path: Path) -> None:
    """A defect of ours; were it not told, whoever waits for the confirm would wait for ever."""
    journal = await open_memory(tmp_path, MemoryDisk())
    await journal.wait_durable()
    journal.core.publish(journal.core.open_route([1]), b"", b"body", persistent=True)
    journal.drop_file(journal.core.current_file() or 1)
    with pytest.raises(WriterFailed, match="file 1 was freed under a write"):
        await journal.wait_durable()
    await journal.close()
