"""The part of the core's contract for MQTT's fast path, in and out.

Owns the Protocol; `abc.Core` has it. Both implementations keep it. A connection is one of MQTT from
`set_ready_mqtt` on; then it is scanned by `scan_mqtt` alone.

Packet ids of messages to the client: the core gives out all of them, from 1 on, to its caller too
(`take_packet_id`). What an earlier connection of the client has left may have any id; the caller
sends it, and keeps its ids from the core (`reserve_packet_id`).
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from vespiary_native.values import DeliverStatus

ADDRESS_LINE_BYTES_MAX: Final = 65_000
"""Longest line that a topic may be taught with."""
PACKET_ID_FIRST: Final = 1
"""Lowest packet id; the highest is 65535."""
ANSWER_BYTES: Final = 4
"""Length of a PUBACK: what waits for a flush is counted by it."""


class MqttLimits(NamedTuple):
    """What the scanner keeps of one connection.

    Attributes:
        packet_bytes: Largest packet that is taken; a larger one is ODD.
        body_bytes: Largest payload that is taken at once; larger ones are FRAMEs.
        receive_maximum: Messages that a client of MQTT 5 may have sent and not had answered; when
            so many wait (`unanswered`, and those kept for a switch), the next one of QoS 1 is a
            FRAME.
    """

    packet_bytes: int
    body_bytes: int
    receive_maximum: int


class MqttEncoding(NamedTuple):
    """How the messages of one consumer become packets.

    Attributes:
        qos: Of its subscription, 0 to 2.
        packet_bytes: Largest packet that the client takes.
        topic: The topic of all that it gets; empty: of each the one that its address means.
        stored_below: Messages with a lower sequence are not encoded here.
        prefixes: What clients of other protocols write before an address, tried in this order; none
            has a NUL.
    """

    qos: int
    packet_bytes: int
    topic: bytes = b""
    stored_below: int = 0
    prefixes: tuple[bytes, ...] = ()


class SentMessage(NamedTuple):
    """A message that a client was sent by the core, and has not acknowledged."""

    packet_id: int
    queue_id: int
    sequence: int


class CoreMqtt(Protocol):
    """See the module's docstring."""

    def set_ready_mqtt(self, connection: int, version: int, limits: MqttLimits) -> None:
        """Make a connection one of MQTT, after the login.

        Args:
            connection: Handle.
            version: 3 for MQTT 3.1, 4 for 3.1.1, 5 for 5.
            limits: See there.
        """

    def teach_mqtt(self, connection: int, topic: bytes, address_line: bytes, route: int) -> None:
        r"""Let this connection publish to `topic` without asking.

        What it publishes is stored as protocol 2, priority 4, with `address_line` as its
        properties, and behind it `persistent:true\n` if it has QoS 1.

        Args:
            connection: Handle.
            topic: The topic name, 1 to 65535 bytes without NUL.
            address_line: `destination:ADDRESS\n`, escaped as STOMP 1.2 wants it.
            route: Where it leads, or a switch.
        """

    def scan_mqtt(self, connection: int, buffer: int, start: int, end: int) -> tuple[int, int, int]:
        """Take whole packets from `buffer[start:end]`: plain PUBLISHes and PUBACKs at once.

        The rest is Python's. A PUBLISH is plain with QoS 0 or 1 (then with a packet id, and maybe
        DUP), without RETAIN, in MQTT 5 with an empty property block, its payload within
        `body_bytes`, and to a topic that was taught, whose route is open and not held
        (`abc_accounts`); one of QoS 1 in MQTT 5 only if the route has queues, since its answer is
        another one otherwise, and while the client keeps to `receive_maximum`. A PUBACK is plain
        for a packet id that the core gave out (see `take_puback`), and in MQTT 5 with a reason code
        below 0x80, or none, and without properties.

        PUBACKs go out when all that the connection staged is durable, in order, and behind what
        `receipt` put before them.

        Returns:
            (`ScanStatus`, position up to which all was taken, detail) as `scan_stomp` does. ODD is
            what is larger than allowed, has a length of more than four bytes, or begins with a byte
            that no packet of a client behind its CONNECT begins with.

        Durability: what was taken is durable with the block that is filling; its PUBACKs leave
            after that.
        """

    def unanswered(self, connection: int) -> int:
        """Return how many PUBACKs and PUBRECs wait for a flush, whoever has made them.

        All that `receipt` is given for a connection of MQTT are whole packets.
        """

    # --- messages out -----------------------------------------------------------------------------
    def encode_mqtt(self, consumer: int, encoding: MqttEncoding | None) -> None:
        """Have `deliver` encode plain messages of a consumer as PUBLISH packets from now on.

        Plain is a message of priority 4, neither special nor large, whose packet the client takes.
        One of protocol 2 has no escapes, and `destination:ADDRESS` alone as its properties, or with
        `persistent:true` behind it. One of another protocol has any header lines (up to a NUL) but
        `mqtt-retain`, `mqtt-retained` and, in MQTT 5, `expires`, `reply-to` and
        `mqtt-correlation-data`; in MQTT 5 they are UTF-8 with no escape that STOMP 1.2 does not
        know, and become properties as `server.mqtt.messages` has it. It is not plain if it is
        persistent and the consumer has QoS 2: then it has that.

        Without a topic of the consumer an address has to be plain too: of another protocol without
        a prefix, UTF-8, and without escapes; of all without `%`, `+`, `#` and `::`, and with no `$`
        at its begin: it means the topic with `.` for `/` and the other way round. At the first
        message that is not plain `deliver` stops with STORED.

        With `persistent:true` and a consumer of QoS 1 or 2 a message goes out with QoS 1, with DUP
        if it was given out before, and with a packet id; `deliver` says LIMIT when the window of
        the connection is full (`set_window`). All others go out with QoS 0, and count as
        acknowledged at once, as those of AUTO consumers do.

        Args:
            consumer: Its connection is one of MQTT, its version 0, its mode INDIVIDUAL.
            encoding: See there; None: all of its messages are handed out as they are stored.
        """

    def deliver_stored(
        self, consumer: int, max_messages: int, max_bytes: int
    ) -> tuple[DeliverStatus, int, bytes]:
        """As `deliver`, as if nothing were encoded; up to the next message that `deliver` encodes.

        There it says LIMIT.
        """

    def set_window(self, connection: int, messages: int) -> None:
        """Set how many messages of QoS 1 the core may have sent and not had acknowledged; 0 before.

        Who makes it larger has to ask for deliveries again.
        """

    def sent_count(self, connection: int) -> int:
        """Return how many messages the core has sent that were not acknowledged.

        Those of consumers that were closed since then are among them.
        """

    def sent(self, connection: int) -> list[SentMessage]:
        """Return these messages by packet id, but for those of consumers that were closed."""

    def reserve_packet_id(self, connection: int, packet_id: int, *, reserved: bool) -> None:
        """Keep the core from giving out an id, or let it again.

        Raises:
            ValueError: The id is no packet id, or in use, or was not reserved.
        """

    def take_packet_id(self, connection: int) -> int:
        """Reserve the next free id for a message that the caller sends.

        The window does not matter: the caller has looked at it.

        Returns:
            The id; 0: all of them are in use.
        """

    def take_puback(self, connection: int, packet_id: int) -> bool:
        """Acknowledge a message that the core has sent; its id is free again.

        A message of a consumer that was closed is not acknowledged: it went back to its queue.

        Returns:
            False if the core has sent none with this id.

        Raises:
            NoRoom: For the acknowledgement; nothing was done.
        """
