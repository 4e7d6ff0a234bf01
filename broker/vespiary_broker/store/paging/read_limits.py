"""How much of its pages a queue has back in memory, and whether another one may be opened for it.

Owns what a place of each open page takes, and which queues wait for acknowledgements because of
`max-read-page-bytes` or `max-read-page-messages`. Must never open or close anything. Called by
`opening`, on the event loop.

A page is opened whole, so the limits are looked at before that: a queue has at most one page more
than they say. With nothing of its pages in memory it gets one in any case. Messages that nobody can
acknowledge now are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vespiary_broker.store.paging.page_files import PageFile
from vespiary_codec.journal.page import PageTrailer
from vespiary_native.abc import Core
from vespiary_native.values_pages import ExtentFacts

_EXTENTS: Final = 16


class ReadLimits(NamedTuple):
    """What a queue may have back in memory of its pages.

    Attributes:
        max_bytes: As its share of the page files; None for no limit.
        max_messages: In messages; None for no limit.
    """

    max_bytes: int | None = None
    max_messages: int | None = None


NO_READ_LIMITS = ReadLimits()


def each_extent(core: Core, queue_id: int) -> Iterator[ExtentFacts]:
    """Yield what a queue has in pages, in order, a few at a time: there may be thousands.

    Nothing else may be done with the core meanwhile.

    Raises:
        ValueError: The queue is gone.
    """
    begin = 0
    while some := core.extents(queue_id, begin, _EXTENTS):
        yield from some
        begin += len(some)


class ReadAmounts:
    """What queues have back in memory of their pages.

    Attributes:
        waiting: Page that a queue gets when more was acknowledged, by queue.

    Args:
        core: The core.
    """

    def __init__(self, core: Core) -> None:
        self.waiting: dict[int, int] = {}
        self._core = core
        self._place_bytes: dict[int, int] = {}
        self._looked: dict[int, tuple[int, ...]] = {}  # what a waiting queue was when looked at

    def waits(self, queue_id: int, page_id: int) -> None:
        """Have a queue wait for a page."""
        self.waiting[queue_id] = page_id
        self._looked.pop(queue_id, None)

    def waits_no_more(self, queue_id: int) -> None:
        """Have a queue wait no more: it gets its page, or needs it no more."""
        del self.waiting[queue_id]
        self._looked.pop(queue_id, None)

    def has_changed(self, queue_id: int, claimed: int) -> bool:
        """Whether anything has happened to a waiting queue since it was last asked about.

        Without that it waits on, and nobody walks through its pages to learn so.

        Args:
            queue_id: The queue.
            claimed: Messages that open transactions acknowledge.
        """
        try:
            facts = self._core.queue_statistics(queue_id)
        except ValueError:
            return True  # it is gone
        now = (
            facts.acknowledged, facts.paged, facts.prepared, facts.aside,
            facts.delivering, facts.redelivered, claimed,
        )  # fmt: skip
        before, self._looked[queue_id] = self._looked.get(queue_id), now
        return now != before

    def opened(self, page: PageFile, trailer: PageTrailer) -> None:
        """Take note of an open page: its messages take an equal share of its file each."""
        self._place_bytes[page.page_id] = page.size_bytes // max(trailer.records, 1)

    def forget(self, page_id: int) -> None:
        """Drop what is remembered of a page that is done."""
        self._place_bytes.pop(page_id, None)

    def has_room(self, queue_id: int, page_id: int, limits: ReadLimits, claimed: int = 0) -> bool:
        """Whether a page may be opened for a queue.

        What stands behind its first message does not count: nobody gets that before. It is there
        when pages interleave, or when one was closed whose messages had come back, and later ones
        were not.

        What nobody can acknowledge now does not count, else consumers might wait for it for ever:
        messages that a transaction has acknowledged (the rest of it may stand in the next page),
        and those that wait for their time.

        Args:
            queue_id: The queue.
            page_id: The page.
            limits: Those of its address.
            claimed: Messages that open transactions acknowledge.
        """
        if limits == NO_READ_LIMITS:
            return True
        wanted = self._core.extent(page_id, queue_id)
        end = wanted.first if wanted is not None else 0
        messages = size_bytes = 0
        for extent in each_extent(self._core, queue_id):
            if extent.first >= end:
                break
            if extent.is_open:
                places = min(extent.places, end - extent.first)  # as many at most
                messages += places
                size_bytes += places * self._place_bytes.get(extent.page_id, 0)
        facts = self._core.queue_statistics(queue_id)
        counted = messages - claimed - facts.prepared - facts.aside
        if not self._core.next_deliverable(queue_id):
            counted = min(counted, facts.delivering - claimed)  # all in front of it is held
        if counted <= 0:
            return True
        size_bytes = size_bytes * counted // messages
        if limits.max_bytes is not None and size_bytes >= limits.max_bytes:
            return False
        return limits.max_messages is None or counted < limits.max_messages
