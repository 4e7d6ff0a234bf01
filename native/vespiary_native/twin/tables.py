"""What all parts of `TwinCore` look things up in.

Owns the tables of queues, consumers and connections, and the checks of their handles. Never changes
what is in them. Base of `TwinCore` and of its mix-ins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vespiary_native.twin.staging import Staging
    from vespiary_native.twin.state import Connection, Consumer, Queue, Route
    from vespiary_native.twin.switching import Switched


def free_handle(table: Mapping[int, object]) -> int:
    """Return the lowest number that is no handle; handles are used again."""
    return next(handle for handle in range(len(table) + 1) if handle not in table)


class Tables:
    """The journal's end, and what is known by number.

    Args:
        staging: The journal's end.
    """

    _switched: Switched

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._image = staging.image
        self._blocks = staging.blocks
        self._queues: dict[int, Queue] = {}
        self._consumers: dict[int, Consumer] = {}
        self._routes: dict[int, Route] = {}
        self._connections: dict[int, Connection] = {}
        self._buffers: dict[int, memoryview] = {}

    def _connection(self, handle: int) -> Connection:
        connection = self._connections.get(handle)
        if connection is None or not connection.is_open:
            raise ValueError(f"connection {handle} is not open")
        return connection

    def _buffer(self, handle: int) -> memoryview:
        view = self._buffers.get(handle)
        if view is None:
            raise ValueError(f"buffer {handle} is not attached")
        return view

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

    def _route(self, handle: int) -> Route:
        route = self._routes.get(handle)
        if route is None:
            raise ValueError(f"route {handle} is not open")
        return route

    def _queues_route(self, handle: int) -> Route:
        route = self._route(handle)
        if route.is_switch:
            raise ValueError(f"route {handle} is a switch, and has no queues")
        return route

    def _check_transaction(self, transaction: int) -> None:
        if transaction != self._staging.transaction:
            raise ValueError(
                f"transaction {transaction or 'none'} was named while"
                f" {self._staging.transaction or 'none'} is being staged"
            )
