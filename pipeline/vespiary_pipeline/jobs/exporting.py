"""`export`: messages of a journal into a folder of Parquet files, each once.

Owns: the order of an export: what was taken, what is new, its files, its manifest. Which records
are messages `visible_messages` says; what makes them visible is `export_folder`. Called by the
command line.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline.jobs import direct_export
from vespiary_pipeline.jobs.direct_export import LOOKED_AT, TELLING, Look
from vespiary_pipeline.jobs.export_folder import (
    ExportedFile,
    ExportFolder,
    ExportRun,
    FolderSteps,
    Manifest,
    folder_name,
    staged,
)
from vespiary_pipeline.jobs.failures import spark_failures
from vespiary_pipeline.jobs.message_columns import MESSAGE, PARTITIONS
from vespiary_pipeline.jobs.part_files import Reader
from vespiary_pipeline.jobs.visible_messages import (
    ADDS,
    committed,
    doubled,
    settled,
    undecided_from,
    visible,
    written,
)

CONTENT: Final = "messages"
_NOTHING: Final = -1
"""Position that everything is behind of."""
FEW_FOLDERS: Final = 4
"""Up to so many, what a task reads makes files of a good size in each."""
MANY_FOLDERS: Final = 200
"""A task has a file open for each."""
_TIMESTAMPS: Final = "spark.sql.parquet.outputTimestampType"
_BROADCAST_MAX: Final = 4_000_000
"""Transactions that every executor gets, some 50 bytes each; more of them are shuffled, and with
them the messages."""


class Journal(Protocol):
    """A message journal that Spark can read, with its kept copies."""

    @property
    def journal_id(self) -> str:
        """Its id, in hex."""

    @property
    def source(self) -> str:
        """The path that users named."""

    @property
    def has_copies(self) -> bool:
        """Whether kept copies are read beside it, so that a record may come twice."""

    def records(
        self, spark: SparkSession, columns: tuple[str, ...], first: int, options: Mapping[str, str]
    ) -> DataFrame:
        """Return `schema.RECORDS` from a position on, durable blocks alone.

        Args:
            spark: The session.
            columns: Which of its columns.
            first: Position before which no record is wanted.
            options: Options of the format: what they leave out may be there all the same.
        """

    def readers(
        self, columns: tuple[str, ...], first: int, options: Mapping[str, str]
    ) -> Sequence[Reader]:
        """Return what reads the same part by part: the journal, and its kept copies.

        Args:
            columns: Which of its columns.
            first: Position before which no record is wanted.
            options: Options of the format, as for `records`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to export, and where to.

    Attributes:
        to: Folder of the exports.
        has_bodies: With the bodies of messages.
    """

    to: Path
    has_bodies: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What an export did.

    Attributes:
        to: Folder of the exports.
        export: Folder of this one; None if nothing was new.
        journal_id: Id of the journal, in hex.
        messages: Messages that it took.
        files: Files that it wrote.
        size_bytes: Their size.
        reached: All that became visible up to this position of the journal is in the folder.
        bodies_missing: Messages without their body: it is too large, lost or damaged. 0 for an
            export without bodies.
    """

    to: str
    export: str | None
    journal_id: str
    messages: int
    files: int
    size_bytes: int
    reached: int
    bodies_missing: int = 0


def export(
    spark: SparkSession,
    journal: Journal,
    options: ExportOptions,
    steps: FolderSteps | None = None,
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
) -> ExportResult:
    """Write the messages that no former export to the folder took.

    Args:
        spark: The session.
        journal: What to read.
        options: What of it, and where to.
        steps: How the folder is changed; None: as `FolderSteps` does it.
        now: The clock.

    Raises:
        ExportRefused: The folder cannot be used.
        JobFailed: Spark ended the job, for a reason of its own or an error of the source.

    Durability: on return the export survives a power cut; before that nothing of it is visible.
    """
    folder = ExportFolder(options.to, steps)
    with spark_failures(journal.source, str(options.to)), folder.writing() as run:
        last = folder.last_of(journal.journal_id, CONTENT, has_bodies=options.has_bodies)
        after = _NOTHING if last is None else last.reached
        look = direct_export.look(spark, journal.readers(LOOKED_AT, after + 1, TELLING))
        reached = max(look.last, after)
        files: tuple[ExportedFile, ...] = ()
        if reached > after:
            scan_from, missing, files = _write(spark, journal, options, run, last, look)
        if not any(file.rows for file in files):
            return _result(options, journal, (), after, None)
        manifest = Manifest(
            number=run.number,
            made_at=now().isoformat(timespec="seconds"),
            journal_id=journal.journal_id,
            source=journal.source,
            content=CONTENT,
            has_bodies=options.has_bodies,
            reached=reached,
            scan_from=scan_from,
            files=files,
        )
        target = run.publish(manifest)
    return _result(options, journal, files, reached, target, missing)


