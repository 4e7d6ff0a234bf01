"""A page that many queues share is opened in steps, and again where there was no room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vespiary_native.abc import NoRoom
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import run, until
from vespiary_testkit.paging_rig import PagingRig

FIRST = 100
STEP_QUEUES_MAX = LISTED_MAX = 16


class EntersSeen:
    """A core that notes in which turn of the loop each queue got a page, and may find no room.

    Attributes:
        turn: Of the event loop.
        enters: The turn in which a queue got a page.
        failures: Raised by the next calls.
        on_first: Called when the first queue has got its page.
        listed: How many extents were listed.
    """

    def __init__(self, core: Any) -> None:
        self._core = core
        self.turn = 0
        self.enters: list[int] = []
        self.failures: list[Exception] = []
        self.on_first: Callable[[], Any] = lambda: None
        self.listed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def page_enter(self, page_id: int, queue_id: int, footer: bytes) -> int:
        if self.failures:
            raise self.failures.pop()
        entered: int = self._core.page_enter(page_id, queue_id, footer)
        self.enters.append(self.turn)
        if len(self.enters) == 1:
            self.on_first()
        return entered

    def extents(self, queue_id: int, begin: int = 0, most: int | None = None) -> Any:
        found = self._core.extents(queue_id, begin, most)
        self.listed += len(found)
        return found


async def shared(tmp_path: Path, queues: int, pages: int) -> tuple[PagingRig, EntersSeen]:
    """Return a rig in which so many queues share the messages of so many pages."""
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    rig.address.queues = list(range(FIRST, FIRST + queues))
    for queue_id in rig.address.queues:
        rig.core.open_queue(queue_id)
    route = rig.core.open_route(rig.address.queues)
    for _ in range(pages):
        for _ in range(3):
            rig.core.publish(route, b"destination:orders\n", bytes(50), persistent=True)
        rig.journal.kick()
        await rig.journal.wait_durable()
        assert await rig.pager._mover.move(rig.address) is not None
    for facts in rig.core.pages():
        page = rig.pager._files.path("orders", facts.page_id)
        look = rig.pager._files.look(page, facts.page_id, facts.salt)
        rig.pager._note_written(look)
    seen = EntersSeen(rig.core)
    core: Any = seen
    rig.pager._opener._core = rig.pager._opener._reads._core = core
    return rig, seen


async def count_turns(seen: EntersSeen) -> None:
    while True:
        seen.turn += 1
        await asyncio.sleep(0)


@run
async def test_a_page_is_opened_for_some_queues_in_each_turn(tmp_path: Path) -> None:
    rig, seen = await shared(tmp_path, 40, 1)
    (page,) = rig.core.pages()
    ticking = asyncio.create_task(count_turns(seen))
    for queue_id in rig.address.queues:
        rig.pager._opener.want(queue_id, page.page_id)
    await until(lambda: len(seen.enters) == 40)
    ticking.cancel()
    assert max(map(seen.enters.count, seen.enters)) <= STEP_QUEUES_MAX
    assert rig.pager.statistics().opened == 40
    await rig.close()


@run
async def test_opening_a_page_lists_few_of_very_many(tmp_path: Path) -> None:
    rig, seen = await shared(tmp_path, 4, 60)
    first = rig.core.pages()[0]
    for queue_id in rig.address.queues:
        rig.pager._opener.want(queue_id, first.page_id)
    await until(lambda: len(seen.enters) >= 8)  # and the page behind it
    assert seen.listed <= LISTED_MAX * len(seen.enters), "each queue has 60"
    await rig.close()


@pytest.mark.parametrize("failure", [NoRoom("the test says so"), MemoryError("the test says so")])
@run
async def test_a_page_for_which_there_was_no_memory_is_tried_again(
    tmp_path: Path, failure: Exception
) -> None:
    rig, seen = await shared(tmp_path, 3, 1)
    (page,) = rig.core.pages()
    seen.failures = [failure]
    for queue_id in rig.address.queues:
        rig.pager._opener.want(queue_id, page.page_id)
    await until(lambda: len(seen.enters) == 3)
    for queue_id in rig.address.queues:
        assert rig.core.queue_statistics(queue_id).paged == 0
    await rig.close()


@run
async def test_a_queue_that_goes_while_a_page_is_opened_harms_no_other(tmp_path: Path) -> None:
    rig, seen = await shared(tmp_path, 40, 1)
    (page,) = rig.core.pages()
    seen.on_first = lambda: rig.core.drop_queue(rig.address.queues[-1])
    for queue_id in rig.address.queues:
        rig.pager._opener.want(queue_id, page.page_id)
    await until(lambda: len(seen.enters) == 39 and not rig.pager._opener._tasks)
    assert not rig.pager.statistics().damaged
    await rig.close()
