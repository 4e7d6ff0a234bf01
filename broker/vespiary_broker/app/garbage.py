"""How the garbage collector of Python is run, so that no single collection takes long.

Owns the collector's thresholds, and what is kept from its sight. A collection looks at all objects
of its generation at once, which takes about 0.5 microseconds each, and everybody waits: with 20,000
subscriptions a full one takes 0.2 to 0.4 s. So what has lived through the two young generations,
some 15,000 objects at a time, is frozen: no collection looks at it again, and reference counting
frees it. Frozen cycles that are no longer used are found only by a full collection. One is due when
memory has doubled since the last one and has grown by at least `GROWTH_BLOCKS`, so memory is
bounded and full collections are rare. What clients begin and end leaves no cycles
(tests/unit/vespiary_broker/server/test_reference_cycles.py), so one comes only when what lives has
grown that much. Must never touch what the plain path makes: it makes no cycles, so collections are
rare there.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable
from typing import Final

THRESHOLDS: Final = (5_000, 1, 1_000_000)
"""New objects before a collection of the first generation; collections of the first before one of
the second, which has up to 15,000 objects then; the third is empty and is not collected."""
GROWTH_BLOCKS: Final = 2_000_000
"""Least growth of memory, in blocks of Python's allocator, before all is collected: some 150 MB,
or more than 30,000 MQTT subscriptions."""

log = logging.getLogger(__name__)


class Garbage:
    """Runs the collector for as long as a broker is ready.

    Args:
        soon: Calls something in the loop's next turn; called from any thread.
        blocks: Tells how many blocks of memory Python's allocator has given out.
    """

    __slots__ = ("_blocks", "_due_blocks", "_is_due", "_soon")

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self._soon = soon
        self._blocks = blocks
        self._due_blocks = 0
        self._is_due = False

    def start(self) -> None:
        """Freeze what the start has made, and watch collections from now on."""
        # Without a collection, which would take 30 ms now: imports leave little to collect.
        gc.freeze()
        self._plan()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Watch no more; does nothing if `start` was not called."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] != 1:
            return
        gc.freeze()
        if not self._is_due and self._blocks() >= self._due_blocks:
            self._is_due = True
            self._soon(self._collect_all)  # a collection begins none

    def _collect_all(self) -> None:
        if self._on_collection not in gc.callbacks:
            return
        began_s = time.thread_time()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._plan()
        took_ms = 1000 * (time.thread_time() - began_s)
        log.info("memory has grown: looked for garbage found=%d ms=%.0f", found, took_ms)

    def _plan(self) -> None:
        self._is_due = False
        blocks = self._blocks()
        self._due_blocks = blocks + max(blocks, GROWTH_BLOCKS)
