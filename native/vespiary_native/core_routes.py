"""The contract of `abc_routes.CoreRoutes` over the C core (native/src/core.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any

from vespiary_native.answers import check
from vespiary_native.loader import ffi, lib

_BATCH = 256


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

    def withhold(self, route: int, queues: int) -> None:
        """See `CoreRoutes.withhold`."""
        check(lib.vespiary_core_withhold(self._core, route, queues), f"withhold({route})")

    def withheld(self) -> int:
        """See `CoreRoutes.withheld`."""
        return int(lib.vespiary_core_withheld(self._core))

    def close_route(self, route: int) -> None:
        """See `CoreRoutes.close_route`."""
        check(lib.vespiary_core_close_route(self._core, route), "close_route")

    def take_unrouted(self) -> list[tuple[int, int]]:
        """See `CoreRoutes.take_unrouted`."""
        found: list[tuple[int, int]] = []
        out = ffi.new("vespiary_unrouted[]", _BATCH)
        while count := lib.vespiary_core_take_unrouted(self._core, out, _BATCH):
            found.extend((out[i].route, out[i].messages) for i in range(count))
        return sorted(found)
