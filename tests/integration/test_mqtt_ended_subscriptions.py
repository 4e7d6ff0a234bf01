"""UNSUBSCRIBE while messages are on their way, and the broker is killed before they have come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vespiary_codec.wire.mqtt import (
    Property,
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
)
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import FOR_EVER_S, PROTOCOLS, MqttClient
from vespiary_testkit.mqtt_wire import MqttWire

ENDS = {"SIGTERM": BrokerProcess.stop, "SIGKILL": BrokerProcess.kill}
End = Callable[[BrokerProcess], object]
ALONE = [ReasonCode.NO_MATCHING_SUBSCRIBERS]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    few = "acceptors.all.mqtt.maximum-in-flight=3"
    with BrokerProcess(tmp_path / "data", PROTOCOLS, few) as process:
        yield process


def send_ten(broker: BrokerProcess, qos: int) -> None:
    with MqttClient(broker.port(), "sender") as sender:
        for number in range(10):
            sender.publish("some/a", f"{number}", qos)


@pytest.mark.ci
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_what_a_paho_client_was_sent_comes_to_its_end(
    broker: BrokerProcess, version: str, end: End
) -> None:
    of_5 = {"expiry_s": FOR_EVER_S} if version == "5" else {}
    receiver = MqttClient(
        broker.port(), "receiver", version, is_clean=False, is_manual=True, **of_5
    )
    receiver.connect()
    receiver.subscribe("some/+", 1)
    send_ten(broker, 1)
    assert [each.payload for each in receiver.take(3)] == [b"0", b"1", b"2"]
    receiver.unsubscribe("some/+")
    end(broker)
    broker.start()
    assert receiver.connect(broker.port()).is_present
    got = receiver.take(3)
    assert [each.payload for each in got] == [b"0", b"1", b"2"]
    for each in got:
        receiver.own.ack(each.mid, each.qos)
    receiver.subscribe("behind", 1)
    with MqttClient(broker.port(), "sender") as sender:
        assert sender.publish("some/a", "unwanted").codes == ALONE
        sender.publish("behind", "behind")
    assert receiver.payloads() == [b"behind"]
    end(broker)
    broker.start()
    assert receiver.connect(broker.port()).is_present
    assert receiver.payloads() == [b"behind"]
    assert receiver.messages.empty()
    receiver.disconnect()


@pytest.mark.ci
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_qos_2_comes_to_its_end_with_its_packet_ids(broker: BrokerProcess, end: End) -> None:
    resumed = {
        "clean_start": False,
        "properties": {Property.SESSION_EXPIRY_INTERVAL: FOR_EVER_S},
    }
    with MqttWire(broker.port()) as client:
        client.connect("receiver", **resumed)
        client.send(Subscribe(1, (Subscription("some/+", 2),)))
        client.receive(Suback)
        send_ten(broker, 2)
        sent = [client.receive(Publish) for _ in range(3)]
        client.send(Unsubscribe(2, ("some/+",)))
        client.receive(Unsuback)
        end(broker)
        broker.start()
    with MqttWire(broker.port()) as client:
        assert client.connect("receiver", **resumed).session_present
        again = [client.receive(Publish) for _ in range(3)]
        told = [(each.packet_id, each.payload, each.qos) for each in sent]
        assert [(each.packet_id, each.payload, each.qos) for each in again] == told
        assert all(each.dup for each in again)
        for each in again:
            client.send(Pubrec(each.packet_id))
            assert client.receive(Pubrel).packet_id == each.packet_id
            client.send(Pubcomp(each.packet_id))
        client.send(Subscribe(3, (Subscription("behind", 1),)))
        client.receive(Suback)
        with MqttClient(broker.port(), "sender") as sender:
            assert sender.publish("some/a", "unwanted").codes == ALONE
            sender.publish("behind", "behind")
        assert client.receive(Publish).payload == b"behind"
