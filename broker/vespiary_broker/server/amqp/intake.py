"""AMQP's intake: what the core's scanner leaves goes to the handler as decoded frames.

Owns what `server.intake` leaves to the protocol: the layers up to `open` have no scanner, and any
number of frames. Owner: its connection.
"""

from __future__ import annotations

from typing import Protocol

from vespiary_broker.engine.core import AmqpTaken, Core
from vespiary_broker.engine.switching import Switches
from vespiary_broker.server import intake
from vespiary_broker.server.buffers import SharedBuffer
from vespiary_broker.server.intake import Taker
from vespiary_codec.wire.amqp import (
    AmqpLimits,
    Frame,
    FrameDecoder,
    ProtocolHeader,
    RemoteProtocolError,
)
from vespiary_codec.wire.amqp.frames import NeedData


class AmqpTaker(Taker[Frame | ProtocolHeader], Protocol):
    """What this intake needs of its connection."""

    def taken(self, taken: list[AmqpTaken]) -> None:
        """Count what the core has taken."""


class Intake(intake.Intake[Frame | ProtocolHeader]):
    """The bytes that one connection received.

    Args:
        core: The core.
        shared: The buffer of all connections.
        taker: The connection.
        limits: Bounds of a frame and of values.
        switches: Choose for messages whose route depends on them.
    """

    _decoder: FrameDecoder
    _taker: AmqpTaker

    def __init__(
        self,
        core: Core,
        shared: SharedBuffer,
        taker: AmqpTaker,
        limits: AmqpLimits,
        switches: Switches,
    ) -> None:
        super().__init__(core, shared, taker, switches)
        self._decoder = FrameDecoder(limits)

    def expect_header(self) -> None:
        """Read a protocol header next: the login is done."""
        self._decoder.expect_header()

    def opened(self) -> None:
        """Go on behind `open`: with the core's scanner."""
        self._after_login = self._decoder.take_rest()
        self._logged_in(self._decoder)

    # --- before the scanner -----------------------------------------------------------------------

    def _take_coded(self, data: memoryview) -> None:
        self._decoder.feed(data)
        self._decode()

    def _decode(self, data: memoryview | None = None) -> None:  # noqa: ARG002 (the decoder has it)
        """Handle the frames that the decoder has, up to `open`."""
        while self._taker.is_taking:
            frame = self._next_frame()
            if frame is None:
                self._taker.note_partial(self._is_mid_frame)
                return
            self._taker.take_frame(frame)
            if not self._is_coded:
                if self._taker.is_taking:
                    self._take_after_login()
                return

    # --- what a frame is --------------------------------------------------------------------------

    def _scan_core(self, buffer: int, position: int, end: int) -> tuple[int, int, int]:
        handle = self._taker.handle
        answer = self._core.scan_amqp(handle, buffer, position, end)
        taken = self._core.taken_amqp(handle)
        if taken:  # counted before a frame behind it is handled
            self._taker.taken(taken)
        return answer

    def _next_frame(self) -> Frame | ProtocolHeader | None:
        try:
            event = self._decoder.next_event()
        except RemoteProtocolError as error:
            self._taker.refuse_error(error)
            return None
        return None if isinstance(event, NeedData) else event

    @property
    def _is_mid_frame(self) -> bool:
        return self._decoder.is_mid_frame
