"""Named places in the work of a journal where a process can be killed.

`WatchedDisk` and `WatchedRing` stand before the real disk and ring. Each call that reaches the disk
has a name that says what it is for, and two places: `before` and `after` it. `Failpoints` counts
the visits and kills the process at the chosen one. No failpoint is in the product: it is given
these parts (`killable_broker`) as tests give it others.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

from vespiary_broker.store.disk import Disk, DiskFile, DiskLike, Usage
from vespiary_codec.journal.block import HEADER_BYTES, decode_block_header
from vespiary_codec.journal.errors import JournalFormatError
from vespiary_codec.journal.record import RecordType, walk_records
from vespiary_native.abc_ring import Ring

FILE_CALLS = (
    "making a file",
    "write of zeros of a new file",
    "write of header of a new file",
    "flush of header of a new file",
    "rename of a new file",
    "flush of the folder",
    "write of header of an activated file",
    "flush of header of an activated file",
    "write of header of a freed file",
    "flush of header of a freed file",
    "rename to the next id",
    "flush of what was read",
    "write of recovery's seal",
    "flush of recovery's seal",
)
"""What both journals do with their files."""

MESSAGE_CALLS = (
    *FILE_CALLS,
    "removing a file",
    *(
        f"{step} of {kind}"
        for step in ("submission", "completion")
        for kind in (
            "messages",
            "a commit",
            "acknowledgements",
            "a checkpoint",
            "a file's end",
            "a covering block",
        )
    ),
)
BINDINGS_CALLS = (
    *FILE_CALLS,
    *(
        f"{step} of {kind}"
        for step in ("submission", "completion")
        for kind in ("a value", "a checkpoint", "a covering block")
    ),
)
POINTS = tuple(
    f"{journal}: {side} {call}"
    for journal, calls in (("messages", MESSAGE_CALLS), ("bindings", BINDINGS_CALLS))
    for call in calls
    for side in ("before", "after")
)
"""All points. A broker of the crash test that visits another one fails the test."""

JMS_CALLS = (*BINDINGS_CALLS, "submission of a file's end", "completion of a file's end")
JMS_POINTS = tuple(f"jms: {side} {call}" for call in JMS_CALLS for side in ("before", "after"))
"""Those of the JMS journal, which is of the same kind as the bindings; its test fills files."""

_HEADER_MAGIC = b"VSPYJRNL"
_FREE, _ACTIVE = 1, 2


class Failpoints:
    """Counts visits and ends the process at one of them. Used by several threads of one process.

    Args:
        target: Name of the point; empty kills nowhere.
        visit: Which visit of it, from 1.
        log: File that gets the name of each point at its first visit.
    """

    def __init__(self, target: str, visit: int, log: Path) -> None:
        self._target = target
        self._visit = visit
        self._visits: Counter[str] = Counter()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def visit(self, name: str) -> None:
        """Say that a point is reached."""
        self._visits[name] += 1
        if self._visits[name] == 1:
            os.write(self._log, f"{name}\n".encode())
        if name == self._target and self._visits[name] == self._visit:
            os.kill(os.getpid(), signal.SIGKILL)


def name_of_write(data: bytes | memoryview, offset: int) -> str:
    """Return what a write on a journal file is for."""
    if offset == 0 and data[:8] == _HEADER_MAGIC:
        if data[10] == _ACTIVE:
            return "header of an activated file"
        return "header of a freed file" if any(data[32:40]) else "header of a new file"
    try:
        header = decode_block_header(data, offset=offset)
    except JournalFormatError:
        return "zeros of a new file"
    return "recovery's seal" if header.is_seal else "blocks"


def name_of_blocks(data: bytes) -> str:
    """Return what a run of blocks is for: the rarest kind of record in it."""
    found: set[int] = set()
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = decode_block_header(data[at:], offset=at)
        payload = memoryview(data)[at + HEADER_BYTES : at + HEADER_BYTES + header.payload_bytes]
        found |= {raw.type for raw in walk_records(payload, header.records)}
        at += header.length
    for kind, name in (
        (RecordType.SEAL, "a file's end"),
        (RecordType.FILES, "a checkpoint"),
        (RecordType.COMMIT, "a commit"),
        (RecordType.ADD, "messages"),
        (RecordType.ACK, "acknowledgements"),
        (RecordType.PUT, "a value"),
        (RecordType.REMOVE, "a removal"),
        (RecordType.COUNT, "messages given back"),
        (RecordType.QUEUES, "queue states"),
    ):
        if kind in found:
            return name
    return "a covering block" if not found else "others"


class WatchedFile:
    """A file that visits a point before and after each write and flush."""

    def __init__(self, inner: DiskFile, points: Failpoints, prefix: str) -> None:
        self._inner = inner
        self._points = points
        self._prefix = prefix
        self._written = "what was read"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: memoryview, offset: int) -> None:
        self._written = name_of_write(data, offset)
        self._points.visit(f"{self._prefix}: before write of {self._written}")
        self._inner.write(data, offset)
        self._points.visit(f"{self._prefix}: after write of {self._written}")

    def flush(self) -> None:
        self._points.visit(f"{self._prefix}: before flush of {self._written}")
        self._inner.flush()
        self._points.visit(f"{self._prefix}: after flush of {self._written}")


class WatchedDisk:
    """The real disk with a point before and after each call that changes it.

    Args:
        points: The points.
        prefix: Begins their names: which journal it is.
    """

    def __init__(self, points: Failpoints, prefix: str) -> None:
        self._inner: DiskLike = Disk()
        self._points = points
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _around(self, what: str, call: Any, *arguments: Any, **names: Any) -> Any:
        self._points.visit(f"{self._prefix}: before {what}")
        result = call(*arguments, **names)
        self._points.visit(f"{self._prefix}: after {what}")
        return result

    def names(self, folder: Path) -> list[str]:
        return self._inner.names(folder)

    def usage(self, folder: Path) -> Usage:
        return self._inner.usage(folder)

    def create(self, path: Path, *, is_direct: bool) -> WatchedFile:
        made = self._around("making a file", self._inner.create, path, is_direct=is_direct)
        return WatchedFile(made, self._points, self._prefix)

    def open(self, path: Path, *, is_direct: bool, is_readonly: bool) -> WatchedFile:
        opened = self._inner.open(path, is_direct=is_direct, is_readonly=is_readonly)
        return WatchedFile(opened, self._points, self._prefix)

    def rename(self, old: Path, new: Path) -> None:
        if new.parent.name == "attic":
            what = "rename to the attic"
        else:
            what = "rename of a new file" if old.suffix == ".tmp" else "rename to the next id"
        self._around(what, self._inner.rename, old, new)

    def remove(self, path: Path) -> None:
        self._around("removing a file", self._inner.remove, path)

    def flush_folder(self, folder: Path) -> None:
        self._around("flush of the folder", self._inner.flush_folder, folder)


class WatchedRing:
    """A ring with points around the submission of each write and around its completion.

    `before completion` is visited when the kernel has finished a write and nobody was told;
    `after completion` when the ring is looked at again: confirms have gone to their connections.
    """

    def __init__(self, inner: Ring, points: Failpoints, prefix: str) -> None:
        self._inner = inner
        self._points = points
        self._prefix = prefix
        self._writes: dict[int, str] = {}
        self._told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def submit_write(
        self,
        fd: int,
        buffer_address: int,
        length: int,
        offset: int,
        token: int,
        *,
        durable: bool = True,
    ) -> None:
        name = name_of_blocks(ctypes.string_at(buffer_address, length))
        self._writes[token] = name
        self._points.visit(f"{self._prefix}: before submission of {name}")
        self._inner.submit_write(fd, buffer_address, length, offset, token, durable=durable)
        self._points.visit(f"{self._prefix}: after submission of {name}")

    def completions(self) -> list[tuple[int, int]]:
        self._tell()
        taken = self._inner.completions()
        for token, _ in taken:
            name = self._writes.pop(token, "")
            if name:
                self._points.visit(f"{self._prefix}: before completion of {name}")
                self._told.append(name)
        return taken

    def _tell(self) -> None:
        told, self._told = self._told, []
        for name in told:
            self._points.visit(f"{self._prefix}: after completion of {name}")
