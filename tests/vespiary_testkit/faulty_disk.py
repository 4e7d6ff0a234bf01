"""A file system in memory that fills up, fails, and can have its power cut at any moment.

`MemoryDisk` keeps `vespiary_broker.store.disk.DiskLike`. It writes down everything that would reach
a real disk, in order, so that `crash_images` can build what the disk might hold after a power cut:
what was flushed is there; of what was not, any part may be, page by page and sector by sector.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import random
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from vespiary_broker.store.disk import Usage
from vespiary_spec.errors import NativeError
from vespiary_testkit.virtual_time import run_virtual

PAGE = 4096
SECTOR = 512


class InlineExecutor(Executor):
    """Runs what it is given at once, in the caller's thread: no race in a test is by chance."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class Op(NamedTuple):
    """One step that a disk saw.

    Attributes:
        kind: make, write, done (a ring's write is durable), flush, rename, remove, folder, mark.
        inode: The file.
        offset: For writes.
        data: For writes.
        name: For make, rename, remove; any text for mark.
        token: Pairs a ring's write with its `done`.
    """

    kind: str
    inode: int = 0
    offset: int = 0
    data: bytes = b""
    name: str = ""
    token: int = -1


@dataclass
class Inode:
    """The bytes of one file, as a reader sees them now."""

    number: int
    data: bytearray = field(default_factory=bytearray)
    is_shared: bool = False  # with other images: copied before it is written


