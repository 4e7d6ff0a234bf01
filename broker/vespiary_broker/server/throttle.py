"""The pause in reading a connection whose user sends too fast.

Owns one connection's pause; how long it is, `engine.rates` says. What was read is handled as ever,
so nothing is lost or refused. Called by `connection`; owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle

LOOK_S: Final = 1.0
"""Most seconds until a connection that pauses is looked at again: limits may have changed."""
_TIMER: Final = "rate"


class Throttle:
    """The pauses of one connection.

    Attributes:
        is_pausing: Whether it is not to be read now.

    Args:
        connection: The connection.
        cycle: What all connections share.
    """

    __slots__ = ("_connection", "_cycle", "_rates", "is_pausing")

    def __init__(self, connection: Connection, cycle: Cycle) -> None:
        self.is_pausing = False
        self._connection = connection
        self._cycle = cycle
        self._rates = cycle.engine.registry.limits.rates

    def charge(self, user: str, nbytes: int) -> None:
        """Take what was read from what the user may send; begin a pause if that was too much."""
        if not self._rates.is_on:
            return
        wait_s = self._rates.take(user, nbytes, self._cycle.loop.time())
        if wait_s > 0 and not self.is_pausing and self._connection.is_open:
            self._rates.throttled += 1
            self.is_pausing = True
            self._cycle.watch(self._connection)
            self._look_again(user, wait_s)

    def _look_again(self, user: str, wait_s: float) -> None:
        delay_s = min(wait_s, LOOK_S)
        self._connection.set_timer(_TIMER, delay_s, lambda: self._look(user))

    def _look(self, user: str) -> None:
        """End the pause if it was long enough; other connections of the user may send, too."""
        wait_s = self._rates.take(user, 0, self._cycle.loop.time())
        if wait_s > 0:
            self._look_again(user, wait_s)
            return
        self._cycle.closed_clients.forget(self._connection)
        self.is_pausing = False
        self._connection.update_reading()

    def end(self) -> None:
        """Pause no more."""
        self.is_pausing = False
        self._connection.cancel_timer(_TIMER)
