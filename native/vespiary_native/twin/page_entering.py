"""Extents are entered and left, and their places ended (see `pages` for the whole).

Owns the way of places from a page's index into a queue's ring and back. Never does I/O. Base class
of `pages.Pages`, and never used alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vespiary_codec.journal.page import PLACE as INDEX_PLACE
from vespiary_codec.journal.page import QUEUE as INDEX_QUEUE
from vespiary_codec.journal.page import RECORD as INDEX_RECORD
from vespiary_codec.journal.page import TRAILER, TRAILER_BYTES, block_file_id
from vespiary_codec.journal.record import (
    ADD,
    PLACE,
    AckRecord,
    RecordFlag,
    SequenceRange,
    encode_record,
)
from vespiary_native.twin.branches import Branches
from vespiary_native.twin.extents import NOWHERE, Extent
from vespiary_native.twin.image import PAGE
from vespiary_native.twin.page_writer import Page
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Message, Queue, place_bytes
from vespiary_native.values_pages import PageState

PURGE_RANGES_MAX: Final = 64
"""Ranges in one ACK record."""

KEPT_FLAGS: Final = RecordFlag.ESCAPED | RecordFlag.LARGE | RecordFlag.SPECIAL
VOLATILE: Final = RecordFlag.VOLATILE.value
_PRIORITY_AT: Final = 13
"""In a row of the third table of a page's index."""


class Found(NamedTuple):
    """A place of an extent, as the page's index has it."""

    sequence: int
    message: Message
    priority: int


