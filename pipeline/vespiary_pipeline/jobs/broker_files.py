"""The files of one broker as DataFrames: what the jobs begin with.

Owns which parts of a path are read for what. Must never start a job of Spark's. Called by the
command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vespiary_pipeline import register
from vespiary_pipeline.files import is_locked
from vespiary_pipeline.layout import Place, find_places
from vespiary_pipeline.options import read_options
from vespiary_pipeline.plan import survey, survey_copies
from vespiary_pipeline.source import VespiaryReader, declared_columns
from vespiary_pipeline.transform import RECORD_COLUMNS, live, queues
from vespiary_spec.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class BrokerFiles:
    """What lies at a path. Owner: a job.

    Args:
        spark: The session.
        path: A broker's data folder, the folder of its message journal, or a copy of either.
        options: Options of the format, such as `onCorrupt`.
    """

    def __init__(
        self, spark: SparkSession, path: str, options: Mapping[str, str] | None = None
    ) -> None:
        register(spark)
        self.path = path
        self.spark = spark
        self.options = dict(options or {})

    @property
    def on_corrupt(self) -> str:
        """What damage does."""
        return self.options.get("onCorrupt", "fail")

    def _places(self, journal: str) -> list[Place]:
        given = {**self.options, "path": self.path, "journal": journal}
        try:
            return find_places(read_options(given))
        except StorageError:
            return []

    def _read(self, journal: str, **options: str) -> DataFrame:
        chosen = {**self.options, "journal": journal, **options}
        return self.spark.read.format("vespiary").options(**chosen).load(self.path)

    @property
    def journal_id(self) -> str:
        """Id of the message journal, in hex; empty if no file or copy of it has a header."""
        for place in self._places("message"):
            look = survey_copies if place.kind == "copies" else survey
            for file in look(place)[0]:
                if file.has_header:
                    return file.header.journal_id.hex()
        return ""

    @property
    def is_open(self) -> bool:
        """Whether a broker on this machine has the message journal open now."""
        return any(is_locked(place.path, "message") for place in self._places("message"))

    def files(self) -> DataFrame:
        """Return `schema.FILES` of the message journal."""
        return self._read("message", table="files")

    def records(
        self,
        columns: Sequence[str] = (),
        more: Mapping[str, str] | None = None,
        *,
        with_pages: bool = False,
        first: int = 0,
    ) -> DataFrame:
        """Return `schema.RECORDS` of the message journal.

        Args:
            columns: Which of them; none: all but bodies and data.
            more: Options of the format, such as `kinds`.
            with_pages: And of its pages, if there are any.
            first: Position in front of which no record of the journal is wanted.
        """
        options = _chosen(columns, more, first)
        records = self._read("message", **options)
        if with_pages and self._places("page"):
            return records.unionByName(self._read("page", **options))
        return records

    def reader(
        self, columns: Sequence[str], more: Mapping[str, str] | None = None, *, first: int = 0
    ) -> VespiaryReader:
        """Return what reads the message journal part by part, without rows of Spark's.

        Args:
            columns: Which columns.
            more: Options of the format, such as `kinds`.
            first: Position in front of which no record of the journal is wanted.
        """
        own = {"path": self.path, "journal": "message"}
        options = read_options({**self.options, **own, **_chosen(columns, more, first)})
        return VespiaryReader(options, declared_columns(options))

    def queues(self) -> DataFrame | None:
        """Return `schema.QUEUES`; None where no bindings journal lies beside the journal.

        Without it all queues count, and none has a name.
        """
        message = self._places("message")
        folder = message[0].bindings if message else None
        if folder is None:
            return None
        options = {"journal": "bindings", "columns": "journal,kind,key,value,position",
                   "onCorrupt": self.on_corrupt}  # fmt: skip
        return queues(self.spark.read.format("vespiary").options(**options).load(str(folder)))

    def live(self) -> DataFrame:
        """Return `schema.LIVE`: the messages that a broker would recover.

        The records that it is made of stay in memory, and beyond that on disk, until the session
        ends: they are few as a rule, and `live` reads them four times.
        """
        records = self.records(RECORD_COLUMNS, {"dead": "false"}, with_pages=True).persist()
        return live(records, self.queues())


def _chosen(columns: Sequence[str], more: Mapping[str, str] | None, first: int) -> dict[str, str]:
    options = {"columns": ",".join(columns)} if columns else {}
    options |= {"minPosition": str(first)} if first > 0 else {}
    return options | dict(more or {}) | dict.fromkeys({"body", "data"} & set(columns), "true")


class ExportedJournal:
    """The message journal at a path, as `exporting` wants it.

    Args:
        files: What lies there.
        copies: Retention folder, whose kept copies are read too; empty: there is none.
    """

    def __init__(self, files: BrokerFiles, copies: str = "") -> None:
        self._files = files
        self._copies = copies

    @property
    def journal_id(self) -> str:
        """Its id, in hex."""
        return self._files.journal_id

    @property
    def source(self) -> str:
        """The path that users named."""
        return self._files.path

    @property
    def has_copies(self) -> bool:
        """Whether kept copies are read beside it, so that a record may come twice."""
        return bool(self._copies)

    def records(
        self, spark: SparkSession, columns: tuple[str, ...], first: int, options: Mapping[str, str]
    ) -> DataFrame:
        """Return records from a position on.

        Args:
            spark: The session.
            columns: Which columns.
            first: Position before which no record is wanted.
            options: Options of the format.
        """
        found = self._files.records(columns, options, first=first)
        for copies in self._copied(spark):
            found = found.unionByName(copies.records(columns, options, first=first))
        return found

    def readers(
        self, columns: tuple[str, ...], first: int, options: Mapping[str, str]
    ) -> list[VespiaryReader]:
        """Return what reads the same part by part: the journal, and its kept copies.

        Args:
            columns: Which columns.
            first: Position before which no record is wanted.
            options: Options of the format.
        """
        every = (self._files, *self._copied(self._files.spark))
        return [files.reader(columns, options, first=first) for files in every]

    def _copied(self, spark: SparkSession) -> list[BrokerFiles]:
        options = {"onCorrupt": self._files.on_corrupt}
        return [BrokerFiles(spark, self._copies, options)] if self._copies else []
