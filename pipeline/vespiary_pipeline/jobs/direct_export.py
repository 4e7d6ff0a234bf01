"""An export whose tasks write what they read: Spark distributes and repeats them, no row is its.

Owns: what the tasks are given, and what becomes of their files. Called by `exporting`, which says
when messages need not be brought together first (docs/decisions/0035).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from vespiary_pipeline.brief import brief
from vespiary_pipeline.jobs.export_folder import ExportedFile, ExportRun
from vespiary_pipeline.jobs.message_columns import FLAG_MOVED
from vespiary_pipeline.jobs.part_files import PartFiles, Reader, WrittenFile, folders_of
from vespiary_pipeline.jobs.row_counts import RowCounts, counts_of
from vespiary_pipeline.targets import disk_errors

T = TypeVar("T")

LOOKED_AT: Final = ("position", "kind", "flags", "address", "arrival")
"""Columns that `look` needs."""
TELLING: Final = {"kinds": "ADD,COMMIT,PREPARE,ROLLBACK"}
"""Options of the format: records that are messages, or say of some whether they are."""
_NOTHING: Final = -1


class Look(NamedTuple):
    """What there is in a journal, or in a part of it.

    Attributes:
        last: Position of the last record of those that tell, -1 if there is none.
        has_moved: Copies that compaction made.
        folders: Folders that the messages of each part with messages go to.
    """

    last: int
    has_moved: bool
    folders: tuple[int, ...]


@brief
@dataclass(frozen=True, slots=True)
class _PartLook:
    """Looks at parts. Owner: the driver; it goes to executors pickled."""

    reader: Reader

    def look(self, numbered: tuple[int, Any]) -> Look:
        """Return what there is in a part."""
        last, has_moved = _NOTHING, False
        folders: set[str] = set()
        for batch in self.reader.read(numbered[1]):
            if not batch.num_rows:
                continue
            last = max(last, pc.max(pc.fill_null(batch["position"], _NOTHING)).as_py())
            adds = batch.filter(pc.equal(batch["kind"], "ADD"))
            flags = pc.bit_wise_and(adds["flags"].cast(pa.int64()), FLAG_MOVED)
            has_moved |= bool(pc.max(flags).as_py())
            if adds.num_rows:
                folders.update(folder.name for folder in folders_of(adds))
        return Look(last, has_moved, (len(folders),) if folders else ())


@dataclass(frozen=True, slots=True)
class _Counted:
    """Reads parts and counts their rows. Owner: the driver; it goes to executors pickled."""

    reader: Reader
    counts: RowCounts

    def partitions(self) -> Sequence[Any]:
        """Return the parts."""
        return self.reader.partitions()

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the records of a part."""
        rows = 0
        for batch in self.reader.read(partition):
            rows += batch.num_rows
            yield batch
        self.counts.read.add(rows)


def look(spark: SparkSession, readers: Sequence[Reader]) -> Look:
    """Look at a journal as it is now.

    It may grow while it is read, so that a second look sees more than the first. Every look of an
    export ends where this one does.

    Args:
        spark: The session.
        readers: Of `LOOKED_AT`: of the journal, and of its kept copies if they are read too.
    """
    counts = counts_of(spark.sparkContext)
    found = []
    for reader in readers:
        task = _PartLook(_Counted(reader, counts))
        found += _on_executors(spark, reader, task.look)
    return Look(
        max((one.last for one in found), default=_NOTHING),
        any(one.has_moved for one in found),
        tuple(number for one in found for number in one.folders),
    )


def write(
    spark: SparkSession,
    run: ExportRun,
    reader: Reader,
    *,
    after: int,
    until: int,
    has_bodies: bool,
    transactions: DataFrame,
    doubled: DataFrame | None,
) -> tuple[tuple[ExportedFile, ...], int]:
    """Write the new messages to the staging folder.

    Args:
        spark: The session.
        run: Where.
        reader: Of `MESSAGE`, and bodies if they are wanted.
        after: Position up to which all messages were taken.
        until: Position of the last record that is looked at.
        has_bodies: With the bodies of messages.
        transactions: From `committed`: few enough for the driver.
        doubled: From `doubled`; None: there are no copies.

    Returns:
        The files, and how many messages have no body.

    Durability: on return the files survive a power cut, their names when they are published.
    """
    run.steps.make(run.tasks)
    counts = counts_of(spark.sparkContext)
    task = PartFiles(
        reader=_Counted(reader, counts),
        folder=run.tasks,
        after=after,
        until=until,
        has_bodies=has_bodies,
        transactions=_given(run.tasks, transactions, "transaction", "end_position"),
        doubled=None if doubled is None else _given(run.tasks, doubled, "position"),
    )

    def written(numbered: tuple[int, Any]) -> list[WrittenFile]:
        files = task.write(numbered)
        counts.written.add(sum(file.rows for file in files))
        counts.bytes_written.add(sum(file.size_bytes for file in files))
        return files

    files = [file for part in _on_executors(spark, reader, written) for file in part]
    return moved(run, files), sum(file.bodies_missing for file in files)


def _on_executors(
    spark: SparkSession, reader: Reader, task: Callable[[tuple[int, Any]], T]
) -> list[T]:
    """Run a task for each part of a journal; return what each said, in the order of the parts."""
    parts = list(enumerate(reader.partitions()))
    return spark.sparkContext.parallelize(parts, len(parts)).map(task).collect() if parts else []


def _given(folder: Path, rows: DataFrame, *order: str) -> Path | None:
    """Write rows where tasks can map them; return the file, None if there are no rows."""
    table = rows.toArrow().sort_by([(name, "ascending") for name in order]).combine_chunks()
    if not table.num_rows:
        return None
    path = folder / f"{order[0]}.arrow"
    with (
        disk_errors("a file of the export can't be written", path, "export"),
        pa.OSFile(str(path), "wb") as file,
        pa.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table)
    return path


def moved(run: ExportRun, files: Sequence[WrittenFile]) -> tuple[ExportedFile, ...]:
    """Give files their places in the staging folder; return them by their paths.

    Args:
        run: The export.
        files: Those that its driver was told of: a task that was tried again may have left others.
    """
    with disk_errors("a file of the export can't be given its name", run.staging, "export"):
        for folder in sorted({file.folder for file in files}):
            run.steps.make(run.staging / folder)
        for file in files:
            run.steps.move(run.tasks / file.name, run.staging / file.folder / file.name)
    moved = (
        ExportedFile(f"{file.folder}/{file.name}", file.rows, file.size_bytes) for file in files
    )
    return tuple(sorted(moved, key=lambda file: file.path))
