"""`verify`: many journals looked at in parallel, each file and each transaction.

Owns what a verdict is. The source reads every block: its checksum, place, sequence and chain, in a
file and from one to the next; large bodies are read and compared where they lie. Nothing is
changed. Called by the command line.

Verdicts are those of `vespiary journal verify`: a torn tail is the end of unconfirmed work, and no
damage. Nor is what a broker took away on purpose: the body of a message that is acknowledged, a
kept copy that grew old and what only it held, a file that is freed while it is read. What keeps a
folder from being looked at is no damage either: nobody knows then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)

from vespiary_pipeline import register
from vespiary_pipeline.jobs.broker_files import BrokerFiles
from vespiary_pipeline.jobs.failures import spark_failures
from vespiary_pipeline.jobs.stray_bytes import SCHEMA, look
from vespiary_pipeline.layout import Place, find_places
from vespiary_pipeline.options import local_path, read_options
from vespiary_pipeline.sources.bodies import NO_FOLDER, NOT_THERE, UNREADABLE
from vespiary_pipeline.transform import RECORD_COLUMNS, transactions
from vespiary_spec.errors import (
    ConfigError,
    CorruptRecord,
    ForeignJournal,
    JobFailed,
    LargeMessageDamaged,
    NativeError,
    PageDamaged,
    SourceChanged,
    StorageError,
    VespiaryError,
)

GOOD: Final = "good"
TORN: Final = "torn"
DAMAGED: Final = "damaged"
UNREAD: Final = "unread"
_BAD: Final = (DAMAGED, UNREAD)
_DAMAGES: Final = frozenset(
    one.code for one in (CorruptRecord, ForeignJournal, LargeMessageDamaged, PageDamaged)
)
_CHANGED: Final = f"[{SourceChanged.code}]"
_AT_ONCE: Final = 8
_LOOKS: Final = 3
_COLUMNS: Final = (
    "path", "journal", "file_id", "state", "used_bytes", "blocks", "records", "torn_at", "error",
)  # fmt: skip


class Damage(NamedTuple):
    """Something that is wrong.

    Attributes:
        path: The file.
        offset: Where in it; None: the whole file.
        what: What is wrong with it, in a sentence.
    """

    path: str
    offset: int | None
    what: str

    @property
    def place(self) -> str:
        """The file and where in it."""
        return self.path if self.offset is None else f"{self.path}:{self.offset}"


class Verified(NamedTuple):
    """What was found in one folder.

    Attributes:
        folder: The folder that was looked at.
        verdict: `good`, `torn` or `damaged`; `unread` if it could not be looked at.
        files: Files with blocks.
        blocks: Blocks that count.
        records: Records in them.
        size_bytes: Bytes of these blocks.
        damage: What is wrong; of an unread folder why.
    """

    folder: str
    verdict: str
    files: int = 0
    blocks: int = 0
    records: int = 0
    size_bytes: int = 0
    damage: tuple[Damage, ...] = ()

    @property
    def is_bad(self) -> bool:
        """Whether it is damaged, or could not be looked at."""
        return self.verdict in _BAD

    @property
    def message(self) -> str:
        """What was found, in a few words."""
        if self.verdict == UNREAD:
            return f"{UNREAD}: it could not be looked at"
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
        A verdict for each; `unread` if something keeps it from being looked at.
    """
    register(spark)
    # Copies of a journal have the same transactions, so each folder is looked at by itself.
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda folder: _look(spark, folder, options), folders))


def _look(spark: SparkSession, folder: str, options: Mapping[str, str]) -> Verified:
    """Look at one folder; what ends that is its own, and the others go on.

    A broker removes kept copies at any time. Where damage was found and copies went meanwhile, it
    may be that which they took with them, so the rest is looked at again.
    """
    found = Verified(folder, UNREAD)
    for _ in range(_LOOKS):
        try:
            before = _copies(folder, options)
            with spark_failures(folder):
                found = _looked(spark, folder, options)
            is_same = before <= _copies(folder, options)
        except VespiaryError as error:
            if type(error) is JobFailed:  # a reason of Spark's own, such as a full disk
                raise
            verdict = DAMAGED if error.code in _DAMAGES else UNREAD
            return Verified(folder, verdict, damage=(_damage(folder, str(error)),))
        if is_same or not found.damage:
            break
    return found


def _copies(folder: str, options: Mapping[str, str]) -> set[str]:
    """Return the names of the kept copies in a folder."""
    places = [one for one in _places(folder, "message", options) if one.kind == "copies"]
    return {entry.name for place in places for entry in place.path.iterdir()}


def _looked(spark: SparkSession, folder: str, options: Mapping[str, str]) -> Verified:
    files = _files(spark, folder, options).persist()
    rows = files.collect()
    broken = _strays(files).collect()
    files.unpersist()
    if _places(folder, "message", options):
        broken += _transactions(spark, folder, options)
        broken += _bodies(spark, folder, options)
    return _verdict(folder, rows, broken)


