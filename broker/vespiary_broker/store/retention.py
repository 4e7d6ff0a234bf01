"""Keeping copies of full journal files and large bodies: beside the journal, never in its way.

Owns: the task `journal-retention` and the set of files that have a copy. A file is not freed, and
a body not removed, before its copy counts; a folder that is full or gone makes copies wait and the
files with them, and says so, and stops nothing else. Must never fail the journal, and never use its
worker thread: the disk of the copies may be slow or hang. Made by `writer`; `keeper` and
`large_messages` ask and offer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from vespiary_broker.store.counters import RetentionStatistics
from vespiary_broker.store.files import StoredFile
from vespiary_broker.store.retention_folder import RetentionFolder
from vespiary_spec.errors import CorruptRecord, VespiaryError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BODIES_AT_A_TIME = 16
"""Then a journal file that waits gets its turn."""


class Retention:
    """Makes copies. Owner: its task, on the event loop.

    Args:
        folder: The folder; used in the executor alone.
        journal_id: The journal's id.
        executor: A thread of its own.
        retry_s: Seconds between two tries while copies can't be made.
        on_copied: Called when a file may be freed.
    """

    def __init__(
        self,
        folder: RetentionFolder,
        journal_id: bytes,
        executor: Executor,
        *,
        retry_s: float,
        on_copied: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._journal_id = journal_id
        self._executor = executor
        self._retry_s = retry_s
        self._on_copied = on_copied
        self._waiting: dict[int, StoredFile] = {}
        self._bodies: dict[int, tuple[Path, Callable[[], None]]] = {}
        self._done: set[int] = set()
        self._is_surveyed = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._statistics = RetentionStatistics()

    def is_waiting(self, file_id: int) -> bool:
        """Return whether a file must stay because its copy is not there yet."""
        return file_id not in self._done

    def offer(self, files: Iterable[StoredFile]) -> None:
        """Take files that are sealed and durable; those that have a copy are passed over."""
        for file in files:
            if file.file_id not in self._done and file.file_id not in self._waiting:
                self._waiting[file.file_id] = replace(file, handle=None)
                self._wake.set()

    def offer_body(self, large_id: int, path: Path, on_kept: Callable[[], None]) -> None:
        """Take a body that nobody needs any more.

        Args:
            large_id: Its id.
            path: Its file, which stays until `on_kept` was called, once.
            on_kept: Called when the file may be removed: its copy survives a power cut.
        """
        self._bodies[large_id] = (path, on_kept)
        self._wake.set()

    def forget_file(self, file_id: int) -> None:
        """Forget a file that was freed."""
        self._done.discard(file_id)

    def statistics(self) -> RetentionStatistics:
        """Return the counters."""
        return replace(
            self._statistics,
            files_waiting=len(self._waiting),
            bodies_waiting=len(self._bodies),
        )

    def start(self) -> None:
        """Begin to make copies."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="journal-retention")

    async def close(self) -> None:
        """Stop; a copy that is being made is finished first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._executor.shutdown(wait=True)

    async def _run(self) -> None:
        """Make copies and remove old ones until cancelled."""
        while True:
            try:
                await self._round()
            except (VespiaryError, OSError) as error:
                self._set_blocked(str(error))
                await asyncio.sleep(self._retry_s)
                continue
            except Exception as error:
                # Without this task no file is freed any more, and nobody would be told why.
                self._set_blocked(f"a defect ({type(error).__name__}: {error})", error)
                await asyncio.sleep(self._retry_s)
                continue
            self._set_blocked(None)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._folder.prune_period_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _round(self) -> None:
        if not self._is_surveyed:
            self._done |= await self._in_thread(partial(self._folder.survey, self._journal_id))
            self._is_surveyed = True
        damaged: CorruptRecord | None = None
        for file_id, file in list(self._waiting.items()):
            if file_id not in self._done:
                await self._prune()
                try:
                    made = await self._in_thread(partial(self._folder.copy, file))
                except CorruptRecord as error:
                    damaged = damaged or error  # it stays alone; the others need not wait for it
                    continue
                self._done.add(file_id)
                self._note(copied=int(made is not None))
            del self._waiting[file_id]
            self._on_copied()
        await self._keep_bodies()
        await self._prune()
        if damaged is not None:
            raise damaged

    async def _keep_bodies(self) -> None:
        while some := list(islice(self._bodies.items(), _BODIES_AT_A_TIME)):
            await self._prune()
            files = [(large_id, path) for large_id, (path, _) in some]
            await self._in_thread(partial(self._folder.bodies.keep, files))
            for large_id, (_, on_kept) in some:
                del self._bodies[large_id]
                on_kept()
            if self._waiting:
                self._wake.set()  # files first: what waits for them is the journal
                return

    async def _prune(self) -> None:
        self._note(removed=await self._in_thread(self._folder.prune))

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def _note(self, *, copied: int = 0, removed: int = 0) -> None:
        copies = list(self._folder.copies)
        self._statistics = replace(
            self._statistics,
            copies=len(copies),
            copies_bytes=sum(copy.size_bytes for copy in copies),
            bodies=len(self._folder.bodies.copies),
            bodies_bytes=self._folder.bodies.size_bytes,
            copied=self._statistics.copied + copied,
            removed=self._statistics.removed + removed,
        )

    def _set_blocked(self, reason: str | None, defect: Exception | None = None) -> None:
        known = self._statistics.blocked_reason
        if reason is not None and (known is None or (defect and reason != known)):
            logger.error(
                "journal files and large bodies can't be copied, and stay until they are: %s",
                reason,
                exc_info=defect,
            )
        if reason is None and self._statistics.blocked_reason is not None:
            logger.warning("journal files and large bodies are copied again")
        self._statistics = replace(self._statistics, blocked_reason=reason)
