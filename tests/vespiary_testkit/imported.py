"""Imports without a JVM: the writer is called as Spark calls it, and pickled in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from vespiary_pipeline.imports.writer import ImportWriter, Written
from vespiary_pipeline.source import VespiarySource

COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "body": (BinaryType(), pa.binary()),
    "address": (StringType(), pa.string()),
    "queue": (StringType(), pa.string()),
    "queues": (ArrayType(StringType()), pa.list_(pa.string())),
    "sequences": (ArrayType(LongType()), pa.list_(pa.int64())),
    "properties": (MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string())),
    "priority": (ByteType(), pa.int8()),
    "arrival": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "expires": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "persistent": (BooleanType(), pa.bool_()),
    "file_id": (LongType(), pa.int64()),
}

Rows = Sequence[dict[str, Any]]


def schema_of(*names: str) -> StructType:
    """Return Spark's schema of some columns."""
    return StructType([StructField(name, COLUMNS[name][0]) for name in names])


def batch_of(rows: Rows, names: Sequence[str]) -> pa.RecordBatch:
    """Return rows as Spark hands them over."""
    schema = pa.schema([(name, COLUMNS[name][1]) for name in names])
    return pa.RecordBatch.from_pylist(list(rows), schema)


def names_of(partitions: Sequence[Rows]) -> tuple[str, ...]:
    """Return the columns that any row has, in order."""
    there = {name for rows in partitions for row in rows for name in row}
    return tuple(name for name in COLUMNS if name in there) or ("body",)


def carried(value: Any) -> Any:
    """Return what arrives in another process."""
    return cloudpickle.loads(cloudpickle.dumps(value))


class _Task:
    """What a task knows of itself."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def partitionId(self) -> int:
        return self._partition


@contextmanager
def task_of(partition: int) -> Iterator[None]:
    """Be within a task of Spark."""
    before = TaskContext._taskContext
    TaskContext._taskContext = _Task(partition)  # type: ignore[assignment]
    try:
        yield
    finally:
        TaskContext._taskContext = before


def writer_of(path: Path | str, names: Sequence[str], **options: str) -> ImportWriter:
    """Return the writer that the format gives."""
    given = {"path": str(path), "address": "orders", **options}
    writer = VespiarySource(given).writer(schema=schema_of(*names), overwrite=False)
    assert isinstance(writer, ImportWriter)
    return writer


def write(writer: ImportWriter, partition: int, rows: Rows, names: Sequence[str]) -> Written:
    """Run one task, in batches of two rows."""
    batches = (batch_of(rows[at : at + 2], names) for at in range(0, len(rows), 2))
    with task_of(partition):
        written = carried(writer).write(batches)
    result: Written = carried(written)
    return result


def import_rows(path: Path, *partitions: Rows, **options: str) -> None:
    """Import rows, a task for each partition; the later ones end first."""
    names = names_of(partitions)
    writer = writer_of(path, names, **options)
    messages = {
        number: write(writer, number, rows, names)
        for number, rows in reversed(list(enumerate(partitions)))
    }
    carried(writer).commit([messages[number] for number in range(len(partitions))])
