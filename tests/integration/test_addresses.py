"""Addresses with stock stomp.py clients: wildcards, by prefix and by settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client


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
        if client.connection.is_connected():
            client.connection.disconnect()


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
        "address-settings.orders/>.default-address-routing-type=ANYCAST",
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
