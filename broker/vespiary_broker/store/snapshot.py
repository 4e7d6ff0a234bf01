"""Copies of all files of a broker that is stopped, beside them, and the way back.

A copy is taken before a version that writes another format opens the files. Each folder has its own
part, `.vespiary-snapshot-NAME`, on its own volume. It is made under another name, every file
flushed, then renamed, so it is there whole or not at all. Bytes are copied, never shared with the
originals: journal files are written in place, and a shared block would need new room at each write.

Owns: taking, listing, restoring and removing copies. Must never change an original but in
`restore`, which moves what is there aside. Called by the command line, with the broker stopped.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from vespiary_broker.store.disk import Disk
from vespiary_broker.store.lock import LOCK_NAME, FolderLock
from vespiary_codec.journal import file_header, page
from vespiary_spec import units
from vespiary_spec.errors import DiskFull, StorageError
from vespiary_spec.regular_files import open_regular

log = logging.getLogger(__name__)

PREFIX: Final = ".vespiary-snapshot-"
_ASIDE: Final = ".vespiary-replaced-"
_RESTORING: Final = ".vespiary-restoring-"
_UNFINISHED: Final = ".part"
_MANIFEST: Final = "snapshot.json"
_NAME: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,62}")
_VERSION_AT: Final = struct.Struct("<8sH")
_MAGICS: Final = {file_header.MAGIC: "journal", page.MAGIC: "page"}
_OWN: Final = (".vespiary-", "lost+found")


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one folder's part of a copy holds.

    Attributes:
        name: Name of the copy.
        folder: The folder.
        taken_at: When, RFC 3339.
        files: Number of files.
        size_bytes: Their bytes.
    """

    name: str
    folder: str
    taken_at: str
    files: int
    size_bytes: int


def take(folders: Mapping[str, Path], name: str, *, before: Mapping[str, int]) -> list[Part]:
    """Copy all files of a broker.

    Args:
        folders: Its folders by kind: `journal`, `bindings` and so on.
        name: Name of the copy.
        before: Kind of file (`journal`, `page`) and the highest format that it may have. If one has
            a higher one, a newer version has opened the files already, and nothing is copied. With
            such a condition the call may be repeated: a broker without files has nothing to copy,
            a folder that has a part keeps it, and one that has none gets it. So a copy that was cut
            short is completed; the caller makes sure that no broker opens the files in between, as
            an init container does, and takes another name for each upgrade.

    Returns:
        The parts; none if nothing had to be copied.

    Raises:
        DiskFull: A volume has no room for its part. Nothing was left behind.
        JournalLocked: A broker runs on the files.
        StorageError: The name cannot be one, no folder exists, or a file could not be copied.
            Without a condition also: there are no files of a broker, or a folder has a part of this
            name already. Then nothing is removed: the copy may be a good one.

    Durability: on return every part survives a power cut.
    """
    _check_name(name)
    disk = Disk()
    here = _existing(folders, may_be_empty=bool(before))
    with _locked(here):
        newer = _newer(here, before)
        if newer:
            log.info("nothing is copied: %s", newer)
            return []
        missing = [folder for folder in here.values() if not (folder / f"{PREFIX}{name}").is_dir()]
        if not before and len(missing) < len(here):
            without = f", without {', '.join(map(str, missing))}" if missing else ""
            raise StorageError(
                f"there is a copy of this name already{without}",
                where=str(next(folder for folder in here.values() if folder not in missing)),
                measured=name,
                cure="take another name, or remove it with `vespiary journal remove-snapshot`",
            )
        for folder in here.values():
            _remove_tree(disk, folder / f"{PREFIX}{name}{_UNFINISHED}")
        _check_room(
            {folder: [path.stat().st_size for path in _content(folder)] for folder in missing},
            "the copy of the files does not fit",
            "enlarge the volume, consume messages, or remove copies that are not needed",
        )
        for folder in missing:
            _take_part(disk, folder, name)
    return [_part(folder / f"{PREFIX}{name}") for folder in here.values()]


def listed(folders: Mapping[str, Path]) -> list[Part]:
    """Return every part of every copy, by name; unfinished ones are not among them.

    Raises:
        StorageError: A part cannot be read, or there are no files of a broker.
    """
    found = [
        _part(entry)
        for folder in _existing(folders).values()
        for entry in folder.iterdir()
        if entry.name.startswith(PREFIX) and not entry.name.endswith(_UNFINISHED)
    ]
    return sorted(found, key=lambda part: (part.name, part.folder))


