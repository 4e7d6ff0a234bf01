"""The contract of `abc_counts.CoreCounts` over the C core (native/src/counts.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any, Final

from vespiary_native.answers import check
from vespiary_native.loader import lib

_ALL: Final = 2**32 - 1


class NativeCounts:
    """See `abc_counts.CoreCounts`."""

    _core: Any

    def count_deliveries(self, *, ahead: bool, records_max: int | None) -> None:
        """See `CoreCounts.count_deliveries`."""
        most = _ALL if records_max is None else records_max
        lib.vespiary_core_count_deliveries(self._core, ahead, most)

    def limit_deliveries(self, queue_id: int, attempts: int) -> None:
        """See `CoreCounts.limit_deliveries`."""
        bad = lib.vespiary_core_limit_deliveries(self._core, queue_id, attempts)
        check(bad, f"limit_deliveries {queue_id}")

    def output_waiting(self, connection: int) -> int:
        """See `CoreCounts.output_waiting`."""
        found = lib.vespiary_core_output_waiting(self._core, connection)
        return check(found, f"output_waiting {connection}")
