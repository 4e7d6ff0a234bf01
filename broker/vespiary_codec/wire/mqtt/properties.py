"""Properties of MQTT 5: what there is, of which type, in which packets.

Owns the table. Must never parse or print bytes. Used by the decoder, the encoder and their callers.

Source: MQTT 5.0 (OASIS, 2019) §2.2.2.2 (table 2-4) and the section of each packet.
"""

from __future__ import annotations

from enum import Enum, IntEnum, auto
from typing import Final, NamedTuple

from vespiary_codec.wire.mqtt.packet_types import PacketType


class Kind(Enum):
    """How a value stands on the wire."""

    BYTE = auto()
    TWO_BYTES = auto()
    FOUR_BYTES = auto()
    VARIABLE = auto()
    TEXT = auto()
    BINARY = auto()
    PAIR = auto()


class Property(IntEnum):
    """Identifiers of properties."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


Value = int | str | bytes
Properties = dict[Property, Value | list[int] | list[tuple[str, str]]]
"""Values by identifier. `USER_PROPERTY` is a list of pairs in their order, and
`SUBSCRIPTION_IDENTIFIER` a list of numbers; all others come once."""


class Rule(NamedTuple):
    """What holds for a property.

    Attributes:
        kind: How its value stands on the wire.
        packets: Packet types that may have it.
        in_will: Whether a will may have it.
        least: Smallest value of a number.
        most: Largest value of a number; None: as much as its bytes hold.
    """

    kind: Kind
    packets: frozenset[PacketType]
    in_will: bool = False
    least: int = 0
    most: int | None = None


def _in(*packets: PacketType) -> frozenset[PacketType]:
    return frozenset(packets)


_P = PacketType
_CONNECT, _CONNACK, _PUBLISH = _in(_P.CONNECT), _in(_P.CONNACK), _in(_P.PUBLISH)
_BOTH: Final = _CONNECT | _CONNACK
_ACKS: Final = _in(_P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK)
_ENDS: Final = _in(_P.DISCONNECT)
_AUTHENTICATING: Final = _BOTH | _in(_P.AUTH)
_ASKING: Final = _in(_P.SUBSCRIBE, _P.UNSUBSCRIBE)
_EVERY: Final = _AUTHENTICATING | _PUBLISH | _ACKS | _ENDS | _ASKING
_VARIABLE_MAX: Final = 268_435_455

RULES: Final = {
    Property.PAYLOAD_FORMAT_INDICATOR: Rule(Kind.BYTE, _PUBLISH, True, most=1),
    Property.MESSAGE_EXPIRY_INTERVAL: Rule(Kind.FOUR_BYTES, _PUBLISH, True),
    Property.CONTENT_TYPE: Rule(Kind.TEXT, _PUBLISH, True),
    Property.RESPONSE_TOPIC: Rule(Kind.TEXT, _PUBLISH, True),
    Property.CORRELATION_DATA: Rule(Kind.BINARY, _PUBLISH, True),
    Property.SUBSCRIPTION_IDENTIFIER: Rule(
        Kind.VARIABLE, _PUBLISH | _in(_P.SUBSCRIBE), least=1, most=_VARIABLE_MAX
    ),
    Property.SESSION_EXPIRY_INTERVAL: Rule(Kind.FOUR_BYTES, _BOTH | _ENDS),
    Property.ASSIGNED_CLIENT_IDENTIFIER: Rule(Kind.TEXT, _CONNACK),
    Property.SERVER_KEEP_ALIVE: Rule(Kind.TWO_BYTES, _CONNACK),
    Property.AUTHENTICATION_METHOD: Rule(Kind.TEXT, _AUTHENTICATING),
    Property.AUTHENTICATION_DATA: Rule(Kind.BINARY, _AUTHENTICATING),
    Property.REQUEST_PROBLEM_INFORMATION: Rule(Kind.BYTE, _CONNECT, most=1),
    Property.WILL_DELAY_INTERVAL: Rule(Kind.FOUR_BYTES, frozenset(), True),
    Property.REQUEST_RESPONSE_INFORMATION: Rule(Kind.BYTE, _CONNECT, most=1),
    Property.RESPONSE_INFORMATION: Rule(Kind.TEXT, _CONNACK),
    Property.SERVER_REFERENCE: Rule(Kind.TEXT, _CONNACK | _ENDS),
    Property.REASON_STRING: Rule(Kind.TEXT, _CONNACK | _ACKS | _ENDS | _in(_P.AUTH)),
    Property.RECEIVE_MAXIMUM: Rule(Kind.TWO_BYTES, _BOTH, least=1),
    Property.TOPIC_ALIAS_MAXIMUM: Rule(Kind.TWO_BYTES, _BOTH),
    Property.TOPIC_ALIAS: Rule(Kind.TWO_BYTES, _PUBLISH, least=1),
    Property.MAXIMUM_QOS: Rule(Kind.BYTE, _CONNACK, most=1),
    Property.RETAIN_AVAILABLE: Rule(Kind.BYTE, _CONNACK, most=1),
    Property.USER_PROPERTY: Rule(Kind.PAIR, _EVERY, True),
    Property.MAXIMUM_PACKET_SIZE: Rule(Kind.FOUR_BYTES, _BOTH, least=1),
    Property.WILDCARD_SUBSCRIPTION_AVAILABLE: Rule(Kind.BYTE, _CONNACK, most=1),
    Property.SUBSCRIPTION_IDENTIFIER_AVAILABLE: Rule(Kind.BYTE, _CONNACK, most=1),
    Property.SHARED_SUBSCRIPTION_AVAILABLE: Rule(Kind.BYTE, _CONNACK, most=1),
}


def may_repeat(found: Property, packet: PacketType) -> bool:
    """Return whether a property may stand in a packet more than once.

    Args:
        found: Which property.
        packet: Type of the packet.
    """
    if found is Property.USER_PROPERTY:
        return True
    return packet is PacketType.PUBLISH and found is Property.SUBSCRIPTION_IDENTIFIER
