"""A listener: one acceptor's socket, its TLS, its limits and its connections.

Owns the listening socket and the set of connections that came through it. Must never look into
them. Called by `app`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vespiary_broker.server.certificates import Certificate, read_certificate
from vespiary_broker.server.connection import Connection
from vespiary_codec.wire.stomp import StompLimits
from vespiary_spec.errors import ConfigError
from vespiary_spec.limits import RECORD_HEADROOM_BYTES
from vespiary_spec.settings import Acceptor, AcceptorTls

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


class Listener:
    """One acceptor at work.

    Owner: the event loop.

    Attributes:
        certificate: The certificate that connections to come are shown; None without TLS.
        certificate_refused: Why the TLS files as they are now were not taken; empty if they were.

    Args:
        acceptor: Its settings.
        record_bytes_max: Limit of a record of the journal; a body cannot be larger.
        timing: Times that are no settings.
        large: Which messages are large; None: none is.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        record_bytes_max: int,
        timing: Timing | None = None,
        large: LargeLimits | None = None,
    ) -> None:
        self.large = large
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
        self.connections: set[Connection] = set()
        self.certificate: Certificate | None = None
        self.certificate_refused = ""
        self._cycle: Cycle | None = None
        self._servers: list[asyncio.Server] = []
        self._all_gone = asyncio.Event()
        self._all_gone.set()

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
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {acceptor.host}:{acceptor.port}: {error.strerror or error}",
                path=f"acceptors.{acceptor.name}",
                cure="choose another port or address, or stop the program that has it",
            ) from error

    def _make_context(self) -> tuple[ssl.SSLContext, Certificate] | tuple[None, None]:
        """Return a context of the TLS files as they are now, and its certificate."""
        tls = self.acceptor.tls
        if tls is None:
            return None, None
        context = make_tls_context(tls, self.acceptor.name)
        return context, read_certificate(tls.certificate, self.acceptor.name)

    async def _serve(self, context: ssl.SSLContext | None, **place: Any) -> asyncio.Server:
        """Begin to accept connections at a place."""
        assert self._cycle is not None
        cycle, timeout_s = self._cycle, self.acceptor.handshake_timeout
        return await cycle.loop.create_server(
            lambda: Connection(cycle, self),
            ssl=context,
            ssl_handshake_timeout=timeout_s or None if context else None,
            **place if "sock" in place else {**place, "reuse_address": True},
        )

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

    @property
    def tls_files(self) -> tuple[Path, ...]:
        """The files that its TLS comes from; none for an acceptor that speaks in clear."""
        tls = self.acceptor.tls
        names = () if tls is None else (tls.certificate, tls.key, tls.client_ca)
        return tuple(Path(name) for name in names if name is not None)

    def stop(self) -> None:
        """Take no more connections; those that are open stay."""
        for server in self._servers:
            server.close()

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

    def add(self, connection: Connection) -> None:
        """Take a connection into the set."""
        self.connections.add(connection)
        self._all_gone.clear()

    def remove(self, connection: Connection) -> None:
        """Take a connection out of the set."""
        self.connections.discard(connection)
        if not self.connections:
            self._all_gone.set()


def make_tls_context(tls: AcceptorTls, name: str) -> ssl.SSLContext:
    """Return the TLS context of an acceptor: TLS 1.2 or newer.

    Args:
        tls: Its files.
        name: Name of the acceptor, for messages.

    Raises:
        ConfigError: A file is missing or is not what it should be.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    path = f"acceptors.{name}.tls"
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"certificate or key cannot be used: {error}",
            path=path,
            value=f"{tls.certificate}, {tls.key}",
        ) from error
    if tls.client_ca is not None:
        try:
            context.load_verify_locations(tls.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the authorities cannot be used: {error}",
                path=f"{path}.client-ca",
                value=tls.client_ca,
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
