"""The format `vespiary`: Spark's calls in, a plan and batches out.

Owns the adapter to Spark's Python data sources (Spark 4.2 and newer). Must never decode anything
itself. Spark makes the source and plans in short-lived processes on the driver, and reads in
workers on executors; everything that goes from one to another is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from vespiary_codec.journal.columns import POSITION_BITS
from vespiary_pipeline.brief import brief
from vespiary_pipeline.imports.import_options import is_import, read_import_options
from vespiary_pipeline.imports.rows import check_columns as check_import_columns
from vespiary_pipeline.imports.writer import ImportWriter
from vespiary_pipeline.layout import Place, find_places
from vespiary_pipeline.options import Options, read_options
from vespiary_pipeline.plan import Part, plan_copies, plan_journal, split
from vespiary_pipeline.schema import MESSAGES, TABLES, Table
from vespiary_pipeline.sink.frames import check_columns
from vespiary_pipeline.sink.sink_options import SinkOptions, read_sink_options
from vespiary_pipeline.sink.writer import BatchSink, StreamSink
from vespiary_pipeline.sources.batches import Names, Wanted, names_of
from vespiary_pipeline.sources.bodies import LargeBodies
from vespiary_pipeline.sources.counts import file_batches
from vespiary_pipeline.sources.dead import Stretch
from vespiary_pipeline.sources.journal import PartReader
from vespiary_pipeline.sources.keys import queue_names
from vespiary_pipeline.sources.pages import plan_pages
from vespiary_pipeline.sources.text import TextPart, plan_text, read_text
from vespiary_pipeline.stream.reader import StreamReader
from vespiary_pipeline.stream.stream_options import StreamOptions, read_stream_options
from vespiary_spec.errors import ConfigError


@brief
class VespiarySource(DataSource):
    """The format `vespiary`. Owner: Spark."""

    @classmethod
    def name(cls) -> str:
        """Return what users write: `spark.read.format("vespiary")`."""
        return "vespiary"

    def schema(self) -> str:
        """Return the columns as DDL: those asked for, or all but `body` and `data`.

        Raises:
            ConfigError: An option is wrong.
        """
        if _is_stream(self.options):
            return MESSAGES.ddl(stream_columns(read_stream_options(self.options)))
        options = read_options(self.options)
        return TABLES[options.table].ddl(declared_columns(options))

    def reader(self, schema: StructType) -> VespiaryReader:
        """Return what reads.

        Args:
            schema: Ours, or the columns that the user named with `.schema(…)`.

        Raises:
            ConfigError: An option or a column is wrong.
        """
        options = read_options(self.options)
        asked = {"body": options.body, "data": options.data}
        return VespiaryReader(options, _checked(schema, TABLES[options.table], asked))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        """Return what reads live queues.

        Args:
            schema: Ours, or the columns that the user named with `.schema(…)`.

        Raises:
            ConfigError: An option or a column is wrong.
        """
        options = read_stream_options(self.options)
        return StreamReader(options, _checked(schema, MESSAGES, {"body": options.body}))

    def writer(self, schema: StructType, overwrite: bool) -> BatchSink | ImportWriter:
        """Return what writes a DataFrame: to a new data folder, or to a running broker's queues.

        Args:
            schema: The DataFrame's.
            overwrite: Whether what is there should go: it never does.

        Raises:
            ConfigError: An option or a column is wrong.
            ImportRefused: Something is in the folder.
            NativeError: The broker can't be reached, or the folder can't be made.
        """
        if is_import(self.options):
            return self._import(schema, overwrite=overwrite)
        return BatchSink(self._sink_options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamSink:  # noqa: N802
        """Return what writes batches of a query to the queues of a running broker.

        Args:
            schema: The DataFrame's.
            overwrite: Whether each batch is all there is (output mode `complete`): refused.

        Raises:
            ConfigError: An option or a column is wrong.
        """
        return StreamSink(self._sink_options(schema, overwrite=overwrite))

    def _import(self, schema: StructType, *, overwrite: bool) -> ImportWriter:
        options = read_import_options(self.options)
        if overwrite:
            raise ConfigError(
                "an import makes a new folder, and nothing is overwritten", path="mode",
                cure='.mode("append")',
            )  # fmt: skip
        columns = {one.name: one.dataType.simpleString() for one in schema.fields}
        check_import_columns(columns, options)
        return ImportWriter(options, is_numbered="sequences" in columns)

    def _sink_options(self, schema: StructType, *, overwrite: bool) -> SinkOptions:
        options = read_sink_options(self.options)
        if overwrite:
            raise ConfigError(
                "messages are sent, and nothing is overwritten", path="mode",
                cure='.mode("append"), or .outputMode("append") for a stream',
            )  # fmt: skip
        check_columns({one.name: one.dataType.simpleString() for one in schema.fields}, options)
        return options


def _is_stream(options: Mapping[str, str]) -> bool:
    """Whether the options are those of a broker that runs, and not of a path."""
    return any(name.lower() == "url" for name in options)


def stream_columns(options: StreamOptions) -> tuple[str, ...]:
    """Return the columns of a stream."""
    return tuple(name for name in MESSAGES.names if options.body or name != "body")


def declared_columns(options: Options) -> tuple[str, ...]:
    """Return the columns of a reader whose user named none."""
    table = TABLES[options.table]
    asked = {"body": options.body, "data": options.data}
    return options.columns or tuple(name for name in table.names if asked.get(name, True))


def _checked(schema: StructType, table: Table, asked: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the names of a schema's columns; refuse those that are not ours."""
    for field in schema.fields:
        if field.name not in table.names:
            raise ConfigError(
                "there is no such column",
                path=f"schema.{field.name}",
                value=field.name,
                allowed=", ".join(table.names),
            )
        own = table.column(field.name).spark.replace(" ", "")
        if field.dataType.simpleString().replace(" ", "") != own:
            raise ConfigError(
                "this column has another type",
                path=f"schema.{field.name}",
                value=field.dataType.simpleString(),
                allowed=own,
            )
        if not asked.get(field.name, True):
            raise ConfigError(
                "this column has to be asked for",
                path=f"schema.{field.name}",
                value=field.name,
                cure=f"add {field.name}=true",
            )
    return tuple(field.name for field in schema.fields)


