"""One message between MQTT and STOMP, stock clients on both sides: each part, both ways."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import FOR_EVER_S, PROTOCOLS, MqttClients, told
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S, wait_for

ODD_BODY = bytes(range(256)) + b"\0\n\0"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("mqtt") / "data", PROTOCOLS) as process:
        yield process


@pytest.fixture
def make(broker: BrokerProcess) -> Iterator[MqttClients]:
    with MqttClients(broker.port()) as clients:
        yield clients


@pytest.fixture
def stomp(broker: BrokerProcess) -> Iterator[Client]:
    client = Client(broker.port(), "1.2", auto_decode=False)
    client.connect()
    yield client
    client.disconnect()


def address_of(name: str) -> str:
    return name.replace("/", ".")


# --- from MQTT to STOMP ---------------------------------------------------------------------------


class ToStomp:
    """A STOMP subscription, and an MQTT client that publishes to it."""

    def __init__(self, make: MqttClients, stomp: Client) -> None:
        self.topic = f"{make.name()}/part"
        self.sender, self._stomp = make(), stomp
        stomp.subscribe(f"/topic/{address_of(self.topic)}")

    def __call__(self, payload: Any = b"x", qos: int = 1, **said: Any) -> Any:
        """Publish a message; return its frame."""
        self.sender.publish(self.topic, payload, qos, **said)
        return self._stomp.recorder.take(1)[0]


@pytest.fixture
def to_stomp(make: MqttClients, stomp: Client) -> ToStomp:
    return ToStomp(make, stomp)


def test_a_topic_becomes_a_destination(to_stomp: ToStomp) -> None:
    assert to_stomp().headers["destination"] == address_of(to_stomp.topic)


@pytest.mark.parametrize(
    ("topic", "address"),
    [
        ("v1.2/x", "v1/2.x"),
        ("with blank/x", "with blank.x"),
        ("a/*/b", "a.%2A.b"),
        ("ü//x", "ü..x"),
    ],
)
def test_odd_topics_become_destinations(
    make: MqttClients, stomp: Client, topic: str, address: str
) -> None:
    stomp.subscribe(f"/topic/{address}")
    make().publish(topic, "x")
    (frame,) = stomp.recorder.take(1)
    assert frame.headers["destination"] == address


@pytest.mark.parametrize(("qos", "persistent"), [(0, None), (1, "true"), (2, "true")])
def test_a_qos_becomes_persistence(to_stomp: ToStomp, qos: int, persistent: str | None) -> None:
    assert to_stomp(qos=qos).headers.get("persistent") == persistent


def test_an_expiry_interval_becomes_a_time(to_stomp: ToStomp) -> None:
    before_ms = time.time_ns() // 1_000_000
    expires_ms = int(to_stomp(MessageExpiryInterval=100).headers["expires"])
    after_ms = time.time_ns() // 1_000_000
    assert before_ms + 100_000 <= expires_ms <= after_ms + 100_000
    assert "expires" not in to_stomp().headers


def test_correlation_data_that_is_text_becomes_a_correlation_id(to_stomp: ToStomp) -> None:
    frame = to_stomp(CorrelationData="request: ü\n\\1".encode())
    assert frame.headers["correlation-id"] == "request: ü\n\\1"


def test_binary_correlation_data_is_told_in_base64(to_stomp: ToStomp) -> None:
    headers = to_stomp(CorrelationData=b"\x00\xff").headers
    assert base64.b64decode(headers["mqtt-correlation-data"]) == b"\x00\xff"
    assert "correlation-id" not in headers


def test_a_response_topic_becomes_a_reply_to(to_stomp: ToStomp) -> None:
    assert to_stomp(ResponseTopic="answers/c1/1").headers["reply-to"] == "answers.c1.1"


def test_a_content_type_stays_one(to_stomp: ToStomp) -> None:
    headers = to_stomp(ContentType="application/json; charset=utf-8").headers
    assert headers["content-type"] == "application/json; charset=utf-8"


def test_a_payload_format_is_told(to_stomp: ToStomp) -> None:
    assert to_stomp(PayloadFormatIndicator=1).headers["mqtt-payload-format"] == "1"


def test_user_properties_become_headers(to_stomp: ToStomp) -> None:
    pairs = [("colour", "red"), ("odd: name", "line\nend \\ ü"), ("twice", "1"), ("twice", "2")]
    headers = to_stomp(UserProperty=pairs).headers
    assert (headers["colour"], headers["odd: name"]) == ("red", "line\nend \\ ü")
    assert headers["twice"] == "1"  # the first of a name counts in STOMP


def test_user_properties_with_names_that_are_taken_are_told(to_stomp: ToStomp) -> None:
    pairs = [("destination", "d"), ("message-id", "m"), ("content-length", "7"), ("persistent", "")]
    headers = to_stomp(UserProperty=pairs).headers
    assert {f"user-property.{name}": value for name, value in pairs}.items() <= headers.items()
    assert headers["destination"] == address_of(to_stomp.topic)
    assert headers["content-length"] == "1"


def test_a_message_of_mqtt_has_the_usual_priority(to_stomp: ToStomp) -> None:
    assert to_stomp().headers.get("priority", "4") == "4"


def test_that_it_was_published_to_be_retained_is_told(to_stomp: ToStomp) -> None:
    assert "mqtt-retain" not in to_stomp().headers
    assert to_stomp(retain=True).headers["mqtt-retain"] == "true"


@pytest.mark.parametrize("body", [b"", "text ü".encode(), ODD_BODY, b"L" * 300_000])
def test_a_payload_becomes_a_body(to_stomp: ToStomp, body: bytes) -> None:
    frame = to_stomp(body)
    assert bytes(frame.body) == body
    assert frame.headers["content-length"] == str(len(body))


def test_a_queue_of_stomp_takes_messages_of_mqtt(make: MqttClients, stomp: Client) -> None:
    name = make.name()
    stomp.send(f"/queue/{name}", "first", persistent="true")
    make().publish(name, "second")
    stomp.subscribe(f"/queue/{name}")
    assert [bytes(each.body) for each in stomp.recorder.take(2)] == [b"first", b"second"]


def test_selectors_see_user_properties(make: MqttClients, stomp: Client) -> None:
    name, sender = make.name(), make()
    stomp.subscribe(f"/topic/{name}", selector="colour = 'red' AND size > 3")
    for colour, size in (("blue", "9"), ("red", "1"), ("red", "4")):
        sender.publish(name, f"{colour}{size}", UserProperty=[("colour", colour), ("size", size)])
    assert [bytes(each.body) for each in stomp.recorder.take(1)] == [b"red4"]


# --- from STOMP to MQTT ---------------------------------------------------------------------------


class ToMqtt:
    """An MQTT subscription, and a STOMP client that sends to it."""

    def __init__(self, make: MqttClients, stomp: Client) -> None:
        self.topic = f"{make.name()}/part"
        self.receiver, self._stomp = make(), stomp
        self.receiver.subscribe(f"{self.topic.split('/')[0]}/#", 2)

    def __call__(self, body: str | bytes = b"x", **headers: str) -> Any:
        """Send a message; return it as MQTT has it."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._stomp.send(f"/topic/{address_of(self.topic)}", body, **named)
        return self.receiver.take()[0]


