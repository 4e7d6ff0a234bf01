"""First bytes: which protocol a client speaks, and how to turn one away in its own words.

Owns the signatures. Must never keep bytes. Called by `connection` until it has a verdict.
Sources: STOMP 1.2 §Connecting; MQTT 3.1.1 and 5 §3.1.1; AMQP 1.0 part 2.2; RFC 9112 §3.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Protocol

LONGEST_SIGNATURE_BYTES: Final = 8

_HTTP_BODY: Final = (
    b"This port speaks no HTTP but WebSockets at /ws; console and HTTP API have a port of their "
    b"own.\n"
)
_HTTP_REPLY: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_HTTP_BODY), _HTTP_BODY)
)
# A fatal alert "protocol_version" of TLS 1.2 (RFC 5246, 7.2).
_TLS_REPLY: Final = bytes([0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46])
# The header of the version that a server would speak; then it closes (AMQP 1.0, 2.2).
_AMQP_REPLY: Final = b"AMQP\x00\x01\x00\x00"
# CONNACK "unacceptable protocol version" (MQTT 3.1.1, 3.2.2.3).
_MQTT_REPLY: Final = bytes([0x20, 0x02, 0x00, 0x01])


_SHOWN: Final = {Protocol.AMQP: "AMQP 1.0"}
"""Names in errors that differ from those of the configuration."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A protocol that is not spoken here.

    Attributes:
        protocol: Its name.
        reply: What to send before closing, in that protocol; empty if it has no such thing.
        cure: What its user can do; empty if that is to use another port.
    """

    protocol: str
    reply: bytes
    cure: str = ""

    def error(self, protocols: Collection[Protocol]) -> RemoteProtocolError:
        """Return why its client is turned away.

        Args:
            protocols: Those that the acceptor speaks.
        """
        return RemoteProtocolError(
            f"this port does not speak {self.protocol}",
            allowed=", ".join(_SHOWN.get(protocol, protocol) for protocol in protocols),
            cure=self.cure,
        )


_HTTP: Final = Foreign("HTTP", _HTTP_REPLY)
_PROXY: Final = Foreign(
    "the PROXY protocol",
    b"",
    "turn proxy-protocol of the acceptor on and have the load balancer send version 2, or none",
)
_WEBSOCKET: Final = (b"GET /ws ", b"GET /ws?")
_SPOKEN: Final = (
    (b"CONNECT", Protocol.STOMP),
    (b"STOMP", Protocol.STOMP),
    (b"\x10", Protocol.MQTT),
    (b"AMQP", Protocol.AMQP),
)
_REFUSALS: Final = {
    Protocol.STOMP: Foreign("STOMP", b"ERROR\nmessage:this port does not speak STOMP\n\n\0"),
    Protocol.MQTT: Foreign("MQTT", _MQTT_REPLY),
    Protocol.AMQP: Foreign("AMQP", _AMQP_REPLY),
}
"""What a client of ours hears on a port that does not speak its protocol."""
_OLDER_AMQP: Final = (
    (b"AMQP\x00\x00\x09\x01", Foreign("AMQP 0-9-1", _AMQP_REPLY)),
    (b"AMQP\x01\x01", Foreign("AMQP before 1.0", _AMQP_REPLY)),
)
"""Versions before 1.0: RabbitMQ's own clients speak 0-9-1; 0-8, 0-9 and 0-10 share a header."""
_FOREIGN: Final = (
    (b"\x16\x03", Foreign("TLS", _TLS_REPLY)),
    *((verb, _HTTP) for verb in (b"GET ", b"HEAD ", b"POST ", b"PUT ")),
    *((verb, _HTTP) for verb in (b"DELETE ", b"PATCH ", b"OPTIONS ", b"PRI * ")),
    (b"PROXY ", _PROXY),  # version 1
    (b"\0\r\nQUIT\n", _PROXY),  # version 2, without its leading line ends
    (b"ARTEMIS", Foreign("Artemis Core", b"")),
    (b"HORNETQ", Foreign("HornetQ Core", b"")),
)
# Both begin with the size of the first frame; OpenWire goes on with the type WIREFORMAT_INFO (1),
# Kafka with the number of a request, which is below 256.
_SIZED: Final = {1: Foreign("OpenWire", b""), 0: Foreign("Kafka", b"")}
_SIZE: Final = b"\x00\x00"
_SIZE_BYTES: Final = 4
_UNKNOWN: Final = Foreign("what this client speaks", b"")
_MQTT_PACKETS: Final = frozenset([*range(0x30, 0x41), 0x50, 0x62, 0x70, *range(0xC0, 0x100)])
"""First bytes of packets of MQTT clients, some with wrong flags, that text may begin with, too."""
_MQTT_ONLY: Final = frozenset([*range(0x10, 0x20), *range(0x80, 0xC0)])
"""Those that no text begins with."""
_TEXT: Final = frozenset([*b"\t\n\r", *range(0x20, 0x100)])
_PUBLISH: Final = 3
_MORE_LENGTH: Final = 0x80
"""The bit of a byte of a remaining length after which another one follows (MQTT 5.0 §1.5.5)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the first bytes say.

    Attributes:
        is_decided: Whether more bytes cannot change it.
        protocol: The protocol that the client speaks; None: undecided, or none of the acceptor's.
        foreign: The protocol that is not spoken here.
        is_websocket: Whether it is the handshake of a WebSocket, which tells the protocol later.
    """

    is_decided: bool
    protocol: Protocol | None = None
    foreign: Foreign | None = None
    is_websocket: bool = False


