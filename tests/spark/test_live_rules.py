"""Each rule of journal-format §3.3, §3.8 and §4.6 as a small journal; one Spark job for them all.

Every story is told to the tools' live set and to a core as well: all three have to agree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from vespiary_pipeline.transform import live, transactions
from vespiary_testkit.journal_blocks import Story
from vespiary_testkit.live_stories import COUNTS, STORIES, A, B, add, commit, told
from vespiary_testkit.live_worlds import WORLD_BITS, Many

pytestmark = pytest.mark.spark


def resolved(spark: SparkSession, stories: dict[str, tuple[Story, Any]]) -> tuple[Many, list[Any]]:
    many = Many()
    for name, (story, _) in stories.items():
        many.add(name, story)
    return many, live(spark.createDataFrame(many.table())).collect()


def by_story(rows: list[Any], stories: Any, of: Callable[[Any], Any]) -> dict[str, Any]:
    """Return something of each row by the name of its story and its sequence."""
    found: dict[str, dict[int, Any]] = {name: {} for name in stories}
    for row in rows:
        found[list(stories)[row["queue_id"] >> WORLD_BITS]][row["sequence"]] = of(row)
    return found


def test_every_rule(spark: SparkSession):
    many, rows = resolved(spark, STORIES)

    def state(row: Any) -> str:
        if row["page_id"] is None:
            return str(row["state"])
        return "paged" if row["state"] == "live" else f"paged and {row['state']}"

    assert by_story(rows, STORIES, state) == {name: said for name, (_, said) in STORIES.items()}
    many.check(rows)


@pytest.mark.verify
def test_how_often_messages_were_given_out(spark: SparkSession):
    many, rows = resolved(spark, COUNTS)
    found = by_story(rows, COUNTS, lambda row: row["deliveries"])
    assert found == {name: said for name, (_, said) in COUNTS.items()}
    many.check(rows)


@pytest.mark.verify
def test_what_is_said_of_a_message(spark: SparkSession):
    many = Many()
    many.add("one", told((A, B), (commit(A, B),)))
    records = spark.createDataFrame(many.table())
    queues = spark.createDataFrame(
        [(1, "stock", "orders")], "queue_id long, queue string, address string"
    )
    first, second = sorted(live(records, queues).collect(), key=lambda row: row["sequence"])
    expected = many.worlds.rows[0]
    names = (
        "file_id",
        "offset",
        "position",
        "length",
        "priority",
        "body_bytes",
        "large",
    )
    assert {name: first[name] for name in names} == {name: expected[name] for name in names}
    assert (first["queue"], first["address"], first["share_bytes"]) == (
        "stock",
        "orders",
        first["length"],
    )
    assert first["arrival"] == expected["arrival"].replace(tzinfo=None)  # the session's zone is UTC
    assert (second["sequence"], second["transaction"]) == (2, 1)
    (settled,) = transactions(records).collect()
    assert settled["transaction"] == 1
    assert (settled["outcome"], settled["end_position"]) == ("committed", 2 << 16)


@pytest.mark.verify
def test_places_of_queues_that_are_not_known_are_void(spark: SparkSession):
    many = Many()
    many.add(
        "one",
        told(
            (add(1), add(1, queue_id=2)),
        ),
    )
    records = spark.createDataFrame(many.table())
    queues = spark.createDataFrame(
        [(2, "stock", "orders")], "queue_id long, queue string, address string"
    )
    assert [row["queue_id"] for row in live(records, queues).collect()] == [2]
    assert {row["queue_id"] for row in live(records).collect()} == {1, 2}


@pytest.mark.verify
def test_only_the_states_that_are_asked_for(spark: SparkSession):
    many = Many()
    many.add("one", STORIES["prepared"][0])
    records = spark.createDataFrame(many.table())
    rows = live(records, states=["prepared"]).collect()
    assert [(row["sequence"], row["state"]) for row in rows] == [(1, "prepared")]


def test_all_that_is_said_of_a_place_comes_together_once(spark: SparkSession, tmp_path: Path):
    many = Many()
    many.add("one", STORIES["prepared"][0])
    parquet.write_table(many.table(), tmp_path / "records.parquet")
    records = spark.read.parquet(str(tmp_path / "records.parquet"))
    plan = live(records)._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    shuffles = [line for line in plan.splitlines() if "Exchange hashpartitioning" in line]
    by_place = [line for line in shuffles if "sequence" in line]
    assert len(by_place) == 1, plan
    # The others bring together transactions, pages and wide ranges: a small part of the records.
    assert all("(family" in line or "(queue_id" in line for line in shuffles), plan
    assert "SortMergeJoin" not in plan
    assert plan.count("FileScan parquet") == 4  # as the docstring of RECORD_COLUMNS says


@pytest.mark.verify
def test_transactions_may_be_too_many_for_every_executor(spark: SparkSession):
    many = Many()
    for name in ("committed", "prepared", "moved to a page"):
        many.add(name, STORIES[name][0])
    records = spark.createDataFrame(many.table())
    many.check(live(records, broadcast=False).collect())
