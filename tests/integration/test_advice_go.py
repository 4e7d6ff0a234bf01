"""What docs/howto/clients tells of Go's stock clients under "What to know", each shown.

Scenes of tests/clients/go-amqp/advice and tests/clients/go/mqtt/advice, behind a relay that holds
back what the broker says, or cuts clients off.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.client_programs import CLIENTS, go_programs
from vespiary_testkit.mqtt_client import MqttClient
from vespiary_testkit.played_scene import Scene
from vespiary_testkit.relay import Relay
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import wait_for

BUILD_S = 300
Play = Callable[[str], Scene]

pytestmark = [
    pytest.mark.ci,
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("go") is None, reason="go is not there"),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("go")
    command = ["go", "build", "-o", str(folder / "amqp"), "./advice"]
    subprocess.run(command, cwd=CLIENTS / "go-amqp", check=True, timeout=BUILD_S)
    return {"amqp": folder / "amqp", "mqtt": go_programs("mqtt", folder) / "advice"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
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


@pytest.fixture
def play(programs: dict[str, Path], relay: Relay, name: str, tmp_path: Path) -> Iterator[Play]:
    with ExitStack() as stack:

        def start(scene: str) -> Scene:
            program = programs["mqtt" if scene.startswith(("three", "five")) else "amqp"]
            command = (str(program), scene, str(relay.port), name, str(tmp_path))
            return stack.enter_context(Scene(*command))

        yield start


def other(broker: BrokerProcess, name: str) -> MqttClient:
    """Return a client that reads a topic."""
    made = MqttClient(broker.port(), f"{name}-other")
    made.connect()
    made.subscribe(name, 1)
    return made


# --- go-amqp --------------------------------------------------------------------------------------


@pytest.mark.ci
def test_go_amqp_waits_for_the_confirm_and_makes_no_durable_header(
    broker: BrokerProcess, relay: Relay, play: Play, name: str
) -> None:
    scene = play("send")
    assert scene.event() == ["ready"]
    relay.hold()
    scene.go_on()
    relay.wait_until_held()
    assert scene.is_silent()
    relay.release()
    assert scene.rest() == [["sent"]]
    client = Client(broker.port(), "1.2")
    client.connect()
    client.subscribe(f"/queue/{name}")
    assert "persistent" not in client.recorder.take(1)[0].headers
    client.disconnect()


def test_go_amqp_sends_with_a_receipt_and_goes_on(relay: Relay, play: Play) -> None:
    scene = play("receipt")
    assert scene.event() == ["ready"]
    relay.hold()
    scene.go_on()
    assert scene.event() == ["given"]
    relay.wait_until_held()
    assert scene.is_silent()
    relay.release()
    assert scene.rest() == [["sent"]]


@pytest.mark.parametrize(("mode", "is_waiting"), [("first", False), ("second", True)])
def test_go_amqp_waits_for_its_acceptance_in_mode_second(
    relay: Relay, play: Play, mode: str, is_waiting: bool
) -> None:
    scene = play(mode)
    assert scene.event() == ["ready"]
    relay.hold()
    scene.go_on()
    if is_waiting:
        relay.wait_until_held()
        assert scene.is_silent()
        relay.release()
    assert scene.event() == ["accepted"]
    relay.release()
    assert scene.rest() == []


def test_go_amqp_stays_away(relay: Relay, play: Play) -> None:
    scene = play("cut")
    assert scene.event() == ["ready"]
    relay.cut()
    assert scene.rest() == [["ended", True], ["over", True]]
    assert relay.accepted == 1


# --- paho.mqtt.golang -----------------------------------------------------------------------------


def test_paho_mqtt_golang_is_held_up_by_a_handler(play: Play) -> None:
    scene = play("threeBlocks")
    assert sorted(scene.event() for _ in range(2)) == [["begun", 1], ["published"]]
    scene.go_on()
    assert [scene.event() for _ in range(2)] == [["ended", 1], ["begun", 2]]


def test_paho_mqtt_golang_does_not_try_the_first_connection_again(
    relay: Relay, play: Play, programs: dict[str, Path], name: str, tmp_path: Path
) -> None:
    relay.target = 1  # nobody
    assert play("threeAway").rest() == [["failed", True], ["waits", True]]


def test_paho_mqtt_golang_comes_back_to_its_session(
    broker: BrokerProcess, relay: Relay, play: Play, name: str
) -> None:
    scene = play("threeComesBack")
    assert scene.until("ready")[-1] == ["ready"]
    relay.cut()
    with MqttClient(broker.port(), f"{name}-other") as sender:
        sender.publish(name, "meanwhile", 1)
    assert scene.until("message")[-1] == ["message", "meanwhile"]
    assert relay.accepted == 2


@pytest.mark.parametrize("scene_name", ["threeAcknowledges", "fiveAcknowledges"])
@pytest.mark.parametrize("is_cut", [True, False])
def test_go_acknowledges_when_handlers_have_returned(
    broker: BrokerProcess, relay: Relay, play: Play, name: str, scene_name: str, is_cut: bool
) -> None:
    scene = play(scene_name)
    with MqttClient(broker.port(), f"{name}-other") as sender:
        if scene_name == "fiveAcknowledges":
            scene.until("subscribed")
            sender.publish(name, "work", 1)
        assert scene.until("message")[-1] == ["message", "work"]
        if is_cut:
            relay.cut()
            scene.go_on()
            assert scene.until("message")[-1] == ["message", "work"]
        else:
            scene.go_on()
            sender.publish(name, "next", 1)
            assert scene.until("message")[-1] == ["message", "next"]
            relay.cut()
            scene.go_on()
            again = scene.until("message")[-1]
            if again == ["message", "work"]:  # its acknowledgement was on the way when it was cut
                scene.go_on()
                again = scene.until("message")[-1]
            assert again == ["message", "next"]


@pytest.mark.parametrize("is_held", [False, True])
def test_paho_mqtt_golang_leaves_without_a_confirm(relay: Relay, play: Play, is_held: bool) -> None:
    scene = play("threeLeaves")
    assert scene.event() == ["connected"]
    if is_held:
        relay.hold()
    scene.go_on()
    event, is_confirmed = scene.event()  # long before the time that it would wait
    assert event == "left"
    assert not (is_held and is_confirmed)


def test_paho_mqtt_golang_leaves_with_its_acknowledgement(
    broker: BrokerProcess, play: Play, name: str
) -> None:
    assert play("threeAcknowledgesAndLeaves").rest() == [["left"]]
    with MqttClient(broker.port(), name, "3.1.1", is_clean=False) as again:
        again.publish(name, "next", 1)
        assert again.payloads() == [b"next"]


def test_paho_mqtt_golang_keeps_what_was_not_confirmed_in_files(
    broker: BrokerProcess, relay: Relay, play: Play, name: str
) -> None:
    reader = other(broker, name)
    first = play("threeKeeps")
    assert first.event() == ["connected"]
    relay.hold()
    first.go_on()
    assert first.event() == ["published"]
    assert reader.payloads() == [b"x"]
    first.kill()
    relay.cut()
    relay.release()
    second = play("threeResumes")
    assert second.event() == ["connected"]
    assert reader.payloads() == [b"x"]
    reader.disconnect()


# --- paho.golang ----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_cut", [False, True])
def test_autopaho_waits_for_the_confirm_over_connections_and_fails_without_one(
    broker: BrokerProcess, relay: Relay, play: Play, name: str, is_cut: bool
) -> None:
    reader = other(broker, name)
    scene = play("fivePublishes")
    assert scene.event() == ["connected"]
    relay.hold()
    scene.go_on()
    relay.wait_until_held()
    assert scene.is_silent()
    if is_cut:
        relay.cut()
        assert scene.event() == ["down"]
    relay.release()
    assert scene.until("published")[-1] == ["published", True]
    assert reader.payloads(1 + is_cut) == [b"x"] * (1 + is_cut)
    reader.disconnect()
    relay.target = 1  # nobody
    relay.cut()
    scene.until("down")
    scene.go_on()
    assert scene.event() == ["published", False]


def test_autopaho_keeps_in_files_what_waits_for_a_connection(
    broker: BrokerProcess, relay: Relay, play: Play, name: str
) -> None:
    reader = other(broker, name)
    first = play("fiveQueues")
    assert first.event() == ["connected"]
    relay.target = 1  # nobody
    relay.cut()
    assert first.event() == ["down"]
    first.go_on("x")
    assert first.event() == ["queued"]
    first.kill()
    relay.target = broker.port()
    assert play("fiveResumes").event() == ["connected"]
    assert reader.payloads() == [b"x"]
    reader.disconnect()


def test_autopaho_keeps_in_memory_what_was_sent_and_not_confirmed(
    broker: BrokerProcess, relay: Relay, play: Play, name: str, tmp_path: Path
) -> None:
    reader = other(broker, name)
    first = play("fiveQueues")
    assert first.event() == ["connected"]
    relay.hold()
    first.go_on("x")
    assert first.event() == ["queued"]
    assert reader.payloads() == [b"x"]
    wait_for(lambda: not list(tmp_path.glob("queue*.message")))  # it leaves the files when sent
    first.kill()
    relay.cut()
    relay.release()
    second = play("fiveQueues")
    assert second.event() == ["connected"]
    second.go_on("end")  # what its queue still had would go before
    assert second.event() == ["queued"]
    assert reader.payloads() == [b"end"]
    reader.disconnect()


def test_paho_alone_stays_away(relay: Relay, play: Play) -> None:
    scene = play("fiveAlone")
    assert scene.event() == ["connected"]
    relay.cut()
    assert scene.rest() == [["ended", True], ["over"]]
    assert relay.accepted == 1
