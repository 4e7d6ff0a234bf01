"""Addresses with stock stomp.py clients: wildcards, by prefix and by settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stomp.exception import StompException

from vespiary_broker.cli.api_client import ApiClient
from vespiary_broker.cli.program import run_program
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for


@pytest.fixture
def clients() -> Iterator[Any]:
    made: list[Client] = []

    def connect(broker: BrokerProcess, **headers: str) -> Client:
        client = Client(broker.port(), "1.2")
        made.append(client)
        client.connect(**headers)
        return client

    yield connect
    for client in made:
        # Their broker has ended; whoever has yet to notice does so now.
        with contextlib.suppress(OSError, StompException):
            if client.connection.is_connected():
                client.connection.disconnect()


@pytest.mark.ci
def test_wildcard_subscriptions_over_a_restart(tmp_path: Path, clients: Any) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        listener = clients(broker)
        listener.subscribe("/topic/news.#")
        sleeper = clients(broker, **{"client-id": "me"})
        sleeper.subscribe(
            "/topic/news.*.sport", **{"durable-subscription-name": "sport", "ack": "auto"}
        )
        sleeper.disconnect()
        sender = clients(broker)
        sender.send("/topic/news.eu", "1")
        sender.send("/topic/news.eu.sport", "2")
        sender.send("/topic/weather.eu.sport", "3")
        got = listener.recorder.take(2)
        assert [frame.body for frame in got] == ["1", "2"]
        assert [frame.headers["destination"] for frame in got] == [
            "/topic/news.eu",
            "/topic/news.eu.sport",
        ]
        broker.kill()
        broker.start()
        sender = clients(broker)
        sender.send("/topic/news.us.sport", "4")
        awake = clients(broker, **{"client-id": "me"})
        awake.subscribe("/topic/news.*.sport", **{"durable-subscription-name": "sport"})
        assert [frame.body for frame in awake.recorder.take(2)] == ["2", "4"]


def test_another_syntax_of_wildcards(tmp_path: Path, clients: Any) -> None:
    settings = (
        "wildcard-addresses.delimiter=/",
        "wildcard-addresses.any-words=>",
        "address-settings.news/>.default-address-routing-type=MULTICAST",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        listener = clients(broker)
        listener.subscribe("/topic/news/>")
        sender = clients(broker)
        sender.send("/topic/news.eu", "0")
        sender.send("/topic/news/eu/sport", "1")
        assert [frame.body for frame in listener.recorder.take(1)] == ["1"]
        sender.send("orders/eu", "2")  # kept, as the match says ANYCAST
        late = clients(broker)
        late.subscribe("/queue/orders/eu")
        assert [frame.body for frame in late.recorder.take(1)] == ["2"]


def _names(broker: BrokerProcess, what: str = "queues") -> set[str]:
    client = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)
    return {item["name"] for item in client.items(f"/{what}")}


@pytest.mark.ci
def test_queues_and_addresses_go_by_themselves(tmp_path: Path, clients: Any) -> None:
    settings = (
        "address-queue-scan-period=50ms",
        "address-settings.#.auto-delete-queues-delay=100ms",
        "address-settings.#.auto-delete-addresses-delay=100ms",
        "address-settings.kept.#.auto-delete-queues=false",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        client = clients(broker)
        client.send("/queue/a", "1")
        client.send("/queue/kept.a", "1")
        assert _names(broker) == {"a", "kept.a"}
        client.subscribe("/queue/a")
        client.recorder.take(1)
        client.connection.unsubscribe("1")
        wait_for(lambda: _names(broker) == {"kept.a"})
        wait_for(lambda: _names(broker, "addresses") == {"kept.a"})
        # A stop: nobody was told that it is gone for good, so a kill may bring it back.
        assert broker.stop() == 0
        broker.start()
        assert _names(broker) == {"kept.a"}


def test_consumers_are_bounded_and_purged(tmp_path: Path, clients: Any) -> None:
    settings = (
        "address-settings.one.default-max-consumers=1",
        "address-settings.live.default-purge-on-no-consumers=true",
        "address-settings.#.auto-delete-queues=false",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        first, second = clients(broker), clients(broker)
        first.subscribe("/queue/one")
        second.connection.subscribe("/queue/one", id="1")
        error = second.recorder.errors.get(timeout=WAIT_S)
        assert "allowed: at most 1 (max-consumers)" in error.headers["message"]
        viewer = clients(broker)
        viewer.subscribe("/queue/live", "client-individual")
        first.send("/queue/live", "1")
        viewer.recorder.take(1)
        viewer.disconnect()
        api = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)
        wait_for(lambda: api.call("GET", "/queues/live")["messages"] == 0)
        first.send("/queue/live", "nobody is there")
        assert api.call("GET", "/queues/live")["messages"] == 0


@pytest.mark.ci
def test_what_is_not_configured_any_more(tmp_path: Path, clients: Any) -> None:
    file = tmp_path / "broker.yaml"
    text = """
addresses:
  - {name: orders, queues: [{name: orders}, {name: audit}]}
  - {name: gone, queues: [{name: gone}]}
address-settings:
  "#": {config-delete-queues: FORCE}
