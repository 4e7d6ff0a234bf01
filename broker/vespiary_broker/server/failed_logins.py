"""The log of failed logins: who failed how and where, and never more lines than people read.

Owns what such a line says, the metrics count all of them. Must never log a password. Owner: the
event loop.
"""

from __future__ import annotations

import logging
from typing import Final

from vespiary_broker.engine.networks import network_of
from vespiary_broker.server.line_limit import LineLimit
from vespiary_spec.errors import LoginRefused

_NAME_CHARACTERS_MAX: Final = 200

log = logging.getLogger(__name__)


class FailedLogins:
    """Logs failed logins.

    Each combination of user, network, protocol and listener is a kind of its own (`LineLimit`).
    """

    def __init__(self) -> None:
        self._limit = LineLimit(
            lambda *told: log.warning("more logins failed listener=%s count=%d", *told)
        )

    def note(
        self, error: LoginRefused, *, protocol: str, listener: str, peer: str, now_s: float
    ) -> None:
        """Log a failed login, unless there were enough like it.

        Args:
            error: Why it failed, with the user name that was given.
            protocol: What the client spoke.
            listener: Name of the acceptor, or `http`.
            peer: Address of the client's machine.
            now_s: A monotonic clock, in seconds.
        """
        user = error.user[:_NAME_CHARACTERS_MAX]
        kind = (user, network_of(peer) or peer, protocol, listener)
        if not self._limit.admits(kind, listener=listener, now_s=now_s):
            return
        log.warning(
            "login failed user=%a protocol=%s listener=%s peer=%s reason=%r",
            user,
            protocol,
            listener,
            peer,
            error.what,
        )
