"""What is new in MQTT 5, with stock paho clients: properties, limits both ways, refusals."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.engine.users import format_users, make_user
from vespiary_codec.wire.mqtt import Disconnect as DisconnectPacket
from vespiary_codec.wire.mqtt import (
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
    Version,
)
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import (
    ALL_QOS,
    FOR_EVER_S,
    PROTOCOLS,
    MqttClient,
    MqttClients,
    told,
)
from vespiary_testkit.mqtt_wire import MqttWire
from vespiary_testkit.waiting import wait_for

MQTT = "acceptors.all.mqtt."


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mqtt") / "data", PROTOCOLS) as process:
        yield process


@pytest.fixture
def make(broker: BrokerProcess) -> Iterator[MqttClients]:
    with MqttClients(broker.port()) as clients:
        yield clients


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = (
        PROTOCOLS,
        f"{MQTT}receive-maximum=5",
        f"{MQTT}maximum-packet-size=4096",
        f"{MQTT}max-subscriptions=3",
        f"{MQTT}session-expiry-interval=60",
        f"{MQTT}topic-alias-maximum=2",
        "address-settings.full.max-size-bytes=8KiB",
        "address-settings.full.address-full-policy=FAIL",
    )
    with BrokerProcess(tmp_path_factory.mktemp("strict") / "data", *settings) as process:
        yield process


# --- properties -----------------------------------------------------------------------------------

PROPERTIES: list[dict[str, Any]] = [
    {"UserProperty": [("b", "1"), ("a", "2"), ("b", "3")]},
    {"UserProperty": [("colon:name", "line\nend\\ : value"), ("ü", "✓"), ("empty", "")]},
    {"UserProperty": [("", "no name"), ("destination", "x"), ("persistent", "maybe")]},
    {"UserProperty": [("expires", "1"), ("priority", "9"), ("mqtt-qos", "0"), ("retained", "x")]},
    {"UserProperty": [("user-property.x", "1"), ("JMSXGroupID", "g"), ("_AMQ_DUPL_ID", "d")]},
    {"UserProperty": [("message-id", "1"), ("content-length", "3"), ("receipt", "r")]},
    {"UserProperty": [("reply-to", "1"), ("type", "t"), ("correlation-id", "c"), ("ack", "a")]},
    {"UserProperty": [("destination-type", "x"), ("JMSExpiration", "0"), ("login", "l")]},
    {"ContentType": "application/json; charset=utf-8"},
    {"ContentType": ""},
    {"ResponseTopic": "answers/with.dots and blanks/ü"},
    {"CorrelationData": b"text-1"},
    {"CorrelationData": b""},
    {"CorrelationData": bytes(range(256))},
    {"CorrelationData": b"with\x00nul"},
    {"CorrelationData": "ünïcode : \n \\".encode()},
    {"PayloadFormatIndicator": 0},
    {"PayloadFormatIndicator": 1},
]


@pytest.mark.parametrize("said", PROPERTIES, ids=str)
def test_properties_come_as_they_were_sent(make: MqttClients, said: dict[str, Any]) -> None:
    receiver, sender, topic = make(), make(), make.name()
    receiver.subscribe(topic, 2)
    for qos in ALL_QOS:
        sender.publish(topic, "x", qos, **said)
        assert told(receiver.take()[0]) == said


def test_a_client_that_is_left_has_no_socket_open(broker: BrokerProcess) -> None:
    """Else paho's finalizers close them in any order, and pytest takes that for an error."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for leave in (MqttClient.disconnect, MqttClient.cut):
        with MqttClient(broker.port()) as client:
            client.publish("left", "x", 1)
            leave(client)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_request_and_response(make: MqttClients) -> None:
    service, client, root = make(), make(), make.name()
    service.subscribe(f"{root}/square", 1)
    client.subscribe(f"{root}/answers/1", 1)
    for number in range(10):
        client.publish(
            f"{root}/square", f"{number}",
            ResponseTopic=f"{root}/answers/1", CorrelationData=b"\xff%d" % number,
        )  # fmt: skip
        (request,) = service.take()
        said = told(request)
        service.publish(
            said["ResponseTopic"], f"{int(request.payload) ** 2}",
            CorrelationData=said["CorrelationData"],
        )  # fmt: skip
        (answer,) = client.take()
        assert int(answer.payload) == number * number
        assert told(answer)["CorrelationData"] == b"\xff%d" % number


