"""The tables of the pipeline: their columns, declared once, for Spark and for Arrow.

Owns: names, types and meanings of all columns that users see. Every column may be null, since
Spark compares nullability and no record has all fields. Must never import Spark: executors decode
with the codec and Arrow alone. Called by the sources, the transforms, the jobs and the docs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    """One column.

    Attributes:
        name: Its name.
        spark: Its type as Spark's DDL spells it.
        meaning: What it holds, one sentence without a full stop.
    """

    name: str
    spark: str
    meaning: str

    @property
    def arrow(self) -> pa.DataType:
        """Its type in the batches that executors hand to Spark."""
        return _ARROW[self.spark]


class Table(NamedTuple):
    """Columns in order."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, in order."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column:
        """Return a column.

        Raises:
            KeyError: There is none of that name.
        """
        return next(iter(c for c in self.columns if c.name == name), None) or _no_column(name)

    def ddl(self, names: Iterable[str] | None = None) -> str:
        """Return the schema as Spark's DDL; of some columns, in the order asked for."""
        chosen = self.columns if names is None else [self.column(name) for name in names]
        return ", ".join(f"{column.name} {column.spark}" for column in chosen)

    def arrow(self, names: Iterable[str] | None = None) -> pa.Schema:
        """Return the schema as Arrow's; of some columns, in the order asked for."""
        chosen = self.columns if names is None else [self.column(name) for name in names]
        return pa.schema([pa.field(column.name, column.arrow) for column in chosen])


def _no_column(name: str) -> Column:
    raise KeyError(name)


TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
PLACE: Final = pa.struct(
    [(name, pa.int64()) for name in ("queue_id", "sequence", "number")],
)
_PLACES: Final = "array<struct<queue_id: bigint, sequence: bigint, number: bigint>>"
_ARROW: Final = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": TIMESTAMP,
    "array<string>": pa.list_(pa.string()),
    "map<string, string>": pa.map_(pa.string(), pa.string()),
    _PLACES: pa.list_(PLACE),
}

RECORDS: Final = Table(
    (
        Column("journal", "string", "message, bindings, jms or page"),
        Column("path", "string", "the file that the record stands in"),
        Column("file_id", "bigint", "id of that file in its header; of a page the page's id"),
        Column(
            "offset",
            "bigint",
            "where the record begins in that file; in an export the number of its line",
        ),
        Column("block", "bigint", "sequence of the block that holds it"),
        Column("block_time", "timestamp", "when that block was closed"),
        Column(
            "position",
            "bigint",
            "place in the order of the journal: block times 65536 plus the record's number there",
        ),
        Column(
            "kind",
            "string",
            "type of the record in the format: ADD, ACK, COMMIT, …; TYPE_77 for an unknown one",
        ),
        Column("flags", "smallint", "flags of the record"),
        Column("length", "bigint", "bytes of the record without padding"),
        Column("transaction", "bigint", "transaction that it is a member or the end of"),
        Column("page_id", "bigint", "page that PAGE and PAGE_DONE speak of"),
        Column(
            "places",
            _PLACES,
            "sequences in queues, number of them from sequence on: of an ADD where it stands, of an"
            " ACK what is done, of a COUNT what was given back, of a PAGE what stands in the page",
        ),
        Column("deliveries", "int", "of a COUNT: how often the message was given out"),
        Column("members", "bigint", "of COMMIT, PREPARE and ROLLBACK: number of members"),
        Column("digest", "bigint", "of COMMIT, PREPARE and ROLLBACK: CRC-32C over the members"),
        Column("crc", "bigint", "of members of transactions: CRC-32C of the record"),
        Column(
            "gaps",
            "int",
            "places up to this record where blocks are missing, since files were reclaimed",
        ),
        Column("after_gap", "boolean", "blocks are missing right before this record"),
        Column("address", "string", "destination of the message, without /queue/ or /topic/"),
        Column(
            "queues",
            "array<string>",
            "names of the queues of the places, in their order; null for those unknown",
        ),
        Column("arrival", "timestamp", "when the message came in"),
        Column("expires", "timestamp", "when it expires"),
        Column("priority", "tinyint", "0 to 9"),
        Column("protocol", "tinyint", "protocol of the sender: 1 is STOMP"),
        Column("large", "boolean", "the body stands in a file of its own"),
        Column("properties", "map<string, string>", "headers of the message; the first of a name"),
        Column("properties_bytes", "bigint", "their bytes in the record"),
        Column("body_bytes", "bigint", "bytes of the body, also of a large one"),
        Column("body", "binary", "the body, with option body=true"),
        Column("key", "string", "of PUT and REMOVE: the key"),
        Column("value", "string", "of PUT: the value, JSON"),
        Column("data", "binary", "the record itself, without padding, with option data=true"),
        Column(
            "error",
            "string",
            "what is wrong at a damaged place: such a row has journal, path, file_id, offset alone",
        ),
    )
)
"""One row for each record of a journal, a page or an export."""

