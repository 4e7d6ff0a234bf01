"""Messages on their way to one MQTT client: PUBLISH packets out, their acknowledgements in.

Owns what one connection was sent, and the messages that wait for its window. Must never decide who
gets a message: the engine does. Owner: the connection.

A message of QoS 0 is acknowledged when it is given. Others hold a packet id and a place in the
window, which all subscriptions of the client share; while it is full the queues wait (`room_bytes`).
What was given beyond it, a slice at most, waits here.

The core encodes plain messages by itself, and takes their PUBACKs (`encode_by_core`): of these
nothing is known here but how many there are, and at the end which.

Durability: a message of QoS 1 is acknowledged by PUBACK alone. For QoS 2 see `exactly_once`.
"""  # noqa: E501

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from vespiary_broker.engine.core import LargeDelivery, MqttEncoding, NoRoom
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.server.mqtt.in_flight import InFlight, Known
from vespiary_broker.server.mqtt.messages import PROTOCOL, Delivered, delivered
from vespiary_broker.server.mqtt.options import Options, is_alone
from vespiary_broker.server.mqtt.overlaps import Overlaps, Wanted, wanted_by
from vespiary_broker.server.mqtt.sessions import MqttSession
from vespiary_broker.server.protocol_handler import LargeStart
from vespiary_codec.stored_message import StoredMessage, read_stored
from vespiary_codec.wire.mqtt import Property, Puback, Pubcomp, Publish, Pubrec, Pubrel, Version
from vespiary_codec.wire.mqtt import encode as encode_packet
from vespiary_codec.wire.mqtt.encoder import with_payload_bytes
from vespiary_codec.wire.mqtt.properties import Properties
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode
from vespiary_codec.wire.mqtt.topics import split_share

if TYPE_CHECKING:
    from vespiary_broker.engine.core import Core
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.mqtt.hub import MqttHub

PACKET_BYTES_MAX: Final = 268_435_455 + 5


class ClientLimits(NamedTuple):
    """What a client can take.

    Attributes:
        in_flight: Messages of QoS 1 and 2 that may be out.
        packet_bytes: Largest packet.
        topic_aliases: Aliases that may be used.
    """

    in_flight: int
    packet_bytes: int = PACKET_BYTES_MAX
    topic_aliases: int = 0


