"""MQTT packets there and back: all that can be said, in every version, cut at every byte."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vespiary_codec.wire.mqtt import (
    NEED_DATA,
    RULES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Kind,
    LocalProtocolError,
    MqttDecoder,
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
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Version,
    Will,
    encode,
)
from vespiary_codec.wire.mqtt.reason_codes import ALLOWED, CLIENT_DISCONNECTS

V5 = Version.V5
VERSIONS = st.sampled_from(Version)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
TOPICS = TEXTS.filter(lambda text: text and not set(text) & set("+#"))
FILTERS = st.lists(
    st.sampled_from(["a", "b c", "", "+", "ä", "$x"]), min_size=1, max_size=4
).map("/".join).filter(bool)  # fmt: skip
OCTETS = st.binary(max_size=40)
IDS = st.integers(1, 65_535)
OF_KIND: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.TEXT: TEXTS,
    Kind.BINARY: OCTETS,
    Kind.PAIR: st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3),
}
SIZES = {Kind.BYTE: 255, Kind.TWO_BYTES: 65_535, Kind.FOUR_BYTES: 2**32 - 1}


def value_of(name: Property, kind: PacketType) -> st.SearchStrategy[Any]:
    rule = RULES[name]
    if name is Property.RESPONSE_TOPIC:
        return TOPICS
    if rule.kind in OF_KIND:
        return OF_KIND[rule.kind]
    numbers = st.integers(rule.least, rule.most or SIZES[rule.kind])
    if name is Property.SUBSCRIPTION_IDENTIFIER:
        most = 3 if kind is PacketType.PUBLISH else 1
        return st.lists(numbers, min_size=1, max_size=most)
    return numbers


def properties(
    kind: PacketType, version: Version, *, of_will: bool = False, without: tuple[Property, ...] = ()
) -> st.SearchStrategy[dict[Property, Any]]:
    """Any properties that a packet may have."""
    if version is not V5:
        return st.just({})
    names = [
        name
        for name, rule in RULES.items()
        if (rule.in_will if of_will else kind in rule.packets) and name not in without
    ]
    if not names:
        return st.just({})
    chosen = st.fixed_dictionaries({}, optional={name: value_of(name, kind) for name in names})
    method, data = Property.AUTHENTICATION_METHOD, Property.AUTHENTICATION_DATA
    return chosen.filter(lambda found: data not in found or method in found)


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    version = draw(VERSIONS)
    will = None
    if draw(st.booleans()):
        of_will = draw(properties(PacketType.CONNECT, version, of_will=True))
        will = Will(
            draw(TOPICS), draw(OCTETS), draw(st.integers(0, 2)), draw(st.booleans()), of_will
        )
    user = draw(st.none() | TEXTS)
    password = draw(st.none() | OCTETS) if user is not None or version is V5 else None
    clean = draw(st.booleans())
    client_id = draw(TEXTS.filter(bool) if version is Version.V3_1 or not clean else TEXTS)
    own = draw(properties(PacketType.CONNECT, version))
    keep_alive_s = draw(st.integers(0, 65_535))
    is_bridge = version is not V5 and draw(st.booleans())
    return Connect(
        version, client_id, clean, keep_alive_s, will, user, password, own, is_bridge=is_bridge
    )


@st.composite
def publishes(draw: st.DrawFn, version: Version, role: str) -> Publish:
    hidden = (Property.SUBSCRIPTION_IDENTIFIER,) if role == "server" else ()
    own = draw(properties(PacketType.PUBLISH, version, without=hidden))
    names = TOPICS | st.just("") if Property.TOPIC_ALIAS in own else TOPICS
    qos = draw(st.integers(0, 2))
    return Publish(
        draw(names), draw(OCTETS), qos, draw(st.booleans()), bool(qos) and draw(st.booleans()),
        draw(IDS) if qos else 0, own,
    )  # fmt: skip


def answers(version: Version) -> st.SearchStrategy[Packet]:
    kinds = {
        Puback: PacketType.PUBACK, Pubrec: PacketType.PUBREC, Pubrel: PacketType.PUBREL,
        Pubcomp: PacketType.PUBCOMP,
    }  # fmt: skip
    if version is not V5:
        return st.one_of([st.builds(made, IDS) for made in kinds])
    return st.one_of(
        [
            st.builds(made, IDS, st.sampled_from(sorted(ALLOWED[kind])), properties(kind, V5))
            for made, kind in kinds.items()
        ]
    )


def subscriptions(version: Version) -> st.SearchStrategy[Subscription]:
    qos = st.integers(0, 2)
    if version is not V5:
        return st.builds(Subscription, FILTERS, qos)
    flag = st.booleans()
    alone = st.builds(Subscription, FILTERS, qos, flag, flag, st.integers(0, 2))
    shared = st.builds(Subscription, FILTERS.map("$share/g/{}".format), qos, st.just(False), flag)
    return alone | shared


def of_clients(version: Version) -> st.SearchStrategy[Packet]:
    several = st.lists(subscriptions(version), min_size=1, max_size=4).map(tuple)
    filters = st.lists(FILTERS, min_size=1, max_size=4).map(tuple)
    found = [
        publishes(version, "server"),
        answers(version),
        st.builds(Subscribe, IDS, several, properties(PacketType.SUBSCRIBE, version)),
        st.builds(Unsubscribe, IDS, filters, properties(PacketType.UNSUBSCRIBE, version)),
        st.just(Pingreq()),
        st.just(Disconnect()),
    ]
    return st.one_of(found + endings(version, CLIENT_DISCONNECTS))


def of_servers(version: Version) -> st.SearchStrategy[Packet]:
    is_5 = version is V5
    codes = sorted(ALLOWED[PacketType.SUBACK]) if is_5 else [0, 1, 2, 0x80]
    outcomes = st.lists(st.sampled_from([*map(ReasonCode, codes)]), min_size=1, max_size=4)
    ended = st.lists(
        st.sampled_from(sorted(ALLOWED[PacketType.UNSUBACK])), min_size=1, max_size=4
    ).map(tuple)  # fmt: skip
    refused = sorted(ALLOWED[PacketType.CONNACK]) if is_5 else [0, 0x84, 0x85, 0x86, 0x87, 0x88]
    of_connack = properties(PacketType.CONNACK, version)
    found = [
        publishes(version, "client"),
        answers(version),
        st.builds(
            Connack, st.sampled_from([*map(ReasonCode, refused)]), st.just(False), of_connack
        ),
        st.builds(Suback, IDS, outcomes.map(tuple), properties(PacketType.SUBACK, version)),
        st.builds(
            Unsuback, IDS, ended if is_5 else st.just(()), properties(PacketType.UNSUBACK, version)
        ),
        st.just(Pingresp()),
    ]
    return st.one_of(found + endings(version, ALLOWED[PacketType.DISCONNECT]))


def endings(version: Version, codes: frozenset[ReasonCode]) -> list[st.SearchStrategy[Packet]]:
    if version is not V5:
        return []
    of_auth = properties(PacketType.AUTH, V5).filter(
        lambda found: Property.AUTHENTICATION_METHOD in found
    )
    steps = st.sampled_from(sorted(ALLOWED[PacketType.AUTH]))
    return [
        st.builds(
            Disconnect, st.sampled_from(sorted(codes)), properties(PacketType.DISCONNECT, V5)
        ),
        st.just(Auth()),
        st.builds(Auth, steps, of_auth),
    ]


def packets_of(decoder: MqttDecoder, data: bytes, *cuts: int) -> list[Packet]:
    found: list[Packet] = []
    edges = [0, *cuts, len(data)]
    for begin, end in itertools.pairwise(edges):
        decoder.feed(data[begin:end])
        while (packet := decoder.next_packet()) is not NEED_DATA:
            found.append(packet)
    return found


@given(connects())
def test_a_login(packet: Connect) -> None:
    data = encode(packet, V5)
    decoder = MqttDecoder()
    assert packets_of(decoder, data) == [packet]
    assert decoder.version is packet.version
    for cut in range(1, len(data)):
        assert packets_of(MqttDecoder(), data, cut) == [packet]


@settings(deadline=None)
@given(data=st.data(), version=VERSIONS, role=st.sampled_from(["server", "client"]))
def test_a_conversation(data: Any, version: Version, role: Any) -> None:
    one = (of_clients if role == "server" else of_servers)(version)
    packets = data.draw(st.lists(one, min_size=1, max_size=4))
    octets = b"".join(encode(packet, version) for packet in packets)
    assert packets_of(MqttDecoder(role=role, version=version), octets) == packets
    octet_by_octet = range(1, len(octets))
    assert packets_of(MqttDecoder(role=role, version=version), octets, *octet_by_octet) == packets


def test_what_mqtt_3_cannot_say_is_our_own_error() -> None:
    unsayable = [
        Puback(1, ReasonCode.QUOTA_EXCEEDED),
        Disconnect(ReasonCode.SERVER_SHUTTING_DOWN),
        Publish("a", properties={Property.CONTENT_TYPE: "text/plain"}),
        Subscribe(1, (Subscription("a", no_local=True),)),
        Auth(),
        Publish("a" * 65_536),
        Publish("a\0b"),
        Publish("\ud800"),
        Publish("a", qos=1),
        Publish("a", qos=1, packet_id=65_536),
        Connect(Version.V3_1_1, "c", properties={Property.RECEIVE_MAXIMUM: 7}),
        Connect(Version.V3_1_1, "c", keep_alive_s=-1),
    ]
    for packet in unsayable:
        with pytest.raises(LocalProtocolError):
            encode(packet, Version.V3_1_1)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (ReasonCode.SUCCESS, 0),
        (ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, 1),
        (ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, 2),
        (ReasonCode.QUOTA_EXCEEDED, 3),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4),
        (ReasonCode.NOT_AUTHORIZED, 5),
    ],
)
def test_outcomes_that_mqtt_3_has_fewer_words_for(code: ReasonCode, said: int) -> None:
    assert encode(Connack(code), Version.V3_1_1) == bytes([0x20, 2, 0, said])
    suback = Suback(1, (ReasonCode.GRANTED_QOS_1, ReasonCode.NOT_AUTHORIZED))
    assert encode(suback, Version.V3_1_1) == bytes([0x90, 4, 0, 1, 1, 0x80])


def test_mqtt_3_1_knows_no_present_session() -> None:
    assert encode(Connack(session_present=True), Version.V3_1) == bytes([0x20, 2, 0, 0])
    assert encode(Connack(session_present=True), Version.V3_1_1) == bytes([0x20, 2, 1, 0])


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Connect(V5, "c", user_name="u", password=b"secret"))
