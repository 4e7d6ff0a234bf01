"""`vespiary-pipeline diff`: what two brokers' files hold differently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer

pytestmark = pytest.mark.spark
LARGE = ("min-large-message-size=20KiB",)


def send(broker: BrokerProcess, queue: str, *bodies: bytes, **headers: str) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number, body in enumerate(bodies):
            sent = {"destination": f"/queue/{queue}", "persistent": "true", **headers}
            peer.send("SEND", sent | {"receipt": str(number)}, body)
            peer.receive_receipt(str(number))


def take(broker: BrokerProcess, queue: str, count: int) -> None:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        wanted = {"id": "1", "destination": f"/queue/{queue}", "ack": "client-individual"}
        peer.send("SUBSCRIBE", wanted)
        for frame in [peer.receive() for _ in range(count)]:
            peer.send("ACK", {"id": frame.get("ack", ""), "receipt": "a"})
            peer.receive_receipt("a")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A broker's files, and what it and another one had later."""
    home = tmp_path_factory.mktemp("diff")
    with BrokerProcess(home / "a", *LARGE) as broker:
        send(broker, "orders", b"one", b"two", b"three", b"L" * 30_000)
        send(broker, "prices", b"p")
    shutil.copytree(home / "a", home / "b")
    with BrokerProcess(home / "b", *LARGE) as broker:
        take(broker, "orders", 1)
        send(broker, "orders", b"four")
    with BrokerProcess(home / "c", *LARGE) as broker:
        send(broker, "orders", b"two", b"TWO", b"three", b"L" * 29_999 + b"M")
        send(broker, "prices", b"p", colour="red")
    return {name: home / name for name in "abc"}


@pytest.fixture
def diff(run: Any) -> Any:
    def invoke(code: int, *words: object) -> list[dict[str, Any]]:
        result = run("diff", "--json", *words, code=code)
        return [json.loads(line) for line in result.stdout.splitlines()]

    return invoke


def counts(rows: list[dict[str, Any]], queue: str) -> tuple[int, ...]:
    (row,) = [row for row in rows if row["queue"] == queue]
    return tuple(row[kind] for kind in ("only_in_a", "only_in_b", "changed", "same"))


@pytest.mark.verify
def test_the_same_files_are_the_same(diff: Any, folders: dict[str, Path]) -> None:
    rows = diff(0, folders["a"], folders["a"])
    assert (counts(rows, "orders"), counts(rows, "prices")) == ((0, 0, 0, 4), (0, 0, 0, 1))


def test_what_came_and_went_is_told_by_queue_and_by_message(
    diff: Any, folders: dict[str, Path]
) -> None:
    rows = diff(1, folders["a"], folders["b"])
    assert counts(rows, "orders") == (1, 1, 0, 3)
    assert counts(rows, "prices") == (0, 0, 0, 1)
    told = diff(1, folders["a"], folders["b"], "--rows")
    assert [(row["kind"], row["sequence"]) for row in told] == [("only_in_a", 1), ("only_in_b", 5)]


@pytest.mark.verify
def test_headers_and_bodies_count_also_large_ones(diff: Any, folders: dict[str, Path]) -> None:
    rows = diff(1, folders["a"], folders["c"])
    assert counts(rows, "orders") == (0, 0, 3, 1)
    assert counts(rows, "prices") == (0, 0, 1, 0)
    rows = diff(1, folders["a"], folders["c"], "--by", "content")
    assert counts(rows, "orders") == (2, 2, 0, 2)
    assert counts(rows, "prices") == (1, 1, 0, 0)


@pytest.mark.verify
def test_what_is_imported_is_the_same(
    run: Any, diff: Any, folders: dict[str, Path], tmp_path: Path, spark: SparkSession
) -> None:
    """An import of a broker's files, of an export, and of rows, held against where it is from."""

    def made(source: Path, name: str, *options: str) -> Path:
        run("import", source, "--to", tmp_path / name, *options)
        return tmp_path / name

    copy = made(folders["b"], "copy")
    rows = diff(0, folders["b"], copy)
    assert (counts(rows, "orders"), counts(rows, "prices")) == ((0, 0, 0, 4), (0, 0, 0, 1))
    run("export", folders["a"], "--to", tmp_path / "l")
    assert diff(0, folders["a"], made(tmp_path / "l", "exported"), "--by", "content")
    spark.createDataFrame([("x",), ("y",)], "body string").coalesce(1).write.json(
        f"file:{tmp_path / 'rows'}"
    )
    new = made(tmp_path / "rows", "rows.data", "--format", "json", "--address", "fresh")
    assert counts(diff(0, new, new), "fresh") == (0, 0, 0, 2)


def test_a_path_that_holds_nothing_is_told(run: Any, folders: dict[str, Path]) -> None:
    assert "/nowhere" in run("diff", folders["a"], "/nowhere", code=1).stderr
