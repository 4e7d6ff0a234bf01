"""What the commands of `vespiary-pipeline` share: options, the session, errors, tables.

Owns how a command starts Spark, how it ends, and how it shows rows. Results go to standard output,
everything else to standard error. Must never import Spark before a command needs it. Called by
`cli` and the modules of its commands.
"""

from __future__ import annotations

import datetime
import functools
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from vespiary_pipeline import progress, targets
from vespiary_pipeline.options import local_path
from vespiary_pipeline.session import check_pyspark
from vespiary_spec.errors import VespiaryError
from vespiary_spec.printable import printable_line, printable_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from vespiary_pipeline.jobs.broker_files import BrokerFiles

F = TypeVar("F", bound=Callable[..., Any])
INTERRUPTED: Final = 130
DEBUG_VARIABLE: Final = "VESPIARY_DEBUG"
QUIET: Final = "vespiary_pipeline.is_quiet"
"""Of the context of click: no progress is shown."""

_LINE: Final = "vespiary_pipeline.line"
_CELL_CHARACTERS_MAX: Final = 40
_DEFECT_CHARACTERS_MAX: Final = 300


def start_session() -> AbstractContextManager[SparkSession]:
    """Start Spark for one command; tests put their own in its place."""
    from vespiary_pipeline.session import local_session

    return local_session(click.get_current_context().find_root().obj)


@contextmanager
def working(what: str, *, is_json: bool) -> Iterator[SparkSession]:
    """Start Spark for a command, and show on a terminal what it does until there are results.

    Args:
        what: What is being done, a few words.
        is_json: The results are for a program: nothing else is shown.
    """
    meta = click.get_current_context().meta
    is_wanted = not is_json and not meta.get(QUIET) and sys.stderr.isatty()
    with progress.shown(what, is_wanted=is_wanted) as line, start_session() as spark:
        if line is None:
            yield spark
            return
        meta[_LINE] = line
        line.watch(progress.SparkStatus(spark.sparkContext))
        try:
            yield spark
        finally:
            line.end()  # before Spark ends, which answers no more then


def end_progress() -> None:
    """Take the line of a command's progress away: what follows is its results."""
    line = click.get_current_context().meta.get(_LINE)
    if line is not None:
        line.end()


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


max_body_option = click.option(
    "--max-body-bytes",
    default="64m",
    show_default=True,
    help="Leave larger bodies out; 1g at most, and Spark needs several times that.",
)
"""Of commands that take bodies along."""


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
    return _told(function, needs_spark=True)


def told_without_spark(function: F) -> F:
    """Do as `told` for a command that needs no Spark."""
    return _told(function, needs_spark=False)


def _told(function: F, *, needs_spark: bool) -> F:
    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        is_json = bool(options.get("is_json"))
        _mute()
        try:
            if needs_spark:
                check_pyspark()
            return function(*args, **options)
        except VespiaryError as error:
            _fail(str(error), {"event": "error", **error.to_dict()}, is_json=is_json)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:  # Spark has ended its jobs by then
            click.echo("vespiary-pipeline: interrupted", err=True)
            sys.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click ends with these as it should
        except Exception as error:
            sentence = _defect(error)
            _fail(sentence, {"event": "error", "message": sentence}, is_json=is_json)
            sys.exit(1)

    return run  # type: ignore[return-value]


def _fail(sentence: str, event: dict[str, Any], *, is_json: bool) -> None:
    end_progress()
    if os.environ.get(DEBUG_VARIABLE):
        click.echo(traceback.format_exc(), err=True, nl=False)
    shown = printable_text(sentence) if sys.stderr.isatty() else sentence
    click.echo(f"vespiary-pipeline: {shown}", err=True)
    if is_json:
        click.echo(json.dumps(event))


def _defect(error: Exception) -> str:
    """Return what is said of what nobody expected."""
    what = " ".join(f"{type(error).__name__}: {error}".split())[:_DEFECT_CHARACTERS_MAX]
    return (
        f"this is a defect of Vespiary: {what}. Please report it with what you did;"
        f" {DEBUG_VARIABLE}=1 shows the details."
    )


def _mute() -> None:
    """Have libraries raise their errors, and not log them with stack traces besides."""
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):  # PySpark's, as JSON
        logging.getLogger(name).disabled = True
    logging.getLogger().addFilter(_is_not_of_py4j)  # which logs what it raises to the root


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


@contextmanager
def opened(
    path: str,
    snapshot: str,
    on_corrupt: str,
    more: Mapping[str, str] | None = None,
    *,
    doing: str,
    is_json: bool,
    target: str = "",
) -> Iterator[BrokerFiles]:
    """Start Spark on the files at a path, if a broker's lie there.

    Args:
        path: The path.
        snapshot: Name of a copy; empty: the files themselves.
        on_corrupt: What damage does.
        more: Further options of the format.
        doing: What a line of progress says, in front of the path.
        is_json: The results are for a program, and no progress is shown.
        target: Folder that is to be made for the results; empty: none.

    Raises:
        StorageError: Nothing of a broker lies there.
        ExportRefused: The target is there already.
        NativeError: It can't be made.
        JobFailed: Spark ended what was done.
    """
    from vespiary_pipeline.jobs.broker_files import BrokerFiles
    from vespiary_pipeline.jobs.failures import spark_failures
    from vespiary_pipeline.layout import find_places
    from vespiary_pipeline.options import read_options

    options = {"onCorrupt": on_corrupt, **(more or {})}
    if snapshot:
        options["snapshot"] = snapshot
    find_places(read_options({**options, "path": path}))  # before Spark takes its seconds
    if target:
        targets.new_folder(target)
    with working(f"{doing} {path}", is_json=is_json) as spark, spark_failures(path, target):
        yield BrokerFiles(spark, path, options)


# --- tables ---------------------------------------------------------------------------------------


def show(
    table: DataFrame, order: Iterable[str], *, is_json: bool, limit: int, target: str, form: str
) -> None:
    """Write all rows of a table, or print the first of them and how many there are."""
    if target:
        _write(table, Path(local_path(target)), form)
        end_progress()
        click.echo(f"vespiary-pipeline: written to {target}", err=True)
        return
    from vespiary_pipeline.jobs.rows import rows_of

    rows = table.orderBy(*order)
    if is_json:
        for row in rows_of(rows):
            click.echo(json.dumps(row, default=as_json))
        return
    first = list(rows_of(rows.limit(limit + 1)))  # ordered: only the first rows are kept
    cells = [[_cell(value) for value in row.values()] for row in first[:limit]]
    left = table.count() - limit if len(first) > limit else 0
    end_progress()
    _print(table.columns, cells)
    if left:
        click.echo(f"and {left} more: --limit shows, --to writes them", err=True)


def _write(table: DataFrame, target: Path, form: str) -> None:
    uri = f"file:{target.absolute()}"
    table.write.mode("errorifexists").format(form).option("header", "true").save(uri)


def as_json(value: object) -> str:
    """Return a value as text, for JSON."""
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    return bytes(value).hex() if isinstance(value, bytes | bytearray) else str(value)


def _cell(value: object) -> str:
    is_time = isinstance(value, datetime.datetime)
    text = "-" if value is None else as_json(value) if is_time else str(value)
    cut = len(text) > _CELL_CHARACTERS_MAX
    return text[: _CELL_CHARACTERS_MAX - 1] + "…" if cut else text


def _print(columns: list[str], rows: list[list[str]]) -> None:
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(*columns)
        for row in rows:
            table.add_row(*(Text(printable_line(cell)) for cell in row))
        Console().print(table)
        return
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
