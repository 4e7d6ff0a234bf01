"""Where the loader finds what it reads back: files of the journal, and pages.

Owns which of the two an id means: pages have bit 62 (`vespiary_codec.journal.page`). Must never
write. Made by `writer`; the pager, which comes later, tells it of itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from vespiary_broker.store.disk import DiskFile, DiskLike
from vespiary_broker.store.files import FilePool
from vespiary_broker.store.slabs import SlabLoader
from vespiary_codec.journal.page import PAGE_BIT


class Pages(Protocol):
    """Who has the pages."""

    def salt_of(self, page_id: int) -> int:
        """Return the salt of a page."""

    async def open_page(self, page_id: int) -> DiskFile:
        """Open a page for reading."""


class ReadableFiles:
    """Files to read. Owner: the event loop.

    Args:
        pool: The journal's files.
        disk: Its file system.
        run_blocking: Runs a function in the journal's worker thread.
        is_direct: Open with O_DIRECT.

    Attributes:
        pages: Who has the pages; None: there are none.
        loader: Who reads; set right after it was made.
    """

    loader: SlabLoader

    def __init__(
        self,
        pool: FilePool,
        disk: DiskLike,
        run_blocking: Callable[[Callable[[], DiskFile]], Awaitable[DiskFile]],
        *,
        is_direct: bool,
    ) -> None:
        self.pages: Pages | None = None
        self._pool = pool
        self._disk = disk
        self._run_blocking = run_blocking
        self._is_direct = is_direct

    def salt_of(self, file_id: int) -> int:
        """Return the salt of a file or a page."""
        if file_id & PAGE_BIT and self.pages is not None:
            return self.pages.salt_of(file_id & ~PAGE_BIT)
        return self._pool.file(file_id).salt

    async def open(self, file_id: int) -> DiskFile:
        """Open a file or a page for reading, off the loop.

        Raises:
            PageDamaged: The page is missing.
            NativeError: It can't be opened.
        """
        if file_id & PAGE_BIT and self.pages is not None:
            return await self.pages.open_page(file_id & ~PAGE_BIT)
        path = self._pool.file(file_id).path
        return await self._run_blocking(
            partial(self._disk.open, path, is_direct=self._is_direct, is_readonly=True)
        )

    # --- what paging asks of the journal's files --------------------------------------------------

    @property
    def journal_id(self) -> bytes:
        """The id in the headers of all files of the journal."""
        return self._pool.journal_id

    def active_ids(self) -> list[int]:
        """Return the ids of the journal's files in use, ascending."""
        return self._pool.active_ids

    def size_of(self, file_id: int) -> int:
        """Return the size of a file of the journal in bytes; 0 if it was freed."""
        file = self._pool.find(file_id)
        return file.size_bytes if file is not None else 0

    def forget(self, file_id: int) -> bool:
        """Close what is open for reading a page; False while it is being read."""
        if self.loader.is_busy(file_id):
            return False
        self.loader.forget(file_id)
        return True
