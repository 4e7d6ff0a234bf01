"""What a new connection goes through before it is one: the PROXY protocol's header, then TLS.

Owns a connection until then, its clock, and the end of one that does not get through. Reads exactly
the header and no byte behind it, so that the TLS handshake finds its first byte. Must never look
at what is forwarded. Called by `listener`; owner: the event loop.

The loop's own TLS server would not say how much comes in without content (see `tls_meter`), nor
bound handshakes that are half open (`handshakes`). So TLS is begun on a connection in clear, once
it has sent its whole first message (`client_hello`), which is handed to the handshake first.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from vespiary_broker.server.address_limits import KIND
from vespiary_broker.server.client_hello import HELLO_BYTES, is_hello_whole
from vespiary_broker.server.deadline import Deadline
from vespiary_broker.server.proxy_header import (
    BYTES_FIRST,
    check_begin,
    peer_of,
    rest_bytes,
)
from vespiary_broker.server.tls_meter import TlsMeter
from vespiary_spec.errors import LimitExceeded, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.address_limits import AddressLimits
    from vespiary_broker.server.client_lines import ClientLines
    from vespiary_broker.server.handshakes import Handshakes
    from vespiary_spec.settings import Acceptor

UNREAD_BYTES_MAX: Final = 64 * 1024
"""Records that wait while a connection is not read."""
_FOR_EVER_S: Final = 10 * 365 * 24 * 3600.0
"""For the loop's clock of a handshake: the gate has its own."""

log = logging.getLogger(__name__)


class View(Protocol):
    """Memory that is read into, for one call at a time."""

    @property
    def view(self) -> memoryview:
        """The memory."""


class Host(Protocol):
    """What a gate needs of the server as a whole."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    @property
    def buffer(self) -> View:
        """Where first bytes are read to."""

    @property
    def client_lines(self) -> ClientLines:
        """The log of clients that were refused or cut off."""

    def count_error(self, kind: str) -> None:
        """Count an error that a client caused, by its kind."""


class Adopted(Protocol):
    """A connection that has come through."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is gone."""

    @property
    def bytes_in(self) -> int:
        """Bytes of content so far."""

    @property
    def is_listening(self) -> bool:
        """Whether what comes is read now."""


class Door(Protocol):
    """What connections come through: an acceptor's listener, or the HTTP port."""

    @property
    def acceptor(self) -> Acceptor:
        """Its settings."""

    @property
    def addresses(self) -> AddressLimits:
        """The places of network addresses."""

    @property
    def handshakes(self) -> Handshakes:
        """The places of handshakes."""

    def enter(self, gate: Gate) -> bool:
        """Note a connection that is not known yet; False: there are too many."""

    def leave(self, gate: Gate) -> None:
        """Forget a connection that is known now, or gone."""

    def adopt(
        self,
        cycle: Any,
        transport: asyncio.Transport,
        first: bytes,
        *,
        peer: str = "",
        peer_port: int = 0,
        is_counted: bool = True,
    ) -> Adopted:
        """Take a connection that has come through."""


