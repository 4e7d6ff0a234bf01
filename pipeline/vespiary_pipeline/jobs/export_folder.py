"""The folder that exports are written to: what is visible in it, and what was taken already.

Owns: the layout, the manifest of each export, the lock, and the one step that makes an export
visible. Must never read a journal or know Spark. Called by `exporting`.

    DIR/_vespiary/lock                     held by the export that writes
    DIR/_vespiary/staging-N-RANDOM/…       an export that is not finished
    DIR/_vespiary/staging-N-RANDOM-tasks/… files of its tasks, those of tries that failed as well
    DIR/export=00000001/_export.json       its manifest
    DIR/export=00000001/address=orders/day=2026-11-22/part-….parquet

An export becomes visible by the rename of its folder, which bears its manifest: so whoever lists
DIR finds an export whole or not at all, and what was taken is known from the same step. Readers of
Parquet pass over names that begin with an underscore. Numbers follow one another, and a folder that
is there is never replaced: if two exports write at once although the lock should prevent it (a
shared file system without locks), the later one fails and has changed nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq

from vespiary_pipeline.files import unreadable
from vespiary_pipeline.targets import disk_errors
from vespiary_spec.errors import ExportRefused

PRIVATE: Final = "_vespiary"
MANIFEST: Final = "_export.json"
VERSION: Final = 1
_LOCK: Final = "lock"
_STAGING: Final = "staging-"
_EXPORT: Final = "export="
_DIGITS: Final = 8


class ExportedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Parquet file of an export.

    Attributes:
        path: Below the folder of the export.
        rows: Messages in it.
        size_bytes: Its size.
    """

    path: str
    rows: int
    size_bytes: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one export took.

    Attributes:
        version: Of this form.
        number: Of the export, from 1.
        made_at: When, ISO 8601 in UTC.
        journal_id: Id of the message journal, as in its files' headers, in hex.
        source: The path that was read.
        content: `messages` or `live`.
        has_bodies: Bodies are in the files.
        reached: All messages that became visible up to this position of the journal are taken.
        scan_from: Position from which on the next export has to look: that of the oldest member of
            a transaction that was undecided, else the one behind `reached`.
        files: The Parquet files.
    """

    number: int
    made_at: str
    journal_id: str
    source: str
    content: str
    has_bodies: bool
    reached: int
    scan_from: int
    files: tuple[ExportedFile, ...]
    version: int = VERSION

    @property
    def rows(self) -> int:
        """Messages in all files."""
        return sum(file.rows for file in self.files)


class FolderSteps:
    """The changes of a folder, one call each: tests put one in between that dies at any of them."""

    def make(self, folder: Path) -> None:
        """Make a folder and those above it; one that is there will do."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, data: bytes) -> None:
        """Write a whole file."""
        path.write_bytes(data)

    def flush(self, path: Path) -> None:
        """Bring a file or the names in a folder to the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a folder its name; fails if a folder with content has it."""
        old.rename(new)

    def move(self, old: Path, new: Path) -> None:
        """Give a file that nobody sees yet another name."""
        old.rename(new)

    def remove(self, folder: Path) -> None:
        """Remove a folder with all in it."""
        shutil.rmtree(folder)


