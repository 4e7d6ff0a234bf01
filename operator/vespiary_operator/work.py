"""The queue of resources to look at.

Owns: which keys wait, for how long, and which are being worked on. A key waits once, however many
events name it, and is never worked on twice at a time.
Never: knows what a key stands for. Called by: `reconciler`, `handlers` (from another thread).
"""

from __future__ import annotations

import asyncio
import heapq
from typing import NamedTuple

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0

GATHER_S = 0.1
"""An event waits so long for others of the same resource: a pass answers them all."""


class Key(NamedTuple):
    """A resource.

    Attributes:
        kind: Name of its kind.
        namespace: Its namespace; empty for a cluster-wide one.
        name: Its name.
    """

    kind: str
    namespace: str
    name: str


class Backlog(NamedTuple):
    """What waits to be looked at.

    Attributes:
        waiting: Keys whose time has come and that nobody works on.
        oldest_s: Seconds that the oldest of them waits, or that one has been worked on; 0 for none.
    """

    waiting: int
    oldest_s: float


class WorkQueue:
    """Keys, each with the time from which on it may be taken.

    Owned by the main loop; only `add_threadsafe` may be called from elsewhere.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._active: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def backlog(self) -> Backlog:
        """Return what waits now; keys that are to be looked at later do not count."""
        now_s = self._loop.time()
        late_s = [now_s - due for key, due in self._due.items() if key not in self._active]
        late_s = [age for age in late_s if age >= 0]
        busy_s = (now_s - since for since in self._active.values())
        return Backlog(len(late_s), max((*late_s, *busy_s), default=0.0))

    def add(self, key: Key, *, after_s: float = 0.0) -> None:
        """Let a key wait; if it waits already, the earlier time holds.

        Args:
            key: The resource.
            after_s: Seconds until it may be taken, 0 or more.
        """
        due = self._loop.time() + after_s
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        self._changed.set()

    def add_threadsafe(self, key: Key, after_s: float = 0.0) -> None:
        """Let a key wait, long enough to gather other events of it; from any thread."""
        wait_s = max(after_s, GATHER_S)
        self._loop.call_soon_threadsafe(lambda: self.add(key, after_s=wait_s))

    async def take(self) -> Key:
        """Return the next key that is due and not worked on; it has to be given back."""
        while True:
            pause_s = None
            held = []
            found = None
            while self._heap:
                due, key = self._heap[0]
                if self._due.get(key) != due:
                    heapq.heappop(self._heap)
                    continue
                if key in self._active:
                    held.append(heapq.heappop(self._heap))
                    continue
                pause_s = due - self._loop.time()
                if pause_s <= 0:
                    heapq.heappop(self._heap)
                    del self._due[key]
                    found = key
                break
            for entry in held:
                heapq.heappush(self._heap, entry)
            if found is not None:
                self._active[found] = self._loop.time()
                return found
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), pause_s)
            except TimeoutError:
                continue

    def done(self, key: Key) -> None:
        """Give a key back after it was worked on well."""
        self._failures.pop(key, None)
        self._give_back(key)

    def progressed(self, key: Key) -> None:
        """Let the next failure of a key count as its first: it did not fail at the same place."""
        self._failures.pop(key, None)

    def failed(self, key: Key, *, at_least_s: float = 0.0) -> float:
        """Give a key back to be tried again, later each time.

        Args:
            key: The resource.
            at_least_s: Seconds that have to pass in any case.

        Returns:
            Seconds until the next try.
        """
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        backoff_s: float = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(count, 10))
        after_s = max(at_least_s, backoff_s)
        self._give_back(key)
        self.add(key, after_s=after_s)
        return after_s

    def _give_back(self, key: Key) -> None:
        self._active.pop(key, None)
        self._changed.set()
