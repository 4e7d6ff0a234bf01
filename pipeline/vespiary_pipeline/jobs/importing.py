"""`import`: rows of files to the data folder of a broker that does not run yet.

Owns where the rows come from, and their order. How they become a data folder is `imports`. Called
by the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline import register
from vespiary_pipeline.jobs.broker_files import BrokerFiles
from vespiary_pipeline.jobs.export_folder import ExportFolder, folder_name
from vespiary_pipeline.jobs.failures import spark_failures
from vespiary_pipeline.jobs.visible_messages import VISIBLE
from vespiary_pipeline.layout import find_places
from vespiary_pipeline.options import read_options
from vespiary_pipeline.transform import RECORD_COLUMNS, messages
from vespiary_spec.errors import ExportRefused

FORMS: Final = ("parquet", "json", "csv")
_READ: Final = ("properties", "body", "error")


def check_source(path: str, form: str) -> None:
    """Refuse a path at which nothing lies that can be imported.

    Args:
        path: Where the rows are.
        form: How their files are written; empty for what a broker or an export wrote.

    Raises:
        StorageError: Nothing of a broker lies there, and no form is said.
    """
    if not form and not ExportFolder(Path(path)).manifests():
        find_places(read_options({"path": path}))


def rows_at(spark: SparkSession, path: str, form: str) -> DataFrame:
    """Return the rows at a path, in the order in which they are to wait.

    Of exports all messages that were taken; of a broker's files those that live, with their
    numbers; of other files the rows as they are.

    Raises:
        ExportRefused: The exports have no bodies.
    """
    if form:
        reader = spark.read.format(form).option("header", "true")
        return reader.load(f"file:{Path(path).absolute()}")
    folder = Path(path).absolute()
    if manifests := ExportFolder(folder).manifests():
        parts = [f"file:{folder / folder_name(one.number)}" for one in manifests]
        found = spark.read.option("basePath", f"file:{folder}").parquet(*parts).drop("export")
        if "body" not in found.columns:
            raise ExportRefused(
                "these exports were made without bodies", where=path,
                cure="export into another folder without --no-bodies",
            )  # fmt: skip
        return found.orderBy(VISIBLE, "position")
    return _living(BrokerFiles(spark, path))


def _living(files: BrokerFiles) -> DataFrame:
    """Return a row for each place of a message that lives; each keeps its number."""
    columns = tuple(dict.fromkeys((*RECORD_COLUMNS, *_READ)))
    found = messages(files.records(columns, with_pages=True), files.live(), *_READ)
    return found.orderBy("queue_id", "sequence").select(
        "body", "address", F.array("queue").alias("queues"),
        F.array("sequence").alias("sequences"), "properties", "priority", "arrival", "expires",
    )  # fmt: skip


def import_rows(
    spark: SparkSession, path: str, form: str, to: str, options: Mapping[str, str]
) -> None:
    """Make a data folder of the rows at a path.

    Args:
        spark: The session.
        path: Where the rows are.
        form: As for `rows_at`.
        to: The data folder.
        options: Of the import.

    Raises:
        JobFailed: Spark ended the job, for a reason of its own or an error of ours.

    Durability: on return the folder is there whole and survives a power cut.
    """
    register(spark)
    with spark_failures(path):
        rows = rows_at(spark, path, form)
        rows.write.format("vespiary").mode("append").options(**options).save(to)
