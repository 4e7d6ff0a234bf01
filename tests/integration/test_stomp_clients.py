"""Stock stomp.py clients against a real broker, in all three versions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from vespiary_broker.cli.api_client import ApiClient
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import VERSIONS, Client
from vespiary_testkit.waiting import WAIT_S, wait_for


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Any]:
    clients: list[Client] = []

    def make(version: str = "1.2", **headers: str) -> Client:
        client = Client(broker.port(), version)
        clients.append(client)
        client.connect(**headers)
        return client

    yield make
    for client in clients:
        if client.connection.is_connected():
            client.disconnect()


@pytest.mark.engine
@pytest.mark.parametrize("version", VERSIONS)
def test_send_receipt_message_acknowledge(connect: Any, version: str) -> None:
    client = connect(version)
    name = f"/queue/round.{version}"
    for number in range(50):
        client.send(name, f"body {number}", number=str(number))
    client.subscribe(name, ack="client")
    messages = client.recorder.take(50)
    assert [m.body for m in messages] == [f"body {n}" for n in range(50)]
    assert [m.headers["number"] for m in messages] == [str(n) for n in range(50)]
    assert messages[0].headers["destination"] == name
    client.ack(messages[-1])  # cumulative
    client.disconnect()
    again = connect(version)
    again.send(name, "last")
    again.subscribe(name)
    assert [m.body for m in again.recorder.take(1)] == ["last"]


@pytest.mark.engine
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_individual_acknowledgements_leave_the_others(connect: Any, version: str) -> None:
    client = connect(version)
    name = f"/queue/individual.{version}"
    for number in range(6):
        client.send(name, str(number))
    client.subscribe(name, ack="client-individual")
    messages = client.recorder.take(6)
    for message in messages[::2]:
        client.ack(message)
    client.disconnect()
    again = connect(version)
    again.subscribe(name, ack="client-individual")
    rest = again.recorder.take(3)
    assert [m.body for m in rest] == ["1", "3", "5"]
    assert not any("redelivered" in m.headers for m in rest)  # it went in an orderly way
    for message in rest:
        again.ack(message)


@pytest.mark.engine
@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_nack_brings_the_message_back_with_a_count(connect: Any, version: str) -> None:
    client = connect(version)
    name = f"/queue/nack.{version}"
    client.send(name, "again")
    client.subscribe(name, ack="client-individual")
    (first,) = client.recorder.take(1)
    assert "redelivered" not in first.headers
    client.nack(first)
    (second,) = client.recorder.take(1)
    assert (second.headers["redelivered"], second.headers["delivery-count"]) == ("true", "1")
    client.nack(second)
    (third,) = client.recorder.take(1)
    assert third.headers["delivery-count"] == "2"
    client.ack(third)


@pytest.mark.parametrize("version", ["1.1", "1.2"])
def test_escapes_survive_the_journey(connect: Any, version: str) -> None:
    client = connect(version)
    name = f"/queue/escapes.{version}"
    text = "colon: backslash\\ line\nend ünïcode"
    client.subscribe(name)
    client.send(name, "x", odd=text)
    (message,) = client.recorder.take(1)
    assert message.headers["odd"] == text


@pytest.mark.engine
def test_binary_body_with_nul(broker: BrokerProcess) -> None:
    client = Client(broker.port(), "1.2", auto_decode=False)
    client.connect()
    body = bytes(range(256)) * 10
    client.subscribe("/queue/binary")
    client.send("/queue/binary", body)
    (message,) = client.recorder.take(1)
    assert bytes(message.body) == body
    client.disconnect()


@pytest.mark.engine
def test_transactions(connect: Any) -> None:
    client, watcher = connect(), connect()
    watcher.subscribe("/queue/transactions")
    connection = client.connection
    connection.begin("t1")
    for number in range(3):
        client.send("/queue/transactions", f"kept {number}", transaction="t1")
    connection.begin("t2")
    client.send("/queue/transactions", "dropped", transaction="t2")
    connection.abort("t2", receipt="aborted")
    client.recorder.wait_receipt("aborted")
    assert watcher.is_quiet()
    connection.commit("t1", receipt="committed")
    client.recorder.wait_receipt("committed")
    assert [m.body for m in watcher.recorder.take(3)] == [f"kept {n}" for n in range(3)]
    assert watcher.is_quiet()


def test_transactional_acknowledgement(connect: Any) -> None:
    client = connect()
    for number in range(3):
        client.send("/queue/tx-ack", str(number))
    client.subscribe("/queue/tx-ack", ack="client-individual")
    messages = client.recorder.take(3)
    client.connection.begin("good")
    client.ack(messages[0], transaction="good")
    client.connection.commit("good", receipt="good")
    client.recorder.wait_receipt("good")
    client.connection.begin("bad")
    client.ack(messages[1], transaction="bad")
    client.connection.abort("bad", receipt="bad")
    client.recorder.wait_receipt("bad")
    client.disconnect()
    again = connect()
    again.subscribe("/queue/tx-ack")
    assert [m.body for m in again.recorder.take(2)] == ["1", "2"]


def test_topic_goes_to_every_subscriber(connect: Any) -> None:
    subscribers = [connect(version) for version in VERSIONS]
    for subscriber in subscribers:
        subscriber.subscribe("/topic/news")
    sender = connect()
    for number in range(10):
        sender.send("/topic/news", str(number))
    for subscriber in subscribers:
        assert [m.body for m in subscriber.recorder.take(10)] == [str(n) for n in range(10)]


def test_a_reply_comes_to_a_temporary_queue_that_goes_with_who_asked(
    broker: BrokerProcess, connect: Any
) -> None:
    server, asking = connect(), connect()
    server.subscribe("/queue/prices")
    replies = "/topic/replies.5f0c"
    asking.subscribe(replies)
    asking.send("/queue/prices", "how much?", **{"reply-to": replies})
    (question,) = server.recorder.take(1)
    server.send(question.headers["reply-to"], "little")
    assert asking.recorder.take(1)[0].body == "little"

    api = ApiClient(f"http://127.0.0.1:{broker.port('http')}", None)

    def queues() -> list[dict[str, Any]]:
        return [each for each in api.items("/queues") if each["address"] == "replies.5f0c"]

    assert [each["isTemporary"] for each in queues()] == [True]
    asking.disconnect()
    wait_for(lambda: not queues())
    server.send(replies, "too late")  # confirmed, and gone
    assert not queues()


def test_durable_subscription_waits_for_its_owner(connect: Any) -> None:
    durable = {"durable-subscription-name": "audit"}
    first = connect(**{"client-id": "alice"})
    first.subscribe("/topic/ledger", **durable)
    first.disconnect()
    sender = connect()
    for number in range(5):
        sender.send("/topic/ledger", str(number))
    again = connect(**{"client-id": "alice"})
    again.subscribe("/topic/ledger", **durable)
    assert [m.body for m in again.recorder.take(5)] == [str(n) for n in range(5)]
    again.connection.unsubscribe("1", headers={"receipt": "gone", **durable})
    again.recorder.wait_receipt("gone")
    sender.send("/topic/ledger", "nobody")
    last = connect(**{"client-id": "alice"})
    last.subscribe("/topic/ledger", **durable)
    sender.send("/topic/ledger", "somebody")
    assert [m.body for m in last.recorder.take(1)] == ["somebody"]


def test_competing_consumers_share(connect: Any) -> None:
    consumers = [connect() for _ in range(4)]
    for consumer in consumers:
        consumer.subscribe("/queue/shared", ack="client-individual")
    sender = connect()
    for number in range(200):
        sender.connection.send("/queue/shared", str(number), headers={"persistent": "true"})
    sender.send("/queue/shared", "200")
    shares: list[list[str]] = [[] for _ in consumers]

    def take_all() -> bool:
        for consumer, share in zip(consumers, shares, strict=True):
            while not consumer.recorder.messages.empty():
                message = consumer.recorder.messages.get()
                share.append(message.body)
                consumer.connection.ack(message.headers["ack"])
        return sum(map(len, shares)) >= 201

    wait_for(take_all, lambda: shares)
    assert sorted(chain(*shares), key=int) == [str(n) for n in range(201)]
    assert min(map(len, shares)) > 10


@pytest.mark.ci
def test_heart_beats_keep_an_idle_connection(broker: BrokerProcess) -> None:
    # The broker waits for two intervals, the client for three: a busy machine is late with one.
    client = Client(broker.port(), "1.2", heartbeats=(2000, 2000), heart_beat_receive_scale=3.0)
    client.connect()
    idle = threading.Event()
    assert not idle.wait(8.8)  # more than either side waits for
    assert client.connection.is_connected()
    assert client.recorder.errors.empty()
    client.disconnect()


def test_error_names_the_reason(broker: BrokerProcess) -> None:
    client = Client(broker.port(), "1.2")
    client.connect()
    client.connection.subscribe("/queue/a", id="1", headers={"selector": "colour = "})
    error = client.recorder.errors.get(timeout=WAIT_S)
    assert "selector" in error.headers["message"]
    assert client.recorder.ended.wait(WAIT_S)
