"""The wait of messages that come faster than their address or their user may send.

Owns one connection's waits; how long they are, `engine.send_rates` says. A message that waits holds
up what its connection sends after it, whatever the protocol: the connection is busy, and is not
read. Must never drop or refuse one. Called by `message_sender` and `full_addresses`; owner: the
event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.transactions import Outgoing, Transaction

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle

LOOK_S: Final = 0.5
"""Most seconds until a message that waits is looked at again: rates may have changed."""


class Pace:
    """The waits of one connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
    """

    def __init__(self, connection: Connection, cycle: Cycle) -> None:
        self._connection = connection
        self._cycle = cycle
        self._registry = cycle.engine.registry
        self._limits = cycle.engine.registry.limits
        self._charged: Transaction | None = None

    def is_held(self, message: Outgoing) -> bool:
        """Whether a message has to wait now."""
        return self._wait_s(message) > 0

    def _wait_s(self, message: Outgoing) -> float:
        settings = self._registry.settings_for(message.destination.address)
        now_s = self._cycle.loop.time()
        return self._limits.sends.wait_s(message.destination, settings, now_s)

    def charge(self, message: Outgoing) -> None:
        """Count a message that was sent."""
        settings = self._registry.settings_for(message.destination.address)
        size_bytes = message.size_bytes + (message.large.size_bytes if message.large else 0)
        now_s = self._cycle.loop.time()
        self._limits.sends.take(message.destination, settings, size_bytes, now_s)

    async def rest(self, message: Outgoing) -> None:
        """Wait until a message may go, or its connection is gone."""
        if not self.is_held(message):
            return
        self._limits.rates.throttled += 1
        self._cycle.touch()  # what is staged so far is not to wait for this
        address = message.destination.address
        with self._cycle.watching(self._connection), self._limits.sends.holding(address):
            wait_s = self._wait_s(message)
            while self._connection.is_open and wait_s > 0:
                await asyncio.sleep(min(wait_s, LOOK_S))
                wait_s = self._wait_s(message)

    async def rest_all(self, transaction: Transaction) -> None:
        """Wait until the messages of a transaction may go, and count them, once."""
        if transaction is self._charged:
            return
        self._charged = transaction
        for message in {send.destination: send for send in transaction.sends}.values():
            await self.rest(message)
        for message in transaction.sends:
            self.charge(message)
