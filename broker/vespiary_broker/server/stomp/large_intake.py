"""A large body as it comes in: from the socket to a file, never whole in memory.

Owns the rule where the body ends (STOMP 1.2 §Frames: after `content-length` octets, or at the first
NUL), and which frames are large. Must never keep a byte: each goes on to the writer. Called by
`intake`, which gives it what was read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vespiary_codec.wire.stomp import (
    NEED_DATA,
    Frame,
    Head,
    LimitExceeded,
    RemoteProtocolError,
    StompDecoder,
    StompLimits,
    Version,
    Violation,
)

if TYPE_CHECKING:
    from vespiary_broker.server.listener import LargeLimits
    from vespiary_broker.store.large_messages import LargeMessages
    from vespiary_broker.store.large_writer import LargeWriter

_NUL = b"\0"


class LargeBodyIntake:
    """One large body of one connection.

    Args:
        head: Its frame.
        writer: Where it goes.
        size_bytes_max: Largest body.

    Attributes:
        frame: The frame, without its body.
        writer: Where the body goes.
        is_complete: Whether all of it was taken, and the NUL behind it.
    """

    def __init__(self, head: Head, writer: LargeWriter, size_bytes_max: int) -> None:
        self.frame: Frame = head.frame
        self.writer = writer
        self.is_complete = False
        self._announced = head.content_length
        self._size_bytes_max = size_bytes_max

    @property
    def size_bytes(self) -> int:
        """Bytes of the body taken so far."""
        return self.writer.size_bytes

    def take(self, data: memoryview) -> int:
        """Take the next bytes; return how many of them are of this frame.

        Raises:
            RemoteProtocolError: There is no NUL where the body has to end.
            LimitExceeded: A body without a length is larger than allowed.
        """
        if self._announced is not None:
            return self._take_counted(data, self._announced - self.writer.size_bytes)
        piece = bytes(data)
        end = piece.find(_NUL)
        body = piece if end < 0 else piece[:end]
        if self.writer.size_bytes + len(body) > self._size_bytes_max:
            raise LimitExceeded(
                Violation.BODY_BYTES,
                f"the body of SEND has at least {self._size_bytes_max + 1} octets;"
                f" at most {self._size_bytes_max} are allowed",
                receipt_id=self.frame.get("receipt"),
            )
        if body:
            self.writer.put(body)
        self.is_complete = end >= 0
        return len(piece) if end < 0 else end + 1

    def _take_counted(self, data: memoryview, left: int) -> int:
        body = bytes(data[:left])
        if body:
            self.writer.put(body)
        if len(data) <= left:
            return len(data)
        if data[left] != 0:
            raise RemoteProtocolError(
                Violation.UNTERMINATED_BODY,
                f"the body of SEND does not end in a NUL after the {self._announced} octets that"
                " content-length announced",
                receipt_id=self.frame.get("receipt"),
            )
        self.is_complete = True
        return left + 1


class LargeSink:
    """Where a listener's large bodies go.

    Args:
        store: The files.
        limits: Which messages are large.
    """

    def __init__(self, store: LargeMessages, limits: LargeLimits) -> None:
        self._store = store
        self._limits = limits

    def head_of(self, data: memoryview, limits: StompLimits, version: Version) -> Head | None:
        """Return the head of a frame, if it is a large message.

        Args:
            data: What was received of it; begins with the frame.
            limits: Bounds of its headers.
            version: The version agreed upon.

        Raises:
            RemoteProtocolError: The frame breaks the protocol or a limit.
        """
        decoder = StompDecoder(replace(limits, body_bytes=self._limits.size_bytes_max))
        decoder.set_version(version)
        decoder.feed(data[: limits.header_bytes + 64])
        head = decoder.next_head()
        if head is NEED_DATA or head.frame.command != "SEND":
            return None
        body_bytes = head.content_length
        if body_bytes is None:
            body_bytes = len(data) - head.head_bytes
        if not self._limits.is_large(body_bytes, body_bytes + head.head_bytes):
            return None
        return head

    def begin(self, head: Head) -> LargeBodyIntake:
        """Begin to take a body in."""
        return LargeBodyIntake(head, self._store.begin(), self._limits.size_bytes_max)
