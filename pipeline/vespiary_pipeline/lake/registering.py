"""`register`: exports of a folder into a table of a lake, each once.

Owns: which exports a table lacks, their order, what is done when somebody else was quicker. What a
table knows, the table says: nothing is noted anywhere else, so a run that was killed at any
place is put right by the next one. Must never know a table format, or start Spark. Called by the
command line.
"""

from __future__ import annotations

import datetime
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from vespiary_pipeline.jobs.export_folder import PRIVATE, ExportFolder, Manifest
from vespiary_pipeline.lake.exported_files import LakeExport, read_export
from vespiary_spec.errors import RegistrationRefused, VespiaryError

CONFLICTS_MAX: Final = 50
"""Commits of others in a row that may come before one of ours. Each is progress of somebody."""
_LOCK: Final = "register.lock"


class Conflict(Exception):  # noqa: N818 - a state, not an error
    """Somebody else changed the table meanwhile; nothing of ours is in it."""


@dataclass(frozen=True, slots=True)
class LastExport:
    """The last export that a table holds.

    Attributes:
        number: Its number.
        made_at: When it was made, as its manifest says; to the second.
    """

    number: int
    made_at: datetime.datetime


class LakeTable(Protocol):
    """A table of a lake. Owner: the thread that registers."""

    @property
    def form(self) -> str:
        """`delta` or `iceberg`."""

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def place(self) -> Path | None:
        """Folder of its metadata, if it lies in that of the exports."""

    @property
    def version(self) -> int | None:
        """Version or snapshot that was looked at last; None: there is none."""

    def look(self) -> LastExport | None:
        """Look at the table as it is now; return the last export in it, None if it has none.

        Raises:
            RegistrationRefused: It is not one of this folder's exports.
        """

    def add(self, export: LakeExport) -> None:
        """Add an export, whole or not at all, together with its number; make the table before.

        Raises:
            Conflict: The table is no longer as it was looked at.
            RegistrationRefused: Its columns do not fit.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterResult:
    """What a registration did.

    Attributes:
        folder: Folder of the exports.
        format: Of the table.
        table: Its name.
        exports: Exports that were added.
        files: Their files.
        messages: Messages in them.
        last_export: Number of the last export in the table; None: it has none.
        version: Its version, or id of its snapshot; None: there is no table yet.
    """

    folder: str
    format: str
    table: str
    exports: int
    files: int
    messages: int
    last_export: int | None
    version: int | None


def register(folder: Path, table: LakeTable) -> RegisterResult:
    """Add the exports that a table lacks, in order, each in a commit of its own.

    Args:
        folder: Folder of the exports.
        table: Where they are to be seen.

    Raises:
        RegistrationRefused: The table cannot take them. Exports that were added before are in it
            whole.
        ExportRefused: A manifest of the folder cannot be read.

    Durability: on return the metadata of a table in this folder survives a power cut. All of it
    follows from the exports, so it can be removed and made anew.
    """
    if not (folder / PRIVATE).is_dir():
        raise RegistrationRefused(
            "no export was written here",
            where=str(folder),
            cure="name a folder that vespiary-pipeline export wrote to",
        )
    with _locked(folder, table):
        manifests = ExportFolder(folder).manifests()
        added: list[Manifest] = []
        last = _look(folder, table, manifests)
        conflicts = 0
        while (manifest := _next(manifests, last)) is not None:
            export = read_export(folder, manifest)
            try:
                with library_failures(table):
                    table.add(export)
            except Conflict as error:
                conflicts += 1
                if conflicts > CONFLICTS_MAX:
                    raise _crowded(table) from error
            else:
                conflicts = 0
                added.append(manifest)
            last = _look(folder, table, manifests)
            if added and (last is None or last.number < added[-1].number):
                raise RegistrationRefused(  # to go on would add it again, for ever
                    f"the table does not tell of export {added[-1].number}, which was added",
                    where=f"{table.form} table {table.name}",
                    cure="see what its catalogue does with properties of tables",
                )
        if added and table.place is not None:
            _flush(folder, table.place)
    return RegisterResult(
        folder=str(folder),
        format=table.form,
        table=table.name,
        exports=len(added),
        files=sum(len(each.files) for each in added),
        messages=sum(each.rows for each in added),
        last_export=None if last is None else last.number,
        version=table.version,
    )


def made_at(manifest: Manifest) -> datetime.datetime:
    """Return when an export was made; to the second.

    Args:
        manifest: Its manifest.

    Raises:
        RegistrationRefused: The manifest does not say it.
    """
    try:
        return datetime.datetime.fromisoformat(manifest.made_at).replace(microsecond=0)
    except ValueError as error:
        raise RegistrationRefused(
            f"the manifest of export {manifest.number} does not say when it was made",
            measured=manifest.made_at,
            cure="restore the file, or export everything anew to another folder",
        ) from error


@contextmanager
def library_failures(table: LakeTable) -> Iterator[None]:
    """Say in a sentence why a library, or the catalogue behind it, ended what the block does.

    Args:
        table: What is worked on.

    Raises:
        RegistrationRefused: Something that is no error of ours was raised.
    """
    try:
        yield
    except (Conflict, VespiaryError):
        raise
    except Exception as error:  # libraries, catalogues and their drivers each have their own
        lines = str(error).splitlines()
        raise RegistrationRefused(
            f"the table cannot be used: {lines[0] if lines else type(error).__name__}",
            where=f"{table.form} table {table.name}",
            cure="act on the reason and register again: what is missing then is added",
        ) from error


def _look(folder: Path, table: LakeTable, manifests: list[Manifest]) -> LastExport | None:
    """Look at the table, and compare it with the folder.

    Raises:
        RegistrationRefused: It knows an export that is not in the folder, or another of its number.
    """
    with library_failures(table):
        last = table.look()
    if last is None:
        return None
    found = {each.number: each for each in manifests}
    # An export that came after the folder was listed may be registered already by another run.
    if last.number not in found:
        found = {each.number: each for each in ExportFolder(folder).manifests()}
    known = found.get(last.number)
    is_gone = known is None and max(found, default=0) < last.number
    if is_gone or (known is not None and made_at(known) != last.made_at):
        raise RegistrationRefused(
            f"export {last.number} in the table is not the one of this folder: exports were"
            " removed, and others got their numbers",
            where=f"{table.form} table {table.name}",
            measured="no such export" if known is None else f"made at {known.made_at}",
            allowed=f"made at {last.made_at.isoformat()}",
            cure="remove the table and register again, which adds all exports of the folder",
        )
    return last


def _next(manifests: list[Manifest], last: LastExport | None) -> Manifest | None:
    number = 0 if last is None else last.number
    return next((each for each in manifests if each.number > number), None)


def _crowded(table: LakeTable) -> RegistrationRefused:
    return RegistrationRefused(
        "others change the table without pause",
        where=f"{table.form} table {table.name}",
        measured=f"{CONFLICTS_MAX + 1} commits of others in a row",
        allowed=f"up to {CONFLICTS_MAX}",
        cure="register again when they have ended",
    )


@contextmanager
def _locked(folder: Path, table: LakeTable) -> Iterator[None]:
    """Let one registration work in a folder at a time; a table elsewhere is its catalogue's care.

    Without locks nothing is added twice either: the commit of the later one fails.
    """
    if table.place is None:
        yield
        return
    try:
        lock = (folder / PRIVATE / _LOCK).open("a+")
    except OSError as error:
        raise RegistrationRefused(
            f"the table cannot be written here: {error.strerror}",
            where=str(folder),
            cure="register as a user who may write in this folder",
        ) from error
    with lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield


def _flush(folder: Path, place: Path) -> None:
    """Bring all files of a table's metadata to the disk: its library does not."""
    for path in (*place.rglob("*"), place, folder):
        with suppress(FileNotFoundError):  # old metadata may be cleaned away meanwhile
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
