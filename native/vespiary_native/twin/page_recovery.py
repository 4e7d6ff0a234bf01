"""PAGE and PAGE_DONE records become extents again (journal-format §3.8).

Owns nothing: it changes queues and pages as records say. Never reads a page file: the journal says
what is live there. Called by `recovery`, in journal order.
"""

from __future__ import annotations

from vespiary_codec.journal.page import PAGE_BIT, block_file_id
from vespiary_codec.journal.page_record import PagedQueue, PagedRecord, encode_paged
from vespiary_native.twin.accounts import Accounts
from vespiary_native.twin.extents import Extent
from vespiary_native.twin.image import PAGE, Image, JournalFile
from vespiary_native.twin.large import LargeMessages
from vespiary_native.twin.page_writer import Page
from vespiary_native.twin.state import DELIVERIES_MAX, Queue
from vespiary_native.values_pages import PageState


class PageRecovery:
    """What the recovery does with pages."""

    def __init__(self, image: Image, large: LargeMessages, accounts: Accounts) -> None:
        self._image = image
        self._accounts = accounts
        self._large = large

    def apply_paged(self, queues: dict[int, Queue], file: JournalFile, record: PagedRecord) -> None:
        """Have places stand in a page, as its latest PAGE record says."""
        size = record.size_bytes
        if not 0 < record.page_id < PAGE_BIT or size % PAGE or not 4 * PAGE <= size < 2**32:
            raise ValueError(f"a PAGE record of page {record.page_id} with {size} bytes")
        page = self._image.pages.get(block_file_id(record.page_id))
        if page is None:
            page = Page(self._image, record.page_id, record.salt, size, state=PageState.LIVE)
            self._image.pages[page.file_id] = page
        else:
            self._detach(file, page)
        named = {paged.queue_id: paged for paged in record.queues}
        for queue_id, queue in queues.items():
            before = queue.extents.remove(page)
            paged = named.get(queue_id)
            for sequence in sorted(before.live) if before is not None else ():
                if paged is None or sequence not in paged.sequences:
                    self._large.ended(queue, sequence, 0)
            if paged is not None:
                self._take(queue, page, file, paged)
        self._image.pin_record(page, file, len(encode_paged(record)))

    def _detach(self, file: JournalFile, page: Page) -> None:
        """Let a page's latest record count no more: a later one says all that is to be said."""
        self._image.unpin_record(page, file)
        self._image.forget_cancels(page)
        page.live = 0

    def _take(self, queue: Queue, page: Page, file: JournalFile, paged: PagedQueue) -> None:
        for sequence in paged.sequences:
            message = queue.entries.pop(sequence, None)
            if message is None:
                continue
            # Its record would count again without this one.
            if message[0].file is not None and message[0].file is not file:
                file.cancels.add(message[0].file)
            queue.deliveries.pop(sequence, None)
            queue.live_bytes -= message[2] + message[3]
            self._accounts.leave(queue.account, message)
            self._image.unpin(message[0], message[5])
        for sequence, reference in paged.large:
            self._large.place(queue, sequence, reference)
        extent = Extent(page, list(paged.sequences))
        extent.deliveries = {at: min(count, DELIVERIES_MAX) for at, count in paged.counts}
        page.live += len(paged.sequences)
        queue.tail = max(queue.tail, paged.sequences[-1] + 1)
        queue.extents.add(extent)

    def apply_done(self, queues: dict[int, Queue], file: JournalFile, page_id: int) -> None:
        """Drop a page: nothing of it is needed."""
        page = self._image.pages.pop(block_file_id(page_id), None)
        if page is None:
            return
        self._detach(file, page)
        for queue in queues.values():
            extent = queue.extents.remove(page)
            for sequence in sorted(extent.live) if extent is not None else ():
                self._large.ended(queue, sequence, 0)

    def acknowledge(
        self, queue: Queue, first: int, end: int, files: tuple[JournalFile, ...]
    ) -> None:
        """End places of closed extents; each file must not go before what it ends."""
        is_changed = False
        for extent in queue.extents.all:
            if extent.last < first or extent.first >= end:
                continue
            for sequence in sorted(at for at in extent.live if first <= at < end):
                is_changed = True
                queue.extents.end(extent, sequence)
                self._large.ended(queue, sequence, 0)
                for file in files:
                    file.cancels.add(extent.page)
        if is_changed:
            queue.extents.update()

    @staticmethod
    def count(queue: Queue, sequence: int, deliveries: int, file: JournalFile) -> None:
        """Note how often a place of a closed extent was given out."""
        extent = queue.extents.holding(sequence)
        if extent is not None:
            extent.deliveries[sequence] = min(deliveries, DELIVERIES_MAX)
            if not deliveries:
                del extent.deliveries[sequence]
            file.cancels.add(extent.page)
