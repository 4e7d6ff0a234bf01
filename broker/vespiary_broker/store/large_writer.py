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
        on_full: Called when the disk is full: True drops the body, False lets it wait for room
            with what was written; what it raises is the failure.
        is_dropped: Whether the body was given up for a full disk; bytes are taken and forgotten.
    """

    def __init__(self, store: LargeMessages, large_id: int) -> None:
        self.large_id = large_id
        self.size_bytes = 0
        self.on_room: Callable[[], None] = lambda: None
        self.on_failed: Callable[[VespiaryError], None] = lambda _: None
        self.on_full: Callable[[DiskFull], bool] = _refuse
        self.is_dropped = False
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
        self._is_waiting = False  # for room
        self._idle: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether enough waits for the disk: no more should be read from the sender."""
        return self._is_waiting or self._pending_bytes >= BACKLOG_BYTES_MAX

    def put(self, data: bytes) -> None:
        """Take in the next bytes of the body."""
        if self.is_dropped:
            self.size_bytes += len(data)
            return
        if self._is_over or self._failure is not None:
            return
        self.size_bytes += len(data)
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._job is None and not self._is_waiting:
            self._start()

    def try_again(self) -> None:
        """Write what waits for room."""
        if self._job is None and not self._is_over:
            self._start()

    def _start(self) -> None:
        chunks, self._pending = self._pending, []
        size_bytes = sum(map(len, chunks))
        loop = asyncio.get_running_loop()
        self._job = loop.run_in_executor(self._store.executor, self._write, chunks)
        self._job.add_done_callback(lambda job: self._wrote(job, chunks, size_bytes))

    def _wrote(self, job: asyncio.Future[None], left: list[bytes], size_bytes: int) -> None:
        """Go on after a job: write what came meanwhile, wait for room, or tell what failed."""
        self._job = None
        was_full = self.is_full
        self._pending_bytes -= size_bytes - sum(map(len, left))
        error = job.exception()
        full = None if error is None else _full_of(error)
        if self._is_over:
            pass
        elif full is not None:
            self._pending[:0] = left
            self._meet_full(full)
        elif error is not None:
            self._fail(_explain(error))
        else:
            self._is_waiting = False
            self._store.wrote()
            if self._pending:
                self._start()
        if was_full and not self.is_full and (self.is_dropped or not self._is_over):
            self.on_room()  # what is dropped is read to its end as well
        if self._idle is not None and self._is_idle:
            self._idle.set_result(None)
            self._idle = None

    def _meet_full(self, full: DiskFull) -> None:
        """Do what the owner says of a full disk; who waits was asked before."""
        self._store.note_full(full)
        try:
            if self._is_waiting or not self.on_full(full):
                self._is_waiting = True
                self._store.wait_for_room(self)
                return
        except VespiaryError as error:
            self._fail(error)
            return
        self.is_dropped = True
        self.discard()

    def _fail(self, error: VespiaryError) -> None:
        self._failure = error
        self._is_waiting = False
        self._pending.clear()
        self._pending_bytes = 0
        self.on_failed(error)

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is under way, and nothing waits."""
        return self._job is None and (self._is_over or not self._is_waiting)

    def _write(self, chunks: list[bytes]) -> None:
        """Write bytes behind those before, and take them off the list; blocks."""
        if self._file is None:
            self._is_made = True
            self._file = self._store.disk.create(self._path, is_direct=False)
        if self._written >= self._look_at:
            self._check_space()
            self._look_at = self._written + _LOOK_BYTES
        while chunks:
            self._file.write(memoryview(chunks[0]), self._written)
            self._crc = crc32c(chunks[0], self._crc)
            self._written += len(chunks[0])
            del chunks[0]

    def _check_space(self) -> None:
        options = self._store.options
        usage = self._store.disk.usage(options.directory)
        limits = options.limits
        if limits.min_free_bytes >= 0:
            if usage.free < limits.min_free_bytes:
                raise DiskFull(
                    _FULL,
                    measured=f"{usage.free} bytes free",
                    allowed=f"at least {limits.min_free_bytes} (min-disk-free)",
                    cure=_LATER,
                )
            return
        used_percent = 100 * (usage.total - usage.free) / max(usage.total, 1)
        if limits.max_usage_percent < 100 and used_percent > limits.max_usage_percent:
            raise DiskFull(
                _FULL,
                measured=f"{used_percent:.0f} % used",
                allowed=f"at most {limits.max_usage_percent} % (max-disk-usage)",
                cure=_LATER,
            )

    async def finish(self, *, is_persistent: bool) -> LargeBody | None:
        """End the body; a full disk may have it wait.

        Args:
            is_persistent: Whether the message has to survive a crash.

        Returns:
            What refers to it; None if it was dropped, or given up meanwhile.

        Raises:
            StorageError: A write or flush failed; nothing is left of the body.
            DiskFull: There is no room for it; nothing is left of it.

        Durability: on return a body that has to survive does, its name included; only now may it
            be referred to.
        """
        if not self._is_made and self.size_bytes == 0:
            self.try_again()  # an empty body has a file as well
        await self._until_idle()
        if self._is_over:
            return None
        if self._failure is None:
            try:
                await self._store.in_thread(lambda: self._complete(is_persistent=is_persistent))
            except VespiaryError as error:
                self._failure = _explain(error)
        if self._is_over:
            return None  # it was given up during the flush, and its file goes
        if self._failure is not None:
            self.discard()
            raise self._failure
        self._end()
        self._store.ended(self.size_bytes)
        return LargeBody(self.large_id, self.size_bytes, self._crc)

    def _complete(self, *, is_persistent: bool) -> None:
        """Flush and close the file, and flush its name; blocks."""
        file, store = self._file, self._store
        assert file is not None
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
        self._end()
        self._is_waiting = False
        self._pending.clear()
        self._pending_bytes = 0
        self._store.ended(None)
        self._store.forget(self)
        if self._idle is not None and self._is_idle:
            self._idle.set_result(None)
            self._idle = None
        task = asyncio.ensure_future(self._throw_away())
        self._store.track(task)

    def _end(self) -> None:
        """Be over, and let go of whom it has told so far, who may have this: a cycle."""
        self._is_over = True
        self.on_failed, self.on_full = lambda _: None, _refuse

    async def _until_idle(self) -> None:
        """Wait until no job is under way, nor any to come."""
        while not self._is_idle:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def _throw_away(self) -> None:
        await self._until_idle()
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


_FULL: Final = "the disk for large messages is full"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def _refuse(full: DiskFull) -> bool:
    raise full


def _full_of(error: BaseException) -> DiskFull | None:
    """Return the error as that of a full disk; None if it is another."""
    if isinstance(error, NativeError) and error.errno in _NO_SPACE:
        return DiskFull(_FULL, cure=_LATER)
    return error if isinstance(error, DiskFull) else None


def _explain(error: BaseException) -> VespiaryError:
    """Return what a sender is told of a failure; paths and the rest are for the log."""
    if isinstance(error, NativeError):
        log.error("large message not stored reason=%r", str(error))
        if error.errno in _NO_SPACE:
            return DiskFull(_FULL, cure=_LATER)
        return StorageError("the body of the message could not be stored", cure="send it again")
    if isinstance(error, VespiaryError):
        return error
    log.error("large message not stored", exc_info=error)
    return StorageError("the body of the message could not be stored; the broker's log says why")
