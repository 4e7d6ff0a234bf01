"""`import`: an export, a folder of files or another broker's files into a new data folder.

Owns which rows are imported, and in which order; what a row becomes, and the folder, are those of
`vespiary_pipeline.imports`. Called by the command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from vespiary_pipeline import register
from vespiary_pipeline.imports.rows import COLUMNS
from vespiary_pipeline.jobs.broker_files import BrokerFiles
from vespiary_pipeline.jobs.export_folder import ExportFolder
from vespiary_pipeline.jobs.failures import spark_failures
from vespiary_pipeline.layout import find_places
from vespiary_pipeline.options import local_path, read_options
from vespiary_pipeline.transform import RECORD_COLUMNS
from vespiary_spec.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMS: Final = ("parquet", "json", "csv")
_CORRUPT: Final = "_corrupt_record"
"""Column that Spark adds where a line could not be read."""

_TAKEN: Final = ("address", "arrival", "expires", "priority", "properties", "body")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportSource:
    """What to import.

    Attributes:
        path: An export, a broker's data folder, its journal, a copy of either, or files of rows.
        snapshot: Of a data folder: read the copy of this name.
        form: How rows are written, of `FORMS`; empty: as the names of the files end.
        order_by: Columns that rows of files are sorted by; none: as Spark reads them.
        max_body_bytes: Of a broker's files: size of the largest body that is taken.
    """

    path: str
    snapshot: str = ""
    form: str = ""
    order_by: tuple[str, ...] = ()
    max_body_bytes: str = "64m"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """What an import did.

    Attributes:
        to: The data folder.
        messages: Messages in it.
        files: Files of its message journal.
    """

    to: str
    messages: int
    files: int


def kind_of(source: ImportSource) -> str:
    """Return what lies there: `broker`, `export`, or one of `FORMS`.

    Raises:
        ConfigError: It is no path.
        StorageError: Nothing that can be imported.
        ExportRefused: An export's manifest cannot be read.
        NativeError: It can't be looked at.
    """
    path = Path(local_path(source.path))
    try:
        given = {"snapshot": source.snapshot, "maxBodyBytes": source.max_body_bytes}
        find_places(read_options({**given, "path": source.path}))
    except StorageError:
        if not path.exists():
            raise
        if source.form:
            return source.form
        if ExportFolder(path).manifests():
            return "export"
        return _form_of(path)
    return source.form or "broker"


def run_import(
    spark: SparkSession, source: ImportSource, to: Path, options: Mapping[str, str]
) -> ImportResult:
    """Make a data folder.

    Args:
        spark: The session.
        source: What to import.
        to: The folder to make: missing or empty.
        options: Options of the format, such as `address`.

    Raises:
        ConfigError: The rows have columns that no message has, or an option is wrong.
        StorageError: Nothing that can be imported lies there.
        JobFailed: Spark ended the job, for a reason of its own or an error of ours.

    Durability: on return the folder survives a power cut; before that nothing of it is visible.
    """
    register(spark)
    chosen = dict(options)
    kind = kind_of(source)
    path = Path(local_path(source.path)).absolute()
    with spark_failures(source.path, str(to)):
        if kind == "broker":
            given = {"snapshot": source.snapshot, "maxBodyBytes": source.max_body_bytes}
            broker = BrokerFiles(spark, source.path, given)
            rows = _live_messages(broker)
            chosen = {**_bindings(broker), **chosen}
        elif kind == "export":
            rows = _exported(spark, path)
        else:
            rows = _written(spark, path, source.order_by, kind)
        counted = Observation()
        observed = rows.observe(counted, F.count(F.lit(1)).alias("messages"))
        target = observed.write.format("vespiary").mode("append").options(**chosen)
        target.save(str(to.absolute()))
    files = sum(path.suffix == ".hq" for path in (to / "journal").iterdir())
    return ImportResult(to=str(to), messages=int(counted.get["messages"]), files=files)


# --- a broker's files -----------------------------------------------------------------------------


def _live_messages(broker: BrokerFiles) -> DataFrame:
    """Return what the broker would recover, each message with its live places.

    A place keeps its sequence. A message of a page has a row for each place, so that nothing has
    to be brought together with its body. What branches in doubt add is left out.
    """
    live = broker.live().where(F.col("state") != "prepared")
    columns = (*RECORD_COLUMNS, "properties", "body")
    adds = broker.records(columns, with_pages=True).where(F.col("kind") == "ADD")
    place = F.struct("queue_id", "queue", "sequence").alias("place")
    standing = (
        live.where(F.col("page_id").isNull())
        .groupBy("position")
        .agg(F.array_sort(F.collect_list(place)).alias("held"))
        .join(adds.where(F.col("journal") == "message").select("position", *_TAKEN), on="position")
    )
    keys = ["page_id", "queue_id", "sequence"]
    in_pages = adds.where(F.col("journal") == "page").select(
        F.col("file_id").alias("page_id"), F.inline("places"), *_TAKEN
    )
    paged = (
        live.where(F.col("page_id").isNotNull())
        .select(*keys, F.array(place).alias("held"))
        .join(in_pages.drop("number"), on=keys)
    )
    both = standing.select("held", *_TAKEN).unionByName(paged.select("held", *_TAKEN))
    queues = F.transform("held", lambda one: one["queue"]).alias("queues")
    sequences = F.transform("held", lambda one: one["sequence"]).alias("sequences")
    return _packed(both.select(*_TAKEN, queues, sequences))


def _bindings(broker: BrokerFiles) -> dict[str, str]:
    """Return the option that takes the broker's queues over, if they are known."""
    given = {**broker.options, "path": broker.path, "journal": "message"}
    folder = find_places(read_options(given))[0].bindings
    return {} if folder is None else {"bindings": str(folder)}


