"""Opening a journal's folder: lock, survey, recovery, seal, first file; all of it blocking.

Owns: the order of these steps, and that a failure in any of them leaves nothing open. Must never
change a file before recovery has judged all of them. Runs in the journal's worker thread; called by
`writer`.
"""

from __future__ import annotations

import logging
import secrets
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from vespiary_broker.store.alignment import check_alignment
from vespiary_broker.store.disk import Disk, DiskLike
from vespiary_broker.store.files import (
    MESSAGE_FORM,
    FilePool,
    PoolRules,
    SpaceLimits,
    StoredFile,
)
from vespiary_broker.store.kept import KeptRecords, KeptSink
from vespiary_broker.store.lock import FolderLock, LentLock
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.recovery import (
    Progress,
    Recovered,
    Recovery,
    log_outcome,
)
from vespiary_broker.store.reserve import DiskReserve
from vespiary_broker.store.survey import FolderSurvey, survey_folder
from vespiary_broker.store.takeover import seal_tail, take_over
from vespiary_native.abc import BlockVerifier, Core
from vespiary_native.abc_ring import Ring, RingKind
from vespiary_native.choice import block_verifier, open_core
from vespiary_native.ring import open_ring
from vespiary_spec.errors import DiskFull, EngineUnavailable, StorageError
from vespiary_spec.settings import JournalType, PreallocationScope

logger = logging.getLogger(__name__)

