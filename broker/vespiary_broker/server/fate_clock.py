"""The one timer behind expiry, scheduled delivery and redelivery delays.

Owns the loop's timer, set for the earliest of all these times; what is due then, `engine.fates`
knows. Never sleeps longer than a second: the times are the wall clock's, and somebody may set that.
Called by `cycle`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from vespiary_broker.engine.fates import Fates

_LONGEST_S: Final = 1.0
_SHORTEST_S: Final = 0.001


class FateClock:
    """Wakes the cycle when something is due.

    Args:
        fates: Knows when.
        loop: The event loop.
        touch: Has the cycle do its work in the next turn.
    """

    def __init__(
        self, fates: Fates, loop: asyncio.AbstractEventLoop, touch: Callable[[], None]
    ) -> None:
        self._fates = fates
        self._loop = loop
        self._touch = touch
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def set(self) -> None:
        """Wake up when the next thing is due, as it looks now."""
        next_ms = self._fates.next_ms
        if next_ms is None or self._is_closed:
            return
        wait_s = max((next_ms - self._fates.clock_ms()) / 1000, _SHORTEST_S)
        at_s = self._loop.time() + min(wait_s, _LONGEST_S)
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._wake)

    def close(self) -> None:
        """Wake up no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        self._timer = None
        next_ms = self._fates.next_ms
        if next_ms is not None and next_ms <= self._fates.clock_ms():
            self._touch()
        else:
            self.set()
