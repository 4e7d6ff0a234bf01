"""A start that was told to stop ends, whatever it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from vespiary_broker.app.start_interruption import GRACE_S, StartInterruption
from vespiary_testkit.virtual_time import run_virtual

Scenario = Callable[[StartInterruption, list[float]], Coroutine[Any, Any, None]]


def run(scenario: Scenario) -> list[float]:
    """Run a scenario; return when the process was ended, in seconds from its beginning."""
    ends: list[float] = []

    async def start() -> None:
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        interruption = StartInterruption(
            loop, end_process=lambda: ends.append(loop.time() - begin_s)
        )
        await scenario(interruption, ends)
        await asyncio.sleep(10 * GRACE_S)

    run_virtual(start())
    return ends


def test_a_start_that_goes_on_is_ended_once() -> None:
    async def scenario(start: StartInterruption, _: list[float]) -> None:
        start.ask()
        await asyncio.sleep(GRACE_S / 2)
        start.ask()  # by a second signal

    (end_s,) = run(scenario)
    assert end_s == pytest.approx(GRACE_S)


def test_one_that_ends_by_itself_is_left_alone() -> None:
    async def scenario(start: StartInterruption, _: list[float]) -> None:
        start.ask()
        await asyncio.sleep(GRACE_S / 2)
        start.over()
        start.ask()

    assert run(scenario) == []


def test_a_broker_that_has_started_takes_its_time_to_end() -> None:
    async def scenario(start: StartInterruption, _: list[float]) -> None:
        start.over()
        start.ask()

    assert run(scenario) == []


def test_nothing_ends_without_being_told() -> None:
    async def scenario(start: StartInterruption, _: list[float]) -> None:
        pass

    assert run(scenario) == []
