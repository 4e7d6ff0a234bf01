"""Clients of the rig of a server that speak STOMP through WebSockets, over fake transports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from wsproto.events import BytesMessage, TextMessage

from vespiary_broker.server.connection import Connection
from vespiary_codec.wire.stomp import NEED_DATA, Frame, HeartBeat, StompDecoder
from vespiary_testkit import product_loop
from vespiary_testkit.server_rig import FakeTransport, ServerRig
from vespiary_testkit.websocket_peer import WebSocketPeer

CONNECT = b"CONNECT\naccept-version:1.2\nhost:x\n\n\0"


def on_loop(
    runner: Callable[[Any], None] = product_loop.run,
    rig: Callable[..., ServerRig] = ServerRig,
    **options: Any,
) -> Callable[[Callable[[Any], Awaitable[None]]], Any]:
    """Run a test on a loop of its own with a rig."""

    def decorate(test: Callable[[Any], Awaitable[None]]) -> Any:
        @wraps(test)
        def run() -> None:
            async def scenario() -> None:
                made = rig(**options)
                await test(made)
                await made.close()

            runner(scenario())

        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for a fixture `rig`
        return run

    return decorate


class Client:
    """A client of the rig that speaks STOMP through a WebSocket."""

    def __init__(self, rig: ServerRig, *subprotocols: str) -> None:
        self.rig = rig
        self.transport = FakeTransport()
        self.connection = Connection(rig.cycle, rig.listener)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self.web = WebSocketPeer(*subprotocols)
        self.decoder = StompDecoder(role="client")
        self._taken = 0

    def arrive(self, data: bytes) -> None:
        """Have bytes arrive as they are."""
        while data:
            view = self.connection.get_buffer(-1)
            count = min(len(view), len(data))
            view[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]

    def message(self, data: bytes | str) -> None:
        """Have one message arrive."""
        event = TextMessage(data) if isinstance(data, str) else BytesMessage(data)
        self.arrive(self.web.send(event))

    async def open(self, *, text: bool = False) -> Client:
        """Shake hands and log in."""
        self.arrive(self.web.opening)
        self.look()
        assert self.web.is_open
        self.message(CONNECT.decode() if text else CONNECT)
        (connected,) = await self.frames()
        assert connected.command == "CONNECTED"
        self.decoder.set_version("1.2")
        return self

    def look(self) -> None:
        """Take what was written to the transport."""
        data, self._taken = self.transport.data[self._taken :], len(self.transport.data)
        self.web.feed(data)

    async def frames(self, *, is_flushed: bool = True) -> list[Frame]:
        """Return the STOMP frames that came, after a flush."""
        await (self.rig.flush() if is_flushed else self.rig.settle())
        self.look()
        self.decoder.feed(self.web.received())
        frames = []
        while (event := self.decoder.next_event()) is not NEED_DATA:
            if not isinstance(event, HeartBeat):
                frames.append(event)
        return frames

    def http(self) -> bytes:
        """Return the answer to a handshake that was refused."""
        return self.transport.data
