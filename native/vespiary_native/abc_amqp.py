"""The part of the core's contract for AMQP 1.0's fast path, in and out.

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


class AmqpLimits(NamedTuple):
    """What the scanner keeps of one connection.

    Attributes:
        frame_bytes: Largest frame that is taken; a larger one is ODD.
        body_bytes: Largest body of a message that is taken at once; larger ones are FRAMEs.
    """

    frame_bytes: int
    body_bytes: int


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

        Returns:
            (`ScanStatus`, position up to which all was taken, detail) as `scan_stomp` does. ODD is
            a frame that is larger than allowed or smaller than its head, whose body begins in front
            of or behind what it has, or that is not one of AMQP (§2.3.1). With NEED_DATA the detail
            is what has to be there before more can be said: 4 bytes, 8, or the frame.
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
    # set_amqp_credit(connection, channel, handle, messages, *, settled)
    # forget_amqp_link(connection, channel, handle)
    # teach_amqp(connection, channel, handle, lesson: AmqpLesson) -> bool
    # taken_amqp(connection) -> list[AmqpTaken]

    # --- messages out -----------------------------------------------------------------------------
    # encode_amqp(consumer, AmqpEncoding | None)
    # set_amqp_link_credit(consumer, messages)
    # set_amqp_room(connection, channel, frames)
    # next_amqp_delivery(connection, channel) -> int
    # take_amqp_sent(connection, channel, first, last) -> list[AmqpSent]
