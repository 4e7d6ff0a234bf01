"""A real broker on a folder that an import made: a stock client gets all of it, in order."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.imported import import_rows
from vespiary_testkit.stock_client import Client

COUNT = 3000
SETTINGS = ("journal-file-size=1MiB", "journal-min-files=2", "journal-pool-files=2")
LARGE = b"large" * 50_000


def _rows(first: int, end: int) -> list[dict[str, object]]:
    """Plain messages, of which each tenth goes to two queues of a topic instead."""
    rows: list[dict[str, object]] = []
    for number in range(first, end):
        row: dict[str, object] = {"body": b"%d" % number + b"." * 1000, "queues": None}
        if number % 10 == 0:
            row |= {"address": "prices", "queues": ["audit", "desk"]}
            row["properties"] = [("destination", "/topic/prices"), ("odd", "a:b\\c\nd")]
        rows.append(row)
    return rows


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    now = datetime.datetime.now(datetime.UTC)
    more: list[dict[str, object]] = [
        {"body": b"low", "address": "ranked", "priority": 1},
        {"body": b"high", "address": "ranked", "priority": 9},
        {"body": b"gone", "address": "ranked", "expires": now - datetime.timedelta(hours=1)},
        {"body": b"", "address": "ranked", "expires": now + datetime.timedelta(hours=1)},
        {"body": LARGE, "address": "big"},
    ]
    rows = _rows(0, COUNT)
    import_rows(tmp_path / "data", rows[:1000], rows[1000:], more, fileSize="1m")
    with BrokerProcess(tmp_path / "data", *SETTINGS) as process:
        yield process


def _take(broker: BrokerProcess, name: str, count: int) -> list[tuple[bytes, dict[str, str]]]:
    client = Client(broker.port(), "1.2", auto_decode=False)
    client.connect()
    client.subscribe(name, ack="client-individual")
    found = []
    for at in range(0, count, 500):  # as many as a consumer may have unacknowledged, and fewer
        taken = client.recorder.take(min(500, count - at))
        for message in taken:
            client.ack(message)
        found += taken
    client.disconnect()
    return [(message.body, message.headers) for message in found]


@pytest.mark.ci
def test_a_stock_client_gets_what_was_imported_and_more(broker: BrokerProcess) -> None:
    plain = [n for n in range(COUNT) if n % 10]
    priced = [n for n in range(COUNT) if not n % 10]
    assert [_number(body) for body, _ in _take(broker, "orders", 1000)] == plain[:1000]
    desk = _take(broker, "prices::desk", len(priced))
    assert [_number(body) for body, _ in desk] == priced
    assert {headers["odd"] for _, headers in desk} == {"a:b\\c\nd"}
    assert [body for body, _ in _take(broker, "ranked", 3)] == [b"high", b"", b"low"]
    assert [body for body, _ in _take(broker, "big", 1)] == [LARGE]
    client = Client(broker.port(), "1.2")
    client.connect()
    client.send("orders", "new", persistent="true")
    client.send("big", "x" * 200_000, persistent="true")
    client.disconnect()
    broker.kill()
    broker.start()
    rest = [body for body, _ in _take(broker, "orders", len(plain) - 1000 + 1)]
    assert [_number(body) for body in rest[:-1]] == plain[1000:]
    assert rest[-1] == b"new"
    assert [_number(body) for body, _ in _take(broker, "prices::audit", len(priced))] == priced
    assert [body for body, _ in _take(broker, "big", 1)] == [b"x" * 200_000]


def _number(body: bytes) -> int:
    return int(body.partition(b".")[0])
