"""`vespiary journal`: looking at journals on disk, without a broker.

Owns: the commands. They read and never write, lock or create anything; what is good is decided by
`store.reader`, which decides as a broker's start does. Called by `program`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.journal_folders import (
    CountingDisk,
    journals_in,
    progress_steps,
    size_of,
)
from vespiary_broker.cli.journal_text import export_command, import_command
from vespiary_broker.store.files import BINDINGS_FORM
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.reader import Finding, JournalReport, read_journal
from vespiary_spec import units

_MIB: Final = 1024 * 1024
_folder_argument = click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR"
)
_json_option = click.option("--json", "is_json", is_flag=True, help="Print one JSON array.")


def _read(folder: Path) -> list[JournalReport]:
    """Read all journals of a folder, with a progress bar."""
    found = journals_in(folder)
    reports = []
    with terminal.progress(f"reading {folder}, MiB", size_of(found) // _MIB) as advance:
        disk, verify = CountingDisk(progress_steps(advance, _MIB)), OpeningParts().verify
        for place, form in found:
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


journal.add_command(export_command)
journal.add_command(import_command)
