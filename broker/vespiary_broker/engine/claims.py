"""Messages that transactions acknowledge which have not ended: held still, and asked for no more.

Owns how many of a consumer's messages that are. Until the commit the core has them as held by the
consumer, but whoever waits until consumers acknowledge (`store.paging` before it opens another
page) must not wait for these: the rest of the transaction may stand in that page. Must never take
part in a commit. `transactions` says what comes and goes; owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.engine.core import AckMode, Core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vespiary_broker.engine.queues import Consumer


class Claims:
    """What one transaction acknowledges, or gives back, by consumer.

    Of a consumer in mode CLIENT the last message, which stands for all before it; else how many.
    """

    __slots__ = ("_by_consumer",)

    def __init__(self) -> None:
        self._by_consumer: dict[Consumer, int] = {}

    def add(self, consumer: Consumer, sequence: int) -> None:
        """Note an acknowledgement.

        Args:
            consumer: Whose.
            sequence: The message.
        """
        if consumer.view is None:
            self._note(consumer, sequence if consumer.mode is AckMode.CLIENT else 1)

    def join(self, other: Claims) -> None:
        """Take over what another transaction had."""
        for consumer, value in other.release().items():
            self._note(consumer, value)

    def release(self) -> dict[Consumer, int]:
        """Forget all: the transaction is staged, or void; return what there was."""
        released, self._by_consumer = self._by_consumer, {}
        for consumer in released:
            consumer.claims.pop(self, None)
        return released

    def _note(self, consumer: Consumer, value: int) -> None:
        before = self._by_consumer.get(consumer, 0)
        now = max(before, value) if consumer.mode is AckMode.CLIENT else before + value
        self._by_consumer[consumer] = consumer.claims[self] = now


def claimed_messages(core: Core, consumers: Iterable[Consumer]) -> int:
    """Return how many of the messages that consumers hold open transactions acknowledge."""
    count = 0
    for consumer in consumers:
        if not consumer.claims or not consumer.is_open:
            continue
        if consumer.mode is AckMode.CLIENT:
            count += len(core.held(consumer.handle, max(consumer.claims.values())))
        else:
            count += min(sum(consumer.claims.values()), core.held_count(consumer.handle))
    return count
