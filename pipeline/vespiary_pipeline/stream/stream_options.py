"""The options of `spark.readStream.format("vespiary")`: names, values, defaults, refusals.

Owns what users may say of a stream. Must never call the broker. Called by `source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from vespiary_pipeline.option_table import (
    FLAG,
    NAMES,
    TEXT,
    Option,
    OptionTable,
    number,
    one_of,
    size,
)
from vespiary_pipeline.options import BODY_BYTES_MAX
from vespiary_spec.errors import ConfigError


class StreamOptions(NamedTuple):
    """What a stream was asked for.

    Attributes:
        url: HTTP listener of the broker, `http://user@host:port`.
        queues: Queues to read, one or more.
        stream: Name of the streams in the broker; that of the queue is put behind it.
        password_file: File with the user's password, also on executors; empty: no login.
        rows_max: Messages of a batch, at most; 0: all that are there.
        range_bytes: Bytes of one answer of the broker.
        partition_rows: Sequences of one partition.
        fails_on_data_loss: A message that is gone and was never read is an error.
        acknowledges: When it is acknowledged: `eager` (before each batch and in commit) or
            `commit` (in commit alone, which Spark calls a batch late).
        lease_s: Seconds that no other query may take over after a call.
        body: Give bodies.
        max_body_bytes: A larger body is null, and `error` says so.
    """

    url: str
    queues: tuple[str, ...]
    stream: str = "spark"
    password_file: str = ""
    rows_max: int = 0
    range_bytes: int = 8 * 1024 * 1024
    partition_rows: int = 50_000
    fails_on_data_loss: bool = True
    acknowledges: str = "eager"
    lease_s: int = 60
    body: bool = True
    max_body_bytes: int = 64 * 1024 * 1024


OPTIONS: Final[Mapping[str, Option]] = {
    "url": Option("url", TEXT, "HTTP listener of the broker, `http://user@host:port`; needed"),
    "queues": Option("queues", NAMES, "queues to read, one or more; needed"),
    "stream": Option("stream", TEXT, "name of the streams in the broker: `NAME.QUEUE`"),
    "passwordFile": Option(
        "password_file", TEXT, "the user's password, in a file that is there on executors too"
    ),
    "maxMessagesPerTrigger": Option(
        "rows_max",
        number(1),
        "messages of a batch, at most, shared out among the queues; without it all",
    ),
    "rangeBytes": Option(
        "range_bytes", size(65536), "of one answer of the broker, which gives 16 MiB at most"
    ),
    "partitionRows": Option("partition_rows", number(1), "sequences that one task reads"),
    "failOnDataLoss": Option(
        "fails_on_data_loss", FLAG, "a message that is gone and was never read ends the query"
    ),
    "ackMode": Option(
        "acknowledges",
        one_of("eager", "commit"),
        "`commit`: acknowledge only when Spark calls `commit`, which it does a batch late",
    ),
    "lease": Option(
        "lease_s", number(1), "seconds that another query waits after this one's last call"
    ),
    "body": Option("body", FLAG, "give bodies"),
    "maxBodyBytes": Option(
        "max_body_bytes", size(0, BODY_BYTES_MAX), "a larger body is null, and `error` says so"
    ),
}
"""By the names that users write."""

TABLE: Final = OptionTable("a stream", OPTIONS, StreamOptions)


def read_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return what a stream was asked for.

    Args:
        given: Spark's options: names in any case, values as text.

    Raises:
        UnknownSetting: A name is none of ours; the nearest one is told.
        ConfigError: A value is not allowed, or `url` or `queues` is missing.
    """
    fields = TABLE.read(given)
    for name, cure in (("url", "http://127.0.0.1:8161"), ("queues", "orders,payments")):
        if not fields.get(name):
            raise ConfigError("a stream needs this option", path=name, allowed=f"such as {cure}")
    return StreamOptions(**fields)
