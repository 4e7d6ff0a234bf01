"""`vespiary page`: looking at page files on disk, without a broker.

Owns: the commands. They read and never write, lock or create anything. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.journal_folders import CountingDisk, progress_steps
from vespiary_broker.cli.journal_printing import entry_line
from vespiary_broker.store.disk import Disk
from vespiary_broker.store.paging.verifying import (
    PageReport,
    find_pages,
    is_paging_folder,
    list_page,
    verify_page,
)
from vespiary_spec import units

_MIB = 1024 * 1024
_places = click.argument(
    "places", type=click.Path(exists=True, path_type=Path), metavar="PLACE…", nargs=-1
)


@click.group("page", short_help="Look at page files on disk.")
def page() -> None:
    """Page files on disk, without a broker.

    PLACE is a paging folder, the folder of one address in it, or a page. Nothing is written or
    locked, so a running broker is not disturbed.
    """


def _pages_in(places: tuple[Path, ...]) -> list[Path]:
    if not places:
        raise click.UsageError("name a folder or a page")
    disk = Disk()
    for place in places:
        if place.is_dir() and not is_paging_folder(place, disk):
            raise click.BadParameter(
                f"{place} is not a paging folder: it holds neither pages nor folders of addresses. "
                "It is the folder `paging` in a broker's data folder, or the one that "
                "`paging-directory` names"
            )
    return [path for place in places for path in find_pages(place, disk)]


@page.command("verify", short_help="Check every byte of pages.")
@_places
@click.option("--json", "is_json", is_flag=True, help="Print one JSON array.")
def verify(places: tuple[Path, ...], is_json: bool) -> int:
    """Check header, blocks, index and trailer of every page. Exit codes: 0 good, 1 damaged.

    Which pages a journal names, and so whether one is missing, a start of the broker tells.
    """
    paths = _pages_in(places)
    size_bytes = sum(path.stat().st_size for path in paths)
    with terminal.progress("reading, MiB", size_bytes // _MIB) as advance:
        disk = CountingDisk(progress_steps(advance, _MIB))
        reports = [verify_page(path, disk) for path in paths]
    if is_json:
        terminal.show_json(reports)
    else:
        for report in reports:
            _show(report)
        damaged = sum(not report.is_good for report in reports)
        terminal.echo(f"{terminal.counted(len(reports), 'page')}, {damaged} damaged")
    return int(any(not report.is_good for report in reports))


def _show(report: PageReport) -> None:
    verdict = "good" if report.is_good else "BAD"
    queues = ", ".join(f"queue {number}: {count}" for number, count in report.places.items())
    terminal.echo(
        f"{report.path}: {verdict}: page {report.page_id} of {report.address!a}, "
        f"{units.format_size_rounded(report.size_bytes)}, "
        f"{terminal.counted(report.blocks, 'block')}, {terminal.counted(report.records, 'message')}"
        f"{f', places in {queues}' if queues else ''}"
    )
    for problem in report.problems:
        terminal.echo(f"  {problem.offset}: {problem.what}")


@page.command("print", short_help="Print every message of pages.")
@_places
@click.option("--safe", is_flag=True, help="Leave out bodies and the values of properties.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object a line, with content.")
def print_command(places: tuple[Path, ...], safe: bool, is_json: bool) -> int:
    """Print every record of every page, up to the first block that is not valid.

    Which of them are done, the journal says. Exit codes: 0 good, 1 a page can't be read.
    """
    is_refused = False
    for path in _pages_in(places):
        for entry in list_page(path, Disk(), is_safe=safe):
            is_refused = is_refused or (entry.event != "record" and entry.event != "file")
            if is_json:
                terminal.show_json(entry.to_json())
            else:
                terminal.echo_line(entry_line(entry))
    return int(is_refused)
