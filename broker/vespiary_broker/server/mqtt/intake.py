"""MQTT's intake: plain PUBLISHes go to the core, large payloads to files, the rest to the handler.

Owns what `server.intake` leaves to the protocol, and packets that are larger than what the core
scans: of a PUBLISH its beginning is read as it comes, and a large payload is never in memory. Other
packets, and payloads that are not large, are collected up to a bound. Owner: its connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.switching import Switches
from vespiary_broker.server import intake
from vespiary_broker.server.buffers import SharedBuffer
from vespiary_codec.wire.mqtt import (
    MqttDecoder,
    MqttLimits,
    Packet,
    Publish,
    RemoteProtocolError,
    Version,
)
from vespiary_codec.wire.mqtt.errors import LimitExceeded, Violation
from vespiary_codec.wire.mqtt.packet_types import PacketType
from vespiary_codec.wire.mqtt.packets import NeedData
from vespiary_codec.wire.mqtt.publish_head import (
    HEAD_BYTES_MAX,
    FixedHeader,
    read_fixed_header,
    read_publish_head,
)
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode
from vespiary_spec.errors import DiskFull, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.listener import LargeLimits
    from vespiary_broker.store.large_writer import LargeWriter

COLLECTED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Largest packet that is collected in memory: all packets but PUBLISH with a large payload."""


class Taker(intake.Taker[Packet], Protocol):
    """What the intake needs of its connection."""

    def refuse_error(self, error: VespiaryError) -> None:
        """End the connection for what the client did wrong, or may not do."""

    def begin_large(self, packet: Publish, payload_bytes: int) -> LargeWriter | None:
        """Return where the large payload of a PUBLISH goes; None: nowhere, it is passed over.

        Raises:
            VespiaryError: The connection has to end.
        """

    def take_large(self, packet: Publish, writer: LargeWriter | None) -> None:
        """Handle a PUBLISH whose payload has come."""

    def is_body_dropped(self, packet: Publish, full: DiskFull) -> bool:
        """Whether a large payload that finds no room is dropped; raises to refuse it."""

    def hold_reading(self, *, held: bool) -> None:
        """Stop reading because bytes wait for the disk, or go on."""


class _Receiving:
    """A packet as it comes in that is larger than what the core scans.

    Attributes:
        header: Its fixed header.
        left_bytes: Bytes that are still to come.
        taken_bytes: Bytes that have come.
        begun: Its beginning, as far as it has come; None once that is known, or need not be.
        packet: The PUBLISH whose payload is large; None until that is known, or for others.
        writer: Where its payload goes; None: nowhere.
    """

    __slots__ = ("begun", "header", "left_bytes", "packet", "taken_bytes", "writer")

    def __init__(self, header: FixedHeader) -> None:
        self.header = header
        self.left_bytes = header.left_bytes
        self.taken_bytes = header.header_bytes
        self.begun: bytearray | None = bytearray()
        self.packet: Publish | None = None
        self.writer: LargeWriter | None = None


