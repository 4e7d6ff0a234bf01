"""Work in turns: what one may do, what is measured, and that others run in between."""

from __future__ import annotations

import asyncio

import pytest

from vespiary_broker.store.turns import Allowance, Turns, Work
from vespiary_testkit.journal_workload import run


def test_a_turn_ends_before_it_has_done_too_much():
    turn = Allowance(10)
    assert [turn.spend(n) for n in (4, 4, 4, 6, 1)] == [False, False, True, False, True]


def test_what_is_larger_than_a_turn_has_one_of_its_own():
    turn = Allowance(10)
    assert [turn.spend(n) for n in (25, 1, 25, 1)] == [False, True, True, True]


def counting(turns: int, seen: list[str]) -> Work[int]:
    for _ in range(turns):
        seen.append("work")
        yield
    return turns


@run
async def test_messages_have_their_turn_in_between():
    seen: list[str] = []

    async def messages() -> None:
        for _ in range(3):
            seen.append("message")
            await asyncio.sleep(0)

    other = asyncio.create_task(messages())
    assert await Turns().finish(counting(3, seen)) == 3
    await other
    assert seen == ["work", "message"] * 3


@run
async def test_each_turn_is_measured_and_the_longest_remembered():
    times = iter([0, 5_000, 10_000, 12_010_000, 20_000_000, 20_000_000])
    turns = Turns(lambda: next(times))
    assert await turns.finish(counting(2, [])) == 2
    found = turns.distribution()
    assert (sum(found.counts), found.total, turns.longest_us) == (3, 12_005, 12_000)
    assert found.counts[found.bounds.index(20_000)] == 1


def test_a_turn_that_fails_is_measured_too():
    times = iter([0, 70_000])
    turns = Turns(lambda: next(times))
    with pytest.raises(ValueError, match="the test says so"), turns.one():
        raise ValueError("the test says so")
    assert turns.longest_us == 70
