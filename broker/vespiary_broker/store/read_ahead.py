"""Reads the windows that a recovery is going to ask for, while it checks the one before.

Owns: two threads, their memory, and the order in which the windows are expected. Is a window asked
for that is not expected, the caller reads it himself: what is found never depends on this. An
error of a read is raised when its window is asked for; one of a window that nobody asks for is
none. Must never write. Called by `recovery`; owner: its thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from vespiary_broker.store.disk import DiskLike
from vespiary_native.memory import AlignedBuffer

_DEPTH: Final = 2
"""Reads in flight: with one, the disk waits while the next one is asked for."""


class Window(NamedTuple):
    """A part of a file that is read at once, in bytes."""

    path: Path
    offset: int
    length: int


class _Read(NamedTuple):
    """A window, the memory that it is read into, and how many bytes came, once it is done."""

    window: Window
    buffer: AlignedBuffer
    done: Future[int]


def windows_of(files: Iterable[tuple[Path, int]], first: int, size: int) -> Iterator[Window]:
    """Yield the windows of files, cut at multiples of `size`.

    Args:
        files: Paths and sizes in bytes, in the order of reading.
        first: Offset in each file where reading begins, in bytes.
        size: Largest window, in bytes.
    """
    for path, size_bytes in files:
        offset = first
        while offset < size_bytes:
            end = min((offset // size + 1) * size, size_bytes)
            yield Window(path, offset, end - offset)
            offset = end


class ReadAhead:
    """Windows read ahead.

    Args:
        disk: The file system.
        windows: In the order in which they are going to be asked for.
        is_direct: Read with O_DIRECT.
    """

    def __init__(self, disk: DiskLike, windows: Sequence[Window], *, is_direct: bool) -> None:
        self._disk = disk
        self._is_direct = is_direct
        self._windows = windows
        self._places = {(window.path, window.offset): at for at, window in enumerate(windows)}
        self._next = 0
        self._first = 0  # index of the oldest read under way
        size = max((window.length for window in windows), default=1)
        self._free = [AlignedBuffer(size, huge_pages=True) for _ in range(_DEPTH + 1)]
        self._reads: deque[_Read] = deque()
        self._given: AlignedBuffer | None = None
        self._threads = ThreadPoolExecutor(_DEPTH, thread_name_prefix="read-ahead")

    @contextmanager
    def running(self) -> Iterator[ReadAhead]:
        """Read until the end of the `with` block."""
        try:
            self._go_on()
            yield self
        finally:
            self._threads.shutdown(cancel_futures=True)

    def take(self, path: Path, offset: int, length: int) -> memoryview | None:
        """Return what stands there, or None if it is not what was expected.

        The memory is good until the next call.

        Args:
            path: The file.
            offset: In it, in bytes.
            length: So many bytes, fewer at the end of a file that grows.

        Raises:
            NativeError: It cannot be read.
        """
        if self._given is not None:
            self._free.append(self._given)
            self._given = None
        at = self._places.get((path, offset), -1)
        if at < self._first or self._windows[at].length != length:
            self._go_on()
            return None
        while self._reads and self._first < at:
            self._drop()
        if not self._reads:
            self._first = self._next = at
        self._go_on()
        read = self._reads.popleft()
        self._first += 1
        self._given = read.buffer
        count = read.done.result()
        return read.buffer.memoryview[:count]

    def _go_on(self) -> None:
        while self._free and len(self._reads) < _DEPTH and self._next < len(self._windows):
            window = self._windows[self._next]
            buffer = self._free.pop()
            done = self._threads.submit(self._read, window, buffer)
            self._reads.append(_Read(window, buffer, done))
            self._next += 1

    def _drop(self) -> None:
        """Give the memory of the oldest read back; nobody asks for what was there."""
        read = self._reads.popleft()
        self._first += 1
        wait([read.done])
        self._free.append(read.buffer)

    def _read(self, window: Window, buffer: AlignedBuffer) -> int:
        handle = self._disk.open(window.path, is_direct=self._is_direct, is_readonly=True)
        try:
            return handle.read_into(buffer.memoryview[: window.length], window.offset)
        finally:
            handle.close()
