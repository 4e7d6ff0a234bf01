"""The options of an import: their names, values and defaults.

Owns what `df.write.format("vespiary").option(…)` may say when a `path` is given. Must never look at
a path. Called by `writer` and `source`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vespiary_pipeline.options import Read, one_of, size
from vespiary_spec import limits
from vespiary_spec.errors import ConfigError, UnknownSetting

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


def _file_size(text: str) -> int:
    found = size(limits.JOURNAL_FILE_BYTES_MIN, limits.JOURNAL_FILE_BYTES_MAX)(text)
    if found % 4096:
        raise ConfigError(
            "this is no value of the option", value=text, allowed="a multiple of 4096 bytes"
        )
    return found


OPTIONS: Final[Mapping[str, tuple[str, Read]]] = {
    "path": ("path", str),
    "address": ("address", str),
    "queue": ("queue", str),
    "routingType": ("routing_type", lambda text: one_of("anycast", "multicast")(text).upper()),
    "bindings": ("bindings", str),
    "fileSize": ("file_bytes", _file_size),
    "largeMessageSize": ("large_bytes", size(1024, limits.JOURNAL_WRITE_BYTES_MAX)),
}
"""By the names that users write."""


def read_import_options(given: Mapping[str, str]) -> ImportOptions:
    """Return what an import was asked for.

    Args:
        given: Spark's options: names in any case, values as text.

    Raises:
        UnknownSetting: A name is none of ours; the nearest one is told.
        ConfigError: A value is not allowed, or `path` is missing.
    """
    spelled = {name.lower(): name for name in OPTIONS}
    fields: dict[str, Any] = {}
    for key, text in given.items():
        name = spelled.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), spelled, 1)
            raise UnknownSetting(
                "this is no option of an import",
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
    return ImportOptions(**{**fields, "path": _local(fields.get("path", ""))})


def _local(path: str) -> str:
    found = path.removeprefix("file://") if path.startswith("file:///") else path
    if not found or "://" in found:
        raise ConfigError(
            "an import makes a folder of a file system that driver and executors share",
            path="path", value=path, allowed="such as /srv/broker/data",
        )  # fmt: skip
    return found
