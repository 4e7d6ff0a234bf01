"""`vespiary-pipeline`: what a broker's files hold, and exports of it, with Spark.

Owns the commands. Spark is imported when a command needs it, so help is quick. Results go to
standard output, everything else to standard error. Exit codes: 0 good, 1 something is wrong, 2
usage.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vespiary_spec.errors import NativeError, VespiaryError
from vespiary_spec.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from vespiary_pipeline.jobs.broker_files import BrokerFiles

F = TypeVar("F", bound=Callable[..., Any])
_CELL_CHARACTERS_MAX = 40


def _session() -> AbstractContextManager[SparkSession]:
    """Start Spark for one command; tests put their own in its place."""
    from vespiary_pipeline.session import local_session

    return local_session(click.get_current_context().find_root().obj)


def source_options(function: F) -> F:
    """Add the options that say what is read, and how it is shown."""
    for option in (
        click.option("--json", "is_json", is_flag=True, help="An object a line."),
        click.option("--snapshot", default="", help="Read the copy of this name."),
        click.option(
            "--on-corrupt",
            type=click.Choice(["fail", "stop-file", "report"]),
            default="fail",
            show_default=True,
            help="What damage does.",
        ),
        click.argument("path"),
    ):
        function = option(function)
    return function


def shown_options(function: F) -> F:
    """Add the options of tables that may be long."""
    for option in (
        click.option(
            "--limit",
            type=click.IntRange(1),
            default=20,
            show_default=True,
            help="Rows that are printed.",
        ),
        click.option("--to", "target", default="", help="Write all rows into this new folder."),
        click.option(
            "--format",
            "form",
            type=click.Choice(["parquet", "csv", "json"]),
            default="parquet",
            show_default=True,
            help="How --to writes.",
        ),
    ):
        function = option(function)
    return function


def told(function: F) -> F:
    """Print an error of ours as its sentence, and end with its exit code."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        # PySpark writes an error of a query as JSON with Java's stack beside raising it.
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            logging.getLogger(name).disabled = True
        try:
            return function(*args, **options)
        except VespiaryError as error:
            click.echo(f"vespiary-pipeline: {error}", err=True)
            if options.get("is_json"):
                click.echo(json.dumps({"event": "error", **error.to_dict()}))
            sys.exit(error.exit_code)

    return run  # type: ignore[return-value]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="vespiary-pipeline")
@click.option(
    "--conf",
    "settings",
    metavar="NAME=VALUE",
    multiple=True,
    help="A setting of Spark. Repeatable.",
)
@click.pass_context
def main(context: click.Context, settings: tuple[str, ...]) -> None:
    """Show and export what a broker's journals, pages and copies hold."""
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals or not name.startswith("spark."):
            raise click.BadParameter("write spark.NAME=VALUE", param_hint="'--conf'")
    context.obj = {name: value for name, _, value in pairs}


@contextmanager
def _opened(path: str, snapshot: str, on_corrupt: str) -> Iterator[BrokerFiles]:
    from vespiary_pipeline.jobs.broker_files import BrokerFiles
    from vespiary_pipeline.jobs.failures import spark_failures
    from vespiary_pipeline.layout import find_places
    from vespiary_pipeline.options import read_options

    options = {"onCorrupt": on_corrupt}
    if snapshot:
        options["snapshot"] = snapshot
    find_places(read_options({**options, "path": path}))  # before Spark takes its seconds
    with _session() as spark, spark_failures(path):
        yield BrokerFiles(spark, path, options)


# --- tables ---------------------------------------------------------------------------------------


def _show(
    table: DataFrame, order: Iterable[str], *, is_json: bool, limit: int, target: str, form: str
) -> None:
    """Write all rows of a table, or print the first of them and how many there are."""
    if target:
        _write(table, Path(target), form)
        click.echo(f"vespiary-pipeline: written to {target}", err=True)
        return
    from vespiary_pipeline.jobs.rows import rows_of

    rows = table.orderBy(*order)
    if is_json:
        for row in rows_of(rows):
            click.echo(json.dumps(row, default=_as_json))
        return
    first = list(rows_of(rows.limit(limit + 1)))  # ordered: only the first rows are kept
    cells = [[_cell(value) for value in row.values()] for row in first[:limit]]
    _print(table.columns, cells)
    if len(first) > limit:
        click.echo(f"and {table.count() - limit} more: --limit shows, --to writes them", err=True)


def _write(table: DataFrame, target: Path, form: str) -> None:
    uri = f"file:{target.absolute()}"
    table.write.mode("errorifexists").format(form).option("header", "true").save(uri)


