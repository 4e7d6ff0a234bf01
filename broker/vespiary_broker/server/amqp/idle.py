"""Idle time-outs of one connection: signs of life in time, and a look whether the client's come.

Owns the two clocks (AMQP 1.0 §2.4.5). Owner: the event loop. Called by `handler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vespiary_broker.server.amqp.conditions import Condition, ConnectionRefused
from vespiary_codec.wire.amqp import Frame, encode_frame

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection

_SHARE: Final = 0.5
"""Share of the client's time-out after which something is sent."""
_EARLY_S: Final = 0.001
_LEAST_S: Final = 0.02
"""No client is sent signs of life faster than this, whatever it announces."""
EMPTY: Final = encode_frame(Frame())


class IdleClocks:
    """The idle time-outs of both sides.

    Args:
        connection: The connection.
        out_s: Seconds within which the client has to hear something; 0: it need not.
        in_s: Seconds after which a silent client is dropped; 0: never.
    """

    def __init__(self, connection: Connection, out_s: float, in_s: float) -> None:
        self._connection = connection
        self._out_s = max(out_s * _SHARE, _LEAST_S)
        self._in_s = in_s
        if out_s:
            connection.set_timer("idle out", self._out_s, self.beat)
        if in_s:
            connection.set_deadline("idle in", in_s, self.check)

    def beat(self) -> None:
        """Send an empty frame if nothing else was sent."""
        connection = self._connection
        if not connection.is_open:
            return
        wait_s = connection.written_at_s + self._out_s - connection.now_s()
        if wait_s <= _EARLY_S:
            if not connection.is_write_paused:  # what waits there is a sign of life as well
                connection.write(EMPTY)
            wait_s = self._out_s
        connection.set_timer("idle out", wait_s, self.beat)

    def check(self, now_s: float) -> None:
        """End the connection if its client has been silent for too long.

        Args:
            now_s: The loop's clock.
        """
        connection = self._connection
        if not connection.is_open:
            return
        if not connection.is_listening:
            connection.heard_at_s = now_s
        wait_s = connection.heard_at_s + self._in_s - now_s
        if wait_s > _EARLY_S:
            connection.set_deadline("idle in", wait_s, self.check)
            return
        connection.refuse_error(
            ConnectionRefused(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"nothing came for {now_s - connection.heard_at_s:.1f} seconds",
                allowed=f"at most {self._in_s / 2:g}, as the idle time-out announced",
            ),
            None,
        )
