"""What commands print: sentences for people, objects for scripts, tables.

Owns the form of output. Standard output holds results alone; errors and remarks go to standard
error. rich is imported for tables on a terminal only, so that `run` does not pay for it. All output
of the commands goes through this module, because much of it is text of clients: on a terminal,
control characters are escaped. Must never decide what is said.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import click
import msgspec

from vespiary_spec.errors import VespiaryError
from vespiary_spec.model import camel
from vespiary_spec.printable import printable_line, printable_text

_WIDTH: Final = 118
"""Characters of a line of progress."""


class CommandFailed(click.ClickException):
    """A command could not do what it was asked for; its message is a whole sentence."""

    exit_code = 1


def open_closed_streams() -> None:
    """Open the standard streams that the process was started without: input ends, output is lost.

    Otherwise a journal file could get the descriptor of standard error, and with it what libraries
    print there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # by descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 stays open


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun.

    Args:
        count: The number.
        noun: The noun for 1.
        plural: The noun for other numbers; empty adds an s to `noun`.
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, with its control characters escaped if the output is a terminal.

    Args:
        text: Lines of text.
        err: Print to standard error.
        nl: End with a line feed.
    """
    stream = sys.stderr if err else sys.stdout
    click.echo(printable_text(text) if stream.isatty() else text, err=err, nl=nl)


def echo_line(text: str, *, is_raw: bool = False) -> None:
    """Print one line. On a terminal, text of clients in it cannot begin a line of its own.

    Args:
        text: The line.
        is_raw: Print it as it is, also to a terminal.
    """
    click.echo(printable_line(text) if sys.stdout.isatty() and not is_raw else text)


def rewrite_line(text: str) -> None:
    """Show text in place of the line that the cursor is on, on a terminal at standard error."""
    line = printable_line(text)
    click.echo(f"\r{line[:_WIDTH]:<{_WIDTH}}", nl=False, err=True)


def show_headers(headers: Iterable[tuple[str, str]], *, is_raw: bool) -> None:
    """Print the headers of a message, one a line, and an empty line."""
    for name, value in headers:
        echo_line(f"{name}: {value}", is_raw=is_raw)
    echo()


def show_body(body: bytes, *, is_raw: bool, ends_line: bool) -> None:
    """Print the body of a message at once.

    Args:
        body: Its bytes. A terminal gets text: what is not UTF-8, and control characters other than
            line ends and tabs, are escaped.
        is_raw: Print the bytes as they are, also to a terminal.
        ends_line: Add a line feed if there is none at the end.
    """
    if sys.stdout.isatty() and not is_raw:
        body = printable_text(body.decode(errors="backslashreplace")).encode()
    if ends_line and not body.endswith(b"\n"):
        body += b"\n"
    sys.stdout.flush()
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()


def json_fields(record: Any) -> dict[str, Any]:
    """Return the fields of a record as data for JSON, named in camelCase as in the HTTP API.

    Args:
        record: A dataclass, NamedTuple or msgspec struct; records in its fields are changed too,
            the keys of mappings are not.
    """
    if isinstance(record, msgspec.Struct):
        names = record.__struct_fields__
    elif dataclasses.is_dataclass(record):
        names = tuple(field.name for field in dataclasses.fields(record))
    else:
        names = record._fields
    return {camel(name): _json_data(getattr(record, name)) for name in names}


def _json_data(value: Any) -> Any:
    if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        return json_fields(value)
    if isinstance(value, Mapping):
        return {key: _json_data(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        is_record = hasattr(value, "_fields")
        return json_fields(value) if is_record else [_json_data(each) for each in value]
    return value


def show_json(value: Any) -> None:
    """Print one object as one line of JSON, at once: UTF-8, whatever the locale.

    Args:
        value: Data for JSON. Records in it are shown as `json_fields` says.
    """
    line = msgspec.json.encode(_json_data(value)) + b"\n"
    if sys.stdout.isatty():
        echo(line.decode(), nl=False)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(line)
    sys.stdout.flush()


def show_sentence(sentence: str) -> None:
    """Print a sentence about what happened to standard error."""
    echo(f"vespiary: {sentence}", err=True)


def show_failure(sentence: str, *, is_json: bool = False) -> None:
    """Print why a command failed, and with `--json` an object besides."""
    show_sentence(sentence)
    if is_json:
        show_json({"event": "error", "message": sentence})


def show_error(error: VespiaryError, *, is_json: bool = False) -> None:
    """Print an error: its sentence for people, and with `--json` an object besides."""
    show_sentence(str(error))
    if is_json:
        show_json({"event": "error", **error.to_dict()})


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: with rules on a terminal, else in plain columns.

    Args:
        columns: Headings. One that ends in `#` holds numbers, which stand to the right.
        rows: Cells; None prints as `-`.
    """
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _show_rich(columns, [[printable_line(cell) for cell in row] for row in cells])
        return
    headings = [column.rstrip("#") for column in columns]
    lines = [headings, *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        parts = [
            cell.rjust(width) if column.endswith("#") else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        echo("  ".join(parts).rstrip())


def _show_rich(columns: Sequence[str], cells: list[list[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.rstrip("#"),
            justify="right" if column.endswith("#") else "left",
            overflow="fold",
        )
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))  # Text: a name is never taken as markup
    Console().print(table)


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal while the block runs.

    Args:
        what: What is going on.
        total: Steps until the end.

    Yields:
        A function that takes the number of steps done since its last call.
    """
    if total < 2 or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(printable_line(what), total=total)
        yield lambda steps: bar.advance(task, steps)
