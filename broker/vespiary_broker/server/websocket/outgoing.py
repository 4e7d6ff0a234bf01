"""What leaves through a WebSocket: each write as one message, a large one in fragments.

Each MQTT packet is a message of its own. MQTT 5.0 §6 allows several packets in one message, but
some clients read only the first.

Owns the frames that go out, and how the connection is closed: code and reason. Must never look at
what it wraps, but for whether it is UTF-8, and where a packet ends. Called by `handler` and, as its
framing, by the connection. Source: RFC 6455 §5.4, §5.6, §7.4.
"""

from __future__ import annotations

from collections.abc import Callable

from wsproto.connection import Connection as Frames
from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
from wsproto.frame_protocol import CloseReason


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
        self._is_amid = False  # a message in fragments is not at its end
        self._code: int = CloseReason.NORMAL_CLOSURE
        self._reason = ""

    def wrap(self, data: bytes, *, is_last: bool = True) -> bytes:
        """Return a message, or a fragment of one, as it goes out; empty once it is too late.

        Args:
            data: What it holds. Where the client speaks in text this goes out as text if it is
                UTF-8; what goes out in fragments is not known to be that, and is binary.
            is_last: Whether the message ends with it.
        """
        if self._frames.state is not ConnectionState.OPEN:
            return b""
        is_whole = is_last and not self._is_amid
        self._is_amid = not is_last
        if is_whole and self.is_text:
            try:
                return self._frames.send(TextMessage(data.decode()))
            except UnicodeDecodeError:
                return self._frames.send(BytesMessage(data))
        if is_whole and self.split is not None:
            return b"".join([self._frames.send(BytesMessage(part)) for part in self.split(data)])
        return self._frames.send(BytesMessage(data, message_finished=is_last))

    def pong(self, ping: Ping) -> bytes:
        """Return the answer to a ping; empty once it is too late."""
        is_open = self._frames.state is ConnectionState.OPEN
        return self._frames.send(ping.response()) if is_open else b""

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
