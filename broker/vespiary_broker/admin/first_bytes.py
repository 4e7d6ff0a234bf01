"""The first bytes of a connection to the HTTP port: WebSockets go elsewhere, the rest to aiohttp.

Owns connections until they have sent as much as that takes, and the end of those that do not.
Must never look further than the first line's target. Called by `server`; owner: the event loop.

A WebSocket takes another connection than what a page is fetched by, so its handshake is the first
that comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from vespiary_broker.engine.networks import network_of
from vespiary_broker.server.deadline import Deadline

PROBE_PATHS: Final = ("/healthz", "/readyz")
_PROBES: Final = tuple(
    f"{method} {path} ".encode() for method in ("GET", "HEAD") for path in PROBE_PATHS
)
WEBSOCKET: Final = (b"GET /ws ", b"GET /ws?")
"""How the handshake of a WebSocket begins."""

HEAD_BYTES_MAX: Final = 8 * 1024
"""Longest head of a request that is waited for here."""
_HEAD_END: Final = b"\r\n\r\n"

Take = Callable[[asyncio.Transport, bytes], object]


def is_probe(data: bytes) -> bool:
    """Return whether a connection begins with a probe request."""
    return data.startswith(_PROBES)


def is_head_whole(data: bytes) -> bool:
    """Return whether the head of a request is complete, or too long to wait for."""
    return _HEAD_END in data or len(data) > HEAD_BYTES_MAX


def client_of(transport: asyncio.BaseTransport | None) -> str:
    """Return what a connection's client counts as (`network_of`); empty: it is gone."""
    place = None if transport is None else transport.get_extra_info("peername")
    return network_of(str(place[0])) if place else ""


class FirstBytes(asyncio.Protocol):
    """One connection, until it is known what it is.

    Args:
        waiting: All connections that are not known, the oldest first; this one is among them for
            its time.
        http: Returns the protocol of a connection that speaks HTTP, from what was read of it and
            the client that it comes from (`client_of`); None: more has to be read first.
        find_take: Returns what takes a connection that begins as a WebSocket does, with what was
            read of it; None where there are no WebSockets now: aiohttp says so.
        patience_s: Seconds that the first bytes may take.
    """

    def __init__(
        self,
        waiting: dict[FirstBytes, None],
        http: Callable[[bytes, str], asyncio.Protocol | None],
        find_take: Callable[[], Take | None],
        patience_s: float,
    ) -> None:
        self._waiting = waiting
        self._http = http
        self._find_take = find_take
        self._patience_s = patience_s
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: Deadline | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        self._waiting[self] = None
        loop = asyncio.get_running_loop()
        self._deadline = Deadline(loop, self._patience_s, lambda _: self.close())

    def data_received(self, data: bytes) -> None:
        """Hand the connection over as soon as it is known what it is."""
        self._data += data
        take = self._find_take()
        if take is not None and self._data.startswith(WEBSOCKET):
            self._leave()
            assert self._transport is not None
            take(self._transport, self._data)
        elif take is None or not any(each.startswith(self._data) for each in WEBSOCKET):
            protocol = self._http(self._data, client_of(self._transport))
            if protocol is not None:
                self.become(protocol)

    def become(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection to another protocol, with what was read of it."""
        self._leave()
        transport = self._transport
        assert transport is not None
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(self._data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget it."""
        self._leave()

    def close(self) -> None:
        """End it: it has sent too little for too long, or the broker stops."""
        assert self._transport is not None
        self._transport.close()

    def _leave(self) -> None:
        self._waiting.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
