"""`vespiary-pipeline`: what a broker's files hold, and exports of it, with Spark.

Owns the commands. Spark is imported when a command needs it, so help is quick. Results go to
standard output, everything else to standard error. Exit codes: 0 good, 1 something is wrong, 2
usage, 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from vespiary_pipeline import targets
from vespiary_pipeline.cli_common import (
    QUIET,
    as_json,
    max_body_option,
    opened,
    show,
    shown_options,
    source_options,
    told,
)
from vespiary_pipeline.cli_diff import diff
from vespiary_pipeline.cli_import import import_
from vespiary_pipeline.cli_register import FORMS, Tables, table_options
from vespiary_pipeline.cli_register import register as register_
from vespiary_pipeline.cli_replay import replay
from vespiary_pipeline.cli_verify import verify
from vespiary_spec.version import VERSION


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="vespiary-pipeline")
@click.option(
    "--conf",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of Spark. Repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show no progress on a terminal.")
@click.pass_context
def main(context: click.Context, settings: tuple[str, ...], quiet: bool) -> None:
    """Show and export what a broker's journals, pages and copies hold."""
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals or not name.startswith("spark."):
            raise click.BadParameter("write spark.NAME=VALUE", param_hint="'--conf'")
    context.obj = {name: value for name, _, value in pairs}
    context.meta[QUIET] = quiet


def _target(shown: dict[str, Any]) -> dict[str, Any]:
    return {name: shown[name] for name in ("is_json", "target")}


@main.command()
@source_options
@shown_options
@told
def files(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show each file of the message journal: blocks, records, what is torn."""
    with opened(path, snapshot, on_corrupt, doing="reading", **_target(shown)) as broker:
        names = ("file_id", "state", "size_bytes", "used_bytes", "blocks", "records", "adds",
                 "acks", "last_time", "sealed", "torn_at", "error", "path")  # fmt: skip
        found = broker.files().select(*names).persist()
        show(found, ("file_id", "path"), **shown)
        if not found.where(found["error"].isNotNull()).isEmpty():
            sys.exit(1)


@main.command()
@source_options
@shown_options
@told
def live(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show the messages that a broker would recover from these files."""
    with opened(path, snapshot, on_corrupt, doing="reading", **_target(shown)) as broker:
        show(broker.live(), ("queue_id", "sequence"), **shown)


@main.command()
@source_options
@shown_options
@told
def depth(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show how many messages wait in each queue."""
    from vespiary_pipeline.transform import depth as counted

    with opened(path, snapshot, on_corrupt, doing="counting", **_target(shown)) as broker:
        show(counted(broker.live()), ("queue_id",), **shown)


@main.command()
@source_options
@shown_options
@told
def usage(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show what lives in each file of the journal, what is dead there, and what keeps it."""
    from vespiary_pipeline.transform import RECORD_COLUMNS
    from vespiary_pipeline.transform import usage as used

    with opened(path, snapshot, on_corrupt, doing="reading", **_target(shown)) as broker:
        records = broker.records(RECORD_COLUMNS)
        show(used(broker.files(), records, broker.live()), ("file_id",), **shown)


@main.command()
@source_options
@shown_options
@told
def transactions(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show what became of each transaction, those in doubt with the name of their branch."""
    from vespiary_pipeline.transform import RECORD_COLUMNS
    from vespiary_pipeline.transform import transactions as settled

    with opened(path, snapshot, on_corrupt, doing="reading", **_target(shown)) as broker:
        records = broker.records((*RECORD_COLUMNS, "data"))
        show(settled(records), ("first_position",), **shown)


@main.command()
@source_options
@click.option("--to", "target", default="", help="HTML file; without it a short text is printed.")
@told
def report(
    path: str,
    snapshot: str,
    on_corrupt: str,
    target: str,
    is_json: bool,
) -> None:
    """Draw what a broker's files hold: traffic, sizes, ages, what keeps which file."""
    from vespiary_pipeline.jobs.reporting import report_tables
    from vespiary_pipeline.report import html_page, text_report

    if target:
        targets.file(target)
    with opened(path, snapshot, on_corrupt, doing="reporting", is_json=is_json) as broker:
        tables = report_tables(broker)
    if is_json:
        click.echo(json.dumps(dataclasses.asdict(tables), default=as_json))
    elif not target:
        click.echo(text_report(tables))
    if target:
        _write_whole(targets.file(target), html_page(tables))
        click.echo(f"vespiary-pipeline: written to {target}", err=True)


def _write_whole(target: Path, text: str) -> None:
    """Write a file that is there whole or as it was."""
    staged = target.with_name(f".{target.name}.part")
    with targets.disk_errors("the report can't be written", target, "report"):
        try:
            staged.write_text(text, encoding="utf-8")
            staged.replace(target)
        except OSError:
            staged.unlink(missing_ok=True)
            raise


# --- export ---------------------------------------------------------------------------------------


@main.command()
@source_options
@click.option("--to", "target", required=True, help="Folder of the exports.")
@click.option("--retention", default="", help="Folder of kept copies, which are exported too.")
@click.option("--no-bodies", is_flag=True, help="Leave bodies out.")
@click.option(
    "--register",
    "forms",
    type=click.Choice(FORMS),
    multiple=True,
    help="Then add what the table of the exports lacks. Repeatable.",
)
@table_options
@max_body_option
@told
def export(
    path: str,
    snapshot: str,
    on_corrupt: str,
    target: str,
    retention: str,
    no_bodies: bool,
    max_body_bytes: str,
    forms: tuple[str, ...],
    is_json: bool,
    **named: Any,
) -> None:
    """Write the messages that no export to this folder has yet, as Parquet."""
    from vespiary_pipeline.jobs.broker_files import ExportedJournal
    from vespiary_pipeline.jobs.exporting import ExportOptions
    from vespiary_pipeline.jobs.exporting import export as exported

    folder = targets.folder(target)
    tables = Tables(folder, forms, **named)  # before Spark takes its seconds
    more = {"maxBodyBytes": max_body_bytes}
    with opened(path, snapshot, on_corrupt, more, doing="exporting", is_json=is_json) as broker:
        options = ExportOptions(to=folder, has_bodies=not no_bodies)
        done = exported(broker.spark, ExportedJournal(broker, retention), options)
    if is_json:
        click.echo(json.dumps({name: getattr(done, name) for name in done.__slots__}))
    elif done.export is None:
        click.echo(f"{path}: nothing new for {target}")
    else:
        size = f"{done.messages} messages in {done.files} files ({done.size_bytes} B)"
        click.echo(f"{path}: {size} written to {target}/{Path(done.export).name}")
    if done.bodies_missing:
        click.echo(
            f"vespiary-pipeline: {path}: {done.bodies_missing} messages were written without their"
            f" bodies, which are larger than {max_body_bytes}, lost or damaged; to have the larger"
            " ones, export to another folder with a higher --max-body-bytes",
            err=True,
        )
    tables.register(is_json=is_json)


main.add_command(diff)
main.add_command(import_)
main.add_command(register_)
main.add_command(replay)
main.add_command(verify)