class Gate(asyncio.BufferedProtocol):
    """A connection that is not known yet.

    Owner: the event loop.

    Args:
        cycle: What all connections share.
        listener: The listener that it came through.
        context: TLS of what comes; None: it is in clear.
    """

    def __init__(self, cycle: Host, listener: Door, context: ssl.SSLContext | None) -> None:
        self._cycle = cycle
        self._listener = listener
        self._context = context
        self._is_forwarded = listener.acceptor.proxy_protocol
        self._first = bytearray(BYTES_FIRST if self._is_forwarded else 0)
        self._rest = bytearray()
        self._received = 0
        self._hello = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: Deadline | None = None
        self._due_s = self._heard_at_s = 0.0
        self._handshake: asyncio.Task[None] | None = None
        self._is_counted = True  # for the address that it comes from
        self.peer = "?"
        self.peer_port = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        place = transport.get_extra_info("peername")
        self.peer, self.peer_port = (str(place[0]), int(place[1])) if place else ("?", 0)
        if not self._listener.enter(self):
            self._transport.abort()  # type: ignore[union-attr]
            return
        # Behind a balancer it is not known yet whom it comes from.
        if not self._is_forwarded and not self._take_place():
            return
        if self._listener.acceptor.handshake_timeout:
            self._start_clock(self._check)

    def _start_clock(self, judge: Callable[[float], None]) -> None:
        seconds = self._listener.acceptor.handshake_timeout
        self._due_s = self._cycle.loop.time() + seconds
        self._deadline = Deadline(self._cycle.loop, seconds, judge)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (the protocol's signature)
        """Return room for what is missing of the header, and no more; then for the hello."""
        if not self._is_forwarded:
            return self._cycle.buffer.view[: HELLO_BYTES - len(self._hello)]
        if self._received < len(self._first):
            return memoryview(self._first)[self._received :]
        return memoryview(self._rest)[self._received - len(self._first) :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take a part of the header, or the beginning of a handshake."""
        self._heard_at_s = self._cycle.loop.time()
        if not self._is_forwarded:
            self._take_hello(bytes(self._cycle.buffer.view[:nbytes]))
            return
        self._received += nbytes
        try:
            if self._received < BYTES_FIRST:
                check_begin(bytes(self._first[: self._received]))
                return
            if self._received == BYTES_FIRST:
                self._rest = bytearray(rest_bytes(bytes(self._first)))
            if self._received == BYTES_FIRST + len(self._rest):
                forwarded, port = peer_of(bytes(self._first), bytes(self._rest))
                if forwarded:
                    self.peer, self.peer_port = forwarded, port
                self._pass(is_counted=bool(forwarded))
        except VespiaryError as error:
            self._refuse(error)

    def _pass(self, *, is_counted: bool) -> None:
        """Let a connection through that is in clear; go on with TLS otherwise."""
        assert self._transport is not None
        self._is_forwarded = False
        self._is_counted = is_counted
        self._first = self._rest = bytearray()
        if self._context is None:
            self._leave()
            self._listener.adopt(
                *(self._cycle, self._transport, b""),
                peer=self.peer,
                peer_port=self.peer_port,
                is_counted=is_counted,
            )
        elif is_counted:
            self._take_place()

    def _take_place(self) -> bool:
        """Take a place of the client's address; close it, unheard, if that has none left."""
        addresses = self._listener.addresses
        if addresses.enter(self, self.peer):
            return True
        addresses.refusal(self, self._cycle.loop.time())
        self._cycle.count_error(KIND)
        self.close()
        return False

    def _take_hello(self, data: bytes) -> None:
        """Begin the handshake, or wait for a place, once its first message is whole."""
        assert self._transport is not None
        self._hello += data
        if is_hello_whole(self._hello):
            self._transport.pause_reading()  # what follows is the handshake's
            self._listener.handshakes.request(self, self._cycle.loop)

    def begin(self) -> None:
        """Begin the handshake."""
        assert self._transport is not None
        assert self._context is not None
        hello, self._hello = self._hello, b""
        self._handshake = self._cycle.loop.create_task(
            self._shake_hands(self._transport, self._context, hello)
        )

    def give_way(self) -> None:
        """End a handshake that lasts, for one that waits."""
        self._cycle.count_error("tls-handshake-slow")
        log.debug("TLS handshake cut off, others wait peer=%s", self.peer)
        self.close()

    async def _shake_hands(
        self, transport: asyncio.Transport, context: ssl.SSLContext, hello: bytes
    ) -> None:
        """Do the TLS handshake, and hand on what it brings."""
        loop, early = self._cycle.loop, _Early()
        begun = loop.create_task(
            loop.start_tls(
                *(transport, early, context),
                server_side=True,
                ssl_handshake_timeout=_FOR_EVER_S,  # the deadline ends it
            )
        )
        # Right behind the first step of the handshake, and before the ones that this has ordered.
        loop.call_soon(self._measure, transport, early, hello)
        try:
            encrypted = await begun
        except OSError as error:  # SSLError and a lost connection are among them
            log.debug("no TLS handshake peer=%s reason=%r", self.peer, str(error))
            return
        finally:
            self._leave()
        if encrypted is not None and not early.is_lost:
            encrypted.set_read_buffer_limits(UNREAD_BYTES_MAX)  # type: ignore[attr-defined]
            adopted = self._listener.adopt(
                self._cycle,
                encrypted,
                bytes(early.data),
                peer=self.peer,
                peer_port=self.peer_port,
                is_counted=self._is_counted,
            )
            early.connection = adopted

    def _measure(self, transport: asyncio.Transport, early: _Early, hello: bytes) -> None:
        """Put a meter between the transport and TLS, which has just been begun."""
        inner: Any = transport.get_protocol()
        if inner is self or transport.is_closing():
            return

        def cut() -> None:
            self._cycle.count_error("tls-flood")
            self._warn("connection cut, its TLS records had no content peer=%s")
            transport.abort()

        meter = TlsMeter(inner, lambda: early.content_bytes, lambda: early.is_paused, cut)
        transport.set_protocol(meter)
        if hello:
            self._cycle.loop.call_soon(self._hand_on, transport, meter, hello)

    def _hand_on(self, transport: asyncio.Transport, meter: TlsMeter, hello: bytes) -> None:
        """Give the handshake what was read before it began."""
        if not transport.is_closing():
            meter.get_buffer(len(hello))[: len(hello)] = hello
            meter.buffer_updated(len(hello))

    def _refuse(self, error: VespiaryError) -> None:
        self._cycle.count_error("proxy-protocol")
        name = self._listener.acceptor.name.replace("%", "%%")
        self._warn(f"connection refused acceptor={name} balancer=%s reason=%r", str(error))
        self.close()

    def _warn(self, event: str, *details: str) -> None:
        self._cycle.client_lines.note(
            *(event, self.peer, *details),
            listener=self._listener.acceptor.name,
            now_s=self._cycle.loop.time(),
            level=logging.WARNING,
        )

    def _check(self, now_s: float) -> None:
        """End it, unless the header or the hello was read only after the deadline.

        Then what follows has the same time once more: a handshake needs further round trips.
        """
        if self._heard_at_s < self._due_s:
            self._expire(now_s)
        else:
            self._start_clock(self._expire)

    def _expire(self, _now_s: float) -> None:
        if self._is_forwarded:
            seconds = self._listener.acceptor.handshake_timeout
            self._refuse(LimitExceeded(f"no header of the PROXY protocol within {seconds} seconds"))
        else:
            self.close()

    def close(self) -> None:
        """End it."""
        self._leave()
        if self._handshake is not None and not self._handshake.done():
            self._handshake.cancel()
        elif self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget it."""
        self._leave()

    def _leave(self) -> None:
        self._listener.leave(self)
        self._listener.handshakes.end(self, self._cycle.loop)
        if self._deadline is not None:
            self._deadline.cancel()


class _Early(asyncio.Protocol):
    """Keeps what comes between the end of a handshake and the turn in which that is heard.

    uvloop waits for that turn, asyncio's own loop does not.
    """

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_lost = False
        self.connection: Adopted | None = None

    @property
    def content_bytes(self) -> int:
        """Bytes of content so far."""
        return len(self.data) if self.connection is None else self.connection.bytes_in

    @property
    def is_paused(self) -> bool:
        """Whether content is not read now."""
        return self.connection is not None and not self.connection.is_listening

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end: the transport decided whom to tell before the connection was there."""
        self.is_lost = True
        if self.connection is not None:
            self.connection.connection_lost(exc)
