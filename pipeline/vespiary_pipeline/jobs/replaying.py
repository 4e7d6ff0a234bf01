"""`replay`: messages of journals, kept copies or exports, sent to a broker again.

Owns which messages are sent again and what they look like then. A message is one that became
visible: of a committed transaction, or of none; a copy that compaction made is not another message.
How they are sent is the sink's. Called by the command line.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline import register
from vespiary_pipeline.jobs.broker_files import BrokerFiles
from vespiary_pipeline.jobs.export_folder import ExportFolder, folder_name
from vespiary_pipeline.jobs.failures import spark_failures
from vespiary_pipeline.jobs.message_columns import MESSAGE, VISIBLE
from vespiary_pipeline.jobs.visible_messages import settled, visible
from vespiary_pipeline.layout import find_places
from vespiary_pipeline.options import local_path, read_options
from vespiary_spec.errors import BrokerRefused

ORIGINAL: Final = "original-destination"
_REPLACED: Final = ("destination", "destination-type", "_AMQ_DUPL_ID", "priority", "expires")
_PRIORITY_DEFAULT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages are sent again; None takes all.

    Attributes:
        since: Arrived then or later.
        until: Arrived before then.
        address: Sent to this address, with or without a prefix.
        queue: With a place in the queue of this name or number.
        header: Name and value of a header.
    """

    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    address: str | None = None
    queue: str | None = None
    header: tuple[str, str] | None = None


class Replayed(NamedTuple):
    """What a replay did.

    Attributes:
        selected: Messages that were wanted.
        sent: Those of them that the broker has now; 0 for a dry run.
        lost: Those whose body cannot be had: a large one that is kept nowhere, or is damaged.
    """

    selected: int
    sent: int
    lost: int


def check_source(path: str, options: Mapping[str, str]) -> None:
    """Refuse a path at which nothing lies that can be replayed.

    Raises:
        StorageError: Nothing does.
    """
    if not ExportFolder(Path(local_path(path))).manifests():
        find_places(read_options({**options, "path": path}))


def messages_at(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame:
    """Return the messages at a path, with `body`, `error` and `visible_position`.

    Args:
        spark: The session.
        path: A folder of exports, or anything with a message journal in it.
        options: Options of the format.

    Raises:
        StorageError: Neither lies there.
        BrokerRefused: The exports have no bodies.
    """
    folder = Path(local_path(path)).absolute()
    if manifests := ExportFolder(folder).manifests():
        parts = [f"file:{folder / folder_name(one.number)}" for one in manifests]
        found = spark.read.option("basePath", f"file:{folder}").parquet(*parts)
        if "body" not in found.columns:
            raise BrokerRefused(
                "these exports were made without bodies", where=path,
                cure="export into another folder without --no-bodies",
            )  # fmt: skip
        return found.withColumn("error", F.lit(None).cast("string"))
    files = BrokerFiles(spark, path, options)

    def read(columns: tuple[str, ...], which: Mapping[str, str]) -> DataFrame:
        return files.records(columns, which)

    return visible(read, (*MESSAGE, "body", "error"), settled(read))


def selected(messages: DataFrame, wanted: Selection) -> DataFrame:
    """Return the messages that are wanted."""
    conditions: list[Column] = []
    if wanted.since is not None:
        conditions.append(F.col("arrival") >= F.lit(wanted.since))
    if wanted.until is not None:
        conditions.append(F.col("arrival") < F.lit(wanted.until))
    if wanted.address is not None:
        sent_to = F.element_at("properties", "destination")
        conditions.append((F.col("address") == wanted.address) | (sent_to == wanted.address))
    if wanted.queue is not None:
        is_there = F.array_contains("queues", wanted.queue)
        if wanted.queue.isdecimal():
            number = F.lit(int(wanted.queue))
            is_there |= F.exists("places", lambda place: place["queue_id"] == number)
        conditions.append(is_there)
    if wanted.header is not None:
        name, value = wanted.header
        conditions.append(F.element_at("properties", name) == value)
    for condition in conditions:
        messages = messages.where(condition)
    return messages


def outgoing(messages: DataFrame, tasks: int, *, with_ids: bool) -> DataFrame:
    """Return rows as a sink takes them, in the order in which they became visible.

    Args:
        messages: From `selected`.
        tasks: How many tasks send: each has a run of them, in order.
        with_ids: With the id of each one's place, so that what is sent twice arrives once.
    """
    properties = F.coalesce("properties", F.create_map().cast("map<string,string>"))
    kept = F.map_filter(properties, lambda name, _: ~name.isin(*_REPLACED))
    original = F.create_map(
        F.lit(ORIGINAL), F.coalesce(F.element_at(properties, "destination"), F.lit(""))
    )
    place = F.element_at("places", 1)
    columns = [
        F.col("body"),
        F.map_concat(F.map_filter(kept, lambda name, _: name != ORIGINAL), original).alias(
            "properties"
        ),
        F.when(F.col("priority") != _PRIORITY_DEFAULT, F.col("priority")).alias("priority"),
        F.col("expires"),
    ]
    if with_ids:
        arrival_ms = F.unix_millis("arrival")
        columns.append(
            F.concat_ws("-", F.lit("replay"), place["queue_id"], place["sequence"], arrival_ms)
            .alias("duplicate_id")
        )  # fmt: skip
    order = (VISIBLE, "position")
    return messages.repartitionByRange(tasks, *order).sortWithinPartitions(*order).select(*columns)


def replay(
    spark: SparkSession,
    path: str,
    wanted: Selection,
    sink: Mapping[str, str],
    options: Mapping[str, str],
    *,
    tasks: int = 1,
    is_dry: bool = False,
) -> Replayed:
    """Send messages to a broker again.

    Args:
        spark: The session.
        path: Where they are.
        wanted: Which of them.
        sink: Options of the sink.
        options: Options of the format that is read.
        tasks: How many tasks send; one keeps the order of all messages.
        is_dry: Count, and send nothing.

    Raises:
        JobFailed: Spark ended the job, for a reason of its own or an error of ours.

    Durability: on return the broker has flushed what was sent.
    """
    register(spark)
    with spark_failures(path):
        found = selected(messages_at(spark, path, options), wanted)
        counted = found.agg(
            F.count("*").alias("all"), F.count_if(F.col("body").isNull()).alias("lost")
        ).first()
        assert counted is not None
        sendable = counted["all"] - counted["lost"]
        if is_dry or not sendable:
            return Replayed(counted["all"], 0, counted["lost"])
        rows = outgoing(
            found.where(F.col("body").isNotNull()), tasks, with_ids=sink.get("delivery") == "dedup"
        )
        rows.write.format("vespiary").mode("append").options(**sink).save()
    return Replayed(counted["all"], sendable, counted["lost"])
