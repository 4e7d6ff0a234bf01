"""Extents: what one queue has in one page, while it does not stand in the queue's ring.

Owns `Extent` and the rules between a queue and its extents. Never reads a page and never journals
anything: that is `pages`. Used by the queues, by `pages`, `branches` and the recovery.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from vespiary_native.twin.page_writer import Page

NOWHERE: Final = 2**64 - 1
"""Behind every sequence: no place of the queue stands in a closed extent."""


class Extent:
    """What one queue has in one page.

    Attributes:
        page: The page.
        first: Lowest sequence that it had when the journal named them.
        last: Highest one.
        live: Sequences that are not done, while it is closed; those that were entered, while it is
            open: which of them are still there the ring says.
        volatile: Those of them that need not survive.
        deliveries: How often they were given out, if ever; while it is closed.
        locked: Those that a prepared branch acknowledges; while it is closed.
        is_open: They stand in the ring.
        picked: Those that stand in the ring, or did, while it is closed.
    """

    __slots__ = (
        "deliveries", "first", "is_open", "last", "live", "locked", "page", "picked", "volatile",
    )  # fmt: skip

    def __init__(self, page: Page, sequences: list[int]) -> None:
        self.page = page
        self.first, self.last = sequences[0], sequences[-1]
        self.live = set(sequences)
        self.volatile: set[int] = set()
        self.deliveries: dict[int, int] = {}
        self.locked: set[int] = set()
        self.is_open = False
        self.picked: set[int] = set()


class Extents:
    """The extents of a queue, by their first sequence.

    Attributes:
        all: All of them, by first sequence and page.
        next: Lowest place in a closed extent; `NOWHERE` without one.
        places: Number of places in closed extents.
        is_wanted: A consumer met a place in a closed extent.
    """

    __slots__ = ("all", "is_wanted", "next", "places")

    def __init__(self) -> None:
        self.all: list[Extent] = []
        self.next = NOWHERE
        self.places = 0
        self.is_wanted = False

    def add(self, extent: Extent) -> None:
        """Take in a closed extent."""
        insort(self.all, extent, key=lambda one: (one.first, one.page.page_id))
        self.update()

    def update(self) -> None:
        """Count anew what stands in closed extents, after one of them changed."""
        closed = [extent for extent in self.all if not extent.is_open and extent.live]
        self.next = min((min(extent.live) for extent in closed), default=NOWHERE)
        self.places = sum(len(extent.live) for extent in closed)

    @property
    def locked(self) -> int:
        """Places of closed extents that prepared branches acknowledge."""
        return sum(len(extent.locked) for extent in self.all)

    def of(self, page: Page) -> Extent | None:
        """Return the extent in a page."""
        for extent in self.all:
            if extent.page is page:
                return extent
        return None

    def holding(self, sequence: int) -> Extent | None:
        """Return the closed extent that holds a place which is not done."""
        for extent in self.all:
            if not extent.is_open and sequence in extent.live:
                return extent
        return None

    def end(self, extent: Extent, sequence: int) -> None:
        """Say that a place of a closed extent is done; `update` follows."""
        extent.live.discard(sequence)
        extent.volatile.discard(sequence)
        extent.deliveries.pop(sequence, None)
        extent.locked.discard(sequence)
        extent.page.live -= 1

    def remove(self, page: Page) -> Extent | None:
        """Drop the extent in a page; return it."""
        extent = self.of(page)
        if extent is not None:
            self.all.remove(extent)
            self.update()
        return extent

    def clear(self) -> None:
        """Drop everything: the queue goes. What stands in the ring is not touched."""
        for extent in self.all:
            if not extent.is_open:
                extent.page.live -= len(extent.live)
        self.all.clear()
        self.update()
