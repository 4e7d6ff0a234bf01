"""Large messages as `broker` wires them: their folder, by the settings.

Owns the way from settings to `LargeMessages`. Called by `broker`.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.files import SpaceLimits
from vespiary_broker.store.journal import Journal
from vespiary_broker.store.large_messages import LargeMessageOptions, LargeMessages
from vespiary_spec.settings import Configuration


async def open_large(
    stack: AsyncExitStack,
    settings: Configuration,
    folder: Path,
    journal: Journal,
    *,
    disk: DiskLike,
) -> LargeMessages | None:
    """Look after the bodies in files; None without persistence: all stays in memory.

    Args:
        stack: Lets go of them.
        settings: The configuration.
        folder: `large-messages-directory`.
        journal: The message journal.
        disk: The file system.

    Raises:
        VespiaryError: See `LargeMessages.open`.
    """
    if not settings.persistence_enabled:
        return None
    large = await LargeMessages.open(
        LargeMessageOptions(
            directory=folder,
            is_flushed=settings.large_message_sync and settings.journal_datasync,
            limits=SpaceLimits(settings.max_disk_usage, settings.min_disk_free),
            retry_s=settings.disk_scan_period / 2000,
        ),
        journal.core.live_large(),
        disk=disk,
        keeper=journal.retention,
    )
    stack.push_async_callback(large.close)
    return large
