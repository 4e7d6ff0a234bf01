"""One delivery as it comes in, in any number of transfers: in memory, or its body to a file.

Owns the bytes until they are a message. Must never decide what becomes of it. Called by
`receiving`.

What is kept in memory is bounded: a message whose body is one long data section, string or binary
goes to a file as soon as it is large (`min-large-message-size`); any other has at most
`MEMORY_BYTES_MAX`.
"""

from __future__ import annotations

from codecs import IncrementalDecoder, getincrementaldecoder
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.server.amqp.conditions import Condition, Refused
from vespiary_broker.server.amqp.storing import (
    Repeats,
    Taken,
    find_long_body,
    take_head,
    with_footer,
)
from vespiary_codec.wire.amqp import AmqpLimits, RemoteProtocolError, Transfer, Violation

if TYPE_CHECKING:
    from vespiary_broker.server.listener import LargeLimits
    from vespiary_broker.server.message_sender import Stage
    from vespiary_broker.store.large_messages import LargeMessages
    from vespiary_broker.store.large_writer import LargeWriter

MEMORY_BYTES_MAX: Final = 1024 * 1024
_TAIL_BYTES_MAX: Final = 64 * 1024


class Delivery:
    """One delivery.

    Attributes:
        id: Its id.
        tag: Its tag.
        is_settled: Whether its sender has settled it.
        is_second: Whether the sender wants to settle it last (`rcv-settle-mode` second).
        state: What its sender says of it: a transaction, or nothing.
        writer: Where its body goes; None: it is in memory.
        size_bytes: Bytes taken.
        stage: Stages its message; None: as any message.

    Args:
        transfer: Its first transfer.
        limits: How much of each value is read.
        repeats: Reads the messages of its link.
        size_bytes_max: Largest message.
        large: Which messages go to files; None: none does.
        store: The files.
    """

    def __init__(
        self,
        transfer: Transfer,
        limits: AmqpLimits,
        repeats: Repeats,
        size_bytes_max: int,
        large: LargeLimits | None,
        store: LargeMessages | None,
    ) -> None:
        self.id = int(transfer.delivery_id or 0)
        self.tag = transfer.delivery_tag or b""
        self.is_settled = bool(transfer.settled)
        self.is_second = transfer.rcv_settle_mode == 1
        self.state: Any = None
        self.writer: LargeWriter | None = None
        self.size_bytes = 0
        self.stage: Stage | None = None
        self._limits = limits
        self._repeats = repeats
        self._size_bytes_max = size_bytes_max
        self._large = large if store is not None else None
        self._store = store
        self._pieces: list[bytes] = []
        self._head: Taken | None = None
        self._body_left = 0
        self._tail = b""
        self._looked_bytes = 0
        self._text: IncrementalDecoder | None = None

    def add(self, transfer: Transfer, payload: bytes) -> None:
        """Take in a transfer.

        Raises:
            Refused: The message is too large.
            RemoteProtocolError: It is no message.
        """
        self.is_settled |= bool(transfer.settled)
        if transfer.state is not None:
            self.state = transfer.state
        self.size_bytes += len(payload)
        if self.size_bytes > self._size_bytes_max:
            raise _too_large(self.size_bytes, self._size_bytes_max)
        if self.writer is not None:
            self._write(payload)
            return
        self._pieces.append(payload)
        if not transfer.more:
            return
        if self._large is not None and self.size_bytes > max(
            self._large.over_bytes, self._looked_bytes
        ):
            self._begin_file()
        if self.writer is None and self.size_bytes > MEMORY_BYTES_MAX:
            raise _too_large(self.size_bytes, MEMORY_BYTES_MAX)

    def _begin_file(self) -> None:
        """Have the body go to a file, if that can be seen to be one long value."""
        data = b"".join(self._pieces)
        self._pieces = [data]
        self._looked_bytes = 2 * self.size_bytes
        body = find_long_body(data, self._limits)
        if body is None:
            return
        assert self._store is not None
        assert self._large is not None
        if body.size_bytes > self._large.size_bytes_max:
            raise _too_large(body.size_bytes, self._large.size_bytes_max)
        self._head = take_head(data[: body.begin], body, self._limits)
        self._body_left = body.size_bytes
        self._text = getincrementaldecoder("utf-8")() if body.is_text else None
        self._pieces = []
        self.writer = self._store.begin()
        self._write(data[body.at :])

    def _write(self, data: bytes) -> None:
        assert self.writer is not None
        body = data[: self._body_left]
        if body:
            self._body_left -= len(body)
            self._check_text(body)
            self.writer.put(body)
        self._tail += data[len(body) :]
        if len(self._tail) > _TAIL_BYTES_MAX:
            raise _too_large(len(self._tail), _TAIL_BYTES_MAX)

    def _check_text(self, body: bytes) -> None:
        if self._text is None:
            return
        try:
            self._text.decode(body, final=not self._body_left)
        except UnicodeDecodeError:
            raise RemoteProtocolError(
                Violation.NOT_UTF8, "the string that is the body is not valid UTF-8"
            ) from None

    @property
    def key(self) -> bytes:
        """The message before its body, once it was taken whole from one transfer; else empty."""
        return self._repeats.key_of(self._pieces[0]) if len(self._pieces) == 1 else b""

    def message(self) -> Taken:
        """Return the message, all of which is there.

        Raises:
            RemoteProtocolError: It is none.
        """
        if self._head is None:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            return self._repeats.take(data)
        if self._body_left:
            raise Refused(
                Condition.PRECONDITION_FAILED,
                f"the message ends {self._body_left} bytes before the end of its body",
            )
        return with_footer(self._head, self._tail, self._limits)

    def drop(self) -> None:
        """Forget what was taken."""
        self._pieces.clear()
        if self.writer is not None:
            self.writer.discard()


def _too_large(size_bytes: int, most: int) -> Refused:
    return Refused(
        Condition.MESSAGE_SIZE_EXCEEDED,
        "the message is too large",
        measured=f"{size_bytes} bytes or more",
        allowed=f"at most {most} bytes",
    )
