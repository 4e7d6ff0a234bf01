"""One connection: its transport, its clocks, and the reasons not to read. How it ends: `ending`.

Owns the transport and the core's handle of the connection. Bytes go to its intake, frames to its
session. Must never interpret either, nor work for one message alone. Owner: the event loop.

States
    OPEN       frames are taken.
    ENDING     the last frame (ERROR, or the receipt of DISCONNECT) waits behind what is due.
    LINGERING  it is on its way; what still comes is thrown away. Then the transport is closed.
    CLOSED     the transport is gone.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import LargeDelivery
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.server.closed_clients import descriptor_of
from vespiary_broker.server.cycle import Cycle
from vespiary_broker.server.detection import Foreign
from vespiary_broker.server.ending import LINGER_S, Ending
from vespiary_broker.server.heart_beats import HeartBeats
from vespiary_broker.server.intake import Intake
from vespiary_broker.server.large_intake import LargeSink
from vespiary_broker.server.large_sending import is_body_dropped, send_large
from vespiary_broker.server.large_stream import LargeStream
from vespiary_broker.server.session import StompSession
from vespiary_broker.store.large_writer import LargeWriter
from vespiary_codec.wire.stomp import Frame, Version, encode, error_frame
from vespiary_codec.wire.stomp import RemoteProtocolError as StompError
from vespiary_spec.errors import DiskFull, LimitExceeded, RemoteProtocolError, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.listener import Listener

OUTPUT_BYTES_MAX: Final = 256 * 1024
"""Unsent bytes above which a connection gets no more messages."""
CHOKE_BYTES: Final = 2 * OUTPUT_BYTES_MAX
"""Unsent bytes above which a connection is not read: it does not read its receipts either."""
_INTERNAL: Final = "the broker failed to handle this frame; its log says why"

log = logging.getLogger(__name__)


class State(enum.Enum):
    """See the module's docstring."""

    OPEN = enum.auto()
    ENDING = enum.auto()
    LINGERING = enum.auto()
    CLOSED = enum.auto()


