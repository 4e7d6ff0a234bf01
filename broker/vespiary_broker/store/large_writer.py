"""Writing one large body: taken in as it arrives, written by a thread, flushed before its use.

Owns one file until it is finished or given up, and the bytes that wait to be written, which are
bounded by the caller's obedience to `is_full`. Must never block the event loop, and never return a
reference to bytes that are not flushed. Made by `LargeMessages.begin`; called by the server.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from vespiary_broker.store.disk import DiskFile
from vespiary_codec.checksum import crc32c
from vespiary_native.abc import LargeBody
from vespiary_spec.errors import DiskFull, NativeError, StorageError, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.store.large_messages import LargeMessages

BACKLOG_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes that may wait for the disk before the sender is not read any more."""
_LOOK_BYTES: Final = 16 * 1024 * 1024
"""Bytes between two looks at the space that is left."""

log = logging.getLogger(__name__)


class LargeWriter:
    """One body on its way to the disk. Owner: the event loop, through its connection.

    Invariant: one job at a time touches the file; the loop never does.

    Args:
        store: The store.
        large_id: The body's id.

    Attributes:
        size_bytes: Bytes taken in.
        on_room: Called when `is_full` ends.
        on_failed: Called when a write has failed, once.
    """

    def __init__(self, store: LargeMessages, large_id: int) -> None:
        self.large_id = large_id
        self.size_bytes = 0
        self.on_room: Callable[[], None] = lambda: None
        self.on_failed: Callable[[VespiaryError], None] = lambda _: None
        self._store = store
        self._path = store.path(large_id)
        self._file: DiskFile | None = None
        self._is_made = False
        self._written = 0
        self._crc = 0
        self._look_at = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._job: asyncio.Future[None] | None = None
        self._failure: VespiaryError | None = None
        self._is_over = False

    @property
    def is_full(self) -> bool:
        """Whether enough waits for the disk: no more should be read from the sender."""
        return self._pending_bytes >= BACKLOG_BYTES_MAX

    def put(self, data: bytes) -> None:
        """Take in the next bytes of the body."""
        if self._is_over or self._failure is not None:
            return
        self.size_bytes += len(data)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._job is None:
            self._start()

    def _start(self) -> None:
        chunks, self._pending = self._pending, []
        loop = asyncio.get_running_loop()
        self._job = loop.run_in_executor(self._store.executor, self._write, chunks)
        self._job.add_done_callback(lambda job: self._wrote(job, sum(map(len, chunks))))

    def _wrote(self, job: asyncio.Future[None], size_bytes: int) -> None:
        """Go on after a job: write what came meanwhile, or tell that something failed."""
        self._job = None
        was_full = self.is_full
        self._pending_bytes -= size_bytes
        error = job.exception()
        if error is not None and self._failure is None:
            self._failure = _explain(error)
            self._pending.clear()
            self._pending_bytes = 0
            if not self._is_over:
                self.on_failed(self._failure)
        elif self._pending:
            self._start()
        if was_full and not self.is_full and not self._is_over:
            self.on_room()

    def _write(self, chunks: list[bytes]) -> None:
        """Write bytes behind those before; blocks."""
        if self._file is None:
            self._is_made = True
            self._file = self._store.disk.create(self._path, is_direct=False)
        if self._written >= self._look_at:
            self._look_at = self._written + _LOOK_BYTES
            self._check_space()
        for chunk in chunks:
            self._file.write(memoryview(chunk), self._written)
            self._crc = crc32c(chunk, self._crc)
            self._written += len(chunk)

    def _check_space(self) -> None:
        options = self._store.options
        usage = self._store.disk.usage(options.directory)
        limits = options.limits
        if limits.min_free_bytes >= 0:
            is_short = usage.free < limits.min_free_bytes
        else:
            used_percent = 100 * (usage.total - usage.free) / max(usage.total, 1)
            is_short = limits.max_usage_percent < 100 and used_percent > limits.max_usage_percent
        if is_short:
            raise DiskFull("the disk for large messages is full", cure=_LATER)

    async def finish(self, *, is_persistent: bool) -> LargeBody:
        """End the body.

        Args:
            is_persistent: Whether the message has to survive a crash.

        Returns:
            What refers to it.

        Raises:
            StorageError: A write or flush failed; nothing is left of the body.
            DiskFull: There is no room for it; nothing is left of it.

        Durability: on return a body that has to survive does, its name included; only now may it
            be referred to.
        """
        while self._job is not None:
            await asyncio.wait([self._job])
            await asyncio.sleep(0)  # its callback may have started the next one
        if self._failure is None:
            try:
                await self._store.in_thread(lambda: self._complete(is_persistent=is_persistent))
            except VespiaryError as error:
                self._failure = _explain(error)
        if self._failure is not None:
            self.discard()
            raise self._failure
        self._is_over = True
        self._store.ended(self.size_bytes)
        return LargeBody(self.large_id, self.size_bytes, self._crc)

    def _complete(self, *, is_persistent: bool) -> None:
        """Flush and close the file, and flush its name; blocks."""
        file, store = self._file, self._store
        if file is None:  # an empty body: its file exists all the same
            self._is_made = True
            file = self._file = store.disk.create(self._path, is_direct=False)
        is_flushed = is_persistent and store.options.is_flushed
        if is_flushed:
            file.flush()
        self._file = None
        file.close()
        if is_flushed:
            store.disk.flush_folder(store.options.directory)

    def discard(self) -> None:
        """Give the body up: its file goes, now or after the job that is under way."""
        if self._is_over:
            return
        self._is_over = True
        self._pending.clear()
        self._store.ended(None)
        task = asyncio.ensure_future(self._throw_away())
        self._store.track(task)

    async def _throw_away(self) -> None:
        while self._job is not None:
            await asyncio.wait([self._job])
            await asyncio.sleep(0)
        await self._store.in_thread(self._drop)

    def _drop(self) -> None:
        """Close and remove the file; blocks."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
            if self._is_made:
                self._store.disk.remove(self._path)
        except NativeError as error:
            if error.errno != errno.ENOENT:
                log.warning("large message not removed reason=%r", str(error))


_LATER: Final = "send it again when there is room"


def _explain(error: BaseException) -> VespiaryError:
    """Return what a sender is told of a failure; paths and the rest are for the log."""
    if isinstance(error, NativeError):
        log.error("large message not stored reason=%r", str(error))
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull("the disk for large messages is full", cure=_LATER)
        return StorageError("the body of the message could not be stored", cure="send it again")
    if isinstance(error, VespiaryError):
        return error
    log.error("large message not stored", exc_info=error)
    return StorageError("the body of the message could not be stored; the broker's log says why")
