"""Sketches of pages in memory: what can be told of a page without reading it.

Owns which of them are kept, within a fixed bound. Must never read a file, and never say anything of
a page whose sketch it has not. Filled by `page_files` in paging's thread, asked on the event loop.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from vespiary_codec.journal.page_sketch import PageSketch, decode_page_sketch

SKETCHES_BYTES_MAX: Final = 4 * 1024 * 1024
"""Some 5000 sketches, of 50 GiB of pages; those of others are read again when they are needed."""
_BYTES_EACH: Final = 120
"""What the table takes for one, beside its bytes."""


class PageSketches:
    """See the module's docstring. Any thread.

    Args:
        bytes_max: What they may take.
    """

    def __init__(self, bytes_max: int = SKETCHES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()
        self._sketches: OrderedDict[int, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sketches)

    def note(self, page_id: int, sketch: bytes) -> None:
        """Keep the sketch of a page.

        Args:
            page_id: The page.
            sketch: Out of its header, whose checksum was right; empty: it has none.
        """
        with self._lock:
            self._drop(page_id)
            self._sketches[page_id] = sketch
            self._bytes += len(sketch) + _BYTES_EACH
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._sketches)))

    def knows(self, page_id: int) -> bool:
        """Whether all that is to be known of a page is here."""
        return page_id in self._sketches

    def get(self, page_id: int) -> PageSketch | None:
        """Return the sketch of a page; None: nothing is known, all may be in it."""
        with self._lock:
            data = self._sketches.get(page_id)
        return decode_page_sketch(data) if data else None

    def forget(self, page_id: int) -> None:
        """Drop the sketch of a page that is done."""
        with self._lock:
            self._drop(page_id)

    def _drop(self, page_id: int) -> None:
        sketch = self._sketches.pop(page_id, None)
        if sketch is not None:
            self._bytes -= len(sketch) + _BYTES_EACH
