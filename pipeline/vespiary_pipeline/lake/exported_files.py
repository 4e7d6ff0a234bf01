"""What an export says of its files, as the metadata of a table wants it.

Owns: the columns of an export, the partition that a file's path names, the statistics in its
footer. Must never know a table format, write, or start Spark. Called by `delta`, `iceberg` and
`registering`.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from vespiary_pipeline.jobs.export_folder import Manifest, folder_name
from vespiary_spec.errors import RegistrationRefused

PARTITIONS: Final = {"address": pa.string(), "day": pa.date32()}
"""Columns that stand in the paths of the files, and not in them. `export=N` is none: it says how
the files came, and would keep a table from ever merging small ones of several exports."""
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_RANGED: Final = ("INT32", "INT64")
_NEWER: Final = "use the version of Vespiary that wrote it, or a newer one"


@dataclass(frozen=True, slots=True)
class ColumnRange:
    """What the footer of a file says of a column.

    Attributes:
        nulls: Rows without a value; None if it is not said.
        low: Smallest value; None if it is not said, or there is none.
        high: Largest value; as for `low`.
    """

    nulls: int | None
    low: Any
    high: Any


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A Parquet file that a table shall hold.

    Attributes:
        path: Below the folder of the exports.
        absolute: The whole path.
        size_bytes: Its size.
        modified_ms: When it was written last, in milliseconds since 1970.
        address: Value of the partition column `address`; None: no value.
        day: Value of `day`.
        footer: Its metadata.
    """

    path: str
    absolute: Path
    size_bytes: int
    modified_ms: int
    address: str | None
    day: datetime.date | None
    footer: pq.FileMetaData

    def ranges(self) -> dict[str, ColumnRange]:
        """Return what is known of columns of whole numbers and times.

        Texts and bodies are left out: what is in messages has no place in metadata.
        """
        groups = [self.footer.row_group(at) for at in range(self.footer.num_row_groups)]
        found = {}
        for at in range(self.footer.num_columns):
            chunks = [group.column(at) for group in groups]
            if chunks and "." not in chunks[0].path_in_schema:
                is_ranged = chunks[0].physical_type in _RANGED
                name = chunks[0].path_in_schema
                found[name] = _range([chunk.statistics for chunk in chunks], is_ranged)
        return found


@dataclass(frozen=True, slots=True)
class LakeExport:
    """An export that a table shall hold.

    Attributes:
        manifest: What it took.
        files: Its files.
        schema: Its columns, those of the partitions last.
    """

    manifest: Manifest
    files: tuple[LakeFile, ...]
    schema: pa.Schema


def read_export(folder: Path, manifest: Manifest) -> LakeExport:
    """Look at the files of an export.

    Args:
        folder: The folder of all exports.
        manifest: What the export took.

    Raises:
        RegistrationRefused: A file is missing or no Parquet file, or its columns are not such as a
            table can have.
    """
    files, schema = [], None
    for each in manifest.files:
        path = f"{folder_name(manifest.number)}/{each.path}"
        file = _read_file(folder, path)
        columns = _columns(file)
        if schema is not None and columns != schema:
            raise RegistrationRefused(
                "the files of an export have different columns",
                where=str(file.absolute),
                measured=", ".join(columns.names),
                allowed=", ".join(schema.names),
                cure=_NEWER,
            )
        schema = columns
        files.append(file)
    fields = [] if schema is None else list(schema)
    partitions = [pa.field(name, kind) for name, kind in PARTITIONS.items()]
    return LakeExport(manifest, tuple(files), pa.schema(fields + partitions))


def partition_of(path: str) -> tuple[str | None, datetime.date | None]:
    """Return address and day that a path names, as Hive and Spark write them.

    Args:
        path: With folders `address=…` and `day=…`.

    Raises:
        RegistrationRefused: It has others, or the day is none.
    """
    named = dict(part.partition("=")[::2] for part in path.split("/")[1:-1])
    if list(named) != list(PARTITIONS):
        raise RegistrationRefused(
            "the folders of an export are not those of address and day", where=path, cure=_NEWER
        )
    values = {
        name: None if value == _NULL else unquote(value, errors="strict")
        for name, value in named.items()
    }
    day = values["day"]
    try:
        return values["address"], None if day is None else datetime.date.fromisoformat(day)
    except ValueError as error:
        raise RegistrationRefused(
            "a folder of an export names no day", where=path, measured=day, cure=_NEWER
        ) from error


def _read_file(folder: Path, path: str) -> LakeFile:
    absolute = folder.resolve() / path
    address, day = partition_of(path)
    try:
        status = absolute.stat()
        footer = pq.read_metadata(absolute)
    except (OSError, pa.ArrowInvalid) as error:
        raise RegistrationRefused(
            f"a file of an export cannot be read: {error}",
            where=str(absolute),
            cure="restore it, or export everything anew to another folder",
        ) from error
    size, modified_ms = status.st_size, status.st_mtime_ns // 1_000_000
    return LakeFile(path, absolute, size, modified_ms, address, day, footer)


def _columns(file: LakeFile) -> pa.Schema:
    """Return the columns of a file, all of which may be null."""
    schema = file.footer.schema.to_arrow_schema()
    for field in schema:
        if field.type == pa.timestamp("ns"):
            raise RegistrationRefused(
                f"the column {field.name} holds times as INT96, which not every table format knows",
                where=str(file.absolute),
                cure="export everything anew to another folder: times are microseconds there",
            )
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def _range(statistics: list[Any], is_ranged: bool) -> ColumnRange:
    if any(each is None or not each.has_null_count for each in statistics):
        return ColumnRange(None, None, None)
    nulls = sum(each.null_count for each in statistics)
    # Without values there is no smallest one; a footer may leave it out for other reasons, too.
    filled = [each for each in statistics if each.num_values]
    if not is_ranged or not filled or not all(each.has_min_max for each in filled):
        return ColumnRange(nulls, None, None)
    return ColumnRange(nulls, min(e.min for e in filled), max(e.max for e in filled))
