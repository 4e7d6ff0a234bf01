"""Columns of a scan as Arrow arrays: wrapped where they fit, copied out of the window where not.

Owns the making of each column of the table of records. Only columns that were asked for are made.
Must never read a journal; large bodies are read from their files. Called by `sources.journal`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from vespiary_codec.journal.columns import Buffer, Columns, Strings
from vespiary_codec.journal.record_types import RecordFlag, RecordType
from vespiary_native.columns import gather, header, properties
from vespiary_pipeline.plan import Part
from vespiary_pipeline.schema import PLACE, RECORDS, TIMESTAMP

BodyReader = Callable[[bytes, int], bytes | str]
"""Returns a large body for its reference and row, or a sentence: why it can't be given."""

BodyCheck = Callable[[bytes], str]
"""Returns what is wrong with a large body for its reference; empty: nothing."""

_ENDS: Final = (RecordType.COMMIT, RecordType.PREPARE, RecordType.ROLLBACK)
_PAGES: Final = (RecordType.PAGE, RecordType.PAGE_DONE)
_KEYED: Final = (RecordType.PUT, RecordType.REMOVE)


# Not when this module is imported: for the first value that it converts pyarrow imports pandas, and
# Spark imports this anew in each process that plans.
@functools.cache
def _kind_names() -> pa.Array:
    known = RecordType.__members__.values()
    return pa.array([RecordType(n).name if n in known else f"TYPE_{n}" for n in range(256)])


@functools.cache
def _kinds(*kinds: RecordType) -> pa.Array:
    return pa.array(kinds, pa.uint8())


class Names(NamedTuple):
    """Names of queues by id, in Arrow's form."""

    ids: pa.Array
    names: pa.Array


class Wanted(NamedTuple):
    """What a batch is made of.

    Attributes:
        columns: Columns, in order.
        max_body_bytes: A larger body is left out.
        names: Names of queues.
        read_body: Reads large bodies; None: they are left out.
        batch_bytes: Bytes of large bodies in one batch, at most, but for a single one.
        check_body: Compares large bodies that are not given; None: nobody does.
    """

    columns: tuple[str, ...]
    max_body_bytes: int
    names: Names
    read_body: BodyReader | None = None
    batch_bytes: int = 8 * 1024 * 1024
    check_body: BodyCheck | None = None


