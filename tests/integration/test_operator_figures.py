"""Figures that an on-call operator needs: credit, ages, rates, limits, settings, peers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_calls import call, metrics, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.mqtt_client import MqttClients
from vespiary_testkit.numbered_messages import send_numbered
from vespiary_testkit.stock_client import Client
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.ci

SETTINGS = (
    "acceptors.all.protocols=STOMP,AMQP,MQTT",
    "address-settings.#.max-size-messages=1000",
    "address-settings.limited.#.max-size-bytes=10MiB",
    "address-settings.limited.one.address-full-policy=BLOCK",
    "address-settings.paged.max-size-bytes=256KiB",
    "address-settings.paged.page-size-bytes=128KiB",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("figures") / "data", *SETTINGS) as process:
        yield process


def consumers(broker: BrokerProcess, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call(broker, "GET", f"/consumers?queue={queue}")["items"]
    return found


def credit(broker: BrokerProcess, queue: str) -> int | None:
    (one,) = consumers(broker, queue)
    found: int | None = one["credit"]
    return found


@pytest.mark.parametrize(
    ("mode", "expected"), [("client", 3), ("client-individual", 3), ("auto", None)]
)
def test_credit_of_stomp_is_what_is_left_of_its_prefetch(
    broker: BrokerProcess, mode: str, expected: int | None
) -> None:
    queue, client = f"stomp.{mode}", Client(broker.port(), "1.2")
    client.connect()
    client.subscribe(f"/queue/{queue}", mode, **{"prefetch-count": "5"})
    for _ in range(2):
        client.send(f"/queue/{queue}", "x")
    first, _ = client.recorder.take(2)
    assert credit(broker, queue) == expected
    if expected is not None:
        client.ack(first)
        assert credit(broker, queue) == 4
    client.disconnect()


def test_credit_of_amqp_is_that_of_the_link(broker: BrokerProcess) -> None:
    proton = pytest.importorskip("proton", reason="python-qpid-proton is not there")
    from proton.utils import BlockingConnection

    url = f"amqp://127.0.0.1:{broker.port()}"
    with contextlib.closing(BlockingConnection(url, timeout=WAIT_S)) as connection:
        receiver = connection.create_receiver("/queue/amqp", credit=0)
        assert credit(broker, "amqp") == 0
        shown = run_command(broker, "consumer", "list", "--queue", "amqp")
        assert shown.splitlines()[1].split()[4] == "0"
        receiver.link.flow(7)
        sender = connection.create_sender("/queue/amqp")  # which writes the flow too
        wait_for(lambda: credit(broker, "amqp") == 7)
        sender.send(proton.Message(body="x"))
        wait_for(lambda: credit(broker, "amqp") == 6)
        assert consumers(broker, "amqp")[0]["delivering"] == 1


def test_credit_of_mqtt_is_what_is_left_of_its_window(broker: BrokerProcess) -> None:
    with MqttClients(broker.port()) as clients:
        reader = clients("reader", is_manual=True, ReceiveMaximum=4)
        reader.subscribe("mqtt/once", 0)
        reader.subscribe("mqtt/twice", 1)
        reader.publish("mqtt/twice", "x")
        message = reader.take()[0]
        by_filter = {
            each["subscription"]: each["credit"]
            for each in call(broker, "GET", "/consumers")["items"]
            if each["subscription"].startswith("mqtt/")
        }
        assert by_filter == {"mqtt/once": None, "mqtt/twice": 3}
        reader.own.ack(message.mid, message.qos)

        def left() -> list[int | None]:
            found = call(broker, "GET", "/consumers")["items"]
            return [one["credit"] for one in found if one["subscription"] == "mqtt/twice"]

        wait_for(lambda: left() == [4])


def row(broker: BrokerProcess, *command: str, name: str) -> dict[str, str]:
    """Return a row of a table by its first cell, by heading; no cell may be empty."""
    head, *lines = run_command(broker, *command).splitlines()
    (line,) = (line for line in lines if line.split()[0] == name)
    return dict(zip(head.split(), line.split(), strict=True))


def test_a_queue_shows_its_state_ages_rates_and_where_messages_are(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        begun_s = time.time()
        for number in range(3):
            headers = {"destination": "/queue/shown", "persistent": "true", "receipt": str(number)}
            if number == 2:
                headers["AMQ_SCHEDULED_DELAY"] = "3600000"
            peer.send("SEND", headers, b"x")
            peer.receive_receipt(str(number))
        found = call(broker, "GET", "/queues/shown")
        assert 0 <= found["oldestAgeS"] <= time.time() - begun_s + 1
        assert (found["scheduled"], found["paged"], found["state"]) == (1, 0, "no-consumers")
        shown = row(broker, "queue", "list", name="shown")
        assert (shown["state"], shown["scheduled"], shown["paged"]) == ("no-consumers", "1", "0")
        assert shown["oldest"].endswith("s")
        assert {"in/s", "out/s"} <= shown.keys()

        def rates() -> tuple[float | None, float | None]:
            found = call(broker, "GET", "/queues/shown")
            return found["inPerS"], found["outPerS"]

        wait_for(lambda: rates() == (0.0, 0.0))
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/shown", "ack": "auto"})
        peer.receive_messages(2)

        def is_moving() -> bool:
            """Go on sending until a sample has seen it."""
            peer.send("SEND", {"destination": "/queue/shown", "receipt": "again"}, b"x")
            peer.receive_receipt("again")
            found = rates()
            return bool(found[0] and found[1])

        wait_for(is_moving)
        assert call(broker, "GET", "/queues/shown")["state"] == "scheduled", "that is all it has"
    empty = call(broker, "POST", "/queues", {"name": "nothing"})
    assert (empty["state"], empty["oldestAgeS"], empty["inPerS"]) == ("idle", None, 0.0)


@pytest.mark.ci
def test_the_oldest_message_is_found_in_pages_and_after_a_restart(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", *SETTINGS, "max-disk-usage=100")
    broker.start()
    begun_s = time.time()
    send_numbered(broker.port(), "/queue/paged", range(900))
    ended_s = time.time()
    wait_for(lambda: call(broker, "GET", "/queues/paged")["paged"] > 400)
    for is_again in (False, True):
        asked_s = time.time()
        found = call(broker, "GET", "/queues/paged")
        answered_s = time.time()
        assert asked_s - ended_s - 1 <= found["oldestAgeS"] <= answered_s - begun_s + 1
        assert found["paged"] > 400
        listed = call(broker, "GET", "/queues")["items"]
        assert [one["oldestAgeS"] is None for one in listed if one["name"] == "paged"] == [False]
        assert metrics(broker)['vespiary_queue_paged_messages{address="paged",queue="paged"}'] > 400
        if not is_again:
            broker.kill()
            broker.start()
    assert broker.stop() == 0, broker.log_text()


def test_an_address_shows_its_limits_and_where_each_setting_is_from(broker: BrokerProcess) -> None:
    client = Client(broker.port(), "1.2")
    client.connect()
    client.send("/queue/limited.one", "x" * 1000)
    client.disconnect()
    found = json.loads(run_command(broker, "address", "show", "limited.one", "--json"))
    memory = found["memory"]
    assert (memory["policy"], memory["maxBytes"], memory["maxMessages"]) == (
        "BLOCK",
        10 << 20,
        1000,
    )
    assert 1000 < memory["sizeBytes"] < 10_000
    settings = {one["name"]: (one["value"], one["match"]) for one in found["settings"]}
    assert settings["max-size-messages"] == (1000, "#")
    assert settings["max-size-bytes"] == (10 << 20, "limited.#")
    assert settings["address-full-policy"] == ("BLOCK", "limited.one")
    assert settings["auto-create-queues"] == (True, None)
    shown = run_command(broker, "address", "show", "limited.one")
    assert "of 10.0 MiB, messages: 1 of 1000" in shown
    assert "BLOCK, has room" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["max-size-bytes", "10485760", "limited.#"] in lines
    assert ["auto-create-queues", "true", "(default)"] in lines


def test_settings_are_for_administrators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    users = [make_user("alice", "secret", iterations=4096)]
    (data / "users").write_text(format_users(users))
    (tmp_path / "password").write_text("secret")
    (tmp_path / "password").chmod(0o600)
    with BrokerProcess(data) as broker, StompPeer(broker.port()) as peer:
        peer.connect(login="alice", passcode="secret")
        peer.send("SEND", {"destination": "/queue/q", "receipt": "1"}, b"x")
        peer.receive_receipt("1")
        url = f"http://alice@127.0.0.1:{broker.port('http')}"
        asked = ["address", "show", "q", "--api", url]
        asked += ["--password-file", str(tmp_path / "password")]
        assert run_program(asked) == 0
        shown = capsys.readouterr().out
        assert "settings not shown: " in shown
        assert "role admin" in shown
        assert "any number" in shown, "the figures are for everybody"


def test_a_connection_shows_address_and_port(broker: BrokerProcess) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect(client_id="here")
        port = peer.socket.getsockname()[1]
        (found,) = (
            one for one in call(broker, "GET", "/connections")["items"] if one["clientId"] == "here"
        )
        assert (found["peer"], found["peerPort"]) == ("127.0.0.1", port)
        assert f"127.0.0.1:{port}" in run_command(broker, "connection", "list")
