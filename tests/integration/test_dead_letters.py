"""Dead letters, redelivery, expiry and scheduled messages with stock clients, over restarts."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stomp

from vespiary_testkit.broker_calls import run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.dead-letter-address=DLQ",
    "address-settings.#.max-delivery-attempts=2",
    "address-settings.#.expiry-address=EXPIRED",
    "message-expiry-scan-period=100",
)


class Recorder(stomp.ConnectionListener):
    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.receipts: set[str] = set()
        self.errors: list[Any] = []

    def on_message(self, frame: Any) -> None:
        self.messages.append(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.add(frame.headers["receipt-id"])

    def on_error(self, frame: Any) -> None:
        self.errors.append(frame)


class Client:
    """One stomp.py connection."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.recorder = Recorder()
        self.connection = stomp.Connection12([("127.0.0.1", broker.port("all"))])
        self.connection.set_listener("recorder", self.recorder)
        self.connection.connect(wait=True)
        self._receipts = 0

    def receipt(self) -> str:
        self._receipts += 1
        return f"r{self._receipts}"

    def send(self, queue: str, body: bytes, **headers: Any) -> None:
        """Send, and wait until it is durable."""
        receipt = self.receipt()
        texts = {name: str(value) for name, value in headers.items()}
        self.connection.send(
            queue, body, headers={"receipt": receipt, "persistent": "true", **texts}
        )
        wait_for(lambda: receipt in self.recorder.receipts)

    def subscribe(self, queue: str, ack: str = "client-individual") -> None:
        receipt = self.receipt()
        self.connection.subscribe(queue, id="1", ack=ack, headers={"receipt": receipt})
        wait_for(lambda: receipt in self.recorder.receipts)

    def take(self, count: int) -> list[Any]:
        """Return the next messages."""
        wait_for(lambda: len(self.recorder.messages) >= count)
        taken = self.recorder.messages[:count]
        del self.recorder.messages[:count]
        return taken

    def lose(self) -> None:
        """End the connection without a word."""
        self.connection.transport.socket.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    brokers: list[BrokerProcess] = []

    def begin(*settings: str) -> BrokerProcess:
        broker = BrokerProcess(tmp_path / "data", *SETTINGS, *settings)
        brokers.append(broker)
        broker.start()
        return broker

    yield begin
    for broker in brokers:
        if broker.process is not None:
            assert broker.stop() == 0, broker.log_text()


def queue_state(broker: BrokerProcess, name: str) -> dict[str, Any]:
    """Return what the API says of a queue; nothing if there is none."""
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/{name}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError:
        return {}


