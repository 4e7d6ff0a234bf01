"""The way of one message of AMQP to the core: at once, or once destination and room are there.

Owns the waiting, and what the policies of full addresses and disks say. Must never confirm: links
do. Called by `receiving`; owner: its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.engine.address_memory import AddressState, Verdict
from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.duplicates import ID_BYTES_MAX
from vespiary_broker.engine.ingress import ingress_stamp
from vespiary_broker.engine.message_times import NO_TIMES, MessageTimes, expiry, stamp
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.publishing import Target, find_target, make_target
from vespiary_broker.engine.transactions import Outgoing, publish, stage_once
from vespiary_broker.server.amqp.conditions import Condition, Refused
from vespiary_broker.server.amqp.storing import PROTOCOL, Taken
from vespiary_broker.server.full_addresses import FullAddresses
from vespiary_spec.errors import LimitExceeded

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle

PROPERTIES_BYTES_MAX = 65_535


class Publisher:
    """Sends what one connection has sent.

    Args:
        connection: The connection.
        cycle: What all connections share.
    """

    def __init__(self, connection: Connection, cycle: Cycle) -> None:
        self._connection = connection
        self._cycle = cycle
        self._core = cycle.core
        self._registry = cycle.engine.registry
        self._full = FullAddresses(connection, cycle)

    def outgoing(self, taken: Taken, destination: Destination, text: str) -> Outgoing:
        """Return a message as the engine has it.

        Args:
            taken: The message.
            destination: Where it goes.
            text: The same, as its sender wrote it.

        Raises:
            Refused: Its properties are too large.
        """
        settings = self._registry.settings_for(destination.address)
        fates = self._cycle.engine.fates
        now_ms = fates.clock_ms()
        asked = taken.times(now_ms)
        times = MessageTimes(expiry(settings, asked.expires_ms, now_ms), asked.deliver_at_ms)
        if times != NO_TIMES:
            fates.special_sent()
        priority = min(int(taken.header.priority), 9)
        is_ordered = priority != 4 or bool(taken.properties.group_id)
        properties = ingress_stamp(stamp(taken.stored_properties(text), times), settings, now_ms)
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise Refused(
                Condition.MESSAGE_SIZE_EXCEEDED,
                "properties and annotations of the message are too large",
                measured=f"{len(properties)} bytes as they are stored, as lines and as they came",
                allowed=f"at most {PROPERTIES_BYTES_MAX} bytes",
            )
        duplicate_id = taken.duplicate_id
        if len(duplicate_id) > ID_BYTES_MAX:
            raise Refused(
                Condition.INVALID_FIELD,
                "the duplicate id is too long",
                measured=f"{len(duplicate_id)} bytes",
                allowed=f"at most {ID_BYTES_MAX} bytes",
            )
        return Outgoing(
            destination=destination,
            properties=properties,
            body=taken.body,
            is_persistent=bool(taken.header.durable),
            priority=priority,
            is_special=times != NO_TIMES or is_ordered,
            duplicate_id=duplicate_id,
            protocol=PROTOCOL,
        )

    def try_send(self, message: Outgoing) -> bool:
        """Send a message if that needs no waiting; False: `send_later` does it.

        Raises:
            VespiaryError: It may not be sent.
        """
        target = find_target(self._registry, message.destination)
        if target is None or not self._full.is_open(target, message.destination):
            return False
        try:
            self._publish(message, target)
        except NoRoom:
            return False
        return True

    async def send_later(self, message: Outgoing, *, is_in_flight: bool) -> bool:
        """Send a message once destination and room are there, or do what a policy says.

        Args:
            message: The message.
            is_in_flight: Whether its sender had credit from the address: it is taken then although
                that has become full, and gets no more credit.

        Returns:
            False if it was dropped by a policy, or the connection went before.

        Raises:
            VespiaryError: It is refused by a policy, or its destination cannot be made.
        """
        registry = self._registry
        while self._connection.is_open:
            target = find_target(registry, message.destination)
            if target is None:
                target = await make_target(registry, message.destination)
            if not self._full.is_open(target, message.destination):
                verdict = await self._admit(message, is_in_flight=is_in_flight)
                if verdict is Verdict.DROP:
                    return False
                if verdict is Verdict.WAIT:
                    continue
            try:
                self._publish(message, target)
            except NoRoom:
                if self._is_dropped(message) or self._full.is_dropped_without_room(message):
                    return False
                await self._cycle.space(self._connection)
                continue
            return True
        return False

    async def _admit(self, message: Outgoing, *, is_in_flight: bool) -> Verdict:
        if is_in_flight and self.full_state(message.destination) is not None:
            return Verdict.TAKE
        return await self._full.admit(message)

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

    def _is_dropped(self, message: Outgoing) -> bool:
        full = self._cycle.full_disk
        if full is None or not message.is_persistent:
            return False
        return self._cycle.engine.full_disk.is_dropped(message.destination.address, full)

    def _publish(self, message: Outgoing, target: Target) -> None:
        duplicates = self._cycle.engine.duplicates
        bodies = self._registry.large_bodies
        if message.duplicate_id and duplicates.is_on(message.destination.address):
            is_new = stage_once(self._core, self._registry, duplicates, message, target)
            if not is_new and message.large is not None and bodies is not None:
                bodies.remove([message.large.large_id])
            return
        try:
            publish(self._core, bodies, message, target)
        except ValueError as error:
            raise LimitExceeded(
                f"the message is too large for the journal: {error}",
                cure="send a smaller one, or raise journal-buffer-size",
            ) from error
