"""What commands of administration share: options, tables, the question before a loss.

Owns these helpers. Must never call the API. Called by the commands that do.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from vespiary_broker.cli import terminal
from vespiary_spec.printable import printable_line

routing_type_option = click.option(
    "--routing-type",
    type=click.Choice(("ANYCAST", "MULTICAST"), case_sensitive=False),
    default="ANYCAST",
    show_default=True,
    help="ANYCAST: each message to one consumer. MULTICAST: each subscription gets a copy.",
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def show_all(items: list[dict[str, Any]], columns: Any, is_json: bool) -> None:
    """Print a list as a table, or as JSON.

    Args:
        items: Items as the API gave them.
        columns: Pairs of heading and field.
        is_json: Print JSON.
    """
    if is_json:
        terminal.show_json(items)
        return
    rows = [[_cell(item[key]) for _, key in columns] for item in items]
    terminal.show_table([heading for heading, _ in columns], rows)


def show_one(item: dict[str, Any], is_json: bool) -> None:
    """Print one item, a field a line, or as JSON."""
    if is_json:
        terminal.show_json(item)
        return
    item = with_stall(item)
    width = max(len(name) for name in item)
    for name, value in item.items():
        shown = ", ".join(value) if isinstance(value, list) else _cell(value)
        terminal.echo_line(f"{name.ljust(width)}  {shown}")


def with_stall(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item with the lines `stalled` and `cure` in place of its field `stall`."""
    if "stall" not in item:
        return item
    stall = item["stall"]
    lines = {} if stall is None else {"stalled": stall["text"], "cure": stall["cure"]}
    return {name: value for name, value in item.items() if name != "stall"} | lines


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        are_types = all(item in ("ANYCAST", "MULTICAST") for item in value)
        return ", ".join(value) if value and are_types else str(len(value))
    return "-" if value is None else str(value)


def age_text(age_s: float | None) -> str | None:
    """Return an age with its largest unit that matters, as `3d` or `12s`; None: there is none."""
    if age_s is None:
        return None
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f}{unit}"
    return f"{age_s:.0f}s"


def size_text(size_bytes: int) -> str:
    """Return a size with a binary unit, as `1.5 MiB`."""
    size = float(size_bytes)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def confirm(question: str, is_sure: bool) -> None:
    """Ask before something is lost.

    Args:
        question: What is about to happen, as a question.
        is_sure: Whether `--yes` was given.

    Raises:
        CommandFailed: The answer was no, or standard input is no terminal.
    """
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise terminal.CommandFailed(f"{question} Pass --yes to confirm.")
    if not click.confirm(printable_line(question), err=True):
        raise terminal.CommandFailed("nothing was changed")


def show_removed(answer: dict[str, Any], sentence: str, is_json: bool) -> None:
    """Print what a deletion removed, as a sentence or as JSON."""
    if is_json:
        terminal.show_json(answer)
    else:
        terminal.echo(sentence)
