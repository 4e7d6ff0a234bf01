"""The options of `spark.readStream.format("vespiary")`: names, values, defaults, refusals.

Owns what users may say of a stream. Must never call the broker. Called by `source`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vespiary_pipeline.options import Read, flag, listed, number, one_of, size
from vespiary_spec.errors import ConfigError, UnknownSetting


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


OPTIONS: Final[Mapping[str, tuple[str, Read]]] = {
    "url": ("url", str),
    "queues": ("queues", lambda text: tuple(listed(text))),
    "stream": ("stream", str),
    "passwordFile": ("password_file", str),
    "maxMessagesPerTrigger": ("rows_max", number(1)),
    "rangeBytes": ("range_bytes", size(65536)),
    "partitionRows": ("partition_rows", number(1)),
    "failOnDataLoss": ("fails_on_data_loss", flag),
    "ackMode": ("acknowledges", one_of("eager", "commit")),
    "lease": ("lease_s", number(1)),
    "body": ("body", flag),
    "maxBodyBytes": ("max_body_bytes", size(0)),
}
"""By the names that users write."""


def read_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return what a stream was asked for.

    Args:
        given: Spark's options: names in any case, values as text.

    Raises:
        UnknownSetting: A name is none of ours; the nearest one is told.
        ConfigError: A value is not allowed, or `url` or `queues` is missing.
    """
    spelled = {name.lower(): name for name in OPTIONS}
    fields: dict[str, Any] = {}
    for key, text in given.items():
        name = spelled.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), spelled, 1)
            raise UnknownSetting(
                "this is no option of a stream",
                path=key,
                allowed=", ".join(OPTIONS),
                cure=f"did you mean {spelled[near[0]]}?" if near else "",
            )
        field, read = OPTIONS[name]
        try:
            fields[field] = read(text)
        except ConfigError as error:
            raise ConfigError(
                error.what, path=name, value=error.measured, allowed=error.allowed
            ) from error
    for name, cure in (("url", "http://127.0.0.1:8161"), ("queues", "orders,payments")):
        if not fields.get(name):
            raise ConfigError("a stream needs this option", path=name, allowed=f"such as {cure}")
    return StreamOptions(**fields)
