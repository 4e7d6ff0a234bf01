"""The log of failed logins: who failed how and where, and never more lines than people read.

Owns how often the log says so; the metrics count all of them. Must never log a password. Owner: the
event loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from vespiary_broker.engine.networks import network_of
from vespiary_spec.errors import LoginRefused

PERIOD_S: Final = 60.0
LINES_PER_PERIOD: Final = 20
_NAME_CHARACTERS_MAX: Final = 200
_KINDS_MAX: Final = 1000

log = logging.getLogger(__name__)


class FailedLogins:
    """Logs failed logins.

    In a period each combination of user, network, protocol and listener has one line, and the
    lines of all of them are limited. The next period begins with how many had none.
    """

    def __init__(self) -> None:
        self._since_s = float("-inf")
        self._lines = 0
        self._silent: Counter[str] = Counter()
        self._seen: set[tuple[str, str, str, str]] = set()

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
        if now_s - self._since_s >= PERIOD_S:
            self._begin(now_s)
        user = error.user[:_NAME_CHARACTERS_MAX]
        kind = (user, network_of(peer) or peer, protocol, listener)
        is_known = kind in self._seen
        if is_known or self._lines >= LINES_PER_PERIOD:
            self._silent[listener] += 1
            if not is_known and len(self._seen) < _KINDS_MAX:
                self._seen.add(kind)
            return
        self._seen.add(kind)
        self._lines += 1
        log.warning(
            "login failed user=%a protocol=%s listener=%s peer=%s reason=%r",
            user,
            protocol,
            listener,
            peer,
            error.what,
        )

    def _begin(self, now_s: float) -> None:
        """Begin a period, and say how many logins of the last one were not logged."""
        for listener, count in self._silent.items():
            log.warning("more logins failed listener=%s count=%d", listener, count)
        self._since_s, self._lines = now_s, 0
        self._silent.clear()
        self._seen.clear()
