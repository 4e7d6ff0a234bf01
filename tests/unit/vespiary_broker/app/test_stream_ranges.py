"""Ranges of a queue of which much stands in pages: the same bytes as when all stood in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vespiary_broker.app.queue_walk import QueueWalk, Step
from vespiary_broker.app.stream_ranges import Range, RangeReading
from vespiary_broker.engine.stream_gaps import Gap, GapReason
from vespiary_codec.journal.page import block_file_id
from vespiary_spec.errors import PageDamaged
from vespiary_testkit.journal_workload import run
from vespiary_testkit.paging_rig import PagingRig

from .test_queue_walk import QUEUE, filled, interleave

COUNT = 240
MOST = 1 << 24


def uneven(number: int) -> bytes:
    """Return a body: now and then one that does not fit where the one behind it would."""
    return b"%d " % number + bytes(40 if number % 3 else 1500)


class CountedWalk(QueueWalk):
    """A walk that counts the steps in which messages are looked at one by one."""

    steps = 0

    async def step(self, sequence: int, count: int, *, everything: bool = False) -> Step:
        self.steps += 1
        return await super().step(sequence, count, everything=everything)


def reading(rig: PagingRig, max_bytes: int) -> RangeReading:
    queue: Any = SimpleNamespace(
        id=QUEUE, name="orders", is_deleted=False, address=SimpleNamespace(name="orders")
    )
    stream: Any = SimpleNamespace(
        queue=queue,
        acknowledged=0,
        explain=lambda first, last: [Gap(first, last, GapReason.UNKNOWN)],
    )
    pages: Any = rig.pager
    made = RangeReading(rig.core, rig.journal, pages, stream, max_bytes)
    made._walk = CountedWalk(rig.core, rig.journal, pages, queue)
    return made


async def steps_of(rig: PagingRig) -> int:
    """Read all; return how many steps looked at messages one by one."""
    made = reading(rig, MOST)
    assert (await made.read(0, COUNT)).messages == COUNT
    assert isinstance(made._walk, CountedWalk)
    return made._walk.steps


async def whole(rig: PagingRig, max_bytes: int = MOST) -> list[Range]:
    """Read the queue from end to end, in as many answers as it takes."""
    answers: list[Range] = []
    at = 0
    while at < COUNT:
        answers.append(await reading(rig, max_bytes).read(at, COUNT))
        at = answers[-1].through
    return answers


@run
@pytest.mark.parametrize("max_bytes", [MOST, 40_000, 4096])
async def test_pages_are_copied_as_they_stand(tmp_path: Path, max_bytes: int) -> None:
    async with filled(tmp_path, COUNT, uneven) as rig:
        before = await whole(rig, max_bytes)
        assert sum(answer.messages for answer in before) == COUNT
        rig.address.page_bytes = 32 * 1024
        await rig.move_all()
        extents = rig.core.extents(QUEUE)
        assert len(extents) > 3
        assert await whole(rig, max_bytes) == before
        # Single ones come into memory, at the bounds of a page too.
        bounds = {at for page in extents[1:3] for at in (page.first - 1, page.first, page.last)}
        picked = sorted(bounds | {at for at in range(1, COUNT) if at % 7 in (2, 3)})
        for page in extents:
            footer = await rig.pager.closed_pages.known_footer(page.page_id)
            rig.core.page_pick(page.page_id, QUEUE, footer, picked)
        assert rig.paged() == COUNT - len(picked)
        assert await whole(rig, max_bytes) == before


@run
async def test_nothing_is_looked_at_one_by_one_where_pages_follow_one_another(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path, COUNT, uneven) as rig:
        rig.address.page_bytes = 32 * 1024
        await rig.move_all()
        assert await steps_of(rig) == 0


@run
async def test_pages_that_interleave_are_read_in_order(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path, COUNT, uneven) as rig:
        before = await whole(rig)
        await interleave(rig, COUNT, 5)
        assert await whole(rig) == before
        assert await steps_of(rig) > 0


@run
async def test_what_has_ended_is_a_gap_and_the_rest_is_read(tmp_path: Path) -> None:
    async with filled(tmp_path, COUNT, uneven) as rig:
        await rig.move_all()
        assert rig.core.finish_below(QUEUE, 101, 1 << 20) == 100
        assert rig.core.finish_below(QUEUE, 101, 1 << 20) == 0
        await rig.journal.wait_durable()
        (answer,) = await whole(rig)
        assert (answer.messages, answer.through) == (140, COUNT)
        assert answer.gaps == [Gap(1, 100, GapReason.UNKNOWN)]


@run
async def test_a_damaged_page_is_told(tmp_path: Path) -> None:
    async with filled(tmp_path, COUNT, uneven) as rig:
        rig.address.page_bytes = 32 * 1024
        await rig.move_all()
        rig.pager.page(rig.address)
        page_id = rig.core.extents(QUEUE)[1].page_id
        path = next(path for path in rig.disk.files if path.name == f"{page_id:016x}.page")
        rig.disk.files[path].data[-1] ^= 1
        for _ in range(2):
            with pytest.raises(PageDamaged):
                await whole(rig)
        assert rig.core.live_places(block_file_id(page_id))


@run
async def test_slabs_that_were_read_for_a_range_go_with_it(tmp_path: Path) -> None:
    async with filled(tmp_path, COUNT, uneven) as rig:
        rig.address.page_bytes = 32 * 1024
        await rig.move_all()
        before = rig.core.image_statistics()
        await reading(rig, 40_000).read(0, COUNT)
        after = rig.core.image_statistics()
        assert after.slabs_total - after.slabs_free == before.slabs_total - before.slabs_free
