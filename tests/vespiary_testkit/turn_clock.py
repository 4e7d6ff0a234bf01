"""Turns of the loop that a test makes, with a clock that what is done in them moves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from vespiary_broker.engine.turn_time import SHARE_S, TurnTime

STEP_S = 0.3 * SHARE_S
"""A turn has time for four steps of this length."""


class TurnClock:
    """See the module's docstring.

    Attributes:
        now_s: The clock.

    Args:
        turn_time: Goes by this clock and these turns from now on.
    """

    def __init__(self, turn_time: TurnTime) -> None:
        self.now_s = 0.0
        self._later: list[Callable[[], None]] = []
        turn_time.clock_s = lambda: self.now_s
        turn_time.next_turn = self._later.append

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the next turn."""
        return bool(self._later)

    def turn(self) -> None:
        """Begin the next turn."""
        later, self._later[:] = list(self._later), []
        for each in later:
            each()

    def slow(self, act: Callable[..., Any], step_s: float = STEP_S) -> Callable[..., Any]:
        """Return a function that does the same, and takes so long by the clock."""

        def slowly(*arguments: Any, **named: Any) -> Any:
            self.now_s += step_s
            return act(*arguments, **named)

        return slowly


class CountedTurns:
    """How much is done in each turn of a real loop, by a clock that each look at it moves.

    Attributes:
        done: What was done so far; the test counts.

    Args:
        turn_time: Goes by that clock from now on.
        step_s: Seconds between two looks at it.
    """

    def __init__(self, turn_time: TurnTime, step_s: float = 0.4 * SHARE_S) -> None:
        self.done = 0
        self._turns: list[int] = []
        turn_time.clock_s = itertools.count(0.0, step_s).__next__
        loop = asyncio.get_running_loop()

        def next_turn(act: Callable[[], None]) -> None:
            self._turns.append(self.done)
            loop.call_soon(act)

        turn_time.next_turn = next_turn

    def counted(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same, and is counted."""

        def act_counted(*arguments: Any, **named: Any) -> Any:
            self.done += 1
            return act(*arguments, **named)

        return act_counted

    @property
    def most(self) -> int:
        """How much was done in one turn at most."""
        counts = [0, *self._turns, self.done]
        return max(after - before for before, after in itertools.pairwise(counts))
