"""`vespiary-pipeline`: its commands on the files of a real broker, in the tests' session."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from vespiary_broker.store import snapshot
from vespiary_pipeline import register
from vespiary_pipeline.jobs.failures import spark_failures
from vespiary_pipeline.progress import Counter, Line, SparkStatus
from vespiary_spec.errors import JobFailed
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.terminal import Terminal
from vespiary_testkit.waiting import wait_for

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a broker that got 30 messages, gave 10 away and was killed."""
    path = tmp_path_factory.mktemp("broker") / "data"
    with BrokerProcess(path) as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for number in range(30):
                sent = {"destination": "/queue/orders", "persistent": "true"}
                if number in (14, 29):  # two blocks at least
                    sent["receipt"] = "all"
                peer.send("SEND", sent, b"m%d" % number)
                if "receipt" in sent:
                    peer.receive_receipt("all")
            wanted = {"id": "1", "destination": "/queue/orders", "ack": "client"}
            peer.send("SUBSCRIBE", wanted)
            given = peer.receive_messages(10)
            last = dict(given[-1].headers)
            peer.send("ACK", {"id": last["ack"], "receipt": "done"})
            peer.receive_receipt("done")
        broker.kill()
    return path


def objects(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_what_waits_is_shown(run: Any, data: Path) -> None:
    (row,) = objects(run("depth", data, "--json"))
    assert (row["queue"], row["messages"], row["prepared"]) == ("orders", 20, 0)
    shown = run("depth", data).stdout.splitlines()
    assert shown[0].split()[:2] == ["queue_id", "queue"]
    assert "orders" in shown[1]


@pytest.mark.verify
def test_live_messages_are_shown_up_to_a_limit_and_written_whole(
    run: Any, data: Path, spark: SparkSession, tmp_path: Path
) -> None:
    rows = objects(run("live", data, "--json"))
    assert [row["sequence"] for row in rows] == list(range(11, 31))
    result = run("live", data, "--limit", 3)
    assert len(result.stdout.splitlines()) == 4
    assert "and 17 more" in result.stderr
    run("live", data, "--to", tmp_path / "live", "--format", "json")
    assert spark.read.json(str(tmp_path / "live")).count() == 20


@pytest.mark.verify
def test_files_usage_and_transactions(run: Any, data: Path) -> None:
    files = objects(run("files", data, "--json"))
    used = [file for file in files if file["state"] == "used"]
    assert sum(file["adds"] for file in used) == 30
    (row,) = [row for row in objects(run("usage", data, "--json")) if row["live_places"]]
    assert (row["live_places"], row["pinned_queue"], row["pinned_sequence"]) == (20, "orders", 11)
    assert objects(run("transactions", data, "--json")) == []


def test_a_report_is_drawn(run: Any, data: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    (tables,) = objects(run("report", data, "--json", "--to", page))
    assert [(row["queue"], row["messages"]) for row in tables["depth"]["rows"]] == [("orders", 20)]
    assert tables["totals"]["live_messages"] == 20
    assert sum(one["live"] for one in tables["sizes"]) == 20
    assert sum(one["live"] for one in tables["ages"]) == 20
    assert sum(row["adds"] for row in tables["traffic"]["rows"]) == 30
    assert sum(row["acks"] for row in tables["traffic"]["rows"]) == 10
    used = [file for file in tables["files"]["rows"] if file["state"] == "used"]
    assert [(file["pins"]["rows"][0]["queue"], file["live_bytes"] > 0) for file in used] == [
        ("orders", True)
    ]
    text = page.read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "orders" in text
    assert list(tmp_path.iterdir()) == [page]


def test_an_export_takes_each_message_once(
    run: Any, data: Path, spark: SparkSession, tmp_path: Path
) -> None:
    (first,) = objects(run("export", data, "--to", tmp_path / "lake", "--json"))
    assert first["messages"] == 30
    tables = ("--register", "delta", "--register", "iceberg")
    shown = objects(run("export", data, "--to", tmp_path / "lake", "--json", *tables))
    assert [each["messages"] for each in shown] == [0, 30, 30]  # as if killed before it registered
    again = run("export", data, "--to", tmp_path / "lake", "--register", "delta").stdout
    assert again.count("nothing new") == 2
    rows = spark.read.parquet(str(tmp_path / "lake")).collect()
    assert sorted(bytes(row["body"]) for row in rows) == sorted(b"m%d" % n for n in range(30))
    assert {row["address"] for row in rows} == {"orders"}


@pytest.mark.verify
def test_an_export_reads_what_its_options_say(
    run: Any, data: Path, spark: SparkSession, tmp_path: Path
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    folders = {name: copy / name for name in ("bindings", "journal", "large-messages", "paging")}
    snapshot.take(folders, "before", before={})
    broken = copy / "journal" / "activemq-data-1.hq"
    content = bytearray(broken.read_bytes())
    content[4096 + 64 + 9] ^= 1
    broken.write_bytes(content)
    result = run("export", copy, "--to", tmp_path / "lake", code=1)
    assert "confirmed data is damaged" in result.stderr
    to = ("--to", tmp_path / "lake", "--json")
    (found,) = objects(run("export", copy, *to, "--snapshot", "before"))
    assert found["messages"] == 30
    run("files", copy, code=1)
    run("files", copy, "--on-corrupt", "report", code=1)
    (found,) = objects(
        run("export", copy, "--to", tmp_path / "rest", "--json", "--on-corrupt", "report")
    )
    assert 0 < found["messages"] < 30


def test_damage_is_a_sentence_and_exit_code_1(run: Any, data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "journal"
    copy.mkdir()
    for path in (data / "journal").glob("*.hq"):
        (copy / path.name).write_bytes(path.read_bytes())
    rows = objects(run("live", copy, "--json"))
    file = copy / "activemq-data-1.hq"
    content = bytearray(file.read_bytes())
    content[rows[0]["offset"] + 9] ^= 1
    file.write_bytes(content)
    result = run("live", copy, code=1)
    assert "confirmed data is damaged" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "VSP-J104" in result.stderr


@pytest.mark.verify
def test_bodies_that_an_export_leaves_out_are_told(run: Any, data: Path, tmp_path: Path) -> None:
    result = run("export", data, "--to", tmp_path / "lake", "--json", "--max-body-bytes", 2)
    (done,) = objects(result)
    assert (done["messages"], done["bodies_missing"]) == (30, 20)  # m10 to m29
    assert "20 messages were written without their bodies, which are larger than 2" in result.stderr


@pytest.mark.verify
def test_a_program_is_shown_the_sentence_and_little_more(
    spark: SparkSession, tmp_path: Path
) -> None:
    register(spark)
    with pytest.raises(PySparkException) as caught:
        spark.read.format("vespiary").load(str(tmp_path)).count()
    lines = str(caught.value).strip().splitlines()
    assert len(lines) <= 6
    assert any(f"{tmp_path}: nothing of a broker lies here" in line for line in lines)
    with pytest.raises(JobFailed, match="nothing of a broker lies here"), spark_failures("x"):
        raise caught.value


@pytest.mark.verify
def test_progress_is_what_spark_says(
    run: Any, data: Path, spark: SparkSession, tmp_path: Path
) -> None:
    status, terminal = SparkStatus(spark.sparkContext), Terminal()
    counter = Counter(status)
    line = Line("exporting", terminal.file, period_s=0.01)
    line.start()
    line.watch(status)
    wait_for(lambda: "exporting" in terminal.seen, "what was done before is known by now")
    run("export", data, "--to", tmp_path / "lake")
    wait_for(lambda: counter.look().rows_written == 30, "Spark has counted what was written")
    found = counter.look()
    assert found.tasks == found.done > 2
    assert found.rows_read == 60  # a look at what there is, then the messages
    wait_for(lambda: str(found) in terminal.seen, "the line has said so")
    line.end()
    assert f"{found.done}/{found.tasks} tasks" in terminal.close()
