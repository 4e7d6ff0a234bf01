"""Exports as Spark lays them out, written without Spark, and what tables of a lake say of them.

`python -m vespiary_testkit.lake_exports FOLDER FORMAT` registers, and prints how many exports it
added.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from vespiary_pipeline.jobs.export_folder import ExportFolder, Manifest, staged
from vespiary_pipeline.lake.delta import DeltaExports
from vespiary_pipeline.lake.iceberg import LOCAL, LOCAL_CATALOG, TABLE, IcebergExports
from vespiary_pipeline.lake.registering import LakeTable, register
from vespiary_pipeline.schema import RECORDS

NULL = "__HIVE_DEFAULT_PARTITION__"
ARRIVAL = datetime.datetime(2026, 11, 22, 12, 0, 0, 123456, tzinfo=datetime.UTC)
BODY = b"secret body"
JOURNAL = "0a" * 16
FORMS = ("delta", "iceberg")
_COLUMNS = pa.schema(
    [
        pa.field("visible_position", pa.int64()),
        *RECORDS.arrow(
            (
                "places", "queues", "arrival", "expires", "priority", "protocol", "large",
                "properties", "body_bytes", "file_id", "offset", "position", "transaction", "body",
            )
        ),
    ]
)  # fmt: skip


def message(number: int) -> dict[str, Any]:
    """Return a row; what may be null is null in every other one."""
    is_full = number % 2 == 0
    return {
        "visible_position": number,
        "places": [{"queue_id": 1, "sequence": number, "number": 1}],
        "queues": ["orders", None] if is_full else [],
        "arrival": ARRIVAL + datetime.timedelta(seconds=number),
        "expires": ARRIVAL if is_full else None,
        "priority": 4,
        "protocol": 1,
        "large": not is_full,
        "properties": [("secret-key", "secret-value")] if is_full else None,
        "body_bytes": len(BODY),
        "file_id": 1,
        "offset": 4096 * number,
        "position": number,
        "transaction": None,
        "body": BODY,
    }


def write_export(
    lake: Path,
    folders: Iterable[str],
    first: int,
    *,
    has_bodies: bool = True,
    journal_id: str = JOURNAL,
    columns: pa.Schema | None = None,
    is_int96: bool = False,
) -> Manifest:
    """Make an export with a file of two messages in each folder.

    Args:
        lake: The folder of the exports.
        folders: Such as `address=a%2Fb/day=2026-11-22`.
        first: Position of the first message.
        has_bodies: With the column `body`.
        journal_id: Whose messages they are.
        columns: Other columns than an export has.
        is_int96: Times as Spark writes them unless it is told otherwise.
    """
    names = [name for name in _COLUMNS.names if has_bodies or name != "body"]
    schema = columns or pa.schema([_COLUMNS.field(name) for name in names])
    with ExportFolder(lake).writing() as run:
        for number, folder in enumerate(folders):
            place = run.staging / folder
            place.mkdir(parents=True)
            rows = [message(first + 2 * number), message(first + 2 * number + 1)]
            rows = [{name: row.get(name) for name in schema.names} for row in rows]
            pq.write_table(
                pa.Table.from_pylist(rows, schema=schema),
                place / f"part-{run.number}-{number}.parquet",
                use_deprecated_int96_timestamps=is_int96,
                row_group_size=1,
            )
        manifest = Manifest(
            number=run.number,
            made_at=f"2026-11-22T00:00:{first % 60:02}+00:00",
            journal_id=journal_id,
            source="/data",
            content="messages",
            has_bodies=has_bodies,
            reached=first,
            scan_from=first + 1,
            files=staged(run.staging),
        )
        run.publish(manifest)
    return manifest


def exported(lake: Path) -> list[dict[str, Any]]:
    """Return the rows that a plain reader of Parquet finds."""
    partitions = ds.HivePartitioning(
        pa.schema([("export", pa.string()), ("address", pa.string()), ("day", pa.date32())]),
        null_fallback=NULL,
        segment_encoding="uri",
    )
    found = ds.dataset(lake, format="parquet", partitioning=partitions).to_table()
    return ordered(found.drop_columns("export"))


def table_of(lake: Path, form: str) -> LakeTable:
    """Return the table of a folder, not looked at yet."""
    return DeltaExports(lake) if form == "delta" else IcebergExports(lake)


def registered(lake: Path, form: str) -> list[dict[str, Any]]:
    """Return the rows that the reader of a table finds, which knows nothing of Vespiary."""
    if form == "delta":
        from deltalake import DeltaTable

        return ordered(DeltaTable(str(lake)).to_pyarrow_table())
    return ordered(iceberg_table(lake).scan().to_arrow())


def iceberg_table(lake: Path) -> Any:
    """Open the Iceberg table beside the exports as its users do."""
    from pyiceberg.catalog import load_catalog

    uri = f"sqlite:///{lake}/{LOCAL}/catalog.db"
    catalog = load_catalog(LOCAL_CATALOG, type="sql", uri=uri)
    table = catalog.load_table(TABLE)
    catalog.close()
    return table


def ordered(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows in the order of their positions, whatever that of the columns."""
    rows = table.select(sorted(table.column_names)).to_pylist()
    return sorted(rows, key=lambda row: row["visible_position"])


def files_of(lake: Path) -> dict[str, tuple[int, int]]:
    """Return what readers of Parquet see below a folder: paths, inodes, times of change."""
    return {
        str(path.relative_to(lake)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in lake.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in path.relative_to(lake).parts)
    }


def main() -> None:
    """Register once."""
    folder, form = sys.argv[1:]
    print(register(Path(folder), table_of(Path(folder), form)).exports)


if __name__ == "__main__":
    main()
