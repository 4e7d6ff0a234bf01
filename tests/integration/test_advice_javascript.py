"""What docs/howto/clients tells of JavaScript's stock clients under "What to know", each shown.

Scenes of tests/clients/node/advice.mjs, behind a relay that holds back what the broker says, or
cuts clients off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final
from uuid import uuid4

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import MqttClient
from vespiary_testkit.node_clients import FOLDER, need_node
from vespiary_testkit.played_scene import Scene
from vespiary_testkit.relay import Relay
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S

pytestmark = [pytest.mark.ci, pytest.mark.once]

TEXT: Final = {"content-type": "text/plain"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    need_node()
    settings = "acceptors.all.protocols=STOMP,MQTT,AMQP"
    with BrokerProcess(tmp_path_factory.mktemp("advice") / "data", settings) as process:
        yield process


@pytest.fixture
def relay(broker: BrokerProcess) -> Iterator[Relay]:
    with Relay(broker.port()) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"advice-{uuid4().hex[:8]}"


Play = Callable[[str], Scene]


@pytest.fixture
def play(relay: Relay, name: str) -> Iterator[Play]:
    made: list[Scene] = []

    def start(scene: str) -> Scene:
        made.append(Scene("node", "advice.mjs", scene, str(relay.port), name, folder=FOLDER))
        return made[-1]

    yield start
    for scene in made:
        scene.__exit__()


# --- mqtt.js --------------------------------------------------------------------------------------


@pytest.mark.ci
def test_mqtt_js_waits_for_no_handler_that_waits(play: Play) -> None:
    events = play("mqttWaitsForNoHandler").rest()  # the first handler waits for the second
    assert events == [["begun", 1], ["begun", 2], ["ended", 2], ["ended", 1]]


def test_mqtt_js_acknowledges_when_done_is_called(relay: Relay, play: Play) -> None:
    first = play("mqttAcknowledgesByDone")
    assert first.event() == ["came", "work", False]
    relay.cut()  # not done: nobody has acknowledged it
    assert first.event() == ["closed"]
    second = play("mqttHasWhatWaitedAtOnce")
    assert second.until("message")[-1] == ["message", "work"]


def test_mqtt_js_has_what_waited_before_it_subscribes(
    broker: BrokerProcess, play: Play, name: str
) -> None:
    with MqttClient(broker.port(), name, is_clean=False, expiry_s=600) as before:
        before.subscribe(name, 1)
    with MqttClient(broker.port(), f"{name}-other") as other:
        other.publish(name, "waited", 1)
    assert play("mqttHasWhatWaitedAtOnce").rest() == [["connected"], ["message", "waited"]]


def test_mqtt_js_comes_back_and_sends_again(
    broker: BrokerProcess, relay: Relay, play: Play, name: str
) -> None:
    scene = play("mqttComesBack")
    assert scene.event() == ["connected"]
    with MqttClient(broker.port(), f"{name}-other") as other:
        other.subscribe(name, 1)
        relay.hold()
        scene.go_on()
        assert scene.event() == ["sent"]
        assert other.payloads() == [b"x"]
        relay.cut()
        relay.release()
        assert scene.rest() == [["confirmed"]]
        assert other.payloads() == [b"x"]
        assert relay.accepted == 2


# --- @stomp/stompjs -------------------------------------------------------------------------------


@pytest.mark.ci
def test_stompjs_comes_back_and_subscribes_in_on_connect(
    broker: BrokerProcess, relay: Relay, play: Play, name: str
) -> None:
    scene = play("stompComesBack")
    assert scene.event() == ["delays", 5000, 10_000, 10_000, "interval"]
    assert scene.event() == ["connected"]
    relay.cut()
    assert scene.event() == ["connected"]
    client = Client(broker.port(), "1.2")
    client.connect()
    client.send(f"/queue/{name}", "after")
    assert scene.rest() == [["message", "after"]]
    client.disconnect()


def test_stompjs_commits_and_aborts(play: Play) -> None:
    assert play("stompTransaction").rest() == [["bodies", ["plain", "committed", "end"]]]


# --- rhea -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_told", [False, True])
def test_rhea_accepts_by_itself_unless_it_is_told(
    broker: BrokerProcess, play: Play, name: str, is_told: bool
) -> None:
    client = Client(broker.port(), "1.2")
    client.connect()
    for body in ("open", "accepted", "last"):
        client.send(f"/queue/{name}", body, **TEXT)
    scene = play("rheaAcceptsWhenTold" if is_told else "rheaAcceptsByItself")
    came = [event[1] for event in scene.rest() if event[0] == "message"]
    assert came == ["open", "accepted", "last"]
    client.send(f"/queue/{name}", "end")
    client.subscribe(f"/queue/{name}")
    left = [client.recorder.take(1)[0].body]
    while left[-1] != "end":
        left += [client.recorder.take(1)[0].body]
    client.disconnect()
    # `last` is accepted as its handler returns, in which the connection was closed.
    assert set(left) - {"last"} == ({"open", "end"} if is_told else {"end"})


def test_rhea_comes_back_with_its_links_and_does_not_send_again(
    broker: BrokerProcess, relay: Relay, play: Play, name: str
) -> None:
    scene = play("rheaComesBack")
    assert sorted(scene.until("sendable"))[0] == ["connected"]
    client = Client(broker.port(), "1.2")
    client.connect()
    client.subscribe(f"/queue/{name}")
    relay.hold()
    scene.go_on()
    assert scene.event() == ["sent"]
    assert [frame.body for frame in client.recorder.take(1)] == ["x"]
    relay.cut()
    relay.release()
    client.send(f"/queue/{name}.back", "last", **TEXT)
    events = [event[0] for event in scene.rest()]
    client.disconnect()
    assert events == ["disconnected", "connected", "sendable", "message"]
    assert client.recorder.messages.empty()  # it was not sent again


def test_rhea_wraps_types(broker: BrokerProcess, play: Play, name: str) -> None:
    proton = pytest.importorskip("proton")
    utils = pytest.importorskip("proton.utils")
    assert play("rheaTypes").rest() == [["closed"]]
    connection = utils.BlockingConnection(f"amqp://127.0.0.1:{broker.port()}", timeout=WAIT_S)
    message = connection.create_receiver(f"/queue/{name}", credit=1).receive(WAIT_S)
    assert bytes(message.body) == b"\0\xff"
    assert isinstance(message.properties["n"], proton.short)
    connection.close()
