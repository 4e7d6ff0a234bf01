"""What leaves through a WebSocket: each write as one message, a large one in fragments.

Each MQTT packet is a message of its own, and a large one a single frame. MQTT 5.0 §6 allows several
packets in one message, and RFC 6455 fragments, but some clients read only the first packet, and
lose messages that come in fragments (Paho C).

Owns the frames that go out, and how the connection is closed: code and reason. Must never look at
what it wraps, but for whether it is UTF-8, and where a packet ends. Called by `handler` and, as its
framing, by the connection. Source: RFC 6455 §5.4, §5.6, §7.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

_FINAL_BINARY: Final = 0x82
_LENGTH_16: Final = 126
_LENGTH_64: Final = 127


class OutgoingFrames:
    """The frames that one connection sends; keeps `protocol_handler.Framing`.

    Owner: its handler.

    Args:
        frames: Makes them.

    Attributes:
        is_text: Whether the client speaks in text messages, and is answered in such.
        split: Returns the parts of a write that are a message each; None: it is one.
    """

    def __init__(self, frames: Frames) -> None:
        self.is_text = False
        self.split: Callable[[bytes], list[bytes]] | None = None
        self._frames = frames
        self._left_bytes = 0  # of a message that has begun
        self._pong = b""  # that waits for the end of a frame
        self._code: int = CloseReason.NORMAL_CLOSURE
        self._reason = ""

    def wrap(self, data: bytes, *, total_bytes: int = 0) -> bytes:
        """Return a message, or a part of one, as it goes out; empty once it is too late.

        Args:
            data: What it holds. Where the client speaks in text this goes out as text if it is
                UTF-8; what goes out in parts is not known to be that, and is binary.
            total_bytes: As for `protocol_handler.Framing.wrap`.
        """
        if self._frames.state is not ConnectionState.OPEN:
            return b""
        is_first = not self._left_bytes
        if is_first:
            self._left_bytes = max(total_bytes, len(data))
        self._left_bytes -= len(data)
        is_last = not self._left_bytes
        if is_first and is_last:
            return self._whole(data)
        if self.split is None:
            return self._frames.send(BytesMessage(data, message_finished=is_last))
        if is_first:
            return _frame_header(self._left_bytes + len(data)) + data
        if is_last:
            data, self._pong = data + self._pong, b""
        return data

    def _whole(self, data: bytes) -> bytes:
        if self.is_text:
            try:
                return self._frames.send(TextMessage(data.decode()))
            except UnicodeDecodeError:
                return self._frames.send(BytesMessage(data))
        parts = [data] if self.split is None else self.split(data)
        return b"".join([self._frames.send(BytesMessage(part)) for part in parts])

    def pong(self, ping: Ping) -> bytes:
        """Return the answer to a ping; empty once it is too late, or while a frame goes out.

        Only the latest ping is answered then (RFC 6455 §5.5.3), behind the frame.
        """
        if self._frames.state is not ConnectionState.OPEN:
            return b""
        pong = self._frames.send(ping.response())
        if self._left_bytes and self.split is not None:
            self._pong = pong
            return b""
        return pong

    def close_with(self, code: int, reason: str) -> None:
        """Decide how the connection will be closed; the first decision holds.

        Args:
            code: Status code (RFC 6455 §7.4).
            reason: Why; cut where it does not fit into a frame.
        """
        if self._code == CloseReason.NORMAL_CLOSURE and not self._reason:
            self._code, self._reason = code, reason

    def end(self) -> bytes:
        """Return the Close frame, or the answer to the client's; empty if it was sent before."""
        if self._frames.state not in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            return b""
        return self._frames.send(CloseConnection(self._code, self._reason or None))

    @property
    def is_over(self) -> bool:
        """Whether both sides have sent their Close frames."""
        return self._frames.state is ConnectionState.CLOSED

    def discard(self, data: bytes) -> None:
        """Throw away what came behind the end, but for the client's Close frame.

        Args:
            data: What was read.
        """
        if self._frames.state in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            self._frames.receive_data(data)
            for _ in self._frames.events():
                pass


def _frame_header(size_bytes: int) -> bytes:
    """Return what begins a binary message of one frame, not masked (RFC 6455 §5.2).

    Args:
        size_bytes: Bytes that follow.
    """
    if size_bytes < _LENGTH_16:
        return bytes((_FINAL_BINARY, size_bytes))
    if size_bytes < 1 << 16:
        return bytes((_FINAL_BINARY, _LENGTH_16)) + size_bytes.to_bytes(2, "big")
    return bytes((_FINAL_BINARY, _LENGTH_64)) + size_bytes.to_bytes(8, "big")
