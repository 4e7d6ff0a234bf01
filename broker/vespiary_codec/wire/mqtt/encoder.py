"""The encoder: packets in, bytes out.

Owns how each packet is spelled in each version. Must never do I/O or keep anything. Called by the
broker's sessions and by tests.

What a version cannot say is an error of our own caller, not left out in silence; the exceptions are
the outcomes of CONNACK and SUBACK, for which MQTT 3 has fewer words (`reason_codes`).

Sources: as for `bodies`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from vespiary_codec.wire.mqtt.errors import LocalProtocolError
from vespiary_codec.wire.mqtt.limits import REMAINING_LENGTH_MAX
from vespiary_codec.wire.mqtt.packet_types import (
    BRIDGE_BIT,
    FLAGS,
    PROTOCOL_NAMES,
    PacketType,
    Version,
)
from vespiary_codec.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from vespiary_codec.wire.mqtt.properties import RULES, Kind, Properties, Property
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode, connack_return_code

_BYTES_MAX: Final = 65_535
_FAILURE_3: Final = 0x80
_SIZES: Final = {Kind.BYTE: 1, Kind.TWO_BYTES: 2, Kind.FOUR_BYTES: 4}


def encode(packet: Packet, version: Version) -> bytes:
    """Return a packet as bytes.

    Args:
        packet: The packet.
        version: Of the connection; that of a CONNECT is its own.

    Raises:
        LocalProtocolError: The version cannot say this, or something is too long.
    """
    kind, write = _WRITERS[type(packet)]
    if isinstance(packet, Connect):
        version = packet.version
    if kind is PacketType.AUTH and version is not Version.V5:
        raise LocalProtocolError("AUTH is there from MQTT 5 on")
    flags, body = write(packet, version)
    return bytes([kind << 4 | flags]) + variable(len(body)) + body


def split_packets(data: bytes) -> list[bytes]:
    """Return the packets that stand in what was encoded, one after the other.

    Args:
        data: Whole packets, as `encode` returns them (§2.1.4).
    """
    packets, begin, end = [], 0, len(data)
    while begin < end:
        at, length, shift = begin + 1, 0, 0
        while True:
            length |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                break
        packets.append(data[begin : at + length])
        begin = at + length
    return packets


def with_payload_bytes(packet: bytes, payload_bytes: int) -> bytes:
    """Return a PUBLISH up to its payload, for a payload that is sent by itself.

    Args:
        packet: A PUBLISH with an empty payload.
        payload_bytes: Bytes of the payload to come.

    Raises:
        LocalProtocolError: No packet can be so long.
    """
    at = 2
    while packet[at - 1] & 0x80:
        at += 1
    return packet[:1] + variable(len(packet) - at + payload_bytes) + packet[at:]


def variable(value: int) -> bytes:
    """Return a number as one to four bytes of seven bits each, the lowest first.

    Raises:
        LocalProtocolError: It is larger than these hold.
    """
    if not 0 <= value <= REMAINING_LENGTH_MAX:
        raise LocalProtocolError(f"{value} is not 0 to {REMAINING_LENGTH_MAX}")
    found = bytearray()
    while True:
        value, octet = value >> 7, value & 0x7F
        found.append(octet | 0x80 if value else octet)
        if not value:
            return bytes(found)


def _number(value: int, size_bytes: int, what: str) -> bytes:
    if not 0 <= value < 1 << 8 * size_bytes:
        raise LocalProtocolError(f"{what} is {value}; it must be 0 to {(1 << 8 * size_bytes) - 1}")
    return value.to_bytes(size_bytes, "big")


def _binary(data: bytes, what: str) -> bytes:
    if len(data) > _BYTES_MAX:
        raise LocalProtocolError(f"{what} has {len(data)} bytes; at most {_BYTES_MAX} fit")
    return len(data).to_bytes(2, "big") + data


def _text(text: str, what: str) -> bytes:
    if "\0" in text:
        raise LocalProtocolError(f"{what} has a NUL")
    try:
        return _binary(text.encode(), what)
    except UnicodeEncodeError:
        raise LocalProtocolError(f"{what} is no Unicode text") from None


def _packet_id(packet_id: int) -> bytes:
    if not packet_id:
        raise LocalProtocolError("a packet identifier is 0; it must be 1 to 65535")
    return _number(packet_id, 2, "a packet identifier")


def _properties(properties: Properties, version: Version, *, where: str) -> bytes:
    if version is not Version.V5:
        if properties:
            raise LocalProtocolError(f"{where} has properties from MQTT 5 on")
        return b""
    body = b"".join(
        _property(name, value) for name, values in properties.items() for value in _each(values)
    )
    return variable(len(body)) + body


def _each(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


def _property(name: Property, value: Any) -> bytes:
    kind, what = RULES[name].kind, name.name.lower()
    if kind is Kind.PAIR:
        written = _text(value[0], what) + _text(value[1], what)
    elif kind is Kind.TEXT:
        written = _text(value, what)
    elif kind is Kind.BINARY:
        written = _binary(value, what)
    elif kind is Kind.VARIABLE:
        written = variable(value)
    else:
        written = _number(value, _SIZES[kind], what)
    return variable(name) + written


# --- packets: each returns the flags and what stands behind the fixed header ----------------------

_Written = tuple[int, bytes]


def _connect(packet: Connect, version: Version) -> _Written:
    will = packet.will
    flags = (
        packet.clean_start << 1
        | (will is not None) << 2
        | (packet.password is not None) << 6
        | (packet.user_name is not None) << 7
    )
    if will is not None:
        flags |= will.qos << 3 | will.retain << 5
    level = version | BRIDGE_BIT if packet.is_bridge else int(version)
    body = _text(PROTOCOL_NAMES[version], "the protocol name") + bytes([level, flags])
    body += _number(packet.keep_alive_s, 2, "the keep alive")
    body += _properties(packet.properties, version, where="CONNECT")
    body += _text(packet.client_id, "the client identifier")
    if will is not None:
        body += _properties(will.properties, version, where="a will")
        body += _text(will.topic, "the will topic") + _binary(will.payload, "the will payload")
    if packet.user_name is not None:
        body += _text(packet.user_name, "the user name")
    if packet.password is not None:
        body += _binary(packet.password, "the password")
    return 0, body


def _connack(packet: Connack, version: Version) -> _Written:
    is_5 = version is Version.V5
    code = packet.reason_code if is_5 else connack_return_code(packet.reason_code)
    # MQTT 3.1 has no flag there, and its clients take a set bit for damage.
    flag = packet.session_present and version is not Version.V3_1
    body = bytes([flag, code])
    return 0, body + _properties(packet.properties, version, where="CONNACK")


def _publish(packet: Publish, version: Version) -> _Written:
    flags = packet.dup << 3 | packet.qos << 1 | packet.retain
    body = _text(packet.topic, "the topic name")
    body += _packet_id(packet.packet_id) if packet.qos else b""
    body += _properties(packet.properties, version, where="PUBLISH")
    return flags, body + packet.payload


def _answer(packet: Puback | Pubrec | Pubrel | Pubcomp, version: Version) -> _Written:
    flags = FLAGS[_WRITERS[type(packet)][0]]
    body = _packet_id(packet.packet_id)
    return flags, body + _outcome(packet.reason_code, packet.properties, version)


def _outcome(code: ReasonCode, properties: Properties, version: Version) -> bytes:
    """Return reason code and properties, which are left out where they say nothing."""
    if version is not Version.V5 and (code or properties):
        raise LocalProtocolError(f"{code.name.lower()} can be said from MQTT 5 on")
    if not code and not properties:
        return b""
    written = _properties(properties, version, where="an outcome") if properties else b""
    return bytes([code]) + written


def _subscribe(packet: Subscribe, version: Version) -> _Written:
    body = _packet_id(packet.packet_id)
    body += _properties(packet.properties, version, where="SUBSCRIBE")
    for one in packet.subscriptions:
        options = one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
        if options and version is not Version.V5:
            raise LocalProtocolError("a subscription has options from MQTT 5 on")
        body += _text(one.topic_filter, "a topic filter") + bytes([options | one.qos])
    return FLAGS[PacketType.SUBSCRIBE], body


def _suback(packet: Suback, version: Version) -> _Written:
    body = _packet_id(packet.packet_id)
    body += _properties(packet.properties, version, where="SUBACK")
    is_5 = version is Version.V5
    return 0, body + bytes(
        code if is_5 or not code.is_failure else _FAILURE_3 for code in packet.reason_codes
    )


def _unsubscribe(packet: Unsubscribe, version: Version) -> _Written:
    body = _packet_id(packet.packet_id)
    body += _properties(packet.properties, version, where="UNSUBSCRIBE")
    filters = (_text(one, "a topic filter") for one in packet.topic_filters)
    return FLAGS[PacketType.UNSUBSCRIBE], body + b"".join(filters)


def _unsuback(packet: Unsuback, version: Version) -> _Written:
    body = _packet_id(packet.packet_id)
    body += _properties(packet.properties, version, where="UNSUBACK")
    return 0, body + bytes(packet.reason_codes if version is Version.V5 else ())


def _disconnect(packet: Disconnect, version: Version) -> _Written:
    return 0, _outcome(packet.reason_code, packet.properties, version)


def _auth(packet: Auth, version: Version) -> _Written:
    if not packet.reason_code and not packet.properties:
        return 0, b""
    written = _properties(packet.properties, version, where="AUTH")
    return 0, bytes([packet.reason_code]) + written


_WRITERS: Final[dict[type, tuple[PacketType, Callable[[Any, Version], _Written]]]] = {
    Connect: (PacketType.CONNECT, _connect),
    Connack: (PacketType.CONNACK, _connack),
    Publish: (PacketType.PUBLISH, _publish),
    Puback: (PacketType.PUBACK, _answer),
    Pubrec: (PacketType.PUBREC, _answer),
    Pubrel: (PacketType.PUBREL, _answer),
    Pubcomp: (PacketType.PUBCOMP, _answer),
    Subscribe: (PacketType.SUBSCRIBE, _subscribe),
    Suback: (PacketType.SUBACK, _suback),
    Unsubscribe: (PacketType.UNSUBSCRIBE, _unsubscribe),
    Unsuback: (PacketType.UNSUBACK, _unsuback),
    Pingreq: (PacketType.PINGREQ, lambda _packet, _version: (0, b"")),
    Pingresp: (PacketType.PINGRESP, lambda _packet, _version: (0, b"")),
    Disconnect: (PacketType.DISCONNECT, _disconnect),
    Auth: (PacketType.AUTH, _auth),
}
