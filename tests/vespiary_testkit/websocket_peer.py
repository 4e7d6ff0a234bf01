"""A WebSocket client without a socket: handshake and frames, right ones and odd ones.

What it sends is made by wsproto's client, or by `frame`, which makes any frame; what it receives
is read by wsproto's client. The same class serves tests over fake transports and over sockets.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from typing import Self

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Message,
    Pong,
    Request,
    TextMessage,
)

from vespiary_testkit.waiting import WAIT_S

MASK = b"\x11\x22\x33\x44"


def handshake(
    *subprotocols: str, path: str = "/ws", headers: dict[str, str] | None = None
) -> bytes:
    """Return a handshake; a header of None is left out."""
    lines = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
        **({"Sec-WebSocket-Protocol": ", ".join(subprotocols)} if subprotocols else {}),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value is not None)
    return f"GET {path} HTTP/1.1\r\n{head}\r\n".encode()


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    is_last: bool = True,
    is_masked: bool = True,
    reserved: int = 0,
    length: bytes | None = None,
) -> bytes:
    """Return a frame, which may be against the rules.

    Args:
        opcode: 0 continuation, 1 text, 2 binary, 8 close, 9 ping, 10 pong.
        payload: What it holds.
        is_last: Whether it ends its message.
        is_masked: Whether it is masked.
        reserved: The three reserved bits.
        length: The bytes that say how long it is, without the mask's bit; None: as it is.
    """
    first = bytes([is_last << 7 | reserved << 4 | opcode])
    if length is None:
        if len(payload) < 126:
            length = bytes([len(payload)])
        elif len(payload) < 65536:
            length = struct.pack("!BH", 126, len(payload))
        else:
            length = struct.pack("!BQ", 127, len(payload))
    if not is_masked:
        return first + length + payload
    masked = bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))
    return first + bytes([length[0] | 0x80]) + length[1:] + MASK + masked


class WebSocketPeer:
    """One client's side.

    Args:
        subprotocols: What it offers.

    Attributes:
        subprotocol: What was agreed upon; None before, or if none was.
        messages: The messages that came and were not taken, each a pair of text or bytes and the
            number of fragments.
        pongs: The answers to pings.
        close: How the other side closed; None before.
    """

    def __init__(self, *subprotocols: str) -> None:
        self._connection = WSConnection(ConnectionType.CLIENT)
        self.opening = self._connection.send(
            Request(host="localhost", target="/ws", subprotocols=list(subprotocols))
        )
        self.subprotocol: str | None = None
        self.is_open = False
        self.messages: list[tuple[bytes | str, int]] = []
        self.pongs: list[bytes] = []
        self.close: CloseConnection | None = None
        self._parts: list[bytes | str] = []
        self._fragments = 0

    def send(self, event: Event) -> bytes:
        """Return an event as bytes to send."""
        return self._connection.send(event)

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._connection.receive_data(data)
        for event in self._connection.events():
            if isinstance(event, AcceptConnection):
                self.is_open, self.subprotocol = True, event.subprotocol
            elif isinstance(event, TextMessage | BytesMessage):
                self._take(event)
            elif isinstance(event, Pong):
                self.pongs.append(bytes(event.payload))
            elif isinstance(event, CloseConnection):
                self.close = event

    def _take(self, event: Message) -> None:
        self._parts.append(event.data)
        self._fragments += event.frame_finished
        if event.message_finished:
            whole = "" if isinstance(event, TextMessage) else b""
            self.messages.append((whole.join(self._parts), self._fragments))  # type: ignore[arg-type]
            self._parts, self._fragments = [], 0

    def received(self) -> bytes:
        """Take what messages brought, as bytes in one piece."""
        taken, self.messages = self.messages, []
        return b"".join(m.encode() if isinstance(m, str) else m for m, _ in taken)


class WebSocketClient:
    """A client over a socket, for STOMP by `log_in`; use it as a context manager.

    Args:
        port: Port on loopback.
        subprotocols: What it offers.
        tls: Context, if the port speaks TLS.

    Attributes:
        socket: For bytes of any kind.
        peer: What came.
    """

    def __init__(self, port: int, *subprotocols: str, tls: ssl.SSLContext | None = None) -> None:
        self.socket: socket.socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.peer = WebSocketPeer(*subprotocols)
        self.socket.sendall(self.peer.opening)
        self.until(lambda: self.peer.is_open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def log_in(self) -> Self:
        """Log in by STOMP 1.2."""
        self.message(b"CONNECT\naccept-version:1.2\nhost:localhost\n\n\0")
        assert self.received(b"\0").startswith(b"CONNECTED")
        return self

    def until(self, look: Callable[[], object]) -> None:
        """Read until something true is seen."""
        while not look():
            data = self.socket.recv(65536)
            assert data, "the broker closed the connection"
            self.peer.feed(data)

    def message(self, data: bytes) -> None:
        """Send one binary message."""
        self.socket.sendall(self.peer.send(BytesMessage(data)))

    def received(self, end: bytes) -> bytes:
        """Read until what messages brought ends with something; return it."""
        found = b""
        while not found.endswith(end):
            self.until(lambda: self.peer.messages)
            found += self.peer.received()
        return found
