"""A listener: one acceptor's socket, its TLS, its limits and its connections.

Owns the listening socket and the set of connections that came through it. Must never look into
them. Called by `app`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vespiary_broker.server.address_limits import KIND, AddressLimits
from vespiary_broker.server.certificates import Certificate
from vespiary_broker.server.closed_clients import descriptor_of
from vespiary_broker.server.connection import Connection
from vespiary_broker.server.dead_peers import borrowed, set_keepalive
from vespiary_broker.server.gate import Gate
from vespiary_broker.server.handshakes import Handshakes
from vespiary_broker.server.protocol_handler import sentence_of
from vespiary_broker.server.tls_contexts import make_tls, tls_files, user_of
from vespiary_codec.wire.stomp import StompLimits
from vespiary_spec.errors import ConfigError, LimitExceeded
from vespiary_spec.limits import RECORD_HEADROOM_BYTES
from vespiary_spec.settings import Acceptor

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle

_BACKLOG = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times that are no settings.

    Attributes:
        first_byte_s: Seconds that a new connection has for its first byte.
        slow_grace_s: Seconds that an incomplete frame has before its rate is looked at.
    """

    first_byte_s: float = 3.0
    slow_grace_s: float = 5.0


@dataclass(frozen=True, slots=True)
class LargeLimits:
    """Which messages are large, and how large they may be.

    Attributes:
        over_bytes: A body of more bytes is large.
        record_bytes_max: Largest record of the journal; what does not fit is large.
        size_bytes_max: Largest body.
    """

    over_bytes: int
    record_bytes_max: int
    size_bytes_max: int

    def is_large(self, body_bytes: int, size_bytes: int) -> bool:
        """Whether a message goes to a file.

        Args:
            body_bytes: Its body.
            size_bytes: Its body and its headers.
        """
        return (
            body_bytes > self.over_bytes
            or size_bytes > self.record_bytes_max - RECORD_HEADROOM_BYTES
        )

    @property
    def scanned_bytes_max(self) -> int:
        """Largest body that need not be looked at for being large."""
        return max(min(self.over_bytes, self.record_bytes_max - RECORD_HEADROOM_BYTES), 0)


def not_listening(
    error: OSError | UnicodeError, host: str, port: int, *, path: str, other: str = ""
) -> ConfigError:
    """Return the error for an address that cannot be listened on.

    Args:
        error: What the system said, or why the host cannot be a name.
        host: Address.
        port: Port.
        path: Path of the setting of the port.
        other: Path of the setting that takes the port already; empty if that is not known.
    """
    # The text of asyncio's own errors holds the address again; that of names has negative numbers.
    number = getattr(error, "errno", None) or 0
    reason = os.strerror(number) if number > 0 else getattr(error, "strerror", "") or str(error)
    cure = "choose another address, one of this machine"
    if number == errno.EADDRINUSE and other:
        cure = f"choose another port: {other} takes this one"
    elif number == errno.EADDRINUSE:
        cure = (
            f"stop the program that has it, choose another port with --set {path}=N (0 takes "
            "a free one), or move all ports with --port-offset N"
        )
    return ConfigError(f"cannot listen on {host}:{port}: {reason}", path=path, cure=cure)


