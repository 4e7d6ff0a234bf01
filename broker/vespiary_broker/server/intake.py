"""What a connection received: from bytes to frames, in order, however they were cut.

Owns the bytes that were received and not yet taken. What the core's scanner understands is taken in
one call for all that was read; what it leaves goes to the connection as decoded frames. Before the
login, and when the scanner finds something that it does not understand, bytes go through the
codec's decoder alone, which says exactly what is wrong. Must never read sockets, nor look at the
same bytes again for every byte that arrives. `stomp.intake` and `mqtt.intake` say what a frame is.
Owner: its connection.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Final, Generic, Protocol, TypeVar

from vespiary_broker.engine.core import Core, ScanStatus
from vespiary_broker.engine.switching import Switches
from vespiary_broker.server.buffers import (
    HEADROOM_BYTES,
    READ_BYTES,
    PrivateBuffer,
    SharedBuffer,
)
from vespiary_spec.errors import RemoteProtocolError

READ_BEFORE_LOGIN_BYTES: Final = 16 * 1024

log = logging.getLogger(__name__)

F = TypeVar("F")
F_contra = TypeVar("F_contra", contravariant=True)


class Taker(Protocol[F_contra]):
    """What an intake needs of its connection."""

    @property
    def handle(self) -> int:
        """The core's handle of the connection."""

    @property
    def peer(self) -> str:
        """Where the client is."""

    @property
    def is_open(self) -> bool:
        """Whether frames are still taken, if not now."""

    @property
    def is_taking(self) -> bool:
        """Whether the next frame may be taken now."""

    def take_frame(self, frame: F_contra) -> None:
        """Handle a frame."""

    def refuse_error(self, error: RemoteProtocolError) -> None:
        """End the connection for what the client did wrong."""

    def fail_frame(self) -> None:
        """End the connection for what we did wrong."""

    @property
    def takes_blocked(self) -> bool:
        """Whether a frame that finds no room is taken nevertheless: a policy decides about it."""

    def block(self) -> None:
        """Take no frame until the journal has room."""

    def rest(self) -> None:
        """Take no frame before the next turn of the event loop."""

    def note_partial(self, is_partial: bool, *, is_new: bool = False) -> None:
        """Start or stop the clock of an incomplete frame.

        Args:
            is_partial: Whether part of a frame has been received and not its end.
            is_new: Whether it is another frame than before.
        """


