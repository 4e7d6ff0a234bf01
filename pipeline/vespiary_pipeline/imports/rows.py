"""Rows to ADD records: which columns an import takes, and what they become.

Owns the columns of an import and the reading of batches. Numbers of queues and places in a record
are those of the task, from 0: `settling` puts the right ones in. Must never write a file. Called by
`writer` and `source`.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from vespiary_codec.journal.record import ADD, PLACE
from vespiary_codec.journal.record_types import RecordFlag, RecordType
from vespiary_pipeline.imports.import_options import ImportOptions
from vespiary_pipeline.imports.properties import PropertyLines, Said
from vespiary_spec import limits
from vespiary_spec.errors import ConfigError, ImportRefused

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "address": ("string",),
    "queue": ("string",),
    "queues": ("array<string>",),
    "sequences": ("array<bigint>",),
    "properties": ("map<string,string>",),
    "priority": _WHOLE,
    "arrival": ("timestamp",),
    "expires": ("timestamp",),
    "persistent": ("boolean",),
}
"""What an import takes: `body` is needed, the others may be left out."""

PASSED_OVER: Final = (
    "visible_position", "places", "protocol", "large", "body_bytes", "file_id", "offset",
    "position", "transaction", "day", "export",
)  # fmt: skip
"""Columns of an export that say where a message stood: they are taken and say nothing."""

PLACES_MAX: Final = 2**16 - 1
_NO_NAME: Final = re.compile(r"\A |[\x00-\x1f\x7f]| \Z")
_STOMP: Final = 1


class QueueName(NamedTuple):
    """A queue as rows name it.

    Attributes:
        name: Its name.
        address: The address that it belongs to.
        routing_type: `ANYCAST` or `MULTICAST`; empty: nothing says it.
        other: Another address that rows name with it; empty: there is none.
    """

    name: str
    address: str
    routing_type: str
    other: str = ""


class Encoded(NamedTuple):
    """A message for the journal.

    Attributes:
        record: Its ADD record; of a large one up to the body.
        places: How many places it has.
        large_body: The body, if a file of its own takes it.
    """

    record: bytes
    places: int
    large_body: bytes | None


def check_columns(columns: Mapping[str, str], options: ImportOptions) -> None:
    """Refuse what an import cannot take.

    Args:
        columns: Types by name, as Spark writes them.
        options: What was asked for.

    Raises:
        ConfigError: A column is unknown, has another type, or a needed one is missing.
    """
    for name, kind in columns.items():
        if name in PASSED_OVER:
            continue
        allowed = COLUMNS.get(name)
        if allowed is None:
            raise ConfigError(
                "an import has no such column", path=f"schema.{name}", value=name,
                allowed=", ".join(COLUMNS), cure="leave it out with select()",
            )  # fmt: skip
        if kind not in allowed:
            raise ConfigError(
                "this column has another type", path=f"schema.{name}", value=kind,
                allowed=" or ".join(allowed),
            )  # fmt: skip
    if "body" not in columns:
        raise ConfigError(
            "an import needs the column body", path="schema", value=", ".join(columns),
            cure='.withColumn("body", …), as text or binary',
        )  # fmt: skip
    if "address" not in columns and not options.address:
        raise ConfigError(
            "nothing says where the messages belong", path="address",
            cure='.option("address", "orders"), or a column address',
        )  # fmt: skip
    if "sequences" in columns and "queues" not in columns:
        raise ConfigError(
            "sequences are those of the queues in the column queues", path="schema.sequences",
            cure="add the column queues, or leave sequences out: rows are numbered in order",
        )  # fmt: skip


class RowEncoder:
    """Makes records of the rows of one task. Owner: the task.

    Attributes:
        queues: Queues of the rows so far, by the task's numbers for them.
        counts: How many messages each of them has.
        rows: How many rows were read.

    Args:
        options: What was asked for.
        partition: Number of the task's partition, for errors.
        record_bytes_max: Largest record that a file takes.
    """

    def __init__(self, options: ImportOptions, partition: int, record_bytes_max: int) -> None:
        self.queues: list[QueueName] = []
        self.counts: list[int] = []
        self.rows = 0
        self._options = options
        self._partition = partition
        self._record_bytes_max = record_bytes_max
        self._numbers: dict[str, int] = {}
        self._lines = PropertyLines()
        self._now_ms = time.time_ns() // 1_000_000

    def encode(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Encoded]:
        """Yield a message for each row.

        Raises:
            ImportRefused: A row cannot be a message: partition and row.
        """
        for batch in batches:
            columns = [_values(batch, name) for name in _READ]
            for row in zip(*columns, strict=True):
                try:
                    encoded = self._message(*row)
                except ImportRefused as error:
                    raise ImportRefused(
                        error.what, where=f"row {self.rows} of partition {self._partition}",
                        measured=error.measured, allowed=error.allowed, cure=error.cure,
                    ) from error  # fmt: skip
                yield encoded
                self.rows += 1

    def _message(
        self, body: bytes | None, address: str | None, queue: str | None,
        queues: list[str | None] | None, sequences: list[int] | None,
        properties: list[tuple[str, str | None]] | None, priority: int | None,
        arrival_ms: int | None, expires_ms: int | None, persistent: bool | None,
    ) -> Encoded:  # fmt: skip
        if body is None:
            raise ImportRefused(
                "a message has no body", allowed="an empty one at least",
                cure="an export with --no-bodies has none, and one that is lost, damaged or larger"
                " than --max-body-bytes is left out",
            )  # fmt: skip
        if persistent is False:
            raise ImportRefused(
                "a message that need not survive is in no journal",
                cure="leave such rows out, or send them to a broker that runs",
            )
        address = address or self._options.address
        if not address:
            raise ImportRefused("a message has no address", cure="give it one, or leave it out")
        said = Said(address, priority, expires_ms, bool(persistent))
        headers = self._lines.write(properties or (), said)
        named = queues or [queue or self._options.queue or address.rpartition("::")[2]]
        places = self._places(named, sequences, address, headers.routing_type)
        flags = RecordFlag.SPECIAL.value if headers.is_special else 0
        if b"\\" in headers.octets:
            flags |= _ESCAPED
        length = ADD.size + len(places) + len(headers.octets) + len(body)
        large_body = None
        if len(body) > self._options.large_bytes or length > self._record_bytes_max:
            large_body, body, flags = body, bytes(_REFERENCE_BYTES), flags | _LARGE
            length = ADD.size + len(places) + len(headers.octets) + len(body)
        start = ADD.pack(
            length, _ADD, flags, _STOMP, headers.priority,
            self._now_ms if arrival_ms is None else arrival_ms,
            len(body), len(headers.octets), len(named),
        )  # fmt: skip
        return Encoded(start + places + headers.octets + body, len(named), large_body)

    def _places(
        self, named: list[str | None], sequences: list[int] | None, address: str, kind: str
    ) -> bytes:
        if len(named) > PLACES_MAX or len(set(named)) < len(named):
            raise ImportRefused(
                "a message stands in a queue once, and in not too many of them",
                measured=f"{len(named)} queues", allowed=f"at most {PLACES_MAX} different ones",
            )  # fmt: skip
        if sequences is not None and (len(sequences) != len(named) or min(sequences) < 1):
            raise ImportRefused(
                "the sequences are not those of the queues", measured=str(sequences)[:80],
                allowed="one of 1 or more for each queue",
            )  # fmt: skip
        owner = address.partition("::")[0]  # of a fully qualified name
        places = []
        for index, name in enumerate(named):
            number = self._numbers.get(name or "")
            if number is None:
                number = self._number(name, owner, kind)
            elif self.queues[number].address != owner:
                self._note_other(number, owner)
            sequence = self.counts[number] if sequences is None else sequences[index]
            self.counts[number] += 1
            places.append(PLACE.pack(number, 0, sequence))
        return places[0] if len(places) == 1 else b"".join(places)

    def _number(self, name: str | None, owner: str, kind: str) -> int:
        """Give a queue its number."""
        for text in (name, owner):
            if not text or len(text.encode()) > _NAME_MAX or _NO_NAME.search(text):
                raise ImportRefused(
                    "this cannot be the name of a queue or an address",
                    measured=ascii(text)[:80],
                    allowed=f"1 to {_NAME_MAX} bytes without control characters, and without a "
                    "space at the beginning or end",
                    cure="" if text else "the export was made without the bindings beside it",
                )
        assert name is not None
        self._numbers[name] = len(self.queues)
        self.queues.append(QueueName(name, owner, kind or self._options.routing_type))
        self.counts.append(0)
        return self._numbers[name]

    def _note_other(self, number: int, owner: str) -> None:
        """Keep another address of a queue: bindings that are taken over may know its own."""
        queue = self.queues[number]
        if not self._options.bindings:
            raise two_addresses(queue.name, queue.address, owner)
        self.queues[number] = queue._replace(other=owner)


def two_addresses(name: str, first: str, second: str) -> ImportRefused:
    """Return what is said of a queue that rows name with two addresses."""
    return ImportRefused(
        "a queue belongs to one address, and rows name it with two",
        measured=f"queue {name}, addresses {first} and {second}",
        cure="name the broker's own bindings with the option bindings",
    )


# --- columns --------------------------------------------------------------------------------------

_READ: Final = tuple(COLUMNS)
_NAME_MAX: Final = limits.ADDRESS_NAME_CHARACTERS_MAX
_REFERENCE_BYTES: Final = 24
_ADD: Final = RecordType.ADD.value
_ESCAPED: Final = RecordFlag.ESCAPED.value
_LARGE: Final = RecordFlag.LARGE.value


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return the values of a column; None for each row if there is none."""
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column(name)
    if name in ("arrival", "expires"):
        return _milliseconds(column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))
    if name == "properties":
        return _pairs(column)
    if name == "sequences":
        return [value or [] for value in column.to_pylist()]  # null: none is named
    if name == "body" and pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    return list(column.to_pylist())


def _milliseconds(microseconds: pa.Int64Array) -> list[int | None]:
    return [None if value is None else value // 1000 for value in microseconds.to_pylist()]


def _pairs(column: pa.MapArray) -> list[list[tuple[str, str | None]] | None]:
    """Return the pairs of each map; quicker than to have Arrow make them one by one."""
    pairs = list(zip(column.keys.to_pylist(), column.items.to_pylist(), strict=True))
    offsets = column.offsets.to_pylist()
    spans = itertools.pairwise(offsets)
    return [
        pairs[begin:end] if is_there else None
        for (begin, end), is_there in zip(spans, column.is_valid().to_pylist(), strict=True)
    ]
