"""The queue: each key once, never twice at a time, later each time it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from vespiary_operator.work import BACKOFF_MAX_S, Key, WorkQueue
from vespiary_testkit.virtual_time import run_virtual

A, B = Key("Broker", "ns", "a"), Key("Broker", "ns", "b")


def with_queue(test: Callable[[WorkQueue], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(WorkQueue())

    run_virtual(run())


def test_a_key_waits_once() -> None:
    async def test(queue: WorkQueue) -> None:
        for _ in range(5):
            queue.add(A)
        queue.add(B)
        assert queue.backlog().waiting == 2
        assert {await queue.take(), await queue.take()} == {A, B}
        assert queue.backlog().waiting == 0

    with_queue(test)


def test_what_waits_is_what_is_due_and_a_pass_without_end_shows() -> None:
    async def test(queue: WorkQueue) -> None:
        assert queue.backlog() == (0, 0.0)
        queue.add(A)
        queue.add(B, after_s=3600)
        await asyncio.sleep(20)
        assert queue.backlog().waiting == 1, "the other one is not due"
        assert queue.backlog().oldest_s == pytest.approx(20)
        assert await queue.take() == A
        assert queue.backlog().waiting == 0
        queue.add(A)
        await asyncio.sleep(20)
        found = queue.backlog()
        assert found.waiting == 0, "it is worked on"
        assert found.oldest_s == pytest.approx(20), "since it was taken"
        queue.done(A)
        assert queue.backlog().waiting == 1
        await queue.take()
        queue.done(A)
        assert queue.backlog() == (0, 0.0)

    with_queue(test)


def test_a_key_that_is_worked_on_is_taken_again_only_afterwards() -> None:
    async def test(queue: WorkQueue) -> None:
        queue.add(A)
        assert await queue.take() == A
        queue.add(A)
        queue.add(B)
        assert await queue.take() == B
        waiting = asyncio.ensure_future(queue.take())
        await asyncio.sleep(0)
        assert not waiting.done()
        queue.done(A)
        assert await waiting == A

    with_queue(test)


def test_the_earlier_time_holds() -> None:
    async def test(queue: WorkQueue) -> None:
        queue.add(A, after_s=3600)
        queue.add(A)
        queue.add(A, after_s=3600)
        assert await queue.take() == A
        assert queue.backlog().waiting == 0

    with_queue(test)


def test_failures_are_tried_again_later_each_time_and_forgotten_when_it_works() -> None:
    async def test(queue: WorkQueue) -> None:
        pauses = []
        for _ in range(9):
            queue.add(A)
            assert await queue.take() == A
            pauses.append(queue.failed(A))
        assert pauses[:4] == [1, 2, 4, 8]
        assert pauses[-1] == BACKOFF_MAX_S
        assert queue.failed(A, at_least_s=300) == 300
        queue.add(A)
        await queue.take()
        queue.done(A)
        queue.add(A)
        await queue.take()
        assert queue.failed(A) == 1

    with_queue(test)


def test_a_failure_after_a_change_counts_as_the_first() -> None:
    async def test(queue: WorkQueue) -> None:
        for _ in range(5):
            queue.add(A)
            await queue.take()
            queue.failed(A)
        queue.progressed(A)
        assert queue.failed(A) == 1

    with_queue(test)


def test_other_threads_may_add() -> None:
    async def test() -> None:
        queue = WorkQueue()
        await asyncio.to_thread(queue.add_threadsafe, A)
        assert await queue.take() == A

    asyncio.run(test())  # a virtual clock would not wait for a thread
