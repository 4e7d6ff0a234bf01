"""How many lines the log has about what clients do: never more than people read.

Owns the counts of one kind of event; the metrics count all of them. Must never log what happened:
the caller does. Owner: the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

PERIOD_S: Final = 60.0
LINES_PER_PERIOD: Final = 20
KINDS_MAX: Final = 1000
"""Kinds of lines that are remembered in a period."""


class LineLimit:
    """Says which lines are logged.

    In a period each kind has one line, and the lines of all kinds are limited. The next period
    begins with how many had none.

    Args:
        tell: Logs for a listener how many lines the last period has left out.
    """

    def __init__(self, tell: Callable[[str, int], None]) -> None:
        self._tell = tell
        self._since_s = float("-inf")
        self._lines = 0
        self._silent: Counter[str] = Counter()
        self._seen: set[Hashable] = set()

    @property
    def kinds_count(self) -> int:
        """Kinds that are remembered now."""
        return len(self._seen)

    def admits(self, kind: Hashable, *, listener: str, now_s: float) -> bool:
        """Return whether an event has a line; one that has none is counted.

        Args:
            kind: What makes two events alike.
            listener: Name of the acceptor, or `http`.
            now_s: A monotonic clock, in seconds.
        """
        if now_s - self._since_s >= PERIOD_S:
            self._begin(now_s)
        is_known = kind in self._seen
        if len(self._seen) < KINDS_MAX:
            self._seen.add(kind)
        if is_known or self._lines >= LINES_PER_PERIOD:
            self._silent[listener] += 1
            return False
        self._lines += 1
        return True

    def _begin(self, now_s: float) -> None:
        """Begin a period, and say how many events of the last one had no line."""
        for listener, count in self._silent.items():
            self._tell(listener, count)
        self._since_s, self._lines = now_s, 0
        self._silent.clear()
        self._seen.clear()
