"""The log of clients that were refused, or displaced by another one.

Whoever may connect could have a line written with each connection, so they are bounded. Owns how
often the log says so; the metrics count all of them. Owner: the event loop.
"""

from __future__ import annotations

import logging
from typing import Final

from vespiary_broker.engine.networks import network_of
from vespiary_broker.server.line_limit import LineLimit

_COMPARED: Final = 200
"""Characters of a detail by which two events are alike."""

log = logging.getLogger(__name__)


class ClientLines:
    """Logs what became of clients, as far as its limit lets it (`LineLimit`)."""

    def __init__(self) -> None:
        self._limit = LineLimit(
            lambda *told: log.info("more clients refused or displaced listener=%s count=%d", *told)
        )

    def note(self, event: str, peer: str, *details: str, listener: str, now_s: float) -> None:
        """Log an event, unless there were enough like it: of its network, with its details.

        Args:
            event: The line, with places for the peer and the details.
            peer: Address of the client's machine.
            details: What else it says.
            listener: Name of the acceptor.
            now_s: A monotonic clock, in seconds.
        """
        kind = (event, network_of(peer) or peer, *(each[:_COMPARED] for each in details))
        if self._limit.admits(kind, listener=listener, now_s=now_s):
            log.info(event, peer, *details)
