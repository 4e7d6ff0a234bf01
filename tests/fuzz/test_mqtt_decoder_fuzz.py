"""Fuzz target of the MQTT decoder.

As a test it runs a bounded number of inputs, and what is kept in its corpus; as a program any
number, at random or guided by coverage (`vespiary_testkit.fuzz_target`).

Whatever the bytes, these hold: only RemoteProtocolError comes out; how the bytes are cut changes
neither the packets nor the error; nothing beyond the limits is kept; a packet that was read can be
printed, and is read as the same packet again.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_codec.wire.mqtt import (
    NEED_DATA,
    RULES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    LocalProtocolError,
    MqttDecoder,
    MqttLimits,
    Packet,
    PacketType,
    Pingreq,
    Pingresp,
    Property,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    RemoteProtocolError,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Version,
    Violation,
    Will,
    encode,
)
from vespiary_codec.wire.mqtt.properties import Kind, may_repeat
from vespiary_testkit.fuzz_target import FuzzTarget, corpus, in_pieces, likely_inputs, main
from vespiary_testkit.seeds import seed_for

LIMITS = MqttLimits(
    packet_bytes=400, before_login_bytes=400, topic_bytes=40, topic_levels=6, user_properties=3,
    filters=4, client_id_bytes=60,
)  # fmt: skip
WIDE = MqttLimits()
SETTINGS: list[tuple[Any, Version | None]] = [
    (role, version)
    for role in ("server", "client")
    for version in (None, *Version)
    if role == "server" or version is not None
]


def run(
    pieces: list[bytes], role: Any, version: Version | None
) -> tuple[list[tuple[Version | None, Packet]], Any]:
    """Return all packets and the error of one decoder."""
    decoder = MqttDecoder(LIMITS, role=role, version=version)
    packets: list[tuple[Version | None, Packet]] = []
    try:
        for piece in pieces:
            decoder.feed(piece)
            while (packet := decoder.next_packet()) is not NEED_DATA:
                packets.append((decoder.version, packet))
            assert decoder.buffered_bytes <= LIMITS.packet_bytes, "kept more than a packet"
    except RemoteProtocolError as error:
        return packets, (error.violation, error.reason, error.reason_code)
    return packets, None


def check_packet(packet: Packet, role: Any, version: Version) -> None:
    """Print a packet and read it again."""
    data = encode(packet, version)
    asked = None if isinstance(packet, Connect) else version
    decoder = MqttDecoder(WIDE, role=role, version=asked)
    decoder.feed(data)
    again = decoder.next_packet()
    assert again == packet, (packet, again)
    assert decoder.buffered_bytes == 0


def check(data: bytes) -> None:
    """Run one input: two bytes that choose the setting and the cuts, then the stream."""
    if len(data) < 2:
        return
    role, version = SETTINGS[data[0] % len(SETTINGS)]
    stream = data[2:]
    whole = run([stream], role, version)
    assert run(in_pieces(data[1], stream), role, version) == whole
    for spoken, packet in whole[0]:
        assert spoken is not None
        check_packet(packet, role, spoken)


# --- inputs --------------------------------------------------------------------------------------

TEXTS = ["a", "a/b", "é✓", "", "+/b", "#", "$share/g/a", "x" * 41, "a/b/c/d/e/f/g", "\0", "c1"]
BYTES = [b"", b"x", b"\x00\xff", b"y" * 70]
Source = random.Random


def text(source: Source) -> str:
    return source.choice(TEXTS[:3] if source.random() < 0.9 else TEXTS)


def value_of(source: Source, kind: Kind, least: int) -> Any:
    if kind is Kind.TEXT:
        return text(source)
    if kind is Kind.BINARY:
        return source.choice(BYTES)
    if kind is Kind.PAIR:
        return [(text(source), text(source)) for _ in range(source.choice((1, 1, 2, 4)))]
    return max(least, source.choice((0, 1)))


def properties(source: Source, kind: PacketType, *, in_will: bool = False) -> dict[Property, Any]:
    made: dict[Property, Any] = {}
    for name in source.sample(list(RULES), k=source.choice((0, 0, 2, 6))):
        rule = RULES[name]
        if (rule.in_will if in_will else kind in rule.packets) or source.random() < 0.02:
            made[name] = value_of(source, rule.kind, rule.least)
            if name is Property.SUBSCRIPTION_IDENTIFIER and isinstance(made[name], int):
                made[name] = [made[name]] * (2 if may_repeat(name, kind) else 1)
    return made


def code(source: Source) -> ReasonCode:
    return ReasonCode.SUCCESS if source.random() < 0.9 else source.choice(list(ReasonCode))


def packet(source: Source, role: str, version: Version) -> Packet:
    """Return a packet that a peer of this role would read, mostly a valid one."""
    number = source.choice((1, 2, 65_535))

    def of(kind: PacketType) -> dict[Property, Any]:
        return properties(source, kind) if version is Version.V5 else {}

    answers = [
        Puback(number, code(source), of(PacketType.PUBACK)),
        Pubrec(number, code(source), of(PacketType.PUBREC)),
        Pubrel(number, code(source), of(PacketType.PUBREL)),
        Pubcomp(number, code(source), of(PacketType.PUBCOMP)),
    ]
    qos = source.randrange(3)
    both: list[Packet] = [
        Publish(
            text(source), source.choice(BYTES), qos, source.random() < 0.5,
            qos > 0 and source.random() < 0.3, number if qos else 0, of(PacketType.PUBLISH),
        ),
        *answers,
        Disconnect(code(source), of(PacketType.DISCONNECT)),
        Auth(code(source), of(PacketType.AUTH)),
    ]  # fmt: skip
    if role == "client":
        codes = tuple(code(source) for _ in range(source.choice((1, 2))))
        return source.choice([
            *both, Pingresp(), Suback(number, codes, of(PacketType.SUBACK)),
            Connack(code(source), source.random() < 0.5, of(PacketType.CONNACK)),
            Unsuback(number, codes if version is Version.V5 else (), of(PacketType.UNSUBACK)),
        ])  # fmt: skip
    asked = [
        Subscription(text(source), source.randrange(3), *source.choices((False, True), k=2),
                     source.randrange(3))
        if version is Version.V5 else Subscription(text(source), source.randrange(3))
        for _ in range(source.choice((1, 2, 5)))
    ]  # fmt: skip
    return source.choice([
        *both, Pingreq(), Subscribe(number, tuple(asked), of(PacketType.SUBSCRIBE)),
        Unsubscribe(number, tuple(each.topic_filter for each in asked), of(PacketType.UNSUBSCRIBE)),
    ])  # fmt: skip


def connect(source: Source, version: Version) -> Connect:
    is_5 = version is Version.V5
    will = None
    if source.random() < 0.4:
        of_will = properties(source, PacketType.CONNECT, in_will=True) if is_5 else {}
        will = Will(text(source), source.choice(BYTES), source.randrange(3), True, of_will)
    return Connect(
        version, text(source), source.random() < 0.5, source.randrange(3), will,
        source.choice((None, "u")), source.choice((None, b"p")),
        properties(source, PacketType.CONNECT) if is_5 else {},
    )  # fmt: skip


PROPERTY_BYTES = [
    b"\x01\x01", b"\x01\x07", b"\x02\0\0\0\x05", b"\x03\0\x01a", b"\x08\0\x01b", b"\x09\0\x01c",
    b"\x23\0\x01", b"\x23\0\0", b"\x26\0\x01a\0\x01b", b"\x11\0\0\0\x01", b"\x7f", b"\x0b\x01",
]  # fmt: skip


def raw_publish(source: Source) -> bytes:
    """Return a PUBLISH of MQTT 5 whose properties are well cut, whatever they say."""
    found = b"".join(source.choices(PROPERTY_BYTES, k=source.randrange(5)))
    body = b"\0\x01a" + bytes([len(found)]) + found + b"payload"
    return bytes([0x30, len(body)]) + body


def random_input(source: Source) -> bytes:
    """Return one input: mostly packets that keep the rules, some of them bent in a place or two."""
    choices = source.randbytes(2)
    role, version = SETTINGS[choices[0] % len(SETTINGS)]
    if source.random() < 0.03:
        return choices + source.randbytes(source.randrange(40))
    spoken = version or source.choice(list(Version))
    made: list[Packet] = [] if version is not None else [connect(source, spoken)]
    made += [packet(source, role, spoken) for _ in range(source.randrange(1, 4))]
    stream = bytearray()
    for each in made:
        try:
            stream += encode(each, spoken)
        except LocalProtocolError:
            continue  # what cannot be said; bytes that say it all the same come from below
    if spoken is Version.V5 and source.random() < 0.1:
        stream += raw_publish(source)
    if source.random() < 0.01:  # QoS 3, and QoS 0 that was sent before: bent bytes hardly say that
        stream += source.choice((b"\x36\x06\0\x01a\0\x01x", b"\x38\x04\0\x01ax"))
    for _ in range(source.choice((0, 0, 1, 1, 2))):
        place = source.randrange(len(stream) + 1)
        bent = source.choice((b"\0", b"\xff", b"\x80", source.randbytes(1), b"", b"\x26\0\0\0\0"))
        stream[place : place + source.randrange(3)] = bent
    return choices + bytes(stream)


@settings(deadline=None, max_examples=200)
@given(st.binary(min_size=2, max_size=60))
def test_any_stream(data: bytes) -> None:
    check(data)


def test_likely_streams() -> None:
    source = random.Random(seed_for("mqtt decoder fuzz"))
    count, violations = 0, set()
    wanted = {*Violation} - {Violation.TOPIC_LEVELS, Violation.NOTHING_ASKED}

    def is_enough() -> bool:
        return violations >= wanted

    for data in likely_inputs(random_input, source, 4000, is_enough):
        check(data)
        role, version = SETTINGS[data[0] % len(SETTINGS)]
        packets, error = run([data[2:]], role, version)
        count += len(packets)
        if error is not None:
            violations.add(error[0])
    # Inputs that never get past the fixed header would prove nothing.
    assert count > 3000
    assert is_enough(), wanted - violations


WORDS = [
    *PROPERTY_BYTES, b"\0\x01a", b"\0\x04MQTT\x04", b"\0\x04MQTT\x05", b"\0\x06MQIsdp\x03",
    b"\xc0\0", b"\x80\x01",
    b"\x30\x04\0\x01ax", b"\x32\x06\0\x01a\0\x01x", b"\x62\x02\0\x01", b"\x82\x06\0\x01\0\x01a\x01",
]  # fmt: skip
TARGET = FuzzTarget("mqtt_decoder", check, random_input, WORDS, "vespiary_codec.wire.mqtt")


def test_what_is_kept() -> None:
    for data in corpus(TARGET.name):
        check(data)


if __name__ == "__main__":
    sys.exit(main(TARGET, sys.argv))
