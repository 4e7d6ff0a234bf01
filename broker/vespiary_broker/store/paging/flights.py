"""Pages on their way: one is filled while those in front of it are written.

Owns how many pages are on their way (`FlightRoom`, of all addresses), which ones of an address, in
order (`Flight`), and which addresses have their turn when very many page (`MoveTurns`). Must never
touch a file or a queue: `moving` does. Called by `pager`, on the event loop.

A page takes memory of the image from its first message until the journal names it. So the bound is
one of memory, beside `page-max-concurrent-io`; a page may always go when no other one does.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

RANKED_MAX: Final = 64
"""Addresses, of those that wait longest, of which the one that holds most goes first."""
PASSED_OVER_MAX: Final = 4
"""So often a smaller address lets larger ones go first."""


MOVES_MAX: Final = 256
"""Addresses that are moved at a time: each costs a task, and ten thousand may have too much."""


class MoveTurns:
    """Which addresses are moved next, of those that have too much. Owner: the event loop.

    Those that hold most go first, and each has its turn before one goes again: much of what an
    address holds may be what consumers have, which cannot be moved.
    """

    def __init__(self) -> None:
        self._had: set[str] = set()

    def forget(self, name: str) -> None:
        """Have an address be one that had no turn: it began to have too much, or is gone."""
        self._had.discard(name)

    def take(self, held_bytes: Mapping[str, int], free: int) -> list[str]:
        """Return the addresses that have their turn now.

        Args:
            held_bytes: What each of those that wait holds in memory.
            free: How many may begin.
        """
        if free <= 0:
            return []
        waiting = held_bytes.keys() - self._had
        if not waiting:
            self._had.clear()
            waiting = set(held_bytes)
        chosen = heapq.nlargest(free, waiting, key=lambda name: (held_bytes[name], name))
        self._had.update(chosen)
        return chosen


@dataclass(slots=True)
class _Waiter:
    size_bytes: int
    held_bytes: Callable[[], int]
    granted: asyncio.Future[None]
    passed_over: int = 0


class FlightRoom:
    """How many pages may be on their way. Owner: the event loop.

    The address that holds most goes first: when all together are full, its page helps most, and the
    small ones may never have to.

    Args:
        pages_max: Pages, 1 or more.
        bytes_max: What they may take together; one may go whatever it takes.
    """

    def __init__(self, pages_max: int, bytes_max: int) -> None:
        self._pages_max = pages_max
        self._bytes_max = bytes_max
        self._pages = self._bytes = 0
        self._waiting: list[_Waiter] = []

    async def take(self, size_bytes: int, held_bytes: Callable[[], int]) -> None:
        """Wait until a page may begin; `give` follows.

        Args:
            size_bytes: What it takes.
            held_bytes: Says what its address holds in memory.
        """
        if not self._waiting and self._fits(size_bytes):
            self._begin(size_bytes)
            return
        waiter = _Waiter(size_bytes, held_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:
                self.give(size_bytes)
            raise

    def give(self, size_bytes: int) -> None:
        """A page has ended, however it did."""
        self._pages -= 1
        self._bytes -= size_bytes
        while self._waiting:
            ranked = self._waiting[:RANKED_MAX]
            first = max(ranked, key=_rank)
            if not self._fits(first.size_bytes):
                return
            self._waiting.remove(first)
            for other in ranked:
                other.passed_over += other is not first
            self._begin(first.size_bytes)
            first.granted.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        is_room = self._pages < self._pages_max and self._bytes + size_bytes <= self._bytes_max
        return is_room or not self._pages

    def _begin(self, size_bytes: int) -> None:
        self._pages += 1
        self._bytes += size_bytes


def _rank(waiter: _Waiter) -> tuple[int, int]:
    """Those that were passed over too often go first, in the order in which they came."""
    is_late = waiter.passed_over >= PASSED_OVER_MAX
    return is_late, 0 if is_late else waiter.held_bytes()


@dataclass(slots=True)
class Flight:
    """Pages of one address on their way, in the order of their messages.

    Attributes:
        tasks: What writes and names them, and the bytes that each copied; the oldest first.
    """

    tasks: dict[asyncio.Task[None], int] = field(default_factory=dict)

    @property
    def copied_bytes(self) -> int:
        """What they have copied: it is still counted as held, and leaves when they are named."""
        return sum(self.tasks.values())

    @property
    def latest(self) -> asyncio.Task[None] | None:
        """The page that the next one must not be named before."""
        return next(reversed(self.tasks), None)

    def add(self, work: Coroutine[Any, Any, None], copied_bytes: int) -> None:
        """Begin to write and name a page."""
        task = asyncio.get_running_loop().create_task(work, name="write-page")
        self.tasks[task] = copied_bytes
        task.add_done_callback(self.tasks.pop)

    async def wait_one(self) -> None:
        """Wait until one of them has ended."""
        if self.tasks:
            await asyncio.wait(list(self.tasks), return_when=asyncio.FIRST_COMPLETED)

    async def wait_all(self) -> None:
        """Wait until all of them have ended, also when the waiting is cancelled."""
        try:
            while self.tasks:
                await asyncio.wait(list(self.tasks))
        except asyncio.CancelledError:
            while self.tasks:
                await asyncio.wait(list(self.tasks))
            raise
