"""The log of clients that were refused, cut off or displaced, and of what else clients cause.

Whoever may connect could have a line written with each connection, so they are bounded. Owns how
often the log says so; the metrics count all of them. Owner: the event loop.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from vespiary_broker.engine.networks import network_of
from vespiary_broker.server.line_limit import LineLimit

_COMPARED: Final = 200
"""Characters of a detail by which two events are alike."""

log = logging.getLogger(__name__)


class ClientLines:
    """Logs what became of clients, as far as its limits let it.

    Each event has a limit of its own (`LineLimit`), so that a flood of one hides no other.
    """

    def __init__(self) -> None:
        self._limits: dict[str, LineLimit] = {}

    def note(
        self,
        event: str,
        peer: str,
        *details: str | int,
        listener: str,
        now_s: float,
        level: int = logging.INFO,
    ) -> None:
        """Log an event, unless there were enough like it: of its network, with its details.

        Args:
            event: The line, with places for the peer and the details; one of few.
            peer: Address of the client's machine, or what else the line begins with.
            details: What else it says.
            listener: Name of the acceptor.
            now_s: A monotonic clock, in seconds.
            level: That of the line.
        """
        limit = self._limits.get(event)
        if limit is None:
            limit = self._limits[event] = LineLimit(partial(_tell, event, level))
        kind = (network_of(peer) or peer[:_COMPARED], *(str(each)[:_COMPARED] for each in details))
        if limit.admits(kind, listener=listener, now_s=now_s):
            log.log(level, event, peer, *details)


def _tell(event: str, level: int, listener: str, count: int) -> None:
    """Say how many events of one kind had no line."""
    name = event.partition("=")[0].rpartition(" ")[0]
    log.log(level, "more clients had no line listener=%s count=%d event=%r", listener, count, name)
