"""A page in order of priority, by C or by its twin.

Owns the choice (see `loader`), and the way of a page's memory into C. Must never hold the
interpreter's lock while C works: paging's thread calls this beside the event loop. Called by the
store when it writes a page.

So that no second page need be in memory, the new one is made part by part.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vespiary_native import loader
from vespiary_native.memory import AlignedBuffer
from vespiary_native.page_sketch import PageMemory
from vespiary_native.values_pages import PageView


class ArrangedPage:
    """A page in order of priority. Owner: one thread.

    Attributes:
        sketched: What the page's sketch is to be made of: the parts as they are, and an index with
            the records in their new order.
    """

    def __init__(self, parts: Sequence[PageMemory], footer: AlignedBuffer, salt: int) -> None:
        self.sketched = [
            *(PageView(part.data, part.offset) for part in parts[:-1]),
            PageView(footer.memoryview, parts[-1].offset),
        ]
        self._parts = parts
        self._footer = footer
        self._salt = salt

    def pieces(self) -> Iterator[PageView]:
        """Yield all of the file behind its header, in order; the footer last.

        Once, and after `sketched` was used. A piece is good until the next one is asked for.
        """
        most = max(len(part.data) for part in self._parts[:-1])
        out = AlignedBuffer(most)
        make = _pieces_by_c if loader.is_native() else _pieces_by_twin
        for part in make(self._parts, self._footer, self._salt, out):
            yield PageView(out.memoryview[: len(part.data)], part.offset)
        yield PageView(self._footer.memoryview, self._parts[-1].offset)


class _Views(NamedTuple):
    """Parts of a page for C; `kept` holds their memory."""

    array: Any
    kept: list[Any]


def _views(parts: Sequence[PageMemory]) -> _Views:
    ffi = loader.ffi
    kept = [ffi.from_buffer(part.data) for part in parts]
    array = ffi.new("vespiary_page_part[]", len(parts))
    for index, (view, part) in enumerate(zip(kept, parts, strict=True)):
        array[index].memory = int(ffi.cast("uintptr_t", view))
        array[index].offset = part.offset
        array[index].length = len(part.data)
    return _Views(array, kept)


def page_arrange(parts: Sequence[PageMemory], salt: int) -> ArrangedPage | None:
    """Return a page with its messages of the highest priority first (journal-format §7).

    Whoever looks for messages of one priority then finds them next to each other, and need not read
    the others. Within a priority they stand as before; the page is as long as it was.

    Args:
        parts: All of the file behind its header, in order; blocks are not cut, and the last part
            is the footer. They must not change until the new page is made.
        salt: The seed of its checksums.

    Returns:
        None: it is in this order already, or does not fit into its length.

    Raises:
        ValueError: The parts are no page.
        MemoryError: There is no memory.
    """
    footer_bytes = len(parts[-1].data) if parts else 0
    if not footer_bytes:
        raise ValueError("the parts are no page")
    footer = AlignedBuffer(footer_bytes)
    if loader.is_native():
        ffi = loader.ffi
        views = _views(parts)
        out = ffi.cast("uint8_t *", footer.address)
        result = loader.lib.vespiary_page_arrange(views.array, len(parts), out)
        if result == -errno.ENOMEM:
            raise MemoryError("no memory to put a page in order")
        if result < 0:
            raise ValueError("the parts are no page")
        return ArrangedPage(parts, footer, salt) if result else None
    from vespiary_native.twin.page_arrange import arranged_footer

    arranged = arranged_footer([PageView(part.data, part.offset) for part in parts])
    if arranged is None:
        return None
    footer.memoryview[:] = arranged
    return ArrangedPage(parts, footer, salt)


def _pieces_by_c(
    parts: Sequence[PageMemory], footer: AlignedBuffer, salt: int, out: AlignedBuffer
) -> Iterator[PageMemory]:
    ffi = loader.ffi
    views = _views(parts)
    cursor = ffi.new("vespiary_page_cursor *")
    into = ffi.cast("uint8_t *", out.address)
    end = ffi.cast("uint8_t *", footer.address)
    for part in parts[:-1]:
        bad = loader.lib.vespiary_page_arrange_part(
            views.array, len(parts), salt, end, cursor, into
        )
        assert not bad, "the page was looked at before"
        yield part


def _pieces_by_twin(
    parts: Sequence[PageMemory], footer: AlignedBuffer, salt: int, out: AlignedBuffer
) -> Iterator[PageMemory]:
    from vespiary_native.twin.page_arrange import Arranging

    arranging = Arranging(
        [PageView(part.data, part.offset) for part in parts], footer.memoryview, salt
    )
    for part in parts[:-1]:
        out.memoryview[: len(part.data)] = arranging.next_part()
        yield part
