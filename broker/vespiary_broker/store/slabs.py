"""Reading slabs of the journal back into the image, for queues whose messages were evicted.

Owns: the reads in flight and the descriptors for them. Must never write, and never hand bytes to
the core that do not verify: a disk that rots under a running broker is found here. Event-loop code;
opening a file, which may block, goes to the journal's worker. Called by the engine, through
`MessageJournal.load_slab`, when `deliver` says ABSENT.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from vespiary_broker.store.disk import DiskFile
from vespiary_codec.journal.block import FIRST_OFFSET
from vespiary_native.abc import BlockVerifier, Core
from vespiary_native.abc_ring import NOT_TAKEN, Ring
from vespiary_spec.errors import CorruptRecord, NativeError, VespiaryError

logger = logging.getLogger(__name__)

LOADS_MAX = 8
HANDLES_MAX = 64
_BLOCKS_MAX = 65_536
_CLOSE_S = 30
_READ_TRIES = 1000
_READ_PAUSE_S = 0.001


class SlabLoader:
    """Loads slabs through the journal's ring. Owner: the event loop's thread.

    Invariant: every `load_begin` is followed by exactly one `load_done`, after the ring has given
    the read's completion: the memory is the kernel's until then.
    """

    def __init__(
        self,
        core: Core,
        ring: Ring,
        verify: BlockVerifier,
        *,
        open_file: Callable[[int], Awaitable[DiskFile]],
        salt_of: Callable[[int], int],
        slab_bytes: int,
    ) -> None:
        """Prepare.

        Args:
            core: Who owns the memory.
            ring: Where reads are submitted; its completions come back through `on_read`.
            verify: The walk over valid blocks.
            open_file: Opens a file of the journal for reading, off the loop.
            salt_of: Salt of a file.
            slab_bytes: The core's unit of memory.
        """
        self._core = core
        self._ring = ring
        self._verify = verify
        self._open_file = open_file
        self._salt_of = salt_of
        self._slab_bytes = slab_bytes
        self._limit = asyncio.Semaphore(LOADS_MAX)
        self._loads: dict[tuple[int, int], asyncio.Task[bool]] = {}
        self._reads: dict[int, asyncio.Future[int]] = {}
        self._handles: OrderedDict[int, DiskFile] = OrderedDict()
        self._bad: dict[tuple[int, int], VespiaryError] = {}
        self._next_token = 1
        self.loaded = 0

    async def load(self, file_id: int, slab: int) -> bool:
        """Bring one slab into the image; calls for one that is on its way wait for the same read.

        Args:
            file_id: The file.
            slab: Index of the slab in it.

        Returns:
            Whether it was read; False if the core has no room or has it already. The queues that
            wait for it are ready either way.

        Raises:
            CorruptRecord: What stands there does not verify; nothing was delivered of it, and the
                same error comes back without another read.
            NativeError: The read failed.
        """
        if not self._is_needed(file_id):
            return False
        key = (file_id, slab)
        if key in self._bad:
            raise self._bad[key]
        task = self._loads.get(key)
        if task is None:
            # A task of its own: a caller that goes away must not take the kernel's memory along.
            task = asyncio.get_running_loop().create_task(
                self._load(file_id, slab), name=f"load-slab-{file_id}-{slab}"
            )
            self._loads[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _is_needed(self, file_id: int) -> bool:
        """Whether anything in the file is live: else it may be on its way out of the journal."""
        try:
            return self._core.live_places(file_id) > 0
        except ValueError:
            return False  # it is gone

    def _ended(self, key: tuple[int, int], task: asyncio.Task[bool]) -> None:
        del self._loads[key]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, CorruptRecord):
            self._bad[key] = error

    async def _load(self, file_id: int, slab: int) -> bool:
        async with self._limit:
            handle = await self._handle(file_id)
            begun = self._core.load_begin(file_id, slab)
            if begun is None:
                return False
            address, length, offset = begun
            is_good = False
            try:
                count = await self._read(handle, address, length, offset)
                self._check(handle, file_id, address, length, offset, count)
                is_good = True
                self.loaded += 1
            finally:
                self._core.load_done(file_id, slab, good=is_good)
            return True

    async def _read(self, handle: DiskFile, address: int, length: int, offset: int) -> int:
        for attempt in range(_READ_TRIES):
            if attempt:
                await asyncio.sleep(_READ_PAUSE_S)
            token = self._next_token
            self._next_token += 1
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._ring.submit_read(handle.fileno(), address, length, offset, token)
            self._reads[token] = future
            result = await future
            if result != NOT_TAKEN:
                return result
        return NOT_TAKEN

    def on_read(self, token: int, result: int) -> None:
        """Take the completion of a read from the ring."""
        self._reads.pop(token).set_result(result)

    def _check(
        self, handle: DiskFile, file_id: int, address: int, length: int, offset: int, count: int
    ) -> None:
        """Refuse bytes that are not whole, valid blocks up to the slab's end or the file's seal."""
        if count < 0:
            raise NativeError(
                "cannot read the journal back", -count, where=f"{handle.path}:{offset}"
            )
        memory = (ctypes.c_ubyte * length).from_address(address)
        start = max(offset, FIRST_OFFSET)
        view = memoryview(memory).cast("B")[start - offset : count]
        blocks = self._verify(view, start, self._salt_of(file_id), file_id, _BLOCKS_MAX)
        end = blocks[-1].offset + blocks[-1].length if blocks else start
        # A file that grows ends with its seal; one that was preallocated goes on behind it.
        is_complete = count == length and end == offset + length
        if is_complete or (blocks and blocks[-1].is_seal):
            return
        raise CorruptRecord(
            "a journal file that was good when it was written does not verify any more",
            where=f"{handle.path}:{end}",
            measured=f"{count} of {length} bytes read, {len(blocks)} blocks valid",
            allowed="valid blocks up to the end of the slab",
            cure="look at the disk and the kernel log; keep a copy of the folder, then restore it",
        )

    # --- descriptors ------------------------------------------------------------------------------

    async def _handle(self, file_id: int) -> DiskFile:
        handle = self._handles.pop(file_id, None)
        if handle is None:
            handle = await self._open_file(file_id)
            other = self._handles.pop(file_id, None)
            if other is not None:  # opened twice at once: a read may be under way through that one
                handle.close()
                handle = other
        self._handles[file_id] = handle
        busy = {key[0] for key in self._loads}
        for old in [name for name in self._handles if name not in busy]:
            if len(self._handles) <= HANDLES_MAX:
                break
            self._handles.pop(old).close()
        return handle

    def is_busy(self, file_id: int) -> bool:
        """Whether a slab of the file is being read."""
        return any(key[0] == file_id for key in self._loads)

    def forget(self, file_id: int) -> None:
        """Close the descriptor of a file that leaves the journal; it must not be busy."""
        handle = self._handles.pop(file_id, None)
        if handle is not None:
            handle.close()
        for key in [key for key in self._bad if key[0] == file_id]:
            del self._bad[key]

    async def close(self) -> None:
        """Wait for the reads in flight, then close all descriptors."""
        if self._loads:
            # A ring that broke answers nothing: its own close waits for the kernel then.
            _, stuck = await asyncio.wait(list(self._loads.values()), timeout=_CLOSE_S)
            if stuck:
                logger.error("%d reads of the journal did not end in %d s", len(stuck), _CLOSE_S)
        while self._handles:
            self._handles.popitem()[1].close()
