"""What the stock client paho says is read as it meant it, and it reads what the codec writes."""

from __future__ import annotations

import socket
import threading
from typing import Any, Self

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from paho.mqtt.subscribeoptions import SubscribeOptions

from vespiary_codec.wire.mqtt import (
    NEED_DATA,
    Connack,
    Connect,
    Disconnect,
    MqttDecoder,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
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

pytestmark = pytest.mark.once

LEVELS = {Version.V3_1: paho.MQTTv31, Version.V3_1_1: paho.MQTTv311, Version.V5: paho.MQTTv5}
PAYLOADS = [b"", b"one", bytes(range(256)) * 300]


# --- a server for one stock client ----------------------------------------------------------------

# A server of the codec's making that says what a stock client needs to go on: for its tests. It
# is no broker: it gives each message back to its sender.

TIMEOUT_S = 20


class MqttPeer:
    """Answers one client after the other. Owner: the test, with `with`.

    Args:
        of_connack: Properties of its CONNACK, for clients of MQTT 5.
        refusal: What it answers to each login instead.
    """

    def __init__(
        self, of_connack: Properties | None = None, refusal: ReasonCode = ReasonCode.SUCCESS
    ) -> None:
        self.packets: list[Packet] = []
        self._of_connack = of_connack or {}
        self._refusal = refusal
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self._thread = threading.Thread(target=self._serve)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(TIMEOUT_S)
        self._listener.close()
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client:
            client.settimeout(TIMEOUT_S)
            decoder = MqttDecoder()
            while data := client.recv(65_536):
                decoder.feed(data)
                while not isinstance(packet := decoder.next_packet(), type(NEED_DATA)):
                    self.packets.append(packet)
                    if isinstance(packet, Disconnect):
                        return
                    version = decoder.version
                    assert version is not None
                    answers = self._answers(packet, version)
                    client.sendall(b"".join(encode(one, version) for one in answers))

    def _answers(self, packet: Packet, version: Version) -> list[Packet]:
        match packet:
            case Connect():
                properties = self._of_connack if version is Version.V5 else {}
                return [Connack(self._refusal, properties=properties)]
            case Subscribe():
                granted = tuple(ReasonCode(one.qos) for one in packet.subscriptions)
                return [Suback(packet.packet_id, granted)]
            case Unsubscribe():
                codes = (ReasonCode.SUCCESS,) * len(packet.topic_filters)
                return [Unsuback(packet.packet_id, codes)]
            case Publish():
                return [*self._received(packet), packet]
            case Pubrel():
                return [Pubcomp(packet.packet_id)]
            case Pubrec():
                return [Pubrel(packet.packet_id)]
            case Pingreq():
                return [Pingresp()]
        return []

    @staticmethod
    def _received(packet: Publish) -> list[Packet]:
        answers: list[list[Packet]] = [[], [Puback(packet.packet_id)], [Pubrec(packet.packet_id)]]
        return answers[packet.qos]


# --- the tests ------------------------------------------------------------------------------------


class Client:
    """A client that waits for what it asked for. Owner: the test."""

    def __init__(self, version: Version, **options: Any) -> None:
        self.got: list[paho.MQTTMessage] = []
        self.codes: list[Any] = []
        self._answered, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self.own = paho.Client(
            CallbackAPIVersion.VERSION2, "client-1", protocol=LEVELS[version], **options
        )
        self.own.on_message = self._message
        self.own.on_connect = lambda _c, _u, _f, code, _p: self._done(code)
        self.own.on_subscribe = lambda _c, _u, _id, codes, _p: self._done(codes)
        self.own.on_unsubscribe = lambda _c, _u, _id, codes, _p: self._done(codes)
        self.own.on_publish = lambda _c, _u, _id, code, _p: self._done(code)

    def _done(self, code: Any) -> None:
        self.codes.append(code)
        self._answered.release()

    def _message(self, _client: Any, _user: Any, message: paho.MQTTMessage) -> None:
        self.got.append(message)
        self._arrived.release()

    def answered(self) -> None:
        assert self._answered.acquire(timeout=TIMEOUT_S), f"it has {self.codes} alone"

    def arrived(self) -> None:
        assert self._arrived.acquire(timeout=TIMEOUT_S), f"it has {len(self.got)} messages alone"


@pytest.mark.parametrize("version", Version)
def test_a_conversation_with_a_stock_client(version: Version) -> None:
    client = Client(version)
    client.own.username_pw_set("user", "sécret")
    client.own.will_set("last/words", b"bye", qos=1, retain=True)
    with MqttPeer() as peer:
        client.own.connect("127.0.0.1", peer.port, keepalive=30)
        client.own.loop_start()
        client.answered()
        client.own.subscribe([("a/+", 0), ("b/#", 2)])
        client.answered()
        for payload in PAYLOADS:
            for qos in range(3):
                client.own.publish("a/ä", payload, qos=qos, retain=qos == 1)
                client.answered()
                client.arrived()
        client.own.unsubscribe(["a/+", "b/#"])
        client.answered()
        client.own.disconnect()
        client.own.loop_stop()
    login, asked, *rest = peer.packets
    assert isinstance(login, Connect)
    assert login == Connect(
        version, "client-1", True, 30, Will("last/words", b"bye", 1, True), "user",
        "sécret".encode(), login.properties,
    )  # fmt: skip
    assert isinstance(asked, Subscribe)
    assert asked.subscriptions == (Subscription("a/+", 0), Subscription("b/#", 2))
    sent = [packet for packet in rest if isinstance(packet, Publish)]
    expected = [(payload, qos, qos == 1) for payload in PAYLOADS for qos in range(3)]
    assert [(one.payload, one.qos, one.retain) for one in sent] == expected
    assert {one.topic for one in sent} == {"a/ä"}
    assert [(one.payload, one.qos, one.retain) for one in client.got] == expected
    ended = [packet for packet in rest if isinstance(packet, Unsubscribe)]
    assert [one.topic_filters for one in ended] == [("a/+", "b/#")]
    assert rest[-1] == Disconnect()


def paho_properties(kind: int, **values: Any) -> PahoProperties:
    found = PahoProperties(kind)
    for name, value in values.items():
        setattr(found, name, value)
    return found


def test_what_mqtt_5_adds() -> None:
    client = Client(Version.V5)
    of_connack = {
        Property.SERVER_KEEP_ALIVE: 20,
        Property.RECEIVE_MAXIMUM: 100,
        Property.REASON_STRING: "ü",
        Property.USER_PROPERTY: [("a", "1"), ("a", "2")],
    }
    told: list[Any] = []
    with MqttPeer(of_connack) as peer:
        client.own.on_connect = lambda _c, _u, _f, code, own: (told.append(own), client._done(code))
        login = paho_properties(
            PacketTypes.CONNECT, SessionExpiryInterval=77, ReceiveMaximum=5,
            UserProperty=[("k", "v"), ("k", "w")],
        )  # fmt: skip
        client.own.connect("127.0.0.1", peer.port, clean_start=False, properties=login)
        client.own.loop_start()
        client.answered()
        options = SubscribeOptions(1, noLocal=True, retainAsPublished=True, retainHandling=2)
        asked = paho_properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=268_435_455)
        client.own.subscribe("a/b", options=options, properties=asked)
        client.answered()
        message = paho_properties(
            PacketTypes.PUBLISH, PayloadFormatIndicator=1, MessageExpiryInterval=9,
            ContentType="text/plain", ResponseTopic="r/1", CorrelationData=b"\x00\xff",
            UserProperty=[("x", "y")],
        )  # fmt: skip
        client.own.publish("a/b", b"x", qos=2, properties=message)
        client.answered()
        client.arrived()
        client.own.disconnect(
            paho.ReasonCode(PacketTypes.DISCONNECT, "Disconnect with will message")
        )
        client.own.loop_stop()
    assert (told[0].ServerKeepAlive, told[0].ReceiveMaximum, told[0].ReasonString) == (20, 100, "ü")
    assert told[0].UserProperty == [("a", "1"), ("a", "2")]
    first, subscribed, *rest = peer.packets
    assert isinstance(first, Connect)
    assert not first.clean_start
    assert first.properties == {
        Property.SESSION_EXPIRY_INTERVAL: 77,
        Property.RECEIVE_MAXIMUM: 5,
        Property.USER_PROPERTY: [("k", "v"), ("k", "w")],
    }
    assert isinstance(subscribed, Subscribe)
    assert subscribed.subscriptions == (Subscription("a/b", 1, True, True, 2),)
    assert subscribed.properties == {Property.SUBSCRIPTION_IDENTIFIER: [268_435_455]}
    (sent,) = (packet for packet in rest if isinstance(packet, Publish))
    assert sent.properties == {
        Property.PAYLOAD_FORMAT_INDICATOR: 1,
        Property.MESSAGE_EXPIRY_INTERVAL: 9,
        Property.CONTENT_TYPE: "text/plain",
        Property.RESPONSE_TOPIC: "r/1",
        Property.CORRELATION_DATA: b"\x00\xff",
        Property.USER_PROPERTY: [("x", "y")],
    }
    (got,) = client.got
    assert got.properties is not None
    assert (got.properties.CorrelationData, got.properties.ResponseTopic) == (b"\x00\xff", "r/1")
    assert rest[-1] == Disconnect(ReasonCode.DISCONNECT_WITH_WILL)


@pytest.mark.parametrize("version", Version)
def test_a_refusal_is_understood(version: Version) -> None:
    client = Client(version)
    with MqttPeer(refusal=ReasonCode.NOT_AUTHORIZED) as peer:
        client.own.connect("127.0.0.1", peer.port)
        client.own.loop_start()
        client.answered()
        client.own.disconnect()
        client.own.loop_stop()
    assert str(client.codes[0]) == "Not authorized"
