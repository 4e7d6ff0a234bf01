"""`vespiary journal print`: every record of a journal, a line each, and a summary.

Owns: the form of the lines. It reads and never writes, locks or creates anything. Text that comes
from messages is escaped, so that it can't steer a terminal. Called by `journals`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.journal_folders import (
    CountingDisk,
    journals_in,
    progress_steps,
    queue_names,
    size_of,
)
from vespiary_broker.store.files import FileForm
from vespiary_broker.store.listing import Entry, list_journal
from vespiary_broker.store.live_set import LiveSet
from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.reader import Finding, JournalReport, read_journal

_MIB: Final = 1024 * 1024
_CONTENT_MAX: Final = 100
"""Characters of content on a line for people; `--json` has all of it."""


@click.command("print", short_help="Print every record of a journal.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--safe", is_flag=True, help="Leave out bodies and the values of properties.")
@click.option("--reclaimed", is_flag=True, help="Also what still stands in files that were freed.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object a line, with content.")
def print_command(folder: Path, safe: bool, reclaimed: bool, is_json: bool) -> int:
    """Print every record of every file, then a summary. Nothing in DIR is changed.

    Damaged places are named and passed over. Exit codes: 0 good, 1 damaged.
    """
    found = journals_in(folder)
    names: dict[int, str] = {}
    findings = []
    with terminal.progress(f"reading {folder}, MiB", 3 * size_of(found) // _MIB) as advance:
        disk = CountingDisk(progress_steps(advance, _MIB))
        for place, form in found:
            findings.append(
                _print(place, form, disk, names, is_safe=safe, reclaimed=reclaimed, is_json=is_json)
            )
    return int(Finding.BAD in findings)


def _print(
    place: Path,
    form: FileForm,
    disk: CountingDisk,
    names: dict[int, str],
    *,
    is_safe: bool,
    reclaimed: bool,
    is_json: bool,
) -> Finding:
    verify = OpeningParts().verify
    if not is_json:
        terminal.echo(f"{place}: journal of kind {form.kind.name}")
    for entry in list_journal(place, form, disk, verify, is_safe=is_safe, has_reclaimed=reclaimed):
        if is_json:
            terminal.show_json(entry.to_json())
        else:
            terminal.echo_line(entry_line(entry))
    live = LiveSet()
    report = read_journal(place, form=form, disk=disk, verify=verify, live=live)
    names.update(queue_names(live.bindings))
    if is_json:
        terminal.show_json(_summary(report, names))
    else:
        _show_summary(report, names)
    return report.finding


def _time(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03}Z"


def entry_line(entry: Entry) -> str:
    """Return an entry as a line for people."""
    freed = " (freed)" if entry.is_reclaimed else ""
    place = f"{entry.file}:{entry.offset}"
    if entry.event == "file":
        return f"{entry.file}{freed}: {entry.operation}, activated {_time(entry.time_ms)}"
    if entry.event != "record":
        return f"  {place}{freed}: {entry.event.upper()}: {entry.operation}"
    parts = [f"  {place}{freed}", f"block {entry.block}", entry.operation]
    parts += [f"{name} {_shown(name, value)}" for name, value in entry.fields.items()]
    if entry.properties:
        headers = ", ".join(f"{_escaped(n)}: {_escaped(v)}" for n, v in entry.properties)
        parts.append(f"headers {{{headers}}}")
    if entry.content:
        parts.append(f"content {_content(entry.content)}")
    return "  ".join(parts)


def _shown(name: str, value: str) -> str:
    return _time(int(value)) if name == "time" else value


def _escaped(text: str) -> str:
    """Return text in which no character can steer a terminal."""
    return json.dumps(text)[1:-1]


def _content(content: bytes) -> str:
    try:
        text = content[: 4 * _CONTENT_MAX].decode()
    except UnicodeDecodeError:
        text = ""
    shown = json.dumps(text) if text else f"0x{content[: _CONTENT_MAX // 2].hex()}"
    is_cut = len(shown) > _CONTENT_MAX or len(content) > 4 * _CONTENT_MAX
    return f"{shown[:_CONTENT_MAX]}… ({len(content)} bytes)" if is_cut else shown


def _summary(report: JournalReport, names: dict[int, str]) -> dict[str, Any]:
    known = terminal.json_fields(report)
    wanted = (
        "folder",
        "kind",
        "finding",
        "error",
        "recordsByType",
        "liveMessages",
        "bindings",
        "voidedTransactions",
        "preparedTransactions",
    )
    queues = {number: names[number] for number in report.live_messages if number in names}
    return {"event": "summary", **{name: known[name] for name in wanted}, "queueNames": queues}


def _show_summary(report: JournalReport, names: dict[int, str]) -> None:
    terminal.echo(f"summary of {report.folder}: {report.finding}")
    if report.error_text:
        terminal.echo(f"  {report.error_text}")
    for name, count in report.records_by_type.items():
        terminal.echo(f"  {terminal.counted(count, 'record')} of type {name}")
    if report.bindings:
        terminal.echo(f"  {terminal.counted(report.bindings, 'live binding')}")
    else:
        surviving = sum(report.live_messages.values())
        terminal.echo(f"  {terminal.counted(surviving, 'surviving message')}")
    for number, count in report.live_messages.items():
        name = f" ({names[number]})" if number in names else ""
        terminal.echo(f"    queue {number}{name}: {count}")
    prepared = len(report.prepared_transactions)
    terminal.echo(f"  {terminal.counted(prepared, 'prepared transaction')}")
    voided = terminal.counted(report.voided_transactions, "transaction")
    terminal.echo(f"  {voided} without a commit that counts")
