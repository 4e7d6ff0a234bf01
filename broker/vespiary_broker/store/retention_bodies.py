"""Bodies of large messages that nobody needs any more, kept beside the copies of journal files.

Owns: the folder `large-messages` in that of the copies: names, and the making of a copy (temporary
name, read back, flushed, renamed, folder flushed). Must never touch the broker's own body but to
read it. All of it blocks; called by `retention_folder` in the retention's thread, and by the
replay, which only reads.

A copy is the body byte for byte, named `YYYYMMDDhhmmss-ID.msg`: the time (UTC) at which it was put
aside, and the body's id in 16 hexadecimal digits.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from vespiary_broker.store.body_files import FOLDER_NAME
from vespiary_broker.store.disk import DiskFile, DiskLike
from vespiary_broker.store.retained import Copy, parse_time, time_text
from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.file_forms import kept_body_parts
from vespiary_spec.errors import CorruptRecord, NativeError, VespiaryError

_UNFINISHED: Final = ".tmp"
_PIECE_BYTES: Final = 1024 * 1024


def kept_body_name(time_ms: int, large_id: int) -> str:
    """Return the name of a kept body."""
    return f"{time_text(time_ms)}-{large_id:016x}.msg"


def parse_body_name(name: str) -> tuple[int, int] | None:
    """Return time in milliseconds and body id of a kept body's name; None if it is no such name."""
    parts = kept_body_parts(name)
    time_ms = None if parts is None else parse_time(parts[0])
    return None if parts is None or time_ms is None else (time_ms, parts[1])


class KeptBodies:
    """The kept bodies. Owner: the retention's thread.

    Args:
        directory: The folder of the copies; the bodies have one of their own in it.
        disk: The file system.
        clock_ms: Milliseconds since 1970.

    Attributes:
        copies: What is kept; `file_id` is the id of the body.
        size_bytes: Size of all.
    """

    def __init__(self, directory: Path, disk: DiskLike, clock_ms: Callable[[], int]) -> None:
        self._folder = directory / FOLDER_NAME
        self._disk = disk
        self._clock_ms = clock_ms
        self.copies: dict[int, Copy] = {}
        self.size_bytes = 0

    def survey(self) -> None:
        """Find the kept bodies and remove what a crash left half made.

        Raises:
            NativeError: The folder can't be read.
        """
        self.copies, self.size_bytes = {}, 0
        names = self._disk.names(self._folder)
        for name in names:
            path = self._folder / name
            if name.endswith(_UNFINISHED) and parse_body_name(name.removesuffix(_UNFINISHED)):
                self._disk.remove(path)
                continue
            parsed = parse_body_name(name)
            if parsed is not None:
                file = self._disk.open(path, is_direct=False, is_readonly=True)
                try:
                    self._note(Copy(*parsed, file.size_bytes(), path))
                finally:
                    file.close()
        if names:
            self._disk.flush_folder(self._folder)

    def keep(self, bodies: Iterable[tuple[int, Path]]) -> None:
        """Copy bodies, but those that are kept already or are not there (any more).

        Args:
            bodies: Id and file of each.

        Raises:
            CorruptRecord: What was read back of a copy is not what was written.
            NativeError: A call failed. What was copied before counts.

        Durability: on return the copies survive a power cut.
        """
        made = []
        try:
            for large_id, source in bodies:
                if large_id not in self.copies:
                    copy = self._copy(large_id, source)
                    made += [copy] if copy else []
        finally:
            if made:
                # One that has no durable name yet is copied again after a crash.
                self._disk.flush_folder(self._folder)
                for copy in made:
                    self._note(copy)

    def forget(self, copy: Copy) -> None:
        """Forget a body that was removed."""
        del self.copies[copy.file_id]
        self.size_bytes -= copy.size_bytes

    def flush(self) -> None:
        """Make removals durable."""
        self._disk.flush_folder(self._folder)

    def _note(self, copy: Copy) -> None:
        self.copies[copy.file_id] = copy
        self.size_bytes += copy.size_bytes

    def _copy(self, large_id: int, source: Path) -> Copy | None:
        try:
            body = self._disk.open(source, is_direct=False, is_readonly=True)
        except NativeError as error:
            if error.errno == errno.ENOENT:  # its message was damaged, and was purged
                return None
            raise
        try:
            self._disk.make_folder(self._folder)
            time_ms = self._clock_ms()
            path = self._folder / kept_body_name(time_ms, large_id)
            size_bytes = self._write(body, path)
        finally:
            body.close()
        return Copy(time_ms // 1000 * 1000, large_id, size_bytes, path)

    def _write(self, body: DiskFile, path: Path) -> int:
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            target = self._disk.create(unfinished, is_direct=False)
            try:
                written = _walk(body, target.write)
                target.flush()
                found = _walk(target, lambda _, __: None)
            finally:
                target.close()
            if found != written:
                raise CorruptRecord(
                    "a copy of a large body reads back other than it was written",
                    where=str(unfinished),
                    measured=f"{found[0]} bytes, checksum {found[1]:08x}",
                    allowed=f"{written[0]} bytes, checksum {written[1]:08x}",
                    cure="look at the disk of journal-retention-directory",
                )
            self._disk.rename(unfinished, path)
        except VespiaryError:
            with suppress(VespiaryError):  # gives the space back that it took
                self._disk.remove(unfinished)
            raise
        return written[0]


def _walk(file: DiskFile, take: Callable[[memoryview, int], object]) -> tuple[int, int]:
    """Read a file to its end; return its size and checksum."""
    piece = memoryview(bytearray(_PIECE_BYTES))
    offset = crc = 0
    while count := file.read_into(piece, offset):
        crc = crc32c(piece[:count], crc)
        take(piece[:count], offset)
        offset += count
    return offset, crc


def find_bodies(directory: Path, disk: DiskLike) -> dict[int, Path]:
    """Return the kept bodies in a folder of copies, by their ids.

    Raises:
        NativeError: The folder can't be read.
    """
    folder = directory / FOLDER_NAME
    found = {}
    for name in disk.names(folder):
        parsed = parse_body_name(name)
        if parsed is not None:
            found[parsed[1]] = folder / name
    return found