class MemoryFile:
    """A `DiskFile` of a `MemoryDisk`."""

    def __init__(self, disk: MemoryDisk, path: Path, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self.inode = inode
        self._fd = disk.open_fd(self)

    @property
    def path(self) -> Path:
        return self._path

    def fileno(self) -> int:
        return self._fd

    def size_bytes(self) -> int:
        return len(self.inode.data)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        self._disk.step("read", self._path)
        part = self.inode.data[offset : offset + len(buffer)]
        buffer[: len(part)] = part
        return len(part)

    def write(self, data: memoryview, offset: int) -> None:
        self._disk.step("write", self._path)
        self._disk.store(self.inode, offset, bytes(data))

    def set_size(self, size_bytes: int) -> None:
        self._disk.step("set_size", self._path)
        assert size_bytes >= len(self.inode.data), "journal files never get shorter"
        if size_bytes > len(self.inode.data):
            # A length is set whole or not at all; its last byte stands for it.
            self._disk.store(self.inode, size_bytes - 1, b"\0")

    def flush(self) -> None:
        self._disk.step("flush", self._path)
        self._disk.log.append(Op("flush", self.inode.number))

    def close(self) -> None:
        self._disk.close_fd(self._fd)


class MemoryDisk:
    """A file system in memory; a folder is there while a file is in it.

    Args:
        capacity_bytes: What fits; more is ENOSPC.
    """

    def __init__(self, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.files: dict[Path, Inode] = {}
        self.log: list[Op] = []
        self.fail: Callable[[str, Path], int] = lambda _kind, _path: 0
        self.open_files: dict[int, MemoryFile] = {}
        self._next_fd = 1000
        self._next_inode = 1

    # --- what a test says ------------------------------------------------------------------------

    def mark(self, name: str) -> None:
        """Write a remark into the log."""
        self.log.append(Op("mark", name=name))

    def step(self, kind: str, path: Path) -> None:
        """Fail if the test wants this call to."""
        number = self.fail(kind, path)
        if number:
            raise NativeError(f"cannot {kind}", number, where=str(path))

    def copy(self) -> MemoryDisk:
        """Return a disk with the same files and an empty log."""
        other = MemoryDisk(self.capacity_bytes)
        for path, inode in self.files.items():
            other.files[path] = Inode(inode.number, bytearray(inode.data))
        other._next_inode = self._next_inode
        return other

    def flip(self, path: Path, offset: int, bit: int) -> None:
        """Flip one bit of a file."""
        self.files[path].data[offset] ^= 1 << bit

    def start_inodes(self, number: int) -> None:
        """Give files that are made from now on numbers from `number` on."""
        self._next_inode = number

    # --- what files and rings say ----------------------------------------------------------------

    def open_fd(self, file: MemoryFile) -> int:
        self._next_fd += 1
        self.open_files[self._next_fd] = file
        return self._next_fd

    def close_fd(self, fd: int) -> None:
        self.open_files.pop(fd, None)

    def store(self, inode: Inode, offset: int, data: bytes, token: int = -1) -> None:
        if inode.is_shared:
            inode.data, inode.is_shared = bytearray(inode.data), False
        end = offset + len(data)
        more = max(end - len(inode.data), 0)
        if self.used_bytes() + more > self.capacity_bytes:
            raise NativeError("cannot write", errno.ENOSPC)
        if more:
            inode.data.extend(bytes(more))
        inode.data[offset:end] = data
        self.log.append(Op("write", inode.number, offset, data, token=token))

    def used_bytes(self) -> int:
        """Return what all files take."""
        return sum(len(inode.data) for inode in self.files.values())

    # --- DiskLike --------------------------------------------------------------------------------

    def names(self, folder: Path) -> list[str]:
        below = [path.relative_to(folder) for path in self.files if folder in path.parents]
        return sorted({path.parts[0] for path in below})

    def make_folder(self, folder: Path) -> None:
        """Folders are there as soon as somebody speaks of them."""

    def create(self, path: Path, *, is_direct: bool) -> MemoryFile:
        self.step("create", path)
        inode = Inode(self._next_inode)
        self._next_inode += 1
        self.files[path] = inode
        self.log.append(Op("make", inode.number, name=str(path)))
        return MemoryFile(self, path, inode)

    def open(self, path: Path, *, is_direct: bool, is_readonly: bool) -> MemoryFile:
        self.step("open", path)
        if path not in self.files:
            raise NativeError("cannot open the file", errno.ENOENT, where=str(path))
        return MemoryFile(self, path, self.files[path])

    def copy_file(self, source: Path, target: Path, size_bytes: int) -> None:
        self.step("copy", target)
        data = bytes(self.files[source].data[:size_bytes])
        assert len(data) == size_bytes, f"{source} has {len(data)} bytes"
        self.store(self.files[target], 0, data)

    def allocated_bytes(self, path: Path) -> int:
        return len(self.files[path].data)

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", old)
        assert new not in self.files, new
        inode = self.files[new] = self.files.pop(old)
        self.log.append(Op("rename", inode.number, name=f"{old}\0{new}"))

    def remove(self, path: Path) -> None:
        self.step("remove", path)
        if path not in self.files:
            raise NativeError("cannot remove the file", errno.ENOENT, where=str(path))
        inode = self.files.pop(path)
        self.log.append(Op("remove", inode.number, name=str(path)))

    def remove_folder(self, folder: Path) -> None:
        self.step("remove_folder", folder)
        assert not self.names(folder), folder

    def flush_folder(self, folder: Path) -> None:
        self.step("flush_folder", folder)
        self.log.append(Op("folder", name=str(folder)))

    def usage(self, folder: Path) -> Usage:
        return Usage(self.capacity_bytes, self.capacity_bytes - self.used_bytes())


# --- power cuts ----------------------------------------------------------------------------------


class Image(NamedTuple):
    """What a disk might hold after the power was cut.

    Attributes:
        disk: The files.
        cut: Number of steps in the log that had begun.
        marks: Names of the marks before the cut.
        label: How the part that was not flushed was chosen.
    """

    disk: MemoryDisk
    cut: int
    marks: tuple[str, ...]
    label: str


class PendingWrite(NamedTuple):
    """A write, or a part of one, that no flush has covered."""

    inode: int
    offset: int
    data: bytes


class DiskState:
    """The durable part of a disk, and what is under way, at one moment of a log."""

    def __init__(self) -> None:
        self.content: dict[int, bytearray] = {}
        self.names: dict[Path, int] = {}
        self.pending: list[tuple[int, PendingWrite]] = []  # (token, write)
        self.names_pending: list[Op] = []
        self.marks: list[str] = []

    def apply(self, op: Op) -> None:
        if op.kind == "write":
            self.pending.append((op.token, PendingWrite(op.inode, op.offset, op.data)))
        elif op.kind == "done":
            self._settle(lambda token, _: token == op.token)
        elif op.kind == "flush":
            self._settle(lambda _, write: write.inode == op.inode)
        elif op.kind in ("make", "rename", "remove"):
            self.names_pending.append(op)
        elif op.kind == "folder":
            later = []
            for waiting in self.names_pending:
                if op.name in ("", str(Path(waiting.name.rpartition("\0")[2]).parent)):
                    self.rename(self.names, waiting)
                else:
                    later.append(waiting)
            self.names_pending = later
        elif op.kind == "mark":
            self.marks.append(op.name)

    def _settle(self, is_flushed: Callable[[int, PendingWrite], bool]) -> None:
        kept = []
        for token, write in self.pending:
            if is_flushed(token, write):
                # A copy: images made before share the bytes as they were.
                self.content[write.inode] = bytearray(self.content.get(write.inode, b""))
                put(self.content, write.inode, write.offset, write.data)
            else:
                kept.append((token, write))
        self.pending = kept

    def pages(self) -> list[PendingWrite]:
        """Return what no flush has covered, page by page."""
        return [
            PendingWrite(write.inode, write.offset + at, write.data[at : at + PAGE])
            for _, write in self.pending
            for at in range(0, len(write.data), PAGE)
        ]

    def image(self, chosen: list[PendingWrite], names: list[Op]) -> MemoryDisk:
        """Return the disk with the flushed part, these writes and these names."""
        touched = {page.inode for page in chosen}
        content = {
            number: bytearray(data) if number in touched else data
            for number, data in self.content.items()
        }
        for page in chosen:
            put(content, page.inode, page.offset, page.data)
        there = dict(self.names)
        for op in names:
            self.rename(there, op)
        disk = MemoryDisk()
        disk.start_inodes(max(there.values(), default=0) + 1_000_000)
        for path, number in there.items():
            disk.files[path] = Inode(number, content.get(number, bytearray()), is_shared=True)
        return disk

    @staticmethod
    def rename(names: dict[Path, int], op: Op) -> None:
        if op.kind == "make":
            names[Path(op.name)] = op.inode
        elif op.kind == "remove":
            names.pop(Path(op.name), None)
        else:
            old, new = op.name.split("\0")
            names.pop(Path(old), None)
            names[Path(new)] = op.inode


def put(content: dict[int, bytearray], inode: int, offset: int, data: bytes) -> None:
    """Write bytes into a file of an image."""
    file = content.setdefault(inode, bytearray())
    if offset + len(data) > len(file):
        file.extend(bytes(offset + len(data) - len(file)))
    file[offset : offset + len(data)] = data


@functools.cache
def recorded(
    live: Callable[[Path, MemoryDisk], Coroutine[Any, Any, None]], folder: Path
) -> tuple[Op, ...]:
    """Return what a workload did to its disk; it is run once for all tests that ask for it.

    Args:
        live: The workload.
        folder: Where it has its journal.
    """
    disk = MemoryDisk()
    logging.disable(logging.WARNING)
    try:
        run_virtual(live(folder, disk))
    finally:
        logging.disable(logging.NOTSET)
    return tuple(disk.log)


def disk_steps(log: list[Op]) -> list[int]:
    """Return the steps behind which a cut may leave something else than the cut before: not names
    that no flush covers yet, nor marks. Counted from 1, as ends of `log`."""
    kinds = ("write", "done", "flush", "folder")
    return [number for number, op in enumerate(log, 1) if op.kind in kinds]


def crash_images(
    log: list[Op],
    *,
    seed: int,
    start: int = 0,
    subsets_max: int = 1024,
    torn_max: int = 16,
    is_boundary: Callable[[Op], bool] = lambda op: op.kind in ("write", "done", "flush", "folder"),
) -> Iterator[Image]:
    """Build images for a power cut behind every step that matters.

    Of what was not flushed at that moment: all subsets of its pages if there are ten or fewer, else
    none, all, each prefix, each single page missing and random ones; then single pages torn at
    sectors.

    Args:
        log: What the disk saw.
        seed: For what is chosen at random.
        start: Steps before this one are not cut behind.
        subsets_max: Most subsets for one moment; more are sampled.
        torn_max: Most torn pages for one moment; more are sampled.
        is_boundary: Steps behind which the power may go.
    """
    chance = random.Random(seed)
    state = DiskState()
    for cut, op in enumerate(log, 1):
        state.apply(op)
        if cut <= start or not is_boundary(op):
            continue
        marks = tuple(state.marks)
        for label, chosen in _choices(state.pages(), chance, subsets_max, torn_max):
            for names_done in {0, len(state.names_pending)}:
                disk = state.image(chosen, state.names_pending[:names_done])
                yield Image(disk, cut, marks, f"{label}, {names_done} names")


def _choices(
    pages: list[PendingWrite], chance: random.Random, subsets_max: int, torn_max: int
) -> Iterator[tuple[str, list[PendingWrite]]]:
    count = len(pages)
    if count <= 10 and 2**count <= subsets_max:
        for chosen in itertools.product((False, True), repeat=count):
            yield (
                f"pages {chosen}",
                [page for page, is_there in zip(pages, chosen, strict=True) if is_there],
            )
    else:
        yield "none", []
        yield "all", pages
        for _ in range(subsets_max - 2):
            chosen_pages = [page for page in pages if chance.random() < 0.5]
            yield "a random subset", chosen_pages
    torn = [(index, edge) for index in range(count) for edge in range(SECTOR, PAGE, SECTOR)]
    for index, edge in torn if len(torn) <= torn_max else chance.sample(torn, torn_max):
        page = pages[index]
        yield (
            f"page {index} torn at {edge}",
            [
                *pages[:index],
                page._replace(data=page.data[:edge]),
            ],
        )
        yield (
            f"page {index} begins at {edge}",
            [
                *pages[:index],
                page._replace(offset=page.offset + edge, data=page.data[edge:]),
            ],
        )