FILES: Final = Table(
    (
        Column("journal", "string", "message, bindings, jms or page"),
        Column("path", "string", "the file"),
        Column("file_id", "bigint", "its id; of a page the page's id"),
        Column(
            "state",
            "string",
            "used, ahead (made ready, not begun), free, leftover (of a reclaim) or unfinished",
        ),
        Column("size_bytes", "bigint", "its size"),
        Column("used_bytes", "bigint", "bytes of the blocks that count"),
        Column("blocks", "bigint", "blocks that count"),
        Column("records", "bigint", "records in them"),
        Column("adds", "bigint", "ADD records"),
        Column("acks", "bigint", "ACK records"),
        Column("transactional", "bigint", "records that are members of transactions"),
        Column("first_block", "bigint", "sequence of the first block"),
        Column("last_block", "bigint", "sequence of the last block"),
        Column("first_time", "timestamp", "when the first block was closed"),
        Column("last_time", "timestamp", "when the last block was closed"),
        Column("sealed", "boolean", "the file ends with a seal"),
        Column("torn_at", "bigint", "offset of the torn tail, if there is one"),
        Column("error", "string", "what is damaged in it"),
    )
)
"""One row for each file of a journal or each page."""

BINDINGS: Final = Table(
    (
        Column("key", "string", "what is bound, as address/NAME or queue/ID"),
        Column("value", "string", "its last value, JSON"),
        Column("position", "bigint", "place of the record that says so in its journal"),
    )
)
"""One row for each key of a bindings or JMS journal that was not removed."""

QUEUES: Final = Table(
    (
        Column("queue_id", "bigint", "number of the queue in the message journal"),
        Column("queue", "string", "its name"),
        Column("address", "string", "the address that it belongs to"),
        Column("routing_type", "string", "ANYCAST or MULTICAST"),
        Column("client_id", "string", "of a durable subscription: whose it is"),
        Column("filter_string", "string", "its selector"),
        Column("auto_created", "boolean", "nobody configured or asked for it"),
        Column("configured", "boolean", "it comes from the configuration"),
        Column("paused", "boolean", "it gives out nothing"),
        Column("value", "string", "all that the bindings say of it, JSON"),
    )
)
"""One row for each durable queue."""

TRANSACTIONS: Final = Table(
    (
        Column("transaction", "bigint", "id of the transaction"),
        Column(
            "outcome",
            "string",
            "committed, rolled_back, prepared (in doubt), open (no end: its members are void) or"
            " void (a COMMIT that does not fit)",
        ),
        Column("members_found", "bigint", "members that are there"),
        Column("members_named", "bigint", "members that its COMMIT, PREPARE or ROLLBACK names"),
        Column(
            "incomplete", "boolean", "it counts with fewer than named: files with some were freed"
        ),
        Column("first_position", "bigint", "place of its first member in the journal"),
        Column("last_position", "bigint", "place of its last member"),
        Column("end_position", "bigint", "place of the record that decided, of a PREPARE if none"),
        Column("branch", "string", "XID of a branch, if the records came with data=true"),
    )
)
"""One row for each transaction."""

LIVE: Final = Table(
    (
        Column("queue_id", "bigint", "number of the queue"),
        Column("sequence", "bigint", "number of the message in it"),
        Column("queue", "string", "name of the queue, where the queues are given"),
        Column("address", "string", "address of the queue; else the destination of the message"),
        Column(
            "state",
            "string",
            "live, prepared (a branch in doubt adds it) or locked (such a branch ends it)",
        ),
        Column("file_id", "bigint", "file of its ADD record; null if it stands in a page"),
        Column("offset", "bigint", "where that record begins in the file"),
        Column("position", "bigint", "place of that record in the journal"),
        Column("page_id", "bigint", "page that it stands in, if it does"),
        Column("arrival", "timestamp", "when the message came in"),
        Column("expires", "timestamp", "when it expires"),
        Column("priority", "tinyint", "0 to 9"),
        Column("length", "bigint", "bytes of the ADD record"),
        Column("share_bytes", "bigint", "bytes of the record divided by the places it was given"),
        Column("body_bytes", "bigint", "bytes of the body, also of a large one"),
        Column("large", "boolean", "the body stands in a file of its own"),
        Column(
            "deliveries",
            "int",
            "how often it was given out; null where only a PAGE record says so",
        ),
        Column("transaction", "bigint", "transaction or branch that added it"),
    )
)
"""One row for each place of a message that a broker would recover from these files."""

