"""MQTT over restarts of the broker, orderly ones and kill -9: nothing confirmed is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes

from vespiary_codec.wire.mqtt import (
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
)
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import FOR_EVER_S, PROTOCOLS, MqttClient, properties
from vespiary_testkit.mqtt_wire import MqttWire
from vespiary_testkit.waiting import wait_for

COUNT = 1500
ENDS = {"SIGTERM": BrokerProcess.stop, "SIGKILL": BrokerProcess.kill}
End = Callable[[BrokerProcess], object]
RESUMED = {"clean_start": False, "properties": {Property.SESSION_EXPIRY_INTERVAL: FOR_EVER_S}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", PROTOCOLS) as process:
        yield process


def durable(broker: BrokerProcess, name: str, version: str) -> MqttClient:
    """Return a connected client whose session stays."""
    of_5 = {"expiry_s": FOR_EVER_S} if version == "5" else {}
    client = MqttClient(broker.port(), name, version, is_clean=False, **of_5)
    client.connect()
    return client


def again(broker: BrokerProcess, end: End) -> None:
    """End the broker in some way, and start it."""
    end(broker)
    broker.start()


@pytest.mark.ci
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("version", [pytest.param("3.1.1", marks=pytest.mark.verify), "5"])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_stream_goes_on_over_restarts(
    broker: BrokerProcess, end: End, version: str, qos: int
) -> None:
    receiver, sender = durable(broker, "receiver", version), durable(broker, "sender", version)
    receiver.subscribe("stream/#", qos)
    sent = [sender.send("stream/a", f"{number}", qos) for number in range(COUNT)]
    got: Counter[bytes] = Counter(receiver.payloads(100))
    for _ in range(3):
        again(broker, end)
        for client in (receiver, sender):
            assert client.connect(broker.port()).is_present
        got.update(receiver.payloads(100))
    for each in sent:
        each.wait_for_publish(30)
        assert each.is_published()
    sender.publish("stream/a", "last", qos)
    while not got[b"last"]:
        got.update(receiver.payloads())
    wanted = {b"last", *(b"%d" % number for number in range(COUNT))}
    assert set(got) == wanted
    if qos == 2:
        assert not [payload for payload, times in got.items() if times != 1]
        assert receiver.messages.empty()
    for client in (receiver, sender):
        client.disconnect()


@pytest.mark.ci
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_confirmed_is_there_after_a_kill(broker: BrokerProcess, qos: int) -> None:
    receiver = durable(broker, "receiver", "5")
    receiver.subscribe("kept", 2)
    receiver.disconnect()
    with MqttClient(broker.port(), "sender") as sender:
        sent = [sender.send("kept", f"{number}", qos) for number in range(3000)]
        wait_for(lambda: sum(each.is_published() for each in sent) >= 500)
        broker.kill()
        confirmed = sum(each.is_published() for each in sent)
    broker.start()
    assert receiver.connect(broker.port()).is_present
    got = receiver.payloads(confirmed)
    assert got == [b"%d" % number for number in range(confirmed)]
    receiver.disconnect()


@pytest.mark.ci
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_subscriptions_and_retained_messages_survive(broker: BrokerProcess, end: End) -> None:
    receiver = durable(broker, "receiver", "5")
    receiver.subscribe("some/+", 1, SubscriptionIdentifier=7)
    receiver.subscribe("$share/workers/jobs", 1)
    receiver.disconnect()
    with MqttClient(broker.port(), "sender") as sender:
        for text in ("old", "new"):
            sender.publish("state/a", text, retain=True)
            sender.publish("state/b", text, 2, retain=True)
        sender.publish("state/gone", "x", retain=True)
        sender.publish("state/gone", "", retain=True)
        sender.publish("some/thing", "one")
        sender.publish("jobs", "job")
    again(broker, end)
    assert receiver.connect(broker.port()).is_present
    assert sorted(receiver.payloads(2)) == [b"job", b"one"]
    with MqttClient(broker.port(), "sender") as sender:
        sender.publish("some/thing", "two")
        (message,) = receiver.take()
        assert (message.payload, message.properties.SubscriptionIdentifier) == (b"two", [7])
        with MqttClient(broker.port(), "late") as late:
            late.subscribe("state/#", 2)
            sender.publish("state/end", "end")
            got = {each.topic: (each.payload, each.retain) for each in late.take(3)}
        assert got == {
            "state/a": (b"new", True),
            "state/b": (b"new", True),
            "state/end": (b"end", False),
        }
    receiver.disconnect()


@pytest.mark.ci
@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_durable_sessions_are_bounded_over_a_kill(tmp_path: Path, version: str) -> None:
    refusal = {"3.1.1": ReasonCode.SERVER_UNAVAILABLE, "5": ReasonCode.QUOTA_EXCEEDED}[version]
    of_5 = {"expiry_s": FOR_EVER_S} if version == "5" else {}
    with BrokerProcess(tmp_path / "data", PROTOCOLS, "acceptors.all.mqtt.max-sessions=2") as broker:
        first, second = durable(broker, "first", version), durable(broker, "second", version)
        first.subscribe("kept", 1)
        second.disconnect()
        for ends in (False, True):
            if ends:
                again(broker, BrokerProcess.kill)
                assert first.connect(broker.port()).is_present
            third = MqttClient(broker.port(), "third", version, is_clean=False, **of_5)
            answer = third.connect()
            assert answer.code == refusal
            if version == "5":
                assert "at most 2 (max-sessions" in answer.properties["ReasonString"]
            with MqttClient(broker.port(), "third", version) as clean:
                clean.publish("kept", "x")
        assert first.payloads(2) == [b"x", b"x"]
        assert second.connect(broker.port()).is_present
        for client in (first, second):
            client.disconnect()


@pytest.mark.engine
def test_client_ids_of_any_length_keep_their_messages_over_a_kill(broker: BrokerProcess) -> None:
    names = [f"{'ü' * 500}{number}" for number in range(2)]  # escaped: 3001 bytes
    receivers = [durable(broker, name, "5") for name in names]
    for number, receiver in enumerate(receivers):
        receiver.subscribe(f"some/{number}", 1)
        receiver.disconnect()
    with MqttClient(broker.port(), "sender") as sender:
        for number in range(2):
            sender.publish(f"some/{number}", f"{number}")
    again(broker, BrokerProcess.kill)
    for number, receiver in enumerate(receivers):
        assert receiver.connect(broker.port()).is_present
        assert receiver.payloads() == [b"%d" % number]
        receiver.disconnect()


@pytest.mark.ci
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_overlapping_subscriptions_give_one_copy_over_restarts(
    broker: BrokerProcess, end: End
) -> None:
    receiver = durable(broker, "receiver", "5")
    for number, (topic_filter, qos) in enumerate((("#", 1), ("some/+", 2), ("some/a", 0)), 1):
        receiver.subscribe(topic_filter, qos, SubscriptionIdentifier=number)
    receiver.disconnect()
    with MqttClient(broker.port(), "sender") as sender:
        for number in range(50):
            sender.publish("some/a", f"{number}", 2)
    again(broker, end)
    with MqttClient(broker.port(), "sender") as sender:
        sender.publish("some/a", "behind", 2)
        sender.publish("last", "last", 2)
    again(broker, end)
    assert receiver.connect(broker.port()).is_present
    got = receiver.take(52)
    assert Counter(each.payload for each in got) == Counter(
        [*(b"%d" % number for number in range(50)), b"behind", b"last"]
    )
    for each in got:
        is_last = each.payload == b"last"
        assert each.qos == (1 if is_last else 2)
        assert sorted(each.properties.SubscriptionIdentifier) == ([1] if is_last else [1, 2, 3])
    receiver.disconnect()


@pytest.mark.ci
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_who_ends_one_subscription_loses_nothing_of_the_other_over_restarts(
    broker: BrokerProcess, end: End
) -> None:
    with MqttWire(broker.port()) as client:  # acknowledges nothing
        few = {Property.RECEIVE_MAXIMUM: 1, Property.SESSION_EXPIRY_INTERVAL: FOR_EVER_S}
        client.connect("receiver", clean_start=False, properties=few)
        for number, (topic_filter, qos) in enumerate((("#", 1), ("some/a", 2)), 1):
            client.send(Subscribe(number, (Subscription(topic_filter, qos),)))
            client.receive(Suback)
        with MqttClient(broker.port(), "sender") as sender:
            sender.publish("other", "other", 1)
            for number in range(50):
                sender.publish("some/a", f"{number}", 2)
        assert client.receive(Publish).payload == b"other"
        client.send(Unsubscribe(3, ("some/a",)))
        client.receive(Unsuback)
        again(broker, end)
    with MqttClient(broker.port(), "sender") as sender:
        sender.publish("some/a", "behind", 2)
    receiver = durable(broker, "receiver", "5")
    wanted = {b"other", b"behind", *(b"%d" % number for number in range(50))}
    got = receiver.take(52)
    assert {each.payload for each in got} == wanted
    assert {each.qos for each in got} == {1}
    broker.kill()  # what is drained stays away
    broker.start()
    assert receiver.connect(broker.port()).is_present
    with MqttClient(broker.port(), "sender") as sender:
        sender.publish("some/a", "once", 2)
    while (payload := receiver.payloads()[0]) != b"once":
        assert payload in wanted
    receiver.disconnect()


@pytest.mark.ci
def test_an_ended_session_stays_away(broker: BrokerProcess) -> None:
    receiver = durable(broker, "receiver", "5")
    receiver.subscribe("some/+", 1)
    receiver.disconnect(SessionExpiryInterval=0)
    wait_for(lambda: not durable_is_there(broker, "receiver"))
    broker.kill()
    broker.start()
    assert not durable_is_there(broker, "receiver")
    with MqttClient(broker.port(), "sender") as sender:
        codes = sender.publish("some/thing", "x").codes
        assert codes == [ReasonCode.NO_MATCHING_SUBSCRIBERS]


def durable_is_there(broker: BrokerProcess, name: str) -> bool:
    """Return whether a client has a session; ends it."""
    with MqttWire(broker.port()) as client:
        return client.connect(name, clean_start=False).session_present


# --- wills ----------------------------------------------------------------------------------------


def dying(broker: BrokerProcess, name: str, delay_s: int = 0, **options: object) -> MqttClient:
    """Return a connected client that has a will, which names it."""
    client = MqttClient(broker.port(), name, "5", is_clean=False, **options)  # type: ignore[arg-type]
    of_5 = {"WillDelayInterval": delay_s} if delay_s else {}
    said = properties(PacketTypes.WILLMESSAGE, of_5)
    client.own.will_set(f"wills/{name}", name, 1, retain=True, properties=said)
    client.connect()
    return client


@pytest.mark.ci
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_wills_survive_the_end_of_the_broker(broker: BrokerProcess, end: End) -> None:
    receiver = durable(broker, "receiver", "5")
    receiver.subscribe("wills/#", 1)
    receiver.disconnect()
    gone = dying(broker, "away", 3, expiry_s=FOR_EVER_S)
    gone.cut()
    back = dying(broker, "back", 60, expiry_s=FOR_EVER_S)  # it returns earlier
    back.cut()
    connected = [
        dying(broker, "at-once", expiry_s=FOR_EVER_S),
        dying(broker, "in-time", 1000, expiry_s=3),
        dying(broker, "later", 1000, expiry_s=FOR_EVER_S),
    ]
    dying(broker, "good-bye", expiry_s=FOR_EVER_S).disconnect()
    with MqttClient(broker.port(), "settled") as client:
        client.settle()  # what the good-bye has withdrawn is durable
    again(broker, end)
    back.own.will_clear()
    assert back.connect(broker.port()).is_present
    receiver.connect(broker.port())
    wanted = {b"at-once", b"in-time", b"away"}
    assert set(receiver.payloads(3)) == wanted
    receiver.settle()  # its acknowledgements are durable
    again(broker, end)  # what was sent is not sent again
    with MqttClient(broker.port(), "late") as late:
        late.subscribe("wills/#", 1)
        assert set(late.payloads(3)) == wanted
    receiver.connect(broker.port())
    with MqttClient(broker.port(), "sender") as sender:
        sender.publish("wills/last", "last")
    assert receiver.payloads() == [b"last"]
    receiver.disconnect()
    back.disconnect()
    for client in (*connected, gone):
        client._close()


@pytest.mark.ci
def test_wills_of_sessions_that_end_with_the_broker_are_sent_as_it_stops(
    broker: BrokerProcess,
) -> None:
    receiver = durable(broker, "receiver", "5")
    receiver.subscribe("wills/#", 1)
    receiver.disconnect()
    clients = [dying(broker, f"c{number}") for number in range(20)]
    broker.stop()
    broker.start()
    receiver.connect(broker.port())
    assert set(receiver.payloads(20)) == {b"c%d" % number for number in range(20)}
    receiver.disconnect()
    for client in clients:
        client._close()


# --- QoS 2 step by step ---------------------------------------------------------------------------


def subscribed(client: MqttWire) -> None:
    client.connect("receiver", **RESUMED)
    client.send(Subscribe(1, (Subscription("exactly", 2),)))
    client.receive(Suback)


def publish_one(broker: BrokerProcess, payload: str) -> None:
    with MqttClient(broker.port(), "other") as other:
        other.publish("exactly", payload, 2)


@pytest.mark.ci
def test_a_session_ends_in_time_although_the_broker_was_away(broker: BrokerProcess) -> None:
    receiver = MqttClient(broker.port(), "receiver", expiry_s=1)
    receiver.connect()
    receiver.subscribe("some/+", 1)
    receiver.cut()
    again(broker, BrokerProcess.kill)
    with MqttClient(broker.port(), "sender") as sender:
        alone = [ReasonCode.NO_MATCHING_SUBSCRIBERS]
        wait_for(lambda: sender.publish("some/thing", "x").codes == alone, "the session's end")
    assert not durable_is_there(broker, "receiver")


@pytest.mark.ci
@pytest.mark.parametrize("size", [1, 300_000], ids=["small", "large"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_message_without_pubrec_comes_again_under_its_id(
    broker: BrokerProcess, end: End, size: int
) -> None:
    with MqttWire(broker.port()) as client:
        subscribed(client)
        for payload in "abc":
            publish_one(broker, payload * size)
        first = [client.receive(Publish) for _ in range(3)]
        client.send(Pubrec(first[0].packet_id))
        client.receive(Pubrel)
        client.send(Pubcomp(first[0].packet_id))
        again(broker, end)
    with MqttWire(broker.port()) as client:
        assert client.connect("receiver", **RESUMED).session_present
        publish_one(broker, "d")
        got: list[Publish] = []
        while len(got) < 3:
            packet = client.receive_any()
            if isinstance(packet, Pubrel):  # the PUBCOMP may have come too late to be noted
                assert packet.packet_id == first[0].packet_id
                client.send(Pubcomp(packet.packet_id))
            else:
                assert isinstance(packet, Publish)
                got.append(packet)
        assert [(each.packet_id, each.payload, each.dup) for each in got[:2]] == [
            (each.packet_id, each.payload, True) for each in first[1:]
        ]
        assert (got[2].payload, got[2].dup) == (b"d", False)
        assert got[2].packet_id not in {each.packet_id for each in got[:2]}


@pytest.mark.ci
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_message_behind_pubrec_is_released_and_does_not_come_again(
    broker: BrokerProcess, end: End
) -> None:
    with MqttWire(broker.port()) as client:
        subscribed(client)
        publish_one(broker, "a")
        packet_id = client.receive(Publish).packet_id
        client.send(Pubrec(packet_id))
        assert client.receive(Pubrel).packet_id == packet_id
        again(broker, end)
    with MqttWire(broker.port()) as client:
        assert client.connect("receiver", **RESUMED).session_present
        assert client.receive(Pubrel).packet_id == packet_id
        client.send(Pubcomp(packet_id))
        publish_one(broker, "b")
        assert client.receive(Publish).payload == b"b"


@pytest.mark.ci
def test_messages_of_qos_1_come_again_after_a_kill(broker: BrokerProcess) -> None:
    with MqttWire(broker.port()) as client:
        subscribed(client)
        with MqttClient(broker.port(), "other") as other:
            for payload in "abc":
                other.publish("exactly", payload, 1)
        first = [client.receive(Publish) for _ in range(3)]
        client.send(Puback(first[0].packet_id))
        publish_one(broker, "d")
        client.receive(Publish)
        broker.kill()
        broker.start()
    with MqttWire(broker.port()) as client:
        assert client.connect("receiver", **RESUMED).session_present
        got = [client.receive(Publish).payload for _ in range(3)]
        assert got[-3:] == [b"b", b"c", b"d"]


@pytest.mark.ci
@pytest.mark.parametrize("version", [Version.V3_1_1, Version.V5])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_publish_that_is_sent_again_is_stored_once(
    broker: BrokerProcess, end: End, version: Version
) -> None:
    receiver = durable(broker, "watcher", "5")
    receiver.subscribe("exactly", 2)
    said = RESUMED if version is Version.V5 else {"clean_start": False}
    with MqttWire(broker.port(), version) as sender:
        sender.connect("sender", **said)
        sender.send(*(Publish("exactly", b"%d" % n, 2, packet_id=n) for n in (1, 2, 3)))
        assert [sender.receive(Pubrec).packet_id for _ in range(3)] == [1, 2, 3]
        sender.send(Pubrel(1))
        assert sender.receive(Pubcomp).packet_id == 1
        again(broker, end)
    with MqttWire(broker.port(), version) as sender:
        assert sender.connect("sender", **said).session_present
        sender.send(Publish("exactly", b"2", 2, packet_id=2, dup=True))
        assert sender.receive(Pubrec).packet_id == 2
        sender.send(Pubrel(2), Pubrel(3), Pubrel(1))
        answers = [sender.receive(Pubcomp) for _ in range(3)]
        assert [each.packet_id for each in answers] == [2, 3, 1]
        if version is Version.V5:
            unknown = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            assert [each.reason_code for each in answers] == [0, 0, unknown]
        sender.send(Publish("exactly", b"new", 2, packet_id=2))
        assert sender.receive(Pubrec).packet_id == 2
    receiver.connect(broker.port())
    got: Counter[bytes] = Counter()
    while not got[b"new"]:
        got.update(receiver.payloads())
    assert got == Counter([b"1", b"2", b"3", b"new"])
    assert receiver.messages.empty()
    receiver.disconnect()


@pytest.mark.ci
def test_a_session_ends_if_the_configuration_deletes_its_queue_at_a_start(tmp_path: Path) -> None:
    settings = 'address-settings:\n  "#": {config-delete-addresses: FORCE}\n'
    configuration = tmp_path / "broker.yaml"
    configuration.write_text(settings + "addresses:\n  - {name: a, routing-types: [MULTICAST]}\n")
    with BrokerProcess(tmp_path / "data", PROTOCOLS, configuration=configuration) as broker:
        receiver, other = durable(broker, "receiver", "5"), durable(broker, "other", "5")
        receiver.subscribe("a", 1)
        other.subscribe("b", 1)
        broker.stop()
        configuration.write_text(settings)
        broker.start()
        assert not receiver.connect(broker.port()).is_present
        assert other.connect(broker.port()).is_present
        for client in (receiver, other):
            client.disconnect()
