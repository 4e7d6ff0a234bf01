"""Memory for the journal's image, made ahead of need in a thread of its own.

Owns: the thread `memory_0` and what it is making. Must never touch memory on the event loop: that
was the largest loss measured while messages come in (docs/decisions/0004-memory-of-the-image.md).
Owner: the thread of the event loop. Called by `writer`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from vespiary_native.abc import Core

logger = logging.getLogger(__name__)

SLABS_FREE_MIN = 6
"""Free slabs wanted while messages come in: 12 MiB, some 10 000 messages of 1 KiB ahead of need."""


def _yield_processor() -> None:
    """Let this thread run when nothing else wants the processor."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class SlabMaker:
    """Makes slabs for a core.

    Args:
        core: Who takes them.
        slab_bytes: Their size.
        loop: The event loop.
    """

    def __init__(self, core: Core, slab_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._slab_bytes = slab_bytes
        self._loop = loop
        self._written_bytes = 0
        self._coming = 0
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix="memory", initializer=_yield_processor
        )

    def written(self, length: int) -> None:
        """Look after half a slab was written: make memory where little is free."""
        self._written_bytes += length
        if self._written_bytes * 2 < self._slab_bytes:
            return
        self._written_bytes = 0
        image = self._core.image_statistics()
        wanted = SLABS_FREE_MIN - image.slabs_free - self._coming
        for _ in range(min(wanted, image.slabs_max - image.slabs_total - self._coming)):
            self._coming += 1
            made = self._loop.run_in_executor(self._executor, self._core.make_slab)
            made.add_done_callback(self._on_made)

    def _on_made(self, made: asyncio.Future[object]) -> None:
        self._coming -= 1
        if made.cancelled():
            return
        error = made.exception()
        if error is None:
            self._core.add_slab(made.result())
        else:  # not a fault of the journal: slabs are evicted instead
            logger.warning("no memory for the journal's image: %s", error)

    def close(self) -> None:
        """Wait for what is being made."""
        self._executor.shutdown(wait=True)
