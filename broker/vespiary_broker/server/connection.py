"""One connection: its transport, its clocks, and the reasons not to read. How it ends: `ending`.

Owns the transport and the core's handle of the connection. The first bytes tell the protocol
(`detection`); from then on bytes go to its handler. Must never interpret them, nor work for one
message alone. Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import LargeDelivery
from vespiary_broker.engine.logins import Principal
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.server.buffers import READ_FIRST_BYTES, READ_LAST_BYTES
from vespiary_broker.server.certificates import certificate_user
from vespiary_broker.server.closed_clients import descriptor_of
from vespiary_broker.server.connection_state import State
from vespiary_broker.server.cycle import Cycle
from vespiary_broker.server.dead_peers import is_vanished
from vespiary_broker.server.deadline import Deadline
from vespiary_broker.server.detection import Foreign, detect
from vespiary_broker.server.ending import LINGER_S, Ending
from vespiary_broker.server.handlers import make_handler, make_websocket, refusal_of_unknown
from vespiary_broker.server.large_stream import LargeStream
from vespiary_broker.server.protocol_handler import (
    INTERNAL_FAILURE,
    Framing,
    ProtocolHandler,
    Work,
    kind_of,
    sentence_of,
    too_slow,
)
from vespiary_broker.server.throttle import Throttle
from vespiary_broker.server.turns import REST, Begun, Rest
from vespiary_spec.errors import LimitExceeded, LoginRefused, UserRemoved, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.listener import Listener

OUTPUT_BYTES_MAX: Final = 256 * 1024
"""Unsent bytes above which a connection gets no more messages."""
CHOKE_BYTES: Final = 2 * OUTPUT_BYTES_MAX
"""Unsent bytes above which a connection is not read: it does not read its receipts either."""

_REFUSED: Final = "client refused peer=%s kind=%s reason=%r"

log = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """One connection of one client.

    Invariant: the core's handle is valid, and in use by nobody else, until `_forget`.

    Owner: the event loop.

    Args:
        cycle: What all connections share.
        listener: The listener that it came through.
        peer: Address that it is forwarded for; empty: that of its socket.
        peer_port: Port that goes with it.
    """

    def __init__(
        self, cycle: Cycle, listener: Listener, peer: str = "", peer_port: int = 0
    ) -> None:
        self.handle = -1
        self.peer = peer
        self.peer_port = peer_port
        self.descriptor = -1
        self.is_client_closed = False  # its client closed its side while it was not read
        self.is_write_paused = False
        self.bytes_in = 0
        self.spoken = ""  # the protocol that the client was found to speak, if any
        self.heard_at_s = self.written_at_s = self._login_since_s = 0.0
        self.connected_at_s = 0.0
        self.settled_at_s = self.unanswered_since_s = 0.0  # as `dead_peers` has seen it
        self.handler: ProtocolHandler | None = None
        self.framing: Framing | None = None  # what is sent is wrapped by it
        self.listener = listener
        self._cycle = cycle
        self._first = b""  # of a connection whose protocol is not known yet
        self._stream: LargeStream | None = None  # a large message is on its way out
        self._is_backlogged = False  # bytes of a large body wait for the disk
        self._state = State.OPEN
        self._transport: asyncio.Transport | None = None
        self._partial_since_s = 0.0
        self.is_busy = False  # a frame is being handled by a task
        self._is_blocked = False  # the journal has no room
        self._is_choked = False  # the client does not read
        self._throttle = Throttle(cycle)
        self._ending: Ending | None = None
        self._timers: dict[str, asyncio.TimerHandle | Deadline] = {}
        self._room: asyncio.Future[None] | None = None  # somebody waits to write

    # --- the transport's callbacks ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection in, or turn it away."""
        cycle, listener = self._cycle, self.listener
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        if not self.peer:
            place = transport.get_extra_info("peername")
            self.peer, self.peer_port = (str(place[0]), int(place[1])) if place else ("?", 0)
        self.descriptor = descriptor_of(transport)
        self.heard_at_s = self.written_at_s = self.connected_at_s = cycle.loop.time()
        self._login_since_s = self.connected_at_s
        assert self._transport is not None
        self._transport.set_write_buffer_limits(OUTPUT_BYTES_MAX - 1, OUTPUT_BYTES_MAX // 4)
        has_place = listener.add(self)
        cycle.connections_total += 1
        if cycle.failure or cycle.cordon or not has_place:
            self._turn_away()
            return
        self.handle = cycle.core.open_connection()
        cycle.connections[self.handle] = self
        self.set_deadline("first byte", listener.timing.first_byte_s, self._check_first_byte)
        if listener.acceptor.handshake_timeout:
            self.set_deadline("login", listener.acceptor.handshake_timeout, self._check_login)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (the protocol's signature)
        """Return where the next bytes go."""
        if self.handler is None:
            return self._cycle.buffer.view[:READ_FIRST_BYTES]
        if self.framing is not None and self._state is not State.OPEN:
            return self._cycle.buffer.view[:READ_LAST_BYTES]
        return self.handler.read_view()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.heard_at_s = self._cycle.loop.time()
        self.bytes_in += nbytes
        if self._state is State.OPEN:
            self._cycle.tell_time()
            if self.handler is None:
                self._take_first(nbytes)
            else:
                self.handler.take(nbytes)
                self._throttle.charge(self, self.handler.user, nbytes)
                # The loop would read on at once, as long as a read fills the buffer.
                if self._cycle.turns.is_over and self.is_taking:
                    self.rest()
            if self._is_holding:
                self.update_reading()
            self._cycle.received()
        elif self.framing is not None:
            self.framing.discard(bytes(self._cycle.buffer.view[:nbytes]))
            if self.framing.is_over:
                self._close_transport()

    def _take_first(self, nbytes: int) -> None:
        """Find out which protocol the client speaks."""
        self._first = (self._first + bytes(self._cycle.buffer.view[:nbytes])).lstrip(b"\r\n")
        verdict = detect(self._first, self.listener.acceptor.protocols)
        if not verdict.is_decided:
            self.note_partial(is_partial=True)
            return
        if verdict.foreign is not None:
            self._refuse_foreign(verdict.foreign)
            return
        data, self._first = self._first, b""
        if verdict.is_websocket:
            self.spoken = "websocket"
            self.handler = make_websocket(self, self._cycle, self.listener)
        else:
            self.spoken = str(verdict.protocol)
            self.handler = make_handler(verdict.protocol, self, self._cycle, self.listener)
        self.handler.begin(data)

    def eof_received(self) -> bool:
        """Let the transport close when the client has closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back everything that the connection had."""
        if is_vanished(exc):
            self._note_dead()
        elif exc is not None:
            log.debug("connection lost peer=%s reason=%r", self.peer, str(exc))
        self._state = State.CLOSED
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.listener.remove(self)
        self._drop_input()
        self.descriptor = -1  # another connection may have it from now on
        if self._stream is not None:
            self._stream.cut()
        self._let_write()
        self._cycle.turns.leave(self, self._give_back)

    def _give_back(self) -> None:
        if self.handler is not None:
            self.handler.close()
        if not self.is_busy:
            self._forget()

    def pause_writing(self) -> None:
        """Note that the client reads too slowly."""
        self.is_write_paused = True

    def resume_writing(self) -> None:
        """Go on when the client has caught up."""
        self.is_write_paused = False
        if self._stream is not None:
            self._stream.go_on()
            return
        self._is_choked = False
        self._let_write()
        self._cycle.engine.dispatcher.output_ready(self)
        self._cycle.touch()
        self.update_reading()

    async def writable(self) -> None:
        """Wait until the client has read most of what was sent, or the connection is gone."""
        while self.is_write_paused and self._state is not State.CLOSED:
            if self._room is None:
                self._room = self._cycle.loop.create_future()
            await asyncio.shield(self._room)

    def _let_write(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    # --- what the session and the engine use ------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether frames are still taken."""
        return self._state is State.OPEN

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and not sent yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    @property
    def certificate_login(self) -> Callable[[], Principal] | None:
        """Logs the client in by its certificate; None if it has none that stands for anybody."""
        user = certificate_user(self._transport, self.listener.user_of)
        return partial(self._cycle.engine.logins.by_certificate, user, self.peer) if user else None

    @property
    def is_listening(self) -> bool:
        """Whether a client that sends is heard: reading has no reason to wait."""
        return not (self._is_holding or self._is_choked)

    def now_s(self) -> float:
        """Return the loop's clock."""
        return self._cycle.loop.time()

    @property
    def is_streaming(self) -> bool:
        """Whether a large message is on its way out."""
        return self._stream is not None

    def room_bytes(self) -> int:
        """Return how many bytes of messages may be given to the connection now."""
        if self._state is not State.OPEN or self._transport is None or self._stream is not None:
            return 0
        room_bytes = OUTPUT_BYTES_MAX - self._transport.get_write_buffer_size()
        if room_bytes <= 0 and not self.is_write_paused:
            self._cycle.recheck(self)
        return room_bytes

    def write(self, data: bytes) -> None:
        """Send bytes; behind a large message that is on its way out."""
        stream = self._stream
        if stream is not None:
            stream.waiting += data
            if len(stream.waiting) > CHOKE_BYTES:
                self._is_choked = True
                self.update_reading()
            return
        self.transmit(data)

    def transmit(self, data: bytes, *, total_bytes: int = 0) -> None:
        """Send bytes at once.

        Args:
            data: The bytes.
            total_bytes: As for `protocol_handler.Framing.wrap`.
        """
        framing = self.framing
        self.put(data if framing is None else framing.wrap(data, total_bytes=total_bytes))

    def put(self, data: bytes) -> None:
        """Send bytes at once, as they are."""
        transport = self._transport
        if not data or transport is None or transport.is_closing():
            return
        transport.write(data)
        self.written_at_s = self._cycle.loop.time()
        if self.is_write_paused and transport.get_write_buffer_size() > CHOKE_BYTES:
            self._is_choked = True
            self.update_reading()

    def stream(self, consumer: Consumer, given: LargeDelivery) -> None:
        """Send a large message, in pieces.

        Nothing else is sent before it is out, but where the protocol has frames for pieces.
        """
        assert self._cycle.large is not None
        assert self._stream is None
        assert self.handler is not None
        start = self.handler.large_start(consumer, given)
        if start is None:
            return
        self._stream = LargeStream(self, self._cycle, self._cycle.large, consumer, given, start)
        self._cycle.spawn(self._stream.run())

    def stream_ended(self, stream: LargeStream) -> None:
        """Send what waited behind a large message, and take the next messages."""
        if self._stream is not stream:
            return
        self._stream = None
        if self._state is State.CLOSED:
            return
        if stream.waiting:
            self.write(bytes(stream.waiting))
        if self._ending is not None:
            self._ending.stream_ended()
            return
        if not self.is_write_paused:
            self._is_choked = False
            self.update_reading()
        self._cycle.engine.dispatcher.output_ready(self)
        self._cycle.touch()

    def confirm(self, data: bytes) -> None:
        """Send a receipt once everything staged so far is durable."""
        self._cycle.core.receipt(self.handle, data)

    @property
    def is_output_waiting(self) -> bool:
        """Whether the core holds receipts back until a flush."""
        return self._cycle.core.output_waiting(self.handle) > 0

    def release(self, data: bytes) -> None:
        """Send receipts that the core has released."""
        if self._state in (State.OPEN, State.ENDING):
            self.write(data)
            if self._ending is not None:
                self._ending.released()

    def logged_in(self) -> None:
        """Leave the login and its clocks behind."""
        self.cancel_timer("first byte")
        self.cancel_timer("login")

    def refuse(self, sentence: str) -> None:
        """Tell a client that did nothing wrong why its connection ends, and end it."""
        data = b"" if self.handler is None else self.handler.farewell(sentence)
        if self.handler is None:
            data = refusal_of_unknown(sentence, "", self.listener.acceptor.protocols)
        self.end(data, is_patient=False)

    def end(self, data: bytes, *, is_patient: bool = True, is_confirm: bool = False) -> None:
        """Send a last frame behind the receipts that are due before it; then close.

        Durability: a last frame that confirms leaves with the flush that covers it, or never.

        Args:
            data: The frame; empty to close without one.
            is_patient: Whether a large message that is half sent is sent to its end before; the
                connection is cut off otherwise, since there is no way to say more.
            is_confirm: Whether it says that something is durable.
        """
        if self._state is not State.OPEN:
            return
        self._state = State.ENDING
        self._drop_input()
        is_ordered = False
        if self.handler is not None:
            is_ordered = bool(data) and self.handler.is_logged_in and not self._cycle.failure
            self.handler.close()
        self._drop_stream()
        if self.is_streaming and not (data and is_patient):
            self.abort()
        elif not data and self.framing is None:
            self._close_transport()
        else:
            self._ending = Ending(self)
            self._ending.begin(data, is_ordered=is_ordered, is_confirm=is_confirm)
            if is_ordered:
                self._cycle.touch()

    def abort(self) -> None:
        """Cut the connection off."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def dead_peer_timeout_s(self) -> int:
        """Seconds without an answer of the peer's host after which it counts as gone; 0: never."""
        return self.listener.acceptor.dead_peer_timeout

    def end_dead(self) -> None:
        """Cut the connection off: its peer vanished."""
        self._note_dead()
        self.abort()

    def _note_dead(self) -> None:
        self._cycle.count_error("dead-peer")
        self.note_line("client vanished, its host does not answer peer=%s")

    def note_line(self, event: str, *details: str | int, level: int = logging.INFO) -> None:
        """Log what became of this client, as far as the log has room for such lines.

        Args:
            event: The line, with places for the peer and the details; one of few.
            details: What else it says.
            level: That of the line.
        """
        self._cycle.client_lines.note(
            event,
            self.peer,
            *details,
            listener=self.listener.acceptor.name,
            now_s=self._cycle.loop.time(),
            level=level,
        )

    def displace(self, consumer: Consumer, sentence: str) -> bool:
        """Close a consumer because its client came again; False: its protocol has no such thing.

        Args:
            consumer: The consumer, of this connection.
            sentence: What the client is told.
        """
        if self.handler is None or not self.handler.displace(consumer, sentence):
            return False
        self._cycle.count_error("taken-over")
        event = "consumer taken over by another connection peer=%s queue=%s"
        self.note_line(event, consumer.queue.name)
        return not consumer.is_open

    # --- what the handler uses --------------------------------------------------------------------

    @property
    def is_taking(self) -> bool:
        """Whether the next frame may be taken now."""
        return self._state is State.OPEN and not self.is_busy and not self._is_blocked

    @property
    def _is_holding(self) -> bool:
        is_waiting = self.is_busy or self._is_blocked or self._is_backlogged
        return is_waiting or self._throttle.is_pausing

    @property
    def takes_blocked(self) -> bool:
        """Whether the session decides about frames that find no room."""
        return self._cycle.full_disk is not None

    def block(self) -> None:
        """Take no frame until the journal has room."""
        self._is_blocked = True
        self._cycle.block(self)

    def rest(self) -> None:
        """Take no frame before the next turn of the event loop: this one has no time for more."""
        self.is_busy = True
        self._cycle.turns.begin(self, self._finish(REST, None), is_rest=True)

    def perform(self, act: Callable[[], Work], cause: object = None) -> None:
        """Do what a frame asks for; reading waits if that needs time.

        Args:
            act: Does it, and returns what is left to do.
            cause: The frame, for the handler's words if it fails.
        """
        self._cycle.frames += 1
        turns = self._cycle.turns
        try:
            work = turns.started(self, act()) or turns.rest()
        except VespiaryError as error:
            self.refuse_error(error, cause)
        except Exception:
            log.exception("frame failed peer=%s frame=%s", self.peer, kind_of(cause))
            self.fail_frame()
        else:
            if work is not None:
                self.is_busy = True
                is_rest = isinstance(work, Rest | Begun)
                turns.begin(self, self._finish(work, cause), is_rest=is_rest)

    async def _finish(self, work: Awaitable[None], cause: object) -> None:
        """Wait for a frame that needs time, then go on."""
        try:
            await work
        except VespiaryError as error:
            self.refuse_error(error, cause)
        except Exception:
            log.exception("frame failed peer=%s frame=%s", self.peer, kind_of(cause))
            self.fail_frame()
        finally:
            self.is_busy = False
            self._cycle.turns.end(self, is_watched=self._throttle.is_pausing)
            if self._state is not State.OPEN and self.handler is not None:
                self.handler.close()
            if self._state is State.CLOSED:
                self._forget()
        self.go_on()

    def hold_reading(self, *, held: bool) -> None:
        """Stop reading because bytes of a large body wait for the disk, or go on."""
        self._is_backlogged = held
        self.update_reading()

    def go_on(self) -> None:
        """Take frames again after the reason not to is gone: first what was received before."""
        self._is_blocked = False
        if self.is_taking and self.handler is not None:
            self._cycle.tell_time()
            self.handler.resume()
        self.update_reading()
        self._cycle.touch()

    def refuse_error(
        self, error: VespiaryError, cause: object = None, *, is_patient: bool = True
    ) -> None:
        """Tell the client what it did wrong, and end the connection.

        Args:
            error: What it did.
            cause: The frame that it is about; None: no frame.
            is_patient: As of `end`.
        """
        if self.handler is None:
            kind, sentence = type(error).__name__, sentence_of(error)
            body = f"{error}\n{error.details}The connection is closed.\n"
            data = refusal_of_unknown(sentence, body, self.listener.acceptor.protocols)
        else:
            kind, sentence, data = self.handler.refusal(error, cause)
        self._cycle.count_error(kind)
        if isinstance(error, LoginRefused) and not isinstance(error, UserRemoved):
            self._cycle.passwords.failures.note(
                error,
                protocol=self.spoken,
                listener=self.listener.acceptor.name,
                peer=self.peer,
                now_s=self._cycle.loop.time(),
            )
        else:
            self.note_line(_REFUSED, kind, sentence)
        # A decoder keeps its error, whose frames refer to the decoder and to this connection.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        self.end(data, is_patient=is_patient)

    def _refuse_foreign(self, foreign: Foreign) -> None:
        """Turn a client away that speaks another protocol, in its own words if it has any."""
        error = foreign.error(self.listener.acceptor.protocols)
        if not foreign.reply:
            self.refuse_error(error)
            return
        self._cycle.count_error("foreign-protocol")
        self.note_line(_REFUSED, "foreign-protocol", str(error))
        self.end(foreign.reply)

    def fail_frame(self) -> None:
        """End the connection for what we did wrong; the log says what."""
        self._cycle.count_error("internal")
        self.refuse(INTERNAL_FAILURE)

    def update_reading(self) -> None:
        """Read, or stop reading, as the reasons say."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._state is State.CLOSED:
            return
        wanted = self._state is not State.OPEN or not (self._is_holding or self._is_choked)
        if wanted != transport.is_reading():
            if wanted:
                self._partial_since_s = self._cycle.loop.time()
                transport.resume_reading()
            else:
                transport.pause_reading()

    # --- the end ----------------------------------------------------------------------------------

    def _turn_away(self) -> None:
        """Refuse a connection that never was one."""
        if reason := self._cycle.failure or self._cycle.cordon:
            self.refuse(reason)
        else:
            self.listener.turn_away(self, self._cycle)

    def linger(self) -> None:
        """Say that nothing more comes, and throw away what the client still sends."""
        self._state = State.LINGERING
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.framing is not None:
            self.put(self.framing.end())
            if self.framing.is_over:
                self._close_transport()
                return
        elif transport.can_write_eof():
            transport.write_eof()
        self.update_reading()

    def progress(self) -> tuple[int, int]:
        """Return two numbers that both stay as they are only if the client reads nothing."""
        return self._stream.sent_bytes if self._stream is not None else 0, self.unsent_bytes

    def _drop_stream(self) -> None:
        """Forget a large message of which nothing was sent."""
        stream = self._stream
        if stream is not None and not stream.sent_bytes:
            self._stream = None
            stream.cut()
            if stream.waiting:
                self.write(bytes(stream.waiting))

    def _close_transport(self) -> None:
        self._state = State.LINGERING
        if self._transport is not None:
            self._transport.close()
            self.set_deadline("linger", LINGER_S, lambda _: self.abort())

    def _drop_input(self) -> None:
        self._first = b""
        self.note_partial(is_partial=False)
        if self.handler is not None:
            self.handler.drop()
        self._cycle.unblock(self)
        self._is_blocked = self._is_backlogged = False
        self._throttle.end(self)

    def _forget(self) -> None:
        """Give the core's handle back, and take apart what refers to this; nothing uses either."""
        cycle = self._cycle
        if self.handler is not None:
            self.handler.dismantle()
        self.handler = self.framing = self._ending = None
        cycle.engine.dispatcher.forget(self)
        if self.handle >= 0:
            del cycle.connections[self.handle]
            cycle.core.close_connection(self.handle)
            self.handle = -1
            cycle.touch()

    # --- clocks -----------------------------------------------------------------------------------

    def set_timer(self, name: str, delay_s: float, action: Callable[[], None]) -> None:
        """Schedule `action` after `delay_s`, replacing the timer of the same name.

        What judges the client needs `set_deadline`.
        """
        self.cancel_timer(name)
        self._timers[name] = self._cycle.loop.call_later(delay_s, action)

    def set_deadline(self, name: str, delay_s: float, judge: Callable[[float], None]) -> None:
        """Schedule `judge` after `delay_s` and a read, replacing the timer of the same name.

        Args:
            name: Name of the timer, for `cancel_timer` too.
            delay_s: Seconds until the deadline.
            judge: Called with the loop's clock from before that read (`Deadline`).
        """
        self.cancel_timer(name)
        self._timers[name] = Deadline(self._cycle.loop, delay_s, judge)

    def cancel_timer(self, name: str) -> None:
        """Cancel the timer or deadline of that name, if there is one."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

    def _check_first_byte(self, _now_s: float) -> None:
        if self.bytes_in == 0:
            seconds = self.listener.timing.first_byte_s
            self.refuse_error(LimitExceeded(f"nothing was sent within {seconds:g} seconds"))

    def renew_login_time(self) -> None:
        """Give the client the time for its login again, as it has been asked for more.

        SCRAM makes it compute all rounds of the hash, seconds on a small machine or for an
        application that opens many connections at once.
        """
        if "login" in self._timers:
            self._login_since_s = self._cycle.loop.time()
            seconds = self.listener.acceptor.handshake_timeout
            self.set_deadline("login", seconds, self._check_login)

    def _check_login(self, now_s: float) -> None:
        """End the connection, unless its login was read only after the deadline.

        Then what remains to be done (the check of a password, further steps of the login) has the
        same time once more.
        """
        seconds = self.listener.acceptor.handshake_timeout
        if self.heard_at_s < self._login_since_s + seconds:
            self._refuse_login(now_s)
        else:
            self.set_deadline("login", seconds, self._refuse_login)

    def _refuse_login(self, _now_s: float) -> None:
        seconds = self.listener.acceptor.handshake_timeout
        if self.is_busy:  # it waits for us: its password has not been checked yet
            self.set_deadline("login", seconds, self._refuse_login)
            return
        self.refuse_error(LimitExceeded(f"no login within {seconds} seconds"))

    def note_partial(self, is_partial: bool, *, is_new: bool = False) -> None:
        """Start or stop the clock of an incomplete frame.

        Args:
            is_partial: Whether part of a frame has been received and not its end.
            is_new: Whether it is another frame than before.
        """
        partial = self._cycle.partial
        if not is_partial:
            partial.discard(self)
        elif is_new or self not in partial:
            self._partial_since_s = self.heard_at_s
            partial.add(self)

    def check_rate(self, now_s: float) -> None:
        """End the connection if its incomplete frame grows too slowly.

        Args:
            now_s: The loop's clock.
        """
        is_held = self._is_choked or self._is_backlogged or self._throttle.is_pausing
        if self.handler is None or not self.is_taking or is_held:
            return  # without a handler, the clock of the login runs
        timing, elapsed_s = self.listener.timing, now_s - self._partial_since_s
        error = too_slow(self.handler, elapsed_s, timing.slow_grace_s)
        if error is not None:
            self.refuse_error(error)
