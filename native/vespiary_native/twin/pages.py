"""Pages: messages that wait move out of the journal into files, and come back (decision 0009).

Owns the pages, and the PAGE and PAGE_DONE records. Never does I/O: what is written and read is said
by the caller. Called by the core; `abc_pages.CorePages` is the contract.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import Final

from vespiary_codec.journal.page import (
    PAGE_BIT,
    block_file_id,
)
from vespiary_codec.journal.page_record import (
    COUNT_BYTES,
    LARGE_BYTES,
    PAGED,
    PAGED_QUEUE,
    PageDoneRecord,
    PagedQueue,
    PagedRecord,
    bitmap_bytes,
    encode_page_done,
    encode_paged,
)
from vespiary_codec.journal.record import (
    ADD,
    PLACE,
    RecordFlag,
)
from vespiary_native.abc import NoRoom
from vespiary_native.twin.branches import Branches
from vespiary_native.twin.extents import Extent
from vespiary_native.twin.image import PAGE, JournalFile, Slab
from vespiary_native.twin.page_entering import KEPT_FLAGS, VOLATILE
from vespiary_native.twin.page_looking import Looking
from vespiary_native.twin.page_writer import Page, add_record, extra_bytes, record_limit
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Queue
from vespiary_native.values_pages import (
    ExtentFacts,
    PageFacts,
    PageFill,
    PagePiece,
    PageState,
)

FILE_BYTES_MAX: Final = 2**32 - PAGE
_RECORD_LENGTH: Final = struct.Struct("<I")


class Pages(Looking):
    """The pages of a core: out of the journal. The way back is `Entering`'s and `Looking`'s."""

    def __init__(self, staging: Staging, queues: dict[int, Queue], branches: Branches) -> None:
        super().__init__(staging, queues, branches)
        self._image.copied_places = self._copied_places

    def _copied_places(self) -> Counter[Slab]:
        """Return how many live places of each slab stand in pages that are not live yet too."""
        queues = self._queues.values()
        copied = ((queue, at) for queue in queues for at in queue.paging if at in queue.entries)
        return Counter(queue.entries[at][0] for queue, at in copied)

    # --- filling ----------------------------------------------------------------------------------
    def open(self, page_id: int, salt: int, size: int, queue_ids: list[int]) -> None:
        """Begin a page (see `CorePages.page_open`)."""
        if not 0 < page_id < PAGE_BIT or block_file_id(page_id) in self._image.pages:
            raise ValueError(f"page {page_id} is known, or not from 1 to {PAGE_BIT - 1}")
        if size % PAGE or not 4 * PAGE <= size <= FILE_BYTES_MAX:
            raise ValueError(
                f"a page of {size} bytes: a multiple of {PAGE} from {4 * PAGE} to"
                f" {FILE_BYTES_MAX} is allowed"
            )
        known = set(queue_ids)
        if not known or len(known) != len(queue_ids) or not known <= self._queues.keys():
            raise ValueError(f"a page for queues {queue_ids}: each must be open, and named once")
        page = Page(self._image, page_id, salt, size, state=PageState.FILLING)
        page.queue_ids = known
        self._image.pages[page.file_id] = page

    def fill(
        self,
        page_id: int,
        queue_id: int,
        sequence: int,
        up_to_sequence: int,
        max_bytes: int,
        max_places: int,
    ) -> PageFill:
        """Copy messages of a queue (see `CorePages.page_fill`)."""
        page = self.page(page_id, PageState.FILLING)
        queue = self._queues.get(queue_id)
        if queue is None or queue_id not in page.queue_ids:
            raise ValueError(f"page {page_id} takes no messages of queue {queue_id}")
        at = max(sequence, queue.next)
        end = min(up_to_sequence, queue.available, at + max_places)
        copied = copied_bytes = 0
        is_full = False
        absent = None
        while at < end and copied_bytes < max_bytes:
            if not self._is_movable(queue, at):
                at += 1
                continue
            slab, record_at = queue.entries[at][0], queue.entries[at][6]
            if slab.view is None:
                assert slab.file is not None
                absent = slab.file.file_id, slab.index
                break
            (length,) = _RECORD_LENGTH.unpack_from(slab.view, record_at)
            record = memoryview(bytes(slab.view[record_at : record_at + length]))
            try:
                bytes_ = self._copy(page, queue, at, record)
            except NoRoom:
                if not copied:
                    raise
                break
            if not bytes_:
                is_full = True
                break
            copied += 1
            copied_bytes += bytes_
            at += 1
        return PageFill(max(at, sequence), copied, copied_bytes, is_full, absent)

    @staticmethod
    def _is_movable(queue: Queue, sequence: int) -> bool:
        """Whether a place may be copied: ready, and in no page."""
        if not queue.next <= sequence < queue.available or not queue.is_free(sequence):
            return False
        file = queue.entries[sequence][0].file
        is_held_back = sequence in queue.paging or sequence in queue.kept
        return not is_held_back and (file is None or not file.is_page)

    def _copy(self, page: Page, driver: Queue, sequence: int, record: memoryview) -> int:
        """Copy a record with all places that may move; return its length, 0 if it does not fit."""
        message = driver.entries[sequence]
        flags = record[5]
        places: list[tuple[int, int]] = []
        extra = 0
        count = ADD.unpack_from(record)[-1]
        everywhere = record[ADD.size : ADD.size + PLACE.size * count]
        for queue_id, _, at in PLACE.iter_unpack(everywhere):
            queue = self._queues.get(queue_id)
            if queue is None or queue_id not in page.queue_ids or not self._is_movable(queue, at):
                continue
            other = queue.entries[at]
            if other[0] is not message[0] or other[6] != message[6]:
                continue
            more = extra_bytes(
                is_large=bool(flags & RecordFlag.LARGE), has_count=bool(queue.deliveries.get(at))
            )
            if page.takes([*places, (queue_id, at)], extra + more):
                places.append((queue_id, at))
                extra += more
        if (driver.queue_id, sequence) not in places:
            return 0
        is_volatile = message[0].file is None
        kept = flags & KEPT_FLAGS | RecordFlag.MOVED | (VOLATILE if is_volatile else 0)
        copy = add_record(record, places, kept)
        block_bytes = self._staging.blocks.block_bytes
        if page.is_full(len(copy), places):
            return 0
        page.append(copy, places, extra, block_bytes)
        for queue_id, at in places:
            self._queues[queue_id].paging.add(at)
        return len(copy)

    def close(self, page_id: int) -> list[PagePiece]:
        """Close a page (see `CorePages.page_close`)."""
        page = self.page(page_id, PageState.FILLING)
        return page.close() if page.records else []

    def abandon(self, page_id: int) -> None:
        """Forget a page that is not live (see `CorePages.page_abandon`)."""
        page = self.page(page_id, PageState.FILLING, PageState.CLOSED)
        for queue_id, placed in page.placed.items():
            if queue_id in self._queues:
                self._queues[queue_id].paging -= placed.keys()
        page.release()
        del self._image.pages[page.file_id]

    def forget_queue(self, queue: Queue) -> None:
        """Let go of a queue's places: of its extents, and of pages that are not live."""
        queue.extents.clear()
        queue.paging.clear()
        for page in self._image.pages.values():
            page.queue_ids.discard(queue.queue_id)
            if page.state in (PageState.CLOSED, PageState.FILLING):
                page.dropped.add(queue.queue_id)

    def keep(self, queue_id: int, sequences: list[int], *, is_kept: bool) -> None:
        """Have places stay in the ring, or not (see `CorePages.page_keep`)."""
        queue = self._queues.get(queue_id)
        if queue is None:
            raise ValueError(f"queue {queue_id} is not open")
        queue.kept.difference_update(sequences)
        if is_kept:
            queue.kept.update(at for at in sequences if at in queue.entries)

    # --- the move ---------------------------------------------------------------------------------
    def commit(self, page_id: int) -> int:
        """Move the places to the page (see `CorePages.page_commit`).

        Durability: what stands in the page counts from the block on that is returned; its file and
        folder were flushed before the call.
        """
        page = self.page(page_id, PageState.CLOSED)
        self.check_no_transaction()
        moved: dict[Queue, list[int]] = {}
        for queue_id, placed in sorted(page.placed.items()):
            queue = self._queues.get(queue_id)
            if queue is None or queue_id in page.dropped:
                continue
            ready = [
                at
                for at in sorted(placed)
                if at not in queue.kept and queue.next <= at and queue.is_free(at)
            ]
            if ready:
                moved[queue] = ready
        if not moved:
            self.abandon(page_id)
            return 0
        own = self._stage_record(page, moved)
        for queue, sequences in moved.items():
            extent = Extent(page, sequences)
            for at in sequences:
                message = queue.entries[at]
                if message[0].file is None:
                    extent.volatile.add(at)
                elif message[0].file is not own:
                    own.cancels.add(message[0].file)
                self.leave_ring(queue, extent, at)
            queue.ack_block = 0  # an ACK record before the PAGE must not be extended by its places
            page.live += len(sequences)
            queue.extents.add(extent)
        for queue_id, placed in page.placed.items():
            if queue_id in self._queues and queue_id not in page.dropped:
                self._queues[queue_id].paging -= placed.keys()
        page.state = PageState.LIVE
        page.release()
        return self._staging.blocks.sequence

    def _paged(self, page: Page, places: dict[Queue, list[int]]) -> PagedRecord:
        """Return the PAGE record that names these places: those that must survive."""
        limit = record_limit(self._image.slab_bytes)
        used = PAGED.size
        queues = []
        for queue, sequences in places.items():
            kept = [at for at in sequences if not _is_volatile(queue, at)]
            if not queue.is_durable or not kept:
                continue
            large = tuple((at, queue.large[at].reference) for at in kept if at in queue.large)
            used += PAGED_QUEUE.size + len(large) * LARGE_BYTES
            if len(kept) != kept[-1] - kept[0] + 1:
                used += bitmap_bytes(kept[0], kept[-1])
            counts = []
            for at in kept:
                deliveries = self._staging.counting.journalled(queue, at)
                if deliveries and used + COUNT_BYTES <= limit + limit // 2:
                    counts.append((at, deliveries))
                    used += COUNT_BYTES
            queues.append(PagedQueue(queue.queue_id, tuple(kept), large, tuple(counts)))
        return PagedRecord(page.page_id, page.salt, page.size, tuple(queues))

    def _stage_record(self, page: Page, places: dict[Queue, list[int]]) -> JournalFile:
        """Stage a PAGE record, and return its file: it stays as long as the record is the latest.

        Args:
            page: The page.
            places: What it has of each queue.
        """
        blocks = self._staging.blocks
        record = encode_paged(self._paged(page, places))
        blocks.append(record)
        blocks.mark_urgent()
        own = blocks.slab.file
        assert own is not None
        self._image.pin_record(page, own, len(record))
        return own

    def restage(self, page_id: int) -> int:
        """Stage the PAGE record anew (see `CorePages.page_restage`).

        Durability: files with earlier acknowledgements may go once the block is durable.
        """
        page = self.page(page_id, PageState.LIVE)
        self.check_no_transaction()
        if page.pins and self._branches.is_ending:
            raise NoRoom(f"a branch that holds places of page {page_id} is ending")
        places = {}
        for _, queue in sorted(self._queues.items()):
            extent = queue.extents.of(page)
            if extent is not None and (live := queue.places_of(extent)):
                places[queue] = live
        self._stage_record(page, places)
        for queue in places:
            queue.ack_block = 0
        self._image.forget_cancels(page)
        return self._staging.blocks.sequence

    # --- the end ----------------------------------------------------------------------------------
    def done(self) -> list[int]:
        """Return the pages that nobody needs, durably (see `CorePages.page_done`)."""
        blocks = self._staging.blocks
        done = []
        for _, page in sorted(self._image.pages.items()):
            if page.state is not PageState.LIVE or page.live or self._staging.transaction:
                continue
            if page.block is None:
                page.block = 0 if blocks.is_all_durable else blocks.latest
            if page.block <= self._image.durable_sequence:
                done.append(page.page_id)
        return done

    def end(self, page_id: int) -> int:
        """Stage the end of a page (see `CorePages.page_end`).

        Durability: its file may go once the block is durable.
        """
        page = self.page(page_id, PageState.LIVE)
        if page_id not in self.done():
            raise ValueError(f"page {page_id} is needed: {page.live} live places")
        blocks = self._staging.blocks
        blocks.append(encode_page_done(PageDoneRecord(page_id)))
        blocks.mark_urgent()
        own = blocks.slab.file
        assert own is not None
        self._image.unpin_record(page, own)
        page.state = PageState.ENDED
        page.block = blocks.sequence
        for queue in self._queues.values():
            queue.extents.remove(page)
        return blocks.sequence

    def forget(self, page_id: int) -> None:
        """Forget a page whose file is gone (see `CorePages.page_forget`)."""
        page = self.page(page_id, PageState.ENDED)
        is_loading = any(slab.is_loading for slab in page.slabs)
        if page.block is not None and page.block <= self._image.durable_sequence:
            self._image.release_unused(page)
        if page.block is None or page.block > self._image.durable_sequence or is_loading:
            raise ValueError(f"the end of page {page_id} is not durable, or it is being read")
        self._image.forget_cancels(page)
        del self._image.pages[page.file_id]

    # --- questions --------------------------------------------------------------------------------
    def facts(self) -> list[PageFacts]:
        """Return what is known of all pages, by id."""
        return [
            PageFacts(
                page_id=page.page_id,
                salt=page.salt,
                size_bytes=page.size,
                state=page.state,
                places=page.places,
                record_file=page.record_file.file_id if page.record_file is not None else 0,
            )
            for _, page in sorted(self._image.pages.items())
        ]

    def extents_of(self, queue_id: int, begin: int, most: int | None) -> list[ExtentFacts]:
        """Return what a queue has in pages, by first sequence and page."""
        queue = self._queues.get(queue_id)
        if queue is None:
            raise ValueError(f"queue {queue_id} is not open")
        every = queue.extents.all[begin:]
        return [_facts(queue, extent) for extent in every[:most]]

    def extent_index(self, queue_id: int, sequence: int) -> int:
        """Return how many extents stand in front of the first that may hold a sequence."""
        queue = self._queues.get(queue_id)
        if queue is None:
            raise ValueError(f"queue {queue_id} is not open")
        every = queue.extents.all
        return next((i for i, one in enumerate(every) if one.last >= sequence), len(every))

    def extent_of(self, page_id: int, queue_id: int) -> ExtentFacts | None:
        """Return what a queue has in a page (see `CorePages.extent`)."""
        page = self._image.pages.get(block_file_id(page_id))
        queue = self._queues.get(queue_id)
        extent = queue.extents.of(page) if page is not None and queue is not None else None
        return None if queue is None or extent is None else _facts(queue, extent)

    def record_bytes(self, page_id: int) -> int:
        """Return the length of a page's latest PAGE record; 0 without one."""
        page = self._image.pages.get(block_file_id(page_id))
        return page.record_bytes if page is not None else 0

    def in_file(self, file_id: int) -> list[int]:
        """Return the pages whose PAGE record keeps a journal file, ascending."""
        file = self._image.file(file_id)
        if file.is_page:
            raise ValueError(f"file {file_id} is a page")
        return sorted(
            page.page_id for page in self._image.pages.values() if page.record_file is file
        )


def _facts(queue: Queue, extent: Extent) -> ExtentFacts:
    places = len(queue.places_of(extent) if extent.is_open else extent.live)
    return ExtentFacts(extent.page.page_id, extent.first, extent.last, places, extent.is_open)


def _is_volatile(queue: Queue, sequence: int) -> bool:
    """Whether a place need not survive, wherever it stands."""
    message = queue.entries.get(sequence)
    if message is not None:
        return message[0].file is None or bool(message[4] & VOLATILE)
    extent = queue.extents.holding(sequence)
    return extent is not None and sequence in extent.volatile
