"""Long work on the event loop, cut into turns: messages are served between any two of them.

Owns: how much one turn does, and the times that turns took. A turn is counted in operations and
not in time, so that its bound holds on every machine and is tested without a clock. Must never
know what the work is. Called by `compaction` and `keeper`; docs/internals/compaction.md has the
bounds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

from vespiary_broker.store.counters import Distribution, Histogram

T = TypeVar("T")

OPERATIONS_MAX = 4096
"""Looks at a file or at one of its dependences in one turn: about half a millisecond."""

BOUNDS_US = (50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 20_000, 50_000, 100_000)
"""Upper bounds of the buckets for the time of a turn; 10 ms is what the appender may wait."""

Work = Generator[None, None, T]
"""Work that yields wherever a turn may end."""


class Allowance:
    """Operations left in a turn.

    Args:
        operations: How many a turn has.
    """

    def __init__(self, operations: int = OPERATIONS_MAX) -> None:
        self._full = operations
        self._left = operations

    def spend(self, operations: int) -> bool:
        """Count operations that come next; return whether the turn has to end before them.

        What is larger than a whole turn has one of its own.
        """
        self._left -= operations
        if self._left >= 0 or self._left + operations == self._full:
            return False
        self._left = self._full - operations
        return True


class Turns:
    """Runs work in turns and measures them. Owner: the event loop's thread.

    Args:
        clock_ns: Nanoseconds.
    """

    def __init__(self, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock_ns = clock_ns
        self._times = Histogram(BOUNDS_US)
        self.longest_us = 0

    def distribution(self) -> Distribution:
        """Return the times of all turns, in microseconds."""
        return self._times.distribution()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Measure one turn: whatever stands in it must not wait."""
        begun_ns = self._clock_ns()
        try:
            yield
        finally:
            taken_us = (self._clock_ns() - begun_ns) // 1000
            self._times.add(taken_us)
            self.longest_us = max(self.longest_us, taken_us)

    async def finish(self, work: Work[T]) -> T:
        """Do all of some work, and let messages have their turn in between."""
        while True:
            with self.one():
                try:
                    next(work)
                except StopIteration as end:
                    result: T = end.value
                    return result
            await asyncio.sleep(0)
