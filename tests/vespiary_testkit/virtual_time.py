"""An event loop whose clock stands still while there is work and jumps when there is none.

Timers fire in their order and nothing waits, so a workload with sleeps runs as fast as it computes
and, given a seed, does the same steps in the same order every time. Must be used only where all
that is waited for comes from the loop itself: timers, and descriptors that are ready when they are
looked at (a `MemoryRing`'s).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _PollingSelector(selectors.DefaultSelector):
    """Looks at the descriptors and, if none is ready, moves the loop's clock to its next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is None:  # no timer: a thread has to wake the loop
            return super().select(5.0)
        self.now_s += max(timeout, 1e-9)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual seconds, starting at 0."""

    def __init__(self) -> None:
        self._polling = _PollingSelector()
        super().__init__(self._polling)

    def time(self) -> float:
        return self._polling.now_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a `VirtualTimeLoop` of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
