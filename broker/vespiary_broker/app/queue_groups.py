"""Message groups of a queue, to be looked at and to be told apart from their consumers.

Owns what an administrator sees and does. Must never decide who gets a group: `engine.examined`
does. Called by the HTTP API; owner: the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vespiary_codec.wire.stomp.escapes import unescape
from vespiary_spec.errors import RemoteProtocolError

if TYPE_CHECKING:
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.groups import Group
    from vespiary_broker.engine.queues import Consumer, Queue
    from vespiary_broker.server.cycle import Cycle


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOwner:
    """A group, or a bucket of groups, and the consumer that it belongs to.

    Attributes:
        group: The group's id, `JMSXGroupID`; empty for a bucket.
        bucket: Number of the bucket that groups share; None for a group of its own.
        connection: Number of the consumer's connection.
        subscription: Id that the client gave the consumer.
    """

    group: str
    bucket: int | None
    connection: int
    subscription: str


class QueueGroups:
    """The groups of queues.

    Args:
        engine: The engine.
        cycle: Has the work of a turn done.
    """

    def __init__(self, engine: Engine, cycle: Cycle) -> None:
        self._engine = engine
        self._cycle = cycle

    def owners(self, name: str, *, start: int, limit: int) -> list[GroupOwner]:
        """Return groups of a queue that belong to consumers, in the order in which they began.

        Args:
            name: Name of the queue.
            start: How many to pass over, 0 or more.
            limit: Most of them.

        Raises:
            RemoteProtocolError: There is no such queue.
        """
        queue = self._queue(name)
        if queue.examined is None:
            return []
        return [_owner(*pair) for pair in queue.examined.groups.owned(start, limit)]

    def release(self, name: str) -> int:
        """Let all groups of a queue find their consumers anew; return how many had one.

        What consumers hold stays with them.

        Raises:
            RemoteProtocolError: There is no such queue.
        """
        queue = self._queue(name)
        if queue.examined is None:
            return 0
        count = len(queue.examined.groups)
        queue.examined.rebalance()
        self._engine.dispatcher.poke(queue.id)
        self._cycle.touch()
        return count

    def _queue(self, name: str) -> Queue:
        queue = self._engine.registry.queues.get(name)
        if queue is None:
            raise RemoteProtocolError(f"there is no queue {name}")
        return queue


def _owner(group: Group, consumer: Consumer) -> GroupOwner:
    return GroupOwner(
        group="" if isinstance(group, int) else unescape(group.decode(), "1.2"),
        bucket=group if isinstance(group, int) else None,
        connection=consumer.output.handle,
        subscription=consumer.subscription,
    )
