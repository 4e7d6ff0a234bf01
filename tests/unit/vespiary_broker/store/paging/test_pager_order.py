"""In which order a page, the record that ends it, and its removal reach the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import run, until
from vespiary_testkit.paging_rig import PagingClient, PagingRig


@run
async def test_a_page_goes_when_the_record_of_its_end_is_durable(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk(), quiet_delay_s=1000.0)
    client = PagingClient(rig, 1)
    await client.send(30)
    await rig.page_all()
    await client.receive()
    await client.acknowledge(len(client.held))
    await rig.journal.wait_durable()
    ring = rig.journal._ring
    ring.hold()
    durable = rig.journal.statistics().sequence_durable
    rig.pager._wake.set()
    await until(lambda: ring.outstanding > 0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert rig.journal.statistics().sequence_durable == durable
    assert rig.page_names(), "a power cut now would bring the page back"
    ring.release()
    await until(lambda: not rig.page_names())
    await until(lambda: rig.pager.statistics().removed > 0)  # counted behind the removal
    await rig.close()