class Files(InputPartition):
    """Parts that one task reads, and names of queues by the folder that they come from."""

    def __init__(self, parts: Sequence[Part | TextPart], names: dict[str, dict[int, str]]) -> None:
        super().__init__(None)
        self.parts = list(parts)
        self.names = names


@brief
class VespiaryReader(DataSourceReader):
    """Reads one table.

    It has no `pushFilters`: see docs/decisions/0029.

    Args:
        options: What was asked for.
        columns: Columns, in order.
    """

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    # --- the plan ---------------------------------------------------------------------------------

    def partitions(self) -> Sequence[InputPartition]:
        """Plan on the driver.

        Raises:
            StorageError: Nothing that can be read lies at a path.
            CorruptRecord: A header is damaged, a file is missing, or confirmed data is not there.
            ForeignJournal: A file is of another journal, or of a newer version.
            NativeError: A path can't be read.
        """
        options = self._options
        parts: list[Part | TextPart] = []
        for place in find_places(options):
            parts += self._plan(place)
        names = self._names(parts) if "queues" in self._columns else {}
        packed = [Files(group, names) for group in _packed(parts, options.max_partition_bytes)]
        return packed or [Files([], {})]

    def _plan(self, place: Place) -> list[Part | TextPart]:
        options = self._options
        is_strict = options.on_corrupt == "fail"
        if place.kind == "text":
            return list(plan_text(place, options))
        if place.kind == "pages":
            found = plan_pages(place, is_strict=is_strict)
        elif place.kind == "copies":
            found = plan_copies(place, is_strict=is_strict)
        else:
            found = plan_journal(place, is_strict=is_strict)
        low, high = options.min_file_id, options.max_file_id
        found = [part for part in found if low <= part.shown_id <= high or part.error]
        found = [part for part in found if not self._ends_before(part)]
        if options.table == "files":
            return list(found)
        used = [part for part in found if part.state == "used" or part.error]
        if options.on_corrupt == "stop-file":
            return list(used)  # whoever reads the rest of a file does not know of a hole before it
        return [piece for part in used for piece in split(part, options.max_partition_bytes)]

    def _ends_before(self, part: Part) -> bool:
        """Whether all records of a file stand in front of what is wanted."""
        first_block = self._options.min_position >> POSITION_BITS
        return part.follows is not None and part.follows[0] < first_block

    def _names(self, parts: Sequence[Part | TextPart]) -> dict[str, dict[int, str]]:
        is_strict = self._options.on_corrupt == "fail"
        folders = sorted({part.bindings for part in parts if part.bindings})
        return {folder: queue_names(Path(folder), is_strict=is_strict) for folder in folders}

    # --- reading ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read on an executor.

        Args:
            partition: One of `partitions`.

        Raises:
            CorruptRecord: Confirmed data is damaged.
            SourceChanged: A file was used again meanwhile.
            NativeError: A file can't be read.
        """
        assert isinstance(partition, Files)
        options = self._options
        parts = [part for part in partition.parts if isinstance(part, Part)]
        if options.table == "files":
            yield from file_batches(parts, options, self._columns)
            return
        none = names_of({})
        names: dict[str | None, Names] = {
            folder: names_of(queues) for folder, queues in partition.names.items()
        }
        stretches: dict[Path, Stretch] = {}  # of each message journal
        room = memoryview(bytearray(options.batch_bytes)) if options.dead else None
        for part in partition.parts:
            bodies = LargeBodies(part.large_messages)
            wanted = Wanted(
                self._columns, options.max_body_bytes, names.get(part.bindings, none),
                bodies, options.batch_bytes, bodies.check if options.verify_large else None,
            )  # fmt: skip
            if isinstance(part, TextPart):
                yield from read_text(part, options, wanted)
                continue
            own = None
            if not options.dead and part.journal == "message":
                own = stretches.setdefault(Path(part.path).parent, Stretch())
            yield from PartReader(part, options, wanted, own, room).batches()
        for stretch in stretches.values():
            yield from stretch.batches()


def _packed(parts: Sequence[Part | TextPart], most_bytes: int) -> list[list[Part | TextPart]]:
    """Return parts in their order, as many together as are not too large."""
    groups: list[list[Part | TextPart]] = []
    room = 0
    for part in parts:
        size = (part.end or part.size_bytes) - part.begin if isinstance(part, Part) else most_bytes
        if not groups or size > room:
            groups.append([])
            room = most_bytes
        groups[-1].append(part)
        room -= size
    return groups
