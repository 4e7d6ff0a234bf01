"""The journal as the engine and `app` see it, and the choice between disk and memory.

Owns: the Protocol `Journal` and `open_journal`. Must never hold state. Called by `app`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from vespiary_broker.store.counters import JournalStatistics
from vespiary_broker.store.file_uses import FileUse
from vespiary_broker.store.kept import KeptRecords
from vespiary_broker.store.memory import NullJournal
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.options import Durability, JournalOptions
from vespiary_broker.store.retention import Retention
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import Core
from vespiary_spec.errors import JournalError, WriterFailed


class Journal(Protocol):
    """What `MessageJournal` and `NullJournal` have in common; see the former for each."""

    core: Core
    engine_name: str
    fallback_reason: str | None
    durability: Durability
    retention: Retention | None
    on_durable: Callable[[], None]
    on_failed: Callable[[WriterFailed], None]

    @property
    def on_space(self) -> Callable[[], None]:
        """Called when files were added or freed."""

    @on_space.setter
    def on_space(self, callback: Callable[[], None]) -> None: ...

    @property
    def on_blocked(self) -> Callable[[], None]:
        """Called when no file can be made any more."""

    @on_blocked.setter
    def on_blocked(self, callback: Callable[[], None]) -> None: ...

    @property
    def failure(self) -> WriterFailed | None:
        """The failure that fenced the journal."""

    @property
    def blocked(self) -> JournalError | None:
        """Why no file can be made now."""

    @property
    def is_writing(self) -> bool:
        """Whether a write is in flight."""

    def kick(self) -> None:
        """Write what is staged if somebody waits for it."""

    def request_space(self) -> None:
        """Say that something found no room."""

    async def wait_durable(self) -> None:
        """Wait until everything staged so far is durable."""

    async def load_slab(self, file_id: int, slab: int) -> bool:
        """Bring an evicted slab back."""

    async def close(self) -> None:
        """Write what is staged and let go."""

    def statistics(self) -> JournalStatistics:
        """Return the counters."""

    def file_uses(self, after_id: int, limit: int) -> list[FileUse]:
        """Return what keeps the files in use; none without persistence."""


async def open_journal(
    options: JournalOptions,
    *,
    queue_ids: Iterable[int] = (),
    parts: OpeningParts | None = None,
    kept: KeptRecords | None = None,
) -> Journal:
    """Open the message journal that the options ask for.

    Args:
        options: The settings.
        queue_ids: Durable queues that the bindings know.
        parts: Disk, core, ring and progress to use; None takes the real ones.
        kept: The owner of records that the core does not keep; None: there are none.

    Raises:
        VespiaryError: See `MessageJournal.open`.
    """
    used = parts or OpeningParts()
    if not options.is_persistent:
        return NullJournal(options, used.open_core)
    return await MessageJournal.open(options, queue_ids=queue_ids, parts=used, kept=kept)
