"""Which messages of a journal stand in page files: for tools.

Owns what PAGE, PAGE_DONE and ACK records say of pages (journal-format §3.8), a byte for each
sequence that a page spans. Must never read a page file. Called by `live_set`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from vespiary_codec.journal.large_reference import LargeReference, decode_large_reference
from vespiary_codec.journal.page_record import PagedQueue, PagedRecord


@dataclass(slots=True)
class _Extent:
    """What one queue has in one page: `flags[sequence - first]` is 1 while that place is live."""

    page_id: int
    first: int
    flags: bytearray
    large: dict[int, bytes]

    def end(self, first: int, number: int) -> bool:
        """End the places of a range; return whether one of them was live."""
        low = max(first - self.first, 0)
        high = min(first + number - self.first, len(self.flags))
        if low >= high or 1 not in self.flags[low:high]:
            return False
        self.flags[low:high] = bytes(high - low)
        return True

    def is_live(self, sequence: int) -> bool:
        """Whether a place is here and live."""
        at = sequence - self.first
        return 0 <= at < len(self.flags) and self.flags[at] == 1


def _extent_of(page_id: int, queue: PagedQueue) -> _Extent:
    first = queue.sequences[0]
    flags = bytearray(queue.sequences[-1] - first + 1)
    for sequence in queue.sequences:
        flags[sequence - first] = 1
    return _Extent(page_id, first, flags, dict(queue.large))


class LivePages:
    """The places in pages, by queue. Owner: the thread that reads."""

    def __init__(self) -> None:
        self._extents: dict[int, dict[int, _Extent]] = {}  # by queue and page
        self._sorted: dict[int, tuple[list[int], list[_Extent], int]] = {}

    def put(self, record: PagedRecord) -> None:
        """Take what a PAGE record says, in place of all that was said of the page before."""
        self.remove(record.page_id)
        for queue in record.queues:
            extents = self._extents.setdefault(queue.queue_id, {})
            extents[record.page_id] = _extent_of(record.page_id, queue)
            self._sorted.pop(queue.queue_id, None)

    def remove(self, page_id: int) -> None:
        """Forget a page."""
        for queue_id, extents in self._extents.items():
            if extents.pop(page_id, None) is not None:
                self._sorted.pop(queue_id, None)

    def acknowledge(self, queue_id: int, first: int, number: int) -> list[int]:
        """End the places of a range of sequences; return the pages in which one was live.

        Args:
            queue_id: The queue.
            first: The first sequence.
            number: How many.
        """
        ended: list[int] = []
        if queue_id not in self._extents:
            return ended
        firsts, extents, longest = self._in_order(queue_id)
        for at in range(bisect_right(firsts, first + number - 1) - 1, -1, -1):
            if firsts[at] + longest <= first:
                break
            if extents[at].end(first, number):
                ended.append(extents[at].page_id)
        return ended

    def _in_order(self, queue_id: int) -> tuple[list[int], list[_Extent], int]:
        """Return a queue's extents by their first sequence, and the longest span of one."""
        found = self._sorted.get(queue_id)
        if found is None:
            extents = sorted(self._extents[queue_id].values(), key=lambda extent: extent.first)
            longest = max((len(extent.flags) for extent in extents), default=0)
            found = ([extent.first for extent in extents], extents, longest)
            self._sorted[queue_id] = found
        return found

    # --- what came of it --------------------------------------------------------------------------

    @property
    def messages(self) -> dict[int, int]:
        """Live places in pages by queue id, queues without any left out."""
        counts = {
            queue_id: sum(extent.flags.count(1) for extent in extents.values())
            for queue_id, extents in sorted(self._extents.items())
        }
        return {queue_id: count for queue_id, count in counts.items() if count}

    @property
    def page_ids(self) -> list[int]:
        """Pages that hold a live place, ascending."""
        live = {
            page_id
            for extents in self._extents.values()
            for page_id, extent in extents.items()
            if 1 in extent.flags
        }
        return sorted(live)

    def head(self, queue_id: int) -> int | None:
        """Return the lowest live sequence that a queue has in a page; None if it has none."""
        extents = self._extents.get(queue_id, {}).values()
        heads = (extent.first + at for extent in extents if (at := extent.flags.find(1)) >= 0)
        return min(heads, default=None)

    def has(self, queue_id: int, sequence: int) -> bool:
        """Whether a message stands in a page, live."""
        return any(e.is_live(sequence) for e in self._extents.get(queue_id, {}).values())

    def sequences(self) -> Iterator[tuple[int, int]]:
        """Yield queue id and sequence of all live places in pages."""
        for queue_id, extents in sorted(self._extents.items()):
            for extent in extents.values():
                at = extent.flags.find(1)
                while at >= 0:
                    yield queue_id, extent.first + at
                    at = extent.flags.find(1, at + 1)

    def bodies(self) -> Iterator[tuple[LargeReference, int, int]]:
        """Yield the bodies in files of live messages in pages: reference, queue id, sequence."""
        for queue_id, extents in sorted(self._extents.items()):
            for extent in extents.values():
                for sequence, reference in sorted(extent.large.items()):
                    if extent.is_live(sequence):
                        yield decode_large_reference(reference), queue_id, sequence
