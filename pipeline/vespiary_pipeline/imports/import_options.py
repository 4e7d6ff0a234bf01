"""The options of an import: their names, values and defaults.

Owns what `df.write.format("vespiary").option(…)` may say when a `path` is given. Must never look at
a path. Called by `writer` and `source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from vespiary_pipeline.option_table import TEXT, Option, OptionTable, Value, one_of, refused, size
from vespiary_pipeline.options import local_path
from vespiary_spec import limits

FILE_BYTES_DEFAULT: Final = 10 * 1024 * 1024
LARGE_BYTES_DEFAULT: Final = 102_400
"""As `min-large-message-size` of a broker."""


class ImportOptions(NamedTuple):
    """What an import was asked for.

    Attributes:
        path: The data folder to make.
        address: Address of rows that do not say theirs.
        queue: Queue of rows that do not say theirs; empty: that of the address' name.
        routing_type: Of queues of which neither bindings nor rows say it; empty: `ANYCAST`.
        bindings: Bindings journal, or data folder, whose addresses and queues are taken over.
        file_bytes: Size of each file of the message journal.
        large_bytes: A longer body goes to a file of its own.
    """

    path: str
    address: str = ""
    queue: str = ""
    routing_type: str = ""
    bindings: str = ""
    file_bytes: int = FILE_BYTES_DEFAULT
    large_bytes: int = LARGE_BYTES_DEFAULT


def is_import(given: Mapping[str, str]) -> bool:
    """Whether options of a writer name a folder, and no broker that runs."""
    names = {name.lower() for name in given}
    return "path" in names and "url" not in names


_ROUTING: Final = one_of("anycast", "multicast")
_FILE_SIZE: Final = size(limits.JOURNAL_FILE_BYTES_MIN, limits.JOURNAL_FILE_BYTES_MAX)


def _file_size(text: str) -> int:
    found: int = _FILE_SIZE.read(text)
    if found % 4096:
        raise refused(text, "a multiple of 4096 bytes")
    return found


OPTIONS: Final[Mapping[str, Option]] = {
    "path": Option(
        "path", TEXT, "the folder to make, missing or empty, as `save` takes it; needed"
    ),
    "address": Option("address", TEXT, "address of rows that do not say theirs"),
    "queue": Option(
        "queue", TEXT, "queue of rows that do not say theirs; without it that of the address' name"
    ),
    "routingType": Option(
        "routing_type",
        Value(_ROUTING.allowed, lambda text: _ROUTING.read(text).upper(), lambda _: "anycast"),
        "of queues whose rows have neither a `destination-type` nor a destination `/topic/…`",
    ),
    "bindings": Option(
        "bindings",
        TEXT,
        "a data folder, or its `bindings`: addresses and queues are taken over as they are, with"
        " their ids and settings",
    ),
    "fileSize": Option(
        "file_bytes",
        Value(f"{_FILE_SIZE.allowed}, a multiple of 4096", _file_size, _FILE_SIZE.shown),
        "size of each file of the message journal",
    ),
    "largeMessageSize": Option(
        "large_bytes",
        size(1024, limits.JOURNAL_WRITE_BYTES_MAX),
        "a longer body becomes a large message, with a file of its own",
    ),
}
"""By the names that users write."""

TABLE: Final = OptionTable("an import", OPTIONS, ImportOptions)


def read_import_options(given: Mapping[str, str]) -> ImportOptions:
    """Return what an import was asked for.

    Args:
        given: Spark's options: names in any case, values as text.

    Raises:
        UnknownSetting: A name is none of ours; the nearest one is told.
        ConfigError: A value is not allowed, or `path` is missing.
    """
    fields = TABLE.read(given)
    return ImportOptions(**{**fields, "path": local_path(fields.get("path", ""))})
