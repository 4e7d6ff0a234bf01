"""What all parts of `TwinCore` look things up in.

Owns the tables of queues and consumers, and the checks of their handles. Never changes what is in
them. Base of `TwinCore` and of its mix-ins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vespiary_native.twin.staging import Staging
    from vespiary_native.twin.state import Consumer, Queue


class Tables:
    """The journal's end, and what is known by number.

    Args:
        staging: The journal's end.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._image = staging.image
        self._blocks = staging.blocks
        self._queues: dict[int, Queue] = {}
        self._consumers: dict[int, Consumer] = {}

    def _queue(self, queue_id: int) -> Queue:
        queue = self._queues.get(queue_id)
        if queue is None:
            raise ValueError(f"queue {queue_id} is not open")
        return queue

    def _consumer(self, handle: int) -> Consumer:
        consumer = self._consumers.get(handle)
        if consumer is None:
            raise ValueError(f"consumer {handle} is not open")
        return consumer

    def _check_transaction(self, transaction: int) -> None:
        if transaction != self._staging.transaction:
            raise ValueError(
                f"transaction {transaction or 'none'} was named while"
                f" {self._staging.transaction or 'none'} is being staged"
            )
