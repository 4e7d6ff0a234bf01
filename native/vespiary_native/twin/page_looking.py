"""Closed extents without opening them (`CorePages.page_look`, `page_body`, `page_pick`).

Owns the look at messages where they stand in a page, and the way of single ones into the ring. Base
class of `pages.Pages`, and never used alone.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.journal.record import RecordFlag
from vespiary_native.abc_ranges import RangeCopy
from vespiary_native.twin.extents import Extent
from vespiary_native.twin.page_entering import VOLATILE, Entering, Found
from vespiary_native.twin.page_writer import Page
from vespiary_native.twin.range_copying import RangeCopying
from vespiary_native.twin.state import Queue
from vespiary_native.values_inspection import LOOK_BYTES_MAX, Look, MessageView
from vespiary_native.values_pages import PageState

_PROTOCOL_AT: Final = 6
_PRIORITY_AT: Final = 7
_TIME_AT: Final = 8


class Looking(Entering):
    """See the module's docstring."""

    def _open_index(
        self, page_id: int, queue_id: int, footer: bytes
    ) -> tuple[Page, Queue, Extent, list[Found]]:
        """Return an extent and its places that no branch holds; of one that is open, none."""
        page = self.page(page_id, PageState.LIVE)
        queue, extent = self.extent(page, queue_id)
        if extent.is_open:
            return page, queue, extent, []
        every = self.read_index(page, queue_id, extent, footer)
        return page, queue, extent, [one for one in every if one.sequence not in extent.locked]

    def look(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequence: int,
        max_messages: int,
        min_priority: int,
    ) -> Look:
        """Look at messages where they stand (see `CorePages.page_look`)."""
        page, queue, extent, found = self._open_index(page_id, queue_id, footer)
        page.is_looked_at = True
        views: list[MessageView] = []
        properties_bytes = 0
        for one in found:
            if one.sequence < sequence or one.priority < min_priority:
                continue
            slab, length = one.message[0], one.message[2]
            if slab.view is None:
                queue.waits_for_slab = True
                return Look(views, one.sequence, (page.file_id, slab.index))
            is_over = views and properties_bytes + length > LOOK_BYTES_MAX
            if is_over or len(views) == max_messages:
                return Look(views, one.sequence, None)
            properties_bytes += length
            views.append(_view_of(extent, one))
        if not views:
            page.is_looked_at = False
            self._image.release_unused(page)
        return Look(views, extent.last + 1, None)

    def copy(
        self,
        page_id: int,
        queue_id: int,
        footer: bytes,
        sequence: int,
        end: int,
        copying: RangeCopying,
    ) -> RangeCopy:
        """Copy records where they stand (see `CoreRanges.page_copy`)."""
        page, queue, extent, found = self._open_index(page_id, queue_id, footer)
        page.is_looked_at = True
        limit, count = min(end, extent.last + 1), 0
        for one in found:
            if not sequence <= one.sequence < limit:
                continue
            slab = one.message[0]
            if slab.view is None:
                queue.waits_for_slab = True
                return copying.result(one.sequence, (page.file_id, slab.index))
            if not copying.put(one.sequence, one.message):
                return copying.result(one.sequence, None)
            count += 1
        if not count and limit > extent.last:
            page.is_looked_at = False
            self._image.release_unused(page)
        return copying.result(limit, None)

    def bodies(
        self, page_id: int, queue_id: int, footer: bytes, sequences: list[int], max_bytes: int
    ) -> list[bytes]:
        """Return stored bodies (see `CorePages.page_bodies`)."""
        _, _, _, found = self._open_index(page_id, queue_id, footer)
        known = {one.sequence: one.message for one in found}
        bodies: list[bytes] = []
        size_bytes, last = 0, 0
        for sequence in sequences:
            if sequence <= last or sequence not in known:
                break
            slab, at, properties_bytes, body_bytes = known[sequence][:4]
            size_bytes += body_bytes
            if slab.view is None or (bodies and size_bytes > max_bytes):
                break
            at, last = at + properties_bytes, sequence
            bodies.append(bytes(slab.view[at : at + body_bytes]))
        return bodies

    def pick(self, page_id: int, queue_id: int, footer: bytes, sequences: list[int]) -> int:
        """Have single places in the ring (see `CorePages.page_pick`)."""
        _, queue, extent, found = self._open_index(page_id, queue_id, footer)
        wanted = set(sequences)
        picked = [one for one in found if one.sequence in wanted]
        for one in picked:
            self.enter_ring(queue, extent, one)
            extent.live.discard(one.sequence)
            extent.picked.add(one.sequence)
            deliveries = extent.deliveries.pop(one.sequence, 0)
            if deliveries:
                queue.deliveries[one.sequence] = deliveries
        if picked:
            queue.entered([one.sequence for one in picked])
            queue.extents.update()
            self._staging.queue_ready(queue)
        return len(picked)


def _view_of(extent: Extent, found: Found) -> MessageView:
    slab, at, properties_bytes, body_bytes, flags, _, record_at = found.message
    view = slab.view
    assert view is not None
    return MessageView(
        sequence=found.sequence,
        is_returned=False,
        is_held=False,
        is_aside=False,
        deliveries=extent.deliveries.get(found.sequence, 0),
        priority=view[record_at + _PRIORITY_AT],
        protocol=view[record_at + _PROTOCOL_AT],
        time_ms=int.from_bytes(view[record_at + _TIME_AT : record_at + 16], "little"),
        is_journalled=not flags & VOLATILE,
        is_special=bool(flags & RecordFlag.SPECIAL),
        is_large=bool(flags & RecordFlag.LARGE),
        is_escaped=bool(flags & RecordFlag.ESCAPED),
        body_length=body_bytes,
        properties=bytes(view[at : at + properties_bytes]),
    )
