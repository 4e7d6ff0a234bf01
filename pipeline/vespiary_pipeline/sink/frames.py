"""Rows to messages: which columns a sink takes, and the headers that they become.

Owns the columns of a sink and the reading of batches. Must never open a connection. Called by
`writer` and `source`.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa

from vespiary_pipeline.sink.sink_options import SinkOptions
from vespiary_spec.errors import BrokerRefused, ConfigError

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "address": ("string",),
    "properties": ("map<string,string>",),
    "priority": ("tinyint", "smallint", "int", "bigint"),
    "expires": ("timestamp",),
    "persistent": ("boolean",),
    "duplicate_id": ("string", "binary"),
}
"""What a sink takes: `body` is needed, the others may be left out."""

DUPLICATE_ID: Final = "_AMQ_DUPL_ID"
_OWN: Final = frozenset(
    {
        "content-length", "destination", "destination-type", "routing-type", "receipt",
        "transaction", "message-id", "subscription", "ack", "redelivered", "delivery-count",
    }
)  # fmt: skip
"""Properties that say how a message came, and not what it is."""


class Outgoing(NamedTuple):
    """A message to send.

    Attributes:
        address: Where to.
        headers: Headers beside the destination.
        body: The body.
    """

    address: str
    headers: list[tuple[str, str]]
    body: bytes


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Refuse what a sink cannot send.

    Args:
        columns: Types by name, as Spark writes them.
        options: What was asked for.

    Raises:
        ConfigError: A column is unknown, has another type, or a needed one is missing.
    """
    for name, kind in columns.items():
        allowed = COLUMNS.get(name)
        if allowed is None:
            raise ConfigError(
                "a sink has no such column", path=f"schema.{name}", value=name,
                allowed=", ".join(COLUMNS), cure="leave it out with select()",
            )  # fmt: skip
        if kind not in allowed:
            raise ConfigError(
                "this column has another type", path=f"schema.{name}", value=kind,
                allowed=" or ".join(allowed),
            )  # fmt: skip
    if "body" not in columns:
        raise ConfigError(
            "a sink needs the column body", path="schema", value=", ".join(columns),
            cure='.withColumn("body", …), as text or binary',
        )  # fmt: skip
    if "address" not in columns and not options.address:
        raise ConfigError(
            "nothing says where the messages go", path="address",
            cure='.option("address", "orders"), or a column address',
        )  # fmt: skip
    if "duplicate_id" in columns and options.delivery != "dedup":
        raise ConfigError(
            f"delivery={options.delivery} sends no duplicate ids", path="schema.duplicate_id",
            cure="leave the column out, or take delivery=dedup",
        )  # fmt: skip


class RowReader:
    """Reads the rows of one task. Owner: the task.

    Args:
        options: What was asked for.
        origin: Query, batch and partition, for ids that nobody gives.
    """

    def __init__(self, options: SinkOptions, origin: str) -> None:
        self._options = options
        self._fixed = [
            ("persistent", "true" if options.is_persistent else "false"),
            ("destination-type", options.routing_type.upper()),
        ]
        self._with_ids = options.delivery == "dedup"
        self._origin = origin.encode()
        self._row = 0

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Outgoing]:
        """Yield a message for each row.

        Raises:
            BrokerRefused: A row has no body or no address.
        """
        for batch in batches:
            names = batch.schema.names
            columns = [batch.column(name).to_pylist() for name in names]
            for values in zip(*columns, strict=True):
                yield self._message(dict(zip(names, values, strict=True)))
                self._row += 1

    def _message(self, row: dict[str, Any]) -> Outgoing:
        body = _octets(row["body"])
        address = row.get("address") or self._options.address
        if body is None or not address:
            raise BrokerRefused(
                f"a row has no {'address' if body is not None else 'body'}",
                where=f"row {self._row} of {self._origin.decode()}",
                cure="give it one, or leave the row out: where a stream gives no body, the column "
                "error says why",
            )
        headers = self._headers(row)
        if self._with_ids:
            headers.append((DUPLICATE_ID, self._duplicate_id(row, body)))
        return Outgoing(address, headers, body)

    def _headers(self, row: dict[str, Any]) -> list[tuple[str, str]]:
        said: list[tuple[str, str]] = []
        priority, expires, persistent = row.get("priority"), row.get("expires"), None
        if priority is not None:
            said.append(("priority", str(priority)))
        if expires is not None:
            said.append(("expires", str(_milliseconds(expires))))
        persistent = row.get("persistent")
        fixed = self._fixed
        if persistent is not None:
            fixed = [("persistent", "true" if persistent else "false"), fixed[1]]
        properties = row.get("properties")
        if properties:
            taken = _OWN | {name for name, _ in said} | {name for name, _ in fixed}
            if self._with_ids:
                taken |= {DUPLICATE_ID}
            said += [(name, text) for name, text in properties if name not in taken and text]
        return [*fixed, *said]

    def _duplicate_id(self, row: dict[str, Any], body: bytes) -> str:
        given = row.get("duplicate_id")
        if given:
            return given.hex() if isinstance(given, bytes) else str(given)
        digest = hashlib.blake2b(body, digest_size=16)
        digest.update(b"%s:%d" % (self._origin, self._row))
        return digest.hexdigest()


def _octets(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _milliseconds(moment: datetime.datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // datetime.timedelta(milliseconds=1)


_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
