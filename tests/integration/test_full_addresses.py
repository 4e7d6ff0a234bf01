"""Full addresses with stock stomp.py clients, each setting by its effect (docs/howto/paging.md)."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stomp.exception import StompException

from vespiary_testkit.broker_process import BrokerProcess, environment
from vespiary_testkit.stock_client import Client
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

BODY = "x" * 1000


@pytest.fixture
def clients() -> Iterator[Any]:
    made: list[Client] = []

    def connect(broker: BrokerProcess) -> Client:
        client = Client(broker.port(), "1.2")
        made.append(client)
        client.connect()
        return client

    yield connect
    for client in made:
        # Their broker has ended; whoever has yet to notice does so now.
        with contextlib.suppress(OSError, StompException):
            if client.connection.is_connected():
                client.connection.disconnect()


def send(client: Client, name: str, receipt: str, queue: str = "orders") -> None:
    """Send without waiting for the receipt."""
    client.connection.send(
        f"/queue/{queue}", BODY, headers={"receipt": receipt, "persistent": "true", "name": name}
    )


LIMITS = [
    "address-settings.orders.max-size-messages=3",
    "address-settings.orders.max-size-bytes=3KiB",
    "global-max-messages=3",
    "global-max-size=8MiB",
]


def fill(client: Client, limit: str) -> int:
    """Send until the address is full; return how many messages that took."""
    body, count = BODY, 3
    if limit == "global-max-size=8MiB":
        body, count = "x" * 300_000, 28
    for _ in range(count):
        client.send("/queue/orders", body)
    return count


@pytest.mark.ci
@pytest.mark.parametrize("limit", LIMITS)
def test_a_producer_waits_until_messages_are_consumed(
    tmp_path: Path, clients: Any, limit: str
) -> None:
    settings = (
        limit,
        "address-settings.#.address-full-policy=BLOCK",
        "min-large-message-size=400KiB",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        producer, other = clients(broker), clients(broker)
        count = fill(producer, limit)
        send(producer, "late", "late")
        consumer = clients(broker)
        assert "late" not in producer.recorder.receipts
        if limit.startswith("address"):
            other.send("/queue/elsewhere", BODY)
        consumer.subscribe("/queue/orders", "client-individual", **{"prefetch-count": "100"})
        messages = consumer.recorder.take(count)
        assert "late" not in producer.recorder.receipts, "given out is not consumed"
        for message in messages:
            consumer.ack(message)
        producer.recorder.wait_receipt("late")
        assert consumer.recorder.take(1)[0].headers["name"] == "late"


def test_a_refused_producer_is_told_why(tmp_path: Path, clients: Any) -> None:
    settings = (LIMITS[0], "address-settings.orders.address-full-policy=FAIL")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        producer = clients(broker)
        fill(producer, LIMITS[0])
        send(producer, "late", "late")
        error = wait_for(lambda: not producer.recorder.errors.empty()) and (
            producer.recorder.errors.get()
        )
        assert "the address orders is full" in error.headers["message"]
        assert error.headers["receipt-id"] == "late"
        assert producer.recorder.ended.wait(60)


def test_dropped_messages_are_confirmed_and_gone(tmp_path: Path, clients: Any) -> None:
    settings = (LIMITS[0], "address-settings.orders.address-full-policy=DROP")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        producer, consumer = clients(broker), clients(broker)
        fill(producer, LIMITS[0])
        for _ in range(4):
            producer.send("/queue/orders", "late")
        consumer.subscribe("/queue/orders", "client-individual")
        assert [frame.body for frame in consumer.recorder.take(3)] == [BODY] * 3
        assert consumer.is_quiet()
        assert broker.log_text().count("messages are dropped") == 1


@pytest.mark.engine
def test_it_is_full_again_after_a_restart(tmp_path: Path, clients: Any) -> None:
    settings = (LIMITS[0], "address-settings.orders.address-full-policy=FAIL")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        fill(clients(broker), LIMITS[0])
        broker.kill()
        broker.start()
        producer = clients(broker)
        send(producer, "late", "late")
        assert producer.recorder.ended.wait(60)
        assert "is full" in producer.recorder.errors.get().headers["message"]


def test_without_persistence_the_policies_hold_too(tmp_path: Path, clients: Any) -> None:
    settings = (
        LIMITS[0],
        "address-settings.orders.address-full-policy=DROP",
        "persistence-enabled=false",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        producer, consumer = clients(broker), clients(broker)
        fill(producer, LIMITS[0])
        producer.send("/queue/orders", "late")
        consumer.subscribe("/queue/orders")
        assert [frame.body for frame in consumer.recorder.take(3)] == [BODY] * 3
        assert consumer.is_quiet()


@pytest.mark.engine
@pytest.mark.parametrize("policy", ["BLOCK", "FAIL", "DROP"])
def test_a_large_message_meets_the_policy_with_its_body_on_disk(
    tmp_path: Path, clients: Any, policy: str
) -> None:
    settings = (LIMITS[0], f"address-settings.orders.address-full-policy={policy}")
    folder = tmp_path / "data" / "large-messages"
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        producer, consumer = clients(broker), clients(broker)
        fill(producer, LIMITS[0])
        producer.connection.send(
            "/queue/orders", "y" * 200_000, headers={"receipt": "late", "persistent": "true"}
        )
        if policy == "BLOCK":
            wait_for(lambda: any(folder.iterdir()))
            assert "late" not in producer.recorder.receipts
            consumer.subscribe("/queue/orders")
            assert len(consumer.recorder.take(4)[3].body) == 200_000
            producer.recorder.wait_receipt("late")
        elif policy == "FAIL":
            assert producer.recorder.ended.wait(60)
            assert "is full" in producer.recorder.errors.get().headers["message"]
        else:
            producer.recorder.wait_receipt("late")
        wait_for(lambda: not any(folder.iterdir()), "its body goes")


def test_the_reject_threshold(tmp_path: Path, clients: Any) -> None:
    settings = (
        "address-settings.orders.max-size-bytes-reject-threshold=3KiB",
        "address-settings.orders.address-full-policy=BLOCK",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        producer = clients(broker)
        fill(producer, LIMITS[1])
        send(producer, "late", "late")
        assert producer.recorder.ended.wait(60)
        assert "reject-threshold" in producer.recorder.errors.get().headers["message"]


def test_a_contradiction_is_refused_at_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vespiary_broker", "run", "--port", "0"]
    command += ["--data", str(tmp_path / "data")]
    command += ["--set", "address-settings.orders.address-full-policy=BLOCK"]
    command += ["--set", "address-settings.orders.max-size-bytes=0"]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert answer.returncode == 1
    assert "address-settings.orders.max-size-bytes" in answer.stderr


def test_what_a_client_held_that_died_while_it_waited_goes_to_others(tmp_path: Path) -> None:
    """It has no heart-beat, so the broker never writes to it."""
    settings = (
        "address-settings.orders.max-size-messages=3",
        "address-settings.orders.address-full-policy=BLOCK",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        with StompPeer(broker.port()) as both:
            both.connect()
            headers = {"destination": "/queue/orders", "persistent": "true"}
            for number in range(3):
                both.send("SEND", headers | {"receipt": str(number)}, b"%d" % number)
                both.receive_receipt(str(number))
            held = {"id": "1", "destination": "/queue/orders", "ack": "client-individual"}
            both.send("SUBSCRIBE", held)
            assert [frame.body for frame in both.receive_messages(3)] == [b"0", b"1", b"2"]
            both.send("SEND", headers | {"receipt": "late"}, b"late")
            both.send("SEND", headers | {"receipt": "later"}, b"x" * 20_000)
            wait_for(lambda: blocked_producers(broker) == 1)
        with StompPeer(broker.port()) as other:
            other.connect()
            other.send("SUBSCRIBE", held)
            assert [frame.body for frame in other.receive_messages(3)] == [b"0", b"1", b"2"]
        wait_for(lambda: blocked_producers(broker) == 0)


def test_what_a_client_sent_before_it_closed_its_side_is_taken_when_there_is_room(
    tmp_path: Path,
) -> None:
    settings = (
        "address-settings.orders.max-size-messages=3",
        "address-settings.orders.address-full-policy=BLOCK",
    )
    broker = BrokerProcess(tmp_path / "data", *settings)
    with broker, StompPeer(broker.port()) as sender, StompPeer(broker.port()) as taker:
        sender.connect()
        headers = {"destination": "/queue/orders", "persistent": "true"}
        for number in range(5):
            sender.send("SEND", headers, b"%d" % number)
        wait_for(lambda: blocked_producers(broker) == 1)
        sender.socket.shutdown(socket.SHUT_WR)
        taker.connect()
        taker.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders", "ack": "auto"})
        bodies = [frame.body for frame in taker.receive_messages(5)]
        assert bodies == [b"0", b"1", b"2", b"3", b"4"]


def blocked_producers(broker: BrokerProcess) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as answer:
        text = answer.read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith("vespiary_blocked_producers ")]
    return float(line.split()[1])
