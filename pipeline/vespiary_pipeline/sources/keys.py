"""What a bindings or JMS journal says: its keys and their last values.

Owns reading a small journal whole, on the driver. Called by `source`.
"""

from __future__ import annotations

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


def read_values(folder: Path, journal: str = "bindings") -> dict[str, str]:
    """Return the values of a journal by key.

    Args:
        folder: Its folder.
        journal: `bindings` or `jms`.

    Raises:
        CorruptRecord: Confirmed data is damaged.
        ForeignJournal: A file is of another journal.
        NativeError: A file can't be read.
    """
    options = Options(paths=(str(folder),), kinds=_KINDS)
    wanted = Wanted(_COLUMNS, 0, names_of({}))
    values: dict[str, str] = {}
    for part in plan_journal(Place("journal", folder, journal)):
        for batch in PartReader(part, options, wanted).batches():
            _apply(values, batch)
    return values


def _apply(values: dict[str, str], batch: pa.RecordBatch) -> None:
    for row in batch.to_pylist():
        if row["kind"] == "PUT":
            values[row["key"]] = row["value"]
        else:
            values.pop(row["key"], None)
