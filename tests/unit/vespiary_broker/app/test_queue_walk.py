"""The walk of browsers and acts over a journal and its pages, none of which it opens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vespiary_broker.app.queue_walk import QueueWalk
from vespiary_broker.engine.selection.selector import compile_selector
from vespiary_codec.journal.page import block_file_id
from vespiary_native.abc import AckMode, DeliverStatus
from vespiary_spec.errors import PageDamaged
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import run, until
from vespiary_testkit.paging_rig import PagingRig

QUEUE = 1
WAIT_S = 60.0


def body_of(number: int) -> bytes:
    return b"%d " % number + bytes(600)


@asynccontextmanager
async def filled(
    folder: Path, count: int, body: Callable[[int], bytes] = body_of
) -> AsyncIterator[PagingRig]:
    """A journal with numbered messages in one queue, sequence 1 first."""
    rig = await PagingRig.open(folder, MemoryDisk())
    try:
        route = rig.core.open_route([QUEUE])
        for number in range(1, count + 1):
            if number % 20 == 0:
                await until(lambda: rig.core.files_ahead() > 1)
            properties = b"n:%d\nhalf:%d\n" % (number, 2 * number > count)
            rig.core.publish(route, properties, body(number), persistent=True)
        await rig.journal.wait_durable()
        yield rig
    finally:
        await rig.close()


async def interleave(rig: PagingRig, count: int, pages: int) -> None:
    """Move all messages, every n-th one into the same page: all pages overlap everywhere."""
    rig.address.page_bytes = 256 * 1024
    rig.address.keep_bytes = 0
    for one in range(pages):
        others = [at for at in range(1, count + 1) if at % pages != one]
        rig.core.page_keep(QUEUE, others, is_kept=True)
        await rig.move_all()
        rig.core.page_keep(QUEUE, others, is_kept=False)
    rig.pager.page(rig.address)  # from now on the pager knows how many may be open
    spans = [(one.first, one.last) for one in rig.core.extents(QUEUE) if one.places]
    assert len(spans) == pages
    assert max(first for first, _ in spans) < min(last for _, last in spans)


def walk_over(rig: PagingRig, selector: str = "") -> QueueWalk:
    queue: Any = SimpleNamespace(
        id=QUEUE, name="orders", is_deleted=False, address=SimpleNamespace(name="orders")
    )
    pages: Any = rig.pager
    wanted = compile_selector(selector) if selector else None
    return QueueWalk(rig.core, rig.journal, pages, queue, selector=wanted)


async def walked(rig: PagingRig, walk: QueueWalk, count: int = 50) -> list[tuple[int, bytes]]:
    """Walk from end to end; return the sequences with their bodies."""
    found, at = [], 1
    async with asyncio.timeout(WAIT_S):
        while at < rig.core.queue_statistics(QUEUE).available:
            step = await walk.step(at, count, everything=True)
            for view in step.messages:
                body = walk.body(view.sequence)
                assert body is not None
                found.append((view.sequence, body))
            at = step.next_sequence
            await asyncio.sleep(0)
    walk.leave()
    return found


def all_of(count: int) -> list[tuple[int, bytes]]:
    return [(number, body_of(number)) for number in range(1, count + 1)]


@run
async def test_pages_that_overlap_more_than_may_be_open_are_walked_over(tmp_path: Path) -> None:
    async with filled(tmp_path, 240) as rig:
        await interleave(rig, 240, 12)
        assert rig.address.open_pages_max < 12
        for _ in range(2):
            assert await walked(rig, walk_over(rig)) == all_of(240)
        assert (rig.pager.statistics().opened, rig.paged()) == (0, 240)


@run
async def test_a_consumer_takes_from_pages_that_overlap_while_they_are_looked_through(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path, 240) as rig:
        await interleave(rig, 240, 12)
        consumer = rig.core.open_consumer(
            rig.core.open_connection(), QUEUE, AckMode.INDIVIDUAL, 1, b"s", 12
        )
        taken = 0

        async def take() -> None:
            nonlocal taken
            while taken < 240:
                status, count, _ = rig.core.deliver(consumer, 1, 1 << 20)
                if count:
                    taken += 1
                    rig.core.acknowledge(consumer, taken)
                elif status is DeliverStatus.ABSENT:
                    await rig.journal.load_slab(*rig.core.absent_slab(consumer))
                elif status is DeliverStatus.PAGED:
                    rig.pager.serve()
                await asyncio.sleep(0)

        task = asyncio.get_running_loop().create_task(take())
        rounds = 0
        while not task.done():
            found = await walked(rig, walk_over(rig), 7)
            sequences = [sequence for sequence, _ in found]
            assert sequences == sorted(set(sequences))
            assert all(body == body_of(sequence) for sequence, body in found)
            rounds += 1
            await asyncio.sleep(0)
        await task
        assert rounds > 1
        assert rig.core.queue_statistics(QUEUE).acknowledged == 240
        await rig.journal.wait_durable()
        await until(lambda: not rig.page_names())


@run
async def test_what_is_to_be_ended_comes_into_memory_alone(tmp_path: Path) -> None:
    async with filled(tmp_path, 120) as rig:
        await interleave(rig, 120, 1)
        walk = walk_over(rig)
        step = await walk.step(40, 8, everything=True)
        some = [view.sequence for view in step.messages if view.sequence % 2][:3]
        assert rig.core.finish(QUEUE, some) == 0, "they stand in pages"
        bodies = [walk.body(sequence) for sequence in some]
        walk.take_in(some)
        assert [walk.body(sequence) for sequence in some] == bodies
        assert rig.paged() == 117
        assert rig.core.finish(QUEUE, some) == 3
        await rig.journal.wait_durable()
        left = [number for number in range(1, 121) if number not in some]
        assert [sequence for sequence, _ in await walked(rig, walk_over(rig))] == left


@run
async def test_pages_that_can_hold_nothing_of_the_kind_are_not_read(tmp_path: Path) -> None:
    async with filled(tmp_path, 400) as rig:
        await rig.move_all()
        rig.pager.page(rig.address)
        pages = [facts.page_id for facts in rig.core.extents(QUEUE)]
        assert len(pages) >= 8
        read: list[int] = []
        known_footer = rig.pager.closed_pages.known_footer

        async def counted(page_id: int) -> bytes:
            read.append(page_id)
            return await known_footer(page_id)

        rig.pager.closed_pages.known_footer = counted  # type: ignore[method-assign]
        found = await walked(rig, walk_over(rig, "half = 1"))
        # Whoever walks chooses for itself: the page at the border has others too.
        assert {number for number, _ in found} >= set(range(201, 401))
        assert len(read) <= len(pages) // 2 + 1
        read.clear()
        assert await walked(rig, walk_over(rig, "half = 7")) == []
        assert read == []


@run
async def test_slabs_that_were_read_for_a_walk_go_with_it(tmp_path: Path) -> None:
    async with filled(tmp_path, 240) as rig:
        await interleave(rig, 240, 3)
        before = rig.core.image_statistics().slabs_total
        free = rig.core.image_statistics().slabs_free
        walk = walk_over(rig)
        step = await walk.step(100, 4)
        assert step.messages
        during = rig.core.image_statistics()
        assert during.slabs_total - during.slabs_free > before - free
        walk.leave()
        after = rig.core.image_statistics()
        assert after.slabs_total - after.slabs_free == before - free


@run
async def test_a_damaged_page_is_told_and_not_passed_over(tmp_path: Path) -> None:
    async with filled(tmp_path, 240) as rig:
        await interleave(rig, 240, 3)
        page_id = rig.core.extents(QUEUE)[1].page_id
        path = next(path for path in rig.disk.files if path.name == f"{page_id:016x}.page")
        data = rig.disk.files[path].data
        data[-1] ^= 1
        for _ in range(2):
            with pytest.raises(PageDamaged):
                await walked(rig, walk_over(rig))
        assert rig.pager.statistics().damaged == 1
        assert rig.core.live_places(block_file_id(page_id)) == 80


@run
async def test_many_pages_cost_a_step_no_more_than_few(tmp_path: Path) -> None:
    """A step lists those extents alone that are at its place."""
    async with filled(tmp_path, 400) as rig:
        rig.address.page_bytes = 16 * 1024
        await rig.move_all()
        rig.pager.page(rig.address)
        pages = len(rig.core.extents(QUEUE))
        assert pages >= 20
        asked: list[int] = []

        class CountingCore:
            def __getattr__(self, name: str) -> Any:
                return getattr(rig.core, name)

            def extents(self, queue_id: int, begin: int, most: int) -> Any:
                found = rig.core.extents(queue_id, begin, most)
                asked.append(len(found))
                return found

        counting: Any = CountingCore()
        walk = walk_over(rig)
        walk._walk._core = counting
        assert await walked(rig, walk, 10) == all_of(400)
        assert max(asked) <= 4, "the page at hand, and those right behind it"
