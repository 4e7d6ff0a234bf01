"""Versions and packet types of MQTT.

Owns their numbers, and who may send what. Must never parse or print bytes. Used by every module of
this package.

Sources: MQTT 5.0 (OASIS, 2019) §2.1; MQTT 3.1.1 (OASIS, 2014) §2.2; MQTT 3.1 (IBM, 2010) §2.1.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal

Role = Literal["server", "client"]
"""Who reads: "server" expects what clients send, "client" what servers send."""


class Version(IntEnum):
    """Protocol levels, as CONNECT spells them."""

    V3_1 = 3
    V3_1_1 = 4
    V5 = 5


PROTOCOL_NAMES: Final = {Version.V3_1: "MQIsdp", Version.V3_1_1: "MQTT", Version.V5: "MQTT"}

BRIDGE_BIT: Final = 0x80
"""Bridges of mosquitto set it in the protocol level of MQTT 3, in no specification."""


class PacketType(IntEnum):
    """Control packet types: the upper half of the first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


FLAGS: Final = {
    **dict.fromkeys(PacketType, 0),
    PacketType.PUBREL: 2,
    PacketType.SUBSCRIBE: 2,
    PacketType.UNSUBSCRIBE: 2,
}
"""The lower half of the first byte, which is fixed; that of PUBLISH has a meaning."""

MAY_BE_DUP_3_1: Final = frozenset({PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})
"""Packets that clients of MQTT 3.1 mark as sent before (§2.1); later versions forbid it."""

_ALWAYS: Final = frozenset(
    {
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
    }
)
_OF_CLIENTS: Final = _ALWAYS | {
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    PacketType.PINGREQ,
    PacketType.DISCONNECT,
}
_OF_SERVERS: Final = _ALWAYS | {
    PacketType.CONNACK,
    PacketType.SUBACK,
    PacketType.UNSUBACK,
    PacketType.PINGRESP,
}


def expected(role: Role, version: Version | None) -> frozenset[PacketType]:
    """Return the packets that a reader may meet.

    Args:
        role: Who reads.
        version: The version; None: CONNECT was not read yet.
    """
    if version is None:
        return frozenset({PacketType.CONNECT}) if role == "server" else _OF_SERVERS
    found = _OF_CLIENTS if role == "server" else _OF_SERVERS
    if version is Version.V5:
        return found | {PacketType.DISCONNECT, PacketType.AUTH}
    return found