DEPTH: Final = Table(
    (
        Column("queue_id", "bigint", "number of the queue"),
        Column("queue", "string", "its name, where the queues are given"),
        Column("address", "string", "its address; else a destination of its messages"),
        Column("messages", "bigint", "messages in it, those of branches in doubt left out"),
        Column("locked", "bigint", "of these: a branch in doubt ends them"),
        Column("paged", "bigint", "of these: they stand in pages"),
        Column("prepared", "bigint", "messages that branches in doubt add"),
        Column("body_bytes", "bigint", "bytes of the bodies of all of them, as far as known"),
        Column("oldest", "timestamp", "when the oldest of them came in"),
        Column("oldest_file", "bigint", "lowest file that keeps one of them"),
    )
)
"""One row for each queue with messages."""

USAGE: Final = Table(
    (
        Column("path", "string", "the file"),
        Column("file_id", "bigint", "its id"),
        Column("size_bytes", "bigint", "its size"),
        Column("used_bytes", "bigint", "bytes of the blocks that count"),
        Column("live_places", "bigint", "places of messages that live in it"),
        Column("live_bytes", "bigint", "their shares of its records"),
        Column("live_ratio", "double", "live_bytes of used_bytes"),
        Column("ended_bytes", "bigint", "dead: acknowledged, or of a queue that is gone"),
        Column("superseded_bytes", "bigint", "dead: a later record of a message that lives"),
        Column("paged_bytes", "bigint", "dead: of a message that lives in a page"),
        Column("void_bytes", "bigint", "dead: of a transaction that does not count"),
        Column("branches", "bigint", "records of branches in doubt, which keep the file too"),
        Column("pages", "bigint", "PAGE records that count, which keep it too"),
        Column("pinned_queue_id", "bigint", "queue of the oldest message that lives in it"),
        Column("pinned_queue", "string", "name of that queue, where the queues are given"),
        Column("pinned_sequence", "bigint", "number of that message"),
        Column("pinned_since", "timestamp", "when that message came in"),
        Column(
            "empty",
            "boolean",
            "no message, branch or page keeps it; other files or duplicate ids still may",
        ),
    )
)
"""One row for each file of a message journal that holds blocks."""

TIMELINE: Final = Table(
    (
        Column("bucket", "timestamp", "begin of the time, by the blocks' time of closing"),
        Column("queue_id", "bigint", "number of the queue"),
        Column("queue", "string", "its name, where the queues are given"),
        Column("address", "string", "its address; else a destination of its messages"),
        Column("adds", "bigint", "messages that came, copies left out"),
        Column("add_bytes", "bigint", "their shares of the records"),
        Column("acks", "bigint", "sequences that were acknowledged, as the records name them"),
        Column("counts", "bigint", "records of deliveries that came back"),
    )
)
"""One row for each queue and time in which something was written of it, transactions as they came:
whether they count is not asked."""

HISTOGRAM: Final = Table(
    (
        Column("queue_id", "bigint", "number of the queue"),
        Column("queue", "string", "its name, where the queues are given"),
        Column("address", "string", "its address; else a destination of its messages"),
        Column("low", "bigint", "seconds or bytes from which on messages are counted here"),
        Column("high", "bigint", "seconds or bytes below which they are; null: without end"),
        Column("messages", "bigint", "how many"),
        Column("body_bytes", "bigint", "bytes of their bodies"),
    )
)
"""One row for each queue and class of ages or sizes with messages."""

REDELIVERED: Final = Table(
    (
        Column("queue_id", "bigint", "number of the queue"),
        Column("queue", "string", "its name, where the queues are given"),
        Column("address", "string", "its address; else a destination of its messages"),
        Column("messages", "bigint", "messages that came back"),
        Column("deliveries", "bigint", "how often they were given out together"),
        Column("most", "int", "how often the one was that was given out most often"),
        Column("most_sequence", "bigint", "number of that message"),
    )
)
"""One row for each queue with messages that were given out and came back."""

DEAD_LETTERS: Final = Table(
    (
        Column("queue_id", "bigint", "number of the queue that they wait in"),
        Column("queue", "string", "its name, where the queues are given"),
        Column("address", "string", "its address; else a destination of its messages"),
        Column("original_address", "string", "address that they were sent to at first"),
        Column("original_queue", "string", "queue that they stood in last; null: none took them"),
        Column(
            "reason",
            "string",
            "expired, no_route (no queue took it), deliveries (it came back) or moved (by hand)",
        ),
        Column("messages", "bigint", "how many"),
        Column("body_bytes", "bigint", "bytes of their bodies"),
        Column("oldest", "timestamp", "when the oldest of them came in"),
    )
)
"""One row for each queue, origin and reason of live messages that were moved there."""

MESSAGES: Final = Table(
    (
        Column("queue", "string", "the queue"),
        Column("sequence", "bigint", "number of the message in it, in the order of a stream"),
        *(
            RECORDS.column(name)
            for name in (
                "address",
                "arrival",
                "expires",
                "priority",
                "protocol",
                "large",
                "properties",
                "body_bytes",
                "body",
                "error",
            )
        ),
    )
)
"""One row for each message of a stream."""

TABLES: Final = {"records": RECORDS, "files": FILES}
"""Values of the option `table`."""
