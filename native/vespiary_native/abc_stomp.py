"""The part of the core's contract for STOMP's fast path in.

Owns the Protocol; `abc.Core` has it. Both implementations keep it. A connection is of one protocol:
`set_ready` makes it one of STOMP.
"""

from __future__ import annotations

from typing import Protocol


class CoreStomp(Protocol):
    """See the module's docstring."""

    def set_ready(self, connection: int, version: int, limits: tuple[int, int, int, int]) -> None:
        """Turn on the fast path after the login.

        Args:
            connection: Handle.
            version: 10, 11 or 12.
            limits: Header lines, bytes of one header line, bytes of all headers of a frame, bytes
                of a body. Headers are `ODD` only when they are two bytes beyond for a line, or 32
                for all of them: which ends of line count, the codec knows. Before the login a whole
                frame has at most 8 KiB.
        """

    def teach(self, connection: int, destination: bytes, route: int) -> None:
        r"""Let this connection send to `destination` without asking.

        Args:
            connection: Handle.
            destination: The exact bytes of the header's value; if the frame has a
                `destination-type` header, then `\0` and its value behind it.
            route: Where it leads.
        """

    def scan_stomp(
        self, connection: int, buffer: int, start: int, end: int
    ) -> tuple[int, int, int]:
        """Take complete frames from `buffer[start:end]`: plain SENDs and ACKs at once.

        The rest is Python's. Plain is: the connection is ready; headers are ASCII without backslash
        and carriage return, each with a name and a value behind a colon, at most the limits; in
        STOMP 1.0 no blanks around names and values. Names are lower case; of `destination`,
        `destination-type`, `receipt` and `content-length` there is one at most. Then:

        - SEND with a taught destination, without the headers of journal-format §3.2 that are left
          out (those that only the broker writes are among them) but `content-length` and
          `receipt`, and without those that decide a message's fate (`abc_inspection`); no colon in
          a value (in RECEIPTs it is escaped). It is journalled if its first `persistent` says
          `true` and a queue of its route is durable.
        - ACK without a body, with `id` (1.2) or `message-id` (1.0, 1.1) of a message that this
          connection holds, in its one spelling, in 1.1 with the `subscription` of its consumer; no
          other headers but `subscription`, `receipt` and `content-length`, no colon in a value.

        Receipts go out when all that the connection staged is durable. Line feeds between frames
        are skipped, with a carriage return in front of them too.

        After NEED_DATA `start` is the position that was returned, and `end` is not less than it
        was, if the bytes have not moved; how far an incomplete frame was scanned is remembered.

        After ODD nothing is remembered of the frame: the next call begins at another one.

        Returns:
            (`ScanStatus`, position up to which all was taken, detail). After FRAME the caller
            handles `buffer[position:position + detail]` itself and goes on behind it; after BLOCKED
            it may, or scan from `position` again when there is room; SWITCHED: `abc_switching`.
        """
