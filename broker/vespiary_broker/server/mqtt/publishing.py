"""PUBLISH and PUBREL of one MQTT client: messages on their way in.

Owns topic aliases, what may be published, and the answers, for what the core's scanner leaves to
Python (`intake`). How a message gets to the core is `message_sender`'s. Owner: the connection.

Durability: PUBACK, PUBREC and PUBCOMP leave behind the flush that covers what they confirm. A
message of QoS 2 and the note that it was received are one transaction (`exactly_once`), as are a
message and what is retained of it (`retained`).

Source: MQTT 5.0 §3.3 to §3.7 and §4.3.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from vespiary_broker.engine.core import ADDRESS_LINE_BYTES_MAX, ANSWER_BYTES
from vespiary_broker.engine.joint_staging import End, Note, Taken, stage_jointly
from vespiary_broker.engine.names import Sender
from vespiary_broker.engine.publishing import Target
from vespiary_broker.engine.transactions import Outgoing, refer_to
from vespiary_broker.server.message_sender import MessageSender, Outcome, Sent
from vespiary_broker.server.mqtt.messages import stored_lines
from vespiary_broker.server.mqtt.outgoing import outgoing_of
from vespiary_broker.server.mqtt.reasons import explained, reason_of, sentence_for
from vespiary_broker.server.mqtt.sessions import MqttSession
from vespiary_codec.wire.mqtt import (
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    RemoteProtocolError,
    Version,
    Violation,
)
from vespiary_codec.wire.mqtt import encode as encode_packet
from vespiary_codec.wire.mqtt.packet_types import PacketType
from vespiary_codec.wire.mqtt.reason_codes import ALLOWED, ReasonCode
from vespiary_spec.errors import DiskFull, LimitExceeded, VespiaryError
from vespiary_spec.settings import Permission

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import LargeLimits
    from vespiary_broker.server.mqtt.hub import MqttHub
    from vespiary_broker.store.large_writer import LargeWriter


class Publishing:
    """What one client publishes.

    Args:
        connection: The connection.
        cycle: What all connections share.
        hub: What all MQTT clients share.
        session: Of the client.
        version: That it speaks.
        sender: The client, as who sends.
        receive_maximum: Messages of QoS 1 and 2 that it may have sent and not had answered.
        alias_maximum: Topic aliases that it may use.
        reason_bytes_max: Largest answer that may have a reason string; 0: none may.
        large_limits: Which messages are large; None: none is.
    """

    def __init__(
        self,
        connection: Connection,
        cycle: Cycle,
        hub: MqttHub,
        session: MqttSession,
        version: Version,
        sender: Sender,
        receive_maximum: int,
        alias_maximum: int,
        reason_bytes_max: int,
        large_limits: LargeLimits | None = None,
    ) -> None:
        self._connection = connection
        self._cycle = cycle
        self._core = cycle.core
        self._registry = cycle.engine.registry
        self._hub = hub
        self._session = session
        self._version = version
        self._sender = sender
        self._receive_maximum = receive_maximum
        self._alias_maximum = alias_maximum
        self._reason_bytes_max = reason_bytes_max
        self._large_limits = large_limits
        self._aliases: dict[int, str] = {}
        self._has_dropped = False
        self._refusal: VespiaryError | None = None  # of the payload that is passed over
        self._storing: LargeWriter | None = None  # a payload, all of it there, not yet stored
        self._message_sender = MessageSender(connection, cycle, lambda _: None)

    def publish(self, packet: Publish) -> Coroutine[Any, Any, None] | None:
        """Take a PUBLISH; what is returned is left to do.

        Raises:
            VespiaryError: It may not be published, and its client cannot be told otherwise.
        """
        self._resolve_alias(packet)
        if packet.qos:
            self._check_quota(packet)
        if packet.qos == 2 and packet.packet_id in (self._session.received or {}):
            self._answer(packet)  # it came before
            return None
        try:
            message = self.outgoing(packet)
            is_prepared = not packet.retain or self._hub.retained.queue is not None
            is_prepared &= packet.qos != 2 or self._hub.exactly_once.is_receiving(self._session)
            if not is_prepared or self._is_large(message):
                return self._send_later(packet, message)
            sent = self._message_sender.try_send(message, self._stage_for(packet))
        except VespiaryError as error:
            self._refuse(packet, error)
            return None
        if sent is None:
            return self._send_later(packet, message)
        self._sent(packet, sent)
        return None

    # --- large payloads -----------------------------------------------------------------------

    def begin_large(self, packet: Publish, payload_bytes: int) -> LargeWriter | None:
        """Return where the payload of a PUBLISH goes that is still to come.

        `publish_large` has to follow.

        Args:
            packet: The packet, without its payload.
            payload_bytes: How long that is.

        Returns:
            None: nowhere. The client is told in the end why, or that it has sent this before.

        Raises:
            VespiaryError: It may not be published, and its client cannot be told otherwise.
        """
        assert self._cycle.large is not None
        self._resolve_alias(packet)
        if packet.qos:
            self._check_quota(packet)
        if packet.qos == 2 and packet.packet_id in (self._session.received or {}):
            return None
        try:
            self._check_large(packet, payload_bytes)
        except VespiaryError as error:
            if not self._may_tell(packet, reason_of(error)):
                raise
            self._refusal = error
            return None
        return self._cycle.large.begin()

    def _check_large(self, packet: Publish, payload_bytes: int) -> None:
        """Refuse a large payload before it goes to a file.

        Raises:
            VespiaryError: It may not be published.
        """
        assert self._large_limits is not None
        if packet.retain:
            raise _retained_too_large(payload_bytes)
        most = self._large_limits.size_bytes_max
        if payload_bytes > most:
            raise LimitExceeded(
                "the payload is too large",
                measured=f"{payload_bytes} bytes",
                allowed=f"at most {most} bytes (max-large-message-size)",
            )
        destination = self.outgoing(packet).destination
        self._registry.permissions.check(destination.user, Permission.SEND, destination.address)

    def publish_large(
        self, packet: Publish, writer: LargeWriter | None
    ) -> Coroutine[Any, Any, None] | None:
        """Take a PUBLISH whose payload has come; what is returned is left to do.

        Args:
            packet: The packet, without its payload.
            writer: What `begin_large` returned.

        Raises:
            VespiaryError: It may not be published, and its client cannot be told otherwise.
        """
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            self._refuse(packet, refusal)
            return None
        if writer is None:
            self._answer(packet)  # it came before
            return None
        self._storing = writer
        try:
            message = self.outgoing(packet)
        except VespiaryError as error:
            writer.discard()
            self._refuse(packet, error)
            return None
        return self._send_later(packet, message, writer)

    def is_body_dropped(self, packet: Publish, full: DiskFull) -> bool:
        """Return what the policy of its address says of a payload that finds no room on the disk.

        Raises:
            JournalFull: It is refused.
        """
        address = self.outgoing(packet).destination.address
        return self._cycle.engine.full_disk.is_dropped(address, full)

    def leave(self) -> None:
        """Give up a payload that is not stored yet: the client was not told that it is."""
        if self._storing is not None:
            self._storing.discard()

    # --- what cannot be sent at once ----------------------------------------------------------

    async def _send_later(
        self, packet: Publish, message: Outgoing, writer: LargeWriter | None = None
    ) -> None:
        try:
            if packet.retain:
                await self._hub.retained.ready()
            if packet.qos == 2:
                await self._hub.exactly_once.begin_receiving(self._session)
            if writer is not None or self._is_large(message):
                sent = await self._send_large(packet, message, writer)
            else:
                sent = await self._message_sender.send(message, self._stage_for(packet))
        except VespiaryError as error:
            if writer is not None:
                writer.discard()
            self._refuse(packet, error)
            return
        self._sent(packet, sent)

    def _is_large(self, message: Outgoing) -> bool:
        large = self._large_limits
        return large is not None and large.is_large(len(message.body), message.size_bytes)

    async def _send_large(
        self, packet: Publish, message: Outgoing, writer: LargeWriter | None
    ) -> Sent:
        """Send a message whose body goes to a file.

        Args:
            packet: Its packet.
            message: The message.
            writer: The body, all of it taken in; None: the message has it.

        Raises:
            VespiaryError: It is refused; nothing is left of the body.

        Durability: the body is flushed before its reference is staged.
        """
        store = self._cycle.large
        assert store is not None
        if packet.retain:
            raise _retained_too_large(len(message.body))
        if writer is None:
            writer = store.begin()
            writer.put(message.body)
        writer.on_full = lambda full: self.is_body_dropped(packet, full)
        self._storing = writer
        try:
            body = await writer.finish(is_persistent=message.is_persistent)
        finally:
            self._storing = None
        if body is None:
            return Sent(Outcome.DROPPED if writer.is_dropped else Outcome.GONE)
        sent = Sent(Outcome.GONE)
        try:
            referring = refer_to(message, body)
            sent = await self._message_sender.send(referring, self._stage_for(packet))
        finally:
            if sent.outcome is not Outcome.SENT:
                store.remove([body.large_id])
        return sent

    def _sent(self, packet: Publish, sent: Sent) -> None:
        if sent.target is not None:
            self._teach(packet, sent.target)
        if not packet.qos or sent.outcome is Outcome.GONE:
            return
        is_told = self._version is Version.V5 and sent.is_unrouted
        self._answer(packet, ReasonCode.NO_MATCHING_SUBSCRIBERS if is_told else ReasonCode(0))

    def _teach(self, packet: Publish, target: Target) -> None:
        """Let the core take the next plain messages to this topic by itself.

        The core bounds what a connection has been taught.
        """
        is_plain = packet.qos < 2 and not packet.retain and not packet.properties
        if not is_plain or not target.is_teachable:
            return
        topics = self._hub.topics
        line = stored_lines(
            topics.address_of(packet.topic), 0, retain=False, properties={}, topics=topics
        )
        if len(line) <= ADDRESS_LINE_BYTES_MAX:
            topic = packet.topic.encode()
            self._core.teach_mqtt(self._connection.handle, topic, line, target.taught_handle)

    def _answer(
        self, packet: Publish, code: ReasonCode = ReasonCode.SUCCESS, reason: str = ""
    ) -> None:
        """Answer a message of QoS 1 or 2 once everything staged so far is durable."""
        kind = Puback if packet.qos == 1 else Pubrec
        answer = kind(packet.packet_id, code)
        self._confirm(explained(answer, reason, self._reason_bytes_max, self._version))

    def _confirm(self, data: bytes) -> None:
        self._connection.confirm(data)

    def _drop(self, packet: Publish, error: VespiaryError) -> None:
        """Drop a message to a `$` topic that its client may not write; the client goes on."""
        sentence = sentence_for(error)
        self._cycle.count_error("topic-not-writable")
        if not self._has_dropped:  # one line for each connection
            self._has_dropped = True
            self._connection.note_line(
                "messages are dropped: their topic is not writable peer=%s client=%r topic=%r "
                "reason=%r",
                *(self._session.client_id, packet.topic[:60], sentence),
            )
        if packet.qos and self._version is Version.V5:
            self._answer(packet, ReasonCode.NOT_AUTHORIZED, sentence)
        elif packet.qos:
            self._answer(packet)

    def _refuse(self, packet: Publish, error: VespiaryError) -> None:
        """Tell a client that its message was refused.

        Raises:
            VespiaryError: There is no packet for that: the connection has to end.
        """
        code = reason_of(error)
        if code is ReasonCode.NOT_AUTHORIZED and packet.topic.startswith("$"):
            self._drop(packet, error)  # a bridge would be refused again at each reconnect
            return
        if not self._may_tell(packet, code):
            raise error
        if code not in ALLOWED[PacketType.PUBACK]:
            code = ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
        self._cycle.count_error(type(error).__name__)
        self._answer(packet, code, sentence_for(error))

    def _may_tell(self, packet: Publish, code: ReasonCode) -> bool:
        """Return whether a client can be told that its message was refused, and goes on."""
        if code is ReasonCode.NOT_AUTHORIZED and packet.topic.startswith("$"):
            return True
        return self._version is Version.V5 and packet.qos > 0

    # --- what it says -----------------------------------------------------------------------------

    def _resolve_alias(self, packet: Publish) -> None:
        """Set the topic that an alias stands for (§3.3.2.3.4).

        Raises:
            RemoteProtocolError: The alias is out of bounds, or stands for nothing.
        """
        alias = packet.properties.pop(Property.TOPIC_ALIAS, None)
        if alias is None:
            if packet.topic:
                return
            raise RemoteProtocolError(
                Violation.TOPIC_NAME,
                "PUBLISH has neither a topic nor a topic alias",
                ReasonCode.PROTOCOL_ERROR,
            )
        assert isinstance(alias, int)
        if alias > self._alias_maximum:
            raise RemoteProtocolError(
                Violation.PROPERTY_VALUE,
                f"the topic alias is {alias}; at most {self._alias_maximum} is allowed",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if packet.topic:
            self._aliases[alias] = packet.topic
        elif alias in self._aliases:
            packet.topic = self._aliases[alias]
        else:
            raise RemoteProtocolError(
                Violation.PROPERTY_VALUE,
                f"the topic alias {alias} stands for no topic",
                ReasonCode.PROTOCOL_ERROR,
            )

    def _check_quota(self, packet: Publish) -> None:
        """Hold a client to the Receive Maximum that it was told (§3.3.4).

        Raises:
            RemoteProtocolError: It has sent more than that without an answer.
        """
        if self._version is not Version.V5:
            return
        received = self._session.received or {}
        open_count = len(received) + (packet.packet_id not in received)
        handle = self._connection.handle
        if self._core.output_waiting(handle) // ANSWER_BYTES >= self._receive_maximum:
            open_count = max(open_count, self._core.unanswered(handle) + 1)
        if open_count > self._receive_maximum:
            raise RemoteProtocolError(
                Violation.PACKET_ID,
                f"{open_count} messages of QoS 1 and 2 wait for an answer; at most "
                f"{self._receive_maximum} may",
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )

    def outgoing(self, packet: Publish) -> Outgoing:
        """Return the message of a PUBLISH.

        Raises:
            RemoteProtocolError: Clients may not publish to its topic.
        """
        return outgoing_of(self._cycle, self._hub.topics, packet, self._session.user, self._sender)

    def _stage_for(self, packet: Publish) -> Any:
        """Return what stages a message that is retained or of QoS 2; None for all others."""
        if not packet.retain and packet.qos != 2:
            return None

        def stage(message: Outgoing, target: Target) -> int:
            return self.stage_with_notes(packet, message, target)

        return stage

    def stage_with_notes(self, packet: Publish, message: Outgoing, target: Target) -> int:
        """Stage a message with what is noted of it; return its places.

        Raises:
            NoRoom: Nothing was staged.
        """
        acts: list[Note | End | Taken] = []
        note = None
        if packet.qos == 2:
            note = self._hub.exactly_once.received_note(self._session, packet.packet_id)
        if note is not None:
            acts.append(note)
        if packet.retain:
            acts += self._hub.retained.acts(packet.topic, message)
        places, sequences = stage_jointly(self._core, self._registry, (message, target), acts)
        if packet.qos == 2:
            if self._session.received is None:
                self._session.received = {}
            self._session.received[packet.packet_id] = sequences[0] if note is not None else 0
        if packet.retain:
            is_kept = bool(message.body)
            sequence = sequences[-1] if is_kept else 0
            self._hub.retained.staged(packet.topic, sequence, message.properties)
        return places

    # --- PUBREL -----------------------------------------------------------------------------------

    def release(self, packet: Pubrel) -> None:
        """Take a PUBREL: the client knows that its message is safe, and its id is free again.

        Raises:
            NoRoom: There is no room to forget it; nothing was done.
        """
        is_known = self._hub.exactly_once.end_received(self._session, packet.packet_id)
        is_told = not is_known and self._version is Version.V5  # MQTT 3 has no word for it
        code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if is_told else ReasonCode.SUCCESS
        answer = Pubcomp(packet.packet_id, code)
        self._confirm(encode_packet(answer, self._version))


def _retained_too_large(payload_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        "a retained message is too large",
        measured=f"{payload_bytes} bytes",
        allowed="what is no large message (min-large-message-size)",
        cure="publish it without the retain flag, or smaller",
    )
