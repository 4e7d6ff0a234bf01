"""One message of a client on its way to the core, whatever its protocol: at once, or when it may.

Owns the waiting for a destination, for room, and what the policies of full addresses and full disks
decide. Must never confirm: the protocol's session does. Owner: the connection.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from vespiary_broker.engine.address_memory import AddressState, Verdict
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.publishing import Target, find_target, make_target
from vespiary_broker.engine.transactions import Outgoing, is_decided, publish, stage_once
from vespiary_broker.server.full_addresses import FullAddresses
from vespiary_broker.server.turns import REST
from vespiary_spec.errors import LimitExceeded

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle

Stage = Callable[[Outgoing, Target], int]
"""Stages a message; returns the number of its places. Raises NoRoom: nothing was staged."""


class Outcome(enum.Enum):
    """What became of a message."""

    SENT = enum.auto()
    DROPPED = enum.auto()  # by a policy, which wants it confirmed
    GONE = enum.auto()  # its connection closed first


class Sent(NamedTuple):
    """What became of a message.

    Attributes:
        outcome: What.
        target: Where it went; None unless it was sent.
        places: Queues that it is in.
    """

    outcome: Outcome
    target: Target | None = None
    places: int = 0

    @property
    def is_unrouted(self) -> bool:
        """Whether no queue accepted it."""
        return self.outcome is Outcome.SENT and not self.places


class MessageSender:
    """Sends the messages of one connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        drop_bodies: Removes bodies in files of messages that were never staged.
    """

    def __init__(
        self, connection: Connection, cycle: Cycle, drop_bodies: Callable[[list[int]], None]
    ) -> None:
        self.full_addresses = FullAddresses(connection, cycle)
        self._pace = self.full_addresses.pace
        self._connection = connection
        self._cycle = cycle
        self._core = cycle.core
        self._registry = cycle.engine.registry
        self._drop_bodies = drop_bodies

    def try_send(self, message: Outgoing, stage: Stage | None = None) -> Sent | None:
        """Send a message if nothing stands in the way.

        Args:
            message: The message.
            stage: Stages it; None: as any message.

        Returns:
            None if it has to wait: `send` does.

        Raises:
            VespiaryError: It may not be sent.

        Durability: staged; durable with the block that is filling.
        """
        target = find_target(self._registry, message.destination)
        if target is None or not self.full_addresses.is_open(target, message.destination):
            return None
        if self._pace.is_held(message) or not self._is_decided(message, target):
            return None
        try:
            places = (stage or self.stage)(message, target)
        except NoRoom:
            return None
        self._pace.charge(message)
        return Sent(Outcome.SENT, target, places)

    async def send(
        self, message: Outgoing, stage: Stage | None = None, *, is_in_flight: bool = False
    ) -> Sent:
        """Send once destination and room are there, or do what a policy says.

        That of the address while it is full, and that for a full disk.

        Args:
            message: The message.
            stage: Stages it; None: as any message.
            is_in_flight: Whether its sender had credit from the address: it is taken then although
                that has become full, and gets no more credit.

        Raises:
            VespiaryError: It is refused by a policy, or its destination cannot be made.

        Durability: as of `try_send`.
        """
        registry = self._registry
        await self._pace.rest(message)
        while self._connection.is_open:
            target = find_target(registry, message.destination)
            if target is None:
                target = await make_target(registry, message.destination)
            if not self.full_addresses.is_open(target, message.destination):
                verdict = await self._admit(message, is_in_flight=is_in_flight)
                if verdict is Verdict.DROP:
                    return Sent(Outcome.DROPPED)
                if verdict is Verdict.WAIT:
                    continue  # it has waited: destination and room may be others now
            if not self._is_decided(message, target):
                await REST
                continue
            try:
                places = (stage or self.stage)(message, target)
            except NoRoom:
                if self.is_dropped(message) or self.full_addresses.is_dropped_without_room(message):
                    return Sent(Outcome.DROPPED)
                await self._cycle.space(self._connection)
                continue
            self._pace.charge(message)
            return Sent(Outcome.SENT, target, places)
        return Sent(Outcome.GONE)

    def _is_decided(self, message: Outgoing, target: Target) -> bool:
        """Whether filters have said where a message goes; False: this turn had no time for it."""
        return is_decided(message, target, self._connection.handle)

    async def _admit(self, message: Outgoing, *, is_in_flight: bool) -> Verdict:
        if is_in_flight and self.full_state(message.destination) is not None:
            return Verdict.TAKE
        return await self.full_addresses.admit(message)

    def full_state(self, destination: Destination) -> AddressState | None:
        """Return what makes the senders of an address wait; None: nothing does.

        Raises:
            AddressFull: They are refused.
        """
        address = self._registry.addresses.get(destination.address)
        if address is None:
            return None
        verdict, state = self._cycle.engine.memory.decide(address)
        return state if verdict is Verdict.WAIT else None

    def is_dropped(self, message: Outgoing) -> bool:
        """Return whether a message that found no room is dropped; False: its sender waits.

        Raises:
            JournalFull: It is refused.
        """
        full = self._cycle.full_disk
        if full is None or not message.is_persistent:
            return False
        return self._cycle.engine.full_disk.is_dropped(message.destination.address, full)

    def stage(self, message: Outgoing, target: Target) -> int:
        """Stage a message; one that has come before, by its duplicate id, is not staged again.

        Returns:
            The number of its places; 1 for one that has come before, which a queue accepted then.

        Raises:
            NoRoom: There is no room; nothing was staged.
            LimitExceeded: It is too large for the journal, or a queue has no sequence left.
        """
        duplicates = self._cycle.engine.duplicates
        if message.duplicate_id and duplicates.is_on(message.destination.address):
            placed = stage_once(self._core, self._registry, duplicates, message, target)
            if placed is None and message.large is not None:
                self._drop_bodies([message.large.large_id])
            return 1 if placed is None else placed
        try:
            return publish(self._core, self._registry.large_bodies, message, target)
        except ValueError as error:
            raise LimitExceeded(
                f"the message is too large for the journal: {error}",
                cure="send a smaller one, or raise journal-buffer-size",
            ) from error