class Decoder(Protocol):
    """What an intake needs of a codec's decoder."""

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes fed that no frame has taken yet."""

    def feed(self, data: memoryview) -> None:
        """Take in bytes."""


class Intake(ABC, Generic[F]):
    """The bytes that one connection received.

    Invariant: bytes that were not taken are in the decoder, `_after_login`, `_tail` or
        `_private`, in that order of time, and never in two of the last three.

    Args:
        core: The core.
        shared: The buffer of all connections.
        taker: The connection.
        switches: Choose for messages whose route depends on them.
    """

    _decoder: Decoder

    def __init__(
        self, core: Core, shared: SharedBuffer, taker: Taker[F], switches: Switches
    ) -> None:
        self._switches = switches
        self._core = core
        self._shared = shared
        self._taker = taker
        self._is_coded = True  # bytes go through the decoder
        self._is_logged_in = False
        self._after_login = b""
        self._tail = bytearray()
        self._private: PrivateBuffer | None = None
        self._needed = 0  # bytes that the incomplete frame needs in all; 0 unknown
        self._scan_at = 0  # bytes of an incomplete frame from which on scanning makes sense

    # --- what a protocol says ---------------------------------------------------------------------

    @abstractmethod
    def _scan_core(self, buffer: int, position: int, end: int) -> tuple[int, int, int]:
        """Have the core take what it understands; return what its scanner answers."""

    @abstractmethod
    def _next_frame(self) -> F | None:
        """Return the decoder's next frame; None: it has none, or the connection ends."""

    @property
    @abstractmethod
    def _is_mid_frame(self) -> bool:
        """Whether the decoder has part of a frame."""

    def _scan_again_at(self, length: int) -> int:
        """Return how many bytes of a frame of unknown length are worth the next scan.

        Args:
            length: How many there are now.
        """
        return length * 2

    def _may_end(self, memory: bytearray, start: int, end: int) -> bool:  # noqa: ARG002
        """Whether new bytes of a frame of unknown length may be its last ones."""
        return False

    def dismantle(self) -> None:
        """Let go of the taker, which has this: nothing comes any more."""
        del self._taker

    # --- what the connection asks -----------------------------------------------------------------

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a frame that is not complete."""
        if self._is_coded:
            return self._decoder.buffered_bytes
        if self._private is not None:
            return self._private.end - self._private.start
        return len(self._tail)

    def read_view(self) -> memoryview:
        """Return where the next bytes are to be read to; `take` has to follow at once."""
        if self._private is not None and not self._is_coded and self._taker.is_taking:
            return self._private.free_view(self._needed)
        view = self._shared.view
        return view[:READ_BEFORE_LOGIN_BYTES] if self._is_coded else view

    def begin(self, data: bytes) -> None:
        """Take the first bytes of the connection, which were read elsewhere."""
        self._take_coded(memoryview(data))

    def take(self, nbytes: int) -> None:
        """Take what was read to `read_view`.

        Args:
            nbytes: How many bytes were read.
        """
        if self._is_coded:
            self._take_coded(self._shared.view[:nbytes])
        elif not self._taker.is_taking:  # TLS may hand out what it had before we stopped reading
            self._hold_more(self._shared.view[:nbytes])
        elif self._private is not None:
            self._take_private(nbytes)
        else:
            self._take_shared(nbytes)

    def resume(self) -> None:
        """Go on with what was received before the connection stopped taking frames."""
        if self._is_coded:
            self._decode()
        elif self._after_login:
            self._take_after_login()
        elif self._private is not None:
            self._scan_private()
        elif self._tail:
            start = self._shared.place(self._tail)
            self._tail = bytearray()
            self._scan(self._shared.memory, self._shared.handle, start, HEADROOM_BYTES)

    def drop(self) -> None:
        """Forget everything that was received."""
        self._tail = bytearray()
        self._after_login = b""
        self._release_private()
        self._taker.note_partial(is_partial=False)

    def _logged_in(self, decoder: Decoder) -> None:
        """Go on behind the login: with the core's scanner."""
        self._decoder = decoder
        self._is_logged_in = True
        self._is_coded = False

    # --- by the decoder ---------------------------------------------------------------------------

    def _take_coded(self, data: memoryview) -> None:
        if not self._taker.is_taking and not self._is_logged_in:
            self._after_login += bytes(data)
            return
        self._decoder.feed(data)
        self._decode(data)

    def _decode(self, data: memoryview | None = None) -> None:
        """Handle the frames that the decoder has.

        Args:
            data: What it was fed last: what it leaves of that after the login is for the scanner.
        """
        decoder = self._decoder
        while self._taker.is_taking:
            frame = self._next_frame()
            if frame is None:
                self._taker.note_partial(self._is_mid_frame)
                return
            if not self._is_logged_in:
                if data is not None and decoder.buffered_bytes:
                    self._after_login = bytes(data[len(data) - decoder.buffered_bytes :])
                self._taker.take_frame(frame)
                if not self._is_coded and self._taker.is_taking:
                    self._take_after_login()
                return
            self._taker.take_frame(frame)

    def _take_after_login(self) -> None:
        data, self._after_login = self._after_login, b""
        self._taker.note_partial(is_partial=False)
        if len(data) <= READ_BYTES:
            end = self._shared.put(data)
            self._scan(self._shared.memory, self._shared.handle, HEADROOM_BYTES, end)
        else:
            self._private = PrivateBuffer(self._core, data, 0)
            self._scan_private()

    # --- by the core's scanner --------------------------------------------------------------------

    def _take_shared(self, nbytes: int) -> None:
        shared, tail = self._shared, self._tail
        start, end = HEADROOM_BYTES, HEADROOM_BYTES + nbytes
        if tail:
            total = len(tail) + nbytes
            if not self._may_be_complete(shared.memory, start, end, total):
                tail += shared.view[:nbytes]
                if total > HEADROOM_BYTES:
                    self._private = PrivateBuffer(self._core, tail, self._needed)
                    self._tail = bytearray()
                return
            start = shared.place(tail)
            self._tail = bytearray()
        self._scan(shared.memory, shared.handle, start, end)

    def _take_private(self, nbytes: int) -> None:
        private = self._private
        assert private is not None
        start = private.end
        private.end += nbytes
        total = private.end - private.start
        if self._may_be_complete(private.memory, start, private.end, total):
            self._scan_private()

    def _may_be_complete(self, memory: bytearray, start: int, end: int, total: int) -> bool:
        """Return whether scanning makes sense, so that slow bytes do not cost a scan each."""
        if total >= self._scan_at:
            return True
        return self._needed == 0 and self._may_end(memory, start, end)

    def _scan_private(self) -> None:
        private = self._private
        assert private is not None
        self._scan(private.memory, private.handle, private.start, private.end)

    def _scan(self, memory: bytearray, handle: int, position: int, end: int) -> None:
        """Let the core take what is complete; handle what it leaves to us; keep the rest."""
        taker = self._taker
        begin, needed = position, 0
        while position < end and taker.is_taking:
            status, position, detail = self._scan_core(handle, position, end)
            if status == ScanStatus.SWITCHED:
                sent = self._switches.send(self._core, detail, taker.handle)
                if sent is None:
                    taker.rest()
                    break
                status, position, detail = sent
                if status == ScanStatus.NEED_DATA:
                    continue
            if status == ScanStatus.NEED_DATA:
                needed = detail
                break
            if status == ScanStatus.FRAME or (status == ScanStatus.BLOCKED and taker.takes_blocked):
                self._take_one(memory, position, position + detail)
                position += detail
            elif status == ScanStatus.BLOCKED:
                taker.block()
            else:
                self._take_odd(memory, position, end)
                return
        if taker.is_open:
            self._keep(memory, position, end, needed, is_new=position > begin)

    def _take_one(self, memory: bytearray, start: int, end: int) -> None:
        """Decode and handle a frame that the scanner found."""
        with memoryview(memory) as view:
            self._decoder.feed(view[start:end])
        frame = self._next_frame()
        if frame is not None and not self._decoder.buffered_bytes:
            self._taker.take_frame(frame)
        elif self._taker.is_taking:
            log.error("scanner and decoder disagree peer=%s", self._taker.peer)
            self._taker.fail_frame()

    def _take_odd(self, memory: bytearray, position: int, end: int) -> None:
        """Go on with the decoder: it says what is wrong, or understands what the scanner can't."""
        with memoryview(memory) as view:
            self._decoder.feed(view[position:end])
        self._tail = bytearray()
        self._release_private()
        self._is_coded = True
        self._decode()

    def _keep(
        self, memory: bytearray, position: int, end: int, needed: int, *, is_new: bool
    ) -> None:
        """Keep what was not taken, where the next bytes can be put behind it."""
        length = end - position
        self._needed = needed
        self._scan_at = needed or self._scan_again_at(length)
        private = self._private
        is_large = max(length, needed) > HEADROOM_BYTES
        if private is not None and private.memory is memory and is_large:
            private.start = position
        elif length == 0:
            self._release_private()
        else:
            with memoryview(memory) as view, view[position:end] as rest:
                if is_large:
                    fresh = PrivateBuffer(self._core, rest, needed)
                    self._release_private()
                    self._private = fresh
                else:
                    self._tail = bytearray(rest)
                    self._release_private()
        self._taker.note_partial(length > 0, is_new=is_new)

    def _hold_more(self, data: memoryview) -> None:
        if self._after_login:
            self._after_login += bytes(data)
            return
        if self._private is None:
            self._private = PrivateBuffer(self._core, self._tail, 0)
            self._tail = bytearray()
        self._private.append(data, 0)

    def _release_private(self) -> None:
        if self._private is not None:
            self._private.release()
            self._private = None
