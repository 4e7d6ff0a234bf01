"""A broker that waits for AIO requests, and gets its engine when there is room."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_broker.app.aio_room import AioRoom, is_aio_proved
from vespiary_broker.app.journal_options import journal_options
from vespiary_broker.store.volumes.aio_limits import AioLimits
from vespiary_broker.store.volumes.report import Report
from vespiary_spec import configuration as configurations
from vespiary_spec.errors import EngineUnavailable
from vespiary_spec.verification import AioResult, summarise
from vespiary_testkit import product_loop


def report(waits: str = "") -> Report:
    answer = summarise((), AioResult(demand=500), engine="ASYNCIO", waits=waits)
    return Report(answer=answer, volumes=())


class Node:
    """A node whose numbers a test changes.

    Attributes:
        said: What the broker said that it waits for.
    """

    def __init__(self, in_use: int = 600, maximum: int = 1000) -> None:
        self.in_use = in_use
        self.maximum = maximum
        self.looks = 0
        self.said: list[str] = []
        self.on_look: Callable[[], None] = lambda: None

    def read(self, demand: int) -> AioLimits:
        self.looks += 1
        self.on_look()
        return AioLimits(demand=demand, in_use=self.in_use, maximum=self.maximum)

    def room(self, stop: asyncio.Event | None = None) -> AioRoom:
        return AioRoom(
            stop or asyncio.Event(),
            self.said.append,
            idle="the broker is starting",
            read=self.read,
            poll_s=0.001,
        )


def test_nothing_is_waited_for_where_there_is_room() -> None:
    async def test() -> None:
        node = Node()

        async def again() -> Report:
            pytest.fail("nobody asked")

        good = report()
        assert await node.room().verified(good, again) is good
        assert node.looks == 0

    product_loop.run(test())


def test_it_verifies_again_once_there_is_room_and_as_often_as_it_takes() -> None:
    async def test() -> None:
        node = Node()
        answers = [report("500 are needed, still"), report()]

        def raise_at_third_look() -> None:
            if node.looks == 3:
                node.maximum = 2000

        node.on_look = raise_at_third_look

        async def again() -> Report:
            assert node.maximum == 2000, "there was no room yet"
            return answers.pop(0)

        found = await node.room().verified(report("500 are needed"), again)
        assert not found.answer.waits
        assert node.said == [
            "500 are needed",
            "the broker is starting",
            "500 are needed, still",
            "the broker is starting",
        ]

    product_loop.run(test())


def test_a_ring_that_another_broker_was_faster_to_take_is_tried_again() -> None:
    async def test() -> None:
        node = Node(in_use=0)
        failures = [EngineUnavailable("no room", errno.EAGAIN)] * 2

        async def open_it() -> str:
            if failures:
                raise failures.pop()
            return "open"

        assert await node.room().opened(open_it) == "open"
        assert node.looks == 2

        async def forbidden() -> str:
            raise EngineUnavailable("no such call", errno.ENOSYS)

        with pytest.raises(EngineUnavailable, match="no such call"):
            await node.room().opened(forbidden)

    product_loop.run(test())


def test_who_is_told_to_end_does_not_wait_on() -> None:
    async def test() -> None:
        node, stop = Node(), asyncio.Event()
        node.on_look = stop.set

        async def again() -> Report:
            pytest.fail("there was no room")

        with pytest.raises(EngineUnavailable, match="told to end"):
            await node.room(stop).verified(report("500 are needed"), again)

    product_loop.run(test())


def test_only_aio_that_was_seen_to_work_is_insisted_on() -> None:
    assert is_aio_proved(report())
    assert not is_aio_proved(None)
    degraded = Report(answer=summarise((), AioResult(), engine="NIO"), volumes=())
    assert not is_aio_proved(degraded)


@pytest.mark.parametrize(
    ("kind", "is_waited_for", "is_strict"),
    [("ASYNCIO", True, True), ("ASYNCIO", False, False), ("IO_URING", True, False)],
)
def test_the_journal_takes_no_other_ring_then(
    kind: str, is_waited_for: bool, is_strict: bool
) -> None:
    settings = configurations.from_plain({"journal-type": kind}, [])
    options = journal_options(
        settings,
        Path("/d"),
        None,
        is_direct=True,
        is_in_memory=False,
        is_waited_for=is_waited_for,
    )
    assert options.is_strict is is_strict
