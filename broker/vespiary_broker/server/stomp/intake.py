"""What a connection received: from bytes to frames, in order, however they were cut.

Owns the bytes that were received and not yet taken. Complete SENDs and ACKs are taken by the core
in one call for all that was read; what it leaves goes to the connection as decoded frames. Before
the login, and when the core finds something that it does not understand, bytes go through the
codec's decoder alone, which says exactly what is wrong. Must never read sockets, nor look at the
same bytes again for every byte that arrives. Owner: its connection.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from vespiary_broker.engine.core import Core, ScanStatus
from vespiary_broker.engine.switching import Switches
from vespiary_broker.server.buffers import (
    HEADROOM_BYTES,
    READ_BYTES,
    PrivateBuffer,
    SharedBuffer,
)
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

READ_BEFORE_LOGIN_BYTES: Final = 16 * 1024

log = logging.getLogger(__name__)


class Taker(Protocol):
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

    def take_frame(self, frame: Frame) -> None:
        """Handle a frame."""

    def refuse_error(self, error: StompError) -> None:
        """End the connection for what the client did wrong."""

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

    def fail_frame(self) -> None:
        """End the connection for what we did wrong."""

    @property
    def takes_blocked(self) -> bool:
        """Whether a frame that finds no room is taken nevertheless: a policy decides about it."""

    def block(self) -> None:
        """Take no frame until the journal has room."""

    def note_partial(self, is_partial: bool, *, is_new: bool = False) -> None:
        """Start or stop the clock of an incomplete frame.

        Args:
            is_partial: Whether part of a frame has been received and not its end.
            is_new: Whether it is another frame than before.
        """


class Intake:
    """The bytes that one connection received.

    Invariant: bytes that were not taken are in the decoder, `_after_login`, `_tail` or
        `_private`, in that order of time, and never in two of the last three.

    Args:
        core: The core.
        shared: The buffer of all connections.
        taker: The connection.
        limits: Bounds of a frame.
        switches: Choose for messages whose route depends on them.
        large: Where large bodies go; None: there are none.
    """

    def __init__(
        self,
        core: Core,
        shared: SharedBuffer,
        taker: Taker,
        limits: StompLimits,
        switches: Switches,
        large: LargeSink | None = None,
    ) -> None:
        self._switches = switches
        self._large = large
        self._receiving: LargeBodyIntake | None = None
        self._core = core
        self._shared = shared
        self._taker = taker
        self._limits = limits
        self._decoder = StompDecoder(limits)
        self._is_coded = True  # bytes go through the decoder
        self._after_login = b""
        self._tail = bytearray()
        self._private: PrivateBuffer | None = None
        self._needed = 0  # bytes that the incomplete frame needs in all; 0 unknown
        self._scan_at = 0  # bytes of an incomplete frame from which on scanning makes sense

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a frame that is not complete."""
        if self._receiving is not None:
            return self._receiving.size_bytes
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
        view = self._shared.view
        if self._is_coded:
            self._take_coded(view[:nbytes])
        elif self._receiving is not None:
            self._take_large(view[:nbytes])
        elif not self._taker.is_taking:  # TLS may hand out what it had before we stopped reading
            self._hold_more(view[:nbytes])
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
        if self._receiving is not None:
            self._receiving.writer.discard()
            self._receiving = None
        self._taker.note_partial(is_partial=False)

    def set_version(self, version: Version) -> None:
        """Go on behind the login: with the core's scanner, in this version."""
        self._decoder = StompDecoder(self._limits)
        self._decoder.set_version(version)
        self._is_coded = False

    # --- by the decoder ---------------------------------------------------------------------------

    def _take_coded(self, data: memoryview) -> None:
        if not self._taker.is_taking and self._decoder.version is None:
            self._after_login += bytes(data)
            return
        self._decoder.feed(data)
        self._decode(data)

    def _decode(self, data: memoryview | None = None) -> None:
        """Handle the frames that the decoder has.

        Args:
            data: What it was fed last: what it leaves of that after CONNECT is for the scanner.
        """
        decoder = self._decoder
        while self._taker.is_taking:
            event = self._next_event()
            if event is None:
                self._taker.note_partial(decoder.is_mid_frame)
                return
            if decoder.version is None:
                if data is not None and decoder.buffered_bytes:
                    self._after_login = bytes(data[len(data) - decoder.buffered_bytes :])
                self._taker.take_frame(event)
                if not self._is_coded and self._taker.is_taking:
                    self._take_after_login()
                return
            self._taker.take_frame(event)

    def _next_event(self) -> Frame | None:
        """Return the decoder's next frame; None if it has none or the connection ends."""
        try:
            event = self._decoder.next_event()
            while isinstance(event, HeartBeat):
                event = self._decoder.next_event()
        except StompError as error:
            self._taker.refuse_error(error)
            return None
        return None if event is NEED_DATA else event

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
        return self._needed == 0 and memory.find(b"\0", start, end) >= 0

    def _scan_private(self) -> None:
        private = self._private
        assert private is not None
        self._scan(private.memory, private.handle, private.start, private.end)

    def _scan(self, memory: bytearray, handle: int, position: int, end: int) -> None:
        """Let the core take what is complete; handle what it leaves to us; keep the rest."""
        taker, core = self._taker, self._core
        begin, needed = position, 0
        while position < end and taker.is_taking:
            status, position, detail = core.scan_stomp(taker.handle, handle, position, end)
            if status == ScanStatus.SWITCHED:
                status, position, detail = self._switches.send(core, detail)
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
            elif self._begin_large(memory, position, end):
                return
            else:
                self._take_odd(memory, position, end)
                return
        if taker.is_open:
            self._keep(memory, position, end, needed, is_new=position > begin)

    def _take_one(self, memory: bytearray, start: int, end: int) -> None:
        """Decode and handle a frame that the scanner found."""
        with memoryview(memory) as view:
            self._decoder.feed(view[start:end])
        event = self._next_event()
        if event is not None and not self._decoder.buffered_bytes:
            self._taker.take_frame(event)
        elif self._taker.is_taking:
            log.error("scanner and decoder disagree peer=%s", self._taker.peer)
            self._taker.fail_frame()

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
        self._scan_at = needed or length * 2
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
