"""The WebSocket handler of a connection: a way for the handler of another protocol.

Owns the handshake, the frames that come in, and which protocol is spoken inside. The bytes of
messages are put where the inner handler wants them, and taken by it as if the socket had brought
them; messages need not have anything to do with its frames. A frame is taken as it arrives,
whatever its length, so none is ever whole in memory. Must never interpret what messages hold.
Owner: its connection.

What the client sent stays undecoded while the inner handler takes nothing; the connection does not
read then, so this is at most one read. Frames are taken some hundreds at a time, since short ones
cost more than their bytes; other connections have their turn in between.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

from vespiary_broker.server.detection import detect
from vespiary_broker.server.protocol_handler import (
    INTERNAL_FAILURE,
    LargeStart,
    ProtocolHandler,
    Refusal,
    sentence_of,
)
from vespiary_broker.server.turns import REST
from vespiary_broker.server.web_pages import (
    PageRule,
    any_page,
    is_loopback,
    local_pages,
    own_pages,
    same_place_pages,
)
from vespiary_broker.server.websocket.handshake import (
    Declined,
    http_answer,
    open_websocket,
)
from vespiary_broker.server.websocket.outgoing import OutgoingFrames
from vespiary_codec.wire.mqtt.encoder import split_packets
from vespiary_spec.errors import RemoteProtocolError, VespiaryError
from vespiary_spec.settings import Protocol

if TYPE_CHECKING:
    from vespiary_broker.engine.core import LargeDelivery
    from vespiary_broker.engine.queues import Consumer
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener

READ_BEFORE_LOGIN_BYTES: Final = 16 * 1024
EVENTS_PER_TURN: Final = 512
"""Frames, or parts of them, that are taken before other connections have their turn: some ms."""

MakeInner = Callable[[Protocol, "Connection", "Cycle", "Listener"], ProtocolHandler]


class WebSocketHandler:
    """One client's WebSocket; keeps `protocol_handler.ProtocolHandler`.

    Owner: its connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
        make_inner: Makes the handler of the protocol that is spoken inside.
    """

    def __init__(
        self, connection: Connection, cycle: Cycle, listener: Listener, make_inner: MakeInner
    ) -> None:
        self._connection = connection
        self._cycle = cycle
        self._listener = listener
        self._make_inner = make_inner
        self._limits = listener.acceptor.web_socket
        self._protocol: Protocol | None = None
        self._inner: ProtocolHandler | None = None
        self._head = b""  # of the handshake
        self._declined = b""  # the answer to a handshake that is refused
        self._frames: Frames | None = None
        self._outgoing: OutgoingFrames | None = None
        self._first = b""  # of a client that names no subprotocol
        self._rest = b""  # of a message, while the inner handler takes nothing
        self._message_bytes = 0
        self._is_typed = False  # whether the client speaks in text is known
        self._is_wrong = False  # its frames are, so it is told nothing but how we close

    # --- the handshake ----------------------------------------------------------------------------

    def begin(self, data: bytes) -> None:
        """Take the first bytes of the connection."""
        self._take_head(data)

    def _take_head(self, data: bytes) -> None:
        self._head += data
        found = open_websocket(
            self._head, self._limits, self._listener.acceptor.protocols, self._page_rule()
        )
        if found is None:
            self._connection.note_partial(is_partial=True)
            return
        self._head = b""
        if isinstance(found, Declined):
            self._declined = found.answer
            self._connection.refuse_error(RemoteProtocolError(found.reason))
            return
        self._connection.note_partial(is_partial=False)
        self._connection.transmit(found.answer)
        self._frames = found.frames
        self._outgoing = self._connection.framing = OutgoingFrames(found.frames)
        if found.protocol:
            self._speak(Protocol(found.protocol))
        if found.rest:
            self._frames.receive_data(found.rest)
            self._take_frames()

    def _page_rule(self) -> PageRule:
        """Return which pages may connect here now, of those that `allowed-origins` lets in."""
        is_login_optional = self._cycle.engine.logins.is_login_optional
        if self._listener.is_http:
            return partial(
                own_pages,
                is_on_loopback=is_loopback(self._listener.acceptor.host),
                is_login_optional=is_login_optional,
            )
        if self._connection.certificate_login is not None:
            return same_place_pages
        return local_pages if is_login_optional else any_page

    def _speak(self, protocol: Protocol) -> None:
        assert self._outgoing is not None
        self._protocol = protocol
        self._connection.spoken = f"{protocol} over WebSocket"
        self._outgoing.split = split_packets if protocol is Protocol.MQTT else None
        self._inner = self._make_inner(protocol, self._connection, self._cycle, self._listener)

    # --- bytes ------------------------------------------------------------------------------------

    def read_view(self) -> memoryview:
        """Return where the next bytes are to be read to; `take` has to follow at once."""
        view = self._cycle.buffer.view
        return view if self.is_logged_in else view[:READ_BEFORE_LOGIN_BYTES]

    def take(self, nbytes: int) -> None:
        """Take what was read to `read_view`."""
        data = bytes(self._cycle.buffer.view[:nbytes])
        if self._frames is None:
            self._take_head(data)
            return
        self._frames.receive_data(data)
        self._take_frames()

    def resume(self) -> None:
        """Go on with what was received before the connection stopped taking frames."""
        if self._inner is not None:
            self._inner.resume()
        rest, self._rest = self._rest, b""
        self._give(rest)
        self._take_frames()

    def drop(self) -> None:
        """Forget everything that was received and not taken."""
        self._head = self._first = self._rest = b""
        if self._inner is not None:
            self._inner.drop()

    def _take_frames(self) -> None:
        """Take what is there of frames, as long as the inner handler takes it."""
        connection = self._connection
        if self._frames is None or not connection.is_taking:
            return
        for count, event in enumerate(self._frames.events(), start=1):
            self._take_event(event)
            if not connection.is_taking:
                return
            if count == EVENTS_PER_TURN:
                connection.perform(lambda: REST)
                return

    def _take_event(self, event: Event) -> None:
        match event:
            case BytesMessage():
                self._take_data(event, bytes(event.data))
            case TextMessage() if self._protocol not in (None, Protocol.STOMP):
                self._fail(CloseReason.UNSUPPORTED_DATA, f"{self._protocol} needs binary messages")
            case TextMessage():
                self._take_data(event, event.data.encode())
            case Ping():
                assert self._outgoing is not None
                self._connection.put(self._outgoing.pong(event))
            case CloseConnection():
                self._take_close(event)

    def _take_data(self, event: BytesMessage | TextMessage, data: bytes) -> None:
        if not self._is_typed:
            assert self._outgoing is not None
            self._is_typed = True
            self._outgoing.is_text = isinstance(event, TextMessage)
        self._message_bytes += len(data)
        if self._message_bytes > self._limits.max_message_size:
            self._fail(
                CloseReason.MESSAGE_TOO_BIG,
                f"a message is larger than {self._limits.max_message_size} bytes",
            )
            return
        if event.message_finished:
            self._message_bytes = 0
        if self._inner is None:
            self._detect(data)
        else:
            self._give(data)

    def _give(self, data: bytes) -> None:
        """Have the inner handler take bytes; keep what it does not take now."""
        inner, view = self._inner, memoryview(data)
        while view and self._connection.is_taking:
            assert inner is not None
            room = inner.read_view()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            inner.take(count)
        self._rest = bytes(view) if self._connection.is_open else b""

    def _detect(self, data: bytes) -> None:
        """Find out which protocol a client speaks that names no subprotocol."""
        self._first = (self._first + data).lstrip(b"\r\n")
        verdict = detect(self._first, self._listener.acceptor.protocols)
        if not verdict.is_decided:
            return
        if verdict.protocol is None:
            self._fail(CloseReason.UNSUPPORTED_DATA, "this port does not speak what came")
            return
        self._speak(verdict.protocol)
        data, self._first = self._first, b""
        self._give(data)

    # --- the end ----------------------------------------------------------------------------------

    def _take_close(self, event: CloseConnection) -> None:
        """Answer the client's Close frame, or close because of what wsproto does not take."""
        assert self._frames is not None
        assert self._outgoing is not None
        if self._frames.state is ConnectionState.OPEN:
            self._fail(event.code, event.reason or "the frame is wrong")
            return
        self._outgoing.close_with(event.code, "")
        self._connection.end(b"")

    def _fail(self, code: int, sentence: str) -> None:
        """Close for what the client did wrong with its WebSocket."""
        assert self._outgoing is not None
        self._outgoing.close_with(code, sentence)
        self._is_wrong = True
        self._connection.refuse_error(RemoteProtocolError(sentence))

    def close(self) -> None:
        """Give back everything that the client holds."""
        if self._inner is not None:
            self._inner.close()

    def dismantle(self) -> None:
        """Break the links between the parts of the inner handler."""
        if self._inner is not None:
            self._inner.dismantle()

    def refusal(self, error: VespiaryError, cause: object) -> Refusal:
        """Return the last words: the inner handler's, or those of HTTP; none beside the Close."""
        sentence = sentence_of(error)
        if self._outgoing is None:
            answer = self._declined or http_answer(HTTPStatus.REQUEST_TIMEOUT, sentence)
            return Refusal("websocket-handshake", sentence, answer)
        if self._is_wrong:
            return Refusal("websocket", sentence, b"")
        self._outgoing.close_with(CloseReason.POLICY_VIOLATION, sentence)
        if self._inner is None:
            return Refusal(type(error).__name__, sentence, b"")
        return self._inner.refusal(error, cause)

    def farewell(self, sentence: str) -> bytes:
        """Return the last words to a client that did nothing wrong."""
        if self._outgoing is None:
            return http_answer(HTTPStatus.SERVICE_UNAVAILABLE, sentence)
        is_ours = sentence == INTERNAL_FAILURE
        code = CloseReason.INTERNAL_ERROR if is_ours else CloseReason.GOING_AWAY
        self._outgoing.close_with(code, sentence)
        return b"" if self._inner is None else self._inner.farewell(sentence)

    # --- what the connection asks -----------------------------------------------------------------

    @property
    def protocol(self) -> str:
        """Name and version of what is spoken inside; empty before the login."""
        inner = "" if self._inner is None else self._inner.protocol
        return f"{inner} over WebSocket" if inner else ""

    @property
    def user(self) -> str:
        """Name of the user that it acts for; empty before the login."""
        return "" if self._inner is None else self._inner.user

    @property
    def client_id(self) -> str:
        """Name of the client; empty if it has none."""
        return "" if self._inner is None else self._inner.client_id

    @property
    def subscriptions_count(self) -> int:
        """Consumers that the client has."""
        return 0 if self._inner is None else self._inner.subscriptions_count

    @property
    def is_logged_in(self) -> bool:
        """Whether the login is done."""
        return self._inner is not None and self._inner.is_logged_in

    @property
    def min_read_rate(self) -> int:
        """Bytes a second that an incomplete frame of the inner protocol has to grow by."""
        return 0 if self._inner is None else self._inner.min_read_rate

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a frame of the inner protocol that is not complete."""
        return 0 if self._inner is None else self._inner.partial_bytes

    def expire_transactions(self, before_s: float) -> int:
        """Roll back what was begun before a time; return how many."""
        return 0 if self._inner is None else self._inner.expire_transactions(before_s)

    def displace(self, consumer: Consumer, sentence: str) -> bool:
        """Close a consumer whose client has come again."""
        return self._inner is not None and self._inner.displace(consumer, sentence)

    def large_start(self, consumer: Consumer, given: LargeDelivery) -> LargeStart | None:
        """Return how a large message is sent; None: it is not, and was seen to."""
        assert self._inner is not None
        return self._inner.large_start(consumer, given)
