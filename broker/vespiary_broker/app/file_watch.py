"""Files that others change: which of them have, and are whole.

Owns what was seen of each. Must never read one. Called by `reloading`; owner: the event loop.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

Signature = tuple[int, int, int] | None
"""Time of the change, size and inode; None: there is no such file."""


class FileWatch:
    """Looks at files by their facts, from time to time.

    A file that changed counts when two looks in a row have found the same: an editor may still be
    writing it. Links are followed, so a folder that is swapped for another one is seen as well.

    Args:
        paths: The files.
        optional: Those of them that may go, which is a change as well; a file that has to be there
            and is not is only being replaced.
    """

    def __init__(self, paths: Iterable[Path], optional: frozenset[Path] = frozenset()) -> None:
        self._optional = optional
        self._taken = {path: signature(path) for path in paths}
        self._last = dict(self._taken)

    def settled(self) -> frozenset[Path]:
        """Look; return the files that are other ones than when they were taken, and whole."""
        found = set()
        for path, taken in self._taken.items():
            now = signature(path)
            is_whole = now is not None or path in self._optional
            if is_whole and now != taken and now == self._last[path]:
                found.add(path)
            self._last[path] = now
        return frozenset(found)

    def take(self, paths: Iterable[Path]) -> None:
        """Count files as seen, as the last look found them."""
        for path in paths:
            self._taken[path] = self._last[path]


def signature(path: Path) -> Signature:
    """Return what changes with a file."""
    try:
        facts = os.stat(path)  # noqa: PTH116 - many of these a minute
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
