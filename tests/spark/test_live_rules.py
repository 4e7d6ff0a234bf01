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

from vespiary_codec.journal.branch import (
    BranchName,
    PrepareRecord,
    RollbackRecord,
    Xid,
    encode_branch,
)
from vespiary_codec.journal.page_record import PageDoneRecord, PagedQueue, PagedRecord
from vespiary_codec.journal.record import (
    AckRecord,
    AddRecord,
    CommitRecord,
    CountRecord,
    Place,
    Record,
    SequenceRange,
    digest_members,
    encode_record,
)
from vespiary_pipeline.transform import live, transactions
from vespiary_pipeline.transform.live import WIDE
from vespiary_testkit.live_worlds import WORLD_BITS, Many, Story

pytestmark = pytest.mark.spark
SALT = 5
NAME = encode_branch(BranchName(Xid(1, b"g", b"q"), 1, "amy"))
LAST = 2**63 - 1


def add(*sequences: int, transaction: int = 0, queue_id: int = 1, body: bytes = b"x") -> AddRecord:
    places = tuple(Place(queue_id, sequence) for sequence in sequences)
    return AddRecord(places, b"destination:/queue/orders\n", body, 1, transaction=transaction)


def ack(first: int, number: int = 1, *, transaction: int = 0, queue_id: int = 1) -> AckRecord:
    return AckRecord(queue_id, (SequenceRange(first, number),), transaction)


def commit(*members: Record, transaction: int = 5) -> CommitRecord:
    return CommitRecord(transaction, *_summed(members))


def prepare(*members: Record, transaction: int = 5) -> PrepareRecord:
    return PrepareRecord(transaction, *_summed(members), NAME)


def rollback(*members: Record, transaction: int = 5) -> RollbackRecord:
    return RollbackRecord(transaction, *_summed(members))


def _summed(members: tuple[Record, ...]) -> tuple[int, int]:
    encoded = [encode_record(member) for member in members]
    return len(encoded), digest_members(encoded)


def page(page_id: int, *sequences: int, counts: tuple[tuple[int, int], ...] = ()) -> PagedRecord:
    queues = (PagedQueue(1, sequences, (), counts),) if sequences else ()
    return PagedRecord(page_id, SALT, 16384, queues)


def told(*blocks: tuple[Any, ...]) -> Story:
    """Return a journal of one file: a block for each tuple; a number first: so many are missing."""
    story = Story()
    story.file(1)
    for block in blocks:
        gap = block[0] if isinstance(block[0], int) else 0
        story.block(*(block[1:] if gap else block), gap=gap)
    return story