class Subscriber:
    """One subscription: turns its messages into packets.

    Attributes:
        topic_filter: Its filter.
        options: What the client wants of it.
        is_retired: Whether the client has ended it; its queue gives what others of the client want.
        consumer: Its consumer; set once it is open.

    Args:
        deliveries: Those of the client.
        topic_filter: Its filter.
        options: What the client wants of it.
        is_retired: Whether the client has ended it.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        topic_filter: str,
        options: Options,
        *,
        is_retired: bool = False,
    ) -> None:
        self.topic_filter = topic_filter
        self.options = options
        self.is_retired = is_retired
        self.consumer: Consumer
        own = split_share(topic_filter).topic_filter
        self.topic = "" if set(own) & set("+#") else own
        self.is_wild_first = own[0] in "+#"
        self._deliveries = deliveries

    def client_credit(self) -> int | None:
        """Return how many more messages its client takes now; None: QoS 0 has no limit."""
        return self._deliveries.credit if self.options.qos else None

    def takes(self, topic: str, sequence: int) -> bool:
        """Return whether it takes a message of its queue, whose topic its address covers.

        One that has ended takes those that were on their way then ([MQTT-3.10.4-3]).
        """
        if self.is_retired and sequence >= self.options.begun_below:
            return False
        return not (self.is_wild_first and topic.startswith("$"))  # §4.7.2

    def encode(self, data: bytes) -> bytes:
        """Return what the client is sent of messages that its consumer was given.

        Args:
            data: The messages, as `vespiary_codec.stored_message` says.
        """
        deliveries = self._deliveries
        return b"".join([deliveries.give(self, message) for message in read_stored(data)])


class Deliveries:
    """What one client is sent; keeps `engine.ports.Output`.

    Where its consumers' messages go: its connection, while its window is open.

    Attributes:
        is_stalled: Whether something waits for the window.
        overlaps: The client's subscriptions, as far as they stand in for one another.
        oversized: Messages that were too large for it, and dropped as the protocol demands.

    Args:
        connection: The connection.
        cycle: What all connections share.
        hub: What all MQTT clients share.
        session: Of the client.
        version: That it speaks.
        limits: What it can take.
    """

    def __init__(
        self,
        connection: Connection,
        cycle: Cycle,
        hub: MqttHub,
        session: MqttSession,
        version: Version,
        limits: ClientLimits,
    ) -> None:
        self.write = connection.write
        self.stream = connection.stream
        self.refuse = connection.refuse
        self.displace = connection.displace
        self.overlaps = Overlaps(session)
        self.oversized = 0
        self.is_stalled = False
        self._connection = connection
        self._cycle = cycle
        self._core = cycle.core
        self._hub = hub
        self._session = session
        self._version = version
        self._limits = limits
        self._in_flight = InFlight(limits.in_flight, session.resumed)
        self._window = 0  # of what the core sends
        self._has_left = False
        self._waiting: deque[tuple[Subscriber, StoredMessage]] = deque()
        self._starved: deque[Callable[[], object]] = deque()  # acts that found no room
        self._aliases: dict[str, int] = {}

    @property
    def handle(self) -> int:
        """The core's handle of the connection."""
        return self._connection.handle

    def room_bytes(self) -> int:
        """Return how many bytes more it takes now."""
        if self.is_open:
            return self._connection.room_bytes()
        self.is_stalled = True
        return 0

    @property
    def is_open(self) -> bool:
        """Whether the client may be sent more that it has to acknowledge."""
        return not self._waiting and not self._starved and self._room > 0

    @property
    def credit(self) -> int:
        """Messages of QoS 1 and 2 that the client takes now: what is left of Receive Maximum."""
        return max(self._room, 0) if self.is_open else 0

    @property
    def _room(self) -> int:
        """Messages of QoS 1 and 2 that may be sent now."""
        if self._has_left:
            return 0
        return self._window - self._core.sent_count(self._connection.handle)

    def _measure(self) -> None:
        """Tell the core what of the window is its own."""
        self._window = max(self._in_flight.room, 0)
        self._core.set_window(self._connection.handle, self._window)

    def _free(self, packet_id: int) -> None:
        self._core.reserve_packet_id(self._connection.handle, packet_id, reserved=False)

    def encode_by_core(self, subscriber: Subscriber) -> None:
        """Have the core encode what it can of a subscription, as its options are now.

        What an earlier connection of the session was sent keeps its packet id, and comes by here.
        """
        consumer, options = subscriber.consumer, subscriber.options
        is_plain = not (
            options.identifier or self._limits.topic_aliases or subscriber.is_retired
        ) and self.overlaps.is_own(subscriber.topic_filter, options)
        encoding = None
        if is_plain and self._hub.topics.is_swapping:
            encoding = MqttEncoding(
                options.qos,
                self._limits.packet_bytes,
                subscriber.topic.encode(),
                self._in_flight.known_below(consumer.queue.id),
                self._hub.topics.prefixes,
            )
        _encode_by(self._core, consumer, encoding)

    def leave_core(self, subscriber: Subscriber) -> None:
        """Take a subscription from the core: of its messages others want more than itself."""
        _encode_by(self._core, subscriber.consumer, None)

    def resume(self) -> None:
        """Send again what an earlier connection has left: the PUBRELs; messages come by queue."""
        handle = self._connection.handle
        for packet_id in self._in_flight.ids:
            self._core.reserve_packet_id(handle, packet_id, reserved=True)
        self._in_flight.take_id = partial(self._core.take_packet_id, handle)
        self._in_flight.on_freed = self._free
        self._in_flight.on_changed = self._measure
        self._measure()
        for packet_id in self._in_flight.released():
            self._write(Pubrel(packet_id))

    def begun_below(self, queue_id: int) -> int:
        """Return the sequence below which messages of a queue may be on their way to the client.

        Returns:
            0 if none is.
        """
        sent = self._core.sent(self._connection.handle)
        of_core = (each.sequence for each in sent if each.queue_id == queue_id)
        return max(max(of_core, default=-1) + 1, self._in_flight.begun_below(queue_id))

    def drop_waiting(self, subscriber: Subscriber) -> None:
        """End the messages of a subscription that wait for the window: nobody wants them."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if each[0] is subscriber:
                self._finish(subscriber.consumer, each[1].sequence)
            else:
                self._waiting.append(each)
        self._go_on()

    def is_resuming(self, queue_id: int) -> bool:
        """Return whether what an earlier connection was sent of a queue is to come again."""
        return self._in_flight.known_below(queue_id) > 0

    def leave(self) -> None:
        """Give the session what the next connection has to know."""
        resumed = self._session.resumed = self._in_flight.leave()
        for sent in self._core.sent(self._connection.handle):
            resumed.sent[sent.queue_id, sent.sequence] = Known(sent.packet_id, 1)
        self._has_left = True
        self._waiting.clear()
        self._starved.clear()

    def dismantle(self) -> None:
        """Let go of what is in flight, which refers to this and to consumers whose output it is."""
        self._in_flight = InFlight(0, None)

    # --- out --------------------------------------------------------------------------------------

    def give(self, subscriber: Subscriber, message: StoredMessage) -> bytes:
        """Return the packet of a message; nothing if it waits, or goes later, or not at all."""
        if self._waiting or self._starved:
            self._waiting.append((subscriber, message))
            return b""
        return self._give(subscriber, message)

    def _give(self, subscriber: Subscriber, message: StoredMessage) -> bytes:
        said = delivered(message, self._hub.topics)
        topic = subscriber.topic or self._topic_of(message, said)
        sequence = message.sequence
        if self._is_withheld(subscriber, message):
            return b""
        wanted = self._wanted(subscriber, message, said, topic)
        if wanted is None:
            self._finish(subscriber.consumer, sequence)
            return b""
        qos = min(wanted.qos, said.qos)
        if not qos:
            packet = self._packet(wanted, message, said, topic, 0)
            self._finish(subscriber.consumer, sequence)
            return self._sized(packet)
        if self._room <= 0:
            self._waiting.append((subscriber, message))
            self.is_stalled = True
            return b""
        self._release_gone(subscriber.consumer.queue.id, sequence)
        packet_id, is_again = self._in_flight.add(subscriber.consumer, sequence, qos)
        packet = self._packet(wanted, message, said, topic, qos)
        packet.packet_id, packet.dup = packet_id, is_again or message.deliveries > 0
        data = self._sized(packet)
        if not data:
            self._in_flight.pop(packet_id)
            self._finish(subscriber.consumer, sequence)
            return b""
        return data if qos == 1 else self._noted(packet_id, data)

    def _is_withheld(self, subscriber: Subscriber, message: StoredMessage) -> bool:
        """Return whether permissions changed while a message waited for the window.

        It goes back to the queue, whose consumer is given it no more.
        """
        consumer = subscriber.consumer
        if consumer.guard is None or consumer.guard.wants(message):
            return False
        if consumer.view is not None:
            self._finish(consumer, message.sequence)
        else:
            self._cycle.engine.registry.returns.release(consumer, message.sequence)
            self._cycle.engine.dispatcher.poke(consumer.queue.id)
        return True

    def _noted(self, packet_id: int, data: bytes) -> bytes:
        """Send a PUBLISH of QoS 2 once its id is durable; return it if it need not wait."""
        held = self._in_flight.get(packet_id)
        if held is None or held.note or not self._session.is_durable:
            return data

        def note() -> None:
            assert held is not None
            held.note = self._hub.exactly_once.note_sent(self._session, packet_id, held.place)
            self._connection.confirm(data)

        self._act(note)
        return b""

    def _wanted(
        self, subscriber: Subscriber, message: StoredMessage, said: Delivered, topic: str
    ) -> Wanted | None:
        """Return what the client's subscriptions want of a message; None: none takes it."""
        options = subscriber.options
        own = options if subscriber.takes(topic, message.sequence) else None
        if said.is_retained_copy or is_alone(subscriber.topic_filter, options):
            return None if own is None else wanted_by([own])
        return self.overlaps.wanted(topic, own)

    def _topic_of(self, message: StoredMessage, said: Delivered) -> str:
        """Return the topic that a message was sent to."""
        if message.protocol == PROTOCOL:  # an address, whatever others mean by its beginning
            return self._hub.topics.topic_of(said.address)
        return self._hub.topics.topic_of_destination(said.address)

    def _packet(
        self, wanted: Wanted, message: StoredMessage, said: Delivered, topic: str, qos: int
    ) -> Publish:
        is_retained = said.is_retained_copy or (wanted.retain_as_published and said.retain)
        properties: Properties = {}
        if self._version is Version.V5:
            properties = said.properties
            if said.expires_ms:
                left_ms = said.expires_ms - self._cycle.engine.fates.clock_ms()
                properties[Property.MESSAGE_EXPIRY_INTERVAL] = max(0, -(-left_ms // 1000))
            if wanted.identifiers:
                properties[Property.SUBSCRIPTION_IDENTIFIER] = list(wanted.identifiers)
            topic = self._aliased(topic, properties)
        return Publish(topic, message.body, qos, retain=is_retained, properties=properties)

    def _aliased(self, topic: str, properties: Properties) -> str:
        """Set the alias of a topic, if there is one; return what goes out as its name."""
        if not self._limits.topic_aliases:
            return topic
        alias = self._aliases.get(topic)
        if alias is not None:
            properties[Property.TOPIC_ALIAS] = alias
            return ""
        if len(self._aliases) < self._limits.topic_aliases:
            self._aliases[topic] = len(self._aliases) + 1
            properties[Property.TOPIC_ALIAS] = self._aliases[topic]
        return topic

    def _sized(self, packet: Publish, payload_bytes: int = 0) -> bytes:
        """Return a packet as bytes; nothing if it is too large for the client (§3.1.2.11.4)."""
        data = encode_packet(packet, self._version)
        if payload_bytes:
            data = with_payload_bytes(data, payload_bytes)
        if len(data) + payload_bytes <= self._limits.packet_bytes:
            return data
        alias = packet.properties.get(Property.TOPIC_ALIAS)
        if alias is not None and packet.topic:
            del self._aliases[packet.topic]  # the client does not hear of it
        self.oversized += 1
        self._connection.note_line(
            "a message is too large for its client peer=%s client=%r topic=%r bytes=%d allowed=%d",
            self._session.client_id,
            packet.topic,
            len(data) + payload_bytes,
            self._limits.packet_bytes,
            level=logging.WARNING,
        )
        return b""

    def large_start(self, subscriber: Subscriber, given: LargeDelivery) -> LargeStart | None:
        """Return how a large message is sent; None if not at all: it was acknowledged then.

        Args:
            subscriber: Whose it is.
            given: The message.
        """
        (message,) = read_stored(given.head)
        consumer, sequence = subscriber.consumer, message.sequence
        said = delivered(message, self._hub.topics)
        topic = subscriber.topic or self._topic_of(message, said)
        wanted = self._wanted(subscriber, message, said, topic)
        if wanted is None:
            self._finish(consumer, sequence)
            return None
        qos = min(wanted.qos, said.qos)
        packet = self._packet(wanted, message, said, topic, qos)
        if qos:
            self._release_gone(consumer.queue.id, sequence)
            packet.packet_id, is_again = self._in_flight.add(consumer, sequence, qos)
            packet.dup = is_again or message.deliveries > 0
        head = self._sized(packet, given.body.size_bytes)
        if not head:
            if qos:
                self._in_flight.pop(packet.packet_id)
            self._finish(consumer, sequence)
            return None
        if qos < 2 or not self._session.is_durable:
            return LargeStart(head, b"", is_done=not qos)
        return LargeStart(
            head, b"", is_done=False, prepare=lambda: self._note_large(packet.packet_id)
        )

    async def _note_large(self, packet_id: int) -> None:
        """Make the id of a large message of QoS 2 durable."""
        while self._connection.is_open:
            held = self._in_flight.get(packet_id)
            if held is None or held.note:
                return
            try:
                held.note = self._hub.exactly_once.note_sent(self._session, packet_id, held.place)
            except NoRoom:
                await self._cycle.space(self._connection)
            else:
                await self._cycle.durable()

    # --- acknowledgements -------------------------------------------------------------------------

    def puback(self, packet: Puback) -> None:
        """Take the acknowledgement of a message of QoS 1, a refusing one as well (§4.3.2)."""
        held = self._in_flight.get(packet.packet_id)
        if held is None:
            handle = self._connection.handle
            self._act(lambda: self._core.take_puback(handle, packet.packet_id))
            self._go_on()
            return
        if held.qos != 1 or held.consumer is None:
            return
        self._in_flight.pop(packet.packet_id)
        self._finish(held.consumer, held.place[1])
        self._go_on()

    def pubrec(self, packet: Pubrec) -> None:
        """Take the first acknowledgement of a message of QoS 2."""
        packet_id = packet.packet_id
        held = self._in_flight.get(packet_id)
        if held is None or held.qos != 2:
            is_told = self._version is Version.V5  # MQTT 3 has no word for it
            code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if is_told else ReasonCode.SUCCESS
            self._write(Pubrel(packet_id, code))
            return
        consumer = held.consumer
        if consumer is None:  # it came again
            self._connection.confirm(self._bytes(Pubrel(packet_id)))
            return
        if packet.reason_code.is_failure:  # the client will not have it; it ends here (§4.3.3)
            self._in_flight.pop(packet_id)
            self._finish(consumer, held.place[1])
            self._end_note(held.note)
            self._go_on()
            return

        def release() -> None:
            assert consumer is not None
            held.note = self._hub.exactly_once.note_released(
                self._session, packet_id, consumer, held.place[1], held.note
            )
            held.consumer = None
            if consumer.view is not None:
                consumer.view.acknowledge(held.place[1])
            self._connection.confirm(self._bytes(Pubrel(packet_id)))

        self._act(release)

    def pubcomp(self, packet: Pubcomp) -> None:
        """Take the last acknowledgement of a message of QoS 2."""
        held = self._in_flight.get(packet.packet_id)
        if held is None or held.qos != 2 or held.consumer is not None:
            return
        self._in_flight.pop(packet.packet_id)
        self._end_note(held.note)
        self._go_on()

    def _release_gone(self, queue_id: int, sequence: int) -> None:
        """Let the client forget ids of messages of QoS 2 that ended while it was away."""
        for known in self._in_flight.gone(queue_id, sequence):
            self._end_note(known.note)
            if known.qos == 2:
                self._write(Pubrel(known.packet_id))

    def _finish(self, consumer: Consumer, sequence: int) -> None:
        """Acknowledge a message; as soon as there is room."""

        def acknowledge() -> None:
            if not consumer.is_open:
                return
            if consumer.view is not None:
                consumer.view.acknowledge(sequence)
                self._cycle.engine.dispatcher.poke(consumer.queue.id)
            else:
                self._core.acknowledge(consumer.handle, sequence)

        self._act(acknowledge)

    def _end_note(self, note: int) -> None:
        if note:
            self._act(lambda: self._hub.exactly_once.end_note(self._session, note))

    def _act(self, act: Callable[[], object]) -> None:
        """Do something that needs room in the journal, in order, as soon as there is some."""
        if not self._starved:
            try:
                act()
            except NoRoom:
                pass
            else:
                self._cycle.touch()
                return
            self._cycle.spawn(self._go_on_with_room())
        self._starved.append(act)

    async def _go_on_with_room(self) -> None:
        while self._connection.is_open and self._starved:
            await self._cycle.space(self._connection)
            while self._starved and self._connection.is_open:
                try:
                    self._starved[0]()
                except NoRoom:
                    break
                self._starved.popleft()
        self._go_on()

    def _go_on(self) -> None:
        """Send what waits for the window, and let the queues give more."""
        data = []
        while self._waiting and self._room > 0 and not self._starved:
            data.append(self._give(*self._waiting.popleft()))
        if data:
            self._connection.write(b"".join(data))
        self.is_stalled = not self.is_open
        if not self.is_stalled:
            self._cycle.engine.dispatcher.output_ready(self)
        self._cycle.touch()

    def acknowledged(self) -> None:
        """Go on if something waits for the window: the core may have taken PUBACKs."""
        if self.is_stalled and self._room > 0:
            self._go_on()

    def _bytes(self, packet: Pubrel) -> bytes:
        return encode_packet(packet, self._version)

    def _write(self, packet: Pubrel) -> None:
        self._connection.write(self._bytes(packet))


def _encode_by(core: Core, consumer: Consumer, encoding: MqttEncoding | None) -> None:
    core.encode_mqtt(consumer.handle, encoding)
    consumer.is_core_encoding = consumer.is_core_settling = encoding is not None
