"""A bindings or JMS journal on a `MemoryDisk`, with small files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vespiary_broker.store.bindings import BindingsJournal, BindingsParts
from vespiary_broker.store.files import BINDINGS_FORM, FileForm
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.faulty_ring import FaultyRing, MemoryRing

SIZE = 64 * 1024


async def open_bindings(
    folder: Path, disk: MemoryDisk, *, form: FileForm = BINDINGS_FORM, **ring: Any
) -> BindingsJournal:
    """Open a journal on that disk; `ring` says which write fails, and how."""
    parts = BindingsParts(
        disk=disk, open_ring=lambda: FaultyRing(MemoryRing(disk), **ring), clock_ms=lambda: 1
    )
    return await BindingsJournal.open(folder, file_size_bytes=SIZE, form=form, parts=parts)
