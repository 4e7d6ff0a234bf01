"""`vespiary journal snapshot` and its kin: copies of a stopped broker's files, and the way back.

Owns: the commands. The work is `store.snapshot`. Called by `journals`; the operator runs the first
in an init container.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, yes_option
from vespiary_broker.cli.instance import config_option, data_option, load_instance
from vespiary_broker.store import snapshot
from vespiary_spec import units

F = TypeVar("F", bound=Callable[..., Any])


def _json_option(function: F) -> F:
    return click.option("--json", "is_json", is_flag=True, help="Print the parts as JSON.")(
        function
    )


def _before(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> Any:
    """Read `KIND=FORMAT`."""
    found = {}
    for text in texts:
        match = re.fullmatch(r"(journal|page|stamp)=(\d{1,5})", text, re.ASCII)
        if match is None:
            raise click.BadParameter(
                f"{text!r} is not KIND=FORMAT, such as journal=1", ctx=context, param=parameter
            )
        found[match[1]] = int(match[2])
    return found


def _folders(config: Path | None, data: Path | None) -> dict[str, Path]:
    instance = load_instance(config, data)
    folders = instance.configuration.directories(instance.data)
    return dict(folders._asdict())


def _show(parts: list[snapshot.Part], *, is_json: bool) -> None:
    if is_json:
        terminal.show_json(parts)
        return
    terminal.show_table(
        ("copy", "taken", "folder", "files", "size"),
        [
            (p.name, p.taken_at, p.folder, p.files, units.format_size_rounded(p.size_bytes))
            for p in parts
        ],
    )


@click.command("snapshot", short_help="Copy the files of a stopped broker, beside them.")
@config_option
@data_option
@click.option("--name", required=True, metavar="NAME", help="Name of the copy.")
@click.option(
    "--before",
    multiple=True,
    callback=_before,
    metavar="KIND=FORMAT",
    help="Copy nothing if a file of this kind (journal, page) has a higher format. Repeatable.",
)
@_json_option
def snapshot_command(
    config: Path | None, data: Path | None, name: str, before: dict[str, int], is_json: bool
) -> int:
    """Copy journals, pages and large messages of a broker that is stopped.

    Each folder gets a folder `.vespiary-snapshot-NAME`. There has to be room for it on each volume;
    otherwise nothing is written. A copy that is there already is left as it is, and is an error
    without --before; with it, folders that have no part of the copy get one, so that a copy that
    was cut short is completed.

    Exit codes: 0 done, 1 no room or in use, 2 usage.
    """
    _show(snapshot.take(_folders(config, data), name, before=before), is_json=is_json)
    return 0


@click.command("snapshots", short_help="List copies of a broker's files.")
@config_option
@data_option
@_json_option
def snapshots_command(config: Path | None, data: Path | None, is_json: bool) -> int:
    """List the copies that `snapshot` made."""
    _show(snapshot.listed(_folders(config, data)), is_json=is_json)
    return 0


@click.command("restore-snapshot", short_help="Put back a copy of a stopped broker's files.")
@click.argument("name", metavar="NAME")
@config_option
@data_option
@yes_option
@_json_option
def restore_command(
    config: Path | None, data: Path | None, name: str, yes: bool, is_json: bool
) -> int:
    """Put back the copy NAME of a broker that is stopped.

    What is there now is moved into `.vespiary-replaced-NAME` in each folder. Messages that were
    confirmed after the copy was taken are there and no longer in the broker.

    Exit codes: 0 done, 1 no such copy or in use, 2 usage.
    """
    confirm(f"Replace the broker's files with the copy {name}?", yes)
    _show(snapshot.restore(_folders(config, data), name), is_json=is_json)
    return 0


@click.command("remove-snapshot", short_help="Remove a copy of a broker's files.")
@click.argument("name", metavar="NAME")
@config_option
@data_option
@yes_option
def remove_command(config: Path | None, data: Path | None, name: str, yes: bool) -> int:
    """Remove the copy NAME; the broker may run.

    Exit codes: 0 removed, 1 there is none, 2 usage.
    """
    confirm(f"Remove the copy {name}?", yes)
    count = snapshot.remove(_folders(config, data), name)
    if not count:
        raise terminal.CommandFailed(f"there is no copy {name}")
    terminal.echo(f"removed {name} from {terminal.counted(count, 'folder')}")
    return 0
