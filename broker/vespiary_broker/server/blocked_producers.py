"""Producers that wait because an address is full, and how they go on.

Owns who waits for which address. A connection waits inside the one frame that it is handling, so it
takes no other and is not read; its heart-beats and its messages leave as ever, and so do all other
connections. Must never decide who waits: that is `engine.address_memory`. Called by the sessions
(to wait), by the cycle once a turn (to let go), and by connections that end; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from typing import Final

from vespiary_broker.engine.address_memory import AddressMemory, AddressState

LET_GO_MAX: Final = 64
"""Waiters of one address that try again in one turn: the first fill it, the rest wait anyway."""


class BlockedProducers:
    """Those who wait for room in addresses, oldest first.

    Attributes:
        waits: How often somebody began to wait.

    Args:
        memory: Says which addresses are full.
    """

    def __init__(self, memory: AddressMemory) -> None:
        self.waits = 0
        self._memory = memory
        self._waiting: dict[AddressState, dict[Hashable, asyncio.Future[None]]] = {}

    @property
    def count(self) -> int:
        """Producers that wait."""
        return sum(len(waiting) for waiting in self._waiting.values())

    def count_for(self, address: str) -> int:
        """Return how many wait for one address."""
        return sum(
            len(waiting) for state, waiting in self._waiting.items() if state.name == address
        )

    @property
    def closed_count(self) -> int:
        """Producers that wait though their clients have closed their side of the connection."""
        return sum(map(_closed_among, self._waiting.values()))

    def closed_count_for(self, address: str) -> int:
        """Return how many of those wait for one address."""
        return sum(
            _closed_among(waiting)
            for state, waiting in self._waiting.items()
            if state.name == address
        )

    @property
    def addresses(self) -> list[str]:
        """Names of the addresses that somebody waits for."""
        return [state.name for state in self._waiting]

    async def wait(self, state: AddressState, producer: Hashable) -> None:
        """Wait until an address may have room, or the producer is let go for another reason.

        Args:
            state: The address that is full.
            producer: Who waits; waits for one address at a time.
        """
        self.waits += 1
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(state, {})[producer] = turn
        try:
            await turn
        finally:
            self._forget(state, producer)

    def let_go(self) -> None:
        """Let those try again whose address is no longer full, in the order in which they came.

        At most `LET_GO_MAX` of an address at once; `has_more` says that others could.
        """
        for state in [state for state in self._waiting if not self._memory.is_full(state)]:
            for producer in list(self._waiting[state])[:LET_GO_MAX]:
                self._let_go(state, producer)

    def let_go_all(self) -> None:
        """Let everybody try again."""
        for state, waiting in list(self._waiting.items()):
            for producer in list(waiting):
                self._let_go(state, producer)

    def end(self, producer: Hashable) -> None:
        """Let one go whose connection ends."""
        for state, waiting in list(self._waiting.items()):
            if producer in waiting:
                self._let_go(state, producer)

    def _let_go(self, state: AddressState, producer: Hashable) -> None:
        turn = self._waiting[state][producer]
        self._forget(state, producer)
        if not turn.done():
            turn.set_result(None)

    def _forget(self, state: AddressState, producer: Hashable) -> None:
        waiting = self._waiting.get(state)
        if waiting is not None:
            waiting.pop(producer, None)
            if not waiting:
                del self._waiting[state]


def _closed_among(waiting: Iterable[Hashable]) -> int:
    return sum(getattr(producer, "is_client_closed", False) for producer in waiting)
