"""The end of a start that was told to stop.

Owns how long such a start may still take. What waits for other brokers, for room or for a lease
ends when it is told to. What cannot (a disk that does not answer, a recovery of minutes, a name
that is looked up) is not waited for: the process ends, as `kill -9` would end it, which every start
can be ended by. Must never act once the broker has started: its end is an orderly one. Called by
`broker`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

GRACE_S: Final = 5.0
"""Time that a start has to end by itself."""

log = logging.getLogger(__name__)


class StartInterruption:
    """Ends the process if its start does not.

    Args:
        loop: The event loop.
        grace_s: Seconds that the start has once it was told to stop.
        end_process: Ends the process at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        grace_s: float = GRACE_S,
        end_process: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._grace_s = grace_s
        self._end_process = end_process or _end_process
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def ask(self) -> None:
        """Give the start its time; nothing happens once it is over, or was asked before."""
        if self._timer is None and not self._is_over:
            self._timer = self._loop.call_later(self._grace_s, self._end)

    def over(self) -> None:
        """Note that the start is over, however it went."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _end(self) -> None:
        """End the process.

        Durability: nothing was confirmed in this life; the next start recovers what this one read.
        """
        log.warning(
            "the start did not end within %g s of being told to stop, so the process ends now; "
            "nothing is lost, and the next start begins anew",
            self._grace_s,
        )
        self._end_process()


def _end_process() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            stream.flush()
    os._exit(0)  # threads that wait for a disk would keep an orderly end waiting as well
