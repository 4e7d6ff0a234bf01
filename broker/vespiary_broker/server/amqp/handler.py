"""The AMQP 1.0 handler of a connection: layers, open to close, and its last words.

Owns the connection's own state: which layer the client is in, what was agreed upon in `open`, which
channel is which session. Must never know a link: `session` does. Owner: its connection.

States
    HEADER     a protocol header comes next: of the SASL layer, or of AMQP's.
    SASL       the login is under way.
    OPENING    AMQP's header has come; `open` comes next.
    OPEN       sessions.
    CLOSED     `close` was sent; nothing more is taken.

Source: AMQP 1.0 (OASIS, 2012) §2.2, §2.4, §5.3.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import AmqpLimits as ScanLimits
from vespiary_broker.engine.logins import Check, Principal
from vespiary_broker.engine.names import (
    Destination,
    Sender,
    own_form,
    parse_destination,
    plain_address,
)
from vespiary_broker.engine.queue_traits import QueueTraits, traits_of_user
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.server.amqp.conditions import (
    Condition,
    ConnectionRefused,
    error_of,
    told,
)
from vespiary_broker.server.amqp.idle import IdleClocks
from vespiary_broker.server.amqp.intake import Intake
from vespiary_broker.server.amqp.login import SaslLayer, refusal_frame
from vespiary_broker.server.amqp.publishing import Publisher
from vespiary_broker.server.amqp.session import AmqpSession
from vespiary_broker.server.amqp.transacting import TransactionBook
from vespiary_broker.server.protocol_handler import Refusal, Work, sentence_of
from vespiary_codec.wire.amqp import (
    AmqpLimits,
    Begin,
    Close,
    Error,
    Frame,
    Layer,
    Open,
    ProtocolHeader,
    encode_frame,
    name_of,
    protocol_header,
)
from vespiary_codec.wire.amqp import RemoteProtocolError as WireError
from vespiary_codec.wire.amqp.values import Symbol, UInt, UShort
from vespiary_spec.errors import LoginRefused, VespiaryError
from vespiary_spec.settings import RoutingType
from vespiary_spec.version import VERSION

if TYPE_CHECKING:
    from vespiary_broker.engine.core import AmqpTaken, LargeDelivery
    from vespiary_broker.engine.queues import Consumer, Queue
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.store.large_writer import LargeWriter

CAPABILITIES: Final = (
    "sole-connection-for-container",
    "DELAYED_DELIVERY",
    "SHARED-SUBS",
    "ANONYMOUS-RELAY",
)
"""What Qpid JMS looks for in `open`."""
SOLE_CONNECTION: Final = "sole-connection-for-container"
FRAME_BYTES_MIN: Final = 512
_CONTAINER_CHARACTERS_MAX: Final = 1024


class _State(enum.Enum):
    HEADER = enum.auto()
    SASL = enum.auto()
    OPENING = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


class AmqpHandler:
    """One client's AMQP; keeps `protocol_handler.ProtocolHandler`.

    Owner: its connection.

    Attributes:
        principal: Who the client is.
        sender: Whose messages `no-local` keeps away.
        transactions: Those that its coordinators have declared.
        publisher: Sends what it has sent.
        storing: Bodies that are all there, and not yet stored.
        frame_bytes: Largest frame that the client takes.
        channel_max: Highest channel that both sides have.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
    """

    def __init__(self, connection: Connection, cycle: Cycle, listener: Listener) -> None:
        limits = listener.acceptor.amqp
        self.limits = AmqpLimits(
            frame_bytes=limits.max_frame_size, depth=limits.max_nesting, items=limits.max_items
        )
        self.settings = limits
        self.connection = connection
        self.cycle = cycle
        self.listener = listener
        self.principal: Principal | None = None
        self.sender = Sender()
        self.frame_bytes = FRAME_BYTES_MIN
        self.channel_max = 0
        self.transactions = TransactionBook(self)
        self.publisher = Publisher(connection, cycle)
        self.storing: set[LargeWriter] = set()
        self._nodes: dict[int, Queue] = {}
        self._intake = Intake(
            cycle.core, cycle.buffer, self, self.limits, cycle.engine.registry.switches
        )
        # What every turn asks for is bound once.
        self.read_view = self._intake.read_view
        self.drop = self._intake.drop
        self.block = connection.block
        self.rest = connection.rest
        self.note_partial = connection.note_partial
        self.fail_frame = connection.fail_frame
        self._state = _State.HEADER
        self._sasl = SaslLayer(connection, cycle, listener, self._let_in)
        self._sessions: dict[int, AmqpSession] = {}
        self._container = ""
        self._is_header_sent = self._is_open_sent = False
        self._is_counted = False
        self._is_leaving = False

    # --- what the connection asks -----------------------------------------------------------------

    @property
    def protocol(self) -> str:
        """Name and version; empty before `open`."""
        return "AMQP 1.0" if self._container else ""

    @property
    def user(self) -> str:
        """Name of the user that it acts for; empty before the login."""
        return self.principal.name if self.principal is not None else ""

    @property
    def client_id(self) -> str:
        """The container id."""
        return self._container

    @property
    def subscriptions_count(self) -> int:
        """Consumers that the client has."""
        return sum(session.consumers_count for session in self._sessions.values())

    @property
    def is_logged_in(self) -> bool:
        """Whether `open` has come."""
        return self._is_open_sent

    @property
    def min_read_rate(self) -> int:
        """Bytes a second that an incomplete frame has to grow by; 0: any number."""
        return self.settings.min_read_rate

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a frame that is not complete."""
        return self._intake.partial_bytes

    def begin(self, data: bytes) -> None:
        """Take the first bytes of the connection."""
        self._intake.begin(data)
        self.flush()

    def take(self, nbytes: int) -> None:
        """Take what was read to `read_view`."""
        self._intake.take(nbytes)
        self.flush()

    def resume(self) -> None:
        """Go on with what was received before the connection stopped taking frames."""
        self._intake.resume()
        self.flush()

    def flush(self) -> None:
        """Confirm what was taken, when it is durable."""
        for session in self._sessions.values():
            session.flush()

    def close(self) -> None:
        """Give back everything that the client holds."""
        cycle = self.cycle
        is_orderly = self._is_leaving or cycle.is_stopping or bool(cycle.cordon)
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.close(is_counted=not is_orderly)
        for writer in list(self.storing):
            writer.discard()
        self.transactions.forget()
        for node in list(self._nodes.values()):
            self.drop_node(node)
        if self._is_counted:
            self._is_counted = False
            cycle.engine.registry.limits.end_session(self.user)
        if sessions:
            cycle.touch()

    def dismantle(self) -> None:
        """Break the links between its parts."""
        self._intake.dismantle()
        del self._sasl, self.transactions

    def expire_transactions(self, before_s: float) -> int:
        """Roll back what was declared before a time; return how many."""
        return self.transactions.expire(before_s)

    def displace(self, consumer: Consumer, sentence: str) -> bool:
        """Detach the link of a consumer whose client has come again; what it held goes back."""
        return any(session.displace(consumer, sentence) for session in self._sessions.values())

    def refusal(self, error: VespiaryError, cause: object) -> Refusal:  # noqa: ARG002
        """Return a close for what the client did, behind what has to stand before it."""
        kind = error.violation.value if isinstance(error, WireError) else type(error).__name__
        sentence = error.reason if isinstance(error, WireError) else sentence_of(error)
        return Refusal(kind, sentence, self._last_words(error_of(error), error))

    def farewell(self, sentence: str) -> bytes:
        """Return a close that is not about a frame of the client."""
        return self._last_words(told(Condition.CONNECTION_FORCED, sentence), None)

    def large_start(self, consumer: Consumer, given: LargeDelivery) -> None:
        """Send a large message in transfers, among others."""
        any(session.stream(consumer, given) for session in self._sessions.values())

    # --- what the intake asks ---------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """The core's handle of the connection."""
        return self.connection.handle

    @property
    def peer(self) -> str:
        """Where the client is."""
        return self.connection.peer

    @property
    def is_open(self) -> bool:
        """Whether frames are still taken, if not now."""
        return self.connection.is_open

    @property
    def is_taking(self) -> bool:
        """Whether the next frame may be taken now."""
        return self.connection.is_taking

    @property
    def takes_blocked(self) -> bool:
        """Whether a policy decides about frames that find no room."""
        return self.connection.takes_blocked

    def take_frame(self, frame: ProtocolHeader | Frame) -> None:
        """Handle a frame; reading waits if it needs time."""
        self.connection.perform(lambda: self._handle(frame), frame)

    def taken(self, taken: list[AmqpTaken]) -> None:
        """Count what the core has taken."""
        for channel, handle, messages in taken:
            self._sessions[channel].taken(handle, messages)

    def refuse_error(self, error: VespiaryError) -> None:
        """End the connection for what the client did wrong."""
        self.connection.refuse_error(error)

    # --- the layers -------------------------------------------------------------------------------

    def _handle(self, event: ProtocolHeader | Frame) -> Work:
        if isinstance(event, ProtocolHeader):
            return self._begin_layer(event.layer)
        body = event.body
        if self._state is _State.SASL:
            return self._sasl.take(body)
        if body is None or self._state is _State.CLOSED:
            return None
        if self._state is _State.OPENING:
            if not isinstance(body, Open):
                raise _misplaced(body, "before open")
            return self._open(body)
        match body:
            case Open():
                raise _misplaced(body, "behind open")
            case Close():
                return self._close(body)
            case Begin():
                return self._begin(event.channel, body)
        session = self._sessions.get(event.channel)
        if session is None:
            raise _misplaced(body, f"on channel {event.channel}, which has no session")
        work = session.take(body, event.payload)
        if session.is_over:
            self._sessions.pop(event.channel, None)
        return work

    def _begin_layer(self, layer: Layer) -> Work:
        if layer is Layer.SASL and self._state is _State.HEADER and self.principal is None:
            self._state = _State.SASL
            self.connection.write(protocol_header(Layer.SASL))
            self._sasl.begin()
            return None
        if layer is not Layer.AMQP:
            raise ConnectionRefused(
                Condition.NOT_IMPLEMENTED,
                f"the layer {layer.name} does not begin here",
                allowed="TLS has ports of its own; SASL comes once, and first",
            )
        if self.principal is None:
            try:
                found = self.cycle.engine.logins.begin(
                    None, None, self.connection.peer, self.cycle.loop.time()
                )
            except LoginRefused:
                # The layer that a client has to begin with (§2.2).
                self.cycle.count_error("LoginRefused")
                self.connection.end(protocol_header(Layer.SASL))
                return None
            assert not isinstance(found, Check)
            self.principal = found
        self._state = _State.OPENING
        self._send_header()
        return None

    def _let_in(self, principal: Principal) -> None:
        """Go on with AMQP: the login is done."""
        self.principal = principal
        self._intake.expect_header()
        self._state = _State.HEADER

    def _send_header(self) -> None:
        if not self._is_header_sent:
            self._is_header_sent = True
            self.connection.write(protocol_header(Layer.AMQP))

    # --- open, begin and close --------------------------------------------------------------------

    def _open(self, asked: Open) -> Work:
        container = asked.container_id
        if len(container) > _CONTAINER_CHARACTERS_MAX or "\0" in container:
            raise _invalid_container(
                f"the container id has {len(container)} characters",
                f"at most {_CONTAINER_CHARACTERS_MAX}, and no NUL",
            )
        if asked.max_frame_size < FRAME_BYTES_MIN:
            raise ConnectionRefused(
                Condition.INVALID_FIELD,
                f"frames of {asked.max_frame_size} bytes are too small",
                allowed=f"{FRAME_BYTES_MIN} or more",
            )
        if SOLE_CONNECTION in asked.desired_capabilities and self._is_used(container):
            raise _invalid_container(
                f"the container id {container[:100]!a} is in use by another connection",
                "one of its own",
            )
        self.cycle.engine.registry.limits.begin_session(self.user)
        self._is_counted = True
        self._container = self.sender.client_id = container
        self.frame_bytes = min(asked.max_frame_size, self.settings.max_frame_size)
        self.channel_max = min(asked.channel_max, self.settings.channel_max)
        self._state = _State.OPEN
        self.connection.logged_in()
        self._intake.opened()
        limits = ScanLimits(self.limits.frame_bytes, self.listener.scanned_payload_bytes)
        self.cycle.core.set_ready_amqp(self.connection.handle, limits)
        self._send_open()
        idle_in_s = self.settings.amqp_idle_timeout / 1000
        IdleClocks(self.connection, (asked.idle_time_out or 0) / 1000, idle_in_s)
        return None

    def _is_used(self, container: str) -> bool:
        handlers = (each.handler for each in self.cycle.connections.values())
        return any(
            isinstance(one, AmqpHandler)
            and one is not self
            and (one.user, one.client_id) == (self.user, container)
            for one in handlers
        )

    def _send_open(self, *, is_failed: bool = False) -> None:
        self.connection.write(self._open_frame(is_failed=is_failed))
        self._is_open_sent = True

    def _open_frame(self, *, is_failed: bool) -> bytes:
        acceptor, settings = self.listener.acceptor, self.settings
        properties: dict[Any, Any] = {
            Symbol("product"): "Vespiary",
            Symbol("version"): VERSION,
            Symbol("queue-prefix"): acceptor.anycast_prefix,
            Symbol("topic-prefix"): acceptor.multicast_prefix,
        }
        if is_failed:
            properties[Symbol("amqp:connection-establishment-failed")] = True
        answer = Open(
            container_id="vespiary",
            max_frame_size=UInt(settings.max_frame_size),
            channel_max=UShort(settings.channel_max),
            idle_time_out=UInt(settings.amqp_idle_timeout // 2) or None,
            offered_capabilities=tuple(map(Symbol, CAPABILITIES)),
            properties=properties,
        )
        return encode_frame(Frame(body=answer))

    def _begin(self, channel: int, asked: Begin) -> Work:
        if channel > self.channel_max:
            raise ConnectionRefused(
                Condition.NOT_ALLOWED,
                f"a session begins on channel {channel}",
                allowed=f"0 to {self.channel_max}",
            )
        if channel in self._sessions:
            raise ConnectionRefused(
                Condition.NOT_ALLOWED, f"a session begins on channel {channel}, which has one"
            )
        session = AmqpSession(self, channel, asked)
        self._sessions[channel] = session
        session.begin()
        return None

    def _close(self, asked: Close) -> Work:  # noqa: ARG002 (its error is the client's affair)
        self.flush()
        self._is_leaving = True
        self._state = _State.CLOSED
        self.connection.end(encode_frame(Frame(body=Close())))
        return None

    def _last_words(self, error: Error, cause: VespiaryError | None) -> bytes:
        if self._state is _State.SASL:
            return refusal_frame(cause) if isinstance(cause, LoginRefused) else b""
        if self._state is _State.HEADER:
            is_let_in = self.principal is not None or self.cycle.engine.logins.is_login_optional
            return protocol_header(Layer.AMQP if is_let_in else Layer.SASL)
        if self._state is _State.CLOSED:
            return b""
        self.flush()
        self._state = _State.CLOSED
        data = b"" if self._is_open_sent else self._open_frame(is_failed=True)
        return data + encode_frame(Frame(body=Close(error=error)))

    # --- what sessions use ------------------------------------------------------------------------

    def send(self, channel: int, body: object, payload: bytes = b"") -> None:
        """Send a frame; nothing is sent behind a close."""
        if not self.connection.is_open:
            return
        self.connection.write(encode_frame(Frame(channel, body, payload)))

    def confirm(self, channel: int, body: object) -> None:
        """Send a frame once everything staged so far is durable.

        Durability: it leaves with the flush that covers what was staged before, or never.
        """
        if not self.connection.is_open:
            return
        self.connection.confirm(encode_frame(Frame(channel, body)))

    def destination_of(self, text: str, kind: RoutingType | None) -> Destination:
        """Return what an address means.

        Args:
            text: The address.
            kind: What its terminus, or the message, asks for; None for nothing.

        Raises:
            RemoteProtocolError: It means nothing.
        """
        acceptor = self.listener.acceptor
        return parse_destination(
            text,
            anycast_prefix=acceptor.anycast_prefix,
            multicast_prefix=acceptor.multicast_prefix,
            routing_type=kind,
            user=self.user,
            sender=self.sender,
        )

    @property
    def prefixes(self) -> tuple[str, str]:
        """Prefixes of queues and of topics; empty for none."""
        acceptor = self.listener.acceptor
        return acceptor.anycast_prefix, acceptor.multicast_prefix

    def own_form(self, text: str) -> str:
        """Return an address as clients of this broker write it.

        Raises:
            RemoteProtocolError: It means nothing.
        """
        return own_form(text, *self.prefixes)

    def plain_address(self, text: str) -> str:
        """Return an address without the prefix and the queue that it may have.

        Raises:
            RemoteProtocolError: It means nothing.
        """
        return plain_address(self.own_form(text), *self.prefixes)

    @property
    def traits(self) -> QueueTraits:
        """Traits of a queue that is made for the client."""
        return traits_of_user(self.user)

    def traits_with(self, selector: str) -> QueueTraits:
        """Return traits of a queue that takes in what matches a selector."""
        return replace(self.traits, selector=compile_filter(selector)) if selector else self.traits

    def keep_node(self, queue: Queue) -> None:
        """Note a queue that goes with the client, if not before."""
        self._nodes[queue.id] = queue

    def drop_node(self, queue: Queue) -> None:
        """Delete a queue that was made for a link, unless somebody else still uses it."""
        self._nodes.pop(queue.id, None)
        if not queue.is_deleted and not queue.consumers:
            self.cycle.engine.registry.drop_queue(queue)


def _misplaced(body: object, where: str) -> ConnectionRefused:
    return ConnectionRefused(Condition.ILLEGAL_STATE, f"{name_of(body)} comes {where}")


def _invalid_container(sentence: str, allowed: str) -> ConnectionRefused:
    return ConnectionRefused(
        Condition.INVALID_FIELD,
        sentence,
        allowed=allowed,
        info={Symbol("invalid-field"): Symbol("container-id")},
    )
