"""SEND frames that the core leaves to Python: to queues and topics, into transactions, to files.

Owns the way of one message from its frame to the core, and what its connection was taught. Must
never confirm before that. Called by `session`; owner: the connection.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from vespiary_broker.engine.duplicates import HEADER as DUPLICATE_ID
from vespiary_broker.engine.duplicates import ID_BYTES_MAX
from vespiary_broker.engine.ingress import ingress_stamp
from vespiary_broker.engine.message_times import NO_TIMES, stamp, times_of_send
from vespiary_broker.engine.names import (
    Destination,
    own_form,
    parse_destination,
    parse_routing_type,
)
from vespiary_broker.engine.publishing import Target
from vespiary_broker.engine.transactions import Outgoing
from vespiary_broker.server.message_sender import Outcome, Sent
from vespiary_broker.server.stomp.large_sending import send_from_memory
from vespiary_codec.wire.stomp import Frame, canonical_properties
from vespiary_codec.wire.stomp.properties import BROKER_HEADERS
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Permission, RoutingType

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.server.stomp.session import StompSession


class Sending:
    """The messages that one connection sends.

    Args:
        session: The session.
        connection: Its connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
    """

    def __init__(
        self, session: StompSession, connection: Connection, cycle: Cycle, listener: Listener
    ) -> None:
        self._session = session
        self._connection = connection
        self._cycle = cycle
        self._listener = listener
        self._core = cycle.core
        self._registry = cycle.engine.registry
        self._sender = session.message_sender

    def send(self, frame: Frame) -> Coroutine[Any, Any, None] | None:
        """Send a message, or put it into its transaction.

        Returns:
            What is left to do; None when it is done.

        Raises:
            VespiaryError: The frame is not what it should be, or the message may not be sent.
        """
        message = self.outgoing(frame)
        self.count_dropped(frame)
        if self._is_large(message):
            return send_from_memory(self._session, self._cycle, frame, message.body)
        transaction = frame.get("transaction")
        if transaction is not None:
            self.add_member(transaction, message)
            self._session.confirm(frame)
            return None
        sent = self._sender.try_send(message)
        if sent is None:
            return self._send_waiting(frame, message)
        self._confirm(frame, sent)
        return None

    def count_dropped(self, frame: Frame) -> None:
        """Count a message whose sender gave it headers that only the broker writes."""
        if any(name.startswith(BROKER_HEADERS) for name, _ in frame.headers):
            self._cycle.count_error("broker-header")

    def add_member(self, transaction: str, message: Outgoing) -> None:
        """Put a message into a transaction.

        Raises:
            NotPermitted: The user may not send there; the commit asks again.
            RemoteProtocolError: There is no such transaction, or it cannot hold the message.
        """
        self._check(message.destination)
        self._session.branches.check_member(transaction, message)
        self._session.transactions.add(transaction, message)

    def check_large(self, frame: Frame) -> None:
        """Refuse a large body before it goes to a file.

        Raises:
            NotPermitted: The user may not send there.
        """
        if self._registry.permissions.is_on:
            self._check(self.outgoing(frame).destination)

    def _check(self, destination: Destination) -> None:
        permissions = self._registry.permissions
        permissions.check(destination.user, Permission.SEND, destination.address)

    def _is_large(self, message: Outgoing) -> bool:
        """Whether a body that is in memory has to go to a file."""
        large = self._listener.large
        return large is not None and large.is_large(len(message.body), message.size_bytes)

    async def _send_waiting(self, frame: Frame, message: Outgoing) -> None:
        await self.send_later(frame, message)

    async def send_later(self, frame: Frame, message: Outgoing) -> bool:
        """Send once destination and room are there, or do what a policy says.

        Returns:
            False if it was not sent: dropped by a policy, or the connection went before.

        Raises:
            VespiaryError: It is refused by a policy, or its destination cannot be made.
        """
        sent = await self._sender.send(message)
        self._confirm(frame, sent)
        return sent.outcome is Outcome.SENT

    def _confirm(self, frame: Frame, sent: Sent) -> None:
        if sent.target is not None:
            self._teach(frame, sent.target)
        if sent.outcome is not Outcome.GONE:
            self._session.confirm(frame, is_unrouted=sent.is_unrouted)

    def _teach(self, frame: Frame, target: Target) -> None:
        """Let the core take the next messages to this destination by itself.

        The core bounds what a connection has been taught.
        """
        if self._in_own_form(frame) is not frame:
            return  # the core stores the header as it is written
        key = frame.get("destination", "")
        kind = frame.get("destination-type")
        if kind is not None:
            key = f"{key}\0{kind}"
        if (
            target.is_teachable
            and key.isascii()
            and not any(character in key for character in "\\\r\n")
        ):
            self._core.teach(self._connection.handle, key.encode(), target.taught_handle)

    def outgoing(self, frame: Frame) -> Outgoing:
        """Return the message of a SEND frame.

        Raises:
            RemoteProtocolError: A header is wrong.
        """
        kind = frame.get("destination-type")
        routing_type = None if kind is None else parse_routing_type(kind, "destination-type")
        priority = frame.get("priority", "4")
        if priority not in tuple("0123456789"):
            raise RemoteProtocolError(
                "SEND has a wrong priority", measured=ascii(priority[:40]), allowed="0 to 9"
            )
        destination = self.destination(frame, routing_type)
        settings = self._registry.settings_for(destination.address)
        fates = self._cycle.engine.fates
        times = times_of_send(frame.get, settings, fates.clock_ms())
        if times != NO_TIMES:
            fates.special_sent()
        is_ordered = priority != "4" or frame.get("JMSXGroupID") is not None
        return Outgoing(
            destination=destination,
            properties=ingress_stamp(
                stamp(canonical_properties(self._in_own_form(frame)), times),
                settings,
                fates.clock_ms(),
            ),
            is_special=times != NO_TIMES or is_ordered,
            body=frame.body,
            is_persistent=frame.get("persistent") == "true",
            priority=int(priority),
            duplicate_id=_duplicate_id(frame),
        )

    def _in_own_form(self, frame: Frame) -> Frame:
        """Return a frame with a destination as clients of this broker write it.

        Raises:
            RemoteProtocolError: It means nothing.
        """
        acceptor = self._listener.acceptor
        text = frame.get("destination", "")
        own = own_form(text, acceptor.anycast_prefix, acceptor.multicast_prefix)
        if own == text:
            return frame
        headers = list(frame.headers)
        headers[headers.index(("destination", text))] = ("destination", own)
        return Frame(frame.command, headers, frame.body)

    def destination(self, frame: Frame, routing_type: RoutingType | None) -> Destination:
        """Return what the `destination` header of a frame means.

        Args:
            frame: SEND or SUBSCRIBE.
            routing_type: What another header of it asks for; None for nothing.

        Raises:
            RemoteProtocolError: It means nothing.
        """
        acceptor = self._listener.acceptor
        return parse_destination(
            frame.get("destination", ""),
            anycast_prefix=acceptor.anycast_prefix,
            multicast_prefix=acceptor.multicast_prefix,
            routing_type=routing_type,
            user=self._session.user,
            sender=self._session.sender,
        )


def _duplicate_id(frame: Frame) -> bytes:
    """Return the id by which a message that comes again is known; empty for none."""
    text = (frame.get(DUPLICATE_ID) or "").encode()
    if len(text) > ID_BYTES_MAX:
        raise RemoteProtocolError(
            f"SEND has a {DUPLICATE_ID} that is too long",
            measured=f"{len(text)} bytes",
            allowed=f"at most {ID_BYTES_MAX} bytes",
        )
    return text
