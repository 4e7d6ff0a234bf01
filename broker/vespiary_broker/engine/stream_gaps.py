"""Why messages of a queue that a stream reads are gone, as far as that is known.

Owns the notes of one stream: runs of sequences with a reason, each sequence once, the first reason
that was noted. They are in memory alone: after a restart what is gone has the reason UNKNOWN. Must
never decide that a message is gone: the reader sees which are. Used by `streams`; owner: the event
loop.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

RUNS_MAX: Final = 10_000
"""Notes that one stream keeps; when there are more, those of the lowest sequences go."""


class GapReason(StrEnum):
    """Why there is no message of a sequence (any more)."""

    ACKNOWLEDGED = "acknowledged"
    BEFORE = "before-stream"
    EXPIRED = "expired"
    DEAD_LETTER = "dead-letter"
    MOVED = "moved"
    REMOVED = "removed"
    PURGED = "purged"
    ROLLED_BACK = "rolled-back"
    TRANSACTION = "transaction"
    UNKNOWN = "unknown"


class Gap(NamedTuple):
    """Neighbouring sequences without a message, and why; both ends belong to it."""

    first: int
    last: int
    reason: str


class StreamGaps:
    """The notes of one stream."""

    def __init__(self) -> None:
        self._runs: list[Gap] = []  # ascending, none overlaps another

    def note(self, sequences: Iterable[int], reason: GapReason) -> None:
        """Note why messages leave.

        Args:
            sequences: Theirs, in any order.
            reason: Why.
        """
        for first, last in runs_of(sorted(sequences)):
            self.note_run(first, last, reason)

    def note_run(self, first: int, last: int, reason: GapReason) -> None:
        """Note why all that is gone of a run left; what has a reason already keeps it."""
        for piece in list(self._split(first, last)):
            if piece.reason != GapReason.UNKNOWN:
                continue
            gap = piece._replace(reason=reason)
            at = bisect_left(self._runs, gap)
            before = self._runs[at - 1] if at else None
            if before is not None and (before.last + 1, before.reason) == (gap.first, reason):
                self._runs[at - 1] = Gap(before.first, gap.last, reason)
            else:
                insort(self._runs, gap)
        if len(self._runs) > RUNS_MAX:
            del self._runs[: len(self._runs) - RUNS_MAX]

    def explain(self, first: int, last: int) -> list[Gap]:
        """Return a run of missing sequences with their reasons."""
        return list(self._split(first, last))

    def forget(self, through: int) -> None:
        """Drop what is known of sequences up to this one: they are acknowledged."""
        kept = bisect_left(self._runs, through + 1, key=lambda run: run.last)
        del self._runs[:kept]

    def _split(self, first: int, last: int) -> Iterator[Gap]:
        """Yield a run in pieces: those that were noted, and between them UNKNOWN."""
        begin = bisect_left(self._runs, first, key=lambda run: run.last)
        for run in self._runs[begin:]:
            if run.first > last:
                break
            if run.first > first:
                yield Gap(first, run.first - 1, GapReason.UNKNOWN)
            yield Gap(max(first, run.first), min(last, run.last), run.reason)
            first = run.last + 1
        if first <= last:
            yield Gap(first, last, GapReason.UNKNOWN)


def runs_of(sequences: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of neighbouring sequences.

    Args:
        sequences: Ascending; the same one may be there twice.
    """
    first = last = None
    for sequence in sequences:
        if last is not None and sequence <= last + 1:
            last = sequence
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = sequence
    if first is not None and last is not None:
        yield first, last
