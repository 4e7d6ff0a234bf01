"""What a bindings or JMS journal says: its keys and their last values, and the queues' names.

Owns reading a small journal whole, on the driver. Called by `source`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from vespiary_codec.journal.record_types import RecordType
from vespiary_pipeline.layout import Place
from vespiary_pipeline.options import Options
from vespiary_pipeline.plan import plan_journal
from vespiary_pipeline.sources.batches import Wanted, names_of
from vespiary_pipeline.sources.journal import PartReader

_COLUMNS = ("kind", "key", "value")
_KINDS = frozenset({RecordType.PUT.value, RecordType.REMOVE.value})


def queue_names(folder: Path, *, is_strict: bool = True) -> dict[int, str]:
    """Return the names of the queues of a bindings journal by their ids.

    Args:
        folder: Its folder.
        is_strict: Damage is an error; else what is behind it is taken.

    Raises:
        CorruptRecord: Confirmed data is damaged.
        ForeignJournal: A file is of another journal.
        NativeError: A file can't be read.
    """
    found = {}
    for key, value in read_values(folder, is_strict=is_strict).items():
        kind, _, number = key.partition("/")
        if kind == "queue" and number.isdecimal():
            found[int(number)] = str(json.loads(value).get("name", ""))
    return found


def read_values(
    folder: Path, journal: str = "bindings", *, is_strict: bool = True
) -> dict[str, str]:
    """Return the values of a journal by key.

    Args:
        folder: Its folder.
        journal: `bindings` or `jms`.
        is_strict: Damage is an error; else what is behind it is taken.

    Raises:
        CorruptRecord: Confirmed data is damaged.
        ForeignJournal: A file is of another journal.
        NativeError: A file can't be read.
    """
    on_corrupt = "fail" if is_strict else "report"
    options = Options(paths=(str(folder),), kinds=_KINDS, on_corrupt=on_corrupt)
    wanted = Wanted(_COLUMNS, 0, names_of({}))
    values: dict[str, str] = {}
    for part in plan_journal(Place("journal", folder, journal), is_strict=is_strict):
        for batch in PartReader(part, options, wanted).batches():
            _apply(values, batch)
    return values


def _apply(values: dict[str, str], batch: pa.RecordBatch) -> None:
    for row in batch.to_pylist():
        if row["kind"] == "PUT":
            values[row["key"]] = row["value"]
        elif row["kind"] == "REMOVE":  # a row that tells of damage is of no kind
            values.pop(row["key"], None)
