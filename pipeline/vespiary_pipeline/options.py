"""The options of the format `vespiary`: names, values, defaults, refusals.

Owns what users may say. Spark hands keys in lower case and all values as text, so names are found
without regard to case. Must never look at a path. Called by `source`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from vespiary_codec.journal.record_types import RecordType
from vespiary_pipeline.schema import TABLES
from vespiary_spec import units
from vespiary_spec.errors import ConfigError, QuantityError, UnknownSetting

JOURNALS: Final = ("message", "bindings", "jms", "page")


class Options(NamedTuple):
    """What a reader was asked for.

    Attributes:
        paths: Folders or files.
        table: `records` or `files`.
        columns: Columns wanted, in order; empty: all of the table.
        journals: Kinds of journals; empty: all but pages, or what lies at the path.
        kinds: Types of records wanted; None: all.
        members: Beside `kinds` records of transactions too, whatever their type.
        dead: Give messages, and their acknowledgements, that came and went within a partition.
        body: Give bodies.
        data: Give records as they are.
        bindings: Where names of queues come from; empty: beside the journal.
        large_messages: Folder of large bodies; empty: beside the journal.
        snapshot: Read a copy of the files of this name, which `vespiary journal snapshot` took.
        max_body_bytes: A larger body is left out, and `error` says so.
        min_file_id: Files with a lower id are left out.
        max_file_id: Files with a higher id are left out.
        min_position: Records of journals in front of it are left out.
        batch_rows: Rows of a batch, at most, but for the records of one block.
        batch_bytes: Bytes of a file that become one batch.
        max_partition_bytes: Files are packed up to it, larger ones are split.
        on_corrupt: `fail`, `stop-file` or `report`.
        consistency: `snapshot` or `best-effort`.
    """

    paths: tuple[str, ...]
    table: str = "records"
    columns: tuple[str, ...] = ()
    journals: tuple[str, ...] = ()
    kinds: frozenset[int] | None = None
    members: bool = False
    dead: bool = True
    body: bool = False
    data: bool = False
    bindings: str = ""
    large_messages: str = ""
    snapshot: str = ""
    max_body_bytes: int = 64 * 1024 * 1024
    min_file_id: int = 0
    max_file_id: int = 2**63 - 1
    min_position: int = 0
    batch_rows: int = 16384
    batch_bytes: int = 8 * 1024 * 1024
    max_partition_bytes: int = 64 * 1024 * 1024
    on_corrupt: str = "fail"
    consistency: str = "snapshot"


Read = Callable[[str], Any]
"""Returns a value for its text; ConfigError if it is none."""


class _Option(NamedTuple):
    """One option as users write it: its field, and how its text is read."""

    field: str
    read: Read


def flag(text: str) -> bool:
    """Read `true` or `false`."""
    if text.lower() not in ("true", "false"):
        raise _refused(text, "true or false")
    return text.lower() == "true"


def _refused(text: object, allowed: str) -> ConfigError:
    return ConfigError("this is no value of the option", value=text, allowed=allowed)


def size(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return what reads sizes from a lowest one on, up to a highest if there is one, as 8m."""
    allowed = f"a size of {units.format_size(low)} or more, as 8m or 65536"
    if high is not None:
        allowed = f"a size from {units.format_size(low)} to {units.format_size(high)}, as 8m"

    def read(text: str) -> int:
        try:
            found = units.parse_size(text)
        except QuantityError as error:
            raise _refused(text, allowed) from error
        if found < low or (high is not None and found > high):
            raise _refused(text, allowed)
        return found

    return read


def number(low: int) -> Callable[[str], int]:
    """Return what reads whole numbers from a lowest one on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise _refused(text, f"a whole number of {low} or more")
        return int(text)

    return read


def one_of(*values: str) -> Callable[[str], str]:
    """Return what reads one of some words."""

    def read(text: str) -> str:
        if text.lower() not in values:
            raise _refused(text, ", ".join(values))
        return text.lower()

    return read


def listed(text: str) -> list[str]:
    """Return the words of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _journals(text: str) -> tuple[str, ...]:
    if text.lower() == "auto":
        return ()
    names = tuple(one_of(*JOURNALS)(name) for name in listed(text))
    if not names:
        raise _refused(text, "auto, or some of " + ", ".join(JOURNALS))
    return names


