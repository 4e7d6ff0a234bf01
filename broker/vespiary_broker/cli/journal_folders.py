"""Which journals a folder holds, and a disk that cannot write: what the journal tools share.

Owns: the way from a folder that a user names to journals, and progress by bytes read. Must never
open a file for writing. Called by the journal commands.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.store.body_files import FOLDER_NAME, CopiedBodies
from vespiary_broker.store.disk import Disk, DiskFile, DiskLike
from vespiary_broker.store.files import BINDINGS_FORM, JMS_FORM, MESSAGE_FORM, FileForm
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.reader import Finding, read_journal
from vespiary_broker.store.verifying import BodyPlace
from vespiary_spec import units

_FORMS: Final = (
    ("bindings", BINDINGS_FORM),
    ("bindings", JMS_FORM),
    ("jms", JMS_FORM),
    ("journal", MESSAGE_FORM),
)
"""Folders below a data folder, and the journals that may lie there."""
_LOST_SHOWN: Final = 20


large_option = click.option(
    "--large-messages",
    "large",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Where the bodies of large messages are. Default: {FOLDER_NAME}, beside the journal.",
)
"""For all commands that need bodies."""


class CountingFile:
    """A file that tells how much of it was read.

    Args:
        file: The file.
        on_read: Called with the number of bytes of each read.
    """

    def __init__(self, file: DiskFile, on_read: Callable[[int], None]) -> None:
        self._file = file
        self._on_read = on_read
        self.path = file.path
        self.fileno = file.fileno
        self.size_bytes = file.size_bytes
        self.write = file.write
        self.flush = file.flush
        self.close = file.close

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read, and tell how much."""
        count = self._file.read_into(buffer, offset)
        self._on_read(count)
        return count


class CountingDisk(Disk):
    """The real file system, read-only, telling how much was read.

    Args:
        on_read: Called with the number of bytes of each read.
    """

    def __init__(self, on_read: Callable[[int], None]) -> None:
        super().__init__()
        self._on_read = on_read

    def open(self, path: Path, *, is_direct: bool, is_readonly: bool) -> Any:
        """Open an existing file for reading.

        Raises:
            ValueError: It should be opened for writing, which no tool that looks may do.
        """
        if not is_readonly:
            raise ValueError(f"{path}: a tool that looks never writes")
        return CountingFile(
            super().open(path, is_direct=is_direct, is_readonly=True), self._on_read
        )

    def create(self, path: Path, *, is_direct: bool) -> Any:  # noqa: ARG002
        """Refuse."""
        raise ValueError(f"{path}: a tool that looks never writes")

    def make_folder(self, folder: Path) -> None:
        """Refuse."""
        raise ValueError(f"{folder}: a tool that looks never writes")

    def rename(self, old: Path, new: Path) -> None:  # noqa: ARG002
        """Refuse."""
        raise ValueError(f"{old}: a tool that looks never writes")

    def remove(self, path: Path) -> None:
        """Refuse."""
        raise ValueError(f"{path}: a tool that looks never writes")

    def remove_folder(self, folder: Path) -> None:
        """Refuse."""
        raise ValueError(f"{folder}: a tool that looks never writes")


