"""The beginning of a PUBLISH: what stands before its payload, read while the payload still comes.

Owns how far that goes, so that a large message is never collected in memory. The rules of the
fields are those of `bodies`. Must never keep anything between two calls. Called by the broker's
intake for packets that are too large for the core's scanner.

Source: MQTT 5.0 (OASIS, 2019) §2.1 and §3.3.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vespiary_codec.wire.mqtt.bodies import Context, read_body
from vespiary_codec.wire.mqtt.errors import LimitExceeded, RemoteProtocolError, Violation
from vespiary_codec.wire.mqtt.limits import MqttLimits
from vespiary_codec.wire.mqtt.packet_types import PacketType, Version
from vespiary_codec.wire.mqtt.packets import Publish
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode

HEAD_BYTES_MAX: Final = 128 * 1024
"""Largest beginning of a large PUBLISH; the journal takes half as much of headers."""
_LENGTH_BYTES: Final = 4
_MORE: Final = 0x80


class FixedHeader(NamedTuple):
    """The first bytes of a packet.

    Attributes:
        kind: Its type, 0 to 15.
        flags: The lower half of its first byte.
        header_bytes: Bytes of the fixed header, 2 to 5.
        left_bytes: Bytes behind it, 0 to 268,435,455.
    """

    kind: int
    flags: int
    header_bytes: int
    left_bytes: int


class PublishHead(NamedTuple):
    """A PUBLISH whose payload is still to come.

    Attributes:
        packet: The packet, with an empty payload.
        head_bytes: Bytes before the payload, behind the fixed header.
    """

    packet: Publish
    head_bytes: int


def read_fixed_header(data: bytes | memoryview) -> FixedHeader | None:
    """Return the fixed header of a packet; None if it is not there, or no header.

    Args:
        data: What has come, from the packet's first byte on.
    """
    length = 0
    for place, octet in enumerate(bytes(data[1 : 1 + _LENGTH_BYTES])):
        length |= (octet & ~_MORE) << (7 * place)
        if not octet & _MORE:
            return FixedHeader(data[0] >> 4, data[0] & 0x0F, place + 2, length)
    return None


def read_publish_head(
    data: bytes | bytearray,
    header: FixedHeader,
    version: Version,
    limits: MqttLimits,
    bytes_max: int = HEAD_BYTES_MAX,
) -> PublishHead | None:
    """Return the beginning of a PUBLISH; None if more of it has to come.

    Args:
        data: What has come behind the fixed header.
        header: The fixed header of a PUBLISH.
        version: Of the connection.
        limits: Bounds.
        bytes_max: Largest beginning.

    Raises:
        LimitExceeded: It exceeds a limit.
        RemoteProtocolError: It breaks a rule.
    """
    needed, is_all = _needed(data, header, version)
    if needed > header.left_bytes:
        raise RemoteProtocolError(
            Violation.TRUNCATED_FIELD,
            f"the beginning of PUBLISH needs {needed} bytes, and the packet has"
            f" {header.left_bytes}",
        )
    if needed > bytes_max:
        raise LimitExceeded(
            Violation.PACKET_BYTES,
            f"topic and properties of PUBLISH need {needed} bytes; at most {bytes_max} are allowed",
            ReasonCode.PACKET_TOO_LARGE,
        )
    if not is_all or len(data) < needed:
        return None
    context = Context(version, "server", limits, header.flags)
    packet = read_body(PacketType.PUBLISH, bytes(data[:needed]), context)
    assert isinstance(packet, Publish)
    return PublishHead(packet, needed)


def _needed(data: bytes | bytearray, header: FixedHeader, version: Version) -> tuple[int, bool]:
    """Return how long the beginning is as far as one can see, and whether that is all of it."""
    at = 2
    if len(data) < at:
        return at, False
    at += int.from_bytes(data[:2], "big")
    at += 2 if header.flags & 6 else 0
    if version is not Version.V5:
        return at, True
    length = 0
    for place in range(_LENGTH_BYTES):
        if at == len(data) or at > len(data):
            return at + 1, False
        octet = data[at]
        at += 1
        length |= (octet & ~_MORE) << (7 * place)
        if not octet & _MORE:
            break
    return at + length, True
