"""The event loop that the broker's programs run on: uvloop.

Owns the choice of the loop. Everything that runs the broker's code, tests and benchmarks included,
gets its loop here: uvloop's transports are no `asyncio.Transport`, and its timers, pauses and ends
of connections differ from those of asyncio's own loop, which therefore hides faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def make_runner() -> asyncio.Runner:
    """Return a runner with a new event loop."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a new event loop, and return its result."""
    with make_runner() as runner:
        return runner.run(main)