class Entering:
    """See the module's docstring."""

    def __init__(self, staging: Staging, queues: dict[int, Queue], branches: Branches) -> None:
        self._staging = staging
        self._image = staging.image
        self._queues = queues
        self._branches = branches

    def page(self, page_id: int, *states: PageState) -> Page:
        """Return a page in one of these states."""
        page = self._image.pages.get(block_file_id(page_id))
        if page is None or page.state not in states:
            found = page.state.name if page is not None else "not known"
            wanted = " or ".join(state.name for state in states)
            raise ValueError(f"page {page_id} is {found}, not {wanted}")
        page.now_ms = self._staging.blocks.now_ms
        return page

    def check_no_transaction(self) -> None:
        """Refuse what must not stand between members of a transaction."""
        if self._staging.transaction:
            raise ValueError("pages and transactions are not staged at once")

    def leave_ring(self, queue: Queue, extent: Extent, sequence: int) -> None:
        """Take a place out of the ring: it stands in the extent."""
        message = queue.entries.pop(sequence)
        deliveries = queue.deliveries.pop(sequence, 0)
        if deliveries:
            extent.deliveries[sequence] = deliveries
        if message[4] & VOLATILE:
            extent.volatile.add(sequence)
        queue.live_bytes -= message[2] + message[3]
        self._staging.unpin(queue, message)

    # --- coming back ------------------------------------------------------------------------------
    def wanted(self) -> list[tuple[int, int]]:
        """Return what consumers wait for (see `CorePages.page_wanted`)."""
        taken = []
        for queue in self._staging.wanted:
            queue.extents.is_wanted = False
            extent = queue.extents.holding(queue.extents.next)
            if extent is not None:
                taken.append((queue.queue_id, extent.page.page_id))
        self._staging.wanted.clear()
        return taken

    def extent(self, page: Page, queue_id: int) -> tuple[Queue, Extent]:
        """Return what a queue has in a page; ValueError if that is nothing."""
        queue = self._queues.get(queue_id)
        extent = queue.extents.of(page) if queue is not None else None
        if queue is None or extent is None:
            raise ValueError(f"queue {queue_id} has nothing in page {page.page_id}")
        return queue, extent

    def enter(self, page_id: int, queue_id: int, footer: bytes) -> int:
        """Have places of a page in the ring (see `CorePages.page_enter`)."""
        page = self.page(page_id, PageState.LIVE)
        queue, extent = self.extent(page, queue_id)
        if extent.is_open:
            return 0
        found = self.read_index(page, queue_id, extent, footer)
        for one in found:
            self.enter_ring(queue, extent, one)
        queue.deliveries |= extent.deliveries
        extent.deliveries.clear()
        extent.locked.clear()
        extent.is_open = True
        queue.entered([one.sequence for one in found])
        queue.extents.update()
        self._staging.queue_ready(queue)
        return len(found)

    def enter_ring(self, queue: Queue, extent: Extent, found: Found) -> None:
        """Have one place of a closed extent in the ring."""
        sequence, message, _ = found
        if sequence in extent.volatile:
            message = (*message[:4], message[4] | VOLATILE, *message[5:])
        queue.entries[sequence] = message
        queue.live_bytes += message[2] + message[3]
        extent.page.live -= 1
        self._image.pin(message[0], 1, message[5])
        self._staging.accounts.enter(queue.account, message)
        if sequence in extent.locked:
            queue.locked.add(sequence)
        elif sequence < queue.next:
            queue.put_first(sequence)
        queue.note_special(sequence)

    def read_index(self, page: Page, queue_id: int, extent: Extent, footer: bytes) -> list[Found]:
        """Return the live places of an extent by the page's index, which is checked.

        Raises:
            ValueError: It does not fit the page, or what the journal says of it.
        """
        found = self._walk_index(page, queue_id, extent, memoryview(footer))
        if len(found) != len(extent.live):
            raise ValueError(
                f"page {page.page_id} has {len(found)} places of queue {queue_id} in its index:"
                f" {len(extent.live)} are expected"
            )
        return found

    def _walk_index(
        self, page: Page, queue_id: int, extent: Extent, footer: memoryview
    ) -> list[Found]:
        if len(footer) < TRAILER_BYTES:
            raise ValueError(f"a footer of {len(footer)} bytes is too short")
        fields = TRAILER.unpack_from(footer, len(footer) - TRAILER_BYTES)
        queues, places, records = fields[6], fields[7], fields[8]
        places_at = queues * INDEX_QUEUE.size
        records_at = places_at + places * INDEX_PLACE.size
        end = records_at + records * INDEX_RECORD.size
        data_end = page.size - len(footer)
        if end > len(footer) - TRAILER_BYTES or data_end < PAGE:
            raise ValueError(f"the index of page {page.page_id} does not fit its footer")
        found: list[Found] = []
        for number in range(queues):
            of, count, first, _, index, _ = INDEX_QUEUE.unpack_from(
                footer, number * INDEX_QUEUE.size
            )
            if of != queue_id:
                continue
            if index + count > places:
                raise ValueError(f"the index of page {page.page_id} names places beyond its table")
            for place in range(index, index + count):
                offset, record = INDEX_PLACE.unpack_from(footer, places_at + place * 8)
                sequence = first + offset
                if sequence not in extent.live or (found and sequence <= found[-1].sequence):
                    continue
                if record >= records:
                    raise ValueError(f"the index of page {page.page_id} names a missing record")
                found.append(
                    Found(
                        sequence,
                        self._message(page, footer, records_at + record * 16, data_end),
                        footer[records_at + record * 16 + _PRIORITY_AT],
                    )
                )
            break
        return found

    def _message(self, page: Page, footer: memoryview, at: int, data_end: int) -> Message:
        offset, body, properties, places, flags, _, _, _ = INDEX_RECORD.unpack_from(footer, at)
        length = ADD.size + PLACE.size * places + properties + body
        slab_at = offset % self._image.slab_bytes
        if (
            not places
            or offset < PAGE
            or offset % 8
            or offset + length > data_end
            or slab_at + length > self._image.slab_bytes
        ):
            raise ValueError(f"the index of page {page.page_id} points behind its end")
        return (
            page.slabs[offset >> self._image.slab_shift],
            slab_at + ADD.size + PLACE.size * places,
            properties,
            body,
            flags & (KEPT_FLAGS | VOLATILE),
            place_bytes(places, properties + body),
            slab_at,
        )

    def leave(self, page_id: int, queue_id: int) -> bool:
        """Take places out of the ring again (see `CorePages.page_leave`)."""
        page = self.page(page_id, PageState.LIVE)
        queue, extent = self.extent(page, queue_id)
        self.check_no_transaction()
        if not extent.is_open:
            return True
        live = queue.places_of(extent)
        if not all(at in queue.returned or (at >= queue.next and queue.is_free(at)) for at in live):
            return False
        extent.volatile.clear()
        for at in live:
            queue.returned.discard(at)
            self.leave_ring(queue, extent, at)
        page.live += len(live)
        extent.live = set(live)
        extent.picked.clear()
        extent.is_open = False
        queue.extents.update()
        return True

    # --- ending -----------------------------------------------------------------------------------
    def finish(self, queue: Queue, end: int = NOWHERE, most: int = NOWHERE) -> int:
        """Acknowledge what stands in a queue's closed extents below a sequence; return how many.

        Args:
            queue: The queue.
            end: One above the last sequence that is to end.
            most: Stop after so many.

        Raises:
            NoRoom: For the rest; those before are acknowledged.
        """
        done = 0
        try:
            for extent in queue.extents.all:
                if extent.first >= end or done >= most:
                    break
                if not extent.is_open:
                    done += self._finish_extent(queue, extent, end, most - done)
        finally:
            queue.extents.update()
        return done

    def _finish_extent(self, queue: Queue, extent: Extent, end: int, most: int) -> int:
        every = sorted(at for at in extent.live - extent.locked if at < end)
        kept = [at for at in every if at not in extent.volatile] if queue.is_durable else []
        kept = kept[:most]
        runs: list[list[int]] = []
        for at in kept:
            if runs and runs[-1][-1] == at - 1:
                runs[-1].append(at)
            else:
                runs.append([at])
        for number in range(0, len(runs), PURGE_RANGES_MAX):
            some = runs[number : number + PURGE_RANGES_MAX]
            ranges = tuple(SequenceRange(run[0], len(run)) for run in some)
            blocks = self._staging.blocks
            blocks.append(encode_record(AckRecord(queue.queue_id, ranges)))
            assert blocks.slab.file is not None
            blocks.slab.file.cancels.add(extent.page)
            for run in some:
                self._end(queue, extent, run)
        others = [at for at in every if not queue.is_durable or at in extent.volatile]
        others = others[: most - len(kept)]
        self._end(queue, extent, others)
        return len(kept) + len(others)

    def _end(self, queue: Queue, extent: Extent, sequences: list[int]) -> None:
        for at in sequences:
            queue.extents.end(extent, at)
            self._staging.end_large(queue, at)
        queue.acknowledged += len(sequences)
