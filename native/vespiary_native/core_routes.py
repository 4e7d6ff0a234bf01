"""The contract of `abc_routes.CoreRoutes` over the C core (native/src/core.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any

from vespiary_native.answers import check
from vespiary_native.loader import lib


class NativeRoutes:
    """See `abc_routes.CoreRoutes`."""

    _core: Any

    def open_route(self, queue_ids: list[int]) -> int:
        """See `CoreRoutes.open_route`."""
        return check(
            lib.vespiary_core_open_route(self._core, queue_ids, len(queue_ids)), "open_route"
        )

    def set_route(self, route: int, queue_ids: list[int]) -> None:
        """See `CoreRoutes.set_route`."""
        check(
            lib.vespiary_core_set_route(self._core, route, queue_ids, len(queue_ids)), "set_route"
        )

    def extend_route(self, route: int, queue_id: int) -> bool:
        """See `CoreRoutes.extend_route`."""
        added = lib.vespiary_core_extend_route(self._core, route, queue_id)
        return bool(check(added, f"extend_route({route}, {queue_id})"))

    def close_route(self, route: int) -> None:
        """See `CoreRoutes.close_route`."""
        check(lib.vespiary_core_close_route(self._core, route), "close_route")
