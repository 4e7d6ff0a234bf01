"""Columns of a message on its way from the journal to the files of an export.

Owns: their names. Must never import Spark: tasks without a row of Spark's use them. Called by
`visible_messages`, `part_files` and `exporting`.
"""

from __future__ import annotations

from typing import Final

VISIBLE: Final = "visible_position"
PARTITIONS: Final = ("address", "day")
FLAG_MOVED: Final = 8
"""The record is a copy that compaction made of an earlier one (journal-format §3.1)."""
MESSAGE: Final = (
    "journal",
    "path",
    "file_id",
    "offset",
    "position",
    "kind",
    "flags",
    "transaction",
    "places",
    "address",
    "queues",
    "arrival",
    "expires",
    "priority",
    "protocol",
    "large",
    "properties",
    "body_bytes",
)
"""Columns of `schema.RECORDS` that a message is made of, besides its body."""
WRITTEN: Final = (
    "places",
    "queues",
    "arrival",
    "expires",
    "priority",
    "protocol",
    "large",
    "properties",
    "body_bytes",
    "file_id",
    "offset",
    "position",
    "transaction",
)
"""Columns of the files, besides `visible_position`, `address`, `day` and, with bodies, `body`."""
