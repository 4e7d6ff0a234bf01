"""`JmsJournal`: what a JMS administrator made, in files of its own from its first use on.

Owns: when the JMS journal exists. Until something is written to it there is no file; once there is
one, it is opened at every start. The journal itself is a `BindingsJournal` (format §3.6), in the
bindings' folder or in one of its own. Must never make a file because somebody looked. Called by
`app`; owner: the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from vespiary_broker.store.bindings import BindingsJournal, BindingsParts
from vespiary_broker.store.files import JMS_FORM
from vespiary_spec.errors import JournalError, WriterFailed

JMS_LOCK_NAME: Final = "jms.lock"


class JmsJournal:
    """The JMS journal, made when it is needed.

    Args:
        folder: Where its files are, or will be.
        create_directory: Make the folder when it is missing, rather than refuse.
        is_direct: Open files with O_DIRECT.
        on_failed: Called once when a write failed and the journal is fenced.
        parts: Disk, ring and clock to use; None takes the real ones.
    """

    def __init__(
        self,
        folder: Path,
        *,
        create_directory: bool = True,
        is_direct: bool = True,
        on_failed: Callable[[WriterFailed], None] = lambda _: None,
        parts: BindingsParts | None = None,
    ) -> None:
        self._folder = folder
        self._create_directory = create_directory
        self._is_direct = is_direct
        self._on_failed = on_failed
        self._parts = parts or BindingsParts()
        self._journal: BindingsJournal | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def open_existing(self) -> None:
        """Read the journal back if it has files; else do nothing.

        Raises:
            VespiaryError: As `BindingsJournal.open`.
        """
        if await asyncio.to_thread(self._has_files):
            await self._open()

    @property
    def exists(self) -> bool:
        """Whether it has files."""
        return self._journal is not None

    def snapshot(self) -> dict[str, Any]:
        """Return all values by key; a copy."""
        return {} if self._journal is None else self._journal.snapshot()

    async def put(self, key: str, value: Any) -> None:
        """Set a value; the first one makes the journal.

        Raises:
            VespiaryError: As `BindingsJournal.open` and `BindingsJournal.put`.

        Durability: on return the value survives a power cut.
        """
        await (await self._open()).put(key, value)

    async def remove(self, key: str) -> None:
        """Take a key out; without a journal there is none.

        Raises:
            VespiaryError: As `BindingsJournal.remove`.

        Durability: on return the removal survives a power cut.
        """
        if self._journal is not None:
            await self._journal.remove(key)

    async def close(self) -> None:
        """Write what was asked for, then let go of the folder."""
        async with self._lock:
            self._is_closed = True
            if self._journal is not None:
                await self._journal.close()

    async def _open(self) -> BindingsJournal:
        async with self._lock:
            if self._is_closed:
                raise JournalError("the JMS journal is closed")
            if self._journal is None:
                journal = await BindingsJournal.open(
                    self._folder,
                    create_directory=self._create_directory,
                    is_direct=self._is_direct,
                    form=JMS_FORM,
                    lock_name=JMS_LOCK_NAME,
                    parts=self._parts,
                )
                journal.on_failed = self._on_failed
                self._journal = journal
            return self._journal

    def _has_files(self) -> bool:
        names = self._parts.disk.names(self._folder) if self._folder.is_dir() else ()
        return any(JMS_FORM.number(name) is not None for name in names)