A, B = add(1, transaction=5), add(2, transaction=5)
ENDS = ack(9, transaction=5)
STORIES: dict[str, tuple[Story, dict[int, str]]] = {
    "added": (told((add(1), add(2))), {1: "live", 2: "live"}),
    "acknowledged": (told((add(1), add(2), ack(1))), {2: "live"}),
    "acknowledged in ranges": (
        told((add(*range(1, 9)), AckRecord(1, (SequenceRange(1, 3), SequenceRange(6, 2))))),
        {4: "live", 5: "live", 8: "live"},
    ),
    "acknowledged before it was there": (told((ack(1),), (add(1),)), {1: "live"}),
    "a copy": (told((add(1, 2),), (add(1),)), {1: "live", 2: "live"}),
    "a copy, acknowledged": (told((add(1, 2),), (add(1),), (ack(1),)), {2: "live"}),
    "a range of very many": (
        told((add(1, 2, 10**9),), (ack(2, 10**9),), (add(10**9 + 1),)),
        {1: "live", 10**9 + 1: "live"},
    ),
    "a range without end": (told((add(1, 7),), (ack(2, LAST),)), {1: "live"}),
    "the longest range that is taken apart": (
        told((add(1, WIDE, WIDE + 1),), (ack(1, WIDE),)),
        {WIDE + 1: "live"},
    ),
    "the shortest range that is not": (
        told((add(1, WIDE + 1, WIDE + 2),), (ack(1, WIDE + 1),)),
        {WIDE + 2: "live"},
    ),
    "a wide range before it was there": (told((ack(1, 10**9),), (add(7),)), {7: "live"}),
    "wide ranges of two queues": (
        told((add(7), add(7, queue_id=2)), (ack(1, 10**9, queue_id=2),)),
        {7: "live"},
    ),
    "the last sequence": (
        told((add(LAST - 1), add(LAST - 2)), (ack(LAST - 1, 1),)),
        {LAST - 2: "live"},
    ),
    "committed": (told((A, B), (commit(A, B),)), {1: "live", 2: "live"}),
    "never committed": (
        told(
            (A, B),
        ),
        {},
    ),
    "another number of members": (told((A,), (commit(A, B),)), {}),
    "another digest": (told((add(1, transaction=5, body=b"y"),), (commit(A),)), {}),
    "fewer, right behind a gap": (told((add(8),), (1, B), (commit(A, B),)), {2: "live", 8: "live"}),
    "fewer, a gap before the COMMIT": (told((B,), (1, commit(A, B))), {2: "live"}),
    "fewer, a gap before the first member's block": (
        told((add(8),), (1, add(7)), (B,), (commit(A, B),)),
        {7: "live", 8: "live"},
    ),
    "acknowledged by a transaction": (told((add(9),), (ENDS,), (commit(ENDS),)), {}),
    "acknowledged by one that is open": (told((add(9),), (ENDS,)), {9: "live"}),
    "members count where the COMMIT stands": (told((A,), (ack(1),), (commit(A),)), {1: "live"}),
    "a wide range counts where its COMMIT stands": (
        told((w := ack(1, 10**9, transaction=5),), (add(7),), (commit(w),)),
        {},
    ),
    "added and acknowledged by one transaction": (
        told((A, e := ack(1, transaction=5)), (commit(A, e),)),
        {},
    ),
    "acknowledged and added by one transaction": (
        told((e, A), (commit(e, A),)),
        {1: "live"},
    ),
    "prepared": (told((add(9),), (A, ENDS), (prepare(A, ENDS),)), {1: "prepared", 9: "locked"}),
    "prepared, members do not fit": (told((A,), (prepare(A, B),)), {1: "prepared"}),
    "prepared and committed": (
        told((add(9),), (A, ENDS), (prepare(A, ENDS),), (commit(A, ENDS),)),
        {1: "live"},
    ),
    "prepared, members do not fit, committed": (
        told((A,), (prepare(A, B),), (commit(A),)),
        {1: "prepared"},
    ),
    "prepared and rolled back": (
        told((add(9),), (A, ENDS), (prepare(A, ENDS),), (rollback(A, ENDS),)),
        {9: "live"},
    ),
    "prepared, fewer behind a gap": (told((B,), (1, prepare(A, B)), (commit(A, B),)), {2: "live"}),
    "an id that comes again": (
        told((A,), (commit(A),), (ENDS,), (add(9),), (B,), (commit(ENDS, B),)),
        {1: "live", 2: "live"},
    ),
    "moved to a page": (
        told((add(1, 2, 3),), (page(7, 1, 3),)),
        {1: "paged", 2: "live", 3: "paged"},
    ),
    "acknowledged in a page": (told((add(1, 2),), (page(7, 1, 2),), (ack(1),)), {2: "paged"}),
    "acknowledged in a page by a wide range": (
        told((add(1, 2),), (page(7, 1, 2),), (ack(2, 10**9),)),
        {1: "paged"},
    ),
    "a later PAGE voids the one before": (
        told((add(1, 2, 3),), (page(7, 1, 2, 3),), (ack(2),), (page(7, 1, 3),)),
        {1: "paged", 3: "paged"},
    ),
    "a later PAGE voids acknowledgements": (
        told((add(1, 2),), (page(7, 1, 2),), (ack(1),), (page(7, 1, 2),)),
        {1: "paged", 2: "paged"},
    ),
    "a PAGE without the queue": (told((add(1, 2),), (page(7, 1, 2),), (page(7),)), {}),
    "a page that is done": (told((add(1, 2),), (page(7, 1),), (PageDoneRecord(7),)), {2: "live"}),
    "a page that comes again": (
        told((add(1),), (page(7, 1),), (PageDoneRecord(7),), (page(7, 1),)),
        {1: "paged"},
    ),
    "two pages": (
        told((add(1, 2),), (page(7, 1),), (page(8, 2),), (PageDoneRecord(7),)),
        {2: "paged"},
    ),
    "prepared, acknowledges what is in a page": (
        told((add(9),), (page(7, 9),), (ENDS,), (prepare(ENDS),)),
        {9: "paged and locked"},
    ),
}
COUNTS: dict[str, tuple[Story, dict[int, int | None]]] = {
    "given back": (told((add(1, 2), CountRecord(1, 3, 1))), {1: 3, 2: 0}),
    "the latest counts": (told((add(1), CountRecord(1, 3, 1)), (CountRecord(1, 2, 1),)), {1: 2}),
    "taken back": (told((add(1), CountRecord(1, 3, 1)), (CountRecord(1, 0, 1),)), {1: 0}),
    "behind a copy": (told((add(1),), (add(1), CountRecord(1, 4, 1))), {1: 4}),
    "of a page nobody knows": (
        told((add(1), CountRecord(1, 3, 1)), (page(7, 1, counts=((1, 3),)),)),
        {1: None},
    ),
    "behind a PAGE": (told((add(1),), (page(7, 1),), (CountRecord(1, 6, 1),)), {1: 6}),
}


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


def test_how_often_messages_were_given_out(spark: SparkSession):
    many, rows = resolved(spark, COUNTS)
    found = by_story(rows, COUNTS, lambda row: row["deliveries"])
    assert found == {name: said for name, (_, said) in COUNTS.items()}
    many.check(rows)


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


def test_transactions_may_be_too_many_for_every_executor(spark: SparkSession):
    many = Many()
    for name in ("committed", "prepared", "moved to a page"):
        many.add(name, STORIES[name][0])
    records = spark.createDataFrame(many.table())
    many.check(live(records, broadcast=False).collect())
