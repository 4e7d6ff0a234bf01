"""`verify`: many journals looked at in parallel, each file and each transaction.

Owns what a verdict is. The source reads every block: its checksum, place, sequence and chain, in a
file and from one to the next; large bodies are read and compared where they lie. Nothing is
changed. Called by the command line.

Verdicts are those of `vespiary journal verify`: a torn tail is the end of unconfirmed work, and no
damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline import register
from vespiary_pipeline.jobs.failures import spark_failures
from vespiary_pipeline.jobs.stray_bytes import SCHEMA, look
from vespiary_pipeline.layout import find_places
from vespiary_pipeline.options import local_path, read_options
from vespiary_pipeline.transform import RECORD_COLUMNS, transactions
from vespiary_spec.errors import ConfigError, JobFailed, NativeError, StorageError, VespiaryError

GOOD: Final = "good"
TORN: Final = "torn"
DAMAGED: Final = "damaged"
_AT_ONCE: Final = 8
_COLUMNS: Final = (
    "path", "journal", "file_id", "state", "used_bytes", "blocks", "records", "torn_at", "error",
)  # fmt: skip
_MORE: Final = ("path", "large", "error")


class Damage(NamedTuple):
    """Something that is wrong.

    Attributes:
        path: The file.
        what: What is wrong with it, in a sentence.
    """

    path: str
    what: str


class Verified(NamedTuple):
    """What was found in one folder.

    Attributes:
        folder: The folder that was looked at.
        verdict: `good`, `torn` or `damaged`.
        files: Files with blocks.
        blocks: Blocks that count.
        records: Records in them.
        damage: What is wrong.
    """

    folder: str
    verdict: str
    files: int
    blocks: int
    records: int
    damage: tuple[Damage, ...]

    @property
    def message(self) -> str:
        """What was found, in a few words."""
        return f"{self.verdict}: {self.files} files, {self.blocks} blocks, {self.records} records"

    def to_json(self) -> dict[str, Any]:
        """Return it as an object."""
        damage = [one._asdict() for one in self.damage]
        return self._asdict() | {"damage": damage, "message": self.message}


def folders_in(paths: Iterable[str], options: Mapping[str, str]) -> list[str]:
    """Return the folders to look at: those named, or the folders in one that hold something.

    Args:
        paths: Data folders, journals, copies, or folders of such.
        options: Options of the format.

    Raises:
        StorageError: Nothing of a broker lies at a path, nor right below it.
        ConfigError: A path is the text of an export.
    """
    found: list[str] = []
    for path in paths:
        try:
            find_places(read_options({**options, "path": path}))
        except StorageError:
            inner = _below(Path(local_path(path)), options)
            if not inner:
                raise
            found += inner
        else:
            if Path(local_path(path)).is_file():
                raise ConfigError(
                    "this is the text of an export, and not a journal", path="PATH", value=path,
                    cure="read it with spark.read.format('vespiary'), or import it",
                )  # fmt: skip
            found.append(path)
    return found


def _below(path: Path, options: Mapping[str, str]) -> list[str]:
    found = []
    for inner in sorted(path.iterdir()) if path.is_dir() else ():
        try:
            find_places(read_options({**options, "path": str(inner)}))
        except StorageError:
            continue
        except NativeError:
            pass  # it may not be read, which is told of this one alone
        found.append(str(inner))
    return found


def verify(
    spark: SparkSession, folders: Sequence[str], options: Mapping[str, str]
) -> list[Verified]:
    """Look at every file, in tasks.

    Args:
        spark: The session.
        folders: From `folders_in`.
        options: Options of the format, such as `snapshot`.

    Returns:
        A verdict for each; what keeps one from being looked at is its damage.
    """
    register(spark)
    # Copies of a journal have the same transactions, so each folder is looked at by itself.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda folder: _look(spark, folder, options), folders))


def _look(spark: SparkSession, folder: str, options: Mapping[str, str]) -> Verified:
    """Look at one folder; what ends that is its own damage, and the others go on."""
    try:
        with spark_failures(folder):
            files = _files(spark, folder, options).persist()
            rows = [row.asDict() for row in files.collect()]
            broken = [row.asDict() for row in _broken(spark, folder, options).collect()]
            broken += [row.asDict() for row in _strays(files).collect()]
            files.unpersist()
    except VespiaryError as error:
        if type(error) is JobFailed:  # a reason of Spark's own, such as a full disk: no damage
            raise
        return Verified(folder, DAMAGED, 0, 0, 0, (Damage(folder, str(error)),))
    return _verdict(folder, rows, broken)


def _strays(files: DataFrame) -> DataFrame:
    """Return bytes that stand where nothing does, and ends of pages that are damaged."""
    seen = files.where("error IS NULL AND state <> 'unfinished'").select(
        "path", "journal", "used_bytes"
    )
    return seen.repartition(seen.sparkSession.sparkContext.defaultParallelism).mapInArrow(
        look, SCHEMA
    )


def _read(spark: SparkSession, folder: str, options: Mapping[str, str], **more: str) -> DataFrame:
    given = {**options, "onCorrupt": "report", "consistency": "best-effort", **more}
    return spark.read.format("vespiary").options(**given).load(folder)


def _files(spark: SparkSession, folder: str, options: Mapping[str, str]) -> DataFrame:
    """Return a row for each file and each page."""
    found = _read(spark, folder, options, table="files").select(*_COLUMNS)
    if _has(folder, "page", options):
        pages = _read(spark, folder, options, table="files", journal="page")
        found = found.unionByName(pages.select(*_COLUMNS))
    return found


def _has(folder: str, journal: str, options: Mapping[str, str]) -> bool:
    try:
        return bool(find_places(read_options({**options, "path": folder, "journal": journal})))
    except StorageError:
        return False


def _broken(spark: SparkSession, folder: str, options: Mapping[str, str]) -> DataFrame:
    """Return what is wrong in files that are whole: transactions that do not fit, large bodies."""
    if not _has(folder, "message", options):
        return spark.createDataFrame([], "path string, what string")
    columns = ",".join(dict.fromkeys((*RECORD_COLUMNS, *_MORE)))
    read = {"journal": "message", "columns": columns, "verifyLarge": "true"}
    records = _read(spark, folder, options, **read)
    bodies = records.where("large AND error IS NOT NULL").select(
        "path", F.concat_ws(": ", F.lit("a large message"), "error").alias("what")
    )
    ends = records.select(F.col("position").alias("end_position"), "path", "transaction")
    void = (
        transactions(records.select(*RECORD_COLUMNS))
        .where("outcome = 'void'")
        .join(ends, ["transaction", "end_position"])
        .select(
            "path",
            F.format_string(
                "the members of transaction %s do not fit its end: %s of %s are there",
                "transaction", "members_found", "members_named",
            ).alias("what"),
        )
    )  # fmt: skip
    return bodies.unionByName(void)


def _verdict(
    folder: str, rows: Sequence[Mapping[str, Any]], broken: Sequence[Mapping[str, Any]]
) -> Verified:
    wrong = [Damage(row["path"], row["error"]) for row in rows if row["error"]]
    wrong += [Damage(row["path"], row["what"]) for row in broken]
    is_torn = any(row["torn_at"] is not None and row["torn_at"] >= 0 for row in rows)
    used = [row for row in rows if row["blocks"]]
    return Verified(
        folder,
        DAMAGED if wrong else TORN if is_torn else GOOD,
        len(used),
        sum(row["blocks"] for row in used),
        sum(row["records"] for row in used),
        tuple(dict.fromkeys(wrong)),
    )
