"""What consumers get ahead: by their own header, by the acceptor, by their address."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer

SETTINGS = (
    "address-settings.few.#.queue-prefetch=3",
    "address-settings.small.#.default-consumer-window-size=2KiB",
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", *SETTINGS) as process:
        yield process


def ahead(broker: BrokerProcess, listener: str, queue: str, expected: int, **headers: str) -> int:
    """Return how many of ten messages a consumer holds that has got those that are expected."""
    destination = f"/queue/{queue}"
    with StompPeer(broker.port(listener)) as peer:
        peer.connect()
        for _ in range(10):
            peer.send("SEND", {"destination": destination})
        subscribe = {"id": "1", "destination": destination, "ack": "client-individual"}
        peer.send("SUBSCRIBE", subscribe | headers)
        for _ in range(expected):
            assert peer.receive().command == "MESSAGE"
        url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/{queue}"
        with urllib.request.urlopen(url) as answer:
            return int(json.load(answer)["delivering"])


@pytest.mark.parametrize(
    ("queue", "headers", "expected"),
    [
        ("few.1", {}, 3),
        ("small.1", {}, 2),
        ("other", {}, 10),
        ("few.2", {"prefetch-count": "5"}, 5),
        ("small.2", {"consumer-window-size": "4096"}, 4),
    ],
)
def test_the_header_before_the_address(
    broker: BrokerProcess, queue: str, headers: dict[str, str], expected: int
) -> None:
    assert ahead(broker, "all", queue, expected, **headers) == expected


def test_the_acceptor_before_the_address(tmp_path: Path) -> None:
    acceptor = "acceptors.stomp.stomp.prefetch=4"
    with BrokerProcess(tmp_path / "data", *SETTINGS, acceptor) as broker:
        assert ahead(broker, "stomp", "few.3", 4) == 4