def _write(
    spark: SparkSession,
    journal: Journal,
    options: ExportOptions,
    run: ExportRun,
    last: Manifest | None,
    look: Look,
) -> tuple[int, int, tuple[ExportedFile, ...]]:
    """Write the new messages to the staging folder.

    Returns:
        Where the next export has to begin, how many messages have no body, and the files.
    """
    first, after = (0, _NOTHING) if last is None else (last.scan_from, last.reached)

    def read(columns: tuple[str, ...], which: Mapping[str, str]) -> DataFrame:
        records = journal.records(spark, columns, first, which).where(
            F.col("position") <= look.last
        )
        return records.dropDuplicates(["journal", "position"]) if journal.has_copies else records

    columns = (*MESSAGE, "body") if options.has_bodies else MESSAGE
    exported = None if last is None else _exported(spark, options.to, journal.journal_id)
    decided = settled(read).persist()
    try:
        undecided = undecided_from(decided).collect()[0]
        broadcast = undecided["count"] <= _BROADCAST_MAX
        if broadcast and not journal.has_copies and is_direct(look.folders):
            files, missing = direct_export.write(
                spark,
                run,
                *journal.readers(columns, first, ADDS),
                after=after,
                until=look.last,
                has_bodies=options.has_bodies,
                transactions=committed(decided),
                doubled=doubled(read, decided, after, exported) if look.has_moved else None,
            )
        else:
            messages = visible(
                read, columns, decided, after, exported,
                has_moved=look.has_moved, broadcast=broadcast,
            )  # fmt: skip
            files, missing = _shuffled(spark, run, messages, has_bodies=options.has_bodies)
    finally:
        decided.unpersist()
    scan_from = look.last + 1 if undecided["scan_from"] is None else int(undecided["scan_from"])
    return scan_from, missing, files


def is_direct(folders: tuple[int, ...]) -> bool:
    """Return whether tasks write what they read: their files are of a good size as it is.

    Args:
        folders: Folders that the messages of each part go to.
    """
    few = FEW_FOLDERS * max(1, len(folders))
    return sum(folders) <= few and max(folders, default=0) <= MANY_FOLDERS


def _shuffled(
    spark: SparkSession, run: ExportRun, messages: DataFrame, *, has_bodies: bool
) -> tuple[tuple[ExportedFile, ...], int]:
    """Bring the messages of each folder together and write them.

    Returns:
        The files, and how many messages have no body.
    """
    rows = written(messages, has_bodies=has_bodies)
    counted = Observation()
    no_body = F.col("body").isNull() if has_bodies else F.lit(False)
    observed = rows.observe(counted, F.count_if(no_body).alias("missing"))
    with _standard_timestamps(spark):
        observed.write.partitionBy(*PARTITIONS).option("compression", "zstd").parquet(
            f"file:{run.staging.absolute()}"
        )
    return staged(run.staging), int(counted.get["missing"])


@contextmanager
def _standard_timestamps(spark: SparkSession) -> Iterator[None]:
    """Have Spark write times as Parquet defines them: microseconds in UTC.

    Its own INT96 is deprecated, has no statistics, and Iceberg knows no such type.
    """
    before = str(spark.conf.get(_TIMESTAMPS))
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        spark.conf.set(_TIMESTAMPS, before)


def _exported(spark: SparkSession, to: Path, journal_id: str) -> DataFrame:
    """Return places and positions of what former exports of a journal took."""
    paths = [
        f"file:{to.absolute()}/{folder_name(manifest.number)}/{file.path}"
        for manifest in ExportFolder(to).manifests()
        if manifest.journal_id == journal_id
        for file in manifest.files
    ]
    return spark.read.parquet(*paths).select("places", "position")


def _result(
    options: ExportOptions,
    journal: Journal,
    files: tuple[ExportedFile, ...],
    reached: int,
    target: Path | None,
    bodies_missing: int = 0,
) -> ExportResult:
    return ExportResult(
        to=str(options.to),
        export=None if target is None else str(target),
        journal_id=journal.journal_id,
        messages=sum(file.rows for file in files),
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        reached=reached,
        bodies_missing=bodies_missing,
    )
