"""How long a page that would be small waits for more of its address."""

from __future__ import annotations

import asyncio
from pathlib import Path

from vespiary_broker.store.paging.pauses import gather
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import FILE_BYTES, QUEUES
from vespiary_testkit.paging_rig import PAGE_BYTES, PagingClient, PagingRig
from vespiary_testkit.virtual_time import run_virtual


def gathered(moves: int, over_s: float) -> tuple[float, int]:
    """Return how long it was waited, and how often it was looked."""
    looks = 0

    async def scenario() -> float:
        now_s = asyncio.get_running_loop().time
        begin_s = now_s()

        def is_over() -> bool:
            nonlocal looks
            looks += 1
            return now_s() - begin_s >= over_s

        await gather("orders", lambda: moves, is_over)
        return now_s() - begin_s

    return run_virtual(scenario()), looks


def test_it_ends_as_soon_as_it_must() -> None:
    assert gathered(1, 0.0) == (0.0, 1)
    waited_s, _ = gathered(1, 0.031)
    assert 0.031 <= waited_s < 0.037


def test_it_ends_after_a_tenth_of_a_second() -> None:
    waited_s, looks = gathered(1, 10.0)
    assert 0.1 <= waited_s < 0.101
    assert looks <= 22


def test_the_more_addresses_wait_the_less_often_each_looks() -> None:
    waited_s, looks = gathered(5000, 1000.0)
    assert 2.5 <= waited_s <= 7.5
    assert looks <= 3


def _room(rig: PagingRig) -> int:
    """Return how many slabs can be filled without dropping one."""
    image = rig.core.image_statistics()
    return image.slabs_free + image.slabs_max - image.slabs_total


def first_page_s(folder: Path, slabs: int, excess_bytes: int = PAGE_BYTES // 4) -> float:
    """Return when the first page is written of an address that has a little too much."""

    async def scenario() -> float:
        rig = await PagingRig.open(folder, MemoryDisk(), memory_bytes=slabs * FILE_BYTES)
        client = PagingClient(rig, 1)
        await client.send(12 * FILE_BYTES // 1500)
        await rig.journal.wait_durable()
        while slabs < 64 and _room(rig) > 1:  # which slabs are dropped when, threads decide
            await client.send(FILE_BYTES // 3000)
            await rig.journal.wait_durable()
        live = sum(rig.core.queue_statistics(queue_id).live_bytes for queue_id in QUEUES)
        rig.address.keep_bytes = live - excess_bytes
        begin_s = asyncio.get_running_loop().time()
        rig.pager.page(rig.address)
        await rig.until(lambda: rig.pager.statistics().written > 0)
        took_s = asyncio.get_running_loop().time() - begin_s
        await rig.close()
        return took_s

    return run_virtual(scenario())


def test_a_small_page_waits_for_more(tmp_path: Path) -> None:
    assert 0.1 <= first_page_s(tmp_path, slabs=64) < 0.2


def test_a_small_page_does_not_wait_while_memory_is_short(tmp_path: Path) -> None:
    assert first_page_s(tmp_path, slabs=8) < 0.05, "what comes in would be read back for its page"


def test_a_tiny_page_waits_however_short_memory_is(tmp_path: Path) -> None:
    assert 0.1 <= first_page_s(tmp_path, slabs=8, excess_bytes=PAGE_BYTES // 10) < 0.2
