"""Imports in real Spark: DataFrames, exports and a broker's files into data folders, and back."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from vespiary_pipeline import register
from vespiary_pipeline.jobs.broker_files import BrokerFiles
from vespiary_pipeline.transform import RECORD_COLUMNS, messages
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer

pytestmark = pytest.mark.spark
FACTS = ("queue", "sequence", "arrival", "expires", "priority", "large")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a broker with plain, large, ranked and doubled messages, of which some went."""
    path = tmp_path_factory.mktemp("broker") / "data"
    later = int((datetime.datetime.now() + datetime.timedelta(days=9)).timestamp() * 1000)
    paged = ("address-settings.deep.max-size-bytes=128KiB",
             "address-settings.deep.page-size-bytes=64KiB")  # fmt: skip
    with BrokerProcess(path, *paged) as broker:
        with StompPeer(broker.port()) as peer:
            peer.connect(**{"client-id": "c"})
            for name in ("audit", "desk"):
                wanted = {"id": name, "destination": "/topic/prices", "ack": "client"}
                peer.send("SUBSCRIBE", {**wanted, "durable-subscription-name": name})
                peer.send("UNSUBSCRIBE", {"id": name})
            for number in range(60):
                sent = {"destination": "/queue/orders", "number": f"{number}", "odd": "a\\cb"}
                if number % 5 == 0:
                    sent["destination"] = "/topic/prices"
                if number % 7 == 0:
                    sent |= {"priority": "8", "expires": f"{later}"}
                body = b"x" * 150_000 if number == 11 else b"m%d" % number * (number % 3)
                peer.send("SEND", {**sent, "persistent": "true"}, body)
            for _ in range(400):
                peer.send("SEND", {"destination": "/queue/deep", "persistent": "true"}, b"d" * 999)
            last = {"destination": "/queue/orders", "persistent": "true", "receipt": "all"}
            peer.send("SEND", last, b"last")
            peer.receive_receipt("all")
            wanted = {"id": "1", "destination": "/queue/orders", "ack": "client"}
            peer.send("SUBSCRIBE", wanted)
            ack = dict(peer.receive_messages(10)[-1].headers)["ack"]
            peer.send("ACK", {"id": ack, "receipt": "done"})
            peer.receive_receipt("done")
        broker.kill()
    return path


def held(spark: SparkSession, path: Path) -> list[Any]:
    """Return what a broker would recover, with headers and bodies."""
    broker = BrokerFiles(spark, str(path))
    records = broker.records((*RECORD_COLUMNS, "properties", "body"), with_pages=True)
    found = messages(records, broker.live(), "properties", "body")
    text = F.to_json(F.map_from_entries(F.array_sort(F.map_entries("properties"))))
    return sorted(
        map(tuple, found.select(*FACTS, text.alias("properties"), "body").collect()), key=str
    )


@pytest.mark.verify
def test_an_import_of_a_brokers_files_has_what_it_would_recover(
    spark: SparkSession, run: Any, data: Path, tmp_path: Path
) -> None:
    done = json.loads(run("import", data, "--to", tmp_path / "copy", "--json").stdout)
    there, copied = held(spark, data), held(spark, tmp_path / "copy")
    assert copied == there
    assert len({row[0] for row in there}) >= 2
    assert done["messages"] > 100
    with BrokerProcess(tmp_path / "copy") as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/deep", "ack": "auto"})
        assert [frame.body for frame in peer.receive_messages(400)] == [b"d" * 999] * 400


def test_an_export_comes_back_as_it_was(
    spark: SparkSession, run: Any, data: Path, tmp_path: Path
) -> None:
    run("export", data, "--to", tmp_path / "lake")
    run("import", tmp_path / "lake", "--to", tmp_path / "copy", "--bindings", data)
    run("export", tmp_path / "copy", "--to", tmp_path / "again")
    first, second = (_facts(spark, tmp_path / name) for name in ("lake", "again"))
    assert first.count() == second.count() > 60
    assert first.exceptAll(second).isEmpty()
    assert second.exceptAll(first).isEmpty()


def _facts(spark: SparkSession, lake: Path) -> DataFrame:
    sequences = F.transform("places", lambda place: place["sequence"]).alias("sequences")
    properties = F.array_sort(F.map_entries("properties")).alias("properties")
    return spark.read.parquet(str(lake)).select(
        "address", "queues", sequences, "arrival", "expires", "priority", "large", properties,
        "body",
    )  # fmt: skip


@pytest.mark.verify
def test_an_ordered_frame_is_numbered_in_its_order(spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    frame = spark.range(5000).selectExpr("cast(id AS string) AS body", "hash(id) AS order")
    target = frame.repartition(3).orderBy("order").drop("order").write.format("vespiary")
    target.mode("append").option("address", "orders").save(str(tmp_path / "data"))
    found = BrokerFiles(spark, str(tmp_path / "data")).records(("kind", "places", "body"))
    rows = found.where("kind = 'ADD'").select("places.sequence", "body").collect()
    numbered = {row["sequence"][0]: int(row["body"]) for row in rows}
    wanted = [int(row["body"]) for row in frame.orderBy("order").collect()]
    assert [numbered[sequence] for sequence in range(1, 5001)] == wanted


@pytest.mark.verify
def test_a_task_that_fails_leaves_nothing(spark: SparkSession, run: Any, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    frame = spark.range(100).selectExpr("if(id = 77, null, cast(id AS string)) AS body")
    frame.repartition(2).write.parquet(str(rows))
    target = ("--to", tmp_path / "data", "--address", "orders")
    told = run("import", rows, *target, code=1)
    assert "a message has no body" in told.stderr
    assert "VSP-D107" in told.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows"]


@pytest.mark.verify
@pytest.mark.parametrize("form", ["json", "csv"])
def test_files_of_rows_are_imported_in_the_order_that_is_asked_for(
    spark: SparkSession, run: Any, tmp_path: Path, form: str
) -> None:
    times = "timestamp_seconds(1795348800 + 60 - id) AS arrival"
    frame = spark.range(60).selectExpr("cast(id AS string) AS body", "id % 10 AS priority", times)
    frame.repartition(3).write.option("header", "true").format(form).save(str(tmp_path / "rows"))
    run("import", tmp_path / "rows", "--to", tmp_path / "data", "--address", "orders",
        "--order-by", "arrival")  # fmt: skip
    found = BrokerFiles(spark, str(tmp_path / "data")).records(("kind", "places", "body"))
    rows = found.where("kind = 'ADD'").select("places.sequence", "body").collect()
    numbered = sorted((row["sequence"][0], int(row["body"])) for row in rows)
    assert numbered == [(number + 1, 59 - number) for number in range(60)]


@pytest.mark.verify
def test_an_unknown_column_is_told(spark: SparkSession, run: Any, tmp_path: Path) -> None:
    spark.range(1).selectExpr("'x' AS body", "1 AS subject").write.parquet(str(tmp_path / "rows"))
    told = run("import", tmp_path / "rows", "--to", tmp_path / "d", "--address", "a", code=1)
    assert "schema.subject" in told.stderr
