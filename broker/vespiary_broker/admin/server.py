"""The HTTP listener's socket and its life; what it answers is `endpoints`.

Owns: the listening socket, the bound on connections, and the end of idle ones. The socket is open
at once, but aiohttp, which takes longer to import than a broker with an empty store to start, is
imported in a thread when the broker is ready; till then clients wait in the backlog. When recovery
takes long that is not waited for, so that probes are answered meanwhile. An import opens files, and
clients may have taken all descriptors by then: it is tried until it works, and the broker goes on
without HTTP meanwhile. Called by `app`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from vespiary_broker.admin.access import Access
from vespiary_broker.admin.first_bytes import FirstBytes, Take, is_head_whole, is_probe
from vespiary_broker.admin.ports import Broker
from vespiary_broker.admin.tls import HttpDoor, HttpTls
from vespiary_broker.server.dead_peers import set_keepalive
from vespiary_broker.server.listener import not_listening
from vespiary_broker.server.web_pages import is_loopback
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import Admin

if TYPE_CHECKING:
    from vespiary_broker.admin.endpoints import Site

CONNECTIONS_MAX: Final = 256
PER_CLIENT_MAX: Final = 128
"""Connections of one IPv4 address, or one /64 of IPv6, so that no client takes all of them."""
WAITING_MIN: Final = 16
"""Connections that may be about to say what they are, even while all connections are taken."""
IDLE_S: Final = 15.0
"""A connection without a request, or with one that is not complete, ends after this time."""
_DEAD_PEER_S: Final = 60
"""A connection whose host does not answer for this long ends. That of a WebSocket gets what its
acceptor says."""
_SWEEP_S: Final = 5.0
_PATIENCE_S: Final = 0.5
"""How long the broker's start is given precedence."""
_AGAIN_S: Final = 0.5
"""Time between two tries to import what answers."""
_LINGERING_MAX: Final = 64
"""Connections with their last answer that are read on at the same time; more are closed at once."""
_LINGER_S: Final = 1.0
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    b"Connection: close\r\n\r\n"
)

log = logging.getLogger(__name__)


def load_site() -> type[Site]:
    """Import what answers; takes its time.

    Raises:
        OSError, ImportError: A file of it could not be opened now.
    """
    from vespiary_broker.admin.endpoints import Site

    return Site


def check_host(host: str, *, has_users: bool) -> None:
    """Reject a host on which others could use the API without a login.

    Args:
        host: Address that the HTTP listener is to have.
        has_users: Whether there are users.

    Raises:
        ConfigError: It is not a loopback address, and there are no users.
    """
    if not is_loopback(host) and not has_users:
        raise ConfigError(
            "others could reach the HTTP API here, and there are no users to log in as",
            path="admin.host",
            value=host,
            allowed="a loopback address as long as there are no users",
            cure="add a user with `vespiary user add NAME --role admin`, or take 127.0.0.1",
        )


