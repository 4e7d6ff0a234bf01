"""Stock paho clients of MQTT 3.1, 3.1.1 and 5 against a real broker: QoS, topics, sessions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from vespiary_codec.wire.mqtt import Disconnect as DisconnectPacket
from vespiary_codec.wire.mqtt import (
    Pingreq,
    Pingresp,
    Property,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
)
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import (
    ALL_QOS,
    FOR_EVER_S,
    LEVELS,
    PROTOCOLS,
    MqttClient,
    MqttClients,
)
from vespiary_testkit.mqtt_wire import MqttWire
from vespiary_testkit.waiting import WAIT_S, wait_for

MIB = 1024 * 1024
ODD_TOPICS = [
    "two words/a b",
    "with.dots/v1.2/x",
    "/",
    "//",
    "/leading",
    "trailing/",
    "empty//level",
    "ünïcode/✓/日本",
    "100%",
    "a%20b/%2A/%25",
    "a*b/*/c",
    "*",
    "colon:colon::x",
    "back\\slash",
    "a'quote\"s",
    "tab\tand\x7f",
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mqtt") / "data", PROTOCOLS) as process:
        yield process


@pytest.fixture
def make(broker: BrokerProcess) -> Iterator[MqttClients]:
    with MqttClients(broker.port()) as clients:
        yield clients


# --- QoS ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", LEVELS)
def test_a_message_comes_with_the_lower_qos_of_both_sides(make: MqttClients, version: str) -> None:
    client, root = make(make.name(), version), make.name()
    for subscribed in ALL_QOS:
        topic = f"{root}/{subscribed}"
        assert client.subscribe(topic, subscribed).codes == [subscribed]
        for published in ALL_QOS:
            assert client.publish(topic, f"{published}", published).codes == [0]
            (message,) = client.take()
            assert (message.topic, message.payload) == (topic, b"%d" % published)
            assert (message.qos, message.retain) == (min(subscribed, published), False)


@pytest.mark.engine
@pytest.mark.parametrize("version", LEVELS)
@pytest.mark.parametrize("qos", ALL_QOS)
def test_many_messages_come_once_and_in_order(make: MqttClients, version: str, qos: int) -> None:
    receiver, sender = make(make.name(), version), make(make.name(), version)
    topic = make.name()
    receiver.subscribe(topic, qos)
    sent = [sender.send(topic, f"{number}", qos) for number in range(500)]
    assert receiver.payloads(500) == [b"%d" % number for number in range(500)]
    for each in sent:
        each.wait_for_publish(WAIT_S)
    sender.publish(topic, "last", qos)
    assert receiver.payloads() == [b"last"]


@pytest.mark.parametrize("qos", ALL_QOS)
def test_a_payload_of_a_mebibyte(make: MqttClients, qos: int) -> None:
    receiver, sender, topic = make(), make(), make.name()
    receiver.subscribe(topic, qos)
    for letter in b"ab":
        sender.publish(topic, bytes([letter]) * MIB, qos)
    first, second = receiver.take(2)
    assert (first.payload, second.payload) == (b"a" * MIB, b"b" * MIB)
    assert first.qos == second.qos == qos
    sender.publish(topic, "small", qos)
    assert receiver.payloads() == [b"small"]


@pytest.mark.parametrize("qos", ALL_QOS)
def test_a_reader_that_was_slow_gets_all_in_the_end(make: MqttClients, qos: int) -> None:
    topic, sender = make.name(), make()
    with MqttWire(make.port) as slow:
        slow.connect(make.name())
        slow.send(Subscribe(1, (Subscription(topic, qos),)))
        slow.receive(Suback)
        sent = [sender.send(topic, b"%d" % number * 10_000, 1) for number in range(900)]
        for each in sent:
            each.wait_for_publish(WAIT_S)
        sizes = [len(slow.receive(Publish).payload) for _ in range(900)]  # without an answer
    assert sizes == [len(b"%d" % number) * 10_000 for number in range(900)]


def test_messages_behind_large_ones_come(make: MqttClients) -> None:
    topic, sender = make.name(), make()
    receiver = make(make.name(), expiry_s=60)
    receiver.subscribe(topic, 1)
    receiver.disconnect()
    bodies = [b"%d" % number * (200_000 if number % 3 else 10) for number in range(9)]
    for body in bodies:
        sender.publish(topic, body)
    receiver.is_clean = False
    receiver.connect()
    assert receiver.payloads(9) == bodies


def test_a_payload_of_a_mebibyte_waits_for_a_session(make: MqttClients) -> None:
    name, topic = make.name(), make.name()
    receiver = make(name, expiry_s=FOR_EVER_S)
    receiver.subscribe(topic, 2)
    receiver.disconnect()
    sender = make()
    for qos in (1, 2):
        sender.publish(topic, b"%d" % qos * MIB, qos)
    receiver.is_clean = False
    assert receiver.connect().is_present
    assert receiver.payloads(2) == [b"1" * MIB, b"2" * MIB]


@pytest.mark.parametrize("version", LEVELS)
def test_empty_and_binary_payloads(make: MqttClients, version: str) -> None:
    client, topic = make(make.name(), version), make.name()
    client.subscribe(topic, 1)
    for payload in (b"", bytes(range(256)), b"\0", b"line\n\n\0"):
        client.publish(topic, payload)
        assert client.payloads() == [payload]


# --- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ODD_TOPICS)
def test_a_topic_comes_as_it_was_published(make: MqttClients, topic: str) -> None:
    exact, wild, sender = make(), make(), make()
    exact.subscribe(topic, 1)
    wild.subscribe("#", 1)
    sender.publish(topic, "x")
    assert [exact.take()[0].topic, wild.take()[0].topic] == [topic, topic]


@pytest.mark.parametrize(
    ("topic_filter", "taken", "left"),
    [
        ("sport/+", ["sport/tennis", "sport/"], ["sport", "sport/a/b", "other/tennis"]),
        ("sport/#", ["sport", "sport/", "sport/a/b"], ["sports", "other/sport"]),
        ("+/+", ["a/b", "/", "/a"], ["a", "a/b/c"]),
        ("/+", ["/finance", "/"], ["finance", "a/finance"]),
        ("+", ["finance"], ["/finance"]),
        ("+/tennis/#", ["x/tennis", "x/tennis/y", "/tennis"], ["tennis", "x/y/tennis"]),
        ("a.b/+", ["a.b/c", "a.b/c.d"], ["a/b/c", "a.b"]),
        ("*/+", ["*/c"], ["b/c"]),
    ],
)
def test_wildcards(make: MqttClients, topic_filter: str, taken: list[str], left: list[str]) -> None:
    receiver, sender, last = make(), make(), taken[-1]
    receiver.subscribe(topic_filter, 1)
    for topic in [*left, *taken]:
        sender.publish(topic, topic)
    sender.publish(last, "last")
    assert [each.topic for each in receiver.take(len(taken) + 1)] == [*taken, last]


@pytest.mark.engine
@pytest.mark.parametrize("version", LEVELS)
def test_overlapping_subscriptions_give_one_copy_with_the_highest_qos(
    make: MqttClients, version: str
) -> None:
    client, root = make(make.name(), version), make.name()
    for topic_filter, qos in ((f"{root}/#", 0), (f"{root}/+", 2), (f"{root}/a", 1)):
        client.subscribe(topic_filter, qos)
    for topic in (f"{root}/a", f"{root}/b/c", f"{root}/b", f"{root}/a"):
        client.publish(topic, topic, 2)
    client.publish(root, "last", 2)
    got = [(each.topic.removeprefix(root), each.qos) for each in client.take(5)]
    assert sorted(got) == [("", 0), ("/a", 2), ("/a", 2), ("/b", 2), ("/b/c", 0)]


def test_one_copy_has_the_identifiers_of_all_subscriptions(make: MqttClients) -> None:
    client, root = make(), make.name()
    client.subscribe(f"{root}/#", 2, SubscriptionIdentifier=1)
    client.subscribe(f"{root}/+", 1, SubscriptionIdentifier=2)
    client.publish(f"{root}/a", "x", 2)
    client.publish(f"{root}/a/b", "x", 2)
    one, other = client.take(2)
    assert sorted(one.properties.SubscriptionIdentifier) == [1, 2]
    assert other.properties.SubscriptionIdentifier == [1]


def test_an_unsubscribed_topic_is_silent(make: MqttClients) -> None:
    client, root = make(), make.name()
    client.subscribe(f"{root}/a", 1)
    client.subscribe(f"{root}/b", 1)
    assert client.unsubscribe(f"{root}/a", f"{root}/c").codes == [0, 0x11]
    client.publish(f"{root}/a", "gone")
    client.publish(f"{root}/b", "kept")
    assert client.payloads() == [b"kept"]


def test_a_subscription_that_is_made_again_has_the_new_qos_and_no_gap(make: MqttClients) -> None:
    client, topic = make(), make.name()
    client.subscribe(topic, 0)
    client.publish(topic, "one", 2)
    assert client.subscribe(topic, 2).codes == [2]
    client.publish(topic, "two", 2)
    assert [(m.payload, m.qos) for m in client.take(2)] == [(b"one", 0), (b"two", 2)]


# --- sessions -------------------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("version", LEVELS)
def test_messages_wait_for_a_durable_session_in_order(make: MqttClients, version: str) -> None:
    name, topic = make.name(), make.name()
    of_5 = {"expiry_s": FOR_EVER_S} if version == "5" else {}
    receiver = make(name, version, is_clean=version == "5", **of_5)
    receiver.subscribe(topic, 2)
    receiver.disconnect()
    sender = make(make.name(), version)
    for number in range(60):
        sender.publish(topic, f"{number}", 1 + number % 2)
    receiver.is_clean = False
    assert receiver.connect().is_present is (version != "3.1")
    got = receiver.take(60)
    for qos in (1, 2):  # paho says a message of QoS 2 at its PUBREL
        payloads = [each.payload for each in got if each.qos == qos]
        assert payloads == [b"%d" % number for number in range(qos - 1, 60, 2)]
    assert not any(each.dup for each in got)
    sender.publish(topic, "live")
    assert receiver.payloads() == [b"live"]


@pytest.mark.parametrize("version", LEVELS)
def test_a_clean_session_leaves_nothing(make: MqttClients, version: str) -> None:
    name, topic = make.name(), make.name()
    of_5 = {"expiry_s": FOR_EVER_S} if version == "5" else {}
    first = make(name, version, is_clean=version == "5", **of_5)
    first.subscribe(topic, 1)
    first.disconnect()
    sender = make(make.name(), version)
    sender.publish(topic, "before")
    clean = make(name, version, is_clean=True)
    sender.publish(topic, "between")
    clean.subscribe(topic, 1)
    sender.publish(topic, "after")
    assert clean.payloads() == [b"after"]
    clean.disconnect()
    again = MqttClient(make.port, name, version, is_clean=False)
    assert not again.connect().is_present
    again.disconnect()


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_what_was_not_acknowledged_comes_again_under_its_id(
    make: MqttClients, version: str
) -> None:
    name, topic = make.name(), make.name()
    of_5 = {"expiry_s": FOR_EVER_S} if version == "5" else {}
    receiver = make(name, version, is_clean=version == "5", is_manual=True, **of_5)
    receiver.subscribe(topic, 1)
    sender = make()
    for number in range(8):
        sender.publish(topic, f"{number}")
    first = receiver.take(8)
    for each in first[:3]:
        receiver.own.ack(each.mid, 1)
    sender.publish(topic, "8")  # its answer comes behind the acknowledgements
    (ninth,) = receiver.take()
    receiver.cut()
    receiver.is_clean = False
    assert receiver.connect().is_present
    second = receiver.take(6)
    assert [each.payload for each in second] == [b"%d" % number for number in range(3, 9)]
    assert [each.mid for each in second] == [*(each.mid for each in first[3:]), ninth.mid]
    assert all(each.dup for each in second)


def test_another_connection_takes_the_client_id_over(make: MqttClients) -> None:
    name, topic = make.name(), make.name()
    first = make(name, expiry_s=60)
    first.subscribe(topic, 1)
    second = MqttClient(make.port, name, expiry_s=60, is_clean=False)
    assert second.connect().is_present
    ended = first.ended.get(timeout=WAIT_S)
    assert (ended.code, ended.is_told) == (ReasonCode.SESSION_TAKEN_OVER, True)
    second.publish(topic, "mine")
    assert second.payloads() == [b"mine"]
    second.disconnect()


@pytest.mark.parametrize("version", ["3.1", "3.1.1"])
def test_a_client_of_version_3_is_taken_over_without_a_word(
    make: MqttClients, version: str
) -> None:
    name = make.name()
    first = make(name, version)
    make(name, version)
    assert not first.ended.get(timeout=WAIT_S).is_told


@pytest.mark.ci
def test_a_session_ends_when_its_time_is_over(make: MqttClients) -> None:
    name, topic = make.name(), make.name()
    client = make(name, expiry_s=1)
    client.subscribe(topic, 1)
    client.cut()

    def is_gone() -> bool:
        answer = make().publish(topic, "x")
        return answer.codes == [ReasonCode.NO_MATCHING_SUBSCRIBERS]

    wait_for(is_gone, "the end of the session")
    client.is_clean = False
    assert not client.connect().is_present


def test_a_session_is_there_before_its_time_is_over(make: MqttClients) -> None:
    client = make(make.name(), expiry_s=30)
    client.cut()
    client.is_clean = False
    assert client.connect().is_present


def test_disconnect_changes_the_expiry(make: MqttClients) -> None:
    shortened = make(make.name(), expiry_s=1000)
    shortened.disconnect(SessionExpiryInterval=0)
    lengthened = make(make.name(), expiry_s=1)
    lengthened.disconnect(SessionExpiryInterval=1000)
    other = make(make.name(), expiry_s=1000)
    other.disconnect()
    for client in (shortened, lengthened, other):
        client.is_clean = False

    def is_other_gone() -> bool:
        is_present = other.connect().is_present
        if is_present:
            other.cut()
        return not is_present

    assert not shortened.connect().is_present
    other.of_connect["SessionExpiryInterval"] = 0
    assert other.connect().is_present  # and it ends with this connection
    other.disconnect()
    wait_for(is_other_gone)
    assert lengthened.connect().is_present


def test_disconnect_cannot_give_an_expiry_to_a_session_that_has_none(make: MqttClients) -> None:
    client = MqttWire(make.port)
    with client:
        client.connect(make.name())
        client.send(DisconnectPacket(ReasonCode.SUCCESS, {Property.SESSION_EXPIRY_INTERVAL: 10}))
        assert client.receive(DisconnectPacket).reason_code is ReasonCode.PROTOCOL_ERROR
        assert client.is_ended()


def test_the_broker_names_a_client_that_has_no_name(make: MqttClients) -> None:
    with MqttWire(make.port) as first, MqttWire(make.port) as second:
        names = {
            wire.connect().properties[Property.ASSIGNED_CLIENT_IDENTIFIER]
            for wire in (first, second)
        }
        assert len(names) == 2


def test_a_long_client_id_has_a_session_with_qos_2(make: MqttClients) -> None:
    name, topic = make.name() + "x" * 700, make.name()
    client = make(name, expiry_s=60)
    assert client.subscribe(topic, 2).codes == [2]
    client.cut()
    other = make(name[:-1] + "y", expiry_s=60)
    assert other.publish(topic, "kept", 2).codes == [0]
    client.is_clean = False
    assert client.connect().is_present
    assert [(each.payload, each.qos) for each in client.take()] == [(b"kept", 2)]


@pytest.mark.ci
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_session_that_is_taken_over_while_it_subscribes(
    make: MqttClients, is_clean: bool
) -> None:
    name, root = make.name(), make.name()
    said = {"properties": {Property.SESSION_EXPIRY_INTERVAL: 60}}
    # Each takes a flush of the bindings, and the second login waits for all of them.
    filters = [f"{root}/{number}" for number in range(200)]
    with MqttWire(make.port) as first, MqttWire(make.port) as second:
        first.connect(name, **said)
        first.send(Subscribe(1, tuple(Subscription(each, 1) for each in filters)))
        with suppress(TimeoutError):  # it has begun, and is not done
            first.socket.settimeout(0.05)
            first.receive_any()
        assert second.connect(name, clean_start=is_clean, **said).session_present is not is_clean
        second.send(Subscribe(2, (Subscription(f"{root}/end", 1),)))
        second.receive(Suback)
        sender = make()
        sent = [topic for topic in filters if sender.publish(topic, topic).codes == [0]]
        assert not (sent and is_clean)  # a queue that is left over would take them
        sender.publish(f"{root}/end", "end")
        got = {second.receive(Publish).topic for _ in range(len(sent) + 1)}
        assert got == {*sent, f"{root}/end"}


@pytest.mark.parametrize(
    ("connect", "answer"),
    [
        (b"\x00\x04MQTT\x04\x00\x00\x00\x00\x00", b"\x20\x02\x00\x02"),  # neither id nor clean
        (b"\x00\x06MQIsdp\x03\x02\x00\x00\x00\x00", b"\x20\x02\x00\x02"),
        (b"\x00\x04MQTT\x06\x02\x00\x00\x00\x00", b"\x20\x02\x00\x01"),
        (b"\x00\x04MQTT\x03\x02\x00\x00\x00\x00", b"\x20\x02\x00\x01"),
    ],
    ids=bytes.hex,
)
def test_a_refused_connect_is_answered(make: MqttClients, connect: bytes, answer: bytes) -> None:
    with MqttWire(make.port) as client:
        client.send_bytes(bytes([0x10, len(connect)]) + connect)
        assert client.socket.recv(100) == answer
        assert client.is_ended()


# --- keep alive -----------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_silent_client_is_dropped_and_told(make: MqttClients) -> None:
    with MqttWire(make.port) as client:
        client.connect(make.name(), keep_alive_s=1)
        assert client.receive(DisconnectPacket).reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT
        assert client.is_ended()


@pytest.mark.ci
def test_pings_keep_a_client(make: MqttClients) -> None:
    pinging = make(make.name(), keep_alive_s=4)  # it pings two seconds before it would be dropped
    topic = make.name()
    pinging.subscribe(topic)
    with MqttWire(make.port) as silent:
        silent.connect(make.name(), keep_alive_s=4)
        silent.send(Pingreq())
        silent.receive(Pingresp)
        assert silent.is_ended()  # six seconds later
    assert pinging.ended.empty()
    make().publish(topic, "there", 0)
    assert pinging.payloads() == [b"there"]


@pytest.mark.ci
def test_the_broker_may_ask_for_more_life(tmp_path: Path) -> None:
    settings = (PROTOCOLS, "acceptors.all.mqtt.server-keep-alive=2")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        for wanted_s, told_s in ((0, 2), (60, 2), (1, None)):
            with MqttWire(broker.port()) as client:
                said = client.connect(keep_alive_s=wanted_s).properties
                assert said.get(Property.SERVER_KEEP_ALIVE) == told_s
        with MqttWire(broker.port()) as client:
            client.connect(keep_alive_s=0)
            assert client.receive(DisconnectPacket).reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT
