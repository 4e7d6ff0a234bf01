"""Whole journals through Spark: seconds until all rows were made, resolved or exported.

Owns: the jobs that are timed, and what a worker's memory is measured on. Must never: give a figure
for a run that did not see every record. Called by `benchmarks.pipeline.__main__`.
"""

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks import usage
from benchmarks.pipeline.journals import JOURNAL_ID, Journal
from benchmarks.pipeline.scanning import ScanError
from vespiary_pipeline import register
from vespiary_pipeline.jobs.broker_files import BrokerFiles
from vespiary_pipeline.jobs.exporting import ExportOptions, export
from vespiary_pipeline.jobs.message_columns import MESSAGE
from vespiary_pipeline.jobs.part_files import PartFiles
from vespiary_pipeline.jobs.visible_messages import ADDS
from vespiary_pipeline.options import read_options
from vespiary_pipeline.source import VespiaryReader, declared_columns

FEW: Final = "kind,position,places"
SETTINGS: Final = {"spark.master": "local[2]", "spark.driver.memory": "2g"}


class ReadFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A message journal as the export job asks for it.

    Attributes:
        folder: A broker's data folder.
    """

    folder: Path

    @property
    def journal_id(self) -> str:
        """Its id, in hex."""
        return JOURNAL_ID.hex()

    @property
    def source(self) -> str:
        """Its folder."""
        return str(self.folder)

    @property
    def has_copies(self) -> bool:
        """No file is there twice."""
        return False

    def records(
        self, spark: SparkSession, columns: tuple[str, ...], first: int, options: Mapping[str, str]
    ) -> DataFrame:
        """Return the records from a position on."""
        return load(spark, self.folder, **_asked(columns, first, options))

    def readers(
        self, columns: tuple[str, ...], first: int, options: Mapping[str, str]
    ) -> list[VespiaryReader]:
        """Return what reads them part by part."""
        chosen = read_options({"path": str(self.folder), **_asked(columns, first, options)})
        return [VespiaryReader(chosen, declared_columns(chosen))]


def _asked(columns: tuple[str, ...], first: int, options: Mapping[str, str]) -> dict[str, str]:
    body = str("body" in columns).lower()
    return {"columns": ",".join(columns), "body": body, "minPosition": str(first), **options}


def load(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    """Return the records of a data folder.

    Args:
        spark: The session.
        folder: The data folder.
        options: Of the format.
    """
    register(spark)
    return spark.read.format("vespiary").options(**options).load(str(folder))


def seconds(job: Callable[[], object]) -> float:
    """Return how long a job takes, by the clock: it runs in other processes."""
    begun = time.perf_counter()
    job()
    return time.perf_counter() - begun


def read_s(spark: SparkSession, journal: Journal, **options: str) -> float:
    """Return seconds until Spark had all rows.

    Args:
        spark: The session.
        journal: What is read.
        options: Of the format.
    """
    frame = load(spark, journal.folder, **options)
    return seconds(lambda: frame.write.format("noop").mode("overwrite").save())


def live_s(spark: SparkSession, journal: Journal) -> float:
    """Return seconds until all live places of a journal were known, as the commands find them.

    Args:
        spark: The session.
        journal: What is read.

    Raises:
        ScanError: Other places were found than the journal has.
    """
    found = 0

    def count() -> None:
        nonlocal found
        places = BrokerFiles(spark, str(journal.folder)).live()
        found = places.agg(F.count("*").alias("n"), F.sum("length")).collect()[0]["n"]

    taken = seconds(count)
    spark.catalog.clearCache()
    if found != journal.live:
        raise ScanError(f"{found} places of {journal.live} were found live in {journal.folder}")
    return taken


def export_s(spark: SparkSession, journal: Journal, to: Path) -> float:
    """Return seconds until all messages were exported to Parquet and durable.

    Args:
        spark: The session.
        journal: What is read.
        to: A folder that is made and removed.

    Raises:
        ScanError: No message was exported.
    """
    exported = 0

    def run() -> None:
        nonlocal exported
        source = ReadFolder(folder=journal.folder)
        exported = export(spark, source, ExportOptions(to=to)).messages

    try:
        taken = seconds(run)
    finally:
        shutil.rmtree(to, ignore_errors=True)
    if not exported:
        raise ScanError(f"no message of {journal.folder} was exported")
    return taken


# --- one worker, without Spark --------------------------------------------------------------------


def part_s(journal: Journal, **options: str) -> float:
    """Return seconds of one core from files to Arrow batches, without Spark.

    Args:
        journal: What is read.
        options: Of the format.

    Raises:
        ScanError: Not all records were seen.
    """
    chosen = read_options({"path": str(journal.folder), **options})
    reader = VespiaryReader(chosen, declared_columns(chosen))
    parts = reader.partitions()
    begun = time.process_time()
    rows = sum(batch.num_rows for part in parts for batch in reader.read(part))
    taken = time.process_time() - begun
    if rows != journal.records:
        raise ScanError(f"{rows} records of {journal.records} were seen in {journal.folder}")
    return taken


def worker_peak_bytes(folder: Path, task: Callable[[Path], int]) -> int:
    """Return the peak of memory of a new process that works on a journal with its bodies.

    Args:
        folder: The data folder.
        task: `read_all` or `export_all`.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(task, (folder,))


def export_all(folder: Path) -> int:
    """Write all messages as tasks of an export do; return the peak of memory of this process.

    Args:
        folder: The data folder.
    """
    options = read_options({"path": str(folder), **_asked((*MESSAGE, "body"), 0, ADDS)})
    reader = VespiaryReader(options, declared_columns(options))
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        task = PartFiles(
            reader=reader, folder=Path(place), after=-1, until=1 << 62, has_bodies=True,
            transactions=None, doubled=None,
        )  # fmt: skip
        if not sum(file.rows for one in enumerate(reader.partitions()) for file in task.write(one)):
            raise ScanError(f"no message of {folder} was written")
    return usage.sample(os.getpid()).rss_peak_bytes


def read_all(folder: Path) -> int:
    """Read all and hand it on as to Spark; return the peak of memory of this process.

    Args:
        folder: The data folder.
    """
    options = read_options({"path": str(folder), "body": "true"})
    reader = VespiaryReader(options, declared_columns(options))
    with Path(os.devnull).open("wb") as file:
        for part in reader.partitions():
            writer = None
            for batch in reader.read(part):
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
            if writer:
                writer.close()
    # Not getrusage: its peak outlives exec, so it would be at least that of the parent.
    return usage.sample(os.getpid()).rss_peak_bytes
