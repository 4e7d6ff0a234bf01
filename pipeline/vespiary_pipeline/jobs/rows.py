"""Rows of small tables in Python, their times with a zone.

Owns the collecting: Spark gives times without a zone, in that of the process, so they travel as
microseconds. Must never collect a table whose size grows with a journal, unless a limit bounds it.
Called by the jobs and by the command line.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (the field's own name for it)
from pyspark.sql.types import TimestampType

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def rows_of(table: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as they come, with aware times.

    Args:
        table: Any table; columns inside of others keep what Spark gives.
    """
    stamps = {field.name for field in table.schema if isinstance(field.dataType, TimestampType)}
    travelling = [
        F.unix_micros(name).alias(name) if name in stamps else F.col(name) for name in table.columns
    ]
    for row in table.select(*travelling).toLocalIterator():
        values = row.asDict(recursive=True)
        for name in stamps:
            if values[name] is not None:
                values[name] = _EPOCH + datetime.timedelta(microseconds=values[name])
        yield values