class Intake(intake.Intake[Packet]):
    """The bytes that one connection received.

    Args:
        core: The core.
        shared: The buffer of all connections.
        taker: The connection.
        limits: Bounds of a packet.
        switches: Choose for messages whose route depends on them.
        large: Which payloads are large; None: none is.
    """

    _decoder: MqttDecoder
    _taker: Taker

    def __init__(
        self,
        core: Core,
        shared: SharedBuffer,
        taker: Taker,
        limits: MqttLimits,
        switches: Switches,
        large: LargeLimits | None = None,
    ) -> None:
        super().__init__(core, shared, taker, switches)
        self._limits = limits
        self._large = large
        self._version = Version.V5
        self._scanned_bytes = 0
        self._receiving: _Receiving | None = None
        self._decoder = MqttDecoder(limits)

    @property
    def version(self) -> Version | None:
        """The version that CONNECT asks for; None before it."""
        return self._decoder.version

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a packet that is not complete."""
        if self._receiving is not None:
            return self._receiving.taken_bytes
        return super().partial_bytes

    def set_version(self, version: Version, scanned_bytes: int) -> None:
        """Go on behind the login: with the core's scanner.

        Args:
            version: Of the connection.
            scanned_bytes: Largest packet that the scanner takes as one.
        """
        self._version = version
        self._scanned_bytes = scanned_bytes
        self._logged_in(MqttDecoder(self._limits, version=version))

    def take(self, nbytes: int) -> None:
        """Take what was read to `read_view`.

        Args:
            nbytes: How many bytes were read.
        """
        if self._receiving is not None and not self._is_coded:
            self._take_large(self._shared.view[:nbytes])
        else:
            super().take(nbytes)

    def drop(self) -> None:
        """Forget everything that was received."""
        self._end_receiving()
        super().drop()

    # --- what a packet is -------------------------------------------------------------------------

    def _scan_core(self, buffer: int, position: int, end: int) -> tuple[int, int, int]:
        return self._core.scan_mqtt(self._taker.handle, buffer, position, end)

    def _next_frame(self) -> Packet | None:
        try:
            packet = self._decoder.next_packet()
        except RemoteProtocolError as error:
            self._taker.refuse_error(error)
            return None
        return None if isinstance(packet, NeedData) else packet

    @property
    def _is_mid_frame(self) -> bool:
        return self._decoder.is_mid_packet

    def _scan_again_at(self, length: int) -> int:
        return length + 1  # its length is in its first five bytes

    def _take_odd(self, memory: bytearray, position: int, end: int) -> None:
        if not self._begin_large(memory, position, end):
            super()._take_odd(memory, position, end)

    # --- packets that the core does not scan ------------------------------------------------------

    def _begin_large(self, memory: bytearray, position: int, end: int) -> bool:
        """Take a packet as it comes from now on; False if it is wrong, which the decoder says."""
        with memoryview(memory) as view, view[position:end] as data:
            header = read_fixed_header(data)
            if header is None or self._large is None:
                return False
            size_bytes = header.header_bytes + header.left_bytes
            if size_bytes <= self._scanned_bytes:
                return False
            is_publish = header.kind == PacketType.PUBLISH
            most = self._limits.packet_bytes if is_publish else COLLECTED_BYTES_MAX
            if size_bytes > most:
                self._taker.refuse_error(_too_large(size_bytes, most))
                return True
            first, rest = bytes(data[: header.header_bytes]), bytes(data[header.header_bytes :])
        self._tail = bytearray()
        self._release_private()
        receiving = self._receiving = _Receiving(header)
        self._taker.note_partial(is_partial=True, is_new=True)
        if not is_publish:
            receiving.begun = None
            self._decoder.feed(first)
        self._take_large(memoryview(rest))
        return True

    def _take_large(self, data: memoryview) -> None:
        """Take bytes of a packet; what is behind it waits until it is handled."""
        receiving = self._receiving
        assert receiving is not None
        piece = bytes(data[: receiving.left_bytes])
        receiving.left_bytes -= len(piece)
        receiving.taken_bytes += len(piece)
        try:
            self._put(receiving, piece)
        except VespiaryError as error:
            self._end_receiving()
            self._taker.refuse_error(error)
            return
        writer = receiving.writer
        if receiving.left_bytes:
            if writer is not None and writer.is_full:
                self._taker.hold_reading(held=True)
            return
        self._receiving = None
        self._taker.note_partial(is_partial=False)
        if len(data) > len(piece):
            self._hold_more(data[len(piece) :])
        if receiving.packet is not None:
            self._taker.take_large(receiving.packet, writer)
        else:
            packet = self._next_frame()
            if packet is not None:
                self._taker.take_frame(packet)
        if self._taker.is_taking:
            self.resume()

    def _put(self, receiving: _Receiving, piece: bytes) -> None:
        """Put bytes where those of a packet go.

        Raises:
            VespiaryError: The connection has to end.
        """
        if receiving.begun is not None:
            receiving.begun += piece
            piece = self._read_beginning(receiving)
        if not piece:
            return
        if receiving.packet is None:
            self._decoder.feed(piece)
        elif receiving.writer is not None:
            receiving.writer.put(piece)

    def _read_beginning(self, receiving: _Receiving) -> bytes:
        """Decide where a payload goes, once what stands before it has come.

        Returns:
            What has come and goes on to where that is; nothing if it has to wait.
        """
        begun, header = receiving.begun, receiving.header
        assert begun is not None
        assert self._large is not None
        # What is small enough to be collected may have a long beginning: its message is refused.
        is_small = header.left_bytes <= COLLECTED_BYTES_MAX
        most = COLLECTED_BYTES_MAX if is_small else HEAD_BYTES_MAX
        head = read_publish_head(begun, header, self._version, self._limits, most)
        if head is None:
            return b""
        receiving.begun = None
        payload_bytes = header.left_bytes - head.head_bytes
        if not self._large.is_large(payload_bytes, header.left_bytes):
            return _bytes_of(header) + bytes(begun)
        receiving.packet = head.packet
        writer = receiving.writer = self._taker.begin_large(head.packet, payload_bytes)
        if writer is not None:
            self._watch(receiving, head.packet, writer)
        return bytes(begun[head.head_bytes :])

    def _watch(self, receiving: _Receiving, packet: Publish, writer: LargeWriter) -> None:
        """Read as fast as the disk takes a payload; who sent it is told in the end if it fails."""
        taker = self._taker

        def meet_full(full: DiskFull) -> bool:
            is_dropped = taker.is_body_dropped(packet, full)
            if not is_dropped and self._receiving is receiving:
                taker.hold_reading(held=True)
            return is_dropped

        writer.on_full = meet_full
        writer.on_room = lambda: taker.hold_reading(held=False)
        writer.on_failed = lambda _: taker.hold_reading(held=False)

    def _end_receiving(self) -> None:
        receiving, self._receiving = self._receiving, None
        if receiving is not None and receiving.writer is not None:
            receiving.writer.discard()


def _bytes_of(header: FixedHeader) -> bytes:
    """Return a fixed header as it came, but for a length with more bytes than it needs."""
    data, left = bytearray((header.kind << 4 | header.flags,)), header.left_bytes
    while left > 0x7F:
        data.append(left & 0x7F | 0x80)
        left >>= 7
    data.append(left)
    return bytes(data)


def _too_large(size_bytes: int, most: int) -> LimitExceeded:
    return LimitExceeded(
        Violation.PACKET_BYTES,
        f"a packet of {size_bytes} bytes is announced; at most {most} are allowed",
        ReasonCode.PACKET_TOO_LARGE,
    )
