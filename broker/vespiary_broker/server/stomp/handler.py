"""The STOMP handler of a connection: its intake, its session, its heart-beats and its last words.

Owns how the three work together. Must never interpret a frame: the session does. Owner: its
connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vespiary_broker.engine.core import AckMode
from vespiary_broker.server.protocol_handler import LargeStart, Refusal, sentence_of
from vespiary_broker.server.stomp.heart_beats import HeartBeats
from vespiary_broker.server.stomp.intake import Intake
from vespiary_broker.server.stomp.large_intake import LargeSink
from vespiary_broker.server.stomp.large_sending import is_body_dropped, send_large
from vespiary_broker.server.stomp.session import StompSession
from vespiary_codec.wire.stomp import Frame, Version, encode, error_frame
from vespiary_codec.wire.stomp import RemoteProtocolError as StompError
from vespiary_spec.errors import DiskFull, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.engine.core import LargeDelivery
    from vespiary_broker.engine.queues import Consumer
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.store.large_writer import LargeWriter


class StompHandler:
    """One client's STOMP; keeps `protocol_handler.ProtocolHandler` and `intake.Taker`.

    Owner: its connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
    """

    def __init__(self, connection: Connection, cycle: Cycle, listener: Listener) -> None:
        self.session = StompSession(connection, cycle, listener, self)
        self.beats: HeartBeats | None = None
        self._connection = connection
        self._cycle = cycle
        self._listener = listener
        sink = None
        if cycle.large is not None and listener.large is not None:
            sink = LargeSink(cycle.large, listener.large)
        switches = cycle.engine.registry.switches
        self._intake = Intake(cycle.core, cycle.buffer, self, listener.limits, switches, sink)
        # What every turn asks for is bound once.
        self.read_view = self._intake.read_view
        self.take = self._intake.take
        self.resume = self._intake.resume
        self.drop = self._intake.drop
        self.begin = self._intake.begin
        self.block = connection.block
        self.rest = connection.rest
        self.note_partial = connection.note_partial
        self.fail_frame = connection.fail_frame
        self.hold_reading = connection.hold_reading

    # --- what the connection asks -----------------------------------------------------------------

    @property
    def protocol(self) -> str:
        """Name and version; empty before the login."""
        version = self.session.version
        return f"STOMP {version}" if version else ""

    @property
    def user(self) -> str:
        """Name of the user that it acts for; empty before the login."""
        return self.session.user

    @property
    def client_id(self) -> str:
        """Name of the client; empty if it has none."""
        return self.session.client_id

    @property
    def subscriptions_count(self) -> int:
        """Consumers that the client has."""
        return len(self.session.subscriptions)

    @property
    def is_logged_in(self) -> bool:
        """Whether the login is done."""
        return self.session.version is not None

    @property
    def min_read_rate(self) -> int:
        """Bytes a second that an incomplete frame has to grow by; 0: any number."""
        return self._listener.acceptor.stomp.min_read_rate

    @property
    def partial_bytes(self) -> int:
        """Bytes received of a frame that is not complete."""
        return self._intake.partial_bytes

    def close(self) -> None:
        """Give back everything that the client holds."""
        self.session.close()

    def dismantle(self) -> None:
        """Break the links between its parts."""
        self._intake.dismantle()
        self.session.dismantle()

    def expire_transactions(self, before_s: float) -> int:
        """Roll back what was begun before a time; return how many."""
        return self.session.expire_transactions(before_s)

    def displace(self, consumer: Consumer, sentence: str) -> bool:  # noqa: ARG002 (all go)
        """End the connection, whose client has come again: STOMP cannot end a single consumer."""
        self._connection.refuse(sentence)
        self.close()  # it may be gone, and not have been seen to yet
        return True

    def refusal(self, error: VespiaryError, cause: object) -> Refusal:
        """Return the ERROR frame for what the client did."""
        kind = error.violation.value if isinstance(error, StompError) else type(error).__name__
        sentence = error.reason if isinstance(error, StompError) else sentence_of(error)
        receipt_id = cause.get("receipt") if isinstance(cause, Frame) else None
        if isinstance(error, StompError) and cause is None:
            receipt_id = error.receipt_id
        body = f"{error}\n{error.details}The connection is closed.\n"
        frame = error_frame(sentence, body, receipt_id)
        return Refusal(kind, sentence, encode(frame, self.session.version or "1.0"))

    def farewell(self, sentence: str) -> bytes:
        """Return an ERROR frame that is not about a frame of the client."""
        return encode(error_frame(sentence), self.session.version or "1.0")

    def large_start(self, consumer: Consumer, given: LargeDelivery) -> LargeStart:
        """Return the MESSAGE frame up to the body, which the core has made, and its end."""
        return LargeStart(given.head, b"\0", is_done=consumer.mode is AckMode.AUTO)

    # --- what the session asks --------------------------------------------------------------------

    def logged_in(self, version: Version, beat_out_s: float, beat_in_s: float) -> None:
        """Leave the login behind: other limits, other clocks, the core's scanner.

        Args:
            version: The version agreed upon.
            beat_out_s: Seconds within which we have to send something; 0 for never.
            beat_in_s: Seconds after which a silent client is dropped; 0 for never.
        """
        self._connection.logged_in()
        self._intake.set_version(version)
        limits = self._listener.limits
        self._cycle.core.set_ready(
            self._connection.handle,
            int(version.replace(".", "")),
            (
                limits.header_count,
                limits.header_line_bytes,
                limits.header_bytes,
                self._listener.scanned_body_bytes,
            ),
        )
        if beat_out_s or beat_in_s:
            self.beats = HeartBeats(self._connection, beat_out_s, beat_in_s)

    # --- what the intake asks ---------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """The core's handle of the connection."""
        return self._connection.handle

    @property
    def peer(self) -> str:
        """Where the client is."""
        return self._connection.peer

    @property
    def is_open(self) -> bool:
        """Whether frames are still taken, if not now."""
        return self._connection.is_open

    @property
    def is_taking(self) -> bool:
        """Whether the next frame may be taken now."""
        return self._connection.is_taking

    @property
    def takes_blocked(self) -> bool:
        """Whether the session decides about frames that find no room."""
        return self._connection.takes_blocked

    def take_frame(self, frame: Frame) -> None:
        """Give a frame to the session; reading waits if it needs time."""
        self._connection.perform(lambda: self.session.handle(frame), frame)

    def refuse_error(self, error: VespiaryError) -> None:
        """End the connection for what the client did wrong."""
        self._connection.refuse_error(error)

    def check_large(self, frame: Frame) -> None:
        """Raise if the user may not send what has a large body."""
        self.session.sending.check_large(frame)

    def take_large(self, frame: Frame, writer: LargeWriter) -> None:
        """Give the session a message whose body went to a file; reading waits meanwhile."""
        self._connection.hold_reading(held=False)
        self._connection.perform(
            lambda: send_large(self.session, self._cycle, frame, writer), frame
        )

    def is_body_dropped(self, frame: Frame, full: DiskFull) -> bool:
        """Return what the policy of its address says of a large body that finds no room."""
        return is_body_dropped(self._cycle, self.session.sending.outgoing(frame), full)

    def refuse_large(self, error: VespiaryError, frame: Frame) -> None:
        """End the connection because a body could not be stored."""
        self._connection.hold_reading(held=False)
        self._connection.refuse_error(error, frame)
