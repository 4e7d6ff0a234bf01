"""How many TLS handshakes of a listener go on at a time, and who waits for one to end.

Owns the places. A handshake that has begun holds some 60 KiB of OpenSSL's and the loop's memory,
and its client may leave it there; one that waits holds its first message alone. So that such
clients do not keep others out, a place is taken from the handshake that has lasted longest, but
from none that has had less than `TURN_S`: one that goes on needs its round trips and no more. Of
those that wait the newest is next: behind thousands that will never go on, the first would be one
of them, and its client has given up. Few begin in a turn of the loop: each is a signature and a key
exchange, for which all other connections wait. Must never look at what is said. Called by `gate`
and `listener`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

TURN_S: Final = 2.0
"""Seconds that a handshake has in any case, however many wait."""
BEGUN_MAX: Final = 1
"""Handshakes that begin in one turn of the loop."""
_LOOK_S: Final = 0.1


class Handshake(Protocol):
    """What has a place, or waits for one."""

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
        self._begun: dict[Handshake, float] = {}  # when; the oldest stands first
        self._waiting: dict[Handshake, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._turn_count = 0  # begun in this turn
        self._is_counting = False

    def request(self, handshake: Handshake, loop: asyncio.AbstractEventLoop) -> None:
        """Have it begun, now or as soon as there is a place; `end` follows."""
        self._waiting[handshake] = None
        self._begin_next(loop)

    def end(self, handshake: Handshake, loop: asyncio.AbstractEventLoop) -> None:
        """Take its place back, or the wish for one."""
        self._waiting.pop(handshake, None)
        if self._begun.pop(handshake, None) is not None:
            self._begin_next(loop)

    def _begin_next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give away what is free or has been had for long, first to those that came last."""
        while self._waiting and self._turn_count < BEGUN_MAX and self._has_place(loop):
            following, _ = self._waiting.popitem()
            self._begun[following] = loop.time()
            self._turn_count += 1
            following.begin()
        if self._turn_count and not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._count_anew, loop)
        if self._waiting and self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look, loop)

    def _has_place(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether there is a place, if need be that of the one that has lasted longest."""
        if len(self._begun) < self._allowed:
            return True
        oldest, begun_s = next(iter(self._begun.items()))
        if begun_s > loop.time() - TURN_S:
            return False
        del self._begun[oldest]
        self.given_way += 1
        oldest.give_way()
        return True

    def _count_anew(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turn_count, self._is_counting = 0, False
        self._begin_next(loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._begin_next(loop)
