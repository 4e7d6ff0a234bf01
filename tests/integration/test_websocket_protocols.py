"""MQTT and AMQP through WebSockets, by stock clients, on an acceptor and on the HTTP port."""

from __future__ import annotations

import hashlib
import queue
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from wsproto.events import BytesMessage, TextMessage

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.node_clients import need_node, run_node
from vespiary_testkit.waiting import WAIT_S
from vespiary_testkit.websocket_peer import WebSocketClient

pytestmark = pytest.mark.once

MIB = 1024 * 1024
MQTT_CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01w"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.mark.ci
@pytest.mark.parametrize("size", [10, MIB + MIB // 2])
@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize("name", ["all", "http"])
def test_mqtt_js(broker: BrokerProcess, name: str, version: str, size: int) -> None:
    need_node()
    url = f"ws://127.0.0.1:{broker.port(name)}/ws"
    found = run_node("mqtt_websocket.js", url, f"js/{name}/{version}/{size}", str(size), version)
    assert found["messages"] == found["sent"]


@pytest.mark.ci
@pytest.mark.parametrize("size", [10, 5 * MIB])
@pytest.mark.parametrize("name", ["all", "http"])
def test_rhea(broker: BrokerProcess, name: str, size: int) -> None:
    need_node()
    url = f"ws://127.0.0.1:{broker.port(name)}/ws"
    found = run_node("amqp_websocket.js", url, f"rhea.{name}.{size}", str(size))
    assert "error" not in found, found
    assert found["accepted"] == 2
    assert sorted(found["messages"]) == sorted(found["sent"])


@pytest.mark.parametrize("version", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5])
def test_paho(broker: BrokerProcess, version: int) -> None:
    received: queue.Queue[bytes] = queue.Queue()
    subscribed: queue.Queue[object] = queue.Queue()
    client = paho.Client(
        CallbackAPIVersion.VERSION2, f"paho{version}", protocol=version, transport="websockets"
    )
    client.ws_set_options(path="/ws")
    client.on_message = lambda _, __, message: received.put(message.payload)
    client.on_subscribe = lambda *given: subscribed.put(given)
    client.connect("127.0.0.1", broker.port())
    client.loop_start()
    try:
        client.subscribe(f"paho/{version}", qos=1)
        subscribed.get(timeout=WAIT_S)
        body = bytes(range(256)) * 400
        client.publish(f"paho/{version}", body, qos=1).wait_for_publish(WAIT_S)
        assert hashlib.sha256(received.get(timeout=WAIT_S)).digest() == (
            hashlib.sha256(body).digest()
        )
    finally:
        client.disconnect()
        client.loop_stop()


def test_without_a_subprotocol_mqtt_is_told_by_its_first_bytes(broker: BrokerProcess) -> None:
    with WebSocketClient(broker.port()) as web:
        for at in range(len(MQTT_CONNECT)):
            web.message(MQTT_CONNECT[at : at + 1])
        web.until(lambda: web.peer.messages)
        assert web.peer.messages[0][0] == b"\x20\x02\x00\x00"


def test_a_text_message_is_none_of_mqtt(broker: BrokerProcess) -> None:
    with WebSocketClient(broker.port(), "mqtt") as web:
        web.socket.sendall(web.peer.send(TextMessage(MQTT_CONNECT.decode())))
        web.until(lambda: web.peer.close is not None)
        assert web.peer.close is not None
        assert web.peer.close.code == 1003


def test_the_last_words_of_mqtt_come_before_the_close(broker: BrokerProcess) -> None:
    with WebSocketClient(broker.port(), "mqtt") as web:
        web.socket.sendall(web.peer.send(BytesMessage(MQTT_CONNECT + b"\xf3\x00")))
        web.until(lambda: web.peer.close is not None)
        assert web.peer.close is not None
        assert web.peer.close.code == 1008