def progress_steps(advance: Callable[[int], None], step_bytes: int) -> Callable[[int], None]:
    """Return a function that takes bytes and advances by whole steps.

    Args:
        advance: Takes a number of steps.
        step_bytes: Bytes of a step.
    """
    pending = 0

    def add(size_bytes: int) -> None:
        nonlocal pending
        pending += size_bytes
        advance(pending // step_bytes)
        pending %= step_bytes

    return add


def journals_in(folder: Path) -> list[tuple[Path, FileForm]]:
    """Return the journals of a folder: itself, or those below a broker's data folder.

    Args:
        folder: A journal's folder, or a data folder.

    Raises:
        CommandFailed: There are none.
    """
    if not folder.is_dir():
        raise terminal.CommandFailed(f"there is no folder {folder}")
    try:
        own = _forms_in(folder, (MESSAGE_FORM, BINDINGS_FORM, JMS_FORM))
        below = [
            (folder / name, form)
            for name, form in _FORMS
            if (folder / name).is_dir() and (form is not JMS_FORM or _has(folder / name, form))
        ]
    except OSError as error:
        raise terminal.CommandFailed(f"{folder} cannot be read: {error.strerror}") from error
    if not own and not below:
        raise terminal.CommandFailed(
            f"{folder} holds no journal: neither {MESSAGE_FORM.name(1)} nor "
            f"{BINDINGS_FORM.name(1)} nor folders of these"
        )
    return [(folder, form) for form in own] or below


def _forms_in(folder: Path, forms: tuple[FileForm, ...]) -> list[FileForm]:
    return [form for form in forms if _has(folder, form)]


def _has(folder: Path, form: FileForm) -> bool:
    return any(form.number(path.name) is not None for path in folder.iterdir())


def size_of(found: list[tuple[Path, FileForm]]) -> int:
    """Return the bytes of all files of these journals."""
    return sum(
        path.stat().st_size
        for place, form in found
        for path in place.iterdir()
        if form.number(path.name) is not None
    )


def large_folder_of(place: Path, asked: Path | None) -> Path:
    """Return the folder of the bodies of a journal's large messages.

    Args:
        place: The journal's folder.
        asked: What the user says; None takes the usual one beside the journal.
    """
    return asked if asked is not None else place.absolute().parent / FOLDER_NAME


def bindings_in(folder: Path, disk: DiskLike | None = None) -> LiveSet | None:
    """Return what a folder holds of bindings; None if there are none that can be read.

    Args:
        folder: The folder of the bindings.
        disk: The file system; None takes the real one.
    """
    if not folder.is_dir() or not _has(folder, BINDINGS_FORM):
        return None
    live = LiveSet()
    report = read_journal(folder, form=BINDINGS_FORM, disk=disk, live=live)
    return None if report.finding is Finding.BAD else live


def body_place(place: Path, asked: Path | None, disk: DiskLike) -> BodyPlace:
    """Return where the bodies of a journal are, and how to find out which queues exist.

    Args:
        place: The journal's folder.
        asked: What the user says of the bodies' folder; None takes the usual one.
        disk: The file system.
    """
    bindings = place.absolute().parent / "bindings"

    def queue_ids() -> frozenset[int] | None:
        """Return the queues of the bindings beside the journal; None if they say nothing."""
        found = bindings_in(bindings, disk)
        return None if found is None else frozenset(queue_names(found.bindings))

    return BodyPlace(large_folder_of(place, asked), queue_ids)


def show_bodies(bodies: CopiedBodies) -> None:
    """Say what became of the bodies of large messages."""
    if bodies.files:
        size = units.format_size_rounded(bodies.size_bytes)
        count = terminal.counted(
            bodies.files, "body of a large message", "bodies of large messages"
        )
        terminal.echo(f"  {count} ({size}) in {bodies.folder}")
    for lost in bodies.lost[:_LOST_SHOWN]:
        terminal.echo(f"  lost: {lost}")
    if len(bodies.lost) > _LOST_SHOWN:
        more = len(bodies.lost) - _LOST_SHOWN
        rest = terminal.counted(
            more, "more body of a large message", "more bodies of large messages"
        )
        terminal.echo(f"  lost: {rest}")
    if bodies.lost:
        terminal.echo("  messages without their body stay in their queue, undelivered")


def queue_names(bindings: dict[str, bytes]) -> dict[int, str]:
    """Return the names of queues by id.

    Args:
        bindings: Values by key of a bindings journal; other keys are passed over.
    """
    names = {}
    for key, value in bindings.items():
        kind, _, number = key.partition("/")
        if kind == "queue" and number.isdecimal():
            names[int(number)] = str(json.loads(value)["name"])
    return names
