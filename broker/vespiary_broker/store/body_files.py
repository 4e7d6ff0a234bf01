"""Bodies of large messages, as the tools see them: are they there, and copies of them.

Owns: the comparison of a body's file with what the journal says of it (journal-format §3.5), and
the way in which a body gets to another folder. Must never change or remove a body, and never take
another file's place. Called by `verifying`, `salvage` and the CLI's export and import; it blocks.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vespiary_broker.store.disk import DiskLike
from vespiary_broker.store.live_set import LiveBody
from vespiary_codec.checksum import crc32c
from vespiary_codec.journal.large_reference import LargeReference, body_name
from vespiary_spec.errors import NativeError

_PIECE_BYTES: Final = 1024 * 1024
_NAMES: Final = "bodies.txt"
FOLDER_NAME: Final = "large-messages"
"""Name of the folder beside that of the journal, unless `large-messages-directory` says another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBody:
    """A body that is not as its message says.

    Attributes:
        file: Name of its file.
        queue_id: A queue of its message.
        sequence: The message's number there; 0 in a prepared branch.
        what: What is wrong with it, as a clause.
    """

    file: str
    queue_id: int
    sequence: int
    what: str

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.file} of message {self.sequence} in queue {self.queue_id}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedBodies:
    """What became of bodies that were to be copied.

    Attributes:
        folder: Where to.
        files: Bodies that are there now.
        size_bytes: Bytes of them.
        lost: Those that could not be had.
    """

    folder: str = ""
    files: int = 0
    size_bytes: int = 0
    lost: tuple[LostBody, ...] = ()


def check_bodies(bodies: Iterable[LiveBody], folder: Path, disk: DiskLike) -> list[LostBody]:
    """Return those bodies whose file is missing, or has another size or checksum.

    Args:
        bodies: What the journal refers to.
        folder: Where their files are.
        disk: The file system.
    """
    checked = ((body, _read(disk, folder, body.reference, lambda _, __: None)) for body in bodies)
    return [_lost(body, what) for body, what in checked if what]


def copy_bodies(
    bodies: Iterable[LiveBody], source: Path, target: Path, disk: DiskLike
) -> CopiedBodies:
    """Copy bodies to another folder; those that are there and whole are left as they are.

    Args:
        bodies: What the journal refers to.
        source: Where their files are.
        target: Where to; made if it is missing and there is anything to copy.
        disk: The file system.

    Raises:
        NativeError: A file cannot be written.

    Durability: on return those that were copied survive a power cut, under their names.
    """
    lost, files, size_bytes = [], 0, 0
    present = frozenset(disk.names(target))
    for body in bodies:
        what = _copy(disk, body.reference, source, target, present)
        if what:
            lost.append(_lost(body, what))
        else:
            files += 1
            size_bytes += body.reference.size_bytes
    if files:
        disk.flush_folder(target)
    return CopiedBodies(folder=str(target), files=files, size_bytes=size_bytes, lost=tuple(lost))


def write_names(bodies: Iterable[LiveBody], folder: Path, disk: DiskLike) -> None:
    """Write down which bodies a text needs, beside them.

    Args:
        bodies: What the journal refers to.
        folder: Where their copies are; made if it is missing.
        disk: The file system.

    Raises:
        NativeError: It cannot be written.

    Durability: on return it survives a power cut.
    """
    disk.make_folder(folder)
    if _NAMES in disk.names(folder):
        disk.remove(folder / _NAMES)
    names = "".join(f"{body_name(body.reference.large_id)}\n" for body in bodies).encode()
    file = disk.create(folder / f"{_NAMES}.tmp", is_direct=False)
    try:
        file.write(memoryview(names), 0)
        file.flush()
    finally:
        file.close()
    disk.rename(folder / f"{_NAMES}.tmp", folder / _NAMES)
    disk.flush_folder(folder)


def read_names(folder: Path, disk: DiskLike) -> frozenset[str] | None:
    """Return the names that `write_names` wrote; None if it did not.

    Raises:
        NativeError: They cannot be read.
    """
    if _NAMES not in disk.names(folder):
        return None
    file = disk.open(folder / _NAMES, is_direct=False, is_readonly=True)
    try:
        data = memoryview(bytearray(file.size_bytes()))
        count = file.read_into(data, 0)
    finally:
        file.close()
    return frozenset(bytes(data[:count]).decode().split())


def _lost(body: LiveBody, what: str) -> LostBody:
    return LostBody(
        file=body_name(body.reference.large_id),
        queue_id=body.queue_id,
        sequence=body.sequence,
        what=what,
    )


def _copy(
    disk: DiskLike,
    reference: LargeReference,
    source: Path,
    target: Path,
    present: Container[str],
) -> str:
    """Copy one body; return why that cannot be, or nothing."""
    name = body_name(reference.large_id)
    if name in present:
        what = _read(disk, target, reference, lambda _, __: None)
        return f"{target / name} is there, and is another: {what}" if what else ""
    disk.make_folder(target)
    unfinished = target / f"{name}.tmp"
    file = disk.create(unfinished, is_direct=False)
    try:
        what = _read(disk, source, reference, file.write)
        if not what:
            file.flush()
    except NativeError:
        file.close()
        with suppress(NativeError):
            disk.remove(unfinished)
        raise
    file.close()
    if what:
        disk.remove(unfinished)
        return what
    disk.rename(unfinished, target / name)
    return ""


def _read(
    disk: DiskLike,
    folder: Path,
    reference: LargeReference,
    take: Callable[[memoryview, int], object],
) -> str:
    return read_body(disk, folder / body_name(reference.large_id), reference, take)


def read_body(
    disk: DiskLike,
    path: Path,
    reference: LargeReference,
    take: Callable[[memoryview, int], object],
) -> str:
    """Read a body piece by piece; return what is wrong with it, or nothing.

    Args:
        disk: The file system.
        path: Its file.
        reference: What the journal says of it.
        take: Given each piece and its offset.

    Raises:
        NativeError: What `take` raises.
    """
    try:
        file = disk.open(path, is_direct=False, is_readonly=True)
    except NativeError as error:
        return "the file is missing" if error.errno == errno.ENOENT else str(error)
    piece = memoryview(bytearray(min(_PIECE_BYTES, max(reference.size_bytes, 1))))
    crc = offset = 0
    try:
        size_bytes = file.size_bytes()
        if size_bytes != reference.size_bytes:
            return f"the file has {size_bytes} bytes, the message {reference.size_bytes}"
        while offset < size_bytes:
            try:
                count = file.read_into(piece[: size_bytes - offset], offset)
            except NativeError as error:
                return str(error)
            if not count:
                return f"the file ends at {offset} of {size_bytes} bytes"
            crc = crc32c(piece[:count], crc)
            take(piece[:count], offset)
            offset += count
    finally:
        file.close()
    if crc != reference.crc:
        return f"the file has the checksum {crc:08x}, the message {reference.crc:08x}"
    return ""
