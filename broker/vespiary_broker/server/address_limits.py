"""How many connections one network address has through a listener, and who is one too many.

Owns the counts, and how often the log says that somebody is turned away. A client has a place from
its first moment to its last, be it a connection whose TLS handshake is not done or one that is told
its last words. Who is turned away has none, and does not count as a connection of the listener: one
address could else keep all others out by those that it may not have. Must never look at what is
said. Called by `listener` and `gate`; owner: the event loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from vespiary_broker.engine.networks import network_of
from vespiary_spec.errors import LimitExceeded

KIND: Final = "connections-per-address"
"""By which the refusals are counted among the errors that clients cause."""
WORDS_AT_ONCE: Final = 8
"""Clients of one address that may be on their way out with last words, which takes up to two
seconds; more are cut off without: they cost a descriptor each meanwhile."""
LOG_PERIOD_S: Final = 60.0
_LINES_PER_PERIOD: Final = 10

log = logging.getLogger(__name__)


class AddressLimits:
    """The places of one listener.

    Owner: the event loop.

    Args:
        acceptor: Name of the acceptor, for the log.
        allowed: Connections of one address at a time; 0: any number, and nothing is counted.
    """

    def __init__(self, acceptor: str, allowed: int) -> None:
        self._acceptor = acceptor
        self._allowed = allowed
        self._places: dict[object, str] = {}  # whose, of which network; empty: of none
        self._taken: Counter[str] = Counter()
        self._refused: dict[object, str] = {}
        self._leaving: Counter[str] = Counter()  # of those that are refused
        self._period_begun_s = 0.0
        self._logged: set[str] = set()  # networks that the log has named in this period
        self._refused_unsaid = 0

    @property
    def networks_count(self) -> int:
        """Networks that something is kept of; 0 when all clients are gone."""
        return len(self._taken.keys() | self._leaving.keys())

    @property
    def refused_count(self) -> int:
        """Clients that are turned away and not gone yet."""
        return len(self._refused)

    def enter(self, client: object, peer: str) -> bool:
        """Give a client a place, unless it has one; `leave` follows in any case.

        Args:
            client: A connection, or what becomes one.
            peer: Its address, or the one that it is forwarded for.

        Returns:
            False: its address has as many as it may.
        """
        if not self._allowed or client in self._places:
            return True
        network = network_of(peer)
        if network and self._taken[network] >= self._allowed:
            self._refused[client] = network
            self._leaving[network] += 1
            return False
        self._places[client] = network
        if network:
            self._taken[network] += 1
        return True

    def exempt(self, client: object) -> None:
        """Let a client in that counts for no address: a balancer that speaks for itself."""
        if self._allowed:
            self._places[client] = ""

    def leave(self, client: object) -> None:
        """Take the place of a client back that is gone, if it has one."""
        for clients, counts in ((self._places, self._taken), (self._refused, self._leaving)):
            network = clients.pop(client, "")
            if network:
                counts[network] -= 1
                if not counts[network]:
                    del counts[network]

    def refusal(self, client: object, now_s: float) -> LimitExceeded | None:
        """Return what a client is told that got no place, and see to the log.

        Args:
            client: What has asked for a place.
            now_s: The loop's clock.

        Returns:
            None for one that was not refused.
        """
        network = self._refused.get(client)
        if network is None:
            return None
        self._note(network, now_s)
        return LimitExceeded(
            f"too many connections from {network}",
            measured=self._taken[network] + 1,
            allowed=f"at most {self._allowed}",
            cure="close some of them, or raise connections-per-address-allowed of the acceptor",
        )

    def has_words(self, client: object) -> bool:
        """Whether a refused client may stay until it has read why."""
        return self._leaving[self._refused[client]] <= WORDS_AT_ONCE

    def _note(self, network: str, now_s: float) -> None:
        """Say in the log who is turned away: an address once in a period, and few of them."""
        if now_s - self._period_begun_s >= LOG_PERIOD_S:
            self._period_begun_s = now_s
            self._logged.clear()
        if network in self._logged or len(self._logged) == _LINES_PER_PERIOD:
            self._refused_unsaid += 1
            return
        self._logged.add(network)
        unsaid, self._refused_unsaid = self._refused_unsaid, 0
        log.warning(
            "connections refused, their address has as many as it may acceptor=%s address=%s "
            "allowed=%d refused_since_last_line=%d",
            *(self._acceptor, network, self._allowed, unsaid),
        )
