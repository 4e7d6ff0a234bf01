"""`report`: the tables of a report, counted from a broker's files.

Owns what is counted and how much of it is kept: the most important rows of each table. What the
report says and draws is `vespiary_pipeline.report`. Called by the command line.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline import transform
from vespiary_pipeline.jobs.broker_files import BrokerFiles
from vespiary_pipeline.jobs.rows import rows_of
from vespiary_pipeline.report import tables as t
from vespiary_spec.version import VERSION

Row = TypeVar("Row")

ROWS_MAX: Final = 50
ADDRESSES_MAX: Final = 8
BUCKETS_MAX: Final = 120
_BUCKETS_S: Final = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)
_RECORDS: Final = (
    *transform.RECORD_COLUMNS,
    "block_time",
    "flags",
    "properties",
)
_DEAD: Final = {
    "acknowledged": "ended_bytes",
    "moved": "superseded_bytes",
    "moved to a page": "paged_bytes",
    "rolled back": "void_bytes",
}


def report_tables(
    broker: BrokerFiles,
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
) -> t.ReportTables:
    """Return what a report shows of a broker's files.

    Args:
        broker: The files.
        now: The clock; ages are counted from it.

    Raises:
        JobFailed: Spark ended it.
    """
    begun_s, made_at = time.monotonic(), now()
    records, queues = broker.records(_RECORDS), broker.queues()
    paged = broker.records(_RECORDS, with_pages=True)
    places = transform.live(paged, queues).persist()
    try:
        files = list(rows_of(broker.files()))
        return t.ReportTables(
            run=_run(broker, files, made_at, time.monotonic() - begun_s),
            totals=_totals(places, files),
            files=_files(files, transform.usage(broker.files(), records, places)),
            traffic=_traffic(records, queues, files),
            sizes=_bins(transform.sizes(places)),
            ages=_bins(transform.ages(places, made_at)),
            depth=_depth(places),
            dead_letters=_dead_letters(transform.dead_letters(paged, places)),
            hot_spots=_hot_spots(places),
            **_transactions(broker),
            pages=_pages(places),
        )
    finally:
        places.unpersist()


def _top(
    rows: Iterable[dict[str, Any]],
    make: Callable[[dict[str, Any]], Row],
    measure: Callable[[dict[str, Any]], float] = lambda _: 0.0,
    most: int = ROWS_MAX,
) -> t.Top[Row]:
    """Return the first rows, and what the others come to."""
    made: list[Row] = []
    more, rest = 0, 0.0
    for row in rows:
        if len(made) < most:
            made.append(make(row))
        else:
            more, rest = more + 1, rest + measure(row)
    return t.Top(tuple(made), more, rest)


def _run(
    broker: BrokerFiles, files: list[dict[str, Any]], made_at: datetime.datetime, seconds: float
) -> t.Run:
    used = [file for file in files if file["state"] == "used"]
    last = max(used, key=lambda file: file["file_id"], default=None)
    damaged = [file for file in files if file["error"]]
    end = f"{Path(last['path']).name}:{4096 + last['used_bytes']}" if last else ""
    return t.Run(
        path=broker.path,
        made_at=made_at,
        seconds=seconds,
        read_bytes=sum(file["used_bytes"] or 0 for file in used),
        journal_end=end,
        end_reason="a broker runs on it" if broker.is_open else "nobody has the journal open",
        versions={"vespiary": VERSION, "spark": broker.spark.version},
        damage=_top(
            damaged,
            lambda file: t.Damage(path=file["path"], offset=None, what=file["error"]),
        ),
    )


def _totals(places: DataFrame, files: list[dict[str, Any]]) -> t.Totals:
    (row,) = rows_of(
        places.agg(
            F.count("*").alias("places"),
            F.count_distinct("position").alias("records"),
            F.count_if(F.col("position").isNull()).alias("unknown"),
            F.coalesce(F.sum("body_bytes"), F.lit(0)).alias("bytes"),
            F.min("arrival").alias("oldest"),
        )
    )
    return t.Totals(
        live_messages=row["records"] + row["unknown"],
        live_places=row["places"],
        live_bytes=row["bytes"],
        oldest_arrival=row["oldest"],
        records=sum(file["records"] or 0 for file in files),
    )


# --- files ----------------------------------------------------------------------------------------


def _files(files: list[dict[str, Any]], usage: DataFrame) -> t.Top[t.FileUse]:
    known = {row["path"]: row for row in rows_of(usage)}
    ordered = sorted(files, key=lambda file: (file["file_id"] or 2**63, file["path"]))
    return _top(ordered, lambda file: _file(file, known.get(file["path"], {})), most=10_000)


def _file(file: dict[str, Any], use: dict[str, Any]) -> t.FileUse:
    pins = []
    if use.get("live_places"):
        pins.append(
            t.Pin(
                queue=use["pinned_queue"],
                messages=use["live_places"],
                sequence=use["pinned_sequence"],
                oldest=use["pinned_since"],
            )
        )
    for count, why in (("branches", "prepared transactions"), ("pages", "pages")):
        if use.get(count):
            pins.append(t.Pin(why=why, messages=use[count]))
    return t.FileUse(
        name=Path(file["path"]).name,
        file_id=file["file_id"] or 0,
        state=file["state"],
        size_bytes=file["size_bytes"] or 0,
        used_bytes=file["used_bytes"] or 0,
        live_bytes=use.get("live_bytes") or 0,
        dead={cause: use.get(name) or 0 for cause, name in _DEAD.items()} if use else {},
        pins=t.Top(tuple(pins)),
    )


# --- messages -------------------------------------------------------------------------------------


def _bins(histogram: DataFrame) -> tuple[t.Bin, ...]:
    summed = histogram.groupBy("low", "high").agg(F.sum("messages").alias("messages"))
    return tuple(
        t.Bin(low=float(row["low"]), high=_float(row["high"]), live=row["messages"])
        for row in rows_of(summed.orderBy("low"))
    )


def _float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _depth(places: DataFrame) -> t.Top[t.QueueDepth]:
    rows = rows_of(transform.depth(places).orderBy(F.desc("messages"), "queue_id"))
    return _top(
        rows,
        lambda row: t.QueueDepth(
            queue=row["queue"],
            queue_id=row["queue_id"],
            address=row["address"] or "",
            messages=row["messages"],
            live_bytes=row["body_bytes"] or 0,
            prepared=row["prepared"] + row["locked"],
            paged=row["paged"],
            oldest=row["oldest"],
        ),
        lambda row: row["messages"],
    )


def _dead_letters(letters: DataFrame) -> t.Top[t.DeadLetters]:
    rows = rows_of(letters.orderBy(F.desc("messages"), "queue_id", "reason"))
    return _top(
        rows,
        lambda row: t.DeadLetters(
            reason=row["reason"],
            origin=row["original_address"] or "",
            address=row["address"] or "",
            messages=row["messages"],
            oldest=row["oldest"],
        ),
        lambda row: row["messages"],
    )


def _hot_spots(places: DataFrame) -> t.Top[t.HotSpot]:
    again = places.where(F.col("deliveries") > 0)
    first = again.orderBy(F.desc("deliveries"), "queue_id", "sequence").limit(ROWS_MAX)
    spots = [
        t.HotSpot(
            queue=row["queue"],
            sequence=row["sequence"],
            deliveries=row["deliveries"],
            arrival=row["arrival"],
            body_bytes=row["body_bytes"] or 0,
        )
        for row in rows_of(first)
    ]
    return t.Top(tuple(spots), max(0, again.count() - len(spots)))


def _pages(places: DataFrame) -> t.Top[t.PagedAddress]:
    paged = places.where(F.col("page_id").isNotNull()).groupBy("address")
    counted = paged.agg(
        F.count_distinct("page_id").alias("pages"),
        F.count("*").alias("messages"),
        F.coalesce(F.sum("length"), F.lit(0)).alias("bytes"),
    )
    return _top(
        rows_of(counted.orderBy(F.desc("bytes"), "address")),
        lambda row: t.PagedAddress(
            address=row["address"] or "",
            pages=row["pages"],
            messages=row["messages"],
            page_bytes=row["bytes"],
        ),
        lambda row: row["bytes"],
    )


# --- what went on ---------------------------------------------------------------------------------


def bucket_s(first: datetime.datetime | None, last: datetime.datetime | None) -> int:
    """Return the length of a stretch of time of which few enough fill a journal's time.

    Args:
        first: When the first block was closed.
        last: When the last one was.
    """
    span_s = (last - first).total_seconds() if first and last else 0.0
    return next((one for one in _BUCKETS_S if span_s / one <= BUCKETS_MAX), _BUCKETS_S[-1])


def _traffic(
    records: DataFrame, queues: DataFrame | None, files: list[dict[str, Any]]
) -> t.Traffic:
    times = [file[name] for file in files for name in ("first_time", "last_time") if file[name]]
    width_s = bucket_s(min(times, default=None), max(times, default=None))
    counted = transform.timeline(records, f"{width_s} seconds", queues)
    by_address = counted.groupBy("bucket", "address").agg(
        *(F.sum(name).alias(name) for name in ("adds", "acks", "add_bytes"))
    )
    by_address = by_address.persist()
    try:
        busy = by_address.groupBy("address").agg(F.sum(F.col("adds") + F.col("acks")).alias("n"))
        names = [row["address"] for row in rows_of(busy.orderBy(F.desc("n"), "address"))]
        kept = [name for name in names[:ADDRESSES_MAX] if name is not None]
        shown = F.when(F.col("address").isin(kept), F.col("address"))
        summed = by_address.groupBy("bucket", shown.alias("address")).agg(
            *(F.sum(name).alias(name) for name in ("adds", "acks", "add_bytes"))
        )
        rows = [
            t.TrafficRow(
                start=row["bucket"],
                address=row["address"],
                adds=row["adds"],
                acks=row["acks"],
                bytes_in=row["add_bytes"],
            )
            for row in rows_of(summed.orderBy("bucket", "address"))
        ]
    finally:
        by_address.unpersist()
    return t.Traffic(width_s=width_s, rows=tuple(rows), more_addresses=len(names) - len(kept))


def _transactions(broker: BrokerFiles) -> dict[str, Any]:
    records = broker.records((*transform.RECORD_COLUMNS, "data"))
    settled = transform.transactions(records).persist()
    try:
        outcomes = [
            t.Outcome(
                outcome=row["outcome"], transactions=row["count"], members=row["members"] or 0
            )
            for row in rows_of(
                settled.groupBy("outcome")
                .agg(F.count("*").alias("count"), F.sum("members_found").alias("members"))
                .orderBy("outcome")
            )
        ]
        prepared = settled.where(F.col("outcome") == "prepared").orderBy("first_position")
        branches = _top(
            rows_of(prepared),
            lambda row: t.Branch(
                transaction=row["transaction"],
                branch=row["branch"] or "",
                members=row["members_found"],
            ),
        )
    finally:
        settled.unpersist()
    return {"outcomes": tuple(outcomes), "prepared": branches}
