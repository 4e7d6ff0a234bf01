"""Page files around a core: what the store's paging does, without a disk.

Owns `PageFiles` and what tests do with it. The bytes are checked by the codec, so that a core is
never its own witness. Used by the tests of the core.
"""

from __future__ import annotations

import ctypes

from vespiary_codec.journal.page import (
    PAGE_BIT,
    TRAILER_BYTES,
    PageIndex,
    check_footer,
    decode_footer,
    decode_trailer,
)
from vespiary_native.abc import Core, DeliverStatus
from vespiary_native.values_pages import PageFill
from vespiary_testkit.core_rig import CoreRig

PAGE_SALT = 0x5EED0FA9A6E5
EVERYTHING = 1 << 40


class PageFiles:
    """The page files that a core wrote, by page id."""

    def __init__(self) -> None:
        self.files: dict[int, bytes] = {}
        self.last_id = 0

    def open(self, core: Core, queue_ids: list[int], size_bytes: int = 1 << 20) -> int:
        """Begin a page; return its id."""
        self.last_id += 1
        core.page_open(self.last_id, PAGE_SALT + self.last_id, size_bytes, queue_ids)
        return self.last_id

    def fill(self, core: Core, page_id: int, queue_id: int, up_to: int = EVERYTHING) -> PageFill:
        """Copy all that waits in a queue."""
        return core.page_fill(page_id, queue_id, 0, up_to, EVERYTHING, EVERYTHING)

    def close(self, core: Core, page_id: int) -> bool:
        """Write the file as the store would; False if there is nothing in it."""
        pieces = core.page_close(page_id)
        data = bytearray(4096)
        for address, length, offset in pieces:
            assert offset == len(data), "pieces follow one another"
            assert not address % 4096
            data += ctypes.string_at(address, length)
        if pieces:
            self.files[page_id] = bytes(data)
            self.index(page_id)
        return bool(pieces)

    def move(
        self, core: Core, queue_ids: list[int], size_bytes: int = 1 << 20, up_to: int = EVERYTHING
    ) -> int:
        """Move all that waits in queues to a page; return its id."""
        page_id = self.open(core, queue_ids, size_bytes)
        for queue_id in queue_ids:
            self.fill(core, page_id, queue_id, up_to)
        assert self.close(core, page_id)
        assert core.page_commit(page_id) > 0
        return page_id

    def footer(self, page_id: int) -> bytes:
        """Return a page's footer, its checksums verified."""
        data = self.files[page_id]
        salt = PAGE_SALT + page_id
        trailer = decode_trailer(
            data[-TRAILER_BYTES:], page_id=page_id, salt=salt, size_bytes=len(data)
        )
        footer = data[trailer.footer_offset :]
        check_footer(footer, page_id=page_id, salt=salt)
        return footer

    def index(self, page_id: int) -> PageIndex:
        """Return a page's index."""
        return decode_footer(self.footer(page_id), page_id=page_id, salt=PAGE_SALT + page_id)

    def enter(self, core: Core, page_id: int, queue_id: int) -> int:
        """Have a queue's places of a page in its ring, and all its slabs in memory if possible."""
        return core.page_enter(page_id, queue_id, self.footer(page_id))

    def load(self, core: Core, file_id: int, slab: int) -> bool:
        """Load a slab of a page; False if there is no room."""
        reserved = core.load_begin(file_id, slab)
        if reserved is None:
            return False
        address, length, offset = reserved
        data = self.files[file_id ^ PAGE_BIT][offset : offset + length]
        ctypes.memmove(address, data, len(data))
        core.load_done(file_id, slab, good=True)
        return True


def publish(rig: CoreRig, number: int, size: int = 100, **named: object) -> None:
    """Publish messages, durable at once."""
    for n in range(number):
        rig.publish(n.to_bytes(4, "little") + bytes(size), **named)  # type: ignore[arg-type]
    rig.flush()


def drain(rig: CoreRig, pages: PageFiles, consumer: int, number: int = 1000) -> list[bytes]:
    """Deliver what a queue has, entering extents and loading slabs as they are wanted."""
    found: list[bytes] = []
    while True:
        frames = rig.deliver(consumer, number)
        found += frames
        status, count, more = rig.core.deliver(consumer, 0, 0)
        assert not count
        assert not more
        status, count, data = rig.core.deliver(consumer, 1, 1)
        if count:
            found.append(data[:-1])
        if status == DeliverStatus.PAGED:
            for queue_id, page_id in rig.core.page_wanted():
                assert pages.enter(rig.core, page_id, queue_id)
        elif status == DeliverStatus.ABSENT:
            file_id, slab = rig.core.absent_slab(consumer)
            if file_id & PAGE_BIT:
                assert pages.load(rig.core, file_id, slab)
            else:
                rig.load(consumer)
        elif status in (DeliverStatus.DRAINED, DeliverStatus.LIMIT) and not count:
            return found


def of_type(rig: CoreRig, type_: type) -> list[object]:
    """Return the journal's records of a kind."""
    every = [record for file_id in sorted(rig.files) for record in rig.records(file_id)]
    return [record for record in every if isinstance(record, type_)]