def remove(folders: Mapping[str, Path], name: str) -> int:
    """Remove a copy; return how many folders had a part of it.

    Raises:
        StorageError: The name cannot be one, there are no files of a broker, or a file could not be
            removed.
    """
    _check_name(name)
    disk = Disk()
    count = 0
    for folder in _existing(folders).values():
        for ending in ("", _UNFINISHED):
            count += _remove_tree(disk, folder / f"{PREFIX}{name}{ending}")
    return count


def restore(folders: Mapping[str, Path], name: str) -> list[Part]:
    """Put back a copy; what is there now is moved aside, into `.vespiary-replaced-NAME`.

    Everything that was confirmed after the copy was taken is not in it. A restore that was cut
    short is called again and goes on.

    Args:
        folders: The broker's folders by kind.
        name: Name of the copy.

    Raises:
        StorageError: A folder has no part of it, or there are no files of a broker; nothing was
            changed.
        DiskFull: A volume has no room for its part beside what is there; nothing was changed.
        JournalLocked: A broker runs on the files.

    Durability: on return everything survives a power cut.
    """
    _check_name(name)
    disk = Disk()
    here = _existing(folders)
    for folder in here.values():
        if not (folder / f"{PREFIX}{name}").is_dir():
            raise StorageError(
                "there is no such copy",
                where=str(folder),
                measured=name,
                allowed=", ".join(sorted({part.name for part in listed(folders)})) or "none",
            )
    with _locked(here):
        _check_room(
            {
                folder: [path.stat().st_size for path in _files(folder / f"{PREFIX}{name}/files")]
                for folder in here.values()
                if not (folder / f"{_RESTORING}{name}").exists()  # else it has begun
            },
            "the copy does not fit beside the files that it replaces",
            "enlarge the volume, or remove copies that are not needed",
        )
        for folder in here.values():
            _restore_part(disk, folder, name)
        for folder in here.values():
            disk.remove(folder / f"{_RESTORING}{name}")
            disk.flush_folder(folder)
    return [_part(folder / f"{PREFIX}{name}") for folder in here.values()]


# --- one folder ---------------------------------------------------------------------------------


def _take_part(disk: Disk, folder: Path, name: str) -> None:
    unfinished = folder / f"{PREFIX}{name}{_UNFINISHED}"
    disk.make_folder(unfinished)
    files = size_bytes = 0
    for source in _content(folder):
        size = source.stat().st_size
        _copy(disk, source, unfinished / "files" / source.relative_to(folder), size)
        files += 1
        size_bytes += size
    part = Part(
        name=name,
        folder=str(folder),
        taken_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        files=files,
        size_bytes=size_bytes,
    )
    _write(disk, unfinished / _MANIFEST, msgspec.json.encode(part))
    for inner in _folders(unfinished):
        disk.flush_folder(inner)
    disk.rename(unfinished, folder / f"{PREFIX}{name}")
    disk.flush_folder(folder)


def _restore_part(disk: Disk, folder: Path, name: str) -> None:
    """Move what is there aside, then copy; a marker, which stays, says that the first is done."""
    marker = folder / f"{_RESTORING}{name}"
    if not marker.exists():
        aside = _free_name(folder / f"{_ASIDE}{name}")
        disk.make_folder(aside)
        for entry in sorted(folder.iterdir()):
            if not entry.name.startswith(_OWN) and entry.name != LOCK_NAME:
                disk.rename(entry, aside / entry.name)
        disk.flush_folder(aside)
        _write(disk, marker, b"")
        disk.flush_folder(folder)
    source = folder / f"{PREFIX}{name}" / "files"
    for file in _files(source):
        target = folder / file.relative_to(source)
        target.unlink(missing_ok=True)
        _copy(disk, file, target, file.stat().st_size)
    for inner in _folders(folder):
        disk.flush_folder(inner)


def _free_name(path: Path) -> Path:
    """Return a path that nothing has: what was moved aside once is never overwritten."""
    names = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return path if not path.exists() else next(name for name in names if not name.exists())


