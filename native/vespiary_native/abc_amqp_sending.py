"""The part of the core's contract for AMQP 1.0's fast path out: transfers, credit, deliveries.

Owns the Protocol; `abc.Core` has it. Both implementations keep it. The way in: `abc_amqp`.

A consumer with a link (`encode_amqp`) is given messages while its link has credit and its session
room. Both are its caller's, who counts along by batch: each message that the consumer is given, in
whatever way, takes one of each. Delivery ids are a session's, and the core gives out all of them.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class AmqpEncoding(NamedTuple):
    """How the messages of one consumer become transfers.

    Attributes:
        channel: Of the session; it stays.
        handle: Of the link.
        frame_bytes: Largest frame that is made here; what needs a larger one is not plain.
        is_settled: Whether deliveries are settled as they leave.
        is_stored: Whether all of its messages are handed out as they are stored.
    """

    channel: int
    handle: int
    frame_bytes: int
    is_settled: bool = False
    is_stored: bool = False


class AmqpDelivery(NamedTuple):
    """A message that a client was sent by the core, and has not settled."""

    delivery_id: int
    consumer: int
    sequence: int


class CoreAmqpSending(Protocol):
    """See the module's docstring."""

    def encode_amqp(self, consumer: int, encoding: AmqpEncoding) -> None:
        """Make a consumer one with a link, and have `deliver` encode its plain messages.

        Plain is a message of protocol 3 and priority 4, neither special nor large, with a native
        part of version 1 behind its header lines (`vespiary_codec.wire.amqp.native_part`), none of
        which begins with `expires:`, `_AMQ_ORIG_`, `_AMQ_REJECT_`, `_AMQ_ACTUAL_EXPIRY:`,
        `ingress-timestamp:` or `AMQ_SCHEDULED_TIME:`; and which fits one frame beside 61 bytes. It
        goes out as one transfer (§2.7.5) with its sequence as the tag, behind a header section: its
        body has the format code that the native part says. At the first one that is not plain
        `deliver` stops with STORED, and `deliver_stored` hands it out.

        Without credit or room `deliver` says LIMIT. A message that is settled as it leaves counts
        as acknowledged when it is given, if it is encoded here.

        Args:
            consumer: Its version is 0, its mode INDIVIDUAL. Its link has no credit at first.
            encoding: See there.

        Raises:
            ValueError: It is no such consumer, or its session is another one.
        """

    def set_amqp_link_credit(self, consumer: int, messages: int) -> None:
        """Set how many messages a link takes, 0 to 2**32 - 1; with more its queue is ready."""

    def set_amqp_room(self, connection: int, channel: int, frames: int) -> None:
        """Set how many transfers a session takes, 0 to 2**32 - 1.

        The session is known from then on, and its delivery ids begin with 0. Who makes more of none
        has to ask for deliveries again.

        Args:
            connection: Handle of a connection of AMQP.
            channel: The session's, 0 to 65535.
            frames: See above.
        """

    def next_amqp_delivery(self, connection: int, channel: int) -> int:
        """Return the next delivery id of a session, for what its caller encodes.

        Raises:
            ValueError: The session is not known.
        """

    def take_amqp_sent(
        self, connection: int, channel: int, first: int, last: int
    ) -> list[AmqpDelivery]:
        """Return what the core has sent with ids from `first` to `last`, and forget it.

        The consumers go on holding it; acknowledging it is the caller's from then on.

        Args:
            connection: Handle.
            channel: Of the session.
            first: First id.
            last: Last id; ids are serial numbers (RFC 1982), and come round.

        Returns:
            It in the order of the ids. Nothing of consumers that were closed.
        """
