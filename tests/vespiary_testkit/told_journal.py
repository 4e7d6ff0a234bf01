"""A journal told block by block that the jobs read as rows, and an export of it that can be killed.

`python -m vespiary_testkit.told_journal LAKE MESSAGES POINT FLAG` exports so many messages; at the
point it makes the file FLAG and waits to be killed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from vespiary_codec.journal.record import (
    AddRecord,
    CommitRecord,
    Place,
    Record,
    digest_members,
    encode_record,
)
from vespiary_pipeline.jobs.export_folder import FolderSteps
from vespiary_pipeline.jobs.exporting import ExportOptions, export
from vespiary_pipeline.jobs.part_files import Reader
from vespiary_pipeline.schema import RECORDS
from vespiary_pipeline.session import local_session
from vespiary_spec.errors import CorruptRecord
from vespiary_testkit.journal_blocks import Story
from vespiary_testkit.journal_rows import RowSink, table

DAY_MS = 86_400_000
POINTS = ("writing", "renamed")
"""Where an export can be stopped: in a task of Spark, and right behind the step that makes it
visible. What lies between them the tests of the folder go through step by step."""


@dataclass
class ToldJournal:
    """A journal told block by block. Owner: the test.

    Attributes:
        story: What was told.
        has_copies: Every record comes twice, as from a kept copy.
        journal_id: Its id.
        source: Its path.
        asked: Positions from which on it was read.
        growth: Blocks that are told while it is read, one at each look.
        pause: A file that each task makes before it waits for ever; None: none does.
        is_damaged: A task that reads bodies fails, as the source does.
    """

    story: Story
    has_copies: bool = False
    journal_id: str = "0a" * 16
    source: str = "told"
    asked: list[int] = field(default_factory=list)
    growth: list[tuple[Record, ...]] = field(default_factory=list)
    pause: Path | None = None
    is_damaged: bool = False

    def records(
        self, spark: SparkSession, columns: tuple[str, ...], first: int, options: Mapping[str, str]
    ) -> DataFrame:
        """Return its records as they are now; whatever the options leave out as well."""
        found = self._look(first)
        copies = found if self.has_copies else []
        records = spark.createDataFrame(table(found + copies)).select(*columns)
        if self.is_damaged and "body" in columns:

            def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                yield next(batches)
                raise CorruptRecord("confirmed data is damaged", where="told:7", cure="keep a copy")

            return records.mapInArrow(fail, RECORDS.ddl(columns))
        if self.pause is None or "body" not in columns:
            return records
        flag = str(self.pause)

        def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield next(batches)
            Path(flag).touch()
            time.sleep(3600)

        return records.mapInArrow(wait, RECORDS.ddl(columns))

    def readers(
        self, columns: tuple[str, ...], first: int, options: Mapping[str, str]
    ) -> list[Reader]:
        """Return what reads the same in two parts, and as often as there are copies."""
        # Spark's workers find the product alone, not the tests.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        rows = table(self._look(first)).select(list(columns))
        return [ToldReader(rows, self.pause, self.is_damaged)] * (2 if self.has_copies else 1)

    def _look(self, first: int) -> list[dict[str, Any]]:
        self.asked.append(first)
        rows = RowSink()
        self.story(rows)
        found = [row for row in rows.rows if row["position"] >= first]
        for row in found:
            row["body"] = b"body"
        if self.growth:
            self.story.block(*self.growth.pop(0))
        return found


@dataclass(frozen=True)
class ToldReader:
    """Reads rows in two parts, in the workers of Spark.

    Attributes:
        rows: What is read.
        pause: As in `ToldJournal`.
        is_damaged: As in `ToldJournal`.
    """

    rows: pa.Table
    pause: Path | None
    is_damaged: bool

    def partitions(self) -> list[tuple[int, int]]:
        half = (self.rows.num_rows + 1) // 2
        return [(0, half), (half, self.rows.num_rows)]

    def read(self, partition: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        begin, end = partition
        yield from self.rows.slice(begin, end - begin).combine_chunks().to_batches()
        if "body" not in self.rows.column_names:
            return
        if self.is_damaged:
            raise CorruptRecord("confirmed data is damaged", where="told:7", cure="keep a copy")
        if self.pause is not None:
            self.pause.touch()
            time.sleep(3600)


class WaitingSteps(FolderSteps):
    """Waits to be killed at a point.

    Args:
        point: Which.
        flag: A file that says that it is there.
    """

    def __init__(self, point: str, flag: Path) -> None:
        self._point, self._flag = point, flag

    def rename(self, old: Path, new: Path) -> None:
        """Rename, and wait behind that."""
        super().rename(old, new)
        if self._point == "renamed":
            self._flag.touch()
            time.sleep(3600)


def add(
    *sequences: int, to: str = "orders", transaction: int = 0, day: int = 0, is_moved: bool = False
) -> AddRecord:
    """Return a message of queue 1."""
    places = tuple(Place(1, sequence) for sequence in sequences)
    properties = f"destination:/queue/{to}\n".encode()
    arrival_ms = day * DAY_MS + 5
    return AddRecord(
        places, properties, b"x", arrival_ms, transaction=transaction, is_moved=is_moved
    )


def commit(*members: Record) -> CommitRecord:
    """Return what ends transaction 5."""
    encoded = [encode_record(member) for member in members]
    return CommitRecord(5, len(encoded), digest_members(encoded))


def with_messages(number: int) -> ToldJournal:
    """Return a journal with messages 1, 2, 3, …, of some addresses and days."""
    journal = ToldJournal(Story())
    journal.story.file(1)
    for sequence in range(1, number + 1):
        journal.story.block(add(sequence, to=f"address{sequence % 3}", day=sequence % 2))
    return journal


def main() -> None:
    """Export, and wait at a point."""
    lake, number, point, flag = sys.argv[1:]
    journal = with_messages(int(number))
    if point == "writing":
        journal.pause = Path(flag)
    with local_session({"spark.master": "local[2]", "spark.driver.memory": "1g"}) as spark:
        export(spark, journal, ExportOptions(to=Path(lake)), WaitingSteps(point, Path(flag)))


if __name__ == "__main__":
    main()