@pytest.fixture
def to_mqtt(make: MqttClients, stomp: Client) -> ToMqtt:
    return ToMqtt(make, stomp)


def test_a_destination_becomes_a_topic(to_mqtt: ToMqtt) -> None:
    message = to_mqtt()
    assert (message.topic, message.retain, message.dup) == (to_mqtt.topic, False, False)


@pytest.mark.parametrize("prefix", ["/topic/", ""])
def test_prefixes_of_destinations_are_no_part_of_a_topic(
    make: MqttClients, stomp: Client, prefix: str
) -> None:
    client, root = make(), make.name()
    client.subscribe(f"{root}/#", 1)
    stomp.send(f"{prefix}{root}.v1/2.a%20b", "x")
    assert client.take()[0].topic == f"{root}/v1.2/a b"


@pytest.mark.parametrize(("persistent", "qos"), [("true", 2), ("false", 0)])
def test_persistence_becomes_a_qos(to_mqtt: ToMqtt, persistent: str, qos: int) -> None:
    assert to_mqtt(persistent=persistent).qos == qos


def test_a_time_becomes_an_expiry_interval(to_mqtt: ToMqtt) -> None:
    begun_s = time.time()
    expires = str(int(begun_s * 1000) + 100_000)
    left_s = told(to_mqtt(expires=expires))["MessageExpiryInterval"]
    assert 99 - (time.time() - begun_s) <= left_s <= 100
    assert "MessageExpiryInterval" not in told(to_mqtt())


