"""How much the index of an examined queue may hold.

Owns the numbers and where they come from: what the pager says, what stands in pages, how many lanes
there are. Must never look at what is held: `examined` does. Owner: the event loop.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.engine.lanes import OWNED_FACTOR

_PAGED_KEYS_MAX: Final = 256
"""As many while some stand in pages, until the pager says how many there is memory for."""
_LANE_KEYS_MIN: Final = 64


class IndexBounds:
    """See the module's docstring.

    What the pager has said holds until nothing stands in pages any more, also when there is enough
    memory again: else what comes out of them would fill it.

    Attributes:
        keys: Messages that one lane may hold before it looks no further.
        owned: Messages that may wait for the owners of groups before a lane looks no further.

    Args:
        most: Messages that all lanes of a queue may hold together.
    """

    __slots__ = ("_is_tight", "_most", "_told", "keys", "owned")

    def __init__(self, most: int) -> None:
        self._most = most
        self._told: int | None = None
        self._is_tight = False
        self.keys = most
        self.owned = OWNED_FACTOR * most

    def tell(self, messages: int) -> bool:
        """Take note of how many messages there is memory for; return whether that is new.

        Args:
            messages: How many; as many as the queue may hold, or more: there is enough.
        """
        if messages >= self._most:
            is_new, self._is_tight = self._is_tight, False
            return is_new
        is_new = not self._is_tight or messages != self._told
        self._is_tight, self._told = True, messages
        return is_new

    def refresh(self, lanes: int, *, has_pages: bool) -> None:
        """Bound anew.

        Args:
            lanes: How many there are.
            has_pages: Whether some of the queue stands in closed pages.
        """
        most = self._most
        if self._is_tight or (has_pages and self._told is not None):
            assert self._told is not None, "it is tight since it was told"
            most = self._told
        elif has_pages:
            most = min(most, _PAGED_KEYS_MAX)
        else:
            self._told = None
        self.keys = max(_LANE_KEYS_MIN, most // max(1, lanes))
        # What is bounded for the memory's sake is not held for owners that take none either.
        self.owned = self.keys * (1 if most < self._most else OWNED_FACTOR)