def _kinds(text: str) -> frozenset[int]:
    known = RecordType.__members__
    kinds = [name.upper() for name in listed(text)]
    for name in kinds:
        if name not in known:
            raise _refused(name, ", ".join(known))
    return frozenset(known[name] for name in kinds)


OPTIONS: Final[Mapping[str, _Option]] = {
    "table": _Option("table", one_of(*TABLES)),
    "columns": _Option("columns", lambda text: tuple(listed(text))),
    "journal": _Option("journals", _journals),
    "kinds": _Option("kinds", _kinds),
    "members": _Option("members", flag),
    "dead": _Option("dead", flag),
    "body": _Option("body", flag),
    "data": _Option("data", flag),
    "bindings": _Option("bindings", str),
    "largeMessages": _Option("large_messages", str),
    "snapshot": _Option("snapshot", str),
    "maxBodyBytes": _Option("max_body_bytes", size(0)),
    "minFileId": _Option("min_file_id", number(0)),
    "maxFileId": _Option("max_file_id", number(0)),
    "minPosition": _Option("min_position", number(0)),
    "batchRows": _Option("batch_rows", number(1)),
    "batchBytes": _Option("batch_bytes", size(65536, 1024**3)),  # Arrow's offsets have 32 bits
    "maxPartitionBytes": _Option("max_partition_bytes", size(65536)),
    "onCorrupt": _Option("on_corrupt", one_of("fail", "stop-file", "report")),
    "consistency": _Option("consistency", one_of("snapshot", "best-effort")),
}
"""By the names that users write. Beside these there are Spark's own `path` and `paths`."""

_PATHS: Final = ("path", "paths")


def read_options(given: Mapping[str, str]) -> Options:
    """Return what was asked for.

    Args:
        given: Spark's options: names in any case, values as text.

    Raises:
        UnknownSetting: A name is none of ours; the nearest one is told.
        ConfigError: A value is not allowed, or there is no path.
    """
    spelled = {name.lower(): name for name in OPTIONS}
    fields: dict[str, Any] = {"paths": _paths(given)}
    for key, text in given.items():
        name = spelled.get(key.lower())
        if name is None:
            if key.lower() in _PATHS:
                continue
            near = difflib.get_close_matches(key.lower(), spelled, 1)
            raise UnknownSetting(
                "this is no option of the format vespiary",
                path=key,
                allowed=", ".join(OPTIONS),
                cure=f"did you mean {spelled[near[0]]}?" if near else "",
            )
        option = OPTIONS[name]
        try:
            fields[option.field] = option.read(text)
        except ConfigError as error:
            raise ConfigError(
                error.what, path=name, value=error.measured, allowed=error.allowed
            ) from error
    _check_columns(fields)
    if not fields.get("dead", True) and fields.get("kinds") is not None:
        raise ConfigError(
            "what is dead is seen by records of all kinds",
            path="dead",
            value="false",
            cure="leave out kinds, and choose by the column kind",
        )
    return Options(**fields)


def _paths(given: Mapping[str, str]) -> tuple[str, ...]:
    found = {key.lower(): text for key, text in given.items()}
    paths = [*json.loads(found.get("paths", "[]")), *([found["path"]] if "path" in found else [])]
    if not paths:
        raise ConfigError(
            "no path is given", path="path", cure='say which folder to read: .load("data")'
        )
    return tuple(
        path.removeprefix("file://") if path.startswith("file:///") else path for path in paths
    )


def _check_columns(fields: Mapping[str, Any]) -> None:
    table = TABLES[fields.get("table", "records")]
    for name in fields.get("columns", ()):
        if name not in table.names:
            raise ConfigError(
                "there is no such column",
                path="columns",
                value=name,
                allowed=", ".join(table.names),
            )
        if name in ("body", "data") and not fields.get(name):
            raise ConfigError(
                "this column has to be asked for",
                path="columns",
                value=name,
                cure=f"add {name}=true",
            )
