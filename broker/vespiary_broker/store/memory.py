"""`NullJournal`: the journal's interface without a disk (`persistence-enabled: false`, class D0).

Owns: a core and files that exist only as numbers. Everything counts as durable as soon as it is
sealed, and all is lost at the end. Must never touch a disk. Called as `MessageJournal` is.

With it the engine opens its queues as not durable, so that messages live in the core's volatile
memory. What still goes through the image (commits, checkpoints of the engine) is acknowledged at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from vespiary_broker.store.counters import (
    FLUSH_BOUNDS_US,
    CompactionCounts,
    FileCounts,
    JournalStatistics,
)
from vespiary_broker.store.file_uses import FileUse
from vespiary_broker.store.options import FILES_AHEAD_MIN, Durability, JournalOptions
from vespiary_broker.store.retention import Retention
from vespiary_native.abc import Core, NoRoom
from vespiary_native.choice import open_core
from vespiary_spec import limits
from vespiary_spec.errors import JournalError, WriterFailed

ENGINE = "MEMORY"
_SLABS_KEPT = 6
"""Slabs that files of numbers never take: an evicted slab could not be read back."""


class NullJournal:
    """A journal in memory. Owner: the event loop's thread.

    Attributes:
        core: The core that the engine stages into.
        engine_name: MEMORY.
        fallback_reason: None.
        retention: None: there are no files to keep.
        durability: D0.
        on_durable: Called, never from within `kick`, when more counts as durable.
        on_space: Called when there is room again.
        on_blocked: Never called: there is no disk that could be full.
        on_failed: Never called.
    """

    engine_name = ENGINE
    fallback_reason: str | None = None
    durability = Durability.D0
    failure: WriterFailed | None = None
    retention: Retention | None = None

    def __init__(self, options: JournalOptions, make_core: Callable[..., Core] = open_core) -> None:
        """Make an empty journal; must be called on the event loop.

        Args:
            options: Memory and limits are used.
            make_core: Makes the core.
        """
        self._loop = asyncio.get_running_loop()
        self._slab_bytes = options.slab_bytes
        self._files_max = max(options.slabs_max - _SLABS_KEPT, FILES_AHEAD_MIN)
        self.core = make_core(
            slab_bytes=options.slab_bytes,
            slabs_max=options.slabs_max,
            record_bytes_max=min(
                options.record_bytes_max, options.slab_bytes - 2 * limits.BLOCK_BYTES
            ),
        )
        self.core.start(1, 0, 0)
        self.on_durable: Callable[[], None] = lambda: None
        self.on_space: Callable[[], None] = lambda: None
        self.on_blocked: Callable[[], None] = lambda: None
        self.on_failed: Callable[[WriterFailed], None] = lambda _: None
        self._files: list[int] = []
        self._last_id = 0
        self._soon: asyncio.Handle | None = None
        self._writes = 0
        self._reclaimed = 0
        self._provide()

    @property
    def blocked(self) -> JournalError | None:
        """Why there is no room; None while there is."""
        if self.core.files_ahead():
            return None
        return JournalError(
            "the memory for messages is full",
            measured=f"{len(self._files)} slabs",
            allowed=f"{self._files_max} slabs",
            cure="consume messages or raise global-max-size",
        )

    def kick(self) -> None:
        """Count what is staged as durable, at the end of this turn of the loop."""
        if self._soon is None and self.core.has_unwritten():
            self._soon = self._loop.call_soon(self._confirm)

    def _confirm(self) -> None:
        self._soon = None
        self._flush()
        self.on_durable()

    def _flush(self) -> None:
        self.core.set_time(time.time_ns() // 1_000_000)
        try:
            while (request := self.core.seal_write()) is not None:
                self.core.write_done(request.sequence)
                self._writes += 1
        except NoRoom:
            pass  # an empty block, which nobody waits for
        self._reclaim()
        self._provide()

    def request_space(self) -> None:
        """Say that something found no room: look for room now."""
        self._reclaim()
        if self._provide():
            self._loop.call_soon(self.on_space)

    def _reclaim(self) -> None:
        """Forget files without live messages; nothing is read back, so the order is free."""
        current = self.core.current_file()
        for file_id in [number for number in self._files if number < current]:
            if not self.core.live_places(file_id):
                self.core.forget_file(file_id)
                self._files.remove(file_id)
                self._reclaimed += 1

    def _provide(self) -> bool:
        """Add files up to the limit; return whether any was added."""
        is_added = False
        while self.core.files_ahead() < FILES_AHEAD_MIN and len(self._files) < self._files_max:
            self._last_id += 1
            self.core.add_file(self._last_id, 0, self._slab_bytes)
            self._files.append(self._last_id)
            is_added = True
        # A slab for each file ahead, so that the core never drops one to find room.
        free = self.core.image_statistics().slabs_free
        self.core.grow(max(self.core.files_ahead() + 1 - free, 0))
        return is_added

    @property
    def is_writing(self) -> bool:
        """Whether a write is in flight: never."""
        return False

    async def wait_durable(self) -> None:
        """Return once everything staged so far counts as durable.

        Durability: none.
        """
        self._flush()
        self.on_durable()

    async def load_slab(self, file_id: int, slab: int) -> bool:
        """Refuse: nothing was written that could be read back.

        Raises:
            JournalError: Always.
        """
        raise JournalError(
            "a message in memory was evicted and there is no disk to read it from",
            where=f"file {file_id}, slab {slab}",
            cure="raise global-max-size, or switch persistence on",
        )

    async def close(self) -> None:
        """Forget everything."""
        if self._soon is not None:
            self._soon.cancel()

    def file_uses(self, after_id: int, limit: int) -> list[FileUse]:  # noqa: ARG002
        """Return nothing: there are no files."""
        return []

    def statistics(self) -> JournalStatistics:
        """Return the counters of this journal."""
        image = self.core.image_statistics()
        ahead = self.core.files_ahead()
        return JournalStatistics(
            engine=self.engine_name,
            fallback_reason=None,
            durability=self.durability,
            writes=self._writes,
            written_bytes=0,
            blocks=image.sequence_durable,
            records=image.records_added,
            payload_bytes=image.payload_bytes,
            flush_counts=(0,) * (len(FLUSH_BOUNDS_US) + 1),
            flush_sum_us=0,
            slab_loads=0,
            files=FileCounts(active=len(self._files), ahead=ahead, free=0, bytes_on_disk=0),
            files_made=0,
            preallocation_fallbacks=0,
            files_reclaimed=self._reclaimed,
            sequence_durable=image.sequence_durable,
            unwritten_bytes=image.unwritten_bytes,
            live_bytes=image.live_bytes,
            live_percent=100 * image.live_bytes / max(len(self._files) * self._slab_bytes, 1),
            compaction=CompactionCounts(),
            failed_reason=None,
            blocked_reason=str(self.blocked) if self.blocked else None,
        )
