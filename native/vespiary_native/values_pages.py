"""The values that the core's calls for pages speak in (`vespiary_native.abc_pages`).

Owns plain values only. Used by both implementations of the core.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from vespiary_codec.journal.page_record import PLACES_MAX

PAGE_PLACES_MAX: Final = PLACES_MAX
"""Places in one page, over all queues: what is done with a page at once is bounded by it."""


class PageState(IntEnum):
    """How far a page is."""

    FILLING = 0  # messages are copied into it
    CLOSED = 1  # it is being written; the queues know nothing of it
    LIVE = 2  # the journal says that places stand in it
    ENDED = 3  # the journal says that nobody needs it; its file may go when that is durable


class PageFill(NamedTuple):
    """What one call of `Core.page_fill` did.

    Attributes:
        next_sequence: Go on here.
        copied_records: Messages that were copied.
        copied_bytes: Bytes of their records.
        is_full: The next one does not fit: close the page.
        absent: (file id, slab) that the next one needs: load it and go on; else None.
    """

    next_sequence: int
    copied_records: int
    copied_bytes: int
    is_full: bool
    absent: tuple[int, int] | None


class PageView(NamedTuple):
    """A part of a page in memory; blocks are never cut, and the last one is the footer."""

    data: memoryview
    offset: int


class PagePiece(NamedTuple):
    """Memory of a page that is to be written.

    Attributes:
        address: Aligned to 4096; valid until the page is committed or abandoned.
        length: Bytes, a multiple of 4096.
        offset: Where in the page file.
    """

    address: int
    length: int
    offset: int


class PageFacts(NamedTuple):
    """A page that the core knows.

    Attributes:
        page_id: Its id.
        salt: Its salt.
        size_bytes: Size of its file; of one that is filled, the bound of it.
        state: How far it is.
        places: Live places in it, and one for each prepared branch that needs it; of one that is
            not live yet, those that were copied.
        record_file: Journal file with its latest PAGE record; 0 without one.
    """

    page_id: int
    salt: int
    size_bytes: int
    state: PageState
    places: int
    record_file: int


class ExtentFacts(NamedTuple):
    """What a queue has in a page.

    Attributes:
        page_id: The page.
        first: Lowest sequence that it had there when the journal named them.
        last: Highest one.
        places: Live ones.
        is_open: They stand in the queue's ring.
    """

    page_id: int
    first: int
    last: int
    places: int
    is_open: bool
