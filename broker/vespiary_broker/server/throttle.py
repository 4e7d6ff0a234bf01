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

    It does not refer to the connection, which has it: the two would be a cycle.

    Args:
        cycle: What all connections share.
    """

    __slots__ = ("_cycle", "_rates", "is_pausing")

    def __init__(self, cycle: Cycle) -> None:
        self.is_pausing = False
        self._cycle = cycle
        self._rates = cycle.engine.registry.limits.rates

    def charge(self, connection: Connection, user: str, nbytes: int) -> None:
        """Take what was read from what the user may send; begin a pause if that was too much."""
        if not self._rates.is_on:
            return
        wait_s = self._rates.take(user, nbytes, self._cycle.loop.time())
        if wait_s > 0 and not self.is_pausing and connection.is_open:
            self._rates.throttled += 1
            self.is_pausing = True
            self._cycle.watch(connection)
            self._look_again(connection, user, wait_s)

    def _look_again(self, connection: Connection, user: str, wait_s: float) -> None:
        delay_s = min(wait_s, LOOK_S)
        connection.set_timer(_TIMER, delay_s, lambda: self._look(connection, user))

    def _look(self, connection: Connection, user: str) -> None:
        """End the pause if it was long enough; other connections of the user may send, too."""
        wait_s = self._rates.take(user, 0, self._cycle.loop.time())
        if wait_s > 0:
            self._look_again(connection, user, wait_s)
            return
        self._cycle.closed_clients.forget(connection)
        self.is_pausing = False
        connection.update_reading()

    def end(self, connection: Connection) -> None:
        """Pause no more."""
        self.is_pausing = False
        connection.cancel_timer(_TIMER)
