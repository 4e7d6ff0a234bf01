"""What the verification is asked: which volumes, by which policy, for which broker.

Owns the request and how it follows from a configuration, so that the init container, the command
line and the broker's own start ask the same question. Pure. Called by the command line and `app`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from vespiary_broker.store.volumes.identity import Owner
from vespiary_broker.store.volumes.probe import FLUSH_SAMPLES
from vespiary_spec import limits
from vespiary_spec.resources import FilesystemPolicy
from vespiary_spec.settings import BrokerSettings, JournalType

BINDINGS = "bindings"
JOURNAL = "journal"
PAGING = "paging"
LARGE_MESSAGES = "large-messages"
JMS = "jms"


class VolumeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One volume to verify.

    Attributes:
        name: Its role: `bindings`, `journal`, `paging`, `large-messages`, and `jms` where the JMS
            journal has a folder of its own.
        path: Its folder.
        file_bytes: Size of one file that the store makes in it; 0 where it varies.
        first_bytes: Space that a new store takes at once; 0 where it takes none.
        is_created: Whether a missing folder is made, once its filesystem has been found good.
    """

    name: str
    path: str
    file_bytes: int = 0
    first_bytes: int = 0
    is_created: bool = False


class VerificationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole question.

    Attributes:
        volumes: The volumes of one broker, each name once.
        policy: Which filesystems are taken; None takes the defaults.
        journal_type: The engine that is asked for.
        is_strict: Refuse rather than take another engine.
        aio_demand: AIO operations in flight that the broker will reserve, 0 or more.
        owner: Whose volumes they have to be; None neither looks at stamps nor writes any.
        adopts: Take files without a stamp, and blank volumes beside full ones, as this broker's.
        adopted: Names of volumes to take whatever they were, if they had the same role.
        is_ephemeral: Losing the data with the pod was asked for.
        flush_samples: Durable writes to time on each filesystem; 0 times none.
        waits_for_aio: A lack of AIO requests is waited for; it is no reason for another engine.
    """

    volumes: tuple[VolumeRequest, ...]
    policy: FilesystemPolicy | None = None
    journal_type: JournalType = JournalType.ASYNCIO
    is_strict: bool = False
    aio_demand: int = 0
    owner: Owner | None = None
    adopts: bool = False
    adopted: frozenset[str] = frozenset()
    is_ephemeral: bool = False
    flush_samples: int = FLUSH_SAMPLES
    waits_for_aio: bool = False

    def __post_init__(self) -> None:
        names = [volume.name for volume in self.volumes]
        if len(set(names)) != len(names):
            raise ValueError(f"each volume is named once; got {', '.join(names)}")


def of_settings(
    settings: BrokerSettings,
    *,
    base: Path | None = None,
    policy: FilesystemPolicy | None = None,
    owner: Owner | None = None,
    adopts: bool = False,
    adopted: frozenset[str] = frozenset(),
    is_ephemeral: bool = False,
    flush_samples: int = FLUSH_SAMPLES,
    waits_for_aio: bool = False,
) -> VerificationRequest:
    """Make the request that belongs to a broker's settings.

    Args:
        settings: The broker's settings.
        base: Replaces `data-directory`; None uses the setting.
        policy: Which filesystems are taken; None takes the defaults.
        owner: Whose volumes they have to be; None leaves stamps alone.
        adopts: See `VerificationRequest`.
        adopted: See `VerificationRequest`.
        is_ephemeral: See `VerificationRequest`.
        flush_samples: See `VerificationRequest`.
        waits_for_aio: See `VerificationRequest`.

    Returns:
        The request; without volumes when `persistence-enabled` is false, since nothing is written.
    """
    folders = settings.directories(base)
    journal_type = settings.journal_type
    volumes: tuple[VolumeRequest, ...] = (
        VolumeRequest(
            name=BINDINGS,
            path=str(folders.bindings),
            file_bytes=limits.BINDINGS_FILE_BYTES,
            first_bytes=limits.BINDINGS_FILE_BYTES * limits.JOURNAL_FILES_MIN,
            is_created=settings.create_bindings_dir,
        ),
        VolumeRequest(
            name=JOURNAL,
            path=str(folders.journal),
            file_bytes=settings.journal_file_size,
            first_bytes=settings.journal_file_size * settings.journal_min_files,
            is_created=settings.create_journal_dir,
        ),
        VolumeRequest(name=PAGING, path=str(folders.paging), is_created=True),
        VolumeRequest(name=LARGE_MESSAGES, path=str(folders.large_messages), is_created=True),
    )
    if folders.jms != folders.bindings:
        own = VolumeRequest(
            name=JMS,
            path=str(folders.jms),
            file_bytes=limits.BINDINGS_FILE_BYTES,
            is_created=settings.create_bindings_dir,
        )
        volumes = (*volumes, own)
    may_use_aio = settings.persistence_enabled and journal_type.may_use_aio
    return VerificationRequest(
        volumes=volumes if settings.persistence_enabled else (),
        policy=policy,
        journal_type=journal_type,
        is_strict=settings.journal_type_strict,
        aio_demand=settings.effective_journal_max_io(journal_type) if may_use_aio else 0,
        owner=owner,
        adopts=adopts,
        adopted=adopted,
        is_ephemeral=is_ephemeral,
        flush_samples=flush_samples,
        waits_for_aio=waits_for_aio,
    )