class Batch:
    """One batch in the making.

    Args:
        part: What the records are of.
        window: The bytes that were scanned.
        columns: What the scan made of them.
        wanted: Which columns are asked for.
        gap_position: Position of the record right behind missing blocks; -1: there is none.
        is_cut: The window has what stands in front of a body that is too large to be given.
    """

    def __init__(
        self,
        part: Part,
        window: Buffer,
        columns: Columns,
        wanted: Wanted,
        *,
        gap_position: int = -1,
        is_cut: bool = False,
    ) -> None:
        self._part = part
        self._window = window
        self._columns = columns
        self._wanted = wanted
        self._gap_position = gap_position
        self._is_cut = is_cut
        self._kind = self._numbers(columns.kind, pa.uint8())
        self._is_add = pc.equal(self._kind, pa.scalar(RecordType.ADD, pa.uint8()))
        self._errors: dict[int, str] = {}
        self._large: list[int] = []
        self._references: pa.Array | None = None

    def make(self) -> pa.RecordBatch:
        """Return the batch.

        Raises:
            ValueError: A column is larger than 2**31 - 1 bytes.
        """
        return self._piece(self._all_but_bodies(), 0, self._columns.rows)

    def batches(self, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the batch, cut where large bodies of a piece would be more than `batch_bytes`.

        Args:
            first: Row to begin with.
        """
        made = self._all_but_bodies()
        for begin, end in self._cuts(first):
            yield self._piece(made, begin, end)

    def _all_but_bodies(self) -> dict[str, pa.Array]:
        """Return the columns whose size the window bounds; the bodies still in it are among them.

        Bodies and data come before `error`, as they may have something to say there.
        """
        names = [name for name in self._wanted.columns if name != "error"]
        return {name: self._column(name) for name in names}

    def _piece(self, made: Mapping[str, pa.Array], begin: int, end: int) -> pa.RecordBatch:
        pieces = {name: values.slice(begin, end - begin) for name, values in made.items()}
        if "body" in pieces:
            pieces["body"] = self._with_large(pieces["body"], begin, end)
        if "error" in self._wanted.columns:
            self._compare(begin, end)
            pieces["error"] = self._told(begin, end)
        names = self._wanted.columns
        return pa.RecordBatch.from_arrays(
            [pieces[name] for name in names], schema=RECORDS.arrow(names)
        )

    def _compare(self, begin: int, end: int) -> None:
        """Have large bodies of a piece compared with their records, where that is wanted."""
        if self._wanted.check_body is None:
            return
        large = pc.and_(self._is_add, self._has_flag(RecordFlag.LARGE))
        references = self._cut("body_at", "body_bytes", large, pa.binary())
        for row in pc.indices_nonzero(large.slice(begin, end - begin)).to_pylist():
            if wrong := self._wanted.check_body(references[begin + row].as_py()):
                self._errors[begin + row] = wrong

    def _told(self, begin: int, end: int) -> pa.Array:
        if not self._errors:
            return pa.nulls(end - begin, pa.string())
        return pa.array([self._errors.get(row) for row in range(begin, end)], pa.string())

    def _cuts(self, first: int) -> Iterator[tuple[int, int]]:
        """Yield where pieces begin and end."""
        begin, size = first, 0
        sizes = memoryview(self._columns.body_size).cast("B").cast("q")
        for row in self._large:
            if row < begin:
                continue
            if size and size + sizes[row] > self._wanted.batch_bytes:
                yield begin, row
                begin, size = row, 0
            size += sizes[row]
        if begin < self._columns.rows:
            yield begin, self._columns.rows

    def _with_large(self, bodies: pa.Array, begin: int, end: int) -> pa.Array:
        """Return bodies with those that stand in files of their own."""
        rows = [row for row in self._large if begin <= row < end]
        if not rows:
            return bodies
        values = bodies.to_pylist()
        for row in rows:
            found: bytes | str = "there is no folder of large bodies"
            if self._wanted.read_body is not None and self._references is not None:
                found = self._wanted.read_body(self._references[row].as_py(), row)
            if isinstance(found, str):
                self._errors[row] = found
            else:
                values[row - begin] = found
        return pa.array(values, pa.binary())

    # --- arrays -----------------------------------------------------------------------------------

    def _numbers(self, buffer: Buffer, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, self._columns.rows, [None, pa.py_buffer(buffer)])

    def _same(self, value: Any, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), self._columns.rows)

    def _where(self, mask: pa.Array, values: pa.Array) -> pa.Array:
        return pc.if_else(mask, values, pa.scalar(None, values.type))

    def _of_add(self, values: pa.Array) -> pa.Array:
        return self._where(self._is_add, values)

    def _i64(self, name: str) -> pa.Array:
        return self._numbers(getattr(self._columns, name), pa.int64())

    def _is_in(self, kinds: Sequence[RecordType]) -> pa.Array:
        return pc.is_in(self._kind, _kinds(*kinds))

    def _has_flag(self, flag: int) -> pa.Array:
        flags = self._numbers(self._columns.flags, pa.uint8())
        return pc.not_equal(
            pc.bit_wise_and(flags, pa.scalar(flag, pa.uint8())), pa.scalar(0, pa.uint8())
        )

    def _strings(self, strings: Strings, kind: pa.DataType) -> pa.Array:
        valid = pa.py_buffer(strings.valid) if strings.valid else None
        buffers = [valid, pa.py_buffer(strings.offsets), pa.py_buffer(strings.data)]
        return pa.Array.from_buffers(
            kind, len(memoryview(strings.offsets).cast("B")) // 4 - 1, buffers
        )

    def _time(self, milliseconds: pa.Array) -> pa.Array:
        return pc.multiply(milliseconds, 1000).cast(TIMESTAMP)

    def _column(self, name: str) -> pa.Array:
        make = _MAKERS.get(name)
        return make(self) if make else self._of_part(name)

    def _of_part(self, name: str) -> pa.Array:
        values = {
            "journal": self._part.journal,
            "path": self._part.path,
            "file_id": self._part.shown_id,
            "gaps": self._part.gaps,
        }
        return self._same(values[name], RECORDS.column(name).arrow)

    # --- columns ----------------------------------------------------------------------------------

    def _transaction(self) -> pa.Array:
        values = self._i64("transaction")
        return self._where(pc.not_equal(values, 0), values)

    def _crc(self) -> pa.Array:
        is_end = self._is_in(_ENDS)
        is_member = pc.and_not(pc.not_equal(self._i64("transaction"), 0), is_end)
        return self._where(is_member, self._i64("crc"))

    def _of_kinds(self, name: str, kinds: Sequence[RecordType], kind: pa.DataType) -> pa.Array:
        return self._where(self._is_in(kinds), self._i64(name)).cast(kind)

    def _deliveries(self) -> pa.Array:
        return self._of_kinds("number", (RecordType.COUNT,), pa.int32())

    def _after_gap(self) -> pa.Array:
        return pc.equal(self._i64("position"), self._gap_position)

    def _place_count(self) -> int:
        return len(memoryview(self._columns.place_queue).cast("B")) // 8

    def _places_of(self, kind: pa.DataType, values: pa.Array) -> pa.Array:
        """Return lists of what belongs to places; null for records that speak of none."""
        starts = pa.Array.from_buffers(
            pa.int32(), self._columns.rows + 1, [None, pa.py_buffer(self._columns.places_from)]
        )
        counts = pc.subtract(starts.slice(1), starts.slice(0, self._columns.rows))
        has_any = pc.greater(counts, 0)
        valid = has_any.buffers()[1]
        buffers = [valid, pa.py_buffer(self._columns.places_from)]
        return pa.Array.from_buffers(pa.list_(kind), self._columns.rows, buffers, children=[values])

    def _places(self) -> pa.Array:
        count = self._place_count()
        fields = [
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(buffer)])
            for buffer in (
                self._columns.place_queue,
                self._columns.place_sequence,
                self._columns.place_number,
            )
        ]
        return self._places_of(PLACE, pa.StructArray.from_arrays(fields, fields=list(PLACE)))

    def _queues(self) -> pa.Array:
        ids = pa.Array.from_buffers(
            pa.int64(), self._place_count(), [None, pa.py_buffer(self._columns.place_queue)]
        )
        known = self._wanted.names
        names = known.names.take(pc.index_in(ids, known.ids))
        return self._places_of(pa.string(), names)

    def _header(self, name: bytes) -> pa.Array:
        return self._strings(header(self._window, self._columns, name), pa.string())

    def _address(self) -> pa.Array:
        if self._part.journal in ("bindings", "jms"):
            return self._same(None, pa.string())
        names = self._header(b"destination")
        if not pc.any(pc.starts_with(names, "/"), min_count=0).as_py():
            return names
        return pc.replace_substring_regex(names, "^/(queue|topic)/", "")

    def _expires(self) -> pa.Array:
        text = self._header(b"expires")
        if text.null_count == len(text):
            return self._same(None, TIMESTAMP)
        is_number = pc.fill_null(pc.match_substring_regex(text, "^[0-9]{1,15}$"), False)
        value = self._where(is_number, text).cast(pa.int64())
        return self._time(self._where(pc.fill_null(pc.greater(value, 0), False), value))

    def _properties(self) -> pa.Array:
        maps = properties(self._window, self._columns)
        keys = self._strings(maps.keys, pa.string())
        kind = RECORDS.column("properties").arrow
        entries = pa.StructArray.from_arrays(
            [keys, self._strings(maps.values, pa.string())],
            fields=[kind.key_field, kind.item_field],
        )
        buffers = [self._is_add.buffers()[1], pa.py_buffer(maps.offsets)]
        return pa.Array.from_buffers(kind, self._columns.rows, buffers, children=[entries])

    def _cut(self, at: str, length: str, chosen: pa.Array, kind: pa.DataType) -> pa.Array:
        if not pc.any(chosen, min_count=0).as_py():  # as keys and values of a message journal
            return self._same(None, kind)
        strings = gather(
            self._window,
            getattr(self._columns, at),
            getattr(self._columns, length),
            memoryview(chosen.cast(pa.uint8()).buffers()[1])[: len(chosen)],
        )
        return self._strings(strings, kind)

    def _key(self) -> pa.Array:
        return self._cut("properties_at", "properties_bytes", self._is_in(_KEYED), pa.string())

    def _value(self) -> pa.Array:
        is_put = pc.equal(self._kind, pa.scalar(RecordType.PUT, pa.uint8()))
        return self._cut("body_at", "body_bytes", is_put, pa.string())

    def _data(self) -> pa.Array:
        if self._is_cut:
            self._errors[0] = "the record is larger than maxBodyBytes: raise it to have this record"
            return self._same(None, pa.binary())
        return self._cut("record_at", "length", self._same(True, pa.bool_()), pa.binary())

    def _body(self) -> pa.Array:
        large = pc.and_(self._is_add, self._has_flag(RecordFlag.LARGE))
        fits = pc.less_equal(self._i64("body_size"), self._wanted.max_body_bytes)
        for row in pc.indices_nonzero(pc.and_not(self._is_add, fits)).to_pylist():
            size = self._i64("body_size")[row].as_py()
            self._errors[row] = (
                f"the body has {size} bytes, and maxBodyBytes is {self._wanted.max_body_bytes}:"
                " raise it to have this body"
            )
        here = pc.and_(pc.and_not(self._is_add, large), fits)
        self._large = pc.indices_nonzero(pc.and_(large, fits)).to_pylist()
        if self._large:
            self._references = self._cut("body_at", "body_bytes", large, pa.binary())
        return self._cut("body_at", "body_bytes", here, pa.binary())


def _plain(name: str) -> Callable[[Batch], pa.Array]:
    return lambda batch: batch._i64(name)


_MAKERS: Final[Mapping[str, Callable[[Batch], pa.Array]]] = {
    "offset": _plain("offset"),
    "block": _plain("block"),
    "position": _plain("position"),
    "length": _plain("length"),
    "block_time": lambda batch: batch._time(batch._i64("block_time_ms")),
    "kind": lambda batch: _kind_names().take(batch._kind),
    "flags": lambda batch: batch._numbers(batch._columns.flags, pa.uint8()).cast(pa.int16()),
    "transaction": Batch._transaction,
    "crc": Batch._crc,
    "page_id": lambda batch: batch._of_kinds("number", _PAGES, pa.int64()),
    "members": lambda batch: batch._of_kinds("number", _ENDS, pa.int64()),
    "digest": lambda batch: batch._of_kinds("digest", _ENDS, pa.int64()),
    "deliveries": Batch._deliveries,
    "places": Batch._places,
    "queues": Batch._queues,
    "after_gap": Batch._after_gap,
    "address": Batch._address,
    "arrival": lambda batch: batch._of_add(batch._time(batch._i64("arrival_ms"))),
    "expires": Batch._expires,
    "priority": lambda batch: batch._of_add(
        batch._numbers(batch._columns.priority, pa.uint8()).cast(pa.int8())
    ),
    "protocol": lambda batch: batch._of_add(
        batch._numbers(batch._columns.protocol, pa.uint8()).cast(pa.int8(), safe=False)
    ),
    "large": lambda batch: batch._of_add(batch._has_flag(RecordFlag.LARGE)),
    "properties": Batch._properties,
    "properties_bytes": lambda batch: batch._of_add(batch._i64("properties_bytes")),
    "body_bytes": lambda batch: batch._of_add(batch._i64("body_size")),
    "body": Batch._body,
    "key": Batch._key,
    "value": Batch._value,
    "data": Batch._data,
}


def error_row(part: Part, offset: int, error: str, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return a batch of one row for a damaged place.

    Args:
        part: What was read.
        offset: Where the damage begins; below 0: the whole file.
        error: What is wrong, a sentence.
        columns: Columns that are asked for.
    """
    row = {
        "journal": part.journal,
        "path": part.path,
        "file_id": part.shown_id or None,
        "offset": offset if offset >= 0 else None,
        "error": error,
    }
    schema = RECORDS.arrow(columns)
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in columns}], schema=schema)


def names_of(names: Mapping[int, str]) -> Names:
    """Return names of queues as Arrow has them.

    Args:
        names: By the queues' ids.
    """
    return Names(pa.array(list(names), pa.int64()), pa.array(list(names.values()), pa.string()))
