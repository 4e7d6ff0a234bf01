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

WEBSOCKET: Final = (b"GET /ws ", b"GET /ws?")
"""How the handshake of a WebSocket begins."""

Take = Callable[[asyncio.Transport, bytes], object]


class FirstBytes(asyncio.Protocol):
    """One connection, until it is known what it is.

    Args:
        waiting: All connections that are not known; this one is among them for its time.
        http: Makes the protocol of a connection that speaks HTTP.
        find_take: Returns what takes a connection that begins as a WebSocket does, with what was
            read of it; None where there are no WebSockets now: aiohttp says so.
        patience_s: Seconds that the first bytes may take.
    """

    def __init__(
        self,
        waiting: set[FirstBytes],
        http: Callable[[], asyncio.Protocol],
        find_take: Callable[[], Take | None],
        patience_s: float,
    ) -> None:
        self._waiting = waiting
        self._http = http
        self._find_take = find_take
        self._patience_s = patience_s
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first bytes."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base
        self._waiting.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience_s, self.close)

    def data_received(self, data: bytes) -> None:
        """Hand the connection over as soon as it is known what it is."""
        self._data += data
        take = self._find_take()
        if take is not None and self._data.startswith(WEBSOCKET):
            self._leave()
            assert self._transport is not None
            take(self._transport, self._data)
        elif take is None or not any(each.startswith(self._data) for each in WEBSOCKET):
            self._leave()
            self._become_http()

    def _become_http(self) -> None:
        transport, protocol = self._transport, self._http()
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
        self._waiting.discard(self)
        if self._timer is not None:
            self._timer.cancel()
