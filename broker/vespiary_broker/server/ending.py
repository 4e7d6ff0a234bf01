"""How a connection ends: its last frame, behind all that is due before it, and time to read it.

Owns the last frame and the clocks of the end. Must never write a receipt that the core has not
released. Owner: the event loop. Called by `connection`, one for each.

The last frame (ERROR, or the receipt of DISCONNECT) waits behind earlier receipts and behind a
large message that is on its way. Then the connection lingers: what still comes is thrown away, so
that the client can read the last frame before a reset. A client that reads slowly is waited for,
one that reads nothing is cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection

LINGER_S: Final = 2.0
"""Time without a byte read after which a client that has been told all is cut off."""
STALL_S: Final = 30.0
"""The same in the middle of a large message: the kernel takes a while to tell of what was read."""
_FLUSH_S: Final = 5.0
"""Time that the flushes before the last frame have; without them nothing is confirmed."""


class Ending:
    """The end of one connection.

    Args:
        connection: The connection.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last = b""
        self._is_confirm = False
        self._is_said = False  # the last frame is written, or will not be
        self._seen = (0, 0)

    def begin(self, data: bytes, *, is_ordered: bool, is_confirm: bool = False) -> None:
        """Send the last frame.

        Durability: An ordered frame goes through the core, behind every receipt that is due; its
        clock ends the connection and confirms nothing.

        Args:
            data: The frame; empty for none.
            is_ordered: Whether it has to wait for what was staged before it.
            is_confirm: Whether it says that something is durable.
        """
        self._last = data
        self._is_confirm = is_confirm
        if is_ordered:
            self._connection.confirm(data)
            self._connection.set_deadline("end", _FLUSH_S, lambda _: self.expire())
        else:
            self.expire()

    def released(self) -> None:
        """Go on once the last frame is written: nothing was staged behind it."""
        if not self._is_said and not self._connection.is_output_waiting:
            self._said()

    def expire(self) -> None:
        """Go on without the flush that the last frame waits for."""
        if self._is_said:
            return
        # The clock ends a connection; it confirms nothing: what is staged may not be durable.
        if self._last and not self._is_confirm:
            self._connection.write(self._last)
        self._said()

    def stream_ended(self) -> None:
        """Go on behind a large message: what waited for its end is written."""
        if self._is_said:
            self._linger()

    def _said(self) -> None:
        self._is_said = True
        self._connection.cancel_timer("end")
        if self._connection.is_streaming:
            self._watch(STALL_S)
        else:
            self._linger()

    def _linger(self) -> None:
        self._connection.linger()
        self._watch(LINGER_S)

    def _watch(self, period_s: float) -> None:
        """Cut the client off if it reads nothing in a period."""
        self._seen = self._connection.progress()
        self._connection.set_deadline("end", period_s, lambda _: self._look(period_s))

    def _look(self, period_s: float) -> None:
        if self._connection.progress() == self._seen:
            self._connection.abort()
        else:
            self._watch(period_s)
