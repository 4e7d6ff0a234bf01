"""Shared subscriptions of MQTT with stock paho clients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from vespiary_codec.wire.mqtt import (
    Disconnect,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    encode,
)
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import ALL_QOS, FOR_EVER_S, LEVELS, PROTOCOLS, MqttClients
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


@pytest.mark.ci
@pytest.mark.parametrize("version", LEVELS)
@pytest.mark.parametrize("qos", ALL_QOS)
def test_each_message_goes_to_one_client(make: MqttClients, version: str, qos: int) -> None:
    topic, share, sender = make.name(), make.name(), make()
    workers = [make(make.name(), version) for _ in range(3)]
    watcher = make()
    watcher.subscribe(f"{topic}/#", qos)
    for worker in workers:
        worker.subscribe(f"$share/{share}/{topic}/+", qos)
    for number in range(300):
        sender.publish(f"{topic}/{number % 7}", f"{number}", qos)
    wanted = {b"%d" % number for number in range(300)}
    assert set(watcher.payloads(300)) == wanted
    wait_for(lambda: sum(worker.messages.qsize() for worker in workers) >= 300)
    got = [worker.payloads(worker.messages.qsize()) for worker in workers]
    assert Counter(payload for each in got for payload in each) == Counter(wanted)
    assert all(len(each) >= 50 for each in got)  # nobody is forgotten


def test_two_shares_of_a_filter_both_get_each_message(make: MqttClients) -> None:
    topic, sender = make.name(), make()
    one, two, other = make(), make(), make()
    one.subscribe(f"$share/a/{topic}", 1)
    two.subscribe(f"$share/b/{topic}", 1)
    other.subscribe(f"$share/a/{topic}/+", 1)  # another filter: another subscription
    sender.publish(topic, "x")
    sender.publish(f"{topic}/y", "y")
    assert [each.payloads() for each in (one, two, other)] == [[b"x"], [b"x"], [b"y"]]


@pytest.mark.ci
@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_lost_when_a_client_goes(make: MqttClients, qos: int) -> None:
    topic, sender = make.name(), make()
    share = f"$share/workers/{topic}"
    steady = make()
    with MqttWire(make.port) as leaving:
        leaving.connect(make.name())
        leaving.send(Subscribe(1, (Subscription(share, qos),)))
        leaving.receive(Suback)
        steady.subscribe(share, qos)
        for number in range(100):
            sender.publish(topic, f"{number}", 2)
        taken = leaving.receive(Publish)  # and it never answers
        assert not taken.dup
    got = Counter(steady.payloads(100))
    assert got == Counter(b"%d" % number for number in range(100))


def test_a_share_waits_for_its_durable_clients(make: MqttClients) -> None:
    topic, sender = make.name(), make()
    share = f"$share/workers/{topic}"
    first = make(make.name(), expiry_s=FOR_EVER_S)
    second = make(make.name(), expiry_s=FOR_EVER_S)
    for each in (first, second):
        each.subscribe(share, 1)
        each.disconnect()
    for number in range(20):
        assert sender.publish(topic, f"{number}").codes == [0]
    second.is_clean = False
    second.connect()
    assert second.payloads(20) == [b"%d" % number for number in range(20)]
    second.unsubscribe(share)
    sender.publish(topic, "for the first")
    first.is_clean = False
    first.connect()
    assert first.payloads() == [b"for the first"]


def test_a_share_ends_with_its_last_client(make: MqttClients) -> None:
    topic, sender = make.name(), make()
    share = f"$share/workers/{topic}"
    first, second = make(), make()
    first.subscribe(share, 1)
    second.subscribe(share, 1)
    first.disconnect()
    assert sender.publish(topic, "x").codes == [0]
    assert second.payloads() == [b"x"]
    second.disconnect()
    alone = [ReasonCode.NO_MATCHING_SUBSCRIBERS]
    wait_for(lambda: sender.publish(topic, "x").codes == alone, "the end of the share")
    third = make()
    third.subscribe(share, 1)
    sender.publish(topic, "fresh")
    assert third.payloads() == [b"fresh"]
    third.unsubscribe(share)
    assert sender.publish(topic, "x").codes == alone


def test_a_shared_and_an_own_subscription_of_one_client(make: MqttClients) -> None:
    topic, client = make.name(), make()
    client.subscribe(f"$share/workers/{topic}", 1, SubscriptionIdentifier=1)
    client.subscribe(topic, 1, SubscriptionIdentifier=2)
    client.publish(topic, "x")
    got = client.take(2)
    assert sorted(each.properties.SubscriptionIdentifier for each in got) == [[1], [2]]


def test_a_shared_subscription_cannot_be_without_ones_own(make: MqttClients) -> None:
    with MqttWire(make.port) as client:
        client.connect()
        client.send(Subscribe(1, (Subscription("$share/a/b", 1, no_local=True),)))
        assert client.receive(Disconnect).reason_code is ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("name", ["ü", "with blank", "a.b", "%", "*"])
def test_names_of_shares(make: MqttClients, name: str) -> None:
    topic, one, two, sender = make.name(), make(), make(), make()
    one.subscribe(f"$share/{name}/{topic}", 1)
    two.subscribe(f"$share/{name}2/{topic}", 1)
    sender.publish(topic, "x")
    assert (one.payloads(), two.payloads()) == ([b"x"], [b"x"])


@pytest.mark.parametrize("topic_filter", ["$share/a", "$share//a", "$share/a/", "$share/+/a"])
def test_filters_that_are_no_shares(make: MqttClients, topic_filter: str) -> None:
    with MqttWire(make.port) as client:
        client.connect()
        data = encode(Subscribe(1, (Subscription("X" * len(topic_filter), 1),)), client.version)
        client.send_bytes(data.replace(b"X" * len(topic_filter), topic_filter.encode()))
        packet = client.receive(Disconnect)
        assert packet.reason_code.is_failure
        assert client.is_ended()
