"""Who gets what, and in which order: selectors, exclusive consumers, consumer priority."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(
        tmp_path_factory.mktemp("broker") / "data",
        "address-settings.alone.#.default-exclusive-queue=true",
        "address-settings.late.#.default-consumers-before-dispatch=2",
        "address-settings.late.timed.default-delay-before-dispatch=100",
    ) as process:
        yield process


@pytest.fixture
def connect(broker: BrokerProcess) -> Iterator[Any]:
    clients: list[Client] = []

    def make(**headers: str) -> Client:
        client = Client(broker.port(), "1.2")
        clients.append(client)
        client.connect(**headers)
        return client

    yield make
    for client in clients:
        if client.connection.is_connected():
            client.disconnect()


@pytest.mark.engine
def test_selectors_share_a_queue_out_and_leave_the_rest(connect: Any) -> None:
    producer, reds, cheap = connect(), connect(), connect()
    name = "/queue/colours"
    reds.subscribe(name, ack="client-individual", selector="colour = 'red' AND price >= 5")
    cheap.subscribe(name, ack="client-individual", selector="price < 5")
    for number in range(20):
        colour = ("red", "blue")[number % 2]
        producer.send(name, str(number), colour=colour, price=str(number % 10))
    wanted_cheap = [n for n in range(20) if n % 10 < 5]
    wanted_reds = [n for n in range(20) if n % 2 == 0 and n % 10 >= 5]
    for client, wanted in ((cheap, wanted_cheap), (reds, wanted_reds)):
        messages = client.recorder.take(len(wanted))
        assert [int(message.body) for message in messages] == wanted
        for message in messages:
            client.ack(message)
    reds.disconnect()
    cheap.disconnect()
    rest = connect()
    rest.subscribe(name)
    left = sorted(set(range(20)) - set(wanted_cheap) - set(wanted_reds))
    assert [int(message.body) for message in rest.recorder.take(len(left))] == left


def test_what_comes_back_goes_to_another_that_wants_it(connect: Any) -> None:
    producer, first = connect(), connect()
    name = "/queue/back"
    first.subscribe(name, ack="client-individual", selector="colour = 'red'")
    producer.send(name, "blue", colour="blue")
    producer.send(name, "red", colour="red")
    (message,) = first.recorder.take(1)
    second = connect()
    second.subscribe(name, ack="client-individual", selector="colour LIKE '%ed'")
    first.disconnect()
    (again,) = second.recorder.take(1)
    assert (message.body, again.body) == ("red", "red")
    assert "redelivered" not in again.headers  # the first one went in an orderly way
    second.ack(again)


def test_a_selector_with_a_mistake_is_shown_where(connect: Any) -> None:
    client = connect()
    client.connection.subscribe("/queue/q", id="1", headers={"selector": "colour = = 'red'"})
    error = client.recorder.errors.get(timeout=WAIT_S)
    assert "character 10" in error.headers["message"] + error.body
    assert client.recorder.ended.wait(WAIT_S)


def test_an_exclusive_queue_serves_one_consumer_at_a_time(connect: Any) -> None:
    producer, first, second = connect(), connect(), connect()
    name = "/queue/alone.q"
    first.subscribe(name)
    second.subscribe(name)
    for number in range(10):
        producer.send(name, str(number))
    assert [m.body for m in first.recorder.take(10)] == [str(n) for n in range(10)]
    assert second.is_quiet()
    first.disconnect()
    producer.send(name, "next")
    assert [m.body for m in second.recorder.take(1)] == ["next"]


def test_an_exclusive_consumer(connect: Any) -> None:
    producer, other, alone = connect(), connect(), connect()
    name = "/queue/exclusive"
    other.subscribe(name)
    alone.subscribe(name, **{"activemq.exclusive": "true"})
    for number in range(10):
        producer.send(name, str(number))
    assert [m.body for m in alone.recorder.take(10)] == [str(n) for n in range(10)]
    assert other.is_quiet()


@pytest.mark.parametrize("header", ["consumer-priority", "activemq.priority"])
def test_consumer_priority(connect: Any, header: str) -> None:
    producer, low, high = connect(), connect(), connect()
    name = f"/queue/priority.{header}"
    low.subscribe(name)
    high.subscribe(name, ack="client-individual", **{header: "5", "prefetch-count": "3"})
    for number in range(6):
        producer.send(name, str(number))
    assert [m.body for m in high.recorder.take(3)] == ["0", "1", "2"]
    assert [m.body for m in low.recorder.take(3)] == ["3", "4", "5"]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("consumer-priority", "high"),
        ("activemq.exclusive", "maybe"),
        ("no-local", "maybe"),
        ("no-local", "true"),
    ],
)
def test_wrong_headers_are_named(connect: Any, header: str, value: str) -> None:
    client = connect()
    client.connection.subscribe("/queue/q", id="1", headers={header: value})
    error = client.recorder.errors.get(timeout=WAIT_S)
    assert header in error.headers["message"] + error.body
    assert client.recorder.ended.wait(WAIT_S)


def test_a_queue_that_waits_for_two_consumers(connect: Any) -> None:
    producer, first = connect(), connect()
    name = "/queue/late.two"
    first.subscribe(name)
    producer.send(name, "1")
    producer.send(name, "2")
    assert first.is_quiet()
    second = connect()
    second.subscribe(name)
    assert [m.body for m in (*first.recorder.take(1), *second.recorder.take(1))] in (
        ["1", "2"],
        ["2", "1"],
    )


def test_a_queue_that_waits_for_a_while(connect: Any) -> None:
    client = connect()
    client.subscribe("/queue/late.timed")
    client.send("/queue/late.timed", "1")
    assert [m.body for m in client.recorder.take(1)] == ["1"]


def test_priorities(connect: Any) -> None:
    client = connect()
    name = "/queue/priorities"
    for number, priority in enumerate((4, 0, 9, None, 9, 5)):
        headers = {} if priority is None else {"priority": str(priority)}
        client.send(name, str(number), **headers)
    client.subscribe(name)
    messages = client.recorder.take(6)
    assert [message.body for message in messages] == ["2", "4", "5", "0", "3", "1"]
    assert [message.headers.get("priority") for message in messages] == [
        "9", "9", "5", "4", None, "0",
    ]  # fmt: skip


@pytest.mark.engine
def test_priorities_and_groups_over_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = Client(broker.port(), "1.2")
        client.connect()
        for number, priority in enumerate("440994"):
            client.send("/queue/kept", str(number), priority=priority, JMSXGroupID="g")
        broker.kill()
        broker.start()
        first, second = (Client(broker.port(), "1.2") for _ in range(2))
        first.connect()
        first.subscribe("/queue/kept", ack="client-individual", **{"prefetch-count": "2"})
        messages = first.recorder.take(2)
        second.connect()
        second.subscribe("/queue/kept", ack="client-individual")
        for _ in range(4):
            first.ack(messages[-1])
            messages += first.recorder.take(1)
        assert [message.body for message in messages] == ["3", "4", "0", "1", "5", "2"]
        assert second.is_quiet()
        for client in (first, second):
            client.disconnect()


def test_groups_keep_to_one_consumer(connect: Any) -> None:
    producer, *consumers = connect(), connect(), connect()
    name = "/queue/groups"
    for consumer in consumers:
        consumer.subscribe(name)
    for number in range(20):
        producer.send(name, str(number), JMSXGroupID=("odd", "even")[number % 2])
    for consumer in consumers:
        bodies = [int(message.body) for message in consumer.recorder.take(10)]
        assert bodies == list(range(bodies[0], 20, 2))


def test_a_priority_in_a_transaction(connect: Any) -> None:
    client = connect()
    name = "/queue/committed"
    transaction = client.connection.begin()
    for number in range(4):
        client.connection.send(
            name, str(number), transaction=transaction, headers={"priority": str(4 + number)}
        )
    client.connection.commit(transaction)
    client.subscribe(name)
    assert [message.body for message in client.recorder.take(4)] == ["3", "2", "1", "0"]


@pytest.mark.engine
def test_rings_and_last_values_over_a_restart(tmp_path: Path) -> None:
    configuration = tmp_path / "broker.yaml"
    configuration.write_text(
        "addresses:\n"
        "  - name: kinds\n"
        "    queues:\n"
        "      - {name: ring, ring-size: 3}\n"
        "      - {name: latest, last-value: true, last-value-key: stock}\n"
    )
    with BrokerProcess(tmp_path / "data", configuration=configuration) as broker:
        client = Client(broker.port(), "1.2")
        client.connect()
        for number in range(10):
            client.send("kinds::ring", str(number))
            client.send("kinds::latest", str(number), stock=str(number % 4))
        broker.kill()
        broker.start()
        client = Client(broker.port(), "1.2")
        client.connect()
        client.subscribe("kinds::ring")
        assert [message.body for message in client.recorder.take(3)] == ["7", "8", "9"]
        client.disconnect()
        client = Client(broker.port(), "1.2")
        client.connect()
        client.subscribe("kinds::latest")
        assert [message.body for message in client.recorder.take(4)] == ["6", "7", "8", "9"]
        assert client.is_quiet()
        client.disconnect()


def test_no_local_subscriptions_get_what_others_send(connect: Any) -> None:
    client, other = connect(), connect()
    name = "/topic/no.local"
    other.subscribe(name)
    client.send(name, "before")  # taught now
    client.subscribe(name, **{"no-local": "true"})
    client.send(name, "own")
    client.send(name, "own again")
    other.send(name, "other's")
    assert [m.body for m in client.recorder.take(1)] == ["other's"]
    assert [m.body for m in other.recorder.take(4)] == ["before", "own", "own again", "other's"]
    assert client.is_quiet()