class AdminServer:
    """The HTTP listener.

    Owner: the event loop.

    Args:
        broker: The broker.
        settings: Where it listens, and its TLS; ports that are 0 take free ones.
        has_users: Whether somebody could log in.
        load: Imports what answers.

    Attributes:
        on_websocket: Takes connections that begin as WebSockets do; None: there are none.
    """

    def __init__(
        self,
        broker: Broker,
        settings: Admin,
        *,
        has_users: bool,
        load: Callable[[], type[Site]] = load_site,
    ) -> None:
        self.host = settings.host
        self.tls = None if settings.tls is None else HttpTls(settings.tls)
        self.on_websocket: Take | None = None
        self._load = load
        self._broker = broker
        self._settings = settings
        self._has_users = has_users
        self._socket: socket.socket | None = None
        self._probe_socket: socket.socket | None = None
        self._begun = asyncio.Event()
        self._served = asyncio.Event()

    @property
    def port(self) -> int:
        """The port that it really listens on."""
        found = self._socket
        return self._settings.port if found is None else int(found.getsockname()[1])

    @property
    def probe_port(self) -> int | None:
        """The port for probes that it really listens on; None: there is none."""
        found = self._probe_socket
        return self._settings.probe_port if found is None else int(found.getsockname()[1])

    def begin(self) -> None:
        """Begin to answer now: the broker is ready."""
        self._begun.set()

    async def wait_served(self) -> None:
        """Wait until requests are answered, not only taken."""
        await self._served.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[AdminServer]:
        """Listen until the end of the `async with` block.

        Raises:
            ConfigError: The address cannot be listened on, or it may not be: others could reach it
                and there are no users.
        """
        check_host(self.host, has_users=self._has_users)
        if self.tls is not None:
            self.tls.load()
        stopping = asyncio.Event()
        try:
            self._socket = await self._listen(self._settings.port, "admin.port")
            if self._settings.probe_port is not None:
                probes = await self._listen(self._settings.probe_port, "admin.probe-port")
                self._probe_socket = probes
            async with asyncio.TaskGroup() as group:
                group.create_task(self._serve(self._socket, stopping))
                try:
                    yield self
                finally:
                    self._begun.set()
                    stopping.set()
        finally:
            for each in (self._socket, self._probe_socket):
                if each is not None:
                    each.close()
            self._socket = self._probe_socket = None

    async def _listen(self, port: int, path: str) -> socket.socket:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                self.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, address = found[0]
            listening = socket.create_server(address, family=family, backlog=128)
            set_keepalive(listening, _DEAD_PEER_S)  # accepted sockets inherit it
        except (OSError, UnicodeError) as error:
            raise not_listening(error, self.host, port, path=path) from error
        return listening

    async def _serve(self, listening: socket.socket, stopping: asyncio.Event) -> None:
        """Answer until `stopping`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._begun.wait()
        make_site = await self._loaded(stopping)
        if make_site is None:
            return
        access = Access(self._broker, self.host, self.tls)
        async with asyncio.TaskGroup() as group:
            if self._probe_socket is not None:
                probes = make_site(self._broker, access, is_for_probes=True)
                group.create_task(self._answer(probes, self._probe_socket, stopping))
            await self._answer(make_site(self._broker, access), listening, stopping)

    async def _loaded(self, stopping: asyncio.Event) -> type[Site] | None:
        """Import what answers, as soon as that works; None when the broker stops before."""
        is_told = False
        while not stopping.is_set():
            try:
                return await asyncio.to_thread(self._load)
            except (OSError, ImportError) as error:
                if not is_told:
                    is_told = True
                    log.warning(
                        "HTTP is not answered yet, since what does it could not be loaded; it is "
                        "tried again, and messages are not affected: %s",
                        error,
                    )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_AGAIN_S):
                    await stopping.wait()
        return None

    async def _answer(self, site: Site, listening: socket.socket, stopping: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        factory = await site.open()

        waiting: dict[FirstBytes, None] = {}
        lingering: set[_LastAnswer] = set()

        def make_http(data: bytes, client: str) -> asyncio.Protocol | None:
            count = site.connection_count
            if count < CONNECTIONS_MAX and (
                count < PER_CLIENT_MAX or site.count_of(client) < PER_CLIENT_MAX
            ):
                return factory()
            if not is_probe(data):
                return _LastAnswer(_BUSY, lingering)
            # Answered here: a probe takes none of the connections, and nobody can take its place.
            if not is_head_whole(data):
                return None
            return _LastAnswer(site.answer_probe(data), lingering)

        def make_protocol() -> asyncio.Protocol:
            if len(waiting) >= max(CONNECTIONS_MAX - site.connection_count, WAITING_MIN):
                # It has been silent, or kept its request back, for longer than the others.
                next(iter(waiting)).become(_LastAnswer(_BUSY, lingering))
            return FirstBytes(waiting, make_http, find_take, IDLE_S)

        def find_take() -> Take | None:
            return None if site.is_for_probes else self.on_websocket

        def room() -> int:
            return max(CONNECTIONS_MAX - site.connection_count - len(waiting), WAITING_MIN)

        door = None
        if self.tls is not None and not site.is_for_probes:
            door = HttpDoor(self.tls, make_protocol, room, PER_CLIENT_MAX, self._broker.count_error)
        make: Callable[[], asyncio.BaseProtocol] = make_protocol if door is None else door.gate
        server = await loop.create_server(make, sock=listening)
        if not site.is_for_probes:
            self._served.set()
        try:
            while not stopping.is_set():
                site.sweep(loop.time(), IDLE_S)
                try:
                    async with asyncio.timeout(_SWEEP_S):
                        await stopping.wait()
                except TimeoutError:
                    continue
        finally:
            server.close()
            if door is not None:
                door.close()
            unanswered: list[FirstBytes | _LastAnswer] = [*waiting, *lingering]
            for each in unanswered:
                each.close()
            await site.close()


class _LastAnswer(asyncio.Protocol):
    """Answers once and closes the connection, because there are too many.

    What the client still sends is read and discarded for a moment: closing a socket with unread
    bytes resets the connection, and a client that is sending would see that, not the answer.

    Args:
        answer: The answer, head and body.
        lingering: All connections that are read so; this one is among them until it is closed.
    """

    def __init__(self, answer: bytes, lingering: set[_LastAnswer]) -> None:
        self._answer = answer
        self._lingering = lingering
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        self._transport.write(self._answer)  # type: ignore[union-attr]
        if len(self._lingering) >= _LINGERING_MAX or not self._transport.can_write_eof():  # type: ignore[union-attr]
            self.close()
            return
        self._transport.write_eof()  # type: ignore[union-attr]
        self._lingering.add(self)
        self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self.close)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._lingering.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
