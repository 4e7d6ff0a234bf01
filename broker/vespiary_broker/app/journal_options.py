"""What the message journal is opened with, by the configuration.

Owns the way from settings to `JournalOptions`. Called by `broker`.
"""

from __future__ import annotations

from pathlib import Path

from vespiary_broker.app.memory import image_bytes
from vespiary_broker.app.retention import retention_options
from vespiary_broker.store.options import ACKNOWLEDGEMENT_DELAY_S, JournalOptions
from vespiary_broker.store.reserve import START_BYTES
from vespiary_spec.settings import Configuration, JournalType


def _acknowledgement_delay_s(buffer_timeout_ns: int) -> float:
    """Return how long acknowledgements may wait for company: 0 nanoseconds set no bound."""
    if buffer_timeout_ns == 0:
        return ACKNOWLEDGEMENT_DELAY_S
    return min(ACKNOWLEDGEMENT_DELAY_S, buffer_timeout_ns / 1e9)


def _reserve_bytes(settings: Configuration) -> int:
    """Return the size of the disk reserve; 0: there is none."""
    if not settings.persistence_enabled:
        return 0
    if settings.disk_reserve_size >= 0:
        return settings.disk_reserve_size
    return settings.journal_file_size + START_BYTES


def journal_options(
    settings: Configuration,
    folder: Path,
    base: Path | None,
    *,
    is_direct: bool,
    is_in_memory: bool,
    is_waited_for: bool = False,
) -> JournalOptions:
    """Return the options of the message journal.

    Args:
        settings: The configuration.
        folder: `journal-directory`.
        base: Replaces `data-directory`; None uses the setting.
        is_direct: The volume has direct I/O.
        is_in_memory: The volume is memory, so that a flush survives no power cut.
        is_waited_for: A ring of ASYNCIO that cannot be had is waited for, and no other one is made.
    """
    return JournalOptions(
        directory=folder,
        is_persistent=settings.persistence_enabled,
        create_directory=settings.create_journal_dir,
        # As asked for: the ring itself falls back, and says why, in the journal's statistics.
        journal_type=settings.journal_type,
        is_strict=settings.journal_type_strict
        or (is_waited_for and settings.journal_type is JournalType.ASYNCIO),
        is_direct=is_direct,
        datasync=settings.journal_datasync and not is_in_memory,
        sync_transactional=settings.journal_sync_transactional,
        sync_non_transactional=settings.journal_sync_non_transactional,
        file_size_bytes=settings.journal_file_size,
        min_files=settings.journal_min_files,
        pool_files=settings.journal_pool_files,
        max_io=settings.journal_max_io,
        max_attic_files=settings.journal_max_attic_files,
        compact_min_files=settings.journal_compact_min_files,
        compact_percentage=settings.journal_compact_percentage,
        preallocation_strategy=settings.journal_preallocation_strategy,
        preallocation_scope=settings.journal_preallocation_scope,
        device_block_bytes=settings.journal_device_block_size,
        file_open_timeout_s=settings.journal_file_open_timeout,
        record_bytes_max=settings.journal_buffer_size,
        acknowledgement_delay_s=_acknowledgement_delay_s(settings.journal_buffer_timeout),
        memory_bytes=image_bytes(settings),
        max_disk_usage_percent=settings.max_disk_usage,
        min_disk_free_bytes=settings.min_disk_free,
        disk_reserve_bytes=_reserve_bytes(settings),
        is_reserve_asked_for=settings.disk_reserve_size >= 0,
        disk_scan_period_s=settings.disk_scan_period / 1000,
        retention=retention_options(settings, base),
    )
