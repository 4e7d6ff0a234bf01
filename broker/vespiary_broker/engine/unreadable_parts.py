"""Parts of journal files and pages whose bytes do not verify any more.

Owns which they are, for all who look at messages by themselves (`expiry`, `moves`, `schedule`):
such a part is passed over, since it will not come. What stands there is live and stays. Must never
read anything. Filled by `fates`, from what the application's loader says; owner: the event loop.
"""

from __future__ import annotations


class UnreadableParts:
    """Places of slabs, as `Look.absent` names them: (file id, slab index)."""

    def __init__(self) -> None:
        self._places: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, place: object) -> bool:
        return place in self._places

    def add(self, place: tuple[int, int]) -> bool:
        """Note a part; return whether it is new."""
        is_new = place not in self._places
        self._places.add(place)
        return is_new