class ExportFolder:
    """A folder of exports. Owner: the thread that exports.

    Args:
        folder: Its path; made when something is written.
        steps: How it is changed.
    """

    def __init__(self, folder: Path, steps: FolderSteps | None = None) -> None:
        self.folder = folder
        self._steps = steps or FolderSteps()
        self._private = folder / PRIVATE

    def manifests(self) -> list[Manifest]:
        """Return what was exported, in order.

        Raises:
            ExportRefused: A manifest cannot be read, or is of a newer version.
            NativeError: The folder can't be read.
        """
        try:
            names = [entry.name for entry in self.folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise unreadable("the folder can't be read", error, self.folder) from error
        paths = [self.folder / name / MANIFEST for name in names if name.startswith(_EXPORT)]
        found = [manifest for path in paths if (manifest := _read_manifest(path)) is not None]
        return sorted(found, key=lambda manifest: manifest.number)

    def last_of(self, journal_id: str, content: str, *, has_bodies: bool) -> Manifest | None:
        """Return the last export of a journal, None if there is none.

        Args:
            journal_id: Which journal, in hex.
            content: What is to be exported now.
            has_bodies: Whether with bodies.

        Raises:
            ExportRefused: Former exports are of another kind: their rows and the new ones would
                stand side by side as if they were the same.
        """
        manifests = self.manifests()
        for manifest in manifests:
            if (manifest.content, manifest.has_bodies) != (content, has_bodies):
                raise ExportRefused(
                    "the folder holds exports of another kind",
                    where=str(self.folder),
                    measured=_kind(content, has_bodies),
                    allowed=_kind(manifest.content, manifest.has_bodies),
                    cure="export with the same options, or to another folder",
                )
        return max(
            (each for each in manifests if each.journal_id == journal_id),
            key=lambda each: each.reached,
            default=None,
        )

    @contextmanager
    def writing(self) -> Iterator[ExportRun]:
        """Hold the folder for one export; what was not published by the end goes.

        Raises:
            ExportRefused: Another export writes to it, it cannot be written, or it holds what no
                export made.
        """
        try:
            self._check_content()
            self._steps.make(self._private)
            lock = (self._private / _LOCK).open("a+")
        except OSError as error:
            raise ExportRefused(
                f"exports cannot be written here: {error.strerror}",
                where=str(self.folder),
                cure="name a folder in which this user may write",
            ) from error
        with lock:
            self._lock(lock.fileno())
            self._sweep()
            number = max((each.number for each in self.manifests()), default=0) + 1
            # A JVM may outlive its driver for a moment: what it still writes is not to be ours.
            staging = self._private / f"{_STAGING}{number}-{secrets.token_hex(4)}"
            run = ExportRun(self.folder, staging, number, self._steps)
            try:
                yield run
            finally:
                # Of a process that dies here instead, the next export sweeps.
                for left in (staging, run.tasks):
                    if left.exists():
                        shutil.rmtree(left, ignore_errors=True)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExportRefused(
                "another export writes to this folder",
                where=str(self.folder),
                cure="wait until it has ended",
            ) from error

    def _check_content(self) -> None:
        if not self.folder.is_dir() or (self.folder / PRIVATE).is_dir():
            return
        for path in sorted(self.folder.iterdir()):
            raise ExportRefused(
                f"the folder holds {path.name}, which no export made",
                where=str(self.folder),
                cure="export to an empty folder, or to one that does not exist",
            )

    def _sweep(self) -> None:
        for path in self._private.glob(f"{_STAGING}*"):
            self._steps.remove(path)


@dataclass(frozen=True, slots=True)
class ExportRun:
    """One export that is being written, while the lock is held.

    Attributes:
        folder: The folder of all exports.
        staging: Where the Parquet files go; it is not there yet, as Spark wants it.
        number: Of this export.
        steps: How the folder is changed.
    """

    folder: Path
    staging: Path
    number: int
    steps: FolderSteps

    @property
    def tasks(self) -> Path:
        """Where tasks put files that are not the export's before the driver knows of them."""
        return self.staging.with_name(f"{self.staging.name}-tasks")

    def publish(self, manifest: Manifest) -> Path:
        """Make the export visible, whole; return its folder.

        Args:
            manifest: What it holds.

        Raises:
            ExportRefused: An export of this number is there: somebody wrote in spite of the lock.
            DiskFull: There is no room.
            NativeError: A call failed.

        Durability: on return files, manifest and name survive a power cut; before the rename
            nothing is visible.
        """
        with disk_errors("the export can't be made visible", self.folder, "export"):
            return self._published(manifest)

    def _published(self, manifest: Manifest) -> Path:
        target = self.folder / folder_name(self.number)
        path = self.staging / MANIFEST
        self.steps.write(path, msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        for below in (*self.staging.rglob("*"), self.staging):
            self.steps.flush(below)
        try:
            self.steps.rename(self.staging, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise ExportRefused(
                f"there is an export {self.number} already: somebody else writes to this folder",
                where=str(target),
                cure="see that one export writes to a folder at a time, and repeat this one",
            ) from error
        self.steps.flush(self.folder)
        return target


def folder_name(number: int) -> str:
    """Return the name of the folder of an export."""
    return f"{_EXPORT}{number:0{_DIGITS}}"


def staged(folder: Path) -> tuple[ExportedFile, ...]:
    """Return what Spark wrote to a staging folder, by the footers of the files."""
    return tuple(
        ExportedFile(
            str(path.relative_to(folder)), pq.read_metadata(path).num_rows, path.stat().st_size
        )
        for path in sorted(folder.rglob("*.parquet"))
    )


def _kind(content: str, has_bodies: bool) -> str:
    return f"{content} {'with' if has_bodies else 'without'} bodies"


def _read_manifest(path: Path) -> Manifest | None:
    """Return a manifest; None if there is none."""
    cure = "restore the file, or export everything anew to another folder"
    try:
        data = path.read_bytes()
        with suppress(msgspec.DecodeError, AttributeError, TypeError):
            version = msgspec.json.decode(data).get("version")
            if isinstance(version, int) and version > VERSION:
                raise ExportRefused(
                    "a newer version of Vespiary exported to this folder",
                    where=str(path),
                    measured=version,
                    allowed=f"up to {VERSION}",
                    cure="use that version",
                )
        return msgspec.json.decode(data, type=Manifest)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            cure = "run as a user who may read it"
        raise ExportRefused(
            f"a manifest cannot be read: {error.strerror}", where=str(path), cure=cure
        ) from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ExportRefused(
            f"a manifest is damaged: {error}", where=str(path), cure=cure
        ) from error