def ready(broker: BrokerProcess, name: str) -> int:
    found: int = queue_state(broker, name).get("ready", -1)
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.ci
def test_dead_letters_are_there_after_a_kill(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    client = Client(broker)
    for number in range(20):
        client.send("/queue/orders", b"%d" % number, colour="red: or \\ blue")
    client.subscribe("/queue/orders")
    for _ in range(2):
        for message in client.take(20):
            client.connection.nack(message.headers["ack"])
    wait_for(lambda: ready(broker, "DLQ") == 20)
    broker.kill()
    broker.start()
    assert (ready(broker, "DLQ"), ready(broker, "orders")) == (20, 0)
    again = Client(broker)
    again.subscribe("/queue/DLQ", "auto")
    found = again.take(20)
    assert [int(message.body) for message in found] == list(range(20))
    headers = found[7].headers
    assert headers["colour"] == "red: or \\ blue"
    assert headers["_AMQ_ORIG_ADDRESS"] == headers["_AMQ_ORIG_QUEUE"] == "orders"
    assert headers["_AMQ_ORIG_MESSAGE_ID"].endswith("-8")
    assert (headers["destination"], headers["_AMQ_ORIG_DELIVERIES"]) == ("DLQ", "2")


@pytest.mark.ci
def test_lost_connections_count_and_orderly_ends_do_not(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start()
    sender = Client(broker)
    sender.send("/queue/orders", b"x")
    for _ in range(4):
        client = Client(broker)
        client.subscribe("/queue/orders")
        (message,) = client.take(1)
        assert "redelivered" not in message.headers
        client.connection.disconnect()
        wait_for(lambda: ready(broker, "orders") == 1)
    assert broker.stop() == 0  # and neither does the end of the broker
    broker.start()
    for number in range(2):
        client = Client(broker)
        client.subscribe("/queue/orders")
        (message,) = client.take(1)
        assert message.headers.get("delivery-count", "0") == str(number)
        client.lose()
    wait_for(lambda: ready(broker, "DLQ") == 1)


@pytest.mark.ci
def test_dead_letters_expire_by_the_settings_of_their_address_and_over_a_kill(
    start: Callable[..., BrokerProcess],
) -> None:
    own = ("address-settings.DLQ.expiry-delay=2s", "address-settings.DLQ.expiry-address=GONE")
    broker = start(*own, "address-settings.jobs.expiry-delay=1d")
    client = Client(broker)
    for number in range(3):
        client.send("/queue/jobs", b"%d" % number)
    said = run_command(broker, "queue", "send-to-dead-letter", "jobs", "--yes")
    assert "3 messages of jobs moved to the dead letter address" in said
    client.send("/queue/DLQ", b"sent there")
    broker.kill()
    broker.start()
    wait_for(lambda: ready(broker, "GONE") == 4)
    assert (ready(broker, "DLQ"), ready(broker, "jobs")) in ((0, 0), (-1, 0), (0, -1), (-1, -1))


@pytest.mark.engine
def test_a_large_message_takes_its_body_along(
    start: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start("min-large-message-size=64KiB")
    client = Client(broker)
    body = bytes(range(256)) * 2048
    client.send("/queue/orders", body)
    folder = tmp_path / "data" / "large-messages"
    (file,) = folder.glob("*.msg")
    number = file.stat().st_ino
    client.subscribe("/queue/orders")
    for _ in range(2):
        (message,) = client.take(1)
        client.connection.nack(message.headers["ack"])
    wait_for(lambda: ready(broker, "DLQ") == 1)
    (same,) = folder.glob("*.msg")
    assert (same.name, same.stat().st_ino) == (file.name, number)
    broker.kill()
    broker.start()
    again = Client(broker)
    again.connection.set_listener("recorder", again.recorder)
    again.subscribe("/queue/DLQ")
    (found,) = again.take(1)
    assert int(found.headers["content-length"]) == len(body)
    again.connection.ack(found.headers["ack"])
    wait_for(lambda: not list(folder.glob("*.msg")))


@pytest.mark.ci
def test_redelivery_waits_and_is_deliverable_at_once_after_a_restart(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start(
        "address-settings.#.redelivery-delay=300000", "address-settings.#.max-delivery-attempts=5"
    )
    client = Client(broker)
    client.send("/queue/orders", b"x")
    client.subscribe("/queue/orders")
    (message,) = client.take(1)
    client.connection.nack(message.headers["ack"])
    wait_for(lambda: queue_state(broker, "orders").get("aside") == 1)
    client.send("/queue/orders", b"y")
    assert client.take(1)[0].body == "y"
    broker.kill()
    broker.start()
    again = Client(broker)
    again.subscribe("/queue/orders")
    found = {message.body: message for message in again.take(2)}
    assert found["x"].headers["delivery-count"] == "1"


@pytest.mark.ci
def test_expired_messages_go_without_a_consumer_and_after_a_restart(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start()
    client = Client(broker)
    client.send("/queue/orders", b"soon", expires=now_ms() + 200)
    client.send("/queue/orders", b"kept")
    client.send("/queue/orders", b"later", expires=now_ms() + 2500)
    client.send("/queue/orders", b"jms", JMSExpiration=now_ms() + 3_600_000)
    wait_for(lambda: ready(broker, "EXPIRED") >= 1)
    broker.kill()
    broker.start()
    wait_for(lambda: ready(broker, "EXPIRED") == 2)
    again = Client(broker)
    again.subscribe("/queue/orders", "auto")
    assert [message.body for message in again.take(2)] == ["kept", "jms"]
    expired = Client(broker)
    expired.subscribe("/queue/EXPIRED", "auto")
    found = expired.take(2)
    assert [message.body for message in found] == ["soon", "later"]
    assert int(found[1].headers["_AMQ_ACTUAL_EXPIRY"]) <= now_ms()
    assert "expires" not in found[1].headers


@pytest.mark.ci
def test_the_settings_of_an_address_give_messages_a_time_to_live(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start("address-settings.short.expiry-delay=100")
    client = Client(broker)
    for number in range(50):  # also those behind the first, which a connection might have learnt
        client.send("/queue/short", b"%d" % number)
        client.send("/queue/long", b"%d" % number)
    wait_for(lambda: ready(broker, "EXPIRED") == 50)
    assert (ready(broker, "short"), ready(broker, "long")) == (0, 50)


@pytest.mark.ci
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_scheduled_messages_wait_over_a_restart(
    start: Callable[..., BrokerProcess], end: str
) -> None:
    broker = start()
    client = Client(broker)
    due_ms = now_ms() + 4000
    client.send("/queue/orders", b"at", AMQ_SCHEDULED_TIME=due_ms)
    client.send("/queue/orders", b"in", AMQ_SCHEDULED_DELAY=3_600_000)
    client.send("/queue/orders", b"now")
    wait_for(lambda: queue_state(broker, "orders").get("scheduled") == 2 or now_ms() >= due_ms)
    getattr(broker, end)()
    broker.start()
    again = Client(broker)
    again.subscribe("/queue/orders", "auto")
    assert {message.body for message in again.take(2)} == {"now", "at"}
    assert now_ms() >= due_ms
    assert queue_state(broker, "orders")["scheduled"] == 1


def test_unrouted_messages_go_to_the_dead_letter_address(
    start: Callable[..., BrokerProcess],
) -> None:
    broker = start("address-settings.news.send-to-dla-on-no-route=true")
    client = Client(broker)
    for number in range(3):
        client.send("/topic/news", b"%d" % number)
    client.send("/topic/other", b"gone")
    wait_for(lambda: ready(broker, "DLQ") == 3)
    taker = Client(broker)
    taker.subscribe("/topic/news", "auto")
    client.send("/topic/news", b"heard")
    assert taker.take(1)[0].body == "heard"
    assert ready(broker, "DLQ") == 3
    dead = Client(broker)
    dead.subscribe("/queue/DLQ", "auto")
    assert [m.headers["_AMQ_ORIG_ADDRESS"] for m in dead.take(3)] == ["news"] * 3


@pytest.mark.ci
def test_an_administrator_sends_dead_letters_back(
    start: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = start()
    client = Client(broker)
    for number in range(100):
        client.connection.send("/queue/orders", b"%d" % number, headers={"persistent": "true"})
    client.send("/queue/orders", b"last")
    assert "101 messages" in run_command(broker, "queue", "send-to-dead-letter", "orders", "--yes")
    assert (ready(broker, "orders"), ready(broker, "DLQ")) == (0, 101)
    assert "101 messages" in run_command(broker, "queue", "retry", "DLQ")
    broker.kill()
    broker.start()
    assert (ready(broker, "orders"), ready(broker, "DLQ")) == (101, 0)
    assert "101 messages" in run_command(broker, "queue", "expire", "orders", "--yes")
    assert ready(broker, "EXPIRED") == 101


def test_wrong_times_are_refused_with_the_reason(start: Callable[..., BrokerProcess]) -> None:
    broker = start()
    client = Client(broker)
    client.connection.send("/queue/orders", "x", headers={"expires": "tomorrow"})
    wait_for(lambda: client.recorder.errors)
    assert "wrong expires" in client.recorder.errors[0].headers["message"]


@pytest.mark.ci
def test_without_any_setting_a_message_that_keeps_coming_back_is_not_lost(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = Client(broker)
        client.send("/queue/orders", b"poison")
        client.subscribe("/queue/orders")
        for _ in range(10):
            (message,) = client.take(1)
            client.connection.nack(message.headers["ack"])
        wait_for(lambda: ready(broker, "DLQ") == 1)
        broker.kill()
        broker.start()
        assert (ready(broker, "DLQ"), ready(broker, "orders")) == (1, 0)
        again = Client(broker)
        again.subscribe("/queue/DLQ", "auto")
        assert again.take(1)[0].body == "poison"
