"""What a journal is opened with, in the store's own terms.

Owns: the frozen record that `vespiary_broker.app` fills from `vespiary_spec.settings`, and the
durability class that follows from it. Must never read files or the machine, and never repeat a
setting's description: `vespiary_spec.settings` holds those. Used by every module of the store.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from vespiary_native.abc import SLAB_BYTES
from vespiary_spec import limits
from vespiary_spec.settings import JournalType, PreallocationScope, PreallocationStrategy

ALIGNMENT_BYTES = limits.BLOCK_BYTES
FILES_AHEAD_MIN = 2
"""Activated files that the core always has before it: a roll never waits for the disk."""

_RESERVE_BYTES = 1024 * 1024
"""What the core keeps for acknowledgements at most."""
_BLOCK_BYTES = 256 * 1024
"""A block at most, but for one large record."""

ACKNOWLEDGEMENT_DELAY_S = 0.010
"""Longest time that acknowledgements alone wait for company."""


class Durability(enum.StrEnum):
    """What a confirm is worth."""

    D0 = "D0"
    """Held in memory only."""
    D1 = "D1"
    """Survives a killed process, not a power cut."""
    D2 = "D2"
    """Flushed before the confirm: survives a power cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """What is kept.

    Attributes:
        directory: Where to.
        period_ms: Copies older than this go; None keeps them.
        storage_limit_bytes: The oldest copies above this go; None keeps them.
    """

    directory: Path
    period_ms: int | None = None
    storage_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """Settings of one message journal.

    Attributes:
        directory: The journal's folder.
        is_persistent: `persistence-enabled`; False keeps everything in memory (D0).
        create_directory: Make the folder when it is missing, rather than refuse.
        journal_type: Engine asked for.
        is_strict: Refuse to start rather than take another engine.
        is_direct: Open files with O_DIRECT; False only where the verification of the volume said
            that it can't be had (the engine is NIO then: AIO on buffered files blocks).
        datasync: Flush before a write counts as done.
        sync_transactional: Confirm commits only when durable.
        sync_non_transactional: Confirm the rest only when durable.
        file_size_bytes: Size of files made from now on, a multiple of 4096, at least 64 KiB.
        min_files: Floor of the pool, at least 2.
        pool_files: Free files kept; -1 keeps all.
        max_io: Requests in flight that the ring is made for; None is the engine's default.
        max_attic_files: Files kept in `attic`.
        preallocation_strategy: How new files get their size.
        preallocation_scope: When they do.
        device_block_bytes: The disk's unit of writes as the user knows it; None asks the disk.
        file_open_timeout_s: Seconds without a file to write to after which that is an error.
        record_bytes_max: Limit of one record.
        memory_bytes: Memory for the journal's image.
        slab_bytes: The image's unit of memory. Blocks never cross a slab's end, so files can be
            read back only with the size that they were written with: not a setting.
        max_disk_usage_percent: Share of the disk above which no file is made; 100 is off.
        min_disk_free_bytes: Free space below which no file is made, wins over the former; -1 off.
        disk_reserve_bytes: Size of the disk reserve; 0 is none.
        is_reserve_asked_for: Whether that size was configured.
        disk_scan_period_s: Seconds between two looks at a full disk.
        acknowledgement_delay_s: Seconds that acknowledgements alone wait for company.
        compact_min_files: Files in use above which compaction is considered; 0 is never.
        compact_percentage: It begins when less than this share of them is live.
        compact_bytes_per_s: Most bytes that it moves in a second.
        quiet_delay_s: Seconds of silence after which an empty block covers the last confirms.
        reclaim_period_s: Seconds between two looks for files to free, also when idle.
        retention: Copies of full files that are kept; None keeps none.
    """

    directory: Path
    is_persistent: bool = True
    create_directory: bool = True
    journal_type: JournalType = JournalType.ASYNCIO
    is_strict: bool = False
    is_direct: bool = True
    datasync: bool = True
    sync_transactional: bool = True
    sync_non_transactional: bool = True
    file_size_bytes: int = 10 * 1024 * 1024
    min_files: int = 2
    pool_files: int = -1
    max_io: int | None = None
    max_attic_files: int = 10
    preallocation_strategy: PreallocationStrategy = PreallocationStrategy.ZEROS
    preallocation_scope: PreallocationScope = PreallocationScope.ENTIRE_JOURNAL_ASYNC
    device_block_bytes: int | None = None
    file_open_timeout_s: float = 5.0
    record_bytes_max: int = 490 * 1024
    memory_bytes: int = 256 * 1024 * 1024
    slab_bytes: int = SLAB_BYTES
    max_disk_usage_percent: int = 90
    min_disk_free_bytes: int = -1
    disk_reserve_bytes: int = 0
    is_reserve_asked_for: bool = False
    disk_scan_period_s: float = 5.0
    acknowledgement_delay_s: float = ACKNOWLEDGEMENT_DELAY_S
    compact_min_files: int = 10
    compact_percentage: int = 30
    compact_bytes_per_s: int = 16 * 1024 * 1024
    quiet_delay_s: float = 0.020
    reclaim_period_s: float = 0.5
    retention: RetentionOptions | None = None

    def __post_init__(self) -> None:
        """Refuse what the format can't hold; the settings' own bounds are checked elsewhere."""
        if self.file_size_bytes % ALIGNMENT_BYTES or (
            self.file_size_bytes < limits.JOURNAL_FILE_BYTES_MIN
        ):
            raise ValueError(
                f"file_size_bytes {self.file_size_bytes}: allowed are multiples of "
                f"{ALIGNMENT_BYTES} from {limits.JOURNAL_FILE_BYTES_MIN} on"
            )
        if self.min_files < limits.JOURNAL_FILES_MIN:
            raise ValueError(
                f"min_files {self.min_files}: at least {limits.JOURNAL_FILES_MIN} are needed"
            )

    @property
    def slabs_max(self) -> int:
        """Slabs that the memory is good for; the core works with no less than 8."""
        return max(self.memory_bytes // self.slab_bytes, 8)

    @property
    def record_limit_bytes(self) -> int:
        """Limit of one record: the option, or what fits into a file and a slab."""
        return min(
            self.record_bytes_max,
            self.slab_bytes - 2 * ALIGNMENT_BYTES,
            self.file_size_bytes // 2,
        )

    @property
    def transaction_room_bytes(self) -> int:
        """Room that each transaction finds sooner or later, as `Core.begin` counts it.

        The files that are always made ahead, less what stays for acknowledgements and the block
        that is being filled; and no more than half of the memory.
        """
        file_bytes = self.file_size_bytes if self.is_persistent else self.slab_bytes
        files_bytes = FILES_AHEAD_MIN * (file_bytes - 2 * ALIGNMENT_BYTES)
        spared_bytes = min(file_bytes // 8, _RESERVE_BYTES) + min(file_bytes // 8, _BLOCK_BYTES)
        return min(files_bytes - spared_bytes, self.slabs_max // 2 * self.slab_bytes)

    @property
    def durability(self) -> Durability:
        """The class of every confirm under these options.

        All confirms wait for the same write, so one sync setting alone cannot lower the class:
        both `journal-sync-*` must be false, or `journal-datasync`, for D1.
        """
        if not self.is_persistent:
            return Durability.D0
        is_synced = self.sync_transactional or self.sync_non_transactional
        return Durability.D2 if self.datasync and is_synced else Durability.D1
