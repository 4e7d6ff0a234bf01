"""The contract of `abc_amqp.CoreAmqp` over the C core (native/src/amqp_scan.c, amqp_send.c).

Owns nothing: a mix-in of `NativeCore`, one call into C for each method.
"""

from __future__ import annotations

from typing import Any

from vespiary_native.abc_amqp import AmqpLimits
from vespiary_native.answers import check
from vespiary_native.core_switching import SCAN_STATUS
from vespiary_native.loader import lib


class NativeAmqp:
    """See `abc_amqp.CoreAmqp`."""

    _core: Any
    _result: Any

    def set_ready_amqp(self, connection: int, limits: AmqpLimits) -> None:
        """See `CoreAmqp.set_ready_amqp`."""
        check(lib.vespiary_core_set_ready_amqp(self._core, connection, *limits), "set_ready_amqp")

    def scan_amqp(self, connection: int, buffer: int, start: int, end: int) -> tuple[int, int, int]:
        """See `CoreAmqp.scan_amqp`.

        Durability: what was taken is durable with the block that is filling.
        """
        out = self._result
        bad = lib.vespiary_core_scan_amqp(self._core, connection, buffer, start, end, out)
        if bad:
            check(bad, "scan_amqp")
        return SCAN_STATUS[out.status], out.position, out.detail

    # --- sessions ---------------------------------------------------------------------------------
    def set_amqp_window(self, connection: int, channel: int, transfers: int) -> None:
        """See `CoreAmqp.set_amqp_window`."""
        bad = lib.vespiary_core_set_amqp_window(self._core, connection, channel, transfers)
        check(bad, "set_amqp_window")

    def forget_amqp_session(self, connection: int, channel: int) -> None:
        """See `CoreAmqp.forget_amqp_session`."""
        bad = lib.vespiary_core_forget_amqp_session(self._core, connection, channel)
        check(bad, "forget_amqp_session")
