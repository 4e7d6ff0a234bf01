"""The HTTP listener of a real broker: metrics that move, administration that lasts."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for


def ask(broker: BrokerProcess, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.port("http"), timeout=60)
    try:
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        text = response.read()
        is_json = "json" in (response.getheader("Content-Type") or "")
        return response.status, json.loads(text) if is_json else text.decode()
    finally:
        connection.close()


def metrics(broker: BrokerProcess) -> dict[tuple[str, str], float]:
    """Return samples by name and queue."""
    _, text = ask(broker, "GET", "/metrics")
    return {
        (sample.name, sample.labels.get("queue", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as process:
        yield process


def send(broker: BrokerProcess, queue: str, count: int) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(count):
            headers = {
                "destination": f"/queue/{queue}",
                "persistent": "true",
                "receipt": str(number),
            }
            peer.send("SEND", headers, b"x" * 100)
        for number in range(count):
            peer.receive_receipt(str(number))


def test_it_is_alive_and_ready(broker: BrokerProcess):
    assert ask(broker, "GET", "/healthz") == (200, "alive\n")
    assert ask(broker, "GET", "/readyz") == (200, "ready\n")
    status, page = ask(broker, "GET", "/")
    assert status == 200
    assert "<title>Vespiary</title>" in page


def test_messages_move_the_metrics(broker: BrokerProcess):
    before = metrics(broker)
    send(broker, "counted", 50)
    after = metrics(broker)

    def moved(name: str) -> float:
        return after[name, ""] - before[name, ""]

    assert moved("vespiary_messages_in_total") == 50
    assert after["vespiary_queue_messages", "counted"] == 50
    assert after["vespiary_queue_bytes", "counted"] >= 5000
    assert moved("vespiary_journal_records_total") >= 50
    assert moved("vespiary_journal_writes_total") >= 1
    assert moved("vespiary_journal_flush_seconds_count") == moved("vespiary_journal_writes_total")
    assert moved("vespiary_connections_opened_total") == 1


def test_consumers_and_connections_are_shown(broker: BrokerProcess):
    send(broker, "shown", 1)
    with StompPeer(broker.port()) as peer:
        peer.connect()
        subscription = {"id": "s1", "destination": "/queue/shown", "ack": "client", "receipt": "s"}
        peer.send("SUBSCRIBE", subscription)
        if not peer.receive_receipt("s"):  # the message may come on either side of the receipt
            peer.receive_messages(1)
        _, page = ask(broker, "GET", "/api/v1/consumers?queue=shown")
        (consumer,) = page["items"]
        assert (consumer["subscription"], consumer["mode"]) == ("s1", "client")
        _, page = ask(broker, "GET", "/api/v1/connections")
        connection = next(c for c in page["items"] if c["id"] == consumer["connection"])
        assert connection["protocol"] == "STOMP 1.2"
        assert connection["subscriptions"] == 1
        _, queue = ask(broker, "GET", "/api/v1/queues/shown")
        assert (queue["consumers"], queue["delivering"]) == (1, 1)
        status, problem = ask(broker, "DELETE", "/api/v1/queues/shown")
        assert status == 409
        assert "1 consumers" in problem["detail"]


def test_what_is_made_and_purged_stays_so_after_a_kill(tmp_path: Path):
    broker = BrokerProcess(tmp_path / "data", "journal-file-size=1MiB")
    with broker:
        status, _ = ask(broker, "POST", "/api/v1/queues", {"name": "lasting", "address": "news"})
        assert status == 201
        send(broker, "purged", 20)
        assert ask(broker, "POST", "/api/v1/queues/purged/purge") == (200, {"messages": 20})
        send(broker, "purged", 3)
        broker.kill()
        broker.start()
        _, queue = ask(broker, "GET", "/api/v1/queues/lasting")
        assert (queue["address"], queue["isAutoCreated"]) == ("news", False)
        _, queue = ask(broker, "GET", "/api/v1/queues/purged")
        assert queue["messages"] == 3


def test_files_of_the_journal_say_what_keeps_them(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", "journal-file-size=1MiB") as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for number in range(30):
                headers = {"destination": "/queue/in", "persistent": "true", "receipt": str(number)}
                peer.send("SEND", headers, b"x" * 60_000)
            peer.receive_receipt("29")
        status, page = ask(broker, "GET", "/api/v1/journal/files")
    assert status == 200
    first, second = page["items"][:2]
    assert first["state"] == "full"
    assert first["keptBy"] == f"{first['livePlaces']} live messages"
    assert second["state"] == "filling"
    assert first["livePlaces"] + second["livePlaces"] == 30


def test_a_deleted_queue_ends_its_consumers(broker: BrokerProcess):
    send(broker, "doomed", 5)
    with StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/doomed", "receipt": "s"})
        peer.receive_receipt("s")
        status, answer = ask(broker, "DELETE", "/api/v1/queues/doomed?force=true")
        assert status == 200
        assert answer["messages"] <= 5
    assert ask(broker, "GET", "/api/v1/queues/doomed")[0] == 404


def test_a_scrape_does_not_disturb_messages(broker: BrokerProcess):
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(20):
            headers = {"destination": "/queue/steady", "receipt": str(number)}
            peer.send("SEND", headers, b"x")
            assert ask(broker, "GET", "/metrics")[0] == 200
            peer.receive_receipt(str(number))


def test_it_takes_no_more_memory_than_it_may_when_idle(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        wait_for(lambda: ask(broker, "GET", "/readyz")[0] == 200)
        assert broker.rss_bytes() < 70 * 1024**2
