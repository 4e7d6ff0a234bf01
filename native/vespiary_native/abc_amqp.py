"""The part of the core's contract for AMQP 1.0's fast path in; the way out is `abc_amqp_sending`.

Owns the Protocol; `abc.Core` has it. Both implementations keep it. A connection is one of AMQP from
`set_ready_amqp` on, behind `open`; then it is scanned by `scan_amqp` alone.

The caller keeps windows, credits and counts. It hands the core allowances, which the core only
counts down; it says what it took (`taken_amqp`). Without an allowance a frame is the caller's.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

TAG_BYTES_MAX: Final = 32
"""Longest tag of a delivery (§2.8.7)."""
FRAME_HEAD_BYTES: Final = 8
LINKS_MAX: Final = 256
"""Links of one connection that the core knows."""
LESSONS_MAX: Final = 16
"""Lessons of one link; the next one takes the place of the oldest."""
LESSON_BYTES_MAX: Final = 64 * 1024
"""Bytes of one lesson: its key and what is stored."""
LESSONS_BYTES_MAX: Final = 256 * 1024
"""Bytes of all lessons of one connection."""
STORED_BYTES_MAX: Final = 65_535
RANGES_MAX: Final = 4
TIME_BYTES: Final = 8
ENCODED_ID: Final = b"AMQP_"
"""What an id begins with whose line spells it otherwise; no text that differs may."""


class AmqpLimits(NamedTuple):
    """What the scanner keeps of one connection.

    Attributes:
        frame_bytes: Largest frame that is taken; a larger one is ODD.
        body_bytes: Largest body of a message that is taken at once; larger ones are FRAMEs.
    """

    frame_bytes: int
    body_bytes: int


class AmqpRange(NamedTuple):
    """Bytes before the body that may differ between messages of one lesson.

    Attributes:
        at: Where they stand in the key.
        length: How many they are, the same in all messages.
        line_at: Where they stand in the header lines of what is stored, as text.
        line_length: How many bytes that text has, the same in all messages.
        native_at: Where they stand in what is stored as they came.
        is_time: They are a timestamp, 0 or later, whose text is its decimal digits; otherwise they
            are letters, digits, `-` and `_`, which stay as they are, and do not begin with
            `ENCODED_ID`.
    """

    at: int
    length: int
    line_at: int
    line_length: int
    native_at: int
    is_time: bool = False


class AmqpLesson(NamedTuple):
    """What messages say before their bodies, and what is stored of them.

    They are stored as protocol 3, priority 4: `stored` with the ranges, and the body's value.

    Attributes:
        key: The message up to and with the format code of its body's value, which ends it. That is
            a data section or a value, of binary or, as a value, of string.
        stored: Header lines, NUL and native part, at most `STORED_BYTES_MAX`.
        route: Where they go; no switch.
        is_persistent: Whether they are journalled if a queue of the route is durable.
        is_escaped: Whether the header lines contain escapes.
        ranges: What may differ: at most `RANGES_MAX`, ascending, before the head of the body.
    """

    key: bytes
    stored: bytes
    route: int
    is_persistent: bool
    is_escaped: bool = False
    ranges: tuple[AmqpRange, ...] = ()


class AmqpTaken(NamedTuple):
    """Messages of one link that the core took."""

    channel: int
    handle: int
    messages: int


class CoreAmqp(Protocol):
    """See the module's docstring."""

    def set_ready_amqp(self, connection: int, limits: AmqpLimits) -> None:
        """Make a connection one of AMQP, behind its `open`.

        Args:
            connection: Handle.
            limits: See there.
        """

    def scan_amqp(self, connection: int, buffer: int, start: int, end: int) -> tuple[int, int, int]:
        """Take whole frames from `buffer[start:end]`: plain ones at once. The rest is the caller's.

        Plain is a transfer in a frame without an extended head, with a small descriptor, fields of
        their usual forms and no more than there are, of a link and in a session with allowances:

        - with a delivery-id, a delivery-tag of at most `TAG_BYTES_MAX`, message-format 0 if any;
          not `more`, `resume` or `aborted`; without a state; without a rcv-settle-mode but `first`;
        - its payload is a message that was taught for the link (`AmqpLesson`), with the value of
          the body at its end, at most `body_bytes`, and valid UTF-8 if it is a string;
        - and its route is open, and not held (`abc_accounts`).

        Deliveries that neither the transfer nor the link has settled are confirmed at the end of
        the call: one disposition (settled, accepted) for each run of ids one behind the other in
        one session, as the codec writes them.

        A disposition is plain that settles deliveries as accepted: role receiver, settled true, and
        the state accepted. What the core has sent of them (`abc_amqp_sending`) is acknowledged. If
        its range has others it is a FRAME nevertheless, of which that much was done; and one that
        is BLOCKED may have been done in part.

        Returns:
            (`ScanStatus`, position up to which all was taken, detail) as `scan_stomp` does. ODD is
            a frame that is larger than allowed or smaller than its head, whose body begins in front
            of or behind what it has, or that is not one of AMQP (§2.3.1). With NEED_DATA the detail
            is what has to be there before more can be said: 4 bytes, 8, or the frame.

        Durability: what was taken is durable with the block that is filling; its dispositions leave
            when all that the connection staged is, behind what waits already.
        """

    # --- sessions ---------------------------------------------------------------------------------
    def set_amqp_window(self, connection: int, channel: int, transfers: int) -> None:
        """Set how many transfers of a session the core may take; 0 before.

        Args:
            connection: Handle of a connection of AMQP.
            channel: The session's, 0 to 65535. It is known from then on.
            transfers: 0 to 2**31 - 1.
        """

    def forget_amqp_session(self, connection: int, channel: int) -> None:
        """Forget a session and its links, if it is known."""

    # --- messages in: links by which the client sends ---------------------------------------------
    def teach_amqp(self, connection: int, channel: int, handle: int, lesson: AmqpLesson) -> bool:
        """Let a link send messages of a kind without asking; the link and its session are known.

        A lesson for the same messages is replaced. Where there is no room for its bytes
        (`LESSONS_BYTES_MAX`), the link forgets all others first.

        Args:
            connection: Handle of a connection of AMQP.
            channel: The session's.
            handle: The link's, of the client.
            lesson: See there.

        Returns:
            False if there is no room for the link (`LINKS_MAX`), or for the lesson.

        Raises:
            ValueError: The lesson is not what `AmqpLesson` says, or larger than `LESSON_BYTES_MAX`.
        """

    def set_amqp_credit(
        self, connection: int, channel: int, handle: int, messages: int, *, settled: bool
    ) -> None:
        """Set how many messages of a known link the core may take; 0 before.

        Args:
            connection: Handle of a connection of AMQP.
            channel: The session's.
            handle: The link's.
            messages: 0 to 2**31 - 1.
            settled: Whether all deliveries of the link are settled by their sender.
        """

    def forget_amqp_link(self, connection: int, channel: int, handle: int) -> None:
        """Forget a link, if it is known, with what was taken of it and not asked for."""

    def taken_amqp(self, connection: int) -> list[AmqpTaken]:
        """Return what was taken since the last call, once per link, in the order of their first."""