_RING_KINDS: dict[JournalType, RingKind] = {
    JournalType.ASYNCIO: "ASYNCIO",
    JournalType.IO_URING: "IO_URING",
    JournalType.NIO: "NIO",
}
_DEPTH_ASYNCIO = 500
_DEPTH_NIO = 64
"""Reads of evicted slabs stand in the same queue as the one write."""
_SLABS_AT_START = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningParts:
    """What a journal is made of; tests replace some of it.

    Attributes:
        lock: The folder's lock if it is held already; None takes it.
        disk: The file system.
        open_core: Makes a core: slab_bytes, block_bytes, slabs_max, record_bytes_max.
        open_ring: Makes a ring: kind, depth, strict; and the reason if it is another kind.
        verify: The walk over valid blocks.
        progress: Called after each file that is read back, in the worker thread.
        clock_ms: Milliseconds since 1970.
        new_salt: 64 random bits.
        retention_thread: Makes the thread that copies files.
        reserve: The disk reserve if it was looked for already; None looks for it.
    """

    lock: LentLock | None = None
    disk: DiskLike = field(default_factory=Disk)
    open_core: Callable[..., Core] = open_core
    open_ring: Callable[..., tuple[Ring, str | None]] = open_ring
    verify: BlockVerifier = field(default_factory=block_verifier)
    progress: Callable[[Progress], None] = lambda _: None
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    new_salt: Callable[[], int] = lambda: secrets.randbits(64)
    retention_thread: Callable[[], Executor] = lambda: ThreadPoolExecutor(
        1, thread_name_prefix="retention"
    )
    reserve: DiskReserve | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A folder that is locked, read back and ready to be written.

    Attributes:
        lock: Held.
        disk: The file system.
        pool: The files.
        core: Holds what was read back, and knows the last block.
        ring: Open.
        fallback_reason: Why the ring is not of the kind asked for; None if it is.
        verify: The walk over valid blocks.
        recovered: What was found.
        voided_transactions: Transactions without a valid COMMIT.
        ahead: Files to add to the core, open for writing.
        retention_thread: Makes the thread that copies files.
        seconds: How long it took.
    """

    lock: FolderLock | LentLock
    disk: DiskLike
    pool: FilePool
    core: Core
    ring: Ring
    fallback_reason: str | None
    verify: BlockVerifier
    recovered: Recovered
    voided_transactions: int
    ahead: list[StoredFile]
    retention_thread: Callable[[], Executor]
    seconds: float = 0.0


def open_folder(
    options: JournalOptions, queue_ids: tuple[int, ...], parts: OpeningParts, kept: KeptRecords
) -> Opened:
    """Open the folder of a message journal: see `MessageJournal.open`.

    Durability: on return every block that the core holds is durable.
    """
    disk = parts.disk
    begun_s = time.monotonic()
    with ExitStack() as undo:
        prepare_folder(options, disk)
        lock = parts.lock or FolderLock(options.directory)
        undo.callback(lock.close)
        check_alignment(
            lock.path, asked_bytes=options.device_block_bytes, is_direct=options.is_direct
        )
        survey = survey_folder(options.directory, MESSAGE_FORM, disk, is_direct=options.is_direct)
        core = parts.open_core(
            slab_bytes=options.slab_bytes,
            slabs_max=options.slabs_max,
            record_bytes_max=options.record_limit_bytes,
        )
        core.set_time(parts.clock_ms())
        for queue_id in queue_ids:
            core.open_queue(queue_id)
        recovered = Recovery(
            survey,
            disk,
            parts.verify,
            is_flushed=options.durability == "D2",
            is_direct=options.is_direct,
            progress=parts.progress,
        ).run(KeptSink(core, kept))
        voided = core.restore_done()
        log_outcome(recovered, options.directory)
        ring, reason = _ring(options, parts)
        undo.callback(ring.close)
        sequence, crc = seal_tail(
            recovered, disk, is_direct=options.is_direct, now_ms=parts.clock_ms()
        )
        core.start(sequence + 1, crc, sequence)
        reserve = parts.reserve or find_reserve(options, disk)
        pool = _pool(options, survey, parts, reserve)
        undo.callback(pool.close)
        ahead = _files_to_fill(pool, survey, recovered, sequence, reserve)
        if options.preallocation_scope is PreallocationScope.ENTIRE_JOURNAL:
            _fill_floor(pool)
        core.grow(_SLABS_AT_START)
        undo.pop_all()
    return Opened(
        lock=lock,
        disk=disk,
        pool=pool,
        core=core,
        ring=ring,
        fallback_reason=reason,
        verify=parts.verify,
        recovered=recovered,
        voided_transactions=voided,
        ahead=ahead,
        retention_thread=parts.retention_thread,
        seconds=time.monotonic() - begun_s,
    )


def prepare_folder(options: JournalOptions, disk: DiskLike) -> None:
    """Make the journal's folder, or refuse when that is not wanted.

    Raises:
        StorageError: It is missing and `create_directory` is false.
        NativeError: It can't be made.
    """
    if options.create_directory:
        disk.make_folder(options.directory)
    elif not options.directory.is_dir():
        raise StorageError(
            "the journal's folder does not exist and create-journal-dir is false",
            where=str(options.directory),
            cure="make the folder, or check that its volume is mounted",
        )


def _ring(options: JournalOptions, parts: OpeningParts) -> tuple[Ring, str | None]:
    """Open the ring; without O_DIRECT it is a thread, since AIO on buffered files blocks.

    Raises:
        EngineUnavailable: The engine can't be had and `is_strict` forbids another.
    """
    kind = _RING_KINDS[options.journal_type]
    if kind == "NIO" or not options.is_direct:
        if kind != "NIO" and options.is_strict:
            raise EngineUnavailable(
                f"{kind} can't be used: the journal's volume has no O_DIRECT",
                where=str(options.directory),
                cure="use a volume on ext4 or xfs, or set journal-type to NIO",
            )
        ring, reason = parts.open_ring("NIO", max(options.max_io or 1, _DEPTH_NIO), strict=False)
        if kind != "NIO":
            reason = f"NIO is used, since {kind} can't be: the journal's volume has no O_DIRECT."
        return ring, reason
    depth = max(options.max_io or _DEPTH_ASYNCIO, 2)
    return parts.open_ring(kind, depth, strict=options.is_strict)


def find_reserve(options: JournalOptions, disk: DiskLike) -> DiskReserve:
    """Return the disk reserve of a journal's folder, as it is now.

    Raises:
        NativeError: The folder can't be looked at.
    """
    reserve = DiskReserve(
        options.directory,
        options.disk_reserve_bytes,
        disk,
        is_asked_for=options.is_reserve_asked_for,
    )
    reserve.find()
    return reserve


def _pool(
    options: JournalOptions, survey: FolderSurvey, parts: OpeningParts, reserve: DiskReserve
) -> FilePool:
    rules = PoolRules(
        file_size_bytes=options.file_size_bytes,
        min_files=options.min_files,
        pool_files=options.pool_files,
        max_attic_files=options.max_attic_files,
        is_direct=options.is_direct,
        strategy=options.preallocation_strategy,
        is_growing=options.preallocation_scope is PreallocationScope.NONE,
        limits=SpaceLimits(options.max_disk_usage_percent, options.min_disk_free_bytes),
    )
    return FilePool(
        options.directory,
        MESSAGE_FORM,
        rules,
        parts.disk,
        journal_id=survey.journal_id or uuid.uuid4().bytes,
        reserve=reserve,
        clock_ms=parts.clock_ms,
        new_salt=parts.new_salt,
    )


def _files_to_fill(
    pool: FilePool,
    survey: FolderSurvey,
    recovered: Recovered,
    durable_sequence: int,
    reserve: DiskReserve,
) -> list[StoredFile]:
    """Give the files to the pool and have one to write to, by giving up the reserve if need be.

    Returns:
        The files that the core may fill, in order, open for writing.
    """
    take_over(pool, survey, recovered)
    ahead = []
    for surveyed in recovered.ahead:
        pool.reopen(surveyed.file_id)
        ahead.append(pool.file(surveyed.file_id))
    if not ahead:
        first = partial(pool.activate, is_first=True, watermark=durable_sequence)
        try:
            ahead.append(_activated(first, reserve))
        except DiskFull as error:
            logger.warning("the journal starts without a file to write to: %s", error)
    return ahead


def _activated(activate: Callable[[], StoredFile], reserve: DiskReserve) -> StoredFile:
    """Activate a file; without room, again after the reserve was given up.

    Raises:
        DiskFull: There is no room, and no reserve.
    """
    try:
        return activate()
    except DiskFull:
        if not reserve.release():
            raise
        return activate()


def _fill_floor(pool: FilePool) -> None:
    """Make all files of the floor now; a disk that is full already is told by the keeper."""
    try:
        pool.fill_floor()
    except DiskFull as error:
        logger.warning("the journal starts with fewer files than journal-min-files: %s", error)
