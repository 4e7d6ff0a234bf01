"""What the retention keeps: a copy's time, size and place, and which copies are too many.

Owns: the time in the names of copies, and the choice of those that go. Must never touch a disk.
Called by `retention_folder` and `retention_bodies`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

_TIME: Final = "%Y%m%d%H%M%S"


@dataclass(frozen=True, slots=True, order=True)
class Copy:
    """A kept copy.

    Attributes:
        time_ms: Time of its last block, or at which the body was put aside; whole seconds, in
            milliseconds since 1970.
        file_id: Id of the journal file, or of the body.
        size_bytes: Its size.
        path: Where it lies.
    """

    time_ms: int
    file_id: int
    size_bytes: int
    path: Path


def time_text(time_ms: int) -> str:
    """Return a time (milliseconds since 1970) as names of copies say it: YYYYMMDDhhmmss, UTC."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime(_TIME)


def parse_time(text: str) -> int | None:
    """Return the time in a name in milliseconds since 1970; None if there is no such time."""
    try:
        when = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return None
    return int(when.timestamp()) * 1000


def choose_expired(
    copies: Iterable[Copy], *, now_ms: int, period_ms: int | None, limit_bytes: int | None
) -> list[Copy]:
    """Return the copies that go: first those older than the period, then the oldest of too many."""
    left = sorted(copies)
    total = sum(copy.size_bytes for copy in left)
    gone = []
    for copy in left:
        is_old = period_ms is not None and now_ms - copy.time_ms > period_ms
        if not is_old and (limit_bytes is None or total <= limit_bytes):
            break
        total -= copy.size_bytes
        gone.append(copy)
    return gone
