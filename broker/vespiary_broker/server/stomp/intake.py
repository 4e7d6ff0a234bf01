"""STOMP's intake: plain SENDs and ACKs go to the core, large bodies to files.

Owns what `server.intake` leaves to the protocol. Owner: its connection.
"""

from __future__ import annotations

from typing import Protocol

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.switching import Switches
from vespiary_broker.server import intake
from vespiary_broker.server.buffers import SharedBuffer
from vespiary_broker.server.stomp.large_intake import LargeBodyIntake, LargeSink
from vespiary_broker.store.large_writer import LargeWriter
from vespiary_codec.wire.stomp import (
    NEED_DATA,
    Frame,
    HeartBeat,
    StompDecoder,
    StompLimits,
    Version,
    Violation,
)
from vespiary_codec.wire.stomp import RemoteProtocolError as StompError
from vespiary_spec.errors import DiskFull, VespiaryError


class Taker(intake.Taker[Frame], Protocol):
    """What the intake needs of its connection."""

    def check_large(self, frame: Frame) -> None:
        """Raise if a frame's body may not go to a file: the client may not send it."""

    def take_large(self, frame: Frame, writer: LargeWriter) -> None:
        """Handle a frame whose body went to a file."""

    def hold_reading(self, *, held: bool) -> None:
        """Stop reading because bytes wait for the disk, or go on."""

    def is_body_dropped(self, frame: Frame, full: DiskFull) -> bool:
        """Whether a large body that finds no room is dropped; raises to refuse it."""

    def refuse_large(self, error: VespiaryError, frame: Frame) -> None:
        """End the connection because a body could not be stored."""


class Intake(intake.Intake[Frame]):
    """The bytes that one connection received.

    Args:
        core: The core.
        shared: The buffer of all connections.
        taker: The connection.
        limits: Bounds of a frame.
        switches: Choose for messages whose route depends on them.
        large: Where large bodies go; None: there are none.
    """

    _decoder: StompDecoder
    _taker: Taker

    def __init__(
        self,
        core: Core,
        shared: SharedBuffer,
        taker: Taker,
        limits: StompLimits,
        switches: Switches,
        large: LargeSink | None = None,
    ) -> None:
        super().__init__(core, shared, taker, switches)
        self._large = large
        self._receiving: LargeBodyIntake | None = None
        self._limits = limits
        self._decoder = StompDecoder(limits)

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a frame that is not complete."""
        if self._receiving is not None:
            return self._receiving.size_bytes
        return super().partial_bytes

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
        if self._receiving is not None:
            self._receiving.writer.discard()
            self._receiving = None
        super().drop()

    def set_version(self, version: Version) -> None:
        """Go on behind the login: with the core's scanner, in this version."""
        decoder = StompDecoder(self._limits)
        decoder.set_version(version)
        self._logged_in(decoder)

    # --- what a frame is --------------------------------------------------------------------------

    def _scan_core(self, buffer: int, position: int, end: int) -> tuple[int, int, int]:
        return self._core.scan_stomp(self._taker.handle, buffer, position, end)

    def _next_frame(self) -> Frame | None:
        try:
            event = self._decoder.next_event()
            while isinstance(event, HeartBeat):
                event = self._decoder.next_event()
        except StompError as error:
            self._taker.refuse_error(error)
            return None
        return None if event is NEED_DATA else event

    @property
    def _is_mid_frame(self) -> bool:
        return self._decoder.is_mid_frame

    def _may_end(self, memory: bytearray, start: int, end: int) -> bool:
        return memory.find(b"\0", start, end) >= 0

    def _take_odd(self, memory: bytearray, position: int, end: int) -> None:
        if not self._begin_large(memory, position, end):
            super()._take_odd(memory, position, end)

    # --- large bodies -----------------------------------------------------------------------------

    def _begin_large(self, memory: bytearray, position: int, end: int) -> bool:
        """Have a body go to a file from now on; False if the frame is not a large message."""
        if self._large is None or self._decoder.version is None:
            return False
        with memoryview(memory) as view, view[position:end] as data:
            try:
                head = self._large.head_of(data, self._limits, self._decoder.version)
            except StompError as error:
                if error.violation is not Violation.BODY_BYTES:
                    return False
                self._taker.refuse_error(error)
                return True
            if head is None:
                return False
            rest = bytes(data[head.head_bytes :])
        try:
            self._taker.check_large(head.frame)
        except VespiaryError as error:
            self._taker.refuse_large(error, head.frame)
            return True
        self._tail = bytearray()
        self._release_private()
        receiving = self._receiving = self._large.begin(head)
        taker, writer = self._taker, receiving.writer

        def meet_full(full: DiskFull) -> bool:
            is_dropped = taker.is_body_dropped(receiving.frame, full)
            if not is_dropped and self._receiving is receiving:
                taker.hold_reading(held=True)
            return is_dropped

        writer.on_full = meet_full
        writer.on_room = lambda: taker.hold_reading(held=False)
        writer.on_failed = lambda error: taker.refuse_large(error, receiving.frame)
        taker.note_partial(is_partial=True, is_new=True)
        self._take_large(memoryview(rest))
        return True

    def _take_large(self, data: memoryview) -> None:
        """Take bytes of a large body; what is behind it waits until its message is handled."""
        receiving = self._receiving
        assert receiving is not None
        try:
            taken = receiving.take(data)
        except StompError as error:
            self._taker.refuse_error(error)
            return
        if not receiving.is_complete:
            if receiving.writer.is_full:
                self._taker.hold_reading(held=True)
            return
        self._receiving = None
        self._taker.note_partial(is_partial=False)
        self._taker.take_large(receiving.frame, receiving.writer)
        if len(data) > taken:
            self._hold_more(data[taken:])
