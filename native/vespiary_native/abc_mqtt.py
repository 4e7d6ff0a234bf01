"""The part of the core's contract for MQTT's fast path.

Owns the Protocol; `abc.Core` has it. Both implementations keep it. A connection is one of MQTT from
`set_ready_mqtt` on; then it is scanned by `scan_mqtt` alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

ADDRESS_LINE_BYTES_MAX: Final = 65_000
"""Longest line that a topic may be taught with."""
ANSWER_BYTES: Final = 4
"""Length of a PUBACK: what waits for a flush is counted by it."""


class MqttLimits(NamedTuple):
    """What the scanner keeps of one connection.

    Attributes:
        packet_bytes: Largest packet that is taken; a larger one is ODD.
        body_bytes: Largest payload that is taken at once; larger ones are FRAMEs.
        receive_maximum: Messages of QoS 1 that a client of MQTT 5 may have sent and not had
            answered; when more wait, the next one is a FRAME.
    """

    packet_bytes: int
    body_bytes: int
    receive_maximum: int


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
        """Take whole packets from `buffer[start:end]`: plain PUBLISHes at once.

        The rest is Python's. A PUBLISH is plain with QoS 0 or 1 (then with a packet id, and maybe
        DUP), without RETAIN, in MQTT 5 with an empty property block, its payload within
        `body_bytes`, and to a topic that was taught, whose route is open and not held
        (`abc_accounts`); one of QoS 1 in MQTT 5 only if the route has queues, since its answer is
        another one otherwise, and while the client keeps to `receive_maximum`.

        PUBACKs go out when all that the connection staged is durable, in order, and behind what
        `receipt` put before them.

        Returns:
            (`ScanStatus`, position up to which all was taken, detail) as `scan_stomp` does. ODD is
            what is larger than allowed, has a length of more than four bytes, or begins with a byte
            that no packet of a client behind its CONNECT begins with.

        Durability: what was taken is durable with the block that is filling; its PUBACKs leave
            after that.
        """