def test_subscription_identifiers(make: MqttClients) -> None:
    client, root = make(), make.name()
    client.subscribe(f"{root}/a", 1, SubscriptionIdentifier=1)
    client.subscribe(f"{root}/#", 1, SubscriptionIdentifier=268_435_455)
    client.subscribe(f"{root}/b", 1)
    client.publish(f"{root}/a", "x")
    (both,) = client.take()
    assert sorted(told(both)["SubscriptionIdentifier"]) == [1, 268_435_455]
    client.subscribe(f"{root}/a", 1, SubscriptionIdentifier=5)  # in place of 1
    client.unsubscribe(f"{root}/#")
    client.publish(f"{root}/a", "x")
    assert told(client.take()[0])["SubscriptionIdentifier"] == [5]
    client.publish(f"{root}/b", "x")
    assert "SubscriptionIdentifier" not in told(client.take()[0])


def test_no_local(make: MqttClients) -> None:
    client, other, topic = make(), make(), make.name()
    client.subscribe(topic, 1, no_local=True)
    other.subscribe(topic, 1)
    client.publish(topic, "own")
    other.publish(topic, "other")
    assert client.payloads() == [b"other"]
    assert other.payloads(2) == [b"own", b"other"]
    client.subscribe(topic, 1, no_local=False)
    client.publish(topic, "own again")
    assert client.payloads() == [b"own again"]


def test_no_local_of_a_session_that_was_away(make: MqttClients) -> None:
    topic = make.name()
    client = make(make.name(), expiry_s=FOR_EVER_S)
    client.subscribe(topic, 1, no_local=True)
    client.cut()
    make().publish(topic, "other")
    client.is_clean = False
    client.connect()
    client.publish(topic, "own")
    make().publish(topic, "other again")
    assert client.payloads(2) == [b"other", b"other again"]


# --- expiry ---------------------------------------------------------------------------------------


@pytest.mark.ci
def test_what_is_left_of_the_expiry_interval_is_told(make: MqttClients) -> None:
    topic, sender = make.name(), make()
    live = make()
    live.subscribe(topic, 1)
    away = make(make.name(), expiry_s=FOR_EVER_S)
    away.subscribe(f"{topic}/#", 1)  # this topic, and those below it
    away.disconnect()
    sent_s = time.monotonic()
    sender.publish(f"{topic}/short", "short", MessageExpiryInterval=1)
    sender.publish(topic, "long", MessageExpiryInterval=100)
    sender.publish(topic, "for ever")
    long, for_ever = (told(each).get("MessageExpiryInterval") for each in live.take(2))
    published_s = time.monotonic()
    assert 100 - (published_s - sent_s) - 1 <= long <= 100
    assert for_ever is None
    wait_for(lambda: time.monotonic() > published_s + 2)
    away.is_clean = False
    away.connect()
    first, second = away.take(2)
    assert (first.payload, second.payload) == (b"long", b"for ever")
    passed_s = time.monotonic() - sent_s
    assert 100 - passed_s - 1 <= told(first)["MessageExpiryInterval"] <= 98
    assert "MessageExpiryInterval" not in told(second)


def test_a_message_with_an_interval_of_0_comes_to_who_is_there(make: MqttClients) -> None:
    client, topic = make(), make.name()
    client.subscribe(topic, 1)
    client.publish(topic, "at once", MessageExpiryInterval=0)
    client.publish(topic, "later")
    assert client.payloads()[0] in (b"at once", b"later")  # the standard leaves it open


# --- topic aliases --------------------------------------------------------------------------------