class Connection(asyncio.BufferedProtocol):
    """One connection of one client.

    Invariant: the core's handle is valid, and in use by nobody else, until `_forget`.

    Owner: the event loop.

    Args:
        cycle: What all connections share.
        listener: The listener that it came through.
    """

    def __init__(self, cycle: Cycle, listener: Listener) -> None:
        self.handle = -1
        self.peer = "?"
        self.descriptor = -1
        self.is_write_paused = False
        self.bytes_in = 0
        self.heard_at_s = 0.0
        self.beats: HeartBeats | None = None
        self.connected_at_s = 0.0
        self.session: StompSession | None = None
        self.listener = listener
        self._cycle = cycle
        sink = None
        if cycle.large is not None and listener.large is not None:
            sink = LargeSink(cycle.large, listener.large)
        switches = cycle.engine.registry.switches
        self._intake = Intake(cycle.core, cycle.buffer, self, listener.limits, switches, sink)
        self._stream: LargeStream | None = None  # a large message is on its way out
        self._is_backlogged = False  # bytes of a large body wait for the disk
        self._state = State.OPEN
        self._transport: asyncio.Transport | None = None
        self._partial_since_s = 0.0
        self._is_busy = False  # a frame is being handled by a task
        self._is_blocked = False  # the journal has no room
        self._is_choked = False  # the client does not read
        self._ending: Ending | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # --- the transport's callbacks ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection in, or turn it away."""
        cycle, listener = self._cycle, self.listener
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else "?"
        self.descriptor = descriptor_of(transport)
        self.heard_at_s = self.connected_at_s = cycle.loop.time()
        assert self._transport is not None
        self._transport.set_write_buffer_limits(OUTPUT_BYTES_MAX - 1, OUTPUT_BYTES_MAX // 4)
        listener.add(self)
        cycle.connections_total += 1
        if (
            cycle.failure
            or cycle.cordon
            or len(listener.connections) > listener.acceptor.connections_allowed
        ):
            self._turn_away()
            return
        self.handle = cycle.core.open_connection()
        cycle.connections[self.handle] = self
        self.session = StompSession(self, cycle, listener)
        self.set_timer("first byte", listener.timing.first_byte_s, self._check_first_byte)
        if listener.acceptor.handshake_timeout:
            self.set_timer("login", listener.acceptor.handshake_timeout, self._check_login)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (the protocol's signature)
        """Return where the next bytes go."""
        return self._intake.read_view()

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.heard_at_s = self._cycle.loop.time()
        self.bytes_in += nbytes
        if self._state is State.OPEN:
            self._cycle.tell_time()
            self._intake.take(nbytes)
            if self._is_holding:
                self._update_reading()
            self._cycle.touch()

    def eof_received(self) -> bool:
        """Let the transport close when the client has closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back everything that the connection had."""
        if exc is not None:
            log.debug("connection lost peer=%s reason=%r", self.peer, str(exc))
        self._state = State.CLOSED
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self.listener.remove(self)
        self._drop_input()
        if self._stream is not None:
            self._stream.cut()
        if self.session is not None:
            self.session.close()
        if not self._is_busy:
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
        self._cycle.engine.dispatcher.output_ready(self)
        self._cycle.touch()
        self._update_reading()

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
                self._update_reading()
            return
        self.transmit(data)

    def transmit(self, data: bytes) -> None:
        """Send bytes at once."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if self.beats is not None:
            self.beats.written_at_s = self._cycle.loop.time()
        if self.is_write_paused and transport.get_write_buffer_size() > CHOKE_BYTES:
            self._is_choked = True
            self._update_reading()

    def stream(self, consumer: Consumer, given: LargeDelivery) -> None:
        """Send a large message, in pieces; nothing else is sent before it is out."""
        assert self._cycle.large is not None
        assert self._stream is None
        self._stream = LargeStream(self, self._cycle, self._cycle.large, consumer, given)
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
            self._update_reading()
        self._cycle.engine.dispatcher.output_ready(self)
        self._cycle.touch()

    def confirm(self, data: bytes) -> None:
        """Send a receipt once everything staged so far is durable."""
        self._cycle.core.receipt(self.handle, data)

    def release(self, data: bytes) -> None:
        """Send receipts that the core has released."""
        if self._state in (State.OPEN, State.ENDING):
            self.write(data)
            if self._ending is not None:
                self._ending.released(data)

    def logged_in(self, version: Version, beat_out_s: float, beat_in_s: float) -> None:
        """Leave the login behind: other limits, other clocks, the core's scanner.

        Args:
            version: The version agreed upon.
            beat_out_s: Seconds within which we have to send something; 0 for never.
            beat_in_s: Seconds after which a silent client is dropped; 0 for never.
        """
        self.cancel_timer("first byte")
        self.cancel_timer("login")
        self._intake.set_version(version)
        limits = self.listener.limits
        self._cycle.core.set_ready(
            self.handle,
            int(version.replace(".", "")),
            (
                limits.header_count,
                limits.header_line_bytes,
                limits.header_bytes,
                self.listener.scanned_body_bytes,
            ),
        )
        if beat_out_s or beat_in_s:
            self.beats = HeartBeats(self, beat_out_s, beat_in_s, self.now_s())

    def refuse(self, sentence: str) -> None:
        """Send an ERROR frame that is not about a frame of the client, and end the connection."""
        version = self.session.version if self.session is not None else None
        self.end(encode(error_frame(sentence), version or "1.0"), is_patient=False)

    def end(self, data: bytes, *, is_patient: bool = True) -> None:
        """Send a last frame behind the receipts that are due before it; then close.

        Args:
            data: The frame; empty to close without one.
            is_patient: Whether a large message that is half sent is sent to its end before; the
                connection is cut off otherwise, since there is no way to say more.
        """
        if self._state is not State.OPEN:
            return
        self._state = State.ENDING
        self._drop_input()
        is_ordered = False
        if self.session is not None:
            is_ordered = self.session.version is not None and not self._cycle.failure
            self.session.close()
        self._drop_stream()
        if self.is_streaming and not (data and is_patient):
            self.abort()
        elif not data:
            self._close_transport()
        else:
            self._ending = Ending(self)
            self._ending.begin(data, is_ordered=is_ordered)
            if is_ordered:
                self._cycle.touch()

    def abort(self) -> None:
        """Cut the connection off."""
        if self._transport is not None:
            self._transport.abort()

    # --- what the intake uses ---------------------------------------------------------------------

    @property
    def is_taking(self) -> bool:
        """Whether the next frame may be taken now."""
        return self._state is State.OPEN and not self._is_busy and not self._is_blocked

    @property
    def _is_holding(self) -> bool:
        return self._is_busy or self._is_blocked or self._is_backlogged

    @property
    def takes_blocked(self) -> bool:
        """Whether the session decides about frames that find no room."""
        return self._cycle.full_disk is not None

    def block(self) -> None:
        """Take no frame until the journal has room."""
        self._is_blocked = True
        self._cycle.block(self)

    def take_frame(self, frame: Frame) -> None:
        """Give a frame to the session; reading waits if it needs time."""
        assert self.session is not None
        self._cycle.frames += 1
        try:
            work = self.session.handle(frame)
        except VespiaryError as error:
            self.refuse_error(error, frame.get("receipt"))
        except Exception:
            log.exception("frame failed peer=%s command=%s", self.peer, frame.command)
            self.fail_frame()
        else:
            if work is not None:
                self._is_busy = True
                self._cycle.spawn(self._finish(work, frame))

    async def _finish(self, work: Coroutine[Any, Any, None], frame: Frame) -> None:
        """Wait for a frame that needs time, then go on."""
        try:
            await work
        except VespiaryError as error:
            self.refuse_error(error, frame.get("receipt"))
        except Exception:
            log.exception("frame failed peer=%s command=%s", self.peer, frame.command)
            self.fail_frame()
        finally:
            self._is_busy = False
            if self._state is not State.OPEN and self.session is not None:
                self.session.close()
            if self._state is State.CLOSED:
                self._forget()
        self.go_on()

    def take_large(self, frame: Frame, writer: LargeWriter) -> None:
        """Give the session a message whose body went to a file; reading waits meanwhile."""
        assert self.session is not None
        self._cycle.frames += 1
        self._is_backlogged = False
        self._is_busy = True
        self._cycle.spawn(self._finish(send_large(self.session, self._cycle, frame, writer), frame))

    def hold_reading(self, *, held: bool) -> None:
        """Stop reading because bytes of a large body wait for the disk, or go on."""
        self._is_backlogged = held
        self._update_reading()

    def is_body_dropped(self, frame: Frame, full: DiskFull) -> bool:
        """Return what the policy of its address says of a large body that finds no room."""
        assert self.session is not None
        return is_body_dropped(self._cycle, self.session.sending.outgoing(frame), full)

    def refuse_large(self, error: VespiaryError, receipt_id: str | None) -> None:
        """End the connection because a body could not be stored."""
        self._is_backlogged = False
        self.refuse_error(error, receipt_id)

    def go_on(self) -> None:
        """Take frames again after the reason not to is gone: first what was received before."""
        self._is_blocked = False
        if self.is_taking:
            self._cycle.tell_time()
            self._intake.resume()
        self._update_reading()
        self._cycle.touch()

    def refuse_error(self, error: VespiaryError, receipt_id: str | None) -> None:
        """Tell the client what it did wrong, and end the connection.

        Args:
            error: What it did.
            receipt_id: The `receipt` header of the frame that it is about; None if it had none.
        """
        kind = error.violation.value if isinstance(error, StompError) else type(error).__name__
        sentence = error.reason if isinstance(error, StompError) else _sentence(error)
        self._cycle.count_error(kind)
        log.info("client refused peer=%s kind=%s reason=%r", self.peer, kind, sentence)
        version = self.session.version if self.session is not None else None
        body = f"{error}\n{error.details}The connection is closed.\n"
        frame = error_frame(sentence, body, receipt_id)
        self.end(encode(frame, version or "1.0"))

    def refuse_foreign(self, foreign: Foreign) -> None:
        """Turn a client away that speaks another protocol, in its own words if it has any."""
        error = RemoteProtocolError(
            f"this port does not speak {foreign.protocol}", allowed="STOMP 1.0, 1.1, 1.2"
        )
        if not foreign.reply:
            self.refuse_error(error, None)
            return
        self._cycle.count_error("foreign-protocol")
        log.info("client refused peer=%s kind=foreign-protocol reason=%r", self.peer, str(error))
        self.end(foreign.reply)

    def fail_frame(self) -> None:
        """End the connection for what we did wrong; the log says what."""
        self._cycle.count_error("internal")
        self.refuse(_INTERNAL)

    def _update_reading(self) -> None:
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
        reason = self._cycle.failure or self._cycle.cordon
        if reason:
            self.refuse(reason)
            return
        error = LimitExceeded(
            "too many connections",
            measured=len(self.listener.connections),
            allowed=f"at most {self.listener.acceptor.connections_allowed}",
            cure="try again later, or raise connections-allowed of the acceptor",
        )
        self.refuse_error(error, None)

    def linger(self) -> None:
        """Say that nothing more comes, and throw away what the client still sends."""
        self._state = State.LINGERING
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
        self._update_reading()

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
            self.set_timer("linger", LINGER_S, self.abort)

    def _drop_input(self) -> None:
        self._intake.drop()
        self._cycle.unblock(self)
        self._is_blocked = self._is_backlogged = False

    def _forget(self) -> None:
        """Give the core's handle back; nothing uses it any more."""
        cycle = self._cycle
        cycle.engine.dispatcher.forget(self)
        if self.handle >= 0:
            del cycle.connections[self.handle]
            cycle.core.close_connection(self.handle)
            self.handle = -1
            cycle.touch()

    # --- clocks -----------------------------------------------------------------------------------

    def set_timer(self, name: str, delay_s: float, action: Callable[[], None]) -> None:
        """Have something done later, in place of what goes by that name."""
        self.cancel_timer(name)
        self._timers[name] = self._cycle.loop.call_later(delay_s, action)

    def cancel_timer(self, name: str) -> None:
        """Leave that undone."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _check_first_byte(self) -> None:
        if self.bytes_in == 0:
            seconds = self.listener.timing.first_byte_s
            self.refuse_error(LimitExceeded(f"nothing was sent within {seconds:g} seconds"), None)

    def _check_login(self) -> None:
        seconds = self.listener.acceptor.handshake_timeout
        self.refuse_error(LimitExceeded(f"no login within {seconds} seconds"), None)

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
        rate = self.listener.acceptor.stomp.min_read_rate
        elapsed_s = now_s - self._partial_since_s
        is_watched = rate and self.is_taking and not (self._is_choked or self._is_backlogged)
        if not is_watched or elapsed_s < self.listener.timing.slow_grace_s:
            return
        received = self._intake.partial_bytes
        if received < rate * elapsed_s:
            error = LimitExceeded(
                f"a frame that began {elapsed_s:.0f} seconds ago is not complete",
                measured=f"{received / elapsed_s:.0f} bytes a second",
                allowed=f"at least {rate}",
            )
            self.refuse_error(error, None)


def _sentence(error: VespiaryError) -> str:
    """Return an error as one sentence for a header: without its code, which the body has."""
    return str(error).removesuffix(f" [{error.code}]")
