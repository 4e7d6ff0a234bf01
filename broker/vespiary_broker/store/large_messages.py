"""Large messages: bodies in files of their own, beside the journal (journal-format §3.5).

Owns the large-messages folder: which files are in it, the ids of new ones, and which of them are
damaged. Must never block the event loop (files are touched in worker threads), never hand out a
reference before its file is flushed, and never remove a file that a live message may refer to.
Made by `app`; called by the server's connections on the event loop. Writing one body is in
`large_writer`, reading one in `large_reader`.

Layout: one file for each body, `%016x.msg` of its id, with the body and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from vespiary_broker.store.disk import Disk, DiskLike
from vespiary_broker.store.files import NO_LIMITS, SpaceLimits
from vespiary_broker.store.large_reader import LargeReader
from vespiary_broker.store.large_writer import LargeWriter
from vespiary_codec.journal.large_reference import body_name
from vespiary_native.abc import LargeBody
from vespiary_spec.errors import DiskFull, LargeMessageDamaged, NativeError

T = TypeVar("T")

THREADS: Final = 4
_NAME: Final = re.compile(r"[0-9a-f]{16}\.msg")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeMessageOptions:
    """What the large messages of a broker are kept with.

    Attributes:
        directory: The folder.
        is_flushed: Whether bodies of messages that have to survive are flushed before they are
            referred to; False is durability class D1.
        limits: When the disk counts as full.
        retry_s: Seconds between two tries while it is full.
    """

    directory: Path
    is_flushed: bool = True
    limits: SpaceLimits = NO_LIMITS
    retry_s: float = 2.5


class BodyKeeper(Protocol):
    """Who copies a body before it is removed (`Retention`)."""

    def offer_body(self, large_id: int, path: Path, on_kept: Callable[[], None]) -> None:
        """Take a body; call `on_kept` on the event loop when its file may be removed."""


@dataclass(slots=True)
class _Counters:
    received: int = 0
    received_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    removed: int = 0
    swept: int = 0
    removals_failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeMessageStatistics:
    """Counters of the large messages.

    Attributes:
        live: Bodies that messages refer to.
        live_bytes: Their size.
        damaged: Live bodies whose file is missing, or of another size or checksum.
        receiving: Bodies that are being received.
        waiting: Bodies of these that wait for room on the disk.
        received: Bodies received since the start.
        received_bytes: Their size.
        delivered: Bodies sent whole to consumers since the start.
        delivered_bytes: Their size.
        removed: Files removed because nobody needed them any more.
        swept: Files without a message that the start found and removed.
        removals_failed: Files that could not be removed; the next start tries again.
    """

    live: int
    live_bytes: int
    damaged: int
    receiving: int
    waiting: int
    received: int
    received_bytes: int
    delivered: int
    delivered_bytes: int
    removed: int
    swept: int
    removals_failed: int


@dataclass(slots=True)
class _Found:
    """What the start found in the folder."""

    leftovers: list[int] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)
    last_id: int = 0


class LargeMessages:
    """The bodies in files. Owner: the event loop.

    Invariant: a file is removed only after the core has said that nobody needs its body (durably),
    or while no record that refers to it was ever staged.

    Args:
        options: See there.
        disk: The file system.
        executor: Runs what blocks.
        live: Bodies that live messages refer to, after the recovery.
        keeper: Copies bodies before they are removed; None: nobody does.
        clock_ms: Milliseconds since 1970; ids are made of it.

    Attributes:
        damaged: Why a body is lost, by id.
        on_wanted: Called when somebody should call `remove` with what the core says.
        on_full: Called when the disk has become full.
        full: Why nothing can be stored now; None while there is room.
    """

    def __init__(
        self,
        options: LargeMessageOptions,
        disk: DiskLike,
        executor: Executor,
        live: Iterable[LargeBody] = (),
        keeper: BodyKeeper | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.options = options
        self.disk = disk
        self.executor = executor
        self.damaged: dict[int, str] = {}
        self.on_wanted: Callable[[], None] = lambda: None
        self.on_full: Callable[[], None] = lambda: None
        self.full: DiskFull | None = None
        self._live = {body.large_id: body for body in live}
        self._live_bytes = sum(body.size_bytes for body in self._live.values())
        self._keeper = keeper
        self._clock_ms = clock_ms
        self._last_id = 0
        self._receiving = 0
        self._counters = _Counters()
        self._holds = 0
        self._held: list[int] = []
        self._tasks: set[asyncio.Future[None]] = set()
        self._waiting: dict[LargeWriter, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._full_s = 0.0
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        options: LargeMessageOptions,
        live: Iterable[LargeBody],
        *,
        disk: DiskLike | None = None,
        executor: Executor | None = None,
        keeper: BodyKeeper | None = None,
    ) -> LargeMessages:
        """Look at the folder: report live bodies that are damaged, remove what nobody refers to.

        Args:
            options: See there.
            live: Bodies that live messages refer to (`Core.live_large`).
            disk: The file system; None takes the real one.
            executor: Runs what blocks; None makes threads.
            keeper: Copies bodies before they are removed; None: nobody does.

        Raises:
            NativeError: The folder cannot be made or listed.
        """
        threads = executor or ThreadPoolExecutor(THREADS, "large")
        made = cls(options, disk or Disk(), threads, live, keeper)
        found = await made.in_thread(made._look)
        made._last_id = found.last_id
        made.damaged = found.damaged
        for large_id, reason in found.damaged.items():
            log.error(
                "a large message has lost its body and stays undelivered file=%s reason=%r",
                made.path(large_id),
                reason,
            )
        if found.leftovers:
            log.info("removing files of no large message count=%d", len(found.leftovers))
            made._start_removal(found.leftovers, is_sweep=True)
        return made

    def _look(self) -> _Found:
        """List the folder and compare it with what is live; blocks."""
        directory = self.options.directory
        self.disk.make_folder(directory)
        found = _Found()
        present = set()
        for name in self.disk.names(directory):
            if not _NAME.fullmatch(name):
                continue
            large_id = int(name[:16], 16)
            found.last_id = max(found.last_id, large_id)
            present.add(large_id)
            if large_id not in self._live:
                found.leftovers.append(large_id)
        for large_id, body in self._live.items():
            found.last_id = max(found.last_id, large_id)
            reason = self._check(body) if large_id in present else "the file is missing"
            if reason:
                found.damaged[large_id] = reason
        return found

    def _check(self, body: LargeBody) -> str:
        try:
            file = self.disk.open(self.path(body.large_id), is_direct=False, is_readonly=True)
        except NativeError as error:
            return str(error)
        try:
            size_bytes = file.size_bytes()
        finally:
            file.close()
        if size_bytes == body.size_bytes:
            return ""
        return f"the file has {size_bytes} bytes, the message {body.size_bytes}"

    # --- what messages refer to -------------------------------------------------------------------

    def path(self, large_id: int) -> Path:
        """Return where a body lies."""
        return self.options.directory / body_name(large_id)

    @property
    def live_count(self) -> int:
        """Number of bodies that messages refer to."""
        return len(self._live)

    def is_damaged(self, large_id: int) -> bool:
        """Whether a body is known to be lost."""
        return large_id in self.damaged

    def note_damaged(self, large_id: int, reason: str) -> None:
        """Remember that a body cannot be delivered, and say so.

        One that went while somebody was about to read it is no damage: its message is done.
        """
        if large_id not in self._live:
            return
        self.damaged[large_id] = reason
        path = self.path(large_id)
        log.error("a large message cannot be delivered file=%s reason=%r", path, reason)

    def adopt(self, body: LargeBody) -> None:
        """Note that a staged message refers to a body; the core will say when it is done."""
        self._live[body.large_id] = body
        self._live_bytes += body.size_bytes

    # --- receiving and delivering -----------------------------------------------------------------

    def begin(self) -> LargeWriter:
        """Begin a new body."""
        self._last_id = max(self._last_id + 1, self._clock_ms() << 20)
        self._receiving += 1
        return LargeWriter(self, self._last_id)

    def ended(self, size_bytes: int | None) -> None:
        """Count a body that was received; None: it was given up."""
        self._receiving -= 1
        if size_bytes is not None:
            self._counters.received += 1
            self._counters.received_bytes += size_bytes

    # --- a full disk ------------------------------------------------------------------------------

    def note_full(self, full: DiskFull) -> None:
        """Note that something found no room."""
        self._full_s = asyncio.get_running_loop().time()
        if self.full is None:
            self.full = full
            log.warning("%s", full)
            self.on_full()

    def wrote(self) -> None:
        """Note that something found room; small bodies may while larger ones do not."""
        now_s = asyncio.get_running_loop().time()
        if self.full is not None and now_s >= self._full_s + self.options.retry_s:
            self.full = None
            log.warning("there is room for large messages again")

    def wait_for_room(self, writer: LargeWriter) -> None:
        """Have a body tried again later, or when files were removed."""
        self._waiting[writer] = None
        if self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(self.options.retry_s, self._try_again)

    def forget(self, writer: LargeWriter) -> None:
        """Do not try a body again."""
        self._waiting.pop(writer, None)

    def _try_again(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        waiting, self._waiting = self._waiting, {}
        for writer in waiting:
            writer.try_again()

    async def read(self, body: LargeBody) -> LargeReader:
        """Open a body to deliver it.

        Raises:
            LargeMessageDamaged: It is missing, cannot be read, or has another size.
            NativeError: It cannot be opened now; it may be later.
        """
        reason = self.damaged.get(body.large_id)
        if reason is None:
            try:
                return await LargeReader.open(self, body)
            except LargeMessageDamaged as error:
                self.note_damaged(body.large_id, str(error))
                raise
        raise LargeMessageDamaged("the body of a large message is lost", measured=reason)

    def delivered(self, size_bytes: int) -> None:
        """Count a body that went out whole."""
        self._counters.delivered += 1
        self._counters.delivered_bytes += size_bytes

    # --- removing ---------------------------------------------------------------------------------

    def hold_removals(self) -> None:
        """Remove nothing until `release_removals`: a queue's end is not durable yet."""
        self._holds += 1

    def release_removals(self) -> None:
        """Take one `hold_removals` back."""
        self._holds -= 1
        self.look()
        if not self._holds and self._held:
            held, self._held = self._held, []
            self._start_removal(held)

    def look(self) -> None:
        """Have the core asked soon for bodies that are done: a queue went."""
        self.on_wanted()

    def remove(self, large_ids: list[int]) -> None:
        """Remove bodies that nobody needs any more.

        Durability: the caller knows that no live message refers to them after any crash.
        """
        for large_id in large_ids:
            body = self._live.pop(large_id, None)
            self._live_bytes -= 0 if body is None else body.size_bytes
            self.damaged.pop(large_id, None)
        if self._holds:
            self._held += large_ids
        elif large_ids:
            self._start_removal(large_ids)

    def _start_removal(self, large_ids: list[int], *, is_sweep: bool = False) -> None:
        if self._keeper is None:
            self.track(asyncio.ensure_future(self._remove(large_ids, is_sweep=is_sweep)))
            return
        for large_id in large_ids:
            on_kept = partial(self._kept, large_id, is_sweep=is_sweep)
            self._keeper.offer_body(large_id, self.path(large_id), on_kept)

    def _kept(self, large_id: int, *, is_sweep: bool) -> None:
        """Remove a body whose copy counts; after the close the next start does."""
        if not self._is_closed:
            self.track(asyncio.ensure_future(self._remove([large_id], is_sweep=is_sweep)))

    def track(self, task: asyncio.Future[None]) -> None:
        """Let `close` wait for a task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _remove(self, large_ids: list[int], *, is_sweep: bool) -> None:
        done, failed = await self.in_thread(lambda: self._unlink(large_ids))
        self._counters.removals_failed += failed
        if is_sweep:
            self._counters.swept += done
        else:
            self._counters.removed += done
        if done and self._waiting:
            self._try_again()

    def _unlink(self, large_ids: list[int]) -> tuple[int, int]:
        """Remove files; blocks. What fails stays until the next start."""
        done = failed = 0
        for large_id in large_ids:
            try:
                self.disk.remove(self.path(large_id))
            except NativeError as error:
                if error.errno == errno.ENOENT:  # a damaged one, purged
                    continue
                failed += 1
                log.warning("large message not removed reason=%r", str(error))
            else:
                done += 1
        return done, failed

    # --- life -------------------------------------------------------------------------------------

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Run something that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, function)

    async def close(self) -> None:
        """Wait for what is being removed, and let the threads go; nothing is received any more."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self.executor.shutdown(wait=False)

    def statistics(self) -> LargeMessageStatistics:
        """Return the counters."""
        counters = self._counters
        return LargeMessageStatistics(
            live=len(self._live),
            live_bytes=self._live_bytes,
            damaged=len(self.damaged),
            receiving=self._receiving,
            waiting=len(self._waiting),
            received=counters.received,
            received_bytes=counters.received_bytes,
            delivered=counters.delivered,
            delivered_bytes=counters.delivered_bytes,
            removed=counters.removed,
            swept=counters.swept,
            removals_failed=counters.removals_failed,
        )
