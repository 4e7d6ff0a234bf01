"""An event loop whose clock stands still while there is work and jumps when there is none.

Timers fire in their order and nothing waits, so a workload with sleeps runs as fast as it computes
and, given a seed, does the same steps in the same order every time. The clock also stands still
while a thread does what `run_in_executor` gave it, so no time-out passes because a thread is slow.
Must be used only where all else that is waited for comes from the loop itself: timers, and
descriptors that are ready when they are looked at (a `MemoryRing`'s).

It is asyncio's own loop, not the product's (`product_loop`): uvloop's clock and its selector are in
C, and neither can be replaced. So it must not run code whose sockets or transports are tested.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

LIMIT_S = 600.0
"""Virtual seconds, many more than any workload sleeps."""
_TICK_S = 1e-9
"""What the clock moves on by at least."""


class _PollingSelector(selectors.DefaultSelector):
    """Looks at the descriptors and, if none is ready, moves the loop's clock to its next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.jobs = 0  # of threads, which wake the loop when they are done

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is None or self.jobs:  # a thread has to wake the loop
            return super().select(5.0)
        self.now_s += max(timeout, _TICK_S)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual seconds, starting at 0."""

    def __init__(self) -> None:
        self._polling = _PollingSelector()
        super().__init__(self._polling)

    def time(self) -> float:
        return self._polling.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Have a thread do some work; the clock waits for it."""
        future = super().run_in_executor(executor, func, *args)
        if executor is None or isinstance(executor, ThreadPoolExecutor):
            self._polling.jobs += 1
            future.add_done_callback(self._forget_job)
        return future

    def _forget_job(self, _: asyncio.Future[Any]) -> None:
        self._polling.jobs -= 1

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule a call; a delay too small for the clock to show would never move it on."""
        least = _TICK_S if delay > 0 else delay
        return super().call_later(max(delay, least), callback, *args, context=context)


async def _watched(main: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Await a coroutine; end it at the first callback that raises, or when it comes to no end."""
    task = asyncio.ensure_future(main)
    raised: list[BaseException] = []

    def note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if "handle" in context and "exception" in context:
            raised.append(context["exception"])
            task.cancel()

    asyncio.get_running_loop().set_exception_handler(note)
    try:
        async with asyncio.timeout(limit_s):
            return await task
    except (asyncio.CancelledError, TimeoutError) as error:
        if raised:
            raise raised[0] from error
        raise


def run_virtual(main: Coroutine[Any, Any, T], *, limit_s: float = LIMIT_S) -> T:
    """Run a coroutine to its end on a `VirtualTimeLoop` of its own.

    Args:
        main: The coroutine.
        limit_s: Virtual seconds until it has to be done. Tasks that look at something now and then
            go on for ever, and as fast as they can, when what `main` waits for does not come.

    Raises:
        TimeoutError: It is not done by then.
        Exception: What `main` raises, or a callback of the loop.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(_watched(main, limit_s))
