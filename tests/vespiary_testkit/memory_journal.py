"""Journals without a disk, for tests of the engine and the server.

`MemoryJournal` writes nowhere: a write is done when the test says `flush`, or at the next turn of
the loop. `MemoryBindings` keeps its values in a dictionary and counts what was asked for.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vespiary_broker.store.options import JournalOptions
from vespiary_native.abc import Core
from vespiary_native.choice import open_core
from vespiary_spec.errors import JournalError

FILE_BYTES = 4 * 1024 * 1024


class MemoryJournal:
    """A journal whose writes are done when somebody says so.

    Args:
        core: The core to serve; None opens the one that the environment chooses.
        files: Files that the core gets at the start.
        is_automatic: Whether `kick` has its write done in the next turn of the running loop.
    """

    def __init__(
        self,
        core: Core | None = None,
        *,
        files: int = 8,
        file_bytes: int = FILE_BYTES,
        is_automatic: bool = False,
        record_bytes_max: int = 490 * 1024,
    ) -> None:
        self.core = core or open_core(slabs_max=16, record_bytes_max=record_bytes_max)
        self.file_bytes = file_bytes
        self.is_automatic = is_automatic
        self.on_durable: Callable[[], None] = lambda: None
        self.on_space: Callable[[], None] = lambda: None
        self.space_requests = 0
        self.is_writing = False  # as a test says, until the next flush
        self.written: list[bytes] | None = None  # a list keeps the bytes of each write
        self.blocked: JournalError | None = None
        self._files = 0
        self._is_scheduled = False
        self._written: asyncio.Event | None = None
        for _ in range(files):
            self.add_file()
        self.core.start(1, 0, 0)
        self.core.grow(2)

    def add_file(self) -> None:
        self._files += 1
        self.core.add_file(self._files, 7, self.file_bytes)
        self.on_space()

    @property
    def transaction_room_bytes(self) -> int:
        """Room that each transaction finds sooner or later."""
        options = JournalOptions(directory=Path(), file_size_bytes=self.file_bytes)
        return options.transaction_room_bytes

    def request_space(self) -> None:
        self.space_requests += 1

    def kick(self) -> None:
        if self.is_automatic and not self._is_scheduled and self.core.has_unwritten():
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    async def wait_durable(self) -> None:
        """Wait for the next flush, if anything waits for it."""
        if self.core.has_unwritten():
            self.kick()
            self._written = self._written or asyncio.Event()
            await self._written.wait()

    def _write(self) -> None:
        self._is_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Have everything that is staged written."""
        is_written, self.is_writing = self.is_writing, False
        while (request := self.core.seal_write()) is not None:
            if self.written is not None:
                self.written.append(ctypes.string_at(request.address, request.length))
            self.core.write_done(request.sequence)
            is_written = True
        if self._written is not None:
            self._written.set()
            self._written = None
        if is_written:
            self.on_durable()


class MemoryBindings:
    """Bindings in a dictionary; `put` and `remove` end when the test lets them."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = dict(values or {})
        self.puts: list[str] = []
        self.removals: list[str] = []
        self.gate: asyncio.Event | None = None
        self.failure: JournalError | None = None  # of removals
        self.put_failure: JournalError | None = None

    async def put(self, key: str, value: dict[str, Any]) -> None:
        self.puts.append(key)
        if self.gate is not None:
            await self.gate.wait()
        if self.put_failure is not None:
            raise self.put_failure
        self.values[key] = value

    async def remove(self, key: str) -> None:
        self.removals.append(key)
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.values.pop(key, None)

    def snapshot(self) -> dict[str, Any]:
        return dict(self.values)


class NoLock:
    """A lock for tests in which nothing happens at the same time; counts its uses."""

    def __init__(self) -> None:
        self.uses = 0

    async def __aenter__(self) -> None:
        self.uses += 1

    async def __aexit__(self, *_: object) -> None:
        pass
