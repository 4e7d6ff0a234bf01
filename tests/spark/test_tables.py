"""What is counted of records and live places: by file, queue, time, age, size and reason."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from vespiary_broker.store.live_set import LiveSet
from vespiary_codec.journal.branch import BranchName, PrepareRecord, Xid, encode_branch
from vespiary_codec.journal.page_record import PagedQueue, PagedRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    CountRecord,
    Place,
    PutRecord,
    RemoveRecord,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_pipeline import schema
from vespiary_pipeline.transform import (
    ages,
    bindings,
    dead_letters,
    depth,
    live,
    messages,
    queues,
    redelivered,
    sizes,
    timeline,
    transactions,
    usage,
)
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_blocks import Story
from vespiary_testkit.journal_lives import plan, record_more
from vespiary_testkit.journal_rows import RowSink, table, time_of
from vespiary_testkit.journal_workload import recover

pytestmark = pytest.mark.spark
KNOWN = [(1, "stock", "orders"), (2, "mail", "letters")]
MINUTE_MS = 60_000


def message(
    sequence: int,
    *headers: str,
    queue_id: int = 1,
    arrival_ms: int = 1,
    body: int = 10,
    transaction: int = 0,
    is_moved: bool = False,
) -> AddRecord:
    lines = "".join(f"{line}\n" for line in ("destination:orders", *headers))
    return AddRecord(
        (Place(queue_id, sequence),),
        lines.encode(),
        bytes(body),
        arrival_ms,
        transaction=transaction,
        is_moved=is_moved,
    )


def ack(first: int, number: int = 1, queue_id: int = 1, transaction: int = 0) -> AckRecord:
    return AckRecord(queue_id, (SequenceRange(first, number),), transaction)


def rows_of(story: Story, journal: str = "message") -> list[dict[str, Any]]:
    sink = RowSink(journal)
    story(sink)
    return sink.rows


def frame(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame(table(rows))


def known(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(KNOWN, "queue_id long, queue string, address string")


def told(*blocks: tuple[Any, ...]) -> Story:
    story = Story()
    story.file(1)
    for block in blocks:
        story.block(*block)
    return story


def check_columns(found: DataFrame, declared: schema.Table) -> None:
    assert [(f.name, f.dataType.simpleString()) for f in found.schema] == [
        (column.name, column.spark) for column in declared.columns
    ]


# --- files ----------------------------------------------------------------------------------------


def files_frame(spark: SparkSession, counted: LiveSet) -> DataFrame:
    rows = [
        {
            **dict.fromkeys(schema.FILES.names),
            "journal": "message",
            "path": f"file-{file_id}",
            "file_id": file_id,
            "size_bytes": 65536,
            "used_bytes": file.used_bytes,
            "blocks": file.blocks,
        }
        for file_id, file in counted.files.items()
    ]
    return spark.createDataFrame(rows, schema.FILES.ddl())


@pytest.mark.verify
def test_what_lives_in_each_file_is_what_the_tools_find(spark: SparkSession, tmp_path: Path):
    disk = MemoryDisk()
    record_more(tmp_path, disk, plan(3))
    sink, tools = RowSink(), LiveSet()
    recover(disk, tmp_path, sink)
    recover(disk, tmp_path, tools)
    records = frame(spark, sink.rows).cache()
    found = usage(files_frame(spark, tools), records, live(records))
    check_columns(found, schema.USAGE)
    rows = {row["file_id"]: row for row in found.collect()}
    records.unpersist()
    assert rows.keys() == {n for n, file in tools.files.items() if file.blocks}
    prepared = [
        (file_id, len(record.places), offset)
        for entry in tools.transactions.values()
        if entry.is_prepared
        for file_id, offset, record in entry.members
        if record is not None and hasattr(record, "places")
    ]
    for file_id, row in rows.items():
        doubtful = sum(places for file, places, _ in prepared if file == file_id)
        assert row["live_places"] == tools.files[file_id].live_places + doubtful
        if not doubtful:
            assert row["live_bytes"] == tools.files[file_id].live_bytes
    assert sum(row["live_places"] for row in rows.values()) > 10


def test_why_records_are_dead(spark: SparkSession):
    member = message(6, transaction=5)
    story = told(
        (message(1, arrival_ms=9), message(2, arrival_ms=3), message(3), message(4), member)
    )
    story.block(PagedRecord(8, 5, 16384, (PagedQueue(1, (4,)),)), ack(3))
    story.file(2)
    story.block(message(1, is_moved=True, arrival_ms=9))
    story.file(3)
    story.block(ack(99))
    story.file(4)
    doubtful = ack(2, transaction=6)
    data = encode_record(doubtful)
    story.block(doubtful, PrepareRecord(6, 1, digest_members([data]), b""))
    tools = LiveSet()
    story(tools)
    records = frame(spark, rows_of(story))
    found = usage(files_frame(spark, tools), records, live(records, known(spark))).collect()
    first, second, third, fourth = sorted(found, key=lambda row: row["file_id"])
    length = len(encode_record(message(1)))
    assert first["live_places"] == 1
    assert [first[f"{name}_bytes"] for name in ("live", "superseded", "paged", "ended")] == [
        length
    ] * 4
    assert first["void_bytes"] == len(encode_record(member))
    assert first["live_ratio"] == length / first["used_bytes"]
    assert (first["pages"], first["branches"], first["empty"]) == (1, 0, False)
    pin = (first["pinned_queue"], first["pinned_sequence"], first["pinned_since"])
    assert pin == ("stock", 2, time_of(3).replace(tzinfo=None))
    assert (second["live_places"], second["pinned_sequence"], second["empty"]) == (1, 1, False)
    assert (third["live_places"], third["live_ratio"], third["empty"]) == (0, 0.0, True)
    assert (fourth["live_places"], fourth["branches"], fourth["empty"]) == (0, 2, False)


# --- queues ---------------------------------------------------------------------------------------


def test_what_waits_in_each_queue(spark: SparkSession):
    story = told(
        (message(1, arrival_ms=7000), message(2, arrival_ms=5000, body=600), message(3, body=0)),
        (message(1, queue_id=2, arrival_ms=4000), ack(3)),
        (PagedRecord(8, 5, 16384, (PagedQueue(1, (2,)),)),),
        (CountRecord(1, 2, 1), CountRecord(2, 4, 1), CountRecord(1, 5, 2)),
    )
    found = live(frame(spark, rows_of(story)), known(spark)).cache()
    check_columns(found, schema.LIVE)
    counted = depth(found)
    check_columns(counted, schema.DEPTH)
    mail, stock = sorted(counted.collect(), key=lambda row: row["queue"])
    assert mail.asDict() == {
        "queue_id": 2, "queue": "mail", "address": "letters", "messages": 1, "locked": 0,
        "paged": 0, "prepared": 0, "body_bytes": 10, "oldest": time_of(4000).replace(tzinfo=None),
        "oldest_file": 1,
    }  # fmt: skip
    assert (stock["messages"], stock["paged"], stock["body_bytes"]) == (2, 1, 610)
    classes = {
        (row["queue"], row["low"], row["high"], row["messages"])
        for row in ages(found, time_of(7500)).collect()
    }
    assert classes == {("stock", 0, 1, 1), ("stock", 1, 10, 1), ("mail", 1, 10, 1)}
    check_columns(sizes(found), schema.HISTOGRAM)
    classes = {
        (row["queue"], row["low"], row["high"], row["messages"]) for row in sizes(found).collect()
    }
    assert classes == {("stock", 0, 256, 1), ("stock", 256, 1024, 1), ("mail", 0, 256, 1)}
    again = redelivered(found, at_least=3)
    check_columns(again, schema.REDELIVERED)
    spots = {(r["queue"], r["messages"], r["most"], r["most_sequence"]) for r in again.collect()}
    assert spots == {("stock", 1, 5, 2), ("mail", 1, 4, 1)}
    found.unpersist()


@pytest.mark.verify
def test_dead_letters_by_reason(spark: SparkSession):
    origin = "_AMQ_ORIG_ADDRESS:shop"
    queue, expired = "_AMQ_ORIG_QUEUE:till", "_AMQ_ACTUAL_EXPIRY:5"
    story = told(
        (
            message(1, origin, queue, "_AMQ_ORIG_DELIVERIES:10"),
            message(2, origin, queue, "_AMQ_ORIG_DELIVERIES:10"),
            message(3, origin, queue, "_AMQ_ORIG_DELIVERIES:10"),
            message(4, origin, queue, expired, "_AMQ_ORIG_DELIVERIES:1"),
            message(5, origin),
            message(6, origin, queue),
            message(7),
            message(8, origin, queue, expired),
        ),
        (ack(3),),
        (PagedRecord(9, 5, 16384, (PagedQueue(1, (8,)),)),),
    )
    page = Story()
    page.file(9)
    page.block(message(8, origin, queue, expired, is_moved=True))
    rows = rows_of(story) + rows_of(page, "page")
    records = frame(spark, rows)
    found = dead_letters(records, live(records, known(spark)))
    check_columns(found, schema.DEAD_LETTERS)
    reasons = {
        (r["reason"], r["original_address"], r["original_queue"], r["messages"])
        for r in found.collect()
    }
    assert reasons == {
        ("deliveries", "shop", "till", 2),
        ("expired", "shop", "till", 2),
        ("no_route", "shop", None, 1),
        ("moved", "shop", "till", 1),
    }


@pytest.mark.verify
def test_what_a_message_in_a_page_is_when_the_journal_has_it_no_more(spark: SparkSession):
    story = told((PagedRecord(9, 5, 16384, (PagedQueue(1, (8,)),)),))
    page, leftover = Story(), Story()
    page.file(9)
    page.block(message(8, "a:b", arrival_ms=77, body=33), message(5))
    leftover.file(10)
    leftover.block(message(6))
    rows = rows_of(story) + rows_of(page, "page") + rows_of(leftover, "page")
    records = frame(spark, rows)
    (row,) = live(records).collect()
    assert (row["sequence"], row["page_id"], row["body_bytes"]) == (8, 9, 33)
    assert row["arrival"] == time_of(77).replace(tzinfo=None)
    assert (row["file_id"], row["offset"], row["position"]) == (None, None, None)
    (row,) = messages(records, live(records), "properties").collect()
    assert row["properties"]["a"] == "b"
    (row,) = live(frame(spark, rows_of(story))).collect()
    assert (row["sequence"], row["page_id"], row["arrival"]) == (8, 9, None)


# --- time, bindings -------------------------------------------------------------------------------


@pytest.mark.verify
def test_what_came_and_went_when(spark: SparkSession):
    story = told(
        (message(1), message(2), message(1, queue_id=2), message(1, is_moved=True), ack(1, 5)),
        (CountRecord(1, 2, 1), message(9)),
    )
    rows = rows_of(story)
    for row in rows:
        row["block_time"] = time_of(MINUTE_MS * (4 + row["block"]) + 999)
    found = timeline(frame(spark, rows), "1 minute", known(spark))
    check_columns(found, schema.TIMELINE)
    length = len(encode_record(message(1)))
    assert {tuple(row.asDict().values()) for row in found.collect()} == {
        (time_of(5 * MINUTE_MS).replace(tzinfo=None), 1, "stock", "orders", 2, 2 * length, 5, 0),
        (time_of(5 * MINUTE_MS).replace(tzinfo=None), 2, "mail", "letters", 1, length, 0, 0),
        (time_of(6 * MINUTE_MS).replace(tzinfo=None), 1, "stock", "orders", 1, length, 0, 1),
    }


@pytest.mark.verify
def test_the_last_value_of_each_key(spark: SparkSession):
    value = b'{"name":"stock","address":"orders","routing-type":"ANYCAST","auto-created":true}'
    renamed = value.replace(b"stock", b"store")
    story = told(
        (
            PutRecord("queue/1", value),
            PutRecord("queue/2", value),
            PutRecord("address/orders", b"{}"),
        ),
        (PutRecord("queue/1", renamed), RemoveRecord("queue/2"), RemoveRecord("queue/7")),
    )
    records = frame(spark, rows_of(story, "bindings") + rows_of(told((message(1),))))
    found = bindings(records)
    check_columns(found, schema.BINDINGS)
    values = {row["key"]: row["value"] for row in found.collect()}
    assert values == {"queue/1": renamed.decode(), "address/orders": "{}"}
    known_queues = queues(records)
    check_columns(known_queues, schema.QUEUES)
    (row,) = known_queues.collect()
    assert (row["queue_id"], row["queue"], row["address"]) == (1, "store", "orders")
    assert (row["routing_type"], row["auto_created"], row["configured"]) == ("ANYCAST", True, None)


@pytest.mark.verify
def test_a_branch_in_doubt_is_named(spark: SparkSession):
    member = message(1, transaction=5)
    summed = (1, digest_members([encode_record(member)]))
    name = encode_branch(BranchName(Xid(1, b"g", b"q"), 1, "amy"))
    story = told((member, PrepareRecord(5, *summed, name)), (CommitRecord(6, 0, 0),))
    records = frame(spark, rows_of(story))
    found = transactions(records)
    check_columns(found, schema.TRANSACTIONS)
    rows = {row["transaction"]: (row["outcome"], row["branch"]) for row in found.collect()}
    assert rows == {5: ("prepared", "1:67:71"), 6: ("committed", None)}
    assert {row["branch"] for row in transactions(records.drop("data")).collect()} == {None}


@pytest.mark.verify
def test_that_ages_may_be_asked_for_as_of_now(spark: SparkSession):
    now_ms = int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)
    records = frame(spark, rows_of(told((message(1, arrival_ms=now_ms - 20 * 86_400_000),))))
    (row,) = ages(live(records)).collect()
    assert (row["low"], row["high"]) == (604_800, 2_592_000)
