"""The sketch of a page, by C or by its twin.

Owns the choice (see `loader`), and the way of a page's memory into C. Must never hold the
interpreter's lock while C works: paging's thread calls this beside the event loop. Called by the
store when it writes a page, and by the tool that verifies pages.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Protocol

from vespiary_codec.journal.page_sketch import SKETCH_BYTES_MAX
from vespiary_native import loader
from vespiary_native.values_pages import PageView


class PageMemory(Protocol):
    """A part of a page as it stands in memory."""

    @property
    def data(self) -> memoryview:
        """Its bytes."""

    @property
    def offset(self) -> int:
        """Where it stands in the file."""


def page_sketch(parts: Sequence[PageMemory], room: int = SKETCH_BYTES_MAX) -> bytes:
    """Return the sketch of a page that is closed (journal-format §7.4).

    Args:
        parts: All of the file behind its header, in order; blocks are not cut, and the last part
            is the footer.
        room: How long the sketch may be, in bytes.

    Returns:
        The sketch; empty: there is none for such a page, or no room for one.

    Raises:
        ValueError: The parts are no page.
        MemoryError: There is no memory.
    """
    if not loader.is_native():
        from vespiary_native.twin.page_sketch import page_sketch as twin_sketch

        return twin_sketch([PageView(part.data, part.offset) for part in parts], room)
    ffi = loader.ffi
    views = [ffi.from_buffer(part.data) for part in parts]
    array = ffi.new("vespiary_page_part[]", len(parts))
    for index, (view, part) in enumerate(zip(views, parts, strict=True)):
        array[index].memory = int(ffi.cast("uintptr_t", view))
        array[index].offset = part.offset
        array[index].length = len(part.data)
    out = ffi.new("uint8_t[]", max(room, 1))
    length = loader.lib.vespiary_page_sketch(array, len(parts), out, max(room, 0))
    if length == -errno.ENOMEM:
        raise MemoryError("no memory for the sketch of a page")
    if length < 0:
        raise ValueError("the parts are no page")
    return bytes(ffi.buffer(out, length))
