"""What one connection does about addresses that are full: it waits, drops, or refuses.

Owns the waiting of its frames. Must never be asked while nothing is full: the fast path does not
come here. The decision is `engine.address_memory`'s. Called by the sessions of the connection.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vespiary_broker.engine.address_memory import AddressState, Verdict
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.publishing import Target, find_target
from vespiary_broker.engine.transactions import Outgoing, Transaction
from vespiary_broker.server.pace import Pace

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle


class FullAddresses:
    """Full addresses, as one connection meets them.

    Attributes:
        pace: The waits for those that are sent to too fast.

    Args:
        connection: The connection.
        cycle: What all connections share.
    """

    def __init__(self, connection: Connection, cycle: Cycle) -> None:
        self.pace = Pace(connection, cycle)
        self._connection = connection
        self._cycle = cycle
        self._memory = cycle.engine.memory
        self._registry = cycle.engine.registry

    def is_open(self, target: Target, destination: Destination) -> bool:
        """Whether a message may go as it comes: nothing that it would go to is full."""
        return self._memory.is_open(target.route, self._registry.addresses.get(destination.address))

    async def admit(self, message: Outgoing) -> Verdict:
        """Decide about a message to a route that is not open.

        Returns:
            WAIT when it has waited: all may be different now, so look again.

        Raises:
            AddressFull: It is refused.

        Durability: a dropped message is confirmed and lost, as `DROP` asks for.
        """
        address = self._registry.addresses.get(message.destination.address)
        if address is None:
            return Verdict.TAKE
        verdict, state = self._memory.decide(address)
        if state is None:
            return Verdict.TAKE
        if verdict is Verdict.DROP:
            self._memory.drop(state)
        elif verdict is Verdict.WAIT:
            await self._wait(state)
        return verdict

    def is_dropped_without_room(self, message: Outgoing) -> bool:
        """Whether a message for which there is no memory is dropped; False: its sender waits.

        Raises:
            AddressFull: It is refused.
        """
        if message.is_persistent:
            return False
        state = self._memory.decide_without_room(message.destination.address)
        if state is None:
            return False
        self._memory.drop(state)
        return True

    async def admit_all(self, transaction: Transaction) -> list[int]:
        """Wait until a transaction's messages may go to their addresses; take out what is dropped.

        They wait for room, and for a rate.

        A transaction that acknowledges messages of a full address need not wait for that one: it
        makes room itself, and might wait for ever.

        Args:
            transaction: Complete, and not staged.

        Returns:
            Bodies in files of the messages that were dropped.

        Raises:
            AddressFull: One of its messages is refused, and so all of it; nothing was dropped.
        """
        await self.pace.rest_all(transaction)
        taken = (one for one in transaction.acknowledgements if one.consumer.view is None)
        freed = {member.consumer.queue.address.name for member in taken}
        while self._connection.is_open:
            full = self._full_among(transaction)
            waiting = [
                state
                for verdict, state in full.values()
                if verdict is Verdict.WAIT and state.name not in freed
            ]
            if waiting:
                await self._wait(waiting[0])
                continue
            drops = {
                name: state for name, (verdict, state) in full.items() if verdict is Verdict.DROP
            }
            return self._take_out(transaction, drops) if drops else []
        return []

    def _full_among(self, transaction: Transaction) -> dict[str, tuple[Verdict, AddressState]]:
        """Return what is said about each destination that is full, by address."""
        found: dict[str, tuple[Verdict, AddressState]] = {}
        for destination in {send.destination for send in transaction.sends}:
            target = find_target(self._registry, destination)
            address = self._registry.addresses.get(destination.address)
            if target is None or address is None or self.is_open(target, destination):
                continue
            verdict, state = self._memory.decide(address)
            if state is not None:
                found[destination.address] = verdict, state
        return found

    def _take_out(self, transaction: Transaction, drops: dict[str, AddressState]) -> list[int]:
        bodies = set(transaction.large_ids)
        counts = Counter(send.destination.address for send in transaction.sends)
        transaction.sends = [s for s in transaction.sends if s.destination.address not in drops]
        for name, state in drops.items():
            self._memory.drop(state, counts[name])
        return sorted(bodies.difference(transaction.large_ids))

    async def _wait(self, state: AddressState) -> None:
        self._cycle.touch()  # what is staged so far is not to wait for this
        with self._cycle.watching(self._connection):
            await self._cycle.producers.wait(state, self._connection)
