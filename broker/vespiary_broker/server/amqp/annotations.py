"""Message annotations that clients have changed, by message: in memory alone, and bounded.

Owns them, and who has to know whether a queue has any. Must never be asked for by message where
there are none. Written by `outcomes`, read by `sending`; owner: the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from vespiary_codec.wire.amqp import encode_value

MESSAGES_MAX: Final = 4096
BYTES_MAX: Final = 8 * 1024
Place = tuple[int, int]
"""Queue and sequence."""


class ChangedAnnotations:
    """What clients have changed. While a queue has some, Python encodes its messages for AMQP."""

    def __init__(self) -> None:
        self._changed: dict[Place, dict[Any, Any]] = {}
        self._queues: Counter[int] = Counter()
        self._watchers: dict[int, set[Callable[[], None]]] = {}

    def has_any_in(self, queue_id: int) -> bool:
        """Whether messages of a queue have some."""
        return queue_id in self._queues

    def of(self, place: Place) -> dict[Any, Any] | None:
        """Return those of a message; None: nobody has changed any."""
        return self._changed.get(place) if self._changed else None

    def note(self, place: Place, more: dict[Any, Any]) -> None:
        """Note annotations of a message beside those that it has; the oldest message goes.

        Those that are too large together are forgotten.
        """
        changed = (self._changed.get(place) or {}) | more
        self.forget(place)
        if len(encode_value(changed)) > BYTES_MAX:
            return
        self._changed[place] = changed
        self._queues[place[0]] += 1
        self._tell(place[0], is_first=self._queues[place[0]] == 1)
        if len(self._changed) > MESSAGES_MAX:
            self.forget(next(iter(self._changed)))

    def forget(self, place: Place) -> None:
        """Forget those of a message, if it has any."""
        if self._changed.pop(place, None) is None:
            return
        queue_id = place[0]
        self._queues[queue_id] -= 1
        if not self._queues[queue_id]:
            del self._queues[queue_id]
            self._tell(queue_id, is_first=True)

    def watch(self, queue_id: int, action: Callable[[], None]) -> None:
        """Have something called when `has_any_in` changes."""
        self._watchers.setdefault(queue_id, set()).add(action)

    def unwatch(self, queue_id: int, action: Callable[[], None]) -> None:
        """End that; nothing happens if it was not asked for."""
        watchers = self._watchers.get(queue_id)
        if watchers is not None:
            watchers.discard(action)
            if not watchers:
                del self._watchers[queue_id]

    def _tell(self, queue_id: int, *, is_first: bool) -> None:
        if is_first:
            for action in tuple(self._watchers.get(queue_id, ())):
                action()
