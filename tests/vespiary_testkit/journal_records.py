"""Journals for the tools' tests: with every kind of record, and what recovery makes of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vespiary_broker.store.exporting import export_journal
from vespiary_broker.store.files import MESSAGE_FORM, FileForm
from vespiary_codec.journal.record import RawRecord
from vespiary_native.choice import block_verifier
from vespiary_spec.errors import CorruptRecord
from vespiary_testkit.faulty_disk import MemoryDisk
from vespiary_testkit.journal_workload import Client, open_memory
from vespiary_testkit.virtual_time import run_virtual

UNKNOWN_TYPE = 99


def raw_record(data: bytes, offset: int = 0) -> RawRecord:
    """Return the bytes of a record as `walk_records` would."""
    return RawRecord(offset, data[4], data[5], memoryview(data))


async def _live(folder: Path, disk: MemoryDisk, turns: int, *, is_closed: bool) -> None:
    journal = await open_memory(folder, disk, quiet_delay_s=1000.0)
    client = Client(journal, disk, 3)
    for turn in range(turns):
        await client.send(4)
        await client.receive()
        if not turn:
            del client.held[:2]  # stay, and their file with them
        await client.acknowledge(len(client.held) // 2)
        if turn % 3 == 0:
            await client.send_transaction(3)
        if turn == 2:
            body = bytes(range(11))
            journal.core.append_record(UNKNOWN_TYPE, body, urgent=True)
            await journal.wait_durable()
        await asyncio.sleep(0.001)
    if not is_closed:
        journal.fail(CorruptRecord("the test pulls the plug"))
    await journal.close()


def write_journal(
    folder: Path, disk: MemoryDisk, *, turns: int = 12, is_closed: bool = True
) -> None:
    """Live a small life: sends, acknowledgements, transactions, rolls, reclaimed files."""
    with locked_elsewhere(folder, disk) as place:
        run_virtual(_live(place, disk, turns, is_closed=is_closed))


async def _live_and_let_go(folder: Path, disk: MemoryDisk) -> None:
    journal = await open_memory(folder, disk)
    client = Client(journal, disk, 3)
    for _ in range(12):
        await client.send(6)
        await client.receive()
        await client.acknowledge(len(client.held))
        await asyncio.sleep(0.003)
    await client.send(2)
    await journal.close()


def write_freed_files(folder: Path, disk: MemoryDisk) -> None:
    """Live a life of which files are freed and not used again; two messages are live at its end."""
    with locked_elsewhere(folder, disk) as place:
        run_virtual(_live_and_let_go(place, disk))


@contextmanager
def locked_elsewhere(folder: Path, disk: MemoryDisk) -> Iterator[Path]:
    """Move a folder of a `MemoryDisk` to a real one and back: a journal's lock needs that."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        _move(disk, folder, place)
        yield place
        _move(disk, place, folder)


def _move(disk: MemoryDisk, old: Path, new: Path) -> None:
    for path in [path for path in disk.files if path.parent == old]:
        disk.files[new / path.name] = disk.files.pop(path)


def export_lines(folder: Path, disk: MemoryDisk, form: FileForm = MESSAGE_FORM) -> list[bytes]:
    """Return the lines of an export."""
    lines: list[bytes] = []
    export_journal(folder, form, lines.append, disk=disk, verify=block_verifier())
    return lines


def content_of(lines: list[bytes]) -> list[bytes]:
    """Return the lines that must be the same in an export of the import."""
    return [line for line in lines if not line.startswith((b"#File", b"#Vespiary"))]


class LineSource:
    """A text source that says how much was asked of it.

    Attributes:
        held: Bytes handed out last; a reader in constant memory never asks for more than a line.
        longest: Longest line handed out.
    """

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = iter(lines)
        self._rest = b""
        self.lines_read = 0
        self.longest = 0

    def readline(self, limit: int, /) -> bytes:
        line = self._rest or next(self._lines, b"")
        taken, self._rest = line[:limit], line[limit:]
        self.lines_read += bool(taken)
        self.longest = max(self.longest, len(taken))
        return taken