def _strays(files: DataFrame) -> DataFrame:
    """Return bytes that stand where nothing does, and ends of pages that are damaged."""
    seen = files.where("error IS NULL AND state <> 'unfinished'").select(
        "path", "journal", "used_bytes"
    )
    return seen.repartition(seen.sparkSession.sparkContext.defaultParallelism).mapInArrow(
        look, SCHEMA
    )


def _lenient(options: Mapping[str, str], **more: str) -> dict[str, str]:
    return {**options, "onCorrupt": "report", "consistency": "best-effort", **more}


def _read(spark: SparkSession, folder: str, options: Mapping[str, str], **more: str) -> DataFrame:
    return spark.read.format("vespiary").options(**_lenient(options, **more)).load(folder)


def _files(spark: SparkSession, folder: str, options: Mapping[str, str]) -> DataFrame:
    """Return a row for each file and each page."""
    found = _read(spark, folder, options, table="files").select(*_COLUMNS)
    if _places(folder, "page", options):
        pages = _read(spark, folder, options, table="files", journal="page")
        found = found.unionByName(pages.select(*_COLUMNS))
    return found


def _places(folder: str, journal: str, options: Mapping[str, str]) -> list[Place]:
    try:
        return find_places(read_options({**options, "path": folder, "journal": journal}))
    except StorageError:
        return []


def _transactions(spark: SparkSession, folder: str, options: Mapping[str, str]) -> list[Row]:
    """Return the transactions whose members are not those that their ends name."""
    columns = ",".join((*RECORD_COLUMNS, "path"))
    records = _read(spark, folder, options, journal="message", columns=columns)
    void = transactions(records.select(*RECORD_COLUMNS)).where("outcome = 'void'").persist()
    if not void.count():  # the records are not read again for the places of none
        return []
    ends = records.select(F.col("position").alias("end_position"), "path", "offset", "transaction")
    said = F.format_string(
        "the members of transaction %s do not fit its end: %s of %s are there",
        "transaction", "members_found", "members_named",
    )  # fmt: skip
    found = void.join(ends, ["transaction", "end_position"])
    told = found.select("path", "offset", said.alias("what")).collect()
    void.unpersist()
    return told


def _bodies(spark: SparkSession, folder: str, options: Mapping[str, str]) -> list[Row]:
    """Return the large messages whose bodies are another; or missing, if they ought to be there.

    The body of a message that nobody needs any more is removed, or moved to the kept copies and
    removed from there with time.
    """
    compared = {"columns": "path,offset,places,large,error", "verifyLarge": "true"}
    records = _read(spark, folder, options, journal="message", **compared)
    if _places(folder, "page", options):
        records = records.unionByName(_read(spark, folder, options, journal="page", **compared))
    said = F.concat_ws(": ", F.lit("a large message"), "error").alias("what")
    found = (
        records.where("large AND error IS NOT NULL").select("path", "offset", "places", said)
    ).persist()
    is_missing = F.col("what").contains(NOT_THERE) | F.col("what").contains(NO_FOLDER)
    told = found.where(~is_missing).select("path", "offset", "what").collect()
    missing = found.where(is_missing)
    has_all = all(one.kind == "journal" for one in _places(folder, "message", options))
    if has_all and not missing.isEmpty():
        living = BrokerFiles(spark, folder, _lenient(options)).live()
        place = F.explode("places").alias("place")
        told += (
            missing.select("path", "offset", "what", place)
            .withColumns({name: F.col(f"place.{name}") for name in ("queue_id", "sequence")})
            .join(living, ["queue_id", "sequence"], "left_semi")
            .select("path", "offset", "what")
            .distinct()
            .collect()
        )
    found.unpersist()
    return told


def _damage(path: str, said: str, offset: int | None = None) -> Damage:
    """Return what a sentence says; those of errors begin with file and offset."""
    found = re.fullmatch(rf"{re.escape(path)}(?::(\d+))?: (.*)", said, re.DOTALL)
    if found is None:
        return Damage(path, offset, said)
    return Damage(path, int(found[1]) if found[1] else offset, found[2])


def _verdict(folder: str, rows: Sequence[Row], broken: Sequence[Row]) -> Verified:
    wrong = [
        _damage(row.path, row.error) for row in rows if row.error and _CHANGED not in row.error
    ]
    wrong += [_damage(row.path, row.what, row.asDict().get("offset")) for row in broken]
    is_torn = any(row.torn_at is not None and row.torn_at >= 0 for row in rows)
    used = [row for row in rows if row.blocks]
    verdict = TORN if is_torn else GOOD
    if wrong:
        verdict = UNREAD if all(_is_unknown(one) for one in wrong) else DAMAGED
    return Verified(
        folder,
        verdict,
        files=len(used),
        blocks=sum(row.blocks for row in used),
        records=sum(row.records for row in used),
        size_bytes=sum(row.used_bytes for row in used),
        damage=tuple(dict.fromkeys(wrong)),
    )


def _is_unknown(damage: Damage) -> bool:
    """Return whether a body is there and could not be read."""
    return UNREADABLE in damage.what and NOT_THERE not in damage.what
