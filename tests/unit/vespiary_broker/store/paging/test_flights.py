"""Pages on their way: how many, whose turn it is, and in which order they are named."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vespiary_broker.store.paging.flights import PASSED_OVER_MAX, RANKED_MAX, FlightRoom
from vespiary_native.values_pages import PageState
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import QUEUES, run, until
from vespiary_testkit.paging_rig import PAGE_BYTES, PagingClient, PagingRig

# --- an executor that waits -----------------------------------------------------------------------

# `HeldExecutor`: work for a thread waits until a test says that it is its turn.


class HeldExecutor(Executor):
    """Keeps what it is given until `release`.

    Attributes:
        waiting: The works, in the order in which they came.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.is_holding = True

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*args, **kwargs)))
        if not self.is_holding:
            self.release()
        return future

    def release(self, number: int = 0) -> None:
        """Do one of the works that wait, in the caller's thread."""
        future, work = self.waiting.pop(number)
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    def let_go(self) -> None:
        """Do all of it, and what comes from now on at once."""
        self.is_holding = False
        while self.waiting:
            self.release()


# --- whose turn it is ------------------------------------------------------------


async def asked(room: FlightRoom, name: str, held: int, begun: list[str], size: int = 10) -> None:
    await room.take(size, lambda: held)
    begun.append(name)


async def turns(*tasks: asyncio.Task[None]) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert all(task.done() or not task.cancelled() for task in tasks)


@run
async def test_pages_on_their_way_are_bounded_by_number_and_by_memory() -> None:
    for pages_max, bytes_max, wanted in ((2, 1000, 2), (9, 30, 3), (9, 5, 1)):
        room, begun = FlightRoom(pages_max, bytes_max), list[str]()
        tasks = [asyncio.create_task(asked(room, "x", 1, begun)) for _ in range(6)]
        for ended in range(5):
            await turns(*tasks)
            assert len(begun) == min(wanted + ended, 6)
            room.give(10)
        await asyncio.gather(*tasks)


@run
async def test_the_address_that_holds_most_goes_first() -> None:
    room, begun = FlightRoom(1, 1000), list[str]()
    await room.take(10, lambda: 0)
    held = {"small": 1, "large": 3, "middle": 2}
    tasks = [asyncio.create_task(asked(room, name, held[name], begun)) for name in held]
    await turns(*tasks)
    for _ in held:
        room.give(10)
        await turns(*tasks)
    assert begun == ["large", "middle", "small"]


@run
async def test_of_very_many_addresses_those_that_wait_longest_are_ranked() -> None:
    room, asked_for = FlightRoom(1, 1000), list[int]()
    await room.take(10, lambda: 0)
    begun: list[int] = []

    async def ask(number: int) -> None:
        def held_bytes() -> int:
            asked_for.append(number)
            return number

        await room.take(10, held_bytes)
        begun.append(number)

    tasks = [asyncio.create_task(ask(number)) for number in range(5 * RANKED_MAX)]
    await turns(*tasks)
    for _ in tasks:
        asked_for.clear()
        room.give(10)
        assert len(asked_for) <= 2 * RANKED_MAX, "whom it grants, and who finds no room"
        await turns(*tasks)
    assert sorted(begun) == list(range(len(tasks)))
    assert begun[0] == RANKED_MAX - 1


@run
async def test_a_small_address_is_passed_over_only_so_often() -> None:
    room, begun = FlightRoom(1, 1000), list[str]()
    await room.take(10, lambda: 0)
    tasks = [asyncio.create_task(asked(room, "small", 1, begun))]
    for _ in range(PASSED_OVER_MAX + 3):
        tasks.append(asyncio.create_task(asked(room, "large", 9, begun)))
        await turns(*tasks)
    while len(begun) < len(tasks):
        room.give(10)
        await turns(*tasks)
    assert begun.index("small") == PASSED_OVER_MAX


@run
async def test_who_stops_waiting_takes_no_room() -> None:
    room, begun = FlightRoom(1, 1000), list[str]()
    await room.take(10, lambda: 0)
    first = asyncio.create_task(asked(room, "first", 1, begun))
    second = asyncio.create_task(asked(room, "second", 1, begun))
    await turns(first, second)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    room.give(10)
    await second
    third = asyncio.create_task(asked(room, "third", 1, begun))
    await turns(third)
    room.give(10)
    third.cancel()  # it has its turn already, and does not know it yet
    with pytest.raises(asyncio.CancelledError):
        await third
    await room.take(10, lambda: 0)
    assert begun == ["second"]


# --- pages of one address ------------------------------------------------------------


class Held(NamedTuple):
    """A rig whose pages are written when the test says so, and 200 messages in it."""

    rig: PagingRig
    client: PagingClient
    executor: HeldExecutor
    named: list[int]


class CommitsSeen:
    """A core that notes which pages are named, in order."""

    def __init__(self, core: Any, named: list[int]) -> None:
        self._core = core
        self._named = named

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def page_commit(self, page_id: int) -> Any:
        self._named.append(page_id)
        return self._core.page_commit(page_id)


