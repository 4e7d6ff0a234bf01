"""Heart-beats of one connection: ours in time, and a look whether the client's come.

Owns the two clocks (STOMP 1.1 and 1.2, "Heart-beating"). Owner: the event loop. Called by
`handler`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vespiary_codec.wire.stomp import HEART_BEAT
from vespiary_spec.errors import LimitExceeded

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection

_SHARE: Final = 0.75
"""Share of the agreed interval after which we send a heart-beat, so that it is there in time."""
_EARLY_S: Final = 0.001


class HeartBeats:
    """The heart-beats that a client and the broker agreed upon.

    Args:
        connection: The connection.
        out_s: Seconds within which we have to send something; 0 for never.
        in_s: Seconds after which a silent client is dropped; 0 for never.
    """

    def __init__(self, connection: Connection, out_s: float, in_s: float) -> None:
        self._connection = connection
        self._out_s, self._in_s = out_s * _SHARE, in_s
        if out_s:
            connection.set_timer("beat out", self._out_s, self.beat)
        if in_s:
            connection.set_deadline("beat in", in_s, self.check)

    def beat(self) -> None:
        """Send a heart-beat if nothing else was sent."""
        connection = self._connection
        if not connection.is_open:
            return
        wait_s = connection.written_at_s + self._out_s - connection.now_s()
        if wait_s <= _EARLY_S:
            # What waits there is a sign of life as well.
            if not connection.is_write_paused and not connection.is_streaming:
                connection.write(HEART_BEAT)
            wait_s = self._out_s
        connection.set_timer("beat out", wait_s, self.beat)

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
            connection.set_deadline("beat in", wait_s, self.check)
            return
        error = LimitExceeded(
            f"no heart-beat and no frame for {now_s - connection.heard_at_s:.1f} seconds",
            allowed=f"at most {self._in_s:g}",
        )
        connection.refuse_error(error, None)
