"""Rows that tasks count themselves, since none of them is a row of Spark's.

Owns the counts of a session. Called by `direct_export`, whose tasks add to them, and by `progress`,
which shows them beside what Spark counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark import Accumulator, SparkContext


class Rows(NamedTuple):
    """Rows of the tasks that have ended.

    Attributes:
        read: Rows that were read, each time that they were.
        written: Rows that were written.
        bytes_written: Bytes of those.
    """

    read: int = 0
    written: int = 0
    bytes_written: int = 0


class RowCounts(NamedTuple):
    """What tasks add to; Spark brings it to the driver when they end.

    Attributes:
        read: As in `Rows`.
        written: As in `Rows`.
        bytes_written: As in `Rows`.
    """

    read: Accumulator[int]
    written: Accumulator[int]
    bytes_written: Accumulator[int]


_COUNTS: Final[WeakKeyDictionary[SparkContext, RowCounts]] = WeakKeyDictionary()


def counts_of(context: SparkContext) -> RowCounts:
    """Return the counts of a session.

    Args:
        context: Of the session.
    """
    if context not in _COUNTS:
        _COUNTS[context] = RowCounts(*(context.accumulator(0) for _ in RowCounts._fields))
    return _COUNTS[context]


def rows_of(context: SparkContext) -> Rows:
    """Return what the tasks of a session have counted.

    Args:
        context: Of the session.
    """
    counts = _COUNTS.get(context)
    return Rows() if counts is None else Rows(*(one.value for one in counts))