def detect(data: bytes, protocols: Collection[Protocol]) -> Verdict:
    """Return what the first bytes of a connection say.

    Args:
        data: All bytes so far, or at least the first 8.
        protocols: Those that the acceptor speaks. What nobody knows is taken for STOMP, if that
            is among them: its decoder says what is wrong.
    """
    data = data.lstrip(b"\r\n")
    for signature, foreign in _OLDER_AMQP:
        if data.startswith(signature):
            return Verdict(is_decided=True, foreign=foreign)
        if len(data) >= len(b"AMQP") and signature.startswith(data):
            return Verdict(is_decided=False)
    for signature, protocol in _SPOKEN:
        if data.startswith(signature):
            if protocol in protocols:
                return Verdict(is_decided=True, protocol=protocol)
            return Verdict(is_decided=True, foreign=_REFUSALS[protocol])
    if data.startswith(_WEBSOCKET):
        return Verdict(is_decided=True, is_websocket=True)
    if any(signature.startswith(data) for signature in _WEBSOCKET):
        return Verdict(is_decided=False)
    for signature, foreign in _FOREIGN:
        if data.startswith(signature):
            return Verdict(is_decided=True, foreign=foreign)
    if data.startswith(_SIZE):
        if len(data) <= _SIZE_BYTES:
            return Verdict(is_decided=False)
        return Verdict(is_decided=True, foreign=_SIZED.get(data[_SIZE_BYTES], _UNKNOWN))
    if _SIZE.startswith(data):
        return Verdict(is_decided=False)
    if any(signature.startswith(data) for signature, _ in (*_SPOKEN, *_FOREIGN)):
        return Verdict(is_decided=False)
    if Protocol.MQTT in protocols:  # its decoder says what is wrong
        is_mqtt = _is_mqtt(data)
        if is_mqtt is None:
            return Verdict(is_decided=False)
        if is_mqtt:
            return Verdict(is_decided=True, protocol=Protocol.MQTT)
    if Protocol.STOMP in protocols:
        return Verdict(is_decided=True, protocol=Protocol.STOMP)
    return Verdict(is_decided=True, foreign=_UNKNOWN)


def _is_mqtt(data: bytes) -> bool | None:
    """Return whether a connection begins with an MQTT packet; None: more bytes will tell.

    The second byte is the packet's remaining length. In what clients send it is below that of any
    character of a text, except in a PUBLISH: there the length of the topic follows, whose first
    byte is 0 unless the topic is long.
    """
    if data[0] in _MQTT_ONLY:
        return True
    if data[0] not in _MQTT_PACKETS:
        return False
    if len(data) == 1:
        return None
    if data[1] not in _TEXT:
        return True
    if data[0] >> 4 != _PUBLISH:
        return False
    if data[1] & _MORE_LENGTH:  # no text has such a byte after a digit
        return True
    return None if len(data) == 2 else data[2] == 0
