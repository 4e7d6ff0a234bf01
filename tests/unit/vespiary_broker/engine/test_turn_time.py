"""What one turn of the loop has for selectors and filters, and in which order others follow."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vespiary_broker.engine.selection.selector import prepare_parser
from vespiary_broker.engine.turn_time import SHARE_S, Stint, TurnTime, evaluation_us
from vespiary_broker.server.compiling_in_time import compile_in_time
from vespiary_testkit import product_loop
from vespiary_testkit.turn_clock import STEP_S, TurnClock


class Turns(TurnClock):
    """Turns in which somebody works."""

    def __init__(self) -> None:
        self.time = TurnTime()
        super().__init__(self.time)

    def work(self, who: Hashable, steps: int) -> int:
        """Work in this turn; return how many steps there was time for."""
        share = self.time.share(who)
        done = 0
        while done < steps and share.has_time:
            self.now_s += STEP_S
            share.did(1e6)
            done += 1
        share.end()
        return done


def test_a_turn_has_so_much_time_and_the_next_one_again():
    turns = Turns()
    assert turns.work("a", 100) == 4
    assert turns.work("b", 100) == 0
    turns.turn()
    assert turns.work("a", 100) == 4
    assert turns.time.waits > 0


def test_those_that_wait_come_in_their_order():
    turns = Turns()
    turns.work("a", 100)  # waits for more
    for who in "bcd":
        assert turns.work(who, 1) == 0
    turns.turn()
    assert turns.work("d", 1) == 0, "others wait for longer"
    assert [turns.work(who, 1) for who in "abcd"] == [1, 1, 1, 1]
    assert turns.work("a", 1) == 0, "it has had its share"


def test_who_is_gone_holds_up_nobody():
    turns = Turns()
    turns.work("a", 100)
    assert turns.work("gone", 1) == 0
    assert turns.work("b", 1) == 0
    count = 0
    while not turns.work("b", 1):
        turns.turn()
        count += 1
    assert 1 <= count < 20


def test_nobody_is_asked_for_turns_while_there_is_nothing_to_do():
    turns = Turns()
    turns.work("a", 1)
    turns.turn()
    assert not turns.is_awaited


def test_without_turns_there_is_no_bound():
    turns = Turns()
    turns.time.next_turn = None
    assert turns.work("a", 1000) == 1000


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_all_that_come_again_are_served(wanted: list[int]):
    turns = Turns()
    left = dict(enumerate(wanted))
    for _ in range(20 * sum(wanted)):
        before_s = turns.now_s
        for who in list(left):
            left[who] -= turns.work(who, left[who])
            if not left[who]:
                del left[who]
        assert turns.now_s - before_s < SHARE_S + STEP_S
        turns.turn()
    assert not left


def test_the_clock_is_not_asked_for_little_work():
    turns = Turns()
    asked = 0

    def clock_s() -> float:
        nonlocal asked
        asked += 1
        return 0.0

    turns.time.clock_s = clock_s
    share = turns.time.share("a")
    for _ in range(50):
        assert share.has_time
        share.did(evaluation_us(0.5, 0))
    share.end()
    assert asked == 2


def test_selectors_of_many_clients_are_compiled_over_some_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare_parser()
    compiled: list[str] = []
    turns: list[int] = []

    async def scenario() -> None:
        time = TurnTime()
        now_s = 0.0

        def compile_one(text: str) -> None:
            nonlocal now_s
            now_s += STEP_S
            compiled.append(text)

        monkeypatch.setattr(f"{compile_in_time.__module__}.compile_selector", compile_one)
        time.clock_s = lambda: now_s
        loop = asyncio.get_running_loop()

        def next_turn(act: Callable[[], None]) -> None:
            turns.append(len(compiled))
            loop.call_soon(act)

        time.next_turn = next_turn
        await asyncio.gather(*(compile_in_time(f"a = {number}", time) for number in range(21)))

    product_loop.run(scenario())
    assert compiled == [f"a = {number}" for number in range(21)], "in the order in which they came"
    most = max(after - before for before, after in itertools.pairwise(turns))
    assert most <= 4, "a turn has time for so many"


def test_what_fails_takes_its_time_as_well() -> None:
    turns = Turns()

    def fail() -> None:
        turns.now_s += SHARE_S
        raise ValueError("too costly")

    with pytest.raises(ValueError, match="too costly"):
        product_loop.run(turns.time.run(fail))
    assert not turns.work("b", 1)


def test_a_stint_goes_on_in_later_turns_and_what_it_waits_for_takes_no_time() -> None:
    turns = Turns()
    ends: list[float] = []

    async def scenario() -> None:
        stint = Stint(turns.time)
        for _ in range(9):
            await stint.time()
            turns.now_s += STEP_S
            stint.did(1e6)
            ends.append(turns.now_s)
        stint.end()
        turns.now_s += 100 * SHARE_S  # as long as it waits for something else
        stint.did(1e6)
        await stint.time()
        stint.end()

    work = scenario()
    counts: list[int] = []
    while next(work.__await__(), turns) is None:  # it waits for the next turn
        counts.append(len(ends))
        turns.turn()
    assert counts == [4, 8]
    assert len(ends) == 9