def test_aliases_of_a_client(make: MqttClients) -> None:
    receiver, sender, root = make(), make(), make.name()
    receiver.subscribe(f"{root}/#", 1)
    sender.publish(f"{root}/a", "1", TopicAlias=1)
    sender.publish("", "2", TopicAlias=1)
    sender.publish(f"{root}/b", "3", TopicAlias=1)
    sender.publish("", "4", 2, TopicAlias=1)
    topics = [(each.topic.removeprefix(root), each.payload) for each in receiver.take(4)]
    assert topics == [("/a", b"1"), ("/a", b"2"), ("/b", b"3"), ("/b", b"4")]


@pytest.mark.parametrize(
    ("topic", "alias", "code"),
    [
        ("", 1, ReasonCode.PROTOCOL_ERROR),
        ("a", 3, ReasonCode.TOPIC_ALIAS_INVALID),
        ("a", 65_535, ReasonCode.TOPIC_ALIAS_INVALID),
    ],
)
def test_aliases_out_of_bounds(
    strict: BrokerProcess, topic: str, alias: int, code: ReasonCode
) -> None:
    with MqttWire(strict.port()) as client:
        assert client.connect().properties[Property.TOPIC_ALIAS_MAXIMUM] == 2
        client.send(Publish(topic, b"x", 1, packet_id=1, properties={Property.TOPIC_ALIAS: alias}))
        assert client.receive(DisconnectPacket).reason_code is code


def test_aliases_towards_a_client(make: MqttClients) -> None:
    root, sender = make.name(), make()
    with MqttWire(make.port) as client:
        client.connect(properties={Property.TOPIC_ALIAS_MAXIMUM: 2})
        client.send(Subscribe(1, (Subscription(f"{root}/#", 0),)))
        client.receive(Suback)
        known: dict[int, str] = {}
        for name in "abcabcaab":
            sender.publish(f"{root}/{name}", name)
            packet = client.receive(Publish)
            alias = packet.properties.get(Property.TOPIC_ALIAS)
            if alias is not None:
                assert isinstance(alias, int)
                assert 1 <= alias <= 2
                packet.topic = known.setdefault(alias, packet.topic)
            assert packet.topic == f"{root}/{name}"
        assert set(known.values()) == {f"{root}/a", f"{root}/b"}


