"""Routes: the calls of `abc_routes.CoreRoutes`.

Owns nothing: a mix-in of `TwinCore`, over its tables.
"""

from __future__ import annotations

from vespiary_native.twin.state import Queue, Route
from vespiary_native.twin.tables import Tables, free_handle


class Routes(Tables):
    """The calls; base class of `TwinCore`."""

    def _route_queues(self, queue_ids: list[int]) -> list[Queue]:
        if len(set(queue_ids)) != len(queue_ids):
            raise ValueError(f"a route names a queue twice: {queue_ids}")
        return [self._queue(queue_id) for queue_id in queue_ids]

    def open_route(self, queue_ids: list[int]) -> int:
        """See `CoreRoutes.open_route`."""
        queues = self._route_queues(queue_ids)
        handle = free_handle(self._routes)
        self._routes[handle] = Route(handle, queues)
        return handle

    def set_route(self, route: int, queue_ids: list[int]) -> None:
        """See `CoreRoutes.set_route`."""
        self._queues_route(route).set(self._route_queues(queue_ids))

    def extend_route(self, route: int, queue_id: int) -> bool:
        """See `CoreRoutes.extend_route`."""
        known, queue = self._queues_route(route), self._queue(queue_id)
        if queue in known.queues:
            return False
        known.set([*known.queues, queue])
        return True

    def withhold(self, route: int, queues: int) -> None:
        """See `CoreRoutes.withhold`."""
        self._queues_route(route).withheld = queues

    def withheld(self) -> int:
        """See `CoreRoutes.withheld`."""
        return self._staging.withheld

    def close_route(self, route: int) -> None:
        """See `CoreRoutes.close_route`."""
        self._route(route).is_open = False
        del self._routes[route]

    def take_unrouted(self) -> list[tuple[int, int]]:
        """See `CoreRoutes.take_unrouted`."""
        found = []
        for handle, route in sorted(self._routes.items()):
            if route.unrouted:
                found.append((handle, route.unrouted))
                route.unrouted = 0
        return found
