"""Retained messages and wills with stock paho clients. Over restarts: test_mqtt_restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes

from vespiary_codec.wire.mqtt import Connect, ReasonCode, Version, Will
from vespiary_codec.wire.mqtt import Disconnect as DisconnectPacket
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import (
    ALL_QOS,
    LEVELS,
    PROTOCOLS,
    MqttClient,
    MqttClients,
    properties,
    told,
)
from vespiary_testkit.mqtt_wire import MqttWire
from vespiary_testkit.waiting import wait_for


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mqtt") / "data", PROTOCOLS) as process:
        yield process


@pytest.fixture
def make(broker: BrokerProcess) -> Iterator[MqttClients]:
    with MqttClients(broker.port()) as clients:
        yield clients


def retained(make: MqttClients, topic_filter: str, **options: Any) -> dict[str, bytes]:
    """Return what a new subscription is sent at once."""
    client, found = make(), {}
    client.subscribe(topic_filter, 2, **options)
    end = topic_filter.replace("+", "end").replace("#", "end")
    make().publish(end, "end of it", 2)
    while (message := client.take()[0]).payload != b"end of it":
        assert message.retain
        found[message.topic] = message.payload
    return found


# --- retained messages ----------------------------------------------------------------------------


@pytest.mark.engine
@pytest.mark.parametrize("version", LEVELS)
@pytest.mark.parametrize("qos", ALL_QOS)
def test_the_latest_retained_message_comes_to_new_subscribers(
    make: MqttClients, version: str, qos: int
) -> None:
    sender, topic = make(make.name(), version), make.name()
    for text in ("first", "second"):
        sender.publish(topic, text, qos, retain=True)
    sender.settle()
    late = make(make.name(), version)
    late.subscribe(topic, 2)
    (message,) = late.take()
    assert (message.payload, message.retain, message.qos) == (b"second", True, qos)
    sender.publish(topic, "third", qos, retain=True)
    (message,) = late.take()
    assert (message.payload, message.retain) == (b"third", False)  # it was subscribed before
    sender.publish(topic, "not kept", qos)
    assert late.payloads() == [b"not kept"]
    sender.settle()
    assert retained(make, topic) == {topic: b"third"}


@pytest.mark.parametrize("qos", ALL_QOS)
def test_an_empty_payload_removes_what_is_retained(make: MqttClients, qos: int) -> None:
    sender, topic = make(), make.name()
    sender.publish(topic, "kept", qos, retain=True)
    sender.settle()
    assert retained(make, topic) == {topic: b"kept"}
    watcher = make()
    watcher.subscribe(topic, 2)
    watcher.take()
    sender.publish(topic, "", qos, retain=True)
    assert watcher.payloads() == [b""]  # it is a message as well
    assert retained(make, topic) == {}


def test_wildcards_find_what_is_retained(make: MqttClients) -> None:
    sender, root = make(), make.name()
    topics = [root, f"{root}/", f"{root}/a", f"{root}/a/b", f"{root}/a.b/c d", f"{root}/%2A/*"]
    for topic in topics:
        sender.publish(topic, topic, retain=True)
    assert set(retained(make, f"{root}/#")) == set(topics)
    assert set(retained(make, f"{root}/+")) == {f"{root}/", f"{root}/a"}
    assert set(retained(make, f"{root}/+/b")) == {f"{root}/a/b"}
    assert set(retained(make, f"{root}/*/+")) == set()


def test_retain_handling(make: MqttClients) -> None:
    sender, topic = make(), make.name()
    sender.publish(topic, "kept", retain=True)
    client = make()

    def got(retain_handling: int) -> list[bytes]:
        client.subscribe(topic, 1, retain_handling=retain_handling)
        sender.publish(topic, "end")
        payloads = client.payloads()
        return payloads if payloads == [b"end"] else payloads + client.payloads()

    assert got(2) == [b"end"]
    assert got(1) == [b"end"]  # it is subscribed
    assert got(0) == [b"kept", b"end"]
    client.unsubscribe(topic)
    assert got(1) == [b"kept", b"end"]
    client.unsubscribe(topic)
    assert got(2) == [b"end"]


def test_retain_as_published(make: MqttClients) -> None:
    sender, topic = make(), make.name()
    plain, faithful = make(), make()
    plain.subscribe(topic, 1)
    faithful.subscribe(topic, 1, as_published=True)
    sender.publish(topic, "kept", retain=True)
    sender.publish(topic, "not kept")
    assert [each.retain for each in plain.take(2)] == [False, False]
    assert [each.retain for each in faithful.take(2)] == [True, False]


def test_a_shared_subscription_is_sent_nothing_that_is_retained(make: MqttClients) -> None:
    sender, topic = make(), make.name()
    sender.publish(topic, "kept", retain=True)
    client = make()
    client.subscribe(f"$share/workers/{topic}", 1)
    sender.publish(topic, "live")
    assert client.payloads() == [b"live"]


def test_a_retained_message_keeps_its_properties_and_expires(make: MqttClients) -> None:
    sender, topic = make(), make.name()
    said = {"ContentType": "a/b", "UserProperty": [("k", "v")], "ResponseTopic": "x/y"}
    sender.publish(topic, "kept", retain=True, MessageExpiryInterval=9000, **said)
    sender.publish(f"{topic}/short", "short", retain=True, MessageExpiryInterval=1)
    client = make()
    client.subscribe(topic, 1)
    got = told(client.take()[0])
    assert {name: got[name] for name in said} == said
    assert 0 < got["MessageExpiryInterval"] <= 9000
    wait_for(lambda: not retained(make, f"{topic}/short"), "the end of the retained message")


@pytest.mark.ci
def test_thousands_of_retained_topics(make: MqttClients) -> None:
    sender, root = make(), make.name()
    sent = [sender.send(f"{root}/{n % 100}/{n}", f"{n}", 1, retain=True) for n in range(3000)]
    for each in sent:
        each.wait_for_publish(30)
    client = make()
    client.subscribe(f"{root}/+/+", 1)
    assert {message.payload for message in client.take(3000)} == {b"%d" % n for n in range(3000)}
    client.unsubscribe(f"{root}/+/+")
    assert retained(make, f"{root}/7/107") == {f"{root}/7/107": b"107"}


# --- wills ----------------------------------------------------------------------------------------


def with_will(
    make: MqttClients, topic: str, version: str = "5", *, qos: int = 1, retain: bool = False,
    delay_s: int = 0, **options: Any,
) -> MqttClient:  # fmt: skip
    """Return a connected client that has a will."""
    client = MqttClient(make.port, make.name(), version, **options)
    of_5 = {"WillDelayInterval": delay_s} if delay_s else {}
    client.own.will_set(topic, "gone", qos, retain, properties(PacketTypes.WILLMESSAGE, of_5))
    client.connect()
    return client


@pytest.mark.parametrize("version", LEVELS)
@pytest.mark.parametrize("qos", ALL_QOS)
def test_a_client_that_is_cut_off_leaves_its_will(
    make: MqttClients, version: str, qos: int
) -> None:
    watcher, topic = make(make.name(), version), make.name()
    watcher.subscribe(topic, 2)
    with_will(make, topic, version, qos=qos).cut()
    (message,) = watcher.take()
    assert (message.payload, message.qos, message.retain) == (b"gone", qos, False)


@pytest.mark.parametrize("version", LEVELS)
def test_an_orderly_end_leaves_no_will(make: MqttClients, version: str) -> None:
    watcher, topic = make(make.name(), version), make.name()
    watcher.subscribe(topic, 1)
    with_will(make, topic, version).disconnect()
    make().publish(topic, "nothing else")
    assert watcher.payloads() == [b"nothing else"]


def test_a_client_may_ask_for_its_will(make: MqttClients) -> None:
    watcher, topic = make(), make.name()
    watcher.subscribe(topic, 1)
    with_will(make, topic).disconnect(ReasonCode.DISCONNECT_WITH_WILL)
    assert watcher.payloads() == [b"gone"]


def test_a_retained_will(make: MqttClients) -> None:
    watcher, topic = make(), make.name()
    watcher.subscribe(topic, 1)
    with_will(make, topic, retain=True).cut()
    assert watcher.payloads() == [b"gone"]
    assert retained(make, topic) == {topic: b"gone"}


def test_a_silent_client_leaves_its_will(make: MqttClients) -> None:
    watcher, topic = make(), make.name()
    watcher.subscribe(topic, 1)
    with MqttWire(make.port) as client:
        client.connect(make.name(), keep_alive_s=1, will=Will(topic, b"gone", 1))
        assert watcher.payloads() == [b"gone"]
        assert client.receive(DisconnectPacket).reason_code is ReasonCode.KEEP_ALIVE_TIMEOUT


def test_a_client_that_breaks_the_protocol_leaves_its_will(make: MqttClients) -> None:
    watcher, topic = make(), make.name()
    watcher.subscribe(topic, 1)
    with MqttWire(make.port) as client:
        client.connect(make.name(), will=Will(topic, b"gone", 1))
        client.send(Connect(Version.V5, "second"))
        assert client.receive(DisconnectPacket).reason_code is ReasonCode.PROTOCOL_ERROR
    assert watcher.payloads() == [b"gone"]


def test_a_client_whose_id_is_taken_over_leaves_its_will(make: MqttClients) -> None:
    watcher, topic = make(), make.name()
    watcher.subscribe(topic, 1)
    client = with_will(make, topic)
    make(client.client_id)
    assert watcher.payloads() == [b"gone"]
    client.own.loop_stop()


def test_a_will_waits_for_its_delay(make: MqttClients) -> None:
    watcher, topic, other = make(), make.name(), make.name()
    watcher.subscribe(topic, 1)
    watcher.subscribe(other, 1)
    with_will(make, topic, delay_s=1, expiry_s=100).cut()
    with_will(make, other, expiry_s=100).cut()
    assert [each.topic for each in watcher.take(2)] == [other, topic]


@pytest.mark.ci
def test_a_client_that_comes_back_withdraws_its_will(make: MqttClients) -> None:
    watcher, topic, other = make(), make.name(), make.name()
    watcher.subscribe(topic, 1)
    watcher.subscribe(other, 1)
    back = with_will(make, topic, delay_s=1, expiry_s=100, is_clean=False)
    away = with_will(make, other, delay_s=2, expiry_s=100)
    back.cut()
    away.cut()
    assert back.connect().is_present
    assert [each.topic for each in watcher.take()] == [other]
    back.disconnect()
    make().publish(topic, "nothing else")
    assert watcher.payloads() == [b"nothing else"]


def test_a_will_does_not_wait_longer_than_its_session(make: MqttClients) -> None:
    watcher, topic, other = make(), make.name(), make.name()
    watcher.subscribe(topic, 1)
    watcher.subscribe(other, 1)
    with_will(make, topic, delay_s=1000, expiry_s=1).cut()
    ended = with_will(make, other, delay_s=1000, expiry_s=1000)
    ended.cut()
    make(ended.client_id, is_clean=True)  # ends the session at once
    assert [each.topic for each in watcher.take(2)] == [other, topic]


def test_a_will_has_properties(make: MqttClients) -> None:
    watcher, topic = make(), make.name()
    watcher.subscribe(topic, 1)
    client = MqttClient(make.port, make.name())
    said = {
        "ContentType": "a/b", "UserProperty": [("k", "v")], "ResponseTopic": "x/y",
        "CorrelationData": b"\x00\xff", "MessageExpiryInterval": 100,
        "PayloadFormatIndicator": 1,
    }  # fmt: skip
    client.own.will_set(topic, "gone", 1, properties=properties(PacketTypes.WILLMESSAGE, said))
    client.connect()
    client.cut()
    got = told(watcher.take()[0])
    assert got.pop("MessageExpiryInterval") in (99, 100)
    del said["MessageExpiryInterval"]
    assert got == said


def test_a_will_to_a_topic_of_the_broker_is_refused(make: MqttClients) -> None:
    with MqttWire(make.port) as client:
        answer = client.connect(make.name(), will=Will("$SYS/x", b"gone", 1))
        assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
        assert client.is_ended()


def test_wills_of_qos_2_and_of_many_clients_all_come(make: MqttClients) -> None:
    watcher, root = make(), make.name()
    watcher.subscribe(f"{root}/+", 2)
    clients = [MqttWire(make.port) for _ in range(50)]
    for number, client in enumerate(clients):
        client.connect(make.name(), will=Will(f"{root}/{number}", b"gone", 2))
    for client in clients:
        client.socket.close()
    topics = {each.topic for each in watcher.take(50)}
    assert topics == {f"{root}/{number}" for number in range(50)}


def test_a_will_reaches_a_subscriber_of_the_same_client(make: MqttClients) -> None:
    topic, name = make.name(), make.name()
    said = {"expiry_s": 100, "is_clean": False}
    client = MqttClient(make.port, name, **said)
    client.own.will_set(topic, "gone", 1)
    client.connect()
    client.subscribe(topic, 1)
    client.cut()
    assert client.connect().is_present
    assert client.payloads() == [b"gone"]
    client.disconnect()