def _sequences() -> Column:
    """Return the numbers of a record's places; made where a session is there."""
    return F.transform("places", lambda place: place["sequence"])


def _packed(rows: DataFrame) -> DataFrame:
    """Have as few partitions as can be worked on at once: each has journal files of its own."""
    return rows.coalesce(rows.sparkSession.sparkContext.defaultParallelism)


# --- exports --------------------------------------------------------------------------------------


def _exported(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the messages of all exports of a folder.

    Those of one journal keep their sequences. Where there are several journals, sequences may be
    the same, so messages are numbered anew, in the order in which they were exported.
    """
    found = spark.read.parquet(f"file:{folder.absolute()}")
    columns = [name for name in (*_TAKEN, "queues") if name in found.columns]
    if len({manifest.journal_id for manifest in ExportFolder(folder).manifests()}) == 1:
        return _packed(found.select(*columns, _sequences().alias("sequences")))
    order = found.orderBy("export", "visible_position", "position")
    return order.select(*columns)


# --- files of rows --------------------------------------------------------------------------------


def _written(spark: SparkSession, path: Path, order_by: tuple[str, ...], form: str) -> DataFrame:
    """Return the rows of files.

    Raises:
        ConfigError: There is no column to sort by.
        StorageError: Some lines are not of this form.
    """
    uri = f"file:{path}"
    reader = spark.read.option("header", "true")
    found = reader.format(form).load(uri)
    if _CORRUPT in found.columns:
        raise StorageError(
            f"not every line of these files is {form.upper()}", where=str(path),
            cure="mend the files, one object a line, or say how they are written with --format",
        )  # fmt: skip
    if form != "parquet":  # these say too little of the types
        ddl = ", ".join(
            f"`{name}` {_typed(name, form) if name in COLUMNS else kind}"
            for name, kind in found.dtypes
        )
        found = reader.schema(ddl).format(form).load(uri)
    for name in order_by:
        if name not in found.columns:
            raise ConfigError(
                "there is no column to sort by", path="order-by", value=name,
                allowed=", ".join(found.columns),
            )  # fmt: skip
    return found.orderBy(*order_by) if order_by else found


def _typed(name: str, form: str) -> str:
    """Return the type that a column has to have; text where a form has no such type."""
    kind = "string" if name == "body" else COLUMNS[name][0]
    return "string" if form == "csv" and "<" in kind else kind


def _form_of(path: Path) -> str:
    """Return how the files at a path are written.

    Raises:
        StorageError: No file's name says it.
    """
    for file in [path] if path.is_file() else _files_in(path):
        for form in FORMS:
            if f".{form}" in file.suffixes and not file.name.startswith(("_", ".")):
                return form
    raise StorageError(
        "nothing of a broker lies here, and no rows that can be imported",
        where=str(path),
        allowed="an export, a broker's data folder, or files in .parquet, .json or .csv",
        cure="say how the files are written with --format, or name another folder",
    )


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the files that Spark would read: in the folder itself, and in NAME=VALUE below it."""
    for inner, folders, files in os.walk(folder):
        folders[:] = [name for name in sorted(folders) if "=" in name and name[0] not in "_."]
        yield from (Path(inner) / name for name in sorted(files))
