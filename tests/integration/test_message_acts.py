"""Messages moved, copied, changed and removed by commands: kill -9, pages, large bodies."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_calls import call, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for


@contextmanager
def peer_of(broker: BrokerProcess) -> Iterator[StompPeer]:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        yield peer


def fill(broker: BrokerProcess, queue: str, count: int, body: bytes = b"x" * 1000) -> None:
    with peer_of(broker) as peer:
        for number in range(count):
            headers = {"destination": f"/queue/{queue}", "persistent": "true", "n": str(number)}
            if number == count - 1:
                headers["receipt"] = "all"
            peer.send("SEND", headers, body)
        peer.receive_receipt("all")


def numbers(broker: BrokerProcess, queue: str) -> list[int]:
    """Return the numbers of the messages in a queue, in its order."""
    output = run_command(broker, "browse", queue, "--all", "--json", "--body-bytes", "0")
    return [int(json.loads(line)["headers"]["n"]) for line in output.splitlines()]


PAGING = (
    "journal-file-size=1MiB",
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=64KiB",
)


@pytest.mark.ci
def test_paged_messages_are_counted_copied_moved_and_removed(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", *PAGING) as broker:
        fill(broker, "deep", 1500)
        wait_for(lambda: len(list((tmp_path / "data/paging").glob("*/*.page"))) > 8)
        run_command(broker, "queue", "create", "other")
        assert run_command(broker, "queue", "count", "deep") == "1500\n"
        assert run_command(broker, "queue", "count", "deep", "--filter", "n < 10") == "10\n"
        said = run_command(broker, "queue", "copy", "deep", "other", "--filter", "n >= 1400")
        assert "100 messages copied" in said
        assert numbers(broker, "other") == list(range(1400, 1500))
        assert "100 messages removed" in run_command(
            broker, "queue", "remove", "other", "--limit", "100", "--yes"
        )
        assert "1500 messages moved" in run_command(
            broker, "queue", "move", "deep", "other", "--yes"
        )
        assert numbers(broker, "deep") == []
        assert numbers(broker, "other") == list(range(1500))
        broker.kill()
        broker.start()
        assert numbers(broker, "other") == list(range(1500))
        said = run_command(broker, "queue", "retry", "other", "--filter", "n IN ('3', '1200')")
        assert "2 messages of other moved back" in said
        assert numbers(broker, "deep") == [3, 1200]
        wait_for(lambda: call(broker, "GET", "/queues/deep")["ready"] == 2)
        with peer_of(broker) as peer:
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/other", "ack": "auto"})
            taken = peer.receive_messages(1498)
        assert len(taken) == 1498


@pytest.mark.ci
def test_large_bodies_go_along_and_are_there_as_long_as_anybody_has_them(tmp_path: Path):
    data = tmp_path / "data"
    body = bytes(range(256)) * 2000
    with BrokerProcess(data, "min-large-message-size=100KiB") as broker:
        fill(broker, "big", 2, body)
        for name in ("second", "third"):
            run_command(broker, "queue", "create", name)
        assert "2 messages copied" in run_command(broker, "queue", "copy", "big", "second")
        assert "2 messages moved" in run_command(broker, "queue", "move", "big", "third", "--yes")
        said = run_command(broker, "queue", "change-priority", "third", "9")
        assert "2 messages of third: priority changed to 9" in said
        assert "2 messages removed" in run_command(
            broker, "queue", "remove", "second", "--filter", "n >= 0", "--yes"
        )
        broker.kill()
        broker.start()
        with peer_of(broker) as peer:
            peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/third", "ack": "auto"})
            taken = peer.receive_messages(2)
            assert [frame.body for frame in taken] == [body, body]
            assert [frame.get("priority") for frame in taken] == ["9", "9"]
            wait_for(lambda: not [p for p in (data / "large-messages").glob("*") if p.is_file()])


@pytest.mark.ci
@pytest.mark.parametrize("act", ["move", pytest.param("change-priority", marks=pytest.mark.verify)])
def test_kill_9_in_the_middle_loses_and_doubles_nothing(tmp_path: Path, act: str):
    broker = BrokerProcess(tmp_path / "data", "journal-file-size=1MiB")
    broker.start()
    count, body = 4000, {"to": "second"} if act == "move" else {"priority": 7}
    fill(broker, "first", count, b"x" * 200)
    run_command(broker, "queue", "create", "second")
    seen = []
    for number in (1, 700, 2000):
        task = call(broker, "POST", f"/queues/first/{act}?wait=0", body)
        path = f"/tasks/{task['id']}"
        wait_for(lambda: is_so_far(call(broker, "GET", path), number))  # noqa: B023
        broker.kill()
        broker.start()
        first, second = numbers(broker, "first"), numbers(broker, "second")
        assert Counter(first + second) == Counter(range(count))
        seen.append(len(second))
    if act == "move":
        assert seen == sorted(seen)
        assert seen[-1] > 0
    task = call(broker, "POST", f"/queues/first/{act}", body)
    assert (task["state"], task["kept"]) == ("done", 0)
    assert sorted(numbers(broker, "second" if act == "move" else "first")) == list(range(count))
    assert broker.stop() == 0, broker.log_text()


def is_so_far(task: dict[str, Any], count: int) -> bool:
    return bool(task["messages"] >= count or task["state"] != "running")


@pytest.mark.ci
def test_expiry_is_changed_and_takes_effect(tmp_path: Path):
    settings = ("address-settings.#.expiry-address=EXPIRED", "message-expiry-scan-period=100")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        fill(broker, "orders", 3)
        run_command(
            broker, "queue", "change-expiry", "orders", "--in", "50ms", "--limit", "2", "--yes"
        )
        wait_for(lambda: call(broker, "GET", "/queues/orders")["messages"] == 1)
        wait_for(lambda: "EXPIRED" in run_command(broker, "queue", "list"))
        wait_for(lambda: numbers(broker, "EXPIRED") == [0, 1])
        run_command(broker, "queue", "change-expiry", "orders", "--at", str(2**50), "--yes")
        (message,) = call(broker, "GET", "/queues/orders/messages")["items"]
        assert message["headers"]["expires"] == str(2**50)
        run_command(broker, "queue", "change-expiry", "orders", "--never", "--id", message["id"])
        (message,) = call(broker, "GET", "/queues/orders/messages")["items"]
        assert "expires" not in message["headers"]


@pytest.mark.ci
def test_connections_are_listed_and_closed(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker, peer_of(broker) as peer:
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders", "receipt": "r"})
        peer.receive_receipt("r")
        (item,) = json.loads(run_command(broker, "connection", "list", "--json"))
        assert item["subscriptions"] == 1
        assert "orders" in run_command(broker, "consumer", "list", "--queue", "orders")
        assert "There is no connection" in run_command(
            broker, "connection", "close", "77", "--yes", code=1
        )
        said = run_command(broker, "connection", "close", "--queue", "orders", "--yes")
        assert said == "1 connection closed\n"
        assert peer.receive().command == "ERROR"
        wait_for(lambda: json.loads(run_command(broker, "connection", "list", "--json")) == [])


@pytest.mark.ci
def test_what_is_wrong_is_said(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        fill(broker, "orders", 1)
        for arguments, says in (
            (
                ("move", "orders", "nowhere", "--yes"),
                "there is no queue nowhere to move messages to",
            ),
            (("move", "orders", "orders", "--yes"), "the queue that they are in"),
            (("copy", "nowhere", "orders"), "There is no queue 'nowhere'"),
            (("remove", "orders", "--id", "x", "--yes"), "this is no message-id of the queue"),
            (("count", "orders", "--filter", "n ="), "selector"),
        ):
            assert says in run_command(broker, "queue", *arguments, code=1)
        assert "There is no task '9'" in run_command(broker, "task", "show", "9", code=1)
        assert numbers(broker, "orders") == [0]


@pytest.mark.engine
def test_acts_take_scheduled_messages_too(tmp_path: Path):
    broker = BrokerProcess(tmp_path / "data", "address-settings.#.dead-letter-address=DLQ")
    broker.start()
    with peer_of(broker) as peer:
        for number in range(40):
            headers = {"destination": "/queue/q", "persistent": "true", "n": str(number)}
            if number != 7:
                headers["AMQ_SCHEDULED_DELAY"] = "86400000"
            peer.send("SEND", headers | {"receipt": "r"}, b"x")
            peer.receive_receipt("r")
    for name in ("other", "copies"):
        call(broker, "POST", "/queues", {"name": name})
    wait_for(lambda: call(broker, "GET", "/queues/q")["scheduled"] == 39)

    def act(queue: str, name: str, text: str, **fields: Any) -> int:
        body = {"filter": text, **fields} if text else fields
        task = call(broker, "POST", f"/queues/{queue}/{name}?wait=25", body)
        assert (task["state"], task["kept"]) == ("done", 0), task
        return int(task["messages"])

    def scheduled(queue: str) -> list[int]:
        page = call(broker, "GET", f"/queues/{queue}/messages?scheduled=true&limit=100")
        assert {message["state"] for message in page["items"]} <= {"scheduled"}
        return [int(message["headers"]["n"]) for message in page["items"]]

    assert scheduled("q") == [number for number in range(40) if number != 7]
    assert act("q", "move", "n < 10", to="other") == 10
    assert act("q", "copy", "n < 12", to="copies") == 2
    assert act("q", "remove", "n < 15") == 5
    assert act("q", "change-priority", "n < 20", priority=9) == 5
    assert act("q", "send-to-dead-letter", "n < 25") == 10
    assert scheduled("q") == list(range(25, 40))
    assert call(broker, "GET", "/queues/q")["scheduled"] == 15, "what has left waits no more"
    wait_for(lambda: call(broker, "GET", "/queues/copies")["scheduled"] == 2)
    assert scheduled("other") == [0, 1, 2, 3, 4, 5, 6, 8, 9], "they keep their times"
    assert len(numbers(broker, "DLQ")) == 10
    assert scheduled("DLQ") == [], "dead letters have none"
    assert act("q", "deliver-scheduled", "n >= 30") == 10
    assert act("other", "deliver-scheduled", "") == 9
    broker.kill()
    broker.start()
    with peer_of(broker) as peer:
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/q", "ack": "auto"})
        found = [int(frame.get("n") or -1) for frame in peer.receive_messages(10)]
        assert found == list(range(30, 40))
    wait_for(lambda: call(broker, "GET", "/queues/q")["scheduled"] == 5)
    assert scheduled("q") == list(range(25, 30))
    assert call(broker, "POST", "/queues/q/purge") is not None
    assert call(broker, "GET", "/queues/q")["scheduled"] == 0
    assert broker.stop() == 0, broker.log_text()
