"""How many TLS handshakes of a listener go on at a time, and who waits for one to end.

Owns the places. A handshake that has begun holds some 60 KiB of OpenSSL's and the loop's memory,
and its client may leave it there; one that waits holds its first message alone. So that such
clients do not keep others out, a place is taken from the handshake that has lasted longest, but
from none that has had less than `TURN_S`: one that goes on needs its round trips and no more. The
network that has most places gives way, and the one that has fewest is next, so that whoever sends
hellos without end from one address is before nobody but itself. Of those of a network that wait the
newest is next: behind thousands that will never go on, the first would be one of them, and its
client has given up. Few begin in a turn of the loop: each is a signature and a key
exchange, for which all other connections wait. Must never look at what is said. Called by `gate`
and `listener`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import takewhile
from typing import Final, Protocol

from vespiary_broker.engine.networks import network_of

TURN_S: Final = 2.0
"""Seconds that a handshake has in any case, however many wait."""
BEGUN_MAX: Final = 1
"""Handshakes that begin in one turn of the loop."""
_LOOK_S: Final = 0.1


class Handshake(Protocol):
    """What has a place, or waits for one."""

    @property
    def peer(self) -> str:
        """Address that it counts for."""

    def begin(self) -> None:
        """Begin: there is a place."""

    def give_way(self) -> None:
        """End: another one waits for the place."""


class Handshakes:
    """The handshakes of one listener.

    Attributes:
        given_way: How many were ended since the start, for others that waited.

    Args:
        allowed: How many go on at a time.
    """

    def __init__(self, allowed: int) -> None:
        self.given_way = 0
        self._allowed = allowed
        self._networks: dict[Handshake, str] = {}  # of all
        self._begun: dict[Handshake, float] = {}  # when; the oldest stands first
        self._taken: Counter[str] = Counter()  # of those that have begun, by network
        # By network, the newest last; the network that has asked last stands last.
        self._waiting: dict[str, dict[Handshake, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._turn_count = 0  # begun in this turn
        self._is_counting = False

    @property
    def networks_count(self) -> int:
        """Networks that something is kept of; 0 when all clients are gone."""
        return len(self._taken.keys() | self._waiting.keys())

    def request(self, handshake: Handshake, loop: asyncio.AbstractEventLoop) -> None:
        """Have it begun, now or as soon as there is a place; `end` follows."""
        network = self._networks[handshake] = network_of(handshake.peer)
        line = self._waiting.pop(network, {})
        line[handshake] = None
        self._waiting[network] = line
        self._begin_next(loop)

    def end(self, handshake: Handshake, loop: asyncio.AbstractEventLoop) -> None:
        """Take its place back, or the wish for one."""
        if handshake in self._begun:
            self._take_back(handshake)
            self._begin_next(loop)
        elif (network := self._networks.pop(handshake, None)) is not None:
            del self._waiting[network][handshake]
            if not self._waiting[network]:
                del self._waiting[network]

    def _begin_next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give away what is free or has been had for long."""
        while self._waiting and self._turn_count < BEGUN_MAX:
            network = self._next_network()
            if not self._has_place(network, loop):
                break
            following, _ = self._waiting[network].popitem()
            if not self._waiting[network]:
                del self._waiting[network]
            self._begun[following] = loop.time()
            self._taken[network] += 1
            self._turn_count += 1
            following.begin()
        if self._turn_count and not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._count_anew, loop)
        if self._waiting and self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look, loop)

    def _next_network(self) -> str:
        """Return which of the networks that wait has fewest places, of several the newest."""
        fewest = ""
        for network in reversed(self._waiting):
            if network not in self._taken:
                return network
            if not fewest or self._taken[network] < self._taken[fewest]:
                fewest = network
        return fewest

    def _has_place(self, network: str, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether there is a place for a network, if need be that of one that has most."""
        if len(self._begun) < self._allowed:
            return True
        long_ago_s = loop.time() - TURN_S
        lasting = takewhile(lambda each: self._begun[each] <= long_ago_s, self._begun)
        oldest = max(lasting, key=self._taken_by, default=None)
        if oldest is None or self._taken_by(oldest) < self._taken[network]:
            return False
        self._take_back(oldest)
        self.given_way += 1
        oldest.give_way()
        return True

    def _taken_by(self, handshake: Handshake) -> int:
        """Return how many places the network of a handshake has."""
        return self._taken[self._networks[handshake]]

    def _take_back(self, handshake: Handshake) -> None:
        """Take the place of a handshake back."""
        del self._begun[handshake]
        network = self._networks.pop(handshake)
        self._taken[network] -= 1
        if not self._taken[network]:
            del self._taken[network]

    def _count_anew(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_count, self._is_counting = 0, False
        self._begin_next(loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._begin_next(loop)
