"""The contract of `abc_switching.CoreSwitching` over the C core (native/src/stomp_switch.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vespiary_native.answers import check
from vespiary_native.inspection import look_at
from vespiary_native.loader import lib
from vespiary_native.values import ScanStatus
from vespiary_native.values_inspection import MessageView

SCAN_STATUS: Final = [*ScanStatus]


class NativeSwitching:
    """See `abc_switching.CoreSwitching`."""

    _core: Any
    _frames: Any
    _look: Any
    _result: Any

    def open_switch(self) -> int:
        """See `CoreSwitching.open_switch`."""
        return check(lib.vespiary_core_open_switch(self._core), "open_switch")

    def switched(self) -> list[MessageView]:
        """See `CoreSwitching.switched`."""
        out, data = self._look, self._frames
        count = check(lib.vespiary_core_switched(self._core, out, data), "switched")
        return look_at(out, data, count).messages

    def send_switched(self, routes: Sequence[int]) -> tuple[ScanStatus, int, int]:
        """See `CoreSwitching.send_switched`.

        Durability: durable with the block that is filling.
        """
        out = self._result
        bad = lib.vespiary_core_send_switched(self._core, list(routes), len(routes), out)
        check(bad, f"send_switched({len(routes)} routes)")
        return SCAN_STATUS[out.status], out.position, out.detail
