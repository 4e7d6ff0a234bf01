"""The options of the format `vespiary` for files: names, values, defaults, meanings, refusals.

Owns what users may say. Must never look at a path. Called by `source`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vespiary_codec.journal.record_types import RecordType
from vespiary_pipeline.option_table import (
    FLAG,
    NAMES,
    TEXT,
    Option,
    OptionTable,
    Value,
    listed,
    number,
    one_of,
    refused,
    size,
)
from vespiary_pipeline.schema import TABLES
from vespiary_spec.errors import ConfigError

JOURNALS: Final = ("message", "bindings", "jms", "page")
BODY_BYTES_MAX: Final = 1024**3
"""Spark's rows and Arrow's columns of bytes end at 2 GiB, and a worker holds a body twice."""


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
        verify_large: Read bodies of large messages and compare them; none is given.
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
    verify_large: bool = False
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


def _journals(text: str) -> tuple[str, ...]:
    if text.lower() == "auto":
        return ()
    names = tuple(one_of(*JOURNALS).read(name) for name in listed(text))
    if not names:
        raise refused(text, "auto, or some of " + ", ".join(JOURNALS))
    return names


def _kinds(text: str) -> frozenset[int]:
    known = RecordType.__members__
    kinds = [name.upper() for name in listed(text)]
    for name in kinds:
        if name not in known:
            raise refused(name, ", ".join(known))
    return frozenset(known[name] for name in kinds)


OPTIONS: Final[Mapping[str, Option]] = {
    "table": Option(
        "table", one_of(*TABLES), "`files`: one row for each file, counted in the tasks"
    ),
    "columns": Option("columns", NAMES, "columns wanted: others are not decoded; without it all"),
    "journal": Option(
        "journals",
        Value("auto, or some of " + ", ".join(JOURNALS), _journals, lambda _: "auto"),
        "which journals of a data folder; `auto`: all but pages, or what lies at the path",
    ),
    "kinds": Option(
        "kinds",
        Value("types of records, with commas, such as ADD,ACK", _kinds),
        "types of records wanted; without it all",
    ),
    "members": Option(
        "members",
        FLAG,
        "`true`: beside `kinds`, records of transactions, whatever their type",
    ),
    "dead": Option(
        "dead",
        FLAG,
        "`false`: leave out messages, with their acknowledgements, that came and went within one"
        " partition",
    ),
    "body": Option("body", FLAG, "give bodies"),
    "verifyLarge": Option(
        "verify_large",
        FLAG,
        "read the bodies of large messages piece by piece and compare them with their records:"
        " `error` says what is wrong, and none is given",
    ),
    "data": Option("data", FLAG, "give records as they are"),
    "maxBodyBytes": Option(
        "max_body_bytes", size(0, BODY_BYTES_MAX), "a larger body is null, and `error` says so"
    ),
    "bindings": Option(
        "bindings", TEXT, "folder of the names of queues; without it the one beside the journal"
    ),
    "largeMessages": Option(
        "large_messages", TEXT, "folder of large bodies; without it the one beside the journal"
    ),
    "snapshot": Option(
        "snapshot", TEXT, "name of a copy of the files, which is read instead of them"
    ),
    "minFileId": Option("min_file_id", number(0), "leave out files with a lower id"),
    "maxFileId": Option("max_file_id", number(0), "leave out files with a higher id"),
    "minPosition": Option(
        "min_position",
        number(0),
        "leave out records of journals in front of this position; files that end in front of it"
        " are not read",
    ),
    "batchRows": Option(
        "batch_rows", number(1), "rows of one batch, but that those of one block stay together"
    ),
    "batchBytes": Option(
        "batch_bytes", size(65536, 1024**3), "bytes of a file, or of large bodies, of one batch"
    ),
    "maxPartitionBytes": Option(
        "max_partition_bytes",
        size(65536),
        "small files are packed into one partition up to it; one of more than twice that is split",
    ),
    "onCorrupt": Option(
        "on_corrupt",
        one_of("fail", "stop-file", "report"),
        "what damage does: an error; the file ends there; a row with `error` stands for it, and"
        " what follows is read",
    ),
    "consistency": Option(
        "consistency",
        one_of("snapshot", "best-effort"),
        "`best-effort`: a file that its broker used again meanwhile is a row with `error`",
    ),
}
"""By the names that users write. Beside these there are Spark's own `path` and `paths`."""

TABLE: Final = OptionTable("the format vespiary", OPTIONS, Options)
_PATHS: Final = ("path", "paths")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def read_options(given: Mapping[str, str]) -> Options:
    """Return what was asked for.

    Args:
        given: Spark's options: names in any case, values as text.

    Raises:
        UnknownSetting: A name is none of ours; the nearest one is told.
        ConfigError: A value is not allowed, or there is no path.
    """
    fields = {"paths": _paths(given), **TABLE.read(given, _PATHS)}
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
    return tuple(local_path(path) for path in paths)


def local_path(text: str) -> str:
    """Return a path of this machine's file systems.

    Args:
        text: As users write it: a path, or a URL with `file:`.

    Raises:
        ConfigError: It is empty, or of something else.
    """
    path = text.removeprefix("file://") if text.startswith("file:///") else text
    path = path.removeprefix("file:") if path.startswith("file:/") else path
    if not path or "\0" in path or _SCHEME.match(path):
        raise ConfigError(
            "this is no path of a file system", path="path", value=text,
            allowed="a path that driver and executors share, such as /srv/broker/data",
            cure="mount what holds the files, or copy them to where it is",
        )  # fmt: skip
    return path


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