def _copy(disk: Disk, source: Path, target: Path, size_bytes: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    file = disk.create(target, is_direct=False)
    try:
        disk.copy_file(source, target, size_bytes)
        file.flush()
    finally:
        file.close()


def _write(disk: Disk, path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    file = disk.create(path, is_direct=False)
    try:
        if data:
            file.write(memoryview(data), 0)
        file.flush()
    finally:
        file.close()


def _part(folder: Path) -> Part:
    try:
        with open(open_regular(folder / _MANIFEST, os.O_RDONLY), "rb") as file:
            return msgspec.json.decode(file.read(), type=Part)
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(f"this copy cannot be read: {error}", where=str(folder)) from error


def _remove_tree(disk: Disk, folder: Path) -> bool:
    if not folder.is_dir():
        return False
    shutil.rmtree(folder)
    disk.flush_folder(folder.parent)
    return True


# --- what there is ------------------------------------------------------------------------------


def _existing(folders: Mapping[str, Path], *, may_be_empty: bool = False) -> dict[str, Path]:
    """Return the folders that exist, each once.

    Args:
        folders: The broker's folders by kind.
        may_be_empty: Whether they may hold nothing.

    Raises:
        StorageError: None exists, or they hold neither files of a broker nor copies.
    """
    found: dict[str, Path] = {}
    for kind, folder in folders.items():
        if folder.is_dir() and folder not in found.values():
            found[kind] = folder
    if not found or not (may_be_empty or any(_is_used(folder) for folder in found.values())):
        raise StorageError(
            "there are no files of a broker here",
            where=str(next(iter(folders.values())).parent),
            cure="name the broker's data folder with --data, or its configuration with --config",
        )
    return found


def _is_used(folder: Path) -> bool:
    return any(folder.glob(f"{PREFIX}*")) or any(_content(folder))


def _locked(folders: Mapping[str, Path]) -> ExitStack:
    stack = ExitStack()
    try:
        for kind in ("bindings", "journal", "jms"):
            if kind in folders:
                stack.callback(FolderLock(folders[kind]).close)
    except BaseException:
        stack.close()
        raise
    return stack


def _files(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder."""
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            continue
        if entry.is_dir():
            yield from _files(entry)
        elif entry.is_file():
            yield entry


def _content(folder: Path) -> Iterator[Path]:
    """Yield a broker's files in a folder, without its lock, its stamp and copies."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(_OWN) or entry.name == LOCK_NAME or entry.is_symlink():
            continue
        if entry.is_dir():
            yield from _files(entry)
        elif entry.is_file():
            yield entry


def _folders(folder: Path) -> Iterator[Path]:
    """Yield a folder and those below it, the innermost first; other copies are left out."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(_OWN):
            yield from _folders(entry)
    yield folder


def _newer(folders: Mapping[str, Path], before: Mapping[str, int]) -> str:
    """Return which file has a newer format than is expected; empty if none has."""
    for folder in folders.values():
        for path in _content(folder):
            with open(open_regular(path, os.O_RDONLY), "rb") as file:
                head = file.read(_VERSION_AT.size)
            if len(head) < _VERSION_AT.size:
                continue
            magic, version = _VERSION_AT.unpack(head)
            kind = _MAGICS.get(magic, "")
            if kind in before and version > before[kind]:
                return f"{path} has format {version}, so a newer version has opened it already"
    return ""


def _check_room(sizes: Mapping[Path, list[int]], what: str, cure: str) -> None:
    """Refuse what does not fit, before anything is written.

    Args:
        sizes: Sizes of the files that are copied, by the folder that they go to.
        what: Which copy does not fit, as a sentence.
        cure: What to do then.
    """
    needed: dict[int, int] = {}
    place: dict[int, Path] = {}
    for folder, each in sizes.items():
        device = folder.stat().st_dev
        # As much again as the largest file stays free, for the journal's next one.
        needed[device] = needed.get(device, 0) + sum(each) + max(each, default=0)
        place[device] = folder
    for device, size_bytes in needed.items():
        usage = os.statvfs(place[device])
        free_bytes = usage.f_bavail * usage.f_frsize
        if size_bytes > free_bytes:
            raise DiskFull(
                what,
                where=str(place[device]),
                measured=f"{units.format_size_rounded(free_bytes)} free",
                allowed=f"{units.format_size_rounded(size_bytes)} or more",
                cure=cure,
            )


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or name.endswith(_UNFINISHED):
        raise StorageError(
            "this is no name of a copy",
            measured=name,
            allowed="1 to 63 letters, digits, `.`, `_` and `-`, a letter or digit first",
        )
