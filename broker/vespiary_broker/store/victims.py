"""Which file compaction empties next: facts in, choice out, no I/O.

Owns: when the journal is due, and the choice of the victim. Must never touch the core or a file.
Called by `compaction`; docs/internals/compaction.md has the reasons.

A file with few live messages may hold more than itself: whatever acknowledges its messages stays
as long as it does (`Core.cancels`), and so on. So a victim is judged by all that would come back
with it, against what moving costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vespiary_broker.store.turns import Allowance, Work

GOAL_PERCENT = 67
"""Moving pays while it costs less than this share of what comes back: 1.5 times the live bytes."""

_NOBODY = 0
_MANY = -1


class CompactionRule(NamedTuple):
    """The settings: `journal-compact-min-files` (0 is off) and `journal-compact-percentage`."""

    min_files: int
    percentage: int

    def is_due(self, files: int, size_bytes: int, live_bytes: int) -> bool:
        """Whether compaction ought to begin.

        Args:
            files: Files in use.
            size_bytes: Their size.
            live_bytes: What is live in them.
        """
        is_on = self.min_files > 0 and files > self.min_files
        return is_on and live_bytes * 100 < size_bytes * self.percentage


class FileFacts(NamedTuple):
    """What is known of one full file.

    Attributes:
        file_id: Its id.
        size_bytes: Its size.
        live_bytes: What moving its live records would write.
        is_live: Whether anything in it is live.
        is_movable: Whether all that is live may be moved now.
        cancels: Files that must be freed before it.
    """

    file_id: int
    size_bytes: int
    live_bytes: int
    is_live: bool
    is_movable: bool
    cancels: Sequence[int]


class Choice(NamedTuple):
    """What is to be done.

    Attributes:
        victim: The file to empty; None: nothing pays.
        files: Files that are worth emptying now, this one included.
        live_bytes: What is live in them.
    """

    victim: int | None
    files: int
    live_bytes: int


def choosing_victim(files: Sequence[FileFacts]) -> Work[Choice]:
    """Choose, in turns, the file that gives back most for what moving its messages costs.

    First by files that alone keep others; where none of these pays, chains: files that several keep
    together come back when all of them are emptied, and since a file only ever waits for older
    ones, that is the oldest first.

    Args:
        files: The full files, ascending, those behind the one being filled excepted.

    Returns:
        Work that ends with the choice; each turn looks at `turns.OPERATIONS_MAX` files and
        dependences at most.
    """
    turn = Allowance()
    keepers = yield from _keepers(files, turn)
    gains: dict[int, int] = {}
    for file in files:
        if turn.spend(1):
            yield
        gains.setdefault(file.file_id, 0)
        if keepers[file.file_id] > _NOBODY:
            gains[keepers[file.file_id]] += file.size_bytes
    victim, least_share, number, live_bytes = 0, 1.0, 0, 0
    for file in files:
        if turn.spend(1):
            yield
        if not file.is_live or not file.is_movable:
            continue
        gain = gains[file.file_id]
        if file.live_bytes * 100 < gain * GOAL_PERCENT:
            number += 1
            live_bytes += file.live_bytes
            if file.live_bytes / gain < least_share:
                victim, least_share = file.file_id, file.live_bytes / gain
    if number:
        return Choice(victim, number, live_bytes)
    return (yield from _oldest_of_a_chain(files, keepers, turn))


def _keepers(files: Sequence[FileFacts], turn: Allowance) -> Work[dict[int, int]]:
    """Return by file which file with live records keeps it: an id, `_NOBODY` or `_MANY`."""
    keepers: dict[int, int] = {}
    for file in files:
        if turn.spend(1 + len(file.cancels)):
            yield
        found = file.file_id if file.is_live else _NOBODY
        for other in file.cancels:
            keeper = keepers.get(other, _NOBODY)
            if keeper not in (_NOBODY, found):
                found = keeper if found == _NOBODY else _MANY
        keepers[file.file_id] = found
    return keepers


def _oldest_of_a_chain(
    files: Sequence[FileFacts], keepers: dict[int, int], turn: Allowance
) -> Work[Choice]:
    """Return the oldest file with live records, if emptying it and some that follow pays."""
    cost = gain = number = 0
    oldest, best, best_share = None, (0, 0), GOAL_PERCENT / 100
    for file in files:
        if turn.spend(1):
            yield
        if file.is_live:
            if not file.is_movable:
                break  # nothing behind it is sure to come back
            oldest = oldest or file.file_id
            cost += file.live_bytes
            number += 1
        if keepers[file.file_id] != _NOBODY:
            gain += file.size_bytes
        if gain and cost / gain < best_share:
            best, best_share = (number, cost), cost / gain
    return Choice(oldest, *best) if best[0] else Choice(None, 0, 0)
