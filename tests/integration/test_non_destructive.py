"""Non-destructive queues with a stock client: the latest state, pages, large messages, restarts."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.default-non-destructive=true",
    "address-settings.prices.default-last-value-queue=true",
    "address-settings.prices.default-last-value-key=share",
    "address-settings.#.max-size-bytes=512KiB",
    "address-settings.#.page-size-bytes=128KiB",
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "max-disk-usage=100",
    "min-large-message-size=100KiB",
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", *SETTINGS) as process:
        yield process


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Any]:
    clients: list[Client] = []

    def make(version: str = "1.2") -> Client:
        client = Client(broker.port(), version)
        clients.append(client)
        client.connect()
        return client

    yield make
    for client in clients:
        if client.connection.is_connected():
            client.disconnect()


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_acknowledging_frees_credit_and_removes_nothing(connect: Any, version: str) -> None:
    producer = connect()
    for number in range(6):
        producer.send("/queue/kept", str(number))
    for _ in range(2):
        client = connect(version)
        client.subscribe("/queue/kept", ack="client-individual", **{"prefetch-count": "2"})
        got = []
        for _ in range(6):
            (message,) = client.recorder.take(1)
            got.append(message.body)
            client.ack(message)
        assert got == [str(number) for number in range(6)]
        client.disconnect()


@pytest.mark.engine
def test_the_latest_state_over_a_kill(broker: BrokerProcess, connect: Any) -> None:
    producer, watcher = connect(), connect()
    watcher.subscribe("/queue/prices")
    for share, price in (("A", "1"), ("B", "2"), ("A", "3")):
        producer.send("/queue/prices", price, share=share)
    assert [message.body for message in watcher.recorder.take(3)] == ["1", "2", "3"]
    broker.kill()
    broker.start()
    late = Client(broker.port(), "1.2")
    late.connect()
    late.subscribe("/queue/prices")
    assert [message.body for message in late.recorder.take(2)] == ["2", "3"]
    late.send("/queue/prices", "4", share="B")
    assert [message.body for message in late.recorder.take(1)] == ["4"]
    late.disconnect()


@pytest.mark.engine
def test_nack_and_transactions(connect: Any) -> None:
    client = connect()
    client.send("/queue/t", "a")
    client.subscribe("/queue/t", ack="client-individual")
    (message,) = client.recorder.take(1)
    client.nack(message)
    (again,) = client.recorder.take(1)
    assert (again.body, again.headers["redelivered"]) == ("a", "true")
    transaction = client.connection.begin()
    client.ack(again, transaction=transaction)
    client.connection.abort(transaction)
    client.ack(again)
    other = connect()
    other.subscribe("/queue/t")
    assert [one.body for one in other.recorder.take(1)] == ["a"]


def test_large_messages_are_streamed_to_each(connect: Any) -> None:
    producer = connect()
    bodies = ["x" * 150_000, "small", "y" * 150_000]
    for body in bodies:
        producer.send("/queue/large", body)
    for ack in ("auto", "client", "auto"):
        client = connect()
        client.subscribe("/queue/large", ack=ack)
        assert [message.body for message in client.recorder.take(3)] == bodies


@pytest.mark.engine
def test_consumers_walk_over_pages_side_by_side(broker: BrokerProcess, tmp_path: Path) -> None:
    count, body = 3000, b"x" * 1000
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(count):
            headers = {"destination": "/queue/deep", "persistent": "true"}
            if number == count - 1:
                headers["receipt"] = "last"
            peer.send("SEND", headers, b"%d %b" % (number, body))
        peer.receive_receipt("last")
    wait_for(lambda: len(list(tmp_path.glob("data/paging/*/*.page"))) >= 10)
    for _ in range(2):
        with StompPeer(broker.port()) as one, StompPeer(broker.port()) as two:
            for peer in (one, two):
                peer.connect()
                headers = {"id": "1", "destination": "/queue/deep", "ack": "auto"}
                peer.send("SUBSCRIBE", headers)
            for peer in (one, two):
                got = [int(peer.receive().body.split(b" ")[0]) for _ in range(count)]
                assert got == list(range(count))


def shown(broker: BrokerProcess, *names: str) -> list[float]:
    """Return the values of metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines)
    return [float(values[f"vespiary_{name}"]) for name in names]


@pytest.mark.ci
def test_consumers_at_places_of_their_own_open_no_page(tmp_path: Path) -> None:
    data, count = tmp_path / "data", 3000
    with BrokerProcess(data, *SETTINGS, "address-settings.#.page-size-bytes=64KiB") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for number in range(count):
                headers = {"destination": "/queue/deep", "persistent": "true"}
                headers["colour"] = "red" if number % 500 == 0 else "blue"
                if number == count - 1:
                    headers["receipt"] = "last"
                peer.send("SEND", headers, b"%d %b" % (number, b"x" * 1000))
            peer.receive_receipt("last")
        wait_for(lambda: len(list(data.glob("paging/*/*.page"))) >= 30)
        for _ in range(2):
            peers = [StompPeer(broker.port()) for _ in range(5)]
            try:
                for index, peer in enumerate(peers):
                    peer.connect()
                    headers = {"id": "1", "destination": "/queue/deep", "ack": "client-individual"}
                    selector = {"selector": "colour = 'red'"} if index == 4 else {}
                    peer.send("SUBSCRIBE", {**headers, "prefetch-count": "3", **selector})
                for index, peer in enumerate(peers[:4]):  # each stops somewhere else
                    for number in range(50 + 300 * index):
                        frame = peer.receive()
                        assert int(frame.body.split(b" ")[0]) == number
                        peer.send("ACK", {"id": frame.get("ack") or ""})
                red = []
                for _ in range(6):
                    frame = peers[4].receive()
                    red.append(int(frame.body.split(b" ")[0]))
                    peers[4].send("ACK", {"id": frame.get("ack") or ""})
                assert red == list(range(0, count, 500))
                names = ("paging_opened_total", "paging_open_pages")
                assert shown(broker, *names) == [0, 0]
            finally:
                broker.kill()
                for peer in peers:
                    peer.close()
            broker.start()
