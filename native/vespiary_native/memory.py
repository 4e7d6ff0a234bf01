"""`AlignedBuffer`: page-aligned memory that a ring may read and write with O_DIRECT.

Owns: one anonymous mapping per buffer. Never: needs the native part.
Called by: the store, for everything that is not the journal image (which C owns).
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import Self


class AlignedBuffer:
    """Zeroed memory at an address that is a multiple of 4096.

    Owner: whoever made it; not to be closed while a ring has a request on it.

    Attributes:
        size_bytes: As asked for.
        address: Of the first byte, for `Ring.submit_write` and `Ring.submit_read`.
    """

    def __init__(
        self, size_bytes: int, *, populate: bool = False, huge_pages: bool = False
    ) -> None:
        """Map the memory.

        Args:
            size_bytes: 1 or more; O_DIRECT wants a multiple of 4096.
            populate: Touch every page now, so that no page fault comes later.
            huge_pages: Advise huge pages, if the kernel has them; from 2 MiB on it then also aligns
                to them.

        Raises:
            ValueError: `size_bytes` is below 1.
            OSError: The memory can't be had (ENOMEM).
        """
        if size_bytes < 1:
            raise ValueError(f"buffer size {size_bytes} is out of range: allowed is 1 or more")
        # Advice has to come before the pages do, so populating is a write and not MAP_POPULATE.
        self._map = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge_pages:
            with suppress(OSError):  # EINVAL: a kernel without them; advice changes only the speed
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._view: memoryview | None = memoryview(self._map)
        if populate:
            for at in range(0, size_bytes, mmap.PAGESIZE):
                self._view[at] = 0
        self.size_bytes = size_bytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    @property
    def memoryview(self) -> memoryview:
        """The memory, writable.

        Raises:
            ValueError: The buffer is closed.
        """
        if self._view is None:
            raise ValueError("the buffer is closed")
        return self._view

    def close(self) -> None:
        """Unmap the memory; may be called again.

        Raises:
            BufferError: A view made from `memoryview` is still in use; nothing was freed.
        """
        if self._view is None:
            return
        self._view.release()
        try:
            self._map.close()
        except BufferError:
            self._view = memoryview(self._map)
            raise
        self._view = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