def _as_json(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)


def _cell(value: object) -> str:
    is_time = isinstance(value, datetime.datetime)
    text = "-" if value is None else _as_json(value) if is_time else str(value)
    cut = len(text) > _CELL_CHARACTERS_MAX
    return text[: _CELL_CHARACTERS_MAX - 1] + "…" if cut else text


def _print(columns: list[str], rows: list[list[str]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns)
        for row in rows:
            table.add_row(*row)
        Console().print(table)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


@main.command()
@source_options
@shown_options
@told
def files(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show each file of the message journal: blocks, records, what is torn."""
    with _opened(path, snapshot, on_corrupt) as broker:
        names = ("file_id", "state", "size_bytes", "used_bytes", "blocks", "records", "adds",
                 "acks", "last_time", "sealed", "torn_at", "error", "path")  # fmt: skip
        found = broker.files().select(*names).persist()
        _show(found, ("file_id", "path"), **shown)
        if not found.where(found["error"].isNotNull()).isEmpty():
            sys.exit(1)


@main.command()
@source_options
@shown_options
@told
def live(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show the messages that a broker would recover from these files."""
    with _opened(path, snapshot, on_corrupt) as broker:
        _show(broker.live(), ("queue_id", "sequence"), **shown)


@main.command()
@source_options
@shown_options
@told
def depth(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show how many messages wait in each queue."""
    from vespiary_pipeline.transform import depth as counted

    with _opened(path, snapshot, on_corrupt) as broker:
        _show(counted(broker.live()), ("queue_id",), **shown)


@main.command()
@source_options
@shown_options
@told
def usage(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show what lives in each file of the journal, what is dead there, and what keeps it."""
    from vespiary_pipeline.transform import RECORD_COLUMNS
    from vespiary_pipeline.transform import usage as used

    with _opened(path, snapshot, on_corrupt) as broker:
        records = broker.records(RECORD_COLUMNS)
        _show(used(broker.files(), records, broker.live()), ("file_id",), **shown)


@main.command()
@source_options
@shown_options
@told
def transactions(path: str, snapshot: str, on_corrupt: str, **shown: Any) -> None:
    """Show what became of each transaction, those in doubt with the name of their branch."""
    from vespiary_pipeline.transform import RECORD_COLUMNS
    from vespiary_pipeline.transform import transactions as settled

    with _opened(path, snapshot, on_corrupt) as broker:
        records = broker.records((*RECORD_COLUMNS, "data"))
        _show(settled(records), ("first_position",), **shown)


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

    with _opened(path, snapshot, on_corrupt) as broker:
        tables = report_tables(broker)
    if is_json:
        click.echo(json.dumps(dataclasses.asdict(tables), default=_as_json))
    elif not target:
        click.echo(text_report(tables))
    if target:
        _write_whole(Path(target), html_page(tables))
        click.echo(f"vespiary-pipeline: written to {target}", err=True)


def _write_whole(target: Path, text: str) -> None:
    """Write a file that is there whole or as it was."""
    staged = target.with_name(f".{target.name}.part")
    try:
        staged.write_text(text, encoding="utf-8")
        staged.replace(target)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise NativeError(
            "the report can't be written", error.errno or 0, where=str(target)
        ) from error


# --- export ---------------------------------------------------------------------------------------


@main.command()
@source_options
@click.option("--to", "target", required=True, help="Folder of the exports.")
@click.option("--retention", default="", help="Folder of kept copies, which are exported too.")
@click.option("--no-bodies", is_flag=True, help="Leave bodies out.")
@told
def export(
    path: str,
    snapshot: str,
    on_corrupt: str,
    target: str,
    retention: str,
    no_bodies: bool,
    is_json: bool,
) -> None:
    """Write the messages that no export to this folder has yet, as Parquet."""
    from vespiary_pipeline.jobs.broker_files import ExportedJournal
    from vespiary_pipeline.jobs.exporting import ExportOptions
    from vespiary_pipeline.jobs.exporting import export as exported

    with _opened(path, snapshot, on_corrupt) as broker:
        options = ExportOptions(to=Path(target), has_bodies=not no_bodies)
        done = exported(broker.spark, ExportedJournal(broker, retention), options)
    if is_json:
        click.echo(json.dumps({name: getattr(done, name) for name in done.__slots__}))
    elif done.export is None:
        click.echo(f"{path}: nothing new for {target}")
    else:
        size = f"{done.messages} messages in {done.files} files ({done.size_bytes} B)"
        click.echo(f"{path}: {size} written to {target}/{Path(done.export).name}")
