"""The rota of a queue: which of its consumers are served, and before which others.

Owns the rules of consumer priority, of exclusive consumers, and of how many consumers a queue waits
for. Must never give anything out: `dispatch` and `examined_giver` walk the tiers. A queue whose
consumers are all alike has one tier, and costs nothing of this. Owner: the event loop.

Consumers of a tier take turns. Those of a lower one get what no higher one takes now: it has no
credit, no room, or does not want it (the reference system's rule). An exclusive consumer is served
alone, and stays it until it closes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vespiary_broker.engine.queues import Consumer, Queue


class Rota:
    """Who of a queue's consumers is served.

    It does not refer to the queue, which has it: the two would be a cycle.

    Attributes:
        tiers: Consumers that are served, highest tier first; none while the queue waits for more.
        waits: How often it has begun to wait for consumers; tells a timer whether it is late.
        is_waiting: Whether it waits for consumers.
    """

    __slots__ = ("_exclusive", "_unlike", "is_waiting", "tiers", "waits")

    def __init__(self) -> None:
        self._exclusive: Consumer | None = None
        self._unlike = 0  # consumers with a priority, or that want to be alone
        self.tiers: list[list[Consumer]] = []
        self.waits = 0
        self.is_waiting = False

    def opened(self, consumer: Consumer) -> None:
        """Take note of a consumer that came; it stands in the queue's list."""
        self._unlike += consumer.is_exclusive or consumer.priority != 0
        self._changed(consumer.queue)

    def closed(self, consumer: Consumer) -> None:
        """Take note of a consumer that went; it is off the queue's list."""
        self._unlike -= consumer.is_exclusive or consumer.priority != 0
        if consumer is self._exclusive:
            self._exclusive = None
        self._changed(consumer.queue)

    def kind_changed(self, queue: Queue) -> None:
        """Note that the kind of its queue has changed; a wait for consumers starts again."""
        self.waits += self.is_waiting
        self._changed(queue)

    def begin(self, queue: Queue) -> None:
        """Have its queue wait no longer for more consumers."""
        self.is_waiting = False
        self._arrange(queue)

    def _changed(self, queue: Queue) -> None:
        count = len(queue.consumers)
        if not count or count >= queue.kind.consumers_before_dispatch:
            self.is_waiting = False
        elif not self.tiers and not self.is_waiting:
            self.is_waiting = True
            self.waits += 1
        self._arrange(queue)

    def _arrange(self, queue: Queue) -> None:
        consumers, kind = queue.consumers, queue.kind
        if self.is_waiting or not consumers:
            self.tiers = []
        elif not self._unlike and not kind.exclusive:
            self.tiers = [consumers]
        else:
            self.tiers = self._tiers_of(consumers, is_exclusive=kind.exclusive)

    def _tiers_of(self, consumers: list[Consumer], *, is_exclusive: bool) -> list[list[Consumer]]:
        alone = [consumer for consumer in consumers if consumer.is_exclusive]
        if alone or is_exclusive:
            chosen = self._exclusive
            if chosen is None or (alone and not chosen.is_exclusive):
                chosen = max(alone or consumers, key=lambda one: one.priority)
            self._exclusive = chosen
            return [[chosen]]
        self._exclusive = None
        priorities = sorted({consumer.priority for consumer in consumers}, reverse=True)
        return [[one for one in consumers if one.priority == level] for level in priorities]