"""
    file.write_text(text)
    with BrokerProcess(tmp_path / "data", configuration=file) as broker:
        clients(broker).send("/queue/gone", "1")
        clients(broker).send("orders::audit", "1")
        assert _names(broker) == {"orders", "audit", "gone"}
        broker.kill()
        file.write_text(text.replace(", {name: audit}", "").replace("queues: [{name: gone}]", ""))
        broker.start()
        assert _names(broker) == {"orders"}
        assert _names(broker, "addresses") == {"orders", "gone"}


def test_limits(tmp_path: Path, clients: Any) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(
        "max-addresses: 3\n"
        "resource-limit-settings: [{match: anonymous, max-sessions: 2, max-queues: 2}]\n"
    )
    with BrokerProcess(tmp_path / "data", configuration=file) as broker:
        first, second = clients(broker), clients(broker)
        with StompPeer(broker.port()) as peer:
            peer.send("CONNECT", {"accept-version": "1.2", "host": "x"})
            error = peer.receive_error()
        assert "at most 2 (max-sessions of resource-limit-settings)" in error.get("message", "")
        second.disconnect()
        third = clients(broker)
        first.send("/queue/a", "1")
        first.send("/queue/b", "2")
        third.connection.send("/queue/c", "3")
        error = third.recorder.errors.get(timeout=WAIT_S)
        assert "at most 2 (max-queues of resource-limit-settings)" in error.headers["message"]
        for number in range(5):
            first.send(f"/topic/t{number}", "nobody listens")
        assert _names(broker, "addresses") == {"a", "b", "t4"}
        first.subscribe("/queue/a")
        assert first.recorder.take(1)[0].body == "1"


def test_a_client_that_sends_to_ever_new_addresses_meets_the_limit_alone(
    tmp_path: Path, clients: Any
) -> None:
    most = 20
    with BrokerProcess(tmp_path / "data", f"max-addresses={most}") as broker:
        with StompPeer(broker.port()) as flood:
            flood.connect()
            for number in range(most):
                headers = {"destination": f"/queue/q{number}", "receipt": str(number)}
                flood.send("SEND", headers, b"kept")
                flood.receive_receipt(str(number))
            for number in range(5 * most):  # no room even for those that nobody listens to
                flood.send("SEND", {"destination": f"/topic/t{number}"}, b"x")
            error = flood.receive_error()
        said = error.get("message", "") + error.body.decode()
        assert f"at most {most} (max-addresses)" in said
        assert "Delete some, or raise max-addresses" in said
        assert len(_names(broker, "addresses")) == most
        other = clients(broker)
        other.subscribe("/queue/q7")
        assert other.recorder.take(1)[0].body == "kept"
        other.connection.disconnect()
        wait_for(lambda: "q7" not in _names(broker, "addresses"))  # it went by itself
        clients(broker).send("/queue/late", "there is room")
        assert "late" in _names(broker, "addresses")


def _ask(broker: BrokerProcess, *arguments: str) -> None:
    url = f"http://127.0.0.1:{broker.port('http')}"
    assert run_program([*arguments, "--api", url]) == 0


@pytest.mark.ci
def test_pauses_and_changes_survive_a_kill(
    tmp_path: Path, clients: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        _ask(broker, "queue", "create", "orders", "--max-consumers", "1")
        _ask(broker, "queue", "pause", "orders", "--persist")
        _ask(broker, "address", "update", "orders", "--routing-type", "ANYCAST")
        clients(broker).send("/queue/orders", "1")
        broker.kill()
        broker.start()
        api = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)
        queue = api.call("GET", "/queues/orders")
        assert (queue["isPaused"], queue["maxConsumers"], queue["ready"]) == (True, 1, 1)
        reader = clients(broker)
        reader.subscribe("/queue/orders")
        assert api.call("GET", "/queues/orders")["delivering"] == 0
        assert reader.is_quiet()
        _ask(broker, "queue", "resume", "orders")
        assert reader.recorder.take(1)[0].body == "1"
        broker.kill()
        broker.start()
        api = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)
        assert api.call("GET", "/queues/orders")["isPaused"] is False
    assert "queue orders paused, also after a restart" in capsys.readouterr().out


@pytest.mark.ci
def test_a_paused_address_survives_a_kill(
    tmp_path: Path, clients: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        _ask(
            broker, "queue", "create", "desk", "--address", "prices", "--routing-type", "MULTICAST"
        )
        _ask(broker, "address", "pause", "prices", "--persist")
        broker.kill()
        broker.start()
        api = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)
        assert api.call("GET", "/addresses/prices")["isPaused"] is True
        reader, late = clients(broker), clients(broker)
        reader.subscribe("prices::desk")
        late.subscribe("/topic/prices")
        clients(broker).send("/topic/prices", "1")
        assert api.call("GET", "/queues/desk")["ready"] == 1
        assert api.call("GET", "/queues/desk")["isPaused"] is True
        _ask(broker, "queue", "resume", "desk")
        said = capsys.readouterr().out
        assert "address prices paused, also after a restart" in said
        assert "desk goes on, but its address is paused (`vespiary address resume`)" in said
        assert reader.is_quiet()
        assert late.is_quiet()
        _ask(broker, "address", "resume", "prices")
        assert reader.recorder.take(1)[0].body == "1"
        assert late.recorder.take(1)[0].body == "1"
        broker.kill()
        broker.start()
        api = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)
        assert api.call("GET", "/addresses/prices")["isPaused"] is False