class Listener:
    """One acceptor at work.

    Owner: the event loop.

    Attributes:
        certificate: The certificate that connections to come are shown, of several the one that
            ends first; None without TLS.
        handshakes: Its TLS handshakes.
        addresses: What each network address has of its connections.
        certificate_refused: Why the TLS files as they are now were not taken; empty if they were.

    Args:
        acceptor: Its settings.
        record_bytes_max: Limit of a record of the journal; a body cannot be larger.
        timing: Times that are no settings.
        large: Which messages are large; None: none is.
        is_http: Whether it serves the WebSockets of the HTTP port.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        record_bytes_max: int,
        timing: Timing | None = None,
        large: LargeLimits | None = None,
        *,
        is_http: bool = False,
    ) -> None:
        self.large = large
        self.is_http = is_http
        stomp = acceptor.stomp
        self.acceptor = acceptor
        self.timing = timing or Timing()
        self.limits = StompLimits(
            header_count=stomp.max_headers,
            header_line_bytes=stomp.max_header_line_size,
            header_bytes=stomp.max_header_size,
            body_bytes=min(stomp.max_body_size, record_bytes_max),
        )
        self.scanned_body_bytes = self.limits.body_bytes
        if large is not None:
            self.scanned_body_bytes = min(self.scanned_body_bytes, large.scanned_bytes_max)
        self.scanned_payload_bytes = record_bytes_max
        if large is not None:
            self.scanned_payload_bytes = min(record_bytes_max, large.scanned_bytes_max)
        self.connections: set[Connection] = set()
        self.handshakes = Handshakes(acceptor.handshakes_allowed)
        self.addresses = AddressLimits(acceptor.name, acceptor.connections_per_address_allowed)
        self._gates: set[Gate] = set()
        self.certificate: Certificate | None = None
        self.certificate_refused = ""
        self._cycle: Cycle | None = None
        self._servers: list[asyncio.Server] = []
        self._all_gone = asyncio.Event()
        self._all_gone.set()

    @property
    def name(self) -> str:
        """Name of the acceptor."""
        return self.acceptor.name

    @property
    def port(self) -> int:
        """The port that it really listens on; that of the settings before `start`."""
        sockets = [each for server in self._servers for each in server.sockets]
        return int(sockets[0].getsockname()[1]) if sockets else self.acceptor.port

    async def start(self, cycle: Cycle) -> None:
        """Begin to listen.

        Args:
            cycle: What all connections share.

        Raises:
            ConfigError: The address cannot be listened on, or the TLS files are wrong.
        """
        acceptor = self.acceptor
        self._cycle = cycle
        context, self.certificate = self._make_context()
        try:
            self._servers = [
                await self._serve(context, host=acceptor.host, port=acceptor.port, backlog=_BACKLOG)
            ]
        except (OSError, UnicodeError) as error:
            raise not_listening(
                error, acceptor.host, acceptor.port, path=f"acceptors.{acceptor.name}.port"
            ) from error

    def adopt(
        self,
        cycle: Cycle,
        transport: asyncio.Transport,
        first: bytes,
        *,
        peer: str = "",
        peer_port: int = 0,
        is_counted: bool = True,
    ) -> Connection:
        """Take a connection that came in elsewhere, and return it.

        Args:
            cycle: What all connections share.
            transport: The connection; it belongs to another protocol until now.
            first: What was read of it.
            peer: Address that it is forwarded for; empty: it comes from where it seems to.
            peer_port: Port that goes with it.
            is_counted: Whether it counts for that address.
        """
        connection = Connection(cycle, self, peer, peer_port)
        if not is_counted:
            self.addresses.exempt(connection)
        if self.is_http and (descriptor := descriptor_of(transport)) >= 0:
            with suppress(OSError), borrowed(descriptor) as sock:  # it may be gone already
                set_keepalive(sock, self.acceptor.dead_peer_timeout)
        # Reading begins again, since loops read differently for a protocol with a buffer.
        transport.pause_reading()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        if not transport.is_closing():
            transport.resume_reading()
        rest = memoryview(first)
        while rest and not transport.is_closing():
            view = connection.get_buffer(-1)
            count = min(len(view), len(rest))
            view[:count] = rest[:count]
            rest = rest[count:]
            connection.buffer_updated(count)
        return connection

    def _make_context(self) -> tuple[ssl.SSLContext, Certificate] | tuple[None, None]:
        """Return a context of the TLS files as they are now, and what ends first of them."""
        tls = self.acceptor.tls
        if tls is None:
            return None, None
        return make_tls(tls, f"acceptors.{self.acceptor.name}.tls")

    async def _serve(self, context: ssl.SSLContext | None, **place: Any) -> asyncio.Server:
        """Begin to accept connections at a place."""
        assert self._cycle is not None
        cycle = self._cycle
        is_gated = context is not None or self.acceptor.proxy_protocol
        server = await cycle.loop.create_server(
            lambda: Gate(cycle, self, context) if is_gated else Connection(cycle, self),
            **place if "sock" in place else {**place, "reuse_address": True},
        )
        for each in server.sockets:
            with borrowed(each.fileno()) as sock:  # accepted ones inherit it
                set_keepalive(sock, self.acceptor.dead_peer_timeout)
        return server

    async def reload_tls(self) -> bool:
        """Take the TLS files as they are now for connections to come; those that are open stay.

        Files that cannot be used change nothing: `certificate_refused` says why.

        Returns:
            Whether they were taken; False for an acceptor that speaks in clear, too.
        """
        if self.acceptor.tls is None or not self._servers:
            return False
        try:
            context, certificate = self._make_context()
            # The same sockets, so that nobody is turned away in between; a new context, so that
            # neither a session ticket nor an authority of the old one counts any more.
            servers = [
                await self._serve(
                    context, sock=socket.socket(fileno=os.dup(each.fileno())), backlog=_BACKLOG
                )
                for server in self._servers
                for each in server.sockets
            ]
        except (ConfigError, OSError) as error:
            self.certificate_refused = str(error)
            return False
        for server in self._servers:
            server.close()
        self._servers, self.certificate, self.certificate_refused = servers, certificate, ""
        return True

    def user_of(self, certificate: bytes) -> str:
        """Return the user whom a client certificate stands for; empty for nobody.

        Args:
            certificate: It, in DER; TLS has found it to be good.
        """
        return user_of(certificate, self.acceptor.tls)

    @property
    def tls_files(self) -> tuple[Path, ...]:
        """The files that its TLS comes from; none for an acceptor that speaks in clear."""
        return tls_files(self.acceptor.tls)

    def stop(self) -> None:
        """Take no more connections; those that are open stay."""
        for server in self._servers:
            server.close()
        for gate in list(self._gates):
            gate.close()

    def enter(self, gate: Gate) -> bool:
        """Note a connection that is not known yet; False: there are too many."""
        if len(self._gates) + self._taken >= self.acceptor.connections_allowed:
            return False
        self._gates.add(gate)
        return True

    def leave(self, gate: Gate) -> None:
        """Forget a connection that is known now, or gone."""
        self._gates.discard(gate)
        self.addresses.leave(gate)

    async def wait_closed(self, timeout_s: float) -> None:
        """Wait until all connections are closed; cut off those that are not.

        Args:
            timeout_s: Seconds to wait before that.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_gone.wait()
        except TimeoutError:
            for connection in list(self.connections):
                connection.abort()
            await self._all_gone.wait()
        for server in self._servers:
            await server.wait_closed()

    def too_many(self) -> LimitExceeded:
        """Return what a connection is told that is one too many."""
        return LimitExceeded(
            "too many connections",
            measured=self._taken,
            allowed=f"at most {self.acceptor.connections_allowed}",
            cure="try again later, or raise connections-allowed of the acceptor",
        )

    @property
    def _taken(self) -> int:
        """Places of connections that are taken: those that an address may not have are not."""
        return len(self.connections) - self.addresses.refused_count

    def add(self, connection: Connection) -> bool:
        """Take a connection into the set; False: there is no place for it, `turn_away` follows."""
        self.connections.add(connection)
        self._all_gone.clear()
        if self._taken > self.acceptor.connections_allowed:
            return False
        return self.addresses.enter(connection, connection.peer)

    def turn_away(self, connection: Connection, cycle: Cycle) -> None:
        """Tell a connection why there is no place for it, and end it."""
        error = self.addresses.refusal(connection, cycle.loop.time())
        if error is None:
            connection.refuse_error(self.too_many())
            return
        cycle.count_error(KIND)
        if self.addresses.has_words(connection):
            connection.refuse(sentence_of(error))
        else:
            connection.end(b"")

    def remove(self, connection: Connection) -> None:
        """Take a connection out of the set."""
        self.connections.discard(connection)
        self.addresses.leave(connection)
        if not self.connections:
            self._all_gone.set()
