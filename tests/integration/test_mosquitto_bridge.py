"""A stock mosquitto as a bridge: it forwards topics to this broker, and from it.

The bridge has its default settings: it says in a retained message, and in its will, whether it is
connected, on a topic that begins with $SYS; and in MQTT 3, CONNECT says that it is a bridge.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import PROTOCOLS, MqttClient
from vespiary_testkit.relay import Relay
from vespiary_testkit.waiting import WAIT_S, wait_for

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        MOSQUITTO is None, reason="there is no mosquitto: `make mosquitto` installs it"
    ),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", PROTOCOLS) as process:
        yield process


@pytest.fixture
def relay(broker: BrokerProcess) -> Iterator[Relay]:
    """Return a port that stays while the broker restarts."""
    with Relay(broker.port()) as made:
        yield made


@pytest.fixture
def bridge(tmp_path: Path, relay: Relay) -> Iterator[Callable[[str, str], int]]:
    """Return what starts mosquitto with protocol and ID of the bridge, and returns its port."""
    running: list[subprocess.Popen[bytes]] = []
    config, log = tmp_path / "mosquitto.conf", tmp_path / "mosquitto.log"

    def launch(port: int, protocol: str, client_id: str) -> bool:
        """Return whether it runs: another program may have taken its port meanwhile."""
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\n"
            f"connection to-core\naddress 127.0.0.1:{relay.port}\n"
            f"bridge_protocol_version {protocol}\nrestart_timeout 1\n"
            f"remote_clientid {client_id}\ntopic out/# out 1\ntopic in/# in 1\n"
        )
        with log.open("wb") as output:
            command = [str(MOSQUITTO), "-v", "-c", str(config)]
            process = subprocess.Popen(command, stdout=output, stderr=output)
        running.append(process)
        wait_for(lambda: " running\n" in log.read_text() or process.poll() is not None)
        return " running\n" in log.read_text()

    def start(protocol: str, client_id: str) -> int:
        while True:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port: int = free.getsockname()[1]
            if launch(port, protocol, client_id):
                return port
            assert "Address already in use" in log.read_text(), log.read_text()

    yield start
    for process in running:
        process.terminate()
        process.wait(WAIT_S)


def until(client: MqttClient, payload: bytes) -> None:
    """Wait for a message; one of QoS 1 from before the kill may come again first."""
    while client.payloads() != [payload]:
        pass


@pytest.mark.parametrize(
    ("protocol", "client_id"),
    [("mqttv31", "edge"), ("mqttv311", "site/edge"), ("mqttv50", "edge.1")],
)
def test_messages_cross_the_bridge_both_ways(
    broker: BrokerProcess,
    relay: Relay,
    bridge: Callable[[str, str], int],
    protocol: str,
    client_id: str,
) -> None:
    port = bridge(protocol, client_id)
    with MqttClient(broker.port(), "core") as core:
        core.subscribe(f"$SYS/broker/connection/{client_id}/state", 1)
        core.subscribe("out/#", 1)
        assert core.payloads() == [b"1"], "the bridge is connected"
        with MqttClient(port, "edge") as edge:
            edge.subscribe("in/#", 1)
            edge.publish("out/a", "from the edge", 1)
            assert core.payloads() == [b"from the edge"]
            core.publish("in/a", "from the core", 1)
            assert edge.payloads() == [b"from the core"]
    assert "refused" not in broker.log_text(), "no connection was"
    broker.kill()
    with MqttClient(port, "edge", "3.1.1", is_clean=False) as edge:
        edge.subscribe("in/#", 1)
        edge.publish("out/b", "while it is away", 1)
        broker.start()
        relay.target = broker.port()
        with MqttClient(broker.port(), "core") as core:
            core.subscribe("out/#", 1)
            until(core, b"while it is away")
            core.publish("in/b", "again", 1)
        until(edge, b"again")
