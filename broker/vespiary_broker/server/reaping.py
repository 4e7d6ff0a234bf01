"""The timers of scans: one every period, one step a turn of the loop.

Owns the timers of automatic deletion, of slow consumers, of rates and stalls. Must never decide
anything: the engine's `Reaper`, `SlowConsumers` and `StallWatch` do. Called by `cycle`; owner: the
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

from vespiary_broker.server.deadline import Deadline


class Scanner(Protocol):
    """What scans in steps.

    Attributes:
        period_s: Seconds between two scans; 0 or less: never.
    """

    period_s: float

    def scan(self) -> Iterator[int]:
        """Look at everything once; yield after each step how much has gone in it."""


class Reaping:
    """Runs the scans, each after a read: a slow consumer may have acknowledged during a pause.

    Args:
        reaper: What scans.
        loop: The event loop.
        touch: Called when something has gone.
    """

    def __init__(
        self,
        reaper: Scanner,
        loop: asyncio.AbstractEventLoop,
        touch: Callable[[], None],
    ) -> None:
        self._reaper = reaper
        self._loop = loop
        self._touch = touch
        self._timer: asyncio.Handle | Deadline | None = None

    def start(self) -> None:
        """Begin: the first scan comes after one period."""
        if self._reaper.period_s > 0:
            self._timer = Deadline(self._loop, self._reaper.period_s, self._begin)

    def begin_again(self) -> None:
        """Begin anew: the period may be another one."""
        self.close()
        self.start()

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, _now_s: float) -> None:
        self._step(self._reaper.scan())

    def _step(self, scan: Iterator[int]) -> None:
        gone = next(scan, None)
        if gone is None:
            self.start()
            return
        if gone:
            self._touch()
        self._timer = self._loop.call_soon(self._step, scan)
