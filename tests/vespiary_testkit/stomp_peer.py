"""A blocking STOMP client over a socket, which can also misbehave.

Owns the socket; frames are made and read by the codec's own client and decoder. For what stock
clients do, tests use stomp.py.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from itertools import count
from typing import Self

from vespiary_codec.wire.stomp import (
    NEED_DATA,
    Frame,
    HeartBeat,
    StompDecoder,
    StompLimits,
    Version,
    encode,
)
from vespiary_testkit.waiting import WAIT_S

TIMEOUT_S = WAIT_S
_MARKERS = count(1)
_LIMITS = StompLimits(header_bytes=1 << 20, header_line_bytes=1 << 20, before_login_bytes=1 << 20)


class Ended(AssertionError):  # noqa: N818 (a state of the peer)
    """The broker closed the connection where a frame was expected."""


class StompPeer:
    """One connection to a broker.

    Args:
        port: Port on loopback.
        version: Version to ask for, once `connect` is called.
        tls: Context, if the port speaks TLS.
        host: Address of the broker.
        sock: A socket that is connected to it; None makes one.
    """

    def __init__(
        self,
        port: int,
        *,
        version: Version = "1.2",
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        sock: socket.socket | None = None,
    ) -> None:
        self.socket: socket.socket = sock or socket.create_connection((host, port), TIMEOUT_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self.version: Version = version
        self.heart_beats = 0
        self._decoder = StompDecoder(_LIMITS, role="client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(
        self,
        command: str,
        headers: dict[str, str] | Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> None:
        """Send a frame."""
        pairs = list(headers.items()) if isinstance(headers, dict) else list(headers)
        version: Version = "1.0" if command in ("CONNECT", "STOMP") else self.version
        self.send_raw(encode(Frame(command, pairs, body), version))

    def connect(self, **headers: str) -> Frame:
        """Log in; return the CONNECTED frame. `_` in a name stands for `-`."""
        wanted = {"accept-version": self.version, "host": "localhost"}
        wanted |= {name.replace("_", "-"): value for name, value in headers.items()}
        if self.version == "1.0":
            del wanted["accept-version"]
        self.send("CONNECT", wanted)
        frame = self.receive()
        assert frame.command == "CONNECTED", (frame, frame.body)
        self._decoder.set_version(self.version)
        return frame

    def receive(self, timeout_s: float = TIMEOUT_S) -> Frame:
        """Return the next frame.

        Raises:
            Ended: The broker closed the connection.
            TimeoutError: Nothing came.
        """
        self.socket.settimeout(timeout_s)
        while True:
            event = self._decoder.next_event()
            if isinstance(event, HeartBeat):
                self.heart_beats += event.count
            elif event is not NEED_DATA:
                return event
            else:
                data = self.socket.recv(65536)
                if not data:
                    raise Ended("the broker closed the connection")
                self._decoder.feed(data)

    def receive_error(self, timeout_s: float = TIMEOUT_S) -> Frame:
        """Skip to the ERROR frame, and check that the connection ends after it."""
        while True:
            frame = self.receive(timeout_s)
            if frame.command == "ERROR":
                break
        try:
            more = self.receive(timeout_s)
        except (Ended, ConnectionResetError):
            return frame
        raise AssertionError(f"after ERROR came {more}")

    def receive_receipt(self, receipt_id: str) -> list[Frame]:
        """Wait for a receipt, past earlier ones; return the messages that came before it."""
        frames = []
        while True:
            frame = self.receive()
            if frame.command == "RECEIPT":
                if frame.get("receipt-id") == receipt_id:
                    return frames
                continue
            assert frame.command == "MESSAGE", (frame, frame.body)
            frames.append(frame)

    def receive_messages(self, count: int) -> list[Frame]:
        """Return that many messages."""
        frames = []
        while len(frames) < count:
            frame = self.receive()
            assert frame.command == "MESSAGE", (frame, frame.body)
            frames.append(frame)
        return frames

    def receive_heart_beats(self, count: int) -> None:
        """Wait until that many more heart-beats have come, without a frame among them."""
        wanted = self.heart_beats + count
        self.socket.settimeout(TIMEOUT_S)
        while self.heart_beats < wanted:
            event = self._decoder.next_event()
            if event is NEED_DATA:
                data = self.socket.recv(65536)
                assert data, "the broker closed the connection"
                self._decoder.feed(data)
            else:
                assert isinstance(event, HeartBeat), event
                self.heart_beats += event.count

    def receive_rest(self, destination: str) -> list[Frame]:
        """Return the messages of a queue that are still to come: all before one that is sent now.

        The peer has to be the only consumer of the queue, with credit for one message more.
        """
        marker = f"marker-{next(_MARKERS)}"
        self.send("SEND", {"destination": destination, "receipt": marker}, marker.encode())
        frames, receipts = list[Frame](), 0
        while True:
            frame = self.receive()
            if frame.command == "RECEIPT":
                assert frame.get("receipt-id") == marker
                receipts += 1
                continue
            assert frame.command == "MESSAGE", (frame, frame.body)
            if frame.body == marker.encode():
                break
            frames.append(frame)
        if (ack := frame.get("ack")) is not None:
            self.send("ACK", {"id": ack, "receipt": marker})
            receipts -= 1
        while receipts < 1:
            assert self.receive().get("receipt-id") == marker
            receipts += 1
        return frames

    def check_silent(self) -> None:
        """Check that nothing has come by now.

        That says something only after the broker has answered, on another connection, what was
        asked after whatever must have no answer here.
        """
        event = self._decoder.next_event()
        if event is NEED_DATA and select.select([self.socket], [], [], 0)[0]:
            event = self.receive()
        assert event is NEED_DATA, f"unexpected {event}"
