"""The part of the core's contract for messages of which Python says where each goes.

Owns the Protocol; `abc.Core` has it. Both implementations keep it. None of it is used on the plain
path.

A switch is a route without queues. Connections are taught it like any other. Where the scanner
meets a plain SEND to one, it keeps it, and those of the same switch that follow it without
anything else between them, and answers `ScanStatus.SWITCHED`, with the position of the first and
the switch. Then `switched` shows them and `send_switched` stages them, in one call each, before the
next `scan_stomp`, and before their buffer changes. Until then nothing of them is taken.

When `send_switched` stops, the next scan of the connection keeps one message, and each batch that
is taken whole doubles that again: a route that stays held costs one choice for each message, not
one for each that is behind it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from vespiary_native.values import ScanStatus
from vespiary_native.values_inspection import MessageView

SWITCHED_MAX: Final = 512
"""Messages that one scan keeps for a switch at most."""
SWITCHED_BYTES_MAX: Final = 1024 * 1024
"""Bytes of their frames, from the first to behind the last, from which on it keeps no more."""


class CoreSwitching(Protocol):
    """See the module's docstring."""

    def open_switch(self) -> int:
        """Make a switch: a route that `close_route` closes, and nothing may be published to."""

    def switched(self) -> list[MessageView]:
        """Return what the last scan kept for a switch, in order.

        They have no sequence yet (0); `is_journalled` is what their senders ask for, `time_ms` now.
        """

    def send_switched(self, routes: Sequence[int]) -> tuple[ScanStatus, int, int]:
        """Stage what the last scan kept, each message to its route, and hold its receipt.

        Args:
            routes: As many as `switched` returned, or those of the first of them: the next scan
                begins with the others then, and keeps as many as now were staged. No switches;
                all must be open.

        Returns:
            (status, position up to which all was taken, detail) as `scan_stomp` does: NEED_DATA,
            0 when all that have a route were; FRAME or BLOCKED with the length of the frame that
            stands there: its route is held or its record too large, or there is no room.

        Raises:
            ValueError: There are none, or too many, or one is not an open route.

        Durability: durable with the block that is filling; receipts leave after that.
        """