@asynccontextmanager
async def held_rig(tmp_path: Path) -> AsyncIterator[Held]:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    executor, named = HeldExecutor(), list[int]()
    seen: Any = CommitsSeen(rig.core, named)
    rig.pager._mover._core = seen
    rig.pager._mover._executor = rig.pager._executor = executor
    try:
        client = PagingClient(rig, 1)
        await client.send(200)
        yield Held(rig, client, executor, named)
    finally:
        executor.let_go()
    await rig.close()


def closed_pages(rig: PagingRig) -> list[int]:
    return [facts.page_id for facts in rig.core.pages() if facts.state is PageState.CLOSED]


def live_pages(rig: PagingRig) -> list[int]:
    return [facts.page_id for facts in rig.core.pages() if facts.state is PageState.LIVE]


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@run
async def test_the_next_page_is_filled_while_the_one_in_front_is_written(tmp_path: Path) -> None:
    async with held_rig(tmp_path) as held:
        rig, executor = held.rig, held.executor
        rig.pager.page(rig.address)
        await until(lambda: len(executor.waiting) == 2)
        await settle()
        assert len(executor.waiting) == len(closed_pages(rig)) == 2, "as many as options.moves_max"
        executor.let_go()
        await until(lambda: rig.address.excess_bytes() <= 0 and not rig.pager._moves)
        await held.client.receive()
        assert sorted(held.client.held) == sorted(set(held.client.held))
        assert len(held.client.held) == 200


@run
async def test_pages_are_named_in_the_order_of_their_messages(tmp_path: Path) -> None:
    async with held_rig(tmp_path) as held:
        rig, executor = held.rig, held.executor
        rig.pager.page(rig.address)
        await until(lambda: len(executor.waiting) == 2)
        first, second = closed_pages(rig)
        executor.release(1)
        await settle()
        assert len(rig.page_names()) == 1, "the second one's file is there"
        assert not live_pages(rig), "and waits for the first"
        executor.release(0)
        await until(lambda: set(live_pages(rig)) >= {first, second})
        assert held.named[:2] == [first, second]
        executor.let_go()
        await until(lambda: not rig.pager._moves)


@run
async def test_a_page_that_fails_holds_up_none_behind_it_and_goes_later(tmp_path: Path) -> None:
    async with held_rig(tmp_path) as held:
        rig, executor = held.rig, held.executor
        rig.pager.page(rig.address)
        await until(lambda: len(executor.waiting) == 2)
        rig.disk.fail = lambda kind, _: errno.ENOSPC if kind == "write" else 0
        executor.release(0)
        rig.disk.fail = lambda *_: 0
        await until(lambda: rig.pager.statistics().failures == 1)
        assert not live_pages(rig)
        executor.let_go()
        await until(lambda: rig.address.excess_bytes() <= 0 and not rig.pager._moves)
        assert rig.paged() == 200, "what was given up is in another page"
        await held.client.receive()
        for queue_id in QUEUES:
            got = [sequence for queue, sequence in held.client.held if queue == queue_id]
            assert got == list(range(1, rig.core.queue_statistics(queue_id).tail))


@run
async def test_pages_with_a_limit_are_counted_one_by_one(tmp_path: Path) -> None:
    async with held_rig(tmp_path) as held:
        rig, executor = held.rig, held.executor
        rig.address.pages_bytes_max = 3 * PAGE_BYTES
        rig.pager.page(rig.address)
        await until(lambda: len(executor.waiting) == 1)
        await settle()
        assert len(executor.waiting) == 1
        executor.let_go()
        await until(lambda: not rig.pager._moves)
        assert 2 * PAGE_BYTES < rig.pager.statistics().pages_bytes <= 3 * PAGE_BYTES


@run
async def test_a_pager_closes_when_pages_on_their_way_are_named(tmp_path: Path) -> None:
    async with held_rig(tmp_path) as held:
        rig, executor = held.rig, held.executor
        rig.pager.page(rig.address)
        await until(lambda: len(executor.waiting) == 2)
        closing = asyncio.create_task(rig.pager.close())
        await settle()
        assert not closing.done()
        executor.let_go()
        await closing
        assert len(live_pages(rig)) == 2
        assert not closed_pages(rig)


class FillsSeen:
    """A core that notes where each page begins to look."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.begins: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def page_fill(self, page_id: int, queue_id: int, sequence: int, *rest: Any) -> Any:
        self.begins.setdefault(page_id, sequence)
        return self._core.page_fill(page_id, queue_id, sequence, *rest)


@run
async def test_a_page_begins_to_look_where_the_one_before_ended(tmp_path: Path) -> None:
    rig = await PagingRig.open(tmp_path, MemoryDisk())
    rig.address.queues = [QUEUES[0]]
    core: Any = FillsSeen(rig.core)
    rig.pager._mover._core = core
    client = PagingClient(rig, 1)
    await client.send(200)
    await rig.move_all()
    begins = list(core.begins.values())
    lasts = [facts.last for facts in rig.core.extents(QUEUES[0])]
    assert len(lasts) > 3
    assert begins[: len(lasts)] == [0, *(last + 1 for last in lasts[:-1])]
    core.begins.clear()
    await client.send(30)
    await rig.move_all()
    assert next(iter(core.begins.values())) == 0, (
        "it had reached the end: then all is looked at again"
    )
    await rig.close()
