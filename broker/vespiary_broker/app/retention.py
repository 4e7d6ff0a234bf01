"""What is kept of the journal, as the configuration wants it.

Owns the way from the settings to the store's options, and the refusal of folders that can't work.
Must never touch a file. Called by `broker`.
"""

from __future__ import annotations

import logging
from pathlib import Path

from vespiary_broker.store.options import RetentionOptions
from vespiary_spec.errors import ConfigError
from vespiary_spec.settings import Configuration

log = logging.getLogger(__name__)


def retention_folder(settings: Configuration, base: Path | None) -> Path | None:
    """Return the folder of the copies; None if nothing is kept.

    Args:
        settings: The configuration.
        base: Replaces `data-directory`; None uses the setting.

    Raises:
        ConfigError: The folder is one of the broker's own.
    """
    asked = settings.journal_retention_directory
    if asked is None:
        return None
    folder = (Path(base or settings.data_directory) / asked).absolute()
    if folder in settings.directories(base):
        raise ConfigError(
            "it is one of the broker's own folders",
            path="journal-retention-directory",
            value=str(folder),
            cure="give the copies a folder of their own, best on another disk",
        )
    return folder


def retention_options(settings: Configuration, base: Path | None) -> RetentionOptions | None:
    """Return what is kept; None if nothing is.

    Args:
        settings: The configuration.
        base: Replaces `data-directory`; None uses the setting.

    Raises:
        ConfigError: The folder is one of the broker's own.
    """
    folder = retention_folder(settings, base)
    if folder is None:
        return None
    period_ms = settings.journal_retention_period
    limit_bytes = settings.journal_retention_storage_limit
    if period_ms is None and limit_bytes is None:
        log.warning(
            "journal copies are kept for ever: set journal-retention-period or "
            "journal-retention-storage-limit, or remove them yourself folder=%s",
            folder,
        )
    return RetentionOptions(directory=folder, period_ms=period_ms, storage_limit_bytes=limit_bytes)
