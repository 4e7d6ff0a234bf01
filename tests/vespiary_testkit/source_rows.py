"""The batch source without a JVM: plan and read as Spark does, pickled in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from vespiary_pipeline.options import read_options
from vespiary_pipeline.source import VespiaryReader, declared_columns
from vespiary_testkit.faulty_disk import MemoryDisk


def reader_of(path: Path | str | None, **options: str) -> VespiaryReader:
    """Return a reader of all columns that its options declare; None: `paths` is among these."""
    chosen = read_options({**({"path": str(path)} if path else {}), **options})
    return VespiaryReader(chosen, declared_columns(chosen))


def batches_of(reader: VespiaryReader) -> Iterator[pa.RecordBatch]:
    """Yield what all partitions give, each in a worker of its own."""
    for partition in reader.partitions():
        worker, own = cloudpickle.loads(cloudpickle.dumps((reader, partition)))
        for batch in worker.read(own):
            batch.validate(full=True)
            yield batch


def rows_of(path: Path | str | None, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a table; headers as a dict."""
    reader = reader_of(path, **options)
    rows = [row for batch in batches_of(reader) for row in batch.to_pylist()]
    for row in rows:
        if row.get("properties") is not None:
            row["properties"] = dict(row["properties"])
    return rows


def write_out(disk: MemoryDisk, folder: Path, target: Path) -> None:
    """Put the files of a folder of a `MemoryDisk` into a real one."""
    target.mkdir(parents=True, exist_ok=True)
    for path, inode in disk.files.items():
        if path.parent == folder:
            (target / path.name).write_bytes(bytes(inode.data))
