"""The way of one message of AMQP to the core: at once, or once destination and room are there.

Owns what of a message the engine is given; the waiting is `message_sender`'s. Must never confirm:
links do. Called by `receiving`; owner: its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.engine.address_memory import AddressState
from vespiary_broker.engine.duplicates import ID_BYTES_MAX
from vespiary_broker.engine.ingress import ingress_stamp
from vespiary_broker.engine.message_times import (
    NO_REPETITION,
    NO_TIMES,
    REPETITION_CURE,
    MessageTimes,
    expiry,
    stamp,
)
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.publishing import Target
from vespiary_broker.engine.transactions import Outgoing
from vespiary_broker.server.amqp.conditions import Condition, Refused
from vespiary_broker.server.amqp.storing import PROTOCOL, Taken
from vespiary_broker.server.message_sender import MessageSender, Sent, Stage

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
        self._cycle = cycle
        self._registry = cycle.engine.registry
        self._sender = MessageSender(connection, cycle, cycle.drop_bodies)

    def outgoing(self, taken: Taken, destination: Destination, text: str) -> Outgoing:
        """Return a message as the engine has it.

        Args:
            taken: The message.
            destination: Where it goes.
            text: The same, as the message is stored with it.

        Raises:
            Refused: Its properties are too large, or it asks for repeated delivery.
        """
        if taken.repetition:
            raise Refused(
                Condition.NOT_IMPLEMENTED,
                f"{taken.repetition} {NO_REPETITION}",
                cure=REPETITION_CURE,
            )
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

    def try_send(self, message: Outgoing, stage: Stage | None = None) -> Sent | None:
        """Send a message if that needs no waiting; None: `send_later` does it.

        Args:
            message: The message.
            stage: Stages it; None: as any message.

        Raises:
            VespiaryError: It may not be sent.
        """
        return self._sender.try_send(message, stage)

    def stage(self, message: Outgoing, target: Target) -> int:
        """Stage a message as any; see `MessageSender.stage`."""
        return self._sender.stage(message, target)

    async def send_later(
        self, message: Outgoing, stage: Stage | None = None, *, is_in_flight: bool
    ) -> Sent:
        """Send a message once destination and room are there, or do what a policy says.

        Args:
            message: The message.
            stage: Stages it; None: as any message.
            is_in_flight: As of `MessageSender.send`.

        Raises:
            VespiaryError: It is refused by a policy, or its destination cannot be made.
        """
        return await self._sender.send(message, stage, is_in_flight=is_in_flight)

    def is_released(self, message: Outgoing, sent: Sent) -> bool:
        """Whether the sender of a message is told `released`: it is for a queue, and none took it.

        A topic without subscribers is nothing unusual, so what is sent there is accepted.
        """
        return sent.is_unrouted and self._registry.is_for_one_queue(message.destination)

    def full_state(self, destination: Destination) -> AddressState | None:
        """Return what makes the senders of an address wait; None: nothing does.

        Raises:
            AddressFull: They are refused.
        """
        return self._sender.full_state(destination)
