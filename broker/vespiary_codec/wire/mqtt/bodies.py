"""What stands behind the fixed header of each packet, read.

Owns the rules of each packet type. Must never keep anything between two packets. Called by
`decoder`, which has checked the type and the flags that are fixed.

Sources: MQTT 5.0 (OASIS, 2019) §3; MQTT 3.1.1 (OASIS, 2014) §3; MQTT 3.1 (IBM, 2010) §3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from vespiary_codec.wire.mqtt.errors import LimitExceeded, RemoteProtocolError, Violation
from vespiary_codec.wire.mqtt.fields import Fields
from vespiary_codec.wire.mqtt.limits import MqttLimits
from vespiary_codec.wire.mqtt.packet_types import (
    BRIDGE_BIT,
    PROTOCOL_NAMES,
    PacketType,
    Role,
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
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from vespiary_codec.wire.mqtt.properties import Properties, Property
from vespiary_codec.wire.mqtt.reason_codes import (
    ALLOWED,
    CLIENT_DISCONNECTS,
    ReasonCode,
    connack_reason_code,
)
from vespiary_codec.wire.mqtt.topics import SHARE, check_filter, check_topic

_FAILURE_3: Final = 0x80
_QOS_MAX: Final = 2


class Context(NamedTuple):
    """What a packet is read with.

    Attributes:
        version: Of the connection; of a CONNECT it means nothing.
        role: Who reads.
        limits: Bounds.
        flags: The lower half of the first byte.
    """

    version: Version
    role: Role
    limits: MqttLimits
    flags: int


def read_body(kind: PacketType, data: bytes, context: Context) -> Packet:
    """Return a packet.

    Args:
        kind: Its type.
        data: All behind the fixed header.
        context: What it is read with.

    Raises:
        LimitExceeded: It exceeds a limit.
        RemoteProtocolError: It breaks a rule.
    """
    fields = Fields(data, context.limits)
    packet = _READERS[kind](fields, context)
    fields.end(f"a {kind.name} packet")
    return packet


def _error(
    violation: Violation, reason: str, code: ReasonCode = ReasonCode.MALFORMED_PACKET
) -> RemoteProtocolError:
    return RemoteProtocolError(violation, reason, code)


def _properties(fields: Fields, context: Context, kind: PacketType) -> Properties:
    return fields.properties(kind) if context.version is Version.V5 else {}


def _packet_id(fields: Fields) -> int:
    packet_id = fields.number(2, "the packet identifier")
    if not packet_id:
        raise _error(
            Violation.PACKET_ID, "a packet identifier is 0; it must be 1 to 65535",
            ReasonCode.PROTOCOL_ERROR,
        )  # fmt: skip
    return packet_id


def _reason_code(fields: Fields, kind: PacketType, allowed: frozenset[ReasonCode]) -> ReasonCode:
    number = fields.number(1, "the reason code")
    if number not in allowed:
        raise _error(
            Violation.REASON_CODE, f"{kind.name} has no reason code 0x{number:02x}",
            ReasonCode.PROTOCOL_ERROR,
        )  # fmt: skip
    return ReasonCode(number)


def _check_qos(qos: int) -> None:
    if qos > _QOS_MAX:
        raise _error(Violation.INVALID_QOS, f"the QoS is {qos}; it must be 0 to {_QOS_MAX}")


# --- the beginning of a connection ----------------------------------------------------------------


def _connect(fields: Fields, context: Context) -> Connect:
    version, is_bridge = _protocol(fields)
    try:
        packet = _connect_as(version, fields, context)
    except RemoteProtocolError as error:
        error.version = version
        raise
    packet.is_bridge = is_bridge
    return packet


def _connect_as(version: Version, fields: Fields, context: Context) -> Connect:
    flags = fields.number(1, "the connect flags")
    _check_connect_flags(flags, version)
    keep_alive_s = fields.number(2, "the keep alive")
    is_5 = version is Version.V5
    properties = fields.properties(PacketType.CONNECT) if is_5 else {}
    client_id = _client_id(fields, version, context.limits, clean_start=bool(flags & 2))
    will = None
    if flags & 4:
        of_will = fields.properties(PacketType.CONNECT, in_will=True) if is_5 else {}
        topic = fields.text("the will topic")
        check_topic(topic, context.limits)
        _check_response_topic(of_will, context.limits)
        payload = fields.binary("the will payload")
        will = Will(topic, payload, flags >> 3 & 3, bool(flags & 32), of_will)
    user_name = fields.text("the user name") if flags & 128 else None
    password = fields.binary("the password") if flags & 64 else None
    return Connect(
        version, client_id, bool(flags & 2), keep_alive_s, will, user_name, password, properties
    )


def _protocol(fields: Fields) -> tuple[Version, bool]:
    """Return the version, and whether a bridge speaks it."""
    name = fields.text("the protocol name")
    if name not in PROTOCOL_NAMES.values():
        raise _error(
            Violation.UNKNOWN_PROTOCOL, f"the protocol name is {name[:20]!r}; it must be 'MQTT'",
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )  # fmt: skip
    level = fields.number(1, "the protocol version")
    for version, own in PROTOCOL_NAMES.items():
        is_bridge = version is not Version.V5 and level == version | BRIDGE_BIT
        if own == name and (is_bridge or level == version):
            return version, is_bridge
    error = _error(
        Violation.UNKNOWN_VERSION,
        f"the protocol is {name} {level}; MQIsdp 3, MQTT 4 and MQTT 5 are spoken here",
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    )
    error.version = Version.V3_1_1  # in whose words it is said (MQTT 3.1.1 §3.1.2.2)
    raise error


def _check_connect_flags(flags: int, version: Version) -> None:
    if flags & 1:
        raise _error(Violation.RESERVED_BITS, "the lowest connect flag is set; it is reserved")
    if not flags & 4 and flags & 0b111000:
        raise _error(Violation.CONNECT_FLAGS, "QoS or retain of a will is set, and there is none")
    _check_qos(flags >> 3 & 3)
    if version is not Version.V5 and flags & 64 and not flags & 128:
        raise _error(Violation.CONNECT_FLAGS, "there is a password and no user name")


def _client_id(fields: Fields, version: Version, limits: MqttLimits, *, clean_start: bool) -> str:
    client_id = fields.text("the client identifier")
    code = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    if not client_id and version is Version.V3_1:
        raise _error(Violation.CLIENT_ID, "a client of MQTT 3.1 names itself", code)
    if not client_id and version is Version.V3_1_1 and not clean_start:
        raise _error(Violation.CLIENT_ID, "a client without an id has a clean session", code)
    size = len(client_id.encode())
    if size > limits.client_id_bytes:
        raise LimitExceeded(
            Violation.CLIENT_ID,
            f"the client identifier has {size} bytes; at most {limits.client_id_bytes} are allowed",
            code,
        )
    return client_id


def _connack(fields: Fields, context: Context) -> Connack:
    flags = fields.number(1, "the acknowledge flags")
    if context.version is Version.V3_1:
        flags = 0  # the byte is not used there (MQTT 3.1 §3.2)
    if flags & 0xFE:
        raise _error(Violation.RESERVED_BITS, "a reserved acknowledge flag is set")
    if context.version is Version.V5:
        code = _reason_code(fields, PacketType.CONNACK, ALLOWED[PacketType.CONNACK])
    else:
        number = fields.number(1, "the return code")
        found = connack_reason_code(number)
        if found is None:
            raise _error(Violation.REASON_CODE, f"CONNACK has no return code {number}")
        code = found
    if code and flags:
        raise _error(
            Violation.CONNECT_FLAGS, "a session is present although the login was refused",
            ReasonCode.PROTOCOL_ERROR,
        )  # fmt: skip
    return Connack(code, bool(flags), _properties(fields, context, PacketType.CONNACK))


# --- messages -------------------------------------------------------------------------------------


def _publish(fields: Fields, context: Context) -> Publish:
    qos, dup = context.flags >> 1 & 3, bool(context.flags & 8)
    _check_qos(qos)
    if dup and not qos:
        raise _error(Violation.INVALID_QOS, "a message of QoS 0 is marked as sent before")
    topic = fields.text("the topic name")
    packet_id = _packet_id(fields) if qos else 0
    properties = _properties(fields, context, PacketType.PUBLISH)
    if topic or Property.TOPIC_ALIAS not in properties:
        check_topic(topic, context.limits)
    _check_response_topic(properties, context.limits)
    if context.role == "server" and Property.SUBSCRIPTION_IDENTIFIER in properties:
        raise _error(
            Violation.PROPERTY_NOT_ALLOWED, "a client's PUBLISH has a subscription identifier",
            ReasonCode.PROTOCOL_ERROR,
        )  # fmt: skip
    retain = bool(context.flags & 1)
    return Publish(topic, fields.rest(), qos, retain, dup, packet_id, properties)


def _check_response_topic(properties: Properties, limits: MqttLimits) -> None:
    topic = properties.get(Property.RESPONSE_TOPIC)
    if isinstance(topic, str):
        check_topic(topic, limits)


def _answer(
    kind: PacketType, made: type[Puback | Pubrec | Pubrel | Pubcomp]
) -> Callable[[Fields, Context], Packet]:
    def read(fields: Fields, context: Context) -> Packet:
        packet_id = _packet_id(fields)
        if context.version is not Version.V5 or not fields.left_bytes:
            return made(packet_id)
        code = _reason_code(fields, kind, ALLOWED[kind])
        return made(packet_id, code, fields.properties(kind) if fields.left_bytes else {})

    return read


# --- subscriptions --------------------------------------------------------------------------------


def _subscribe(fields: Fields, context: Context) -> Subscribe:
    packet_id = _packet_id(fields)
    properties = _properties(fields, context, PacketType.SUBSCRIBE)
    subscriptions: list[Subscription] = []
    while fields.left_bytes:
        topic_filter = _filter(fields, context.limits, len(subscriptions))
        subscriptions.append(_subscription(topic_filter, fields.number(1, "its options"), context))
    _check_asked(len(subscriptions), PacketType.SUBSCRIBE)
    return Subscribe(packet_id, tuple(subscriptions), properties)


def _filter(fields: Fields, limits: MqttLimits, already: int) -> str:
    if already >= limits.filters:
        raise LimitExceeded(
            Violation.FILTERS,
            f"a packet has more than {limits.filters} topic filters",
            ReasonCode.QUOTA_EXCEEDED,
        )
    topic_filter = fields.text("a topic filter")
    check_filter(topic_filter, limits)
    return topic_filter


def _subscription(topic_filter: str, options: int, context: Context) -> Subscription:
    reserved = 0xC0 if context.version is Version.V5 else 0xFC
    if options & reserved:
        raise _error(Violation.RESERVED_BITS, "a reserved bit of the subscription options is set")
    _check_qos(options & 3)
    handling = options >> 4 & 3
    if handling > 2:
        raise _error(
            Violation.RESERVED_BITS, f"the retain handling is {handling}; it must be 0 to 2",
            ReasonCode.PROTOCOL_ERROR,
        )  # fmt: skip
    no_local = bool(options & 4)
    if no_local and topic_filter.startswith(SHARE):
        raise _error(
            Violation.TOPIC_FILTER, "a shared subscription takes what its members send, too",
            ReasonCode.PROTOCOL_ERROR,
        )  # fmt: skip
    return Subscription(topic_filter, options & 3, no_local, bool(options & 8), handling)


def _check_asked(number: int, kind: PacketType) -> None:
    if not number:
        raise _error(
            Violation.NOTHING_ASKED, f"{kind.name} names no topic filter", ReasonCode.PROTOCOL_ERROR
        )


def _suback(fields: Fields, context: Context) -> Suback:
    packet_id = _packet_id(fields)
    properties = _properties(fields, context, PacketType.SUBACK)
    allowed = ALLOWED[PacketType.SUBACK]
    if context.version is not Version.V5:
        allowed = frozenset(code for code in allowed if code <= _FAILURE_3)
    codes = []
    while fields.left_bytes:
        codes.append(_reason_code(fields, PacketType.SUBACK, allowed))
    _check_asked(len(codes), PacketType.SUBACK)
    return Suback(packet_id, tuple(codes), properties)


def _unsubscribe(fields: Fields, context: Context) -> Unsubscribe:
    packet_id = _packet_id(fields)
    properties = _properties(fields, context, PacketType.UNSUBSCRIBE)
    filters: list[str] = []
    while fields.left_bytes:
        filters.append(_filter(fields, context.limits, len(filters)))
    _check_asked(len(filters), PacketType.UNSUBSCRIBE)
    return Unsubscribe(packet_id, tuple(filters), properties)


def _unsuback(fields: Fields, context: Context) -> Unsuback:
    packet_id = _packet_id(fields)
    if context.version is not Version.V5:
        return Unsuback(packet_id)
    properties = fields.properties(PacketType.UNSUBACK)
    codes = []
    while fields.left_bytes:
        codes.append(_reason_code(fields, PacketType.UNSUBACK, ALLOWED[PacketType.UNSUBACK]))
    _check_asked(len(codes), PacketType.UNSUBACK)
    return Unsuback(packet_id, tuple(codes), properties)


# --- the rest -------------------------------------------------------------------------------------


def _disconnect(fields: Fields, context: Context) -> Disconnect:
    if context.version is not Version.V5 or not fields.left_bytes:
        return Disconnect()
    is_server = context.role == "server"
    allowed = CLIENT_DISCONNECTS if is_server else ALLOWED[PacketType.DISCONNECT]
    code = _reason_code(fields, PacketType.DISCONNECT, allowed)
    return Disconnect(code, fields.properties(PacketType.DISCONNECT) if fields.left_bytes else {})


def _auth(fields: Fields, _context: Context) -> Auth:
    if not fields.left_bytes:
        return Auth()
    code = _reason_code(fields, PacketType.AUTH, ALLOWED[PacketType.AUTH])
    properties = fields.properties(PacketType.AUTH)
    if Property.AUTHENTICATION_METHOD not in properties:
        raise _error(
            Violation.PROPERTY_NOT_ALLOWED, "AUTH names no authentication method",
            ReasonCode.PROTOCOL_ERROR,
        )  # fmt: skip
    return Auth(code, properties)


_READERS: Final[dict[PacketType, Callable[[Fields, Context], Packet]]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBLISH: _publish,
    PacketType.PUBACK: _answer(PacketType.PUBACK, Puback),
    PacketType.PUBREC: _answer(PacketType.PUBREC, Pubrec),
    PacketType.PUBREL: _answer(PacketType.PUBREL, Pubrel),
    PacketType.PUBCOMP: _answer(PacketType.PUBCOMP, Pubcomp),
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: lambda _fields, _context: Pingreq(),
    PacketType.PINGRESP: lambda _fields, _context: Pingresp(),
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
