"""The search for messages of raised priority, wherever in a queue they stand.

Owns how far the search for each priority is. Must never look itself: `examined` does, level by
level, so that the first of what was found is always the first of all. Owner: the event loop.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.engine.lanes import RAISED_PRIORITY

_LEVELS: Final = range(9, RAISED_PRIORITY - 1, -1)


class RaisedSearch:
    """See the module's docstring.

    Attributes:
        cursors: Next sequence to look at, by priority, the highest one first.
    """

    __slots__ = ("cursors",)

    def __init__(self) -> None:
        self.cursors = dict.fromkeys(_LEVELS, 0)

    def reset(self) -> None:
        """Search again from the queue's head."""
        self.cursors = dict.fromkeys(_LEVELS, 0)

    def level(self, looked: int, available: int) -> int:
        """Return the highest priority that was not searched for everywhere; 0: there is none.

        Args:
            looked: In front of this sequence every message was looked at.
            available: The end of the queue.
        """
        for level, at in self.cursors.items():
            if max(at, looked) < available:
                self.cursors[level] = max(at, looked)
                return level
        return 0
