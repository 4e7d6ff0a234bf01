"""Retroactive addresses in a real broker: over kill -9, with large messages, for durable queues."""

from __future__ import annotations

from pathlib import Path

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client

SETTINGS = (
    "address-settings.news.retroactive-message-count=3",
    "min-large-message-size=100KiB",
)


def client(broker: BrokerProcess, **headers: str) -> Client:
    made = Client(broker.port(), "1.2")
    made.connect(**headers)
    return made


def test_new_subscriptions_begin_with_what_was_sent_before_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        producer = client(broker)
        bodies = ["1", "2", "x" * 150_000, "4"]
        for body in bodies:
            producer.send("/topic/news", body)
        broker.kill()
        broker.start()
        first = client(broker, **{"client-id": "amy"})
        first.subscribe("/topic/news", **{"durable-subscription-name": "d"})
        assert [message.body for message in first.recorder.take(3)] == bodies[1:]
        first.send("/topic/news", "5")
        assert [message.body for message in first.recorder.take(1)] == ["5"]
        late = client(broker)
        late.subscribe("/topic/news")
        assert [message.body for message in late.recorder.take(3)] == [*bodies[2:], "5"]
        for one in (first, late):
            one.disconnect()


def test_what_a_receipt_confirmed_is_in_the_new_queue_after_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        producer = client(broker)
        for number in range(5):
            producer.send("/topic/news", str(number))
        amy = client(broker, **{"client-id": "amy"})
        subscription = {"durable-subscription-name": "d", "prefetch-count": "1"}
        amy.subscribe("/topic/news", ack="client-individual", **subscription)
        broker.kill()
        broker.start()
        again = client(broker, **{"client-id": "amy"})
        again.subscribe("/topic/news", **{"durable-subscription-name": "d"})
        assert [message.body for message in again.recorder.take(3)] == ["2", "3", "4"]
        again.disconnect()
