"""The MQTT decoder: octets as the specifications print them, and what it refuses, how early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_codec.wire.mqtt import (
    NEED_DATA,
    Auth,
    Connack,
    Connect,
    LimitExceeded,
    MqttDecoder,
    MqttLimits,
    Packet,
    Pingreq,
    Property,
    Puback,
    Publish,
    Pubrel,
    ReasonCode,
    RemoteProtocolError,
    Subscribe,
    Subscription,
    Version,
    Violation,
    Will,
    encode,
)

V3_1, V3, V5 = Version.V3_1, Version.V3_1_1, Version.V5
LOGIN_5 = bytes.fromhex("10 0d 0004 4d515454 05 02 0000 00 0000")
MALFORMED, WRONG = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR


def octets(text: str) -> bytes:
    return bytes.fromhex(text)


def read(data: bytes, **options: Any) -> Packet:
    """The only packet of some bytes."""
    decoder = MqttDecoder(**options)
    decoder.feed(data)
    packet = decoder.next_packet()
    assert packet is not NEED_DATA
    assert decoder.next_packet() is NEED_DATA
    assert not decoder.is_mid_packet
    return packet


def feed_all(decoder: MqttDecoder, pieces: Iterable[bytes]) -> list[Packet]:
    """All packets of some bytes."""
    found = []
    for piece in pieces:
        decoder.feed(piece)
        while (packet := decoder.next_packet()) is not NEED_DATA:
            found.append(packet)
    return found


def refused(data: bytes, **options: Any) -> RemoteProtocolError:
    """What some bytes are refused for, wherever they are cut."""
    found = []
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        decoder = MqttDecoder(**options)
        with pytest.raises(RemoteProtocolError) as caught:
            feed_all(decoder, pieces)
        found.append(caught.value)
        decoder.feed(b"\xc0\0")
        with pytest.raises(RemoteProtocolError) as again:
            decoder.next_packet()
        assert again.value is caught.value
        assert not decoder.buffered_bytes
    one, other = found
    assert (one.violation, one.reason, one.reason_code) == (
        other.violation, other.reason, other.reason_code
    )  # fmt: skip
    return one


# --- as the specifications have it ----------------------------------------------------------------


def test_the_login_of_mqtt_5_3_1_2() -> None:
    """Figure 3-6 of MQTT 5.0: name, version, flags, keep alive, session expiry, client id."""
    data = octets("10 13 0004 4d515454 05 ce 000a 05 11 0000000a 0001 61 00")
    with pytest.raises(RemoteProtocolError):
        read(data)  # its flags promise a will, a user and a password
    whole = octets(
        "10 21 0004 4d515454 05 ce 000a 05 11 0000000a0001 61 00 0001 74 0002 6869 0001 75 0001 70"
    )
    assert read(whole) == Connect(
        V5, "a", True, 10, Will("t", b"hi", 1), "u", b"p", {Property.SESSION_EXPIRY_INTERVAL: 10}
    )


def test_a_login_of_mqtt_3_1() -> None:
    data = octets("10 0f 0006 4d5149736470 03 02 003c 0001 63")
    assert read(data) == Connect(V3_1, "c", True, 60)


def test_logins_of_bridges() -> None:
    """Those of mosquitto set the highest bit of the protocol level."""
    old = octets("10 0f 0006 4d5149736470 83 02 003c 0001 63")
    assert read(old) == Connect(V3_1, "c", True, 60, is_bridge=True)
    new = octets("10 0d 0004 4d515454 84 02 003c 0001 63")
    assert read(new) == Connect(V3, "c", True, 60, is_bridge=True)


def test_messages_of_all_qualities() -> None:
    assert read(octets("30 05 0003 612f62"), version=V3) == Publish("a/b")
    # §3.3.2.4 of MQTT 5.0: a/b, packet identifier 10, no properties
    assert read(octets("32 08 0003 612f62 000a 00"), version=V5) == Publish(
        "a/b", qos=1, packet_id=10
    )
    assert read(octets("3d 09 0003 612f62 000a 7879"), version=V3) == Publish(
        "a/b", b"xy", 2, True, True, 10
    )


def test_an_alias_stands_for_a_topic() -> None:
    data = octets("30 07 0000 03 23 0007 78")
    assert read(data, version=V5) == Publish("", b"x", properties={Property.TOPIC_ALIAS: 7})


def test_a_subscription_of_3_8_3() -> None:
    """Figure 3-22 of MQTT 5.0: a/b at QoS 1, c/d at QoS 2."""
    data = octets("82 0f 000a 00 0003 612f62 01 0003 632f64 02")
    assert read(data, version=V5) == Subscribe(10, (Subscription("a/b", 1), Subscription("c/d", 2)))


def test_outcomes_that_say_nothing_are_short() -> None:
    assert read(octets("40 02 0007"), version=V5) == Puback(7)
    assert read(octets("40 03 0007 10"), version=V5) == Puback(
        7, ReasonCode.NO_MATCHING_SUBSCRIBERS
    )
    assert encode(Puback(7), V5) == octets("40 02 0007")
    assert read(octets("f0 00"), version=V5) == Auth()


def test_the_version_of_the_login_holds_for_what_follows() -> None:
    decoder = MqttDecoder()
    decoder.feed(encode(Connect(V3, "c"), V3) + encode(Pubrel(3), V3))
    assert decoder.version is None
    assert isinstance(decoder.next_packet(), Connect)
    assert decoder.version is V3
    assert decoder.next_packet() == Pubrel(3)


def test_a_resent_packet_of_mqtt_3_1() -> None:
    """MQTT 3.1 §2.1 has a DUP flag in PUBREL, SUBSCRIBE and UNSUBSCRIBE."""
    assert read(octets("6a 02 0003"), version=V3_1) == Pubrel(3)
    assert refused(octets("6a 02 0003"), version=V3).violation is Violation.RESERVED_BITS
    assert refused(octets("c8 00"), version=V3_1).violation is Violation.RESERVED_BITS


def test_a_client_reads_what_servers_send() -> None:
    assert read(octets("20 02 01 00"), role="client", version=V3) == Connack(session_present=True)
    with pytest.raises(ValueError, match="version"):
        MqttDecoder(role="client")


@pytest.mark.parametrize("octet", ["00", "01", "02"])
def test_a_client_of_mqtt_3_1_reads_nothing_from_a_reserved_byte(octet: str) -> None:
    """MQTT 3.1 §3.2: the first byte of CONNACK is not used; it has no flag of a session."""
    assert read(octets(f"20 02 {octet} 00"), role="client", version=V3_1) == Connack()
    refusal = read(octets(f"20 02 {octet} 05"), role="client", version=V3_1)
    assert refusal == Connack(ReasonCode.NOT_AUTHORIZED)


def test_a_length_may_have_more_bytes_than_it_needs() -> None:
    assert read(octets("c0 80 80 00"), version=V5) == Pingreq()


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "version", "violation", "code"),
    [
        ("00 00", V5, Violation.UNEXPECTED_PACKET, MALFORMED),
        ("20 02 0000", V3, Violation.UNEXPECTED_PACKET, WRONG),
        ("10 0c 0004 4d515454 04 02 0000 0000", V3, Violation.UNEXPECTED_PACKET, WRONG),
        ("f0 00", V3, Violation.UNEXPECTED_PACKET, WRONG),
        ("c0 00", None, Violation.UNEXPECTED_PACKET, WRONG),
        ("c1 00", V3, Violation.RESERVED_BITS, MALFORMED),
        ("80 06 0001 0001 61 00", V3, Violation.RESERVED_BITS, MALFORMED),
        ("c0 ff ff ff ff", V3, Violation.REMAINING_LENGTH, MALFORMED),
        ("c0 01 00", V3, Violation.TRAILING_BYTES, MALFORMED),
        ("40 03 0001 00", V3, Violation.TRAILING_BYTES, MALFORMED),
        ("40 01 00", V3, Violation.TRUNCATED_FIELD, MALFORMED),
        ("40 02 0000", V3, Violation.PACKET_ID, WRONG),
        ("30 02 ffff", V3, Violation.TRUNCATED_FIELD, MALFORMED),
        ("36 07 0001 61 0001 7878", V3, Violation.INVALID_QOS, MALFORMED),
        ("38 04 0001 61 78", V3, Violation.INVALID_QOS, MALFORMED),
        ("32 05 0001 61 0000", V3, Violation.PACKET_ID, WRONG),
        ("30 03 0001 ff", V3, Violation.NOT_UTF8, MALFORMED),
        ("30 05 0003 eda080", V3, Violation.NOT_UTF8, MALFORMED),
        ("30 05 0003 610062", V3, Violation.NUL_IN_STRING, MALFORMED),
        ("30 03 0001 23", V3, Violation.TOPIC_NAME, ReasonCode.TOPIC_NAME_INVALID),
        ("30 02 0000", V3, Violation.TOPIC_NAME, ReasonCode.TOPIC_NAME_INVALID),
        ("30 03 0000 00", V5, Violation.TOPIC_NAME, ReasonCode.TOPIC_NAME_INVALID),
        ("82 02 0001", V3, Violation.NOTHING_ASKED, WRONG),
        ("a2 02 0001", V3, Violation.NOTHING_ASKED, WRONG),
        ("82 06 0001 0001 61 03", V3, Violation.INVALID_QOS, MALFORMED),
        ("82 06 0001 0001 61 04", V3, Violation.RESERVED_BITS, MALFORMED),
        ("82 07 0001 00 0001 61 40", V5, Violation.RESERVED_BITS, MALFORMED),
        ("82 07 0001 00 0001 61 30", V5, Violation.RESERVED_BITS, WRONG),
        ("82 10 0001 00 000a 2473686172652f672f61 04", V5, Violation.TOPIC_FILTER, WRONG),
        ("82 08 0001 00 0002 6123 00", V5, Violation.TOPIC_FILTER, ReasonCode.TOPIC_FILTER_INVALID),
        ("e0 01 04", V3, Violation.TRAILING_BYTES, MALFORMED),
        ("e0 01 8b", V5, Violation.REASON_CODE, WRONG),  # only a server is shutting down
        ("40 03 0001 01", V5, Violation.REASON_CODE, WRONG),
        ("f0 02 18 00", V5, Violation.PROPERTY_NOT_ALLOWED, WRONG),
        # properties
        ("30 05 0001 61 01 7f", V5, Violation.UNKNOWN_PROPERTY, MALFORMED),
        ("30 06 0001 61 02 0102", V5, Violation.PROPERTY_VALUE, WRONG),
        ("30 08 0001 61 04 0101 0101", V5, Violation.REPEATED_PROPERTY, WRONG),
        ("30 07 0001 61 03 230000", V5, Violation.PROPERTY_VALUE, WRONG),
        ("30 06 0001 61 02 0b01", V5, Violation.PROPERTY_NOT_ALLOWED, WRONG),
        ("30 06 0001 61 02 2401", V5, Violation.PROPERTY_NOT_ALLOWED, WRONG),
        ("30 08 0001 61 04 0800012b", V5, Violation.TOPIC_NAME, ReasonCode.TOPIC_NAME_INVALID),
        ("30 04 0001 61 05", V5, Violation.PROPERTIES_LENGTH, MALFORMED),
        ("30 07 0001 61 ff ff ff ff", V5, Violation.PROPERTIES_LENGTH, MALFORMED),
        ("30 06 0001 61 02 0b00", V5, Violation.PROPERTY_VALUE, WRONG),
        ("82 09 0001 02 0b00 0001 61 00", V5, Violation.PROPERTY_VALUE, WRONG),
        ("82 0b 0001 04 0b01 0b02 0001 61 00", V5, Violation.REPEATED_PROPERTY, WRONG),
        ("f0 06 18 04 1600 0178", V5, Violation.PROPERTY_NOT_ALLOWED, WRONG),
    ],
)  # fmt: skip
def test_refusals(
    data: str, version: Version | None, violation: Violation, code: ReasonCode
) -> None:
    error = refused(octets(data), version=version)
    assert (error.violation, error.reason_code) == (violation, code)
    assert not isinstance(error, LimitExceeded)


UNSUPPORTED = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("body", "violation", "code"),
    [
        ("0004 4d515450 04 02 0000 0001 61", Violation.UNKNOWN_PROTOCOL, UNSUPPORTED),
        ("0004 4d515454 06 02 0000 00 0001 61", Violation.UNKNOWN_VERSION, UNSUPPORTED),
        ("0004 4d515454 03 02 0000 0001 61", Violation.UNKNOWN_VERSION, UNSUPPORTED),
        ("0004 4d515454 83 02 0000 0001 61", Violation.UNKNOWN_VERSION, UNSUPPORTED),
        ("0004 4d515454 85 02 0000 00 0001 61", Violation.UNKNOWN_VERSION, UNSUPPORTED),
        ("0006 4d5149736470 04 02 0000 0001 61", Violation.UNKNOWN_VERSION, UNSUPPORTED),
        ("0004 4d515454 04 03 0000 0001 61", Violation.RESERVED_BITS, MALFORMED),
        ("0004 4d515454 04 0a 0000 0001 61", Violation.CONNECT_FLAGS, MALFORMED),
        ("0004 4d515454 04 22 0000 0001 61", Violation.CONNECT_FLAGS, MALFORMED),
        ("0004 4d515454 04 1e 0000 0001 61 0001 74 0000", Violation.INVALID_QOS, MALFORMED),
        ("0004 4d515454 04 42 0000 0001 61 0001 70", Violation.CONNECT_FLAGS, MALFORMED),
        ("0004 4d515454 04 00 0000 0000", Violation.CLIENT_ID,
         ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
        ("0006 4d5149736470 03 02 0000 0000", Violation.CLIENT_ID,
         ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
        ("0004 4d515454 04 06 0000 0001 61 0001 2b 0000", Violation.TOPIC_NAME,
         ReasonCode.TOPIC_NAME_INVALID),
        ("0004 4d515454 05 02 0000 03 210000 0001 61", Violation.PROPERTY_VALUE, WRONG),
        ("0004 4d515454 05 02 0000 02 1902 0001 61", Violation.PROPERTY_VALUE, WRONG),
        ("0004 4d515454 05 02 0000 05 1800000001 0001 61", Violation.PROPERTY_NOT_ALLOWED, WRONG),
    ],
)  # fmt: skip
def test_logins_that_are_refused(body: str, violation: Violation, code: ReasonCode) -> None:
    behind = octets(body)
    error = refused(bytes([0x10, len(behind)]) + behind)
    assert (error.violation, error.reason_code) == (violation, code)


# --- limits, and how early they are met -----------------------------------------------------------


def test_a_large_packet_is_refused_by_its_length_alone() -> None:
    limits = MqttLimits(packet_bytes=100, before_login_bytes=50)
    for version, size, most in ((V5, 99, 100), (None, 49, 50)):
        decoder = MqttDecoder(limits, version=version)
        decoder.feed(bytes([0x10 if version is None else 0x30, size]))
        with pytest.raises(LimitExceeded, match=f"of {size + 2} bytes.*at most {most}") as caught:
            decoder.next_packet()
        assert caught.value.reason_code is ReasonCode.PACKET_TOO_LARGE
        decoder = MqttDecoder(limits, version=version)
        decoder.feed(bytes([0x10 if version is None else 0x30, size - 1]))
        assert decoder.next_packet() is NEED_DATA


def test_an_announced_size_reserves_nothing() -> None:
    decoder = MqttDecoder(MqttLimits(packet_bytes=268_435_460), version=V5)
    decoder.feed(octets("30 ff ff ff 7f"))
    assert decoder.next_packet() is NEED_DATA
    assert decoder.buffered_bytes == 5


def test_user_properties_have_a_limit() -> None:
    pair = octets("26 0001 61 0001 62")
    data = encode(Publish("t", properties={Property.USER_PROPERTY: [("a", "b")] * 4}), V5)
    assert data.count(pair) == 4
    error = refused(data, version=V5, limits=MqttLimits(user_properties=3))
    assert (error.violation, error.reason_code) == (
        Violation.USER_PROPERTIES, ReasonCode.QUOTA_EXCEEDED
    )  # fmt: skip
    read(data, version=V5, limits=MqttLimits(user_properties=4))


def test_filters_have_a_limit() -> None:
    data = encode(Subscribe(1, (Subscription("a"),) * 4), V3)
    error = refused(data, version=V3, limits=MqttLimits(filters=3))
    assert (error.violation, error.reason_code) == (Violation.FILTERS, ReasonCode.QUOTA_EXCEEDED)
    read(data, version=V3, limits=MqttLimits(filters=4))


def test_client_ids_have_a_limit() -> None:
    data = encode(Connect(V3, "c" * 24), V3)
    error = refused(data, limits=MqttLimits(client_id_bytes=23))
    assert error.violation is Violation.CLIENT_ID
    assert isinstance(error, LimitExceeded)
    read(data, limits=MqttLimits(client_id_bytes=24))


@pytest.mark.parametrize(
    "wrong", [{"packet_bytes": 15}, {"topic_bytes": 0}, {"client_id_bytes": 22}, {"filters": 0}]
)
def test_limits_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        MqttLimits(**wrong)


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=60), st.sampled_from([None, V3_1, V3, V5]))
def test_whatever_comes_in_is_a_packet_or_a_violation(data: bytes, version: Version | None) -> None:
    """No other error, whatever the bytes; and the same however they are cut."""

    def outcome(*pieces: bytes) -> tuple[list[Any], Any]:
        decoder, found = MqttDecoder(version=version), []
        try:
            for piece in pieces:
                decoder.feed(piece)
                while (packet := decoder.next_packet()) is not NEED_DATA:
                    found.append(packet)
        except RemoteProtocolError as error:
            return found, (error.violation, error.reason, error.reason_code)
        return found, decoder.buffered_bytes

    assert outcome(data) == outcome(*(data[at : at + 1] for at in range(len(data))))
