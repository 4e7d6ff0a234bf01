"""Stock clients of AMQP and MQTT that log in by their certificates, without a password."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.certificates import Authority
from vespiary_testkit.node_clients import need_node, run_node
from vespiary_testkit.waiting import WAIT_S

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    authority = Authority()
    (made / "ca.crt").write_bytes(authority.certificate)
    for name in ("broker", "alice", "nobody"):
        authority.sign(name).write(made / name)
    return made


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    data = folder / "data"
    data.mkdir(mode=0o700)
    (data / "users").write_text(format_users([make_user("alice", "secret", iterations=4096)]))
    settings = (
        f"acceptors.all.tls.certificate={folder}/broker/tls.crt",
        f"acceptors.all.tls.key={folder}/broker/tls.key",
        f"acceptors.all.tls.client-ca={folder}/ca.crt",
    )
    with BrokerProcess(data, *settings) as process:
        yield process


@pytest.mark.ci
@pytest.mark.parametrize(("client", "is_let_in"), [("alice", True), ("nobody", False)])
def test_rhea_by_sasl_external(
    broker: BrokerProcess, folder: Path, client: str, is_let_in: bool
) -> None:
    need_node()
    found = run_node(
        "amqp_external.js",
        *(str(broker.port()), str(folder / "ca.crt")),
        *(str(folder / client / "tls.crt"), str(folder / client / "tls.key")),
    )
    assert found.get("open", False) is is_let_in, found


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5])
@pytest.mark.parametrize(("user", "is_let_in"), [("alice", True), ("nobody", False)])
def test_paho(
    broker: BrokerProcess, folder: Path, user: str, is_let_in: bool, version: int, transport: Any
) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client = paho.Client(
        CallbackAPIVersion.VERSION2, f"{user}{version}", protocol=version, transport=transport
    )
    client.ws_set_options(path="/ws")
    client.tls_set(
        str(folder / "ca.crt"), str(folder / user / "tls.crt"), str(folder / user / "tls.key")
    )
    client.on_connect = lambda *given: answers.put(given[3])
    client.connect("localhost", broker.port())
    client.loop_start()
    try:
        assert answers.get(timeout=WAIT_S).is_failure is not is_let_in
    finally:
        client.disconnect()
        client.loop_stop()
