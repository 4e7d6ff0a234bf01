"""`vespiary journal compact`: space that a few old messages hold, given back without a broker.

Owns: the command. It is the one journal command that writes into the folder that it looks at: it
takes the broker's locks. Called by `journals`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.instance import config_option, load_instance
from vespiary_broker.cli.journal_folders import journals_in
from vespiary_broker.store.counters import JournalStatistics
from vespiary_broker.store.files import BINDINGS_FORM, MESSAGE_FORM
from vespiary_spec import units


@click.command("compact", short_help="Give back the space that a few old messages hold.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@config_option
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def compact_command(folder: Path, config: Path | None, is_json: bool) -> int:
    """Move live messages out of nearly empty files of a broker that is stopped.

    DIR is the data folder of the broker: without its bindings nobody knows which queues there are.
    Give its configuration with -c if it has one. Exit codes: 0 done, 1 the journal is damaged, in
    use or full, 2 usage.
    """
    kinds = {form for _, form in journals_in(folder)}
    if not {MESSAGE_FORM, BINDINGS_FORM} <= kinds or not (folder / "bindings").is_dir():
        raise click.UsageError(
            f"{folder} is no data folder of a broker: it needs the folders bindings and journal"
        )
    instance = load_instance(config, folder)

    from vespiary_broker.app import event_loop, offline

    done = event_loop.run(offline.compact(instance.configuration, instance.data))
    if is_json:
        terminal.show_json(
            {
                "isComplete": done.is_complete,
                "before": _facts(done.before),
                "after": _facts(done.after),
                "movedMessages": done.after.compaction.moved_messages,
                "movedBytes": done.after.compaction.moved_bytes,
            }
        )
    else:
        terminal.echo(f"before: {_line(done.before)}")
        terminal.echo(f"after:  {_line(done.after)}")
        counts = done.after.compaction
        terminal.echo(
            f"moved {terminal.counted(counts.moved_messages, 'message')}, "
            f"{units.format_size_rounded(counts.moved_bytes)}, out of "
            f"{terminal.counted(counts.files, 'file')}"
        )
        if not done.is_complete:
            terminal.echo("not all that could be: the disk is full")
    return int(not done.is_complete)


def _facts(statistics: JournalStatistics) -> dict[str, Any]:
    files = statistics.files
    return {
        "filesInUse": files.active - files.ahead,
        "filesFree": files.free,
        "liveBytes": statistics.live_bytes,
        "livePercent": round(statistics.live_percent, 1),
    }


def _line(statistics: JournalStatistics) -> str:
    files = statistics.files
    return (
        f"{terminal.counted(files.active - files.ahead, 'file')} in use, "
        f"{units.format_size_rounded(statistics.live_bytes)} live "
        f"({statistics.live_percent:.1f} %), {terminal.counted(files.free, 'file')} free"
    )
