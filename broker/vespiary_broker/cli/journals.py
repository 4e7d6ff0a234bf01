"""`vespiary journal`: looking at journals on disk, without a broker.

Owns: the commands. They read and never write, lock or create anything; what is good is decided by
`store.reader`, which decides as a broker's start does. Called by `program`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.store.disk import Disk, DiskFile
from vespiary_broker.store.files import BINDINGS_FORM, MESSAGE_FORM, FileForm
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.reader import Finding, JournalReport, read_journal
from vespiary_spec import units

_FORMS: Final = (("bindings", BINDINGS_FORM), ("journal", MESSAGE_FORM))
_MIB: Final = 1024 * 1024
_folder_argument = click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR"
)
_json_option = click.option("--json", "is_json", is_flag=True, help="Print one JSON array.")


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
        names = [path.name for path in folder.iterdir()]
        own = [
            (folder, form)
            for _, form in _FORMS
            if any(form.number(name) is not None for name in names)
        ]
    except OSError as error:
        raise terminal.CommandFailed(f"{folder} cannot be read: {error.strerror}") from error
    below = [(folder / name, form) for name, form in _FORMS if (folder / name).is_dir()]
    if not own and not below:
        raise terminal.CommandFailed(
            f"{folder} holds no journal: neither {MESSAGE_FORM.name(1)} nor "
            f"{BINDINGS_FORM.name(1)} nor folders of these"
        )
    return own or below


def _read(folder: Path) -> list[JournalReport]:
    """Read all journals of a folder, with a progress bar."""
    found = journals_in(folder)
    total_bytes = sum(
        path.stat().st_size
        for place, form in found
        for path in place.iterdir()
        if form.number(path.name) is not None
    )
    reports = []
    with terminal.progress(f"reading {folder}, MiB", max(total_bytes // _MIB, 1)) as advance:
        pending = 0

        def on_read(size_bytes: int) -> None:
            nonlocal pending
            pending += size_bytes
            advance(pending // _MIB)
            pending %= _MIB

        for place, form in found:
            disk, verify = CountingDisk(on_read), OpeningParts().verify
            reports.append(read_journal(place, form=form, disk=disk, verify=verify))
    return reports


@click.group("journal", short_help="Look at journals on disk.")
def journal() -> None:
    """Journals on disk, read without a broker.

    DIR is the folder of a journal, or the data folder of a broker. Nothing is written or locked, so
    a running broker is not disturbed; its newest blocks may then look torn.
    """


@journal.command("info", short_help="Show what a journal holds.")
@_folder_argument
@_json_option
def info(folder: Path, is_json: bool) -> int:
    """Show files, records and live messages. Exit codes: 0 good, 1 damaged."""
    reports = _read(folder)
    if is_json:
        terminal.show_json([dataclasses.asdict(report) for report in reports])
    else:
        for report in reports:
            _show_info(report)
    return _exit_code(reports)


@journal.command("verify", short_help="Check every block of a journal.")
@_folder_argument
@_json_option
def verify(folder: Path, is_json: bool) -> int:
    """Check every block as a broker's start would. Exit codes: 0 good or torn, 1 damaged.

    Torn means that the journal ends in unconfirmed work which a crash cut off: nothing confirmed is
    missing.
    """
    reports = _read(folder)
    if is_json:
        terminal.show_json([dataclasses.asdict(report) for report in reports])
    else:
        for report in reports:
            click.echo(_verdict(report))
    return _exit_code(reports)


def _exit_code(reports: list[JournalReport]) -> int:
    return int(any(report.finding is Finding.BAD for report in reports))


def _verdict(report: JournalReport) -> str:
    blocks = sum(file.blocks for file in report.files)
    used_bytes = sum(file.used_bytes for file in report.files)
    text = (
        f"{report.folder}: {report.finding}: {blocks} blocks, "
        f"{units.format_size_rounded(used_bytes)} in {len(report.files)} files"
    )
    if report.finding is Finding.BAD:
        return f"{text}\n  {report.error_text}"
    if report.finding is Finding.TORN:
        return f"{text}; ends at {report.torn_at} in unconfirmed work, which is expected"
    return text


def _show_info(report: JournalReport) -> None:
    click.echo(_verdict(report))
    click.echo(f"kind {report.kind}, id {report.journal_id or '-'}")
    click.echo(f"last block {report.sequence}, known to be durable up to {report.watermark}")
    columns = ("file", "state", "id#", "size#", "used#", "blocks#", "records#", "sealed")
    terminal.show_table(
        columns,
        [
            (
                file.name,
                file.state,
                file.file_id or None,
                units.format_size_rounded(file.size_bytes),
                units.format_size_rounded(file.used_bytes),
                file.blocks,
                file.records,
                "yes" if file.is_sealed else "no",
            )
            for file in report.files
        ],
    )
    if report.records_by_type:
        parts = (f"{count} {name}" for name, count in report.records_by_type.items())
        click.echo(f"records: {', '.join(parts)}")
    if report.kind == BINDINGS_FORM.kind.name:
        click.echo(f"bindings: {report.bindings}")
    else:
        queues = (f"queue {number}: {count}" for number, count in report.live_messages.items())
        click.echo(f"live messages: {', '.join(queues) or 'none'}")
    if report.voided_transactions:
        click.echo(f"transactions without commit: {report.voided_transactions}")
    click.echo()
