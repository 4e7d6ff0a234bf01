"""`vespiary journal`: looking at journals on disk, without a broker.

Owns: the commands. They read and never write, lock or create anything; what is good is decided by
`store.reader`, which decides as a broker's start does. Called by `program`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.journal_compacting import compact_command
from vespiary_broker.cli.journal_folders import (
    CountingDisk,
    body_place,
    journals_in,
    large_option,
    progress_steps,
    queue_names,
    size_of,
)
from vespiary_broker.cli.journal_printing import print_command
from vespiary_broker.cli.journal_salvage import recover_command
from vespiary_broker.cli.journal_snapshots import (
    remove_command,
    restore_command,
    snapshot_command,
    snapshots_command,
)
from vespiary_broker.cli.journal_text import export_command, import_command
from vespiary_broker.cli.replaying import replay_command
from vespiary_broker.store.files import MESSAGE_FORM
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.reader import FileReport, Finding, JournalReport, read_journal
from vespiary_broker.store.verifying import Problem, ProblemKind, Verification, verify_journal
from vespiary_spec import units

_MIB: Final = 1024 * 1024
_folder_argument = click.argument(
    "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR"
)
_json_option = click.option("--json", "is_json", is_flag=True, help="Print one JSON array.")


@click.group("journal", short_help="Look at journals on disk.")
def journal() -> None:
    """Journals on disk, without a broker.

    DIR is the folder of a journal, or the data folder of a broker. Commands that look (`info`,
    `verify`, `print`, `export`) write and lock nothing, so a running broker is not disturbed; its
    newest blocks may then look torn.
    """


@journal.command("info", short_help="Show what a journal holds.")
@_folder_argument
@_json_option
def info(folder: Path, is_json: bool) -> int:
    """Show files, live messages, and what keeps each file. Exit codes: 0 good, 1 damaged."""
    found = journals_in(folder)
    reports = []
    with terminal.progress(f"reading {folder}, MiB", 2 * size_of(found) // _MIB) as advance:
        disk, verifier = CountingDisk(progress_steps(advance, _MIB)), OpeningParts().verify
        names: dict[int, str] = {}
        for place, form in found:
            live = LiveSet()
            report = read_journal(place, form=form, disk=disk, verify=verifier, live=live)
            reports.append(report)
            names.update(queue_names(live.bindings))
    if is_json:
        terminal.show_json(reports)
    else:
        for report in reports:
            _show_info(report, names)
    return int(any(report.finding is Finding.BAD for report in reports))


@journal.command("verify", short_help="Check every block of journals.")
@click.argument(
    "folders", type=click.Path(file_okay=False, path_type=Path), metavar="DIR…", nargs=-1
)
@large_option
@_json_option
def verify(folders: tuple[Path, ...], large: Path | None, is_json: bool) -> int:
    """Check every block of every file, that what holds nothing is zero, and the bodies.

    Each problem is named with file, offset and block. Torn means that the journal ends in
    unconfirmed work which a crash cut off: nothing confirmed is missing. Of each large message size
    and checksum of its body are compared. Exit codes: 0 good or torn, 1 damaged.
    """
    if not folders:
        raise click.UsageError("name a folder or more")
    found = [item for folder in folders for item in journals_in(folder)]
    results = []
    with terminal.progress("reading, MiB", 3 * size_of(found) // _MIB) as advance:
        disk, verifier = CountingDisk(progress_steps(advance, _MIB)), OpeningParts().verify
        for place, form in found:
            bodies = body_place(place, large, disk) if form is MESSAGE_FORM else None
            results.append(verify_journal(place, form, disk, verifier, bodies))
    if is_json:
        terminal.show_json([_as_json(result) for result in results])
    else:
        for result in results:
            terminal.echo(_verdict(result.report, result.finding, result.blocks, result.bodies))
            for problem in result.problems:
                _show_problem(problem)
    return int(any(result.finding is Finding.BAD for result in results))


def _as_json(result: Verification) -> dict[str, Any]:
    return {
        **terminal.json_fields(result.report),
        "finding": result.finding,
        "bodies": result.bodies,
        "problems": result.problems,
    }


def _verdict(report: JournalReport, finding: Finding, blocks: int, bodies: int = 0) -> str:
    used_bytes = sum(file.used_bytes for file in report.files)
    text = (
        f"{report.folder}: {finding}: {terminal.counted(blocks, 'block')}, "
        f"{units.format_size_rounded(used_bytes)} in {terminal.counted(len(report.files), 'file')}"
    )
    if bodies:
        large = terminal.counted(bodies, "body of a large message", "bodies of large messages")
        text = f"{text}, {large}"
    if report.finding is Finding.BAD:
        return f"{text}\n  {report.error_text}"
    if report.finding is Finding.TORN:
        return f"{text}; ends at {report.torn_at} in unconfirmed work, which is expected"
    return text


def _show_problem(problem: Problem) -> None:
    block = f"block {problem.sequence}" if problem.sequence else "block not known"
    place = f"{problem.file}:{problem.offset}: {block}"
    if problem.kind is ProblemKind.BODY:
        place = problem.file
    terminal.echo(f"  {place}: {problem.kind}: {problem.what}")
    terminal.echo(f"    meaning: {problem.meaning}")
    terminal.echo(f"    what to do: {problem.cure}")


def _time(time_ms: int) -> str | None:
    """Return a time for people, None for none."""
    if not time_ms:
        return None
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _show_info(report: JournalReport, names: dict[int, str]) -> None:
    blocks = sum(file.blocks for file in report.files)
    terminal.echo(_verdict(report, report.finding, blocks))
    terminal.echo(f"kind {report.kind}, id {report.journal_id or '-'}")
    terminal.echo(f"last block {report.sequence}, known to be durable up to {report.watermark}")
    is_message = report.kind == MESSAGE_FORM.kind.name
    columns = ("file", "state", "id#", "size#", "used#", "blocks#", "records#", "sealed")
    more = ("live#", "live bytes#", "last write", "kept by") if is_message else ("last write",)
    terminal.show_table((*columns, *more), [_row(file, is_message) for file in report.files])
    if report.records_by_type:
        parts = (f"{count} {name}" for name, count in report.records_by_type.items())
        terminal.echo(f"records: {', '.join(parts)}")
    if is_message:
        _show_messages(report, names)
    else:
        terminal.echo(f"bindings: {report.bindings}")
    terminal.echo()


def _row(file: FileReport, is_message: bool) -> tuple[object, ...]:
    row = (
        file.name,
        file.state,
        file.file_id or None,
        units.format_size_rounded(file.size_bytes),
        units.format_size_rounded(file.used_bytes),
        file.blocks,
        file.records,
        "yes" if file.is_sealed else "no",
    )
    if not is_message:
        return (*row, _time(file.last_time_ms))
    live = units.format_size_rounded(file.live_bytes)
    return (*row, file.live_messages, live, _time(file.last_time_ms), file.pinned_by or None)


def _by_queue(counts: dict[int, int], names: dict[int, str]) -> str:
    return ", ".join(
        f"queue {number}{f' ({names[number]})' if number in names else ''}: {count}"
        for number, count in counts.items()
    )


def _show_messages(report: JournalReport, names: dict[int, str]) -> None:
    terminal.echo(f"live messages: {_by_queue(report.live_messages, names) or 'none'}")
    if report.paged_messages:
        pages = terminal.counted(report.pages, "page")
        terminal.echo(f"in {pages}: {_by_queue(report.paged_messages, names)}")
    terminal.echo(
        f"live: {units.format_size_rounded(report.live_bytes)}, "
        f"{report.live_percent} % of the files in use"
    )
    if (oldest := report.oldest) is not None:
        sent_to = f" to {oldest.address}" if oldest.address else ""
        terminal.echo(
            f"oldest: queue {oldest.queue_id}, message {oldest.sequence}, "
            f"arrived {_time(oldest.arrival_ms)}{sent_to}, at {oldest.file}:{oldest.offset}"
        )
    if report.voided_transactions:
        terminal.echo(f"transactions without commit: {report.voided_transactions}")
    if report.prepared_transactions:
        terminal.echo(f"prepared transactions: {len(report.prepared_transactions)}")


journal.add_command(compact_command)
journal.add_command(snapshot_command)
journal.add_command(snapshots_command)
journal.add_command(restore_command)
journal.add_command(remove_command)
journal.add_command(print_command)
journal.add_command(recover_command)
journal.add_command(export_command)
journal.add_command(import_command)
journal.add_command(replay_command)