def test_what_has_expired_does_not_come(make: MqttClients, stomp: Client) -> None:
    client, name = make(make.name(), expiry_s=FOR_EVER_S), make.name()
    client.subscribe(name, 1)
    client.disconnect()
    expires_ms = time.time_ns() // 1_000_000 + 300
    stomp.send(f"/topic/{name}", "short", expires=str(expires_ms))
    stomp.send(f"/topic/{name}", "long", expires=str(expires_ms + 100_000))
    wait_for(lambda: time.time_ns() // 1_000_000 > expires_ms)
    client.is_clean = False
    client.connect()
    assert client.payloads() == [b"long"]


def test_a_correlation_id_becomes_correlation_data(to_mqtt: ToMqtt) -> None:
    message = to_mqtt(correlation_id="request: ü\n1")
    assert told(message)["CorrelationData"] == "request: ü\n1".encode()


@pytest.mark.parametrize("prefix", ["/queue/", "/topic/", ""])
def test_a_reply_to_becomes_a_response_topic(to_mqtt: ToMqtt, prefix: str) -> None:
    assert told(to_mqtt(reply_to=f"{prefix}answers.c1"))["ResponseTopic"] == "answers/c1"


def test_a_content_type_is_one(to_mqtt: ToMqtt) -> None:
    assert told(to_mqtt(content_type="text/plain"))["ContentType"] == "text/plain"


def test_headers_become_user_properties(to_mqtt: ToMqtt) -> None:
    message = to_mqtt(colour="red", odd="line\nend : \\ ü", JMSXGroupID="g", type="t")
    pairs = told(message)["UserProperty"]
    wanted = {("colour", "red"), ("odd", "line\nend : \\ ü"), ("JMSXGroupID", "g"), ("type", "t")}
    assert set(pairs) == wanted
    assert len(pairs) == len(wanted)


def test_a_header_with_a_taken_name_goes_back_to_what_it_was(
    make: MqttClients, to_mqtt: ToMqtt
) -> None:
    message = to_mqtt(**{"user-property.destination": "d"})
    assert told(message)["UserProperty"] == [("destination", "d")]


def test_a_priority_becomes_a_user_property(to_mqtt: ToMqtt) -> None:
    assert told(to_mqtt(priority="7"))["UserProperty"] == [("priority", "7")]
    assert "UserProperty" not in told(to_mqtt(priority="4"))


@pytest.mark.parametrize("body", [b"", "text ü", ODD_BODY, b"L" * 300_000])
def test_a_body_becomes_a_payload(to_mqtt: ToMqtt, body: str | bytes) -> None:
    data = body.encode() if isinstance(body, str) else body
    assert to_mqtt(body).payload == data


@pytest.mark.parametrize("version", ["3.1", "3.1.1"])
def test_version_3_gets_what_it_can_take(make: MqttClients, stomp: Client, version: str) -> None:
    client, name = make(make.name(), version), make.name()
    client.subscribe(name, 1)
    stomp.send(f"/topic/{name}", "x", colour="red", expires="99999999999999", priority="9")
    (message,) = client.take()
    assert (message.topic, message.payload, message.qos) == (name, b"x", 1)


# --- there and back -------------------------------------------------------------------------------


def test_a_stomp_service_answers_mqtt(make: MqttClients, stomp: Client) -> None:
    root, client = make.name(), make()
    stomp.subscribe(f"/queue/{root}.service")
    client.subscribe(f"{root}/answers/+", 1)
    client.publish(
        f"{root}/service", "2", ResponseTopic=f"{root}/answers/1", CorrelationData=b"id-1"
    )
    (request,) = stomp.recorder.take(1)
    said = request.headers
    stomp.send(said["reply-to"], "4", **{"correlation-id": said["correlation-id"]})
    (answer,) = client.take()
    assert (answer.topic, answer.payload) == (f"{root}/answers/1", b"4")
    assert told(answer)["CorrelationData"] == b"id-1"


def test_an_mqtt_service_answers_stomp(make: MqttClients, stomp: Client) -> None:
    root, service = make.name(), make()
    service.subscribe(f"{root}/service", 1)
    stomp.subscribe(f"/queue/{root}.answers")
    stomp.send(
        f"/topic/{root}.service", "2",
        **{"reply-to": f"/queue/{root}.answers", "correlation-id": "id-1"},
    )  # fmt: skip
    said = told(service.take()[0])
    service.publish(said["ResponseTopic"], "4", CorrelationData=said["CorrelationData"])
    (answer,) = stomp.recorder.take(1)
    assert (bytes(answer.body), answer.headers["correlation-id"]) == (b"4", "id-1")


def test_topics_of_the_broker_are_not_for_wildcards(make: MqttClients, stomp: Client) -> None:
    wild, level, own = make(), make(), make()
    name = make.name("x")
    wild.subscribe("#", 1)
    level.subscribe(f"+/{name}", 1)
    own.subscribe(f"$other/{name}", 1)
    for body in (b"small", b"L" * 300_000):
        stomp.send(f"/topic/$other.{name}", body)
        assert own.payloads() == [body]
    stomp.send(f"/topic/seen.{name}", "seen")
    assert level.payloads() == [b"seen"]
    while (message := wild.take()[0]).payload != b"seen":
        assert not message.topic.startswith("$")


@pytest.mark.parametrize("act", ["subscribe", "send"])
@pytest.mark.parametrize(
    "destination",
    [
        "/queue/$mqtt.retained",
        "/topic/$mqtt.retained",
        "$mqtt.retained::$mqtt.retained",
        "/topic/$mqtt.in.1::$mqtt.in.1",
        "/topic/x::$mqtt.in.2",
        "/queue/$mqtt.in.3",
    ],
)
def test_notes_of_the_broker_are_for_nobody(
    broker: BrokerProcess, make: MqttClients, act: str, destination: str
) -> None:
    topic = make.name()
    make().publish(topic, "kept", 2, retain=True)
    stomp = Client(broker.port(), "1.2")
    stomp.connect()
    if act == "send":
        stomp.connection.send(destination, "forged", headers={"receipt": "r"})
    else:
        stomp.connection.subscribe(destination, id="1", headers={"receipt": "r"})
    assert stomp.recorder.errors.get(timeout=WAIT_S)
    assert stomp.recorder.messages.empty()
    late = make()
    late.subscribe(topic, 1)
    assert late.payloads() == [b"kept"]


@pytest.mark.parametrize("topic_filter", ["$mqtt/#", "$mqtt/retained", "$share/a/$mqtt/+"])
def test_notes_of_the_broker_are_for_no_client_of_mqtt(
    make: MqttClients, topic_filter: str
) -> None:
    client = make()
    assert client.subscribe(topic_filter, 1).codes[0] >= 0x80
    client.publish(make.name(), "kept", retain=True)
    client.subscribe("last", 1)
    client.publish("last", "last")
    assert client.payloads() == [b"last"]
