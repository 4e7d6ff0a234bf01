"""The frame layer: bytes of one direction of one connection in, frames out, and the way back.

Owns the bytes that it was fed and not yet turned into an event. Must never do I/O or look at a
clock. Called by the broker's connection, and by the tests of a C scanner, for which it is the
specification. The events, and the violation that ends them, do not depend on how the bytes were cut
into pieces.

Theory of operation. A connection begins with eight bytes that name a protocol and its version:
AMQP, or SASL, behind which the peer begins anew with AMQP. Then come frames: four bytes of size,
one that says where the body begins, one of type, two of channel, an extension that nobody uses, and
the body: a performative and, of a transfer, a piece of a message behind it. An AMQP frame without a
body is a sign of life. Size, offset and type are judged as soon as they are there.

Rules, where the specification leaves a choice:

- Before `open` a frame has at most 512 bytes, as §2.3.1 and §5.3.1 have it.
- What stands behind the performative is the payload of a transfer; of any other it is a violation.
- A frame of SASL has no body that is empty; its channel means nothing.

Source: AMQP 1.0 (OASIS, 2012) §2.2, §2.3 and §5.3.1.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any, Final

from vespiary_codec.wire.amqp.composites import name_of, read, write
from vespiary_codec.wire.amqp.decoding import Decoder
from vespiary_codec.wire.amqp.errors import (
    Condition,
    LimitExceeded,
    LocalProtocolError,
    RemoteProtocolError,
    Violation,
)
from vespiary_codec.wire.amqp.limits import AmqpLimits
from vespiary_codec.wire.amqp.performatives import PERFORMATIVES, Open, Transfer
from vespiary_codec.wire.amqp.quick_transfer import read_transfer
from vespiary_codec.wire.amqp.sasl import SASL_FRAMES, SaslOutcome

HEADER_BYTES: Final = 8
_OFFSET_UNIT_BYTES: Final = 4
_OFFSET_MIN: Final = 2


class Layer(enum.IntEnum):
    """Protocol ids of the header."""

    AMQP = 0
    TLS = 2
    SASL = 3


FRAME_TYPES: Final = {Layer.AMQP: 0, Layer.SASL: 1}


class NeedData(enum.Enum):
    """Type of `NEED_DATA`."""

    NEED_DATA = enum.auto()


NEED_DATA: Final = NeedData.NEED_DATA
"""What a decoder answers when it has no complete event: feed it more bytes."""


@dataclass(slots=True)
class ProtocolHeader:
    """The first eight bytes of a layer.

    Attributes:
        layer: What follows.
    """

    layer: Layer


@dataclass(slots=True)
class Frame:
    """A frame.

    Attributes:
        channel: Its channel; 0 of a SASL frame.
        body: A performative, or a frame of SASL; None: a sign of life.
        payload: What stands behind a transfer.
    """

    channel: int = 0
    body: Any = None
    payload: bytes = b""


def protocol_header(layer: Layer) -> bytes:
    """Return the eight bytes that a layer begins with."""
    return b"AMQP" + bytes([layer, 1, 0, 0])


def encode_frame(frame: Frame, frame_bytes: int = 2**32 - 1) -> bytes:
    """Return a frame as bytes.

    Args:
        frame: The frame.
        frame_bytes: What the peer takes at the most.

    Raises:
        LocalProtocolError: It is larger than that, or a field cannot be written.
    """
    body = b"" if frame.body is None else write(frame.body)
    kind = FRAME_TYPES[Layer.SASL if type(frame.body) in SASL_FRAMES else Layer.AMQP]
    size = HEADER_BYTES + len(body) + len(frame.payload)
    if size > frame_bytes:
        name = name_of(frame.body)
        raise LocalProtocolError(f"{name} has {size} bytes; the peer takes {frame_bytes}")
    return struct.pack(">IBBH", size, _OFFSET_MIN, kind, frame.channel) + body + frame.payload


class FrameDecoder:
    """Turns bytes into protocol headers and frames, for one direction of one connection.

    Feed it with `feed`, then call `next_event` until it answers `NEED_DATA`. After a
    `RemoteProtocolError` it takes no more data and raises the same error again.

    Owner: the task of the connection. Not for use from two threads.

    Args:
        limits: Bounds of a frame and of values; None means the defaults.
    """

    def __init__(self, limits: AmqpLimits | None = None) -> None:
        self._limits = AmqpLimits() if limits is None else limits
        self._buffer = bytearray()
        self._begin = 0
        self._layer: Layer | None = None  # None: a protocol header comes next
        self._is_open = False
        self._failure: RemoteProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes fed that no event has taken yet."""
        return len(self._buffer) - self._begin

    @property
    def is_mid_frame(self) -> bool:
        """Whether part of a frame has arrived and not its end.

        True only after `next_event` has answered `NEED_DATA`; until then the rest may be in the
        buffer.
        """
        return self.buffered_bytes > 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take in bytes from the peer; they are copied. After an error they are dropped.

        Args:
            data: Any number of bytes, cut anywhere.
        """
        if self._failure is not None:
            return
        if self._begin:
            del self._buffer[: self._begin]
            self._begin = 0
        self._buffer += data

    def take_rest(self) -> bytes:
        """Return the bytes that no event has taken, which are somebody else's from now on."""
        rest = bytes(self._buffer[self._begin :])
        self._buffer.clear()
        self._begin = 0
        return rest

    def next_event(self) -> ProtocolHeader | Frame | NeedData:
        """Return the next header or frame, or `NEED_DATA` if it is not whole yet.

        Raises:
            LimitExceeded: The peer exceeded a limit.
            RemoteProtocolError: The peer broke a rule. The same error is raised from then on.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return self._header() if self._layer is None else self._frame(self._layer)
        except RemoteProtocolError as error:
            self._failure = error
            self._buffer.clear()
            self._begin = 0
            raise

    def _header(self) -> ProtocolHeader | NeedData:
        found = bytes(self._buffer[self._begin : self._begin + HEADER_BYTES])
        for layer in Layer:
            whole = protocol_header(layer)
            if found == whole:
                self._begin += HEADER_BYTES
                self._layer = layer if layer in FRAME_TYPES else None
                return ProtocolHeader(layer)
            if whole.startswith(found):
                return NEED_DATA
        raise RemoteProtocolError(
            Violation.PROTOCOL_HEADER,
            "a layer begins with other bytes than those of AMQP 1.0.0",
            Condition.FRAMING_ERROR,
        )

    def _frame(self, layer: Layer) -> Frame | NeedData:
        at, there = self._begin, self.buffered_bytes
        if there < _OFFSET_UNIT_BYTES:
            return NEED_DATA
        size = int.from_bytes(self._buffer[at : at + _OFFSET_UNIT_BYTES], "big")
        self._check_size(size)
        if there < HEADER_BYTES:
            return NEED_DATA
        offset, kind = self._buffer[at + 4] * _OFFSET_UNIT_BYTES, self._buffer[at + 5]
        self._check_head(layer, size, offset, kind)
        if there < size:
            return NEED_DATA
        channel = int.from_bytes(self._buffer[at + 6 : at + HEADER_BYTES], "big")
        data = bytes(self._buffer[at + offset : at + size])
        frame = self._read(layer, channel, data)
        self._begin += size
        return frame

    def _check_size(self, size: int) -> None:
        most = self._limits.frame_bytes if self._is_open else self._limits.before_open_bytes
        if size > most:
            raise LimitExceeded(
                Violation.FRAME_BYTES,
                f"a frame of {size} bytes is announced; at most {most} are allowed",
                Condition.FRAMING_ERROR,
            )
        if size < HEADER_BYTES:
            raise RemoteProtocolError(
                Violation.FRAME_SIZE, f"a frame of {size} bytes is announced; its head has 8",
                Condition.FRAMING_ERROR,
            )  # fmt: skip

    def _check_head(self, layer: Layer, size: int, offset: int, kind: int) -> None:
        if not _OFFSET_MIN * _OFFSET_UNIT_BYTES <= offset <= size:
            raise RemoteProtocolError(
                Violation.DATA_OFFSET, f"the body of a frame of {size} bytes begins at {offset}",
                Condition.FRAMING_ERROR,
            )  # fmt: skip
        if kind != FRAME_TYPES[layer]:
            raise RemoteProtocolError(
                Violation.FRAME_TYPE, f"a frame of type {kind} stands in a layer of {layer.name}",
                Condition.FRAMING_ERROR,
            )  # fmt: skip

    def _read(self, layer: Layer, channel: int, data: bytes) -> Frame:
        is_sasl = layer is Layer.SASL
        if not data:
            if is_sasl:
                raise RemoteProtocolError(
                    Violation.FRAME_BODY, "a frame of SASL has no body", Condition.FRAMING_ERROR
                )
            return Frame(channel)
        usual = None if is_sasl else read_transfer(data)
        if usual is not None:
            return Frame(channel, *usual)
        decoder = Decoder(data, self._limits)
        body = read(decoder, *(SASL_FRAMES if is_sasl else PERFORMATIVES))
        payload = data[decoder.at :]
        if payload and not isinstance(body, Transfer):
            raise RemoteProtocolError(
                Violation.TRAILING_BYTES, f"{len(payload)} bytes stand behind {name_of(body)}"
            )
        if isinstance(body, Open):
            self._is_open = True
        if isinstance(body, SaslOutcome):
            self._layer = None
        return Frame(0 if is_sasl else channel, body, payload)

    def expect_header(self) -> None:
        """Read a protocol header next: a server has sent the outcome of a login.

        Raises:
            LocalProtocolError: The layer is not SASL.
        """
        if self._layer is not Layer.SASL:
            raise LocalProtocolError("a new layer begins behind that of SASL alone")
        self._layer = None
