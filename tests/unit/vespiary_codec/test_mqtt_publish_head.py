"""The beginning of a PUBLISH, read while its payload still comes: as the encoder wrote it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vespiary_codec.wire.mqtt import (
    MqttLimits,
    Property,
    Publish,
    RemoteProtocolError,
    Version,
    encode,
)
from vespiary_codec.wire.mqtt.errors import LimitExceeded
from vespiary_codec.wire.mqtt.properties import Properties
from vespiary_codec.wire.mqtt.publish_head import (
    HEAD_BYTES_MAX,
    FixedHeader,
    read_fixed_header,
    read_publish_head,
)

LIMITS = MqttLimits()
FULL: Properties = {
    Property.CONTENT_TYPE: "x/y",
    Property.CORRELATION_DATA: b"\0" * 300,
    Property.MESSAGE_EXPIRY_INTERVAL: 7,
}


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("payload_bytes", [0, 1, 200, 70_000])
def test_a_beginning_is_known_with_its_last_byte(
    version: Version, qos: int, payload_bytes: int
) -> None:
    properties = FULL if version is Version.V5 else {}
    packet = Publish(
        "a/ü", bytes(payload_bytes), qos, retain=True, packet_id=qos and 9, properties=properties
    )
    data = encode(packet, version)
    header = None
    for count in range(1, 6):
        header = header or read_fixed_header(data[:count])
    assert header is not None
    assert header.header_bytes + header.left_bytes == len(data)
    behind = data[header.header_bytes :]
    head_bytes = len(behind) - payload_bytes
    for count in range(head_bytes):
        assert read_publish_head(behind[:count], header, version, LIMITS) is None
    for count in {head_bytes, min(head_bytes + 1, len(behind)), len(behind)}:
        found = read_publish_head(behind[:count], header, version, LIMITS)
        assert found is not None
        assert found.head_bytes == head_bytes
        assert found.packet == replace(packet, payload=b"")


def test_a_beginning_ends_within_its_packet_and_within_its_limit() -> None:
    with pytest.raises(RemoteProtocolError):
        read_publish_head(b"\xff\xff", FixedHeader(3, 2, 2, 100), Version.V5, LIMITS)
    long = b"\x00\x01t\x00\x05" + b"\xff\xff\x7f"  # announces 2 MiB of properties
    with pytest.raises(LimitExceeded, match=str(HEAD_BYTES_MAX)):
        read_publish_head(long, FixedHeader(3, 2, 5, 1 << 27), Version.V5, LIMITS)
