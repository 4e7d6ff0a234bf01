"""Old journal files that pages alone keep: the journal names these pages again, and the files go.

Owns the decision whether that is worth it. A cycle names each page that full files are kept for
once, the oldest file's pages first, and never looks at files that were filled after it began: so it
ends. The next one waits until the files that are kept take more than twice what the records of the
last one took: where records fill many files by themselves, naming the pages again frees nothing,
and would go on for ever. Must never wait or touch files. Called by `pager`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple, Protocol

from vespiary_codec.journal.block import ALIGNMENT
from vespiary_codec.journal.page import PAGE_BIT
from vespiary_native.values import ImageStatistics

PINNED_MAX: Final = 2
"""So many journal files may be kept by what they say of pages alone."""
RESTAGED_MAX: Final = 64
"""Pages that are named again in one turn of the loop."""


class PageRecords(Protocol):
    """What is asked of the core."""

    def current_file(self) -> int:
        """Return the file that is being filled; 0 if there is none."""

    def live_places(self, file_id: int) -> int:
        """Return how many places, and records of pages, need a file."""

    def pages_in(self, file_id: int) -> list[int]:
        """Return the pages whose latest record stands in a file."""

    def cancels(self, file_id: int) -> list[int]:
        """Return the files, those of pages included, in which a file's records end places."""

    def page_restage(self, page_id: int) -> int:
        """Name a page again; NoRoom: later."""

    def image_statistics(self) -> ImageStatistics:
        """Return counters: here, of bytes staged."""


class JournalFiles(Protocol):
    """What is asked of the journal's files."""

    def active_ids(self) -> list[int]:
        """Return the ids of the files in use, ascending."""

    def size_of(self, file_id: int) -> int:
        """Return a file's size in bytes; 0 if it is gone."""


class _Pinned(NamedTuple):
    file_id: int
    size_bytes: int
    pages: list[int]


class Restaging:
    """See the module's docstring. Owner: the event loop.

    Args:
        core: The core.
        files: The journal's files.
    """

    def __init__(self, core: PageRecords, files: JournalFiles) -> None:
        self._core = core
        self._files = files
        self._needed_bytes = 0  # what the records of the last cycle took, rounded up
        self._cycle_end = 0  # the file that was being filled when a cycle began; 0: none is on
        self._cycle_bytes = 0

    def step(self, ended: Container[int]) -> bool:
        """Name some pages again, if that is worth it.

        Args:
            ended: Pages that nobody needs: the record that says so is on its way.

        Returns:
            Whether there are new records; more may follow in the next step.

        Raises:
            NoRoom: There is no room for a record now; pages before it are named. Call again later.

        Durability: an old file may go once the blocks with the new records are durable. The
            checkpoint that frees it sees to that: it comes later in the journal.
        """
        if not self._core.current_file():
            return False  # the last one is full, the next one not there yet
        pinned = self._pinned(ended)
        if not self._cycle_end:
            if not self._is_due(pinned):
                return False
            self._cycle_end, self._cycle_bytes = self._core.current_file(), 0
        due = list(
            dict.fromkeys(
                page_id
                for file in pinned
                if file.file_id < self._cycle_end
                for page_id in file.pages
            )
        )
        self._name(due[:RESTAGED_MAX])
        if len(due) <= RESTAGED_MAX:
            self._cycle_end, self._needed_bytes = 0, self._cycle_bytes
        return bool(due)

    def _is_due(self, pinned: list[_Pinned]) -> bool:
        """Whether pages keep more than twice what their records need, and some files beyond."""
        kept_bytes = sum(file.size_bytes for file in pinned)
        self._needed_bytes = min(self._needed_bytes, kept_bytes)
        beyond_bytes = sum(file.size_bytes for file in pinned[PINNED_MAX:])
        return beyond_bytes > 2 * self._needed_bytes

    def _name(self, page_ids: list[int]) -> None:
        """Name pages again, and count what that takes: blocks are padded, and may be many."""
        before = self._core.image_statistics().payload_bytes
        try:
            for page_id in page_ids:
                self._core.page_restage(page_id)
        finally:
            staged = self._core.image_statistics().payload_bytes - before
            if staged:
                self._cycle_bytes += (staged // ALIGNMENT + 2) * ALIGNMENT

    def _pinned(self, ended: Container[int]) -> list[_Pinned]:
        """Return the full files that pages alone keep, oldest first, and these pages."""
        current = self._core.current_file()
        pinned = []
        for file_id in self._files.active_ids():
            if file_id >= current:
                break
            named = self._core.pages_in(file_id)
            if self._core.live_places(file_id) > len(named):
                continue  # messages keep it too
            ends_of = self._core.cancels(file_id)
            pages = {*named, *(other & ~PAGE_BIT for other in ends_of if other & PAGE_BIT)}
            needed = sorted(page_id for page_id in pages if page_id not in ended)
            if needed:
                pinned.append(_Pinned(file_id, self._files.size_of(file_id), needed))
        return pinned
