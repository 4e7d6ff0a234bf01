"""The page calls of `TwinCore` (`vespiary_native.abc_pages.CorePages`).

Owns nothing: the work is `pages`. A mix-in of `TwinCore`, and never used alone.
"""

from __future__ import annotations

from vespiary_native.twin.pages import Pages
from vespiary_native.values_inspection import LOOK_LIVE_MAX, Look
from vespiary_native.values_pages import ExtentFacts, PageFacts, PageFill, PagePiece


class TwinPages:
    """See `abc_pages.CorePages`."""

    _pages: Pages

    def page_open(self, page_id: int, salt: int, size_bytes: int, queue_ids: list[int]) -> None:
        """See `CorePages.page_open`."""
        self._pages.open(page_id, salt, size_bytes, queue_ids)

    def page_fill(
        self,
        page_id: int,
        queue_id: int,
        sequence: int,
        up_to_sequence: int,
        max_bytes: int,
        max_places: int,
    ) -> PageFill:
        """See `CorePages.page_fill`."""
        return self._pages.fill(page_id, queue_id, sequence, up_to_sequence, max_bytes, max_places)

    def page_close(self, page_id: int) -> list[PagePiece]:
        """See `CorePages.page_close`."""
        return self._pages.close(page_id)

    def page_commit(self, page_id: int) -> int:
        """See `CorePages.page_commit`.

        Durability: the file, its name and its folder were flushed before.
        """
        return self._pages.commit(page_id)

    def page_abandon(self, page_id: int) -> None:
        """See `CorePages.page_abandon`."""
        self._pages.abandon(page_id)

    def page_wanted(self) -> list[tuple[int, int]]:
        """See `CorePages.page_wanted`."""
        return self._pages.wanted()

    def page_enter(self, page_id: int, queue_id: int, footer: bytes) -> int:
        """See `CorePages.page_enter`."""
        return self._pages.enter(page_id, queue_id, footer)

    def page_leave(self, page_id: int, queue_id: int) -> bool:
        """See `CorePages.page_leave`."""
        return self._pages.leave(page_id, queue_id)

    def page_look(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequence: int,
        max_messages: int,
        *,
        min_priority: int = 0,
    ) -> Look:
        """See `CorePages.page_look`."""
        if max_messages < 1:
            raise ValueError(f"max_messages {max_messages} is below 1")
        return self._pages.look(
            page_id, queue_id, footer, sequence, min(max_messages, LOOK_LIVE_MAX), min_priority
        )

    def page_bodies(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequences: list[int],
        max_bytes: int,
    ) -> list[bytes]:
        """See `CorePages.page_bodies`."""
        return self._pages.bodies(page_id, queue_id, footer, sequences, max_bytes)

    def page_pick(self, page_id: int, queue_id: int, footer: bytes, sequences: list[int]) -> int:
        """See `CorePages.page_pick`."""
        return self._pages.pick(page_id, queue_id, footer, sequences)

    def page_keep(self, queue_id: int, sequences: list[int], *, is_kept: bool) -> None:
        """See `CorePages.page_keep`."""
        self._pages.keep(queue_id, sequences, is_kept=is_kept)

    def page_done(self) -> list[int]:
        """See `CorePages.page_done`."""
        return self._pages.done()

    def page_end(self, page_id: int) -> int:
        """See `CorePages.page_end`.

        Durability: the file may go once the block is durable.
        """
        return self._pages.end(page_id)

    def page_forget(self, page_id: int) -> None:
        """See `CorePages.page_forget`."""
        self._pages.forget(page_id)

    def page_restage(self, page_id: int) -> int:
        """See `CorePages.page_restage`."""
        return self._pages.restage(page_id)

    def pages(self) -> list[PageFacts]:
        """See `CorePages.pages`."""
        return self._pages.facts()

    def extents(self, queue_id: int, begin: int = 0, most: int | None = None) -> list[ExtentFacts]:
        """See `CorePages.extents`."""
        return self._pages.extents_of(queue_id, begin, most)

    def extent_index(self, queue_id: int, sequence: int) -> int:
        """See `CorePages.extent_index`."""
        return self._pages.extent_index(queue_id, sequence)

    def extent(self, page_id: int, queue_id: int) -> ExtentFacts | None:
        """See `CorePages.extent`."""
        return self._pages.extent_of(page_id, queue_id)

    def page_record_bytes(self, page_id: int) -> int:
        """See `CorePages.page_record_bytes`."""
        return self._pages.record_bytes(page_id)

    def pages_in(self, file_id: int) -> list[int]:
        """See `CorePages.pages_in`."""
        return self._pages.in_file(file_id)