# --- limits both ways -----------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_gets_no_more_than_its_receive_maximum(make: MqttClients, qos: int) -> None:
    topic, sender = make.name(), make()
    with MqttWire(make.port) as client:
        client.connect(properties={Property.RECEIVE_MAXIMUM: 3})
        client.send(Subscribe(1, (Subscription(topic, qos),)))
        client.receive(Suback)
        for number in range(20):
            sender.publish(topic, f"{number}", 2)
        got = [client.receive(Publish) for _ in range(3)]
        client.send(Pingreq())
        client.receive(Pingresp)  # and no fourth message before it
        for number in range(3, 20):
            done = got[number - 3].packet_id
            client.send(Puback(done) if qos == 1 else Pubrec(done))
            if qos == 2:
                client.receive(Pubrel)
                client.send(Pubcomp(done))
            got.append(client.receive(Publish))
        assert [each.payload for each in got] == [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("qos", [1, 2])
def test_more_than_the_receive_maximum_is_an_offence(strict: BrokerProcess, qos: int) -> None:
    with MqttWire(strict.port()) as keeper:  # so that each answer waits for the disk
        keeper.connect("keeper", properties={Property.SESSION_EXPIRY_INTERVAL: 60})
        keeper.send(Subscribe(1, (Subscription("kept", 1),)))
        keeper.receive(Suback)
    with MqttWire(strict.port()) as client:
        assert client.connect().properties[Property.RECEIVE_MAXIMUM] == 5
        packets = [Publish("kept", b"x", qos, packet_id=number) for number in range(1, 200)]
        client.send(*packets)
        packet = client.receive_any()
        while isinstance(packet, Puback | Pubrec):
            packet = client.receive_any()
        assert isinstance(packet, DisconnectPacket)
        assert packet.reason_code is ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
        assert "at most 5" in str(packet.properties[Property.REASON_STRING])
        assert client.is_ended()


@pytest.mark.parametrize(
    "topics", [["nobody"], ["kept"], ["kept", "nobody"], ["kept", "$SYS/refused"]], ids=str
)
def test_a_full_window_is_no_offence(make: MqttClients, topics: list[str]) -> None:
    make("keeper", expiry_s=FOR_EVER_S).subscribe("kept", 1)
    with MqttWire(make.port) as client:
        most = client.connect().properties[Property.RECEIVE_MAXIMUM]
        assert isinstance(most, int)
        names = islice(cycle(topics), most)
        client.send(*(Publish(name, b"x", 1, packet_id=n) for n, name in enumerate(names, 1)))
        answers = [client.receive(Puback).packet_id for _ in range(most)]
        assert answers == list(range(1, most + 1))


def test_a_client_gets_no_packet_that_is_too_large_for_it(make: MqttClients) -> None:
    topic, sender = make.name(), make()
    client = make(MaximumPacketSize=1000, ReceiveMaximum=2)
    client.subscribe(topic, 2)
    for number in range(30):
        qos = number % 3
        sender.publish(topic, b"x" * 2000, qos)
        sender.publish(topic, b"L" * 300_000, qos)  # one of those in files
        sender.publish(topic, f"{number}", qos)
    sender.publish(topic, b"y" * 900, 2)
    assert sorted(client.payloads(31)) == sorted([*(b"%d" % n for n in range(30)), b"y" * 900])


def test_a_packet_that_is_too_large_for_the_broker(strict: BrokerProcess) -> None:
    with MqttWire(strict.port()) as client:
        assert client.connect().properties[Property.MAXIMUM_PACKET_SIZE] == 4096
        size = len("..") + 4096 - 3 - 2 - 1 - 2 - 1  # header, topic, packet id, properties
        client.send(Publish("a", b"x" * (4096 - 3 - 3 - 2 - 1), 1, packet_id=1))
        assert client.receive(Puback).packet_id == 1
        client.send(Publish("a", b"x" * size + b"too much", 1, packet_id=2))
        assert client.receive(DisconnectPacket).reason_code is ReasonCode.PACKET_TOO_LARGE
        assert client.is_ended()


def test_a_session_gets_no_longer_expiry_than_allowed(strict: BrokerProcess) -> None:
    expiry = Property.SESSION_EXPIRY_INTERVAL
    with MqttWire(strict.port()) as client:
        assert client.connect(properties={expiry: 1000}).properties[expiry] == 60
    with MqttWire(strict.port()) as client:
        assert expiry not in client.connect(properties={expiry: 50}).properties


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("topic", ["$SYS/x", "$SYS/broker/version", "$mqtt/retained"])
def test_topics_of_the_broker_are_refused(make: MqttClients, topic: str, qos: int) -> None:
    kind = Puback if qos == 1 else Pubrec
    with MqttWire(make.port) as client:
        client.connect()
        client.send(Publish(topic, b"x", qos, packet_id=1))
        answer = client.receive(kind)
        assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
        assert topic in str(answer.properties[Property.REASON_STRING])
        client.send(Publish("good", b"x", qos, packet_id=1))  # the id is free again
        assert not client.receive(kind).reason_code.is_failure
    with MqttWire(make.port) as client:
        client.connect()
        client.send(Publish(topic, b"x"))  # it is dropped, and the client goes on
        client.send(Publish("good", b"x", qos, packet_id=1))
        assert not client.receive(kind).reason_code.is_failure
    with MqttWire(make.port, Version.V3_1_1) as client:
        client.connect()
        client.send(Publish(topic, b"x", qos, packet_id=1))
        assert client.receive(kind).packet_id == 1, "it is dropped: MQTT 3 cannot say why"


def test_a_full_address_refuses_with_a_reason(strict: BrokerProcess) -> None:
    with MqttClients(strict.port()) as make:
        away = make("away", expiry_s=50)
        away.subscribe("full", 1)
        away.disconnect()
        with MqttWire(strict.port()) as client:
            client.connect()
            packet_id, codes = 0, set()
            while ReasonCode.QUOTA_EXCEEDED not in codes:
                packet_id += 1
                assert packet_id < 1000
                client.send(Publish("full", b"x" * 500, 1, packet_id=packet_id))
                answer = client.receive(Puback)
                codes.add(answer.reason_code)
            assert "full" in str(answer.properties[Property.REASON_STRING])
        away.is_clean = False
        away.connect()
        away.take(packet_id - 1)
        other = make()
        wait_for(lambda: other.publish("full", "again").codes == [0], "room")
        assert away.payloads() == [b"again"]


def test_too_many_subscriptions(strict: BrokerProcess) -> None:
    with MqttWire(strict.port()) as client:
        client.connect()
        client.send(Subscribe(1, tuple(Subscription(f"s/{n}", 1) for n in range(5))))
        answer = client.receive(Suback)
        assert answer.reason_codes == (1, 1, 1, 0x97, 0x97)
        assert "at most 3" in str(answer.properties[Property.REASON_STRING])
        client.send(Subscribe(2, (Subscription("s/0", 2),)))
        assert client.receive(Suback).reason_codes == (2,)
    with MqttWire(strict.port(), Version.V3_1_1) as client:
        client.connect()
        client.send(Subscribe(1, tuple(Subscription(f"s/{n}", 1) for n in range(4))))
        assert client.receive(Suback).reason_codes == (1, 1, 1, 0x80)


def test_who_wants_no_reasons_gets_none(strict: BrokerProcess) -> None:
    with MqttWire(strict.port()) as client:
        client.connect(properties={Property.REQUEST_PROBLEM_INFORMATION: 0})
        client.send(Publish("$SYS/x", b"x", 1, packet_id=1))
        assert client.receive(Puback).properties == {}
        client.send(Subscribe(1, tuple(Subscription(f"s/{n}", 1) for n in range(4))))
        assert client.receive(Suback).properties == {}
    with MqttWire(strict.port()) as client:
        client.connect(properties={Property.MAXIMUM_PACKET_SIZE: 40})
        client.send(Publish("$SYS/x", b"x", 1, packet_id=1))
        assert client.receive(Puback).properties == {}  # it does not fit
        client.send(Subscribe(1, tuple(Subscription(f"s/{n}", 1) for n in range(4))))
        assert client.receive(Suback).properties == {}


def test_passwords(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    users = data / "users"
    users.write_text(
        format_users([make_user("alice", "s3cret-one"), make_user("bob", "s3cret-two")])
    )
    users.chmod(0o600)
    with BrokerProcess(data, PROTOCOLS) as broker, MqttClients(broker.port()) as make:
        client = make("c1", user=("alice", "s3cret-one"), expiry_s=100)
        client.subscribe("a", 1)
        client.publish("a", "x")
        assert client.payloads() == [b"x"]
        for name, password in (("alice", b"s3cret-three"), ("nobody", b"x"), (None, None)):
            for version, code in ((Version.V5, 0x86), (Version.V3_1_1, 0x86), (Version.V3_1, 0x86)):
                with MqttWire(broker.port(), version) as wire:
                    answer = wire.connect("x", user_name=name, password=password)
                    assert answer.reason_code == code
                    if version is Version.V5:
                        assert answer.properties[Property.REASON_STRING]
                    assert wire.is_ended()
            make("c2", user=("bob", "s3cret-two")).disconnect()
        with MqttWire(broker.port()) as wire:  # another user does not get the session
            answer = wire.connect("c1", user_name="bob", password=b"s3cret-two")
            assert answer.reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert client.ended.empty()
        assert "s3cret" not in broker.log_text()


def test_unknown_authentication_methods_are_refused(make: MqttClients) -> None:
    with MqttWire(make.port) as client:
        answer = client.connect(properties={Property.AUTHENTICATION_METHOD: "x"})
        assert answer.reason_code is ReasonCode.BAD_AUTHENTICATION_METHOD
        assert client.is_ended()
