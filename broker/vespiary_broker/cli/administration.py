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
    width = max(len(name) for name in item)
    for name, value in item.items():
        shown = ", ".join(value) if isinstance(value, list) else _cell(value)
        terminal.echo_line(f"{name.ljust(width)}  {shown}")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        are_types = all(item in ("ANYCAST", "MULTICAST") for item in value)
        return ", ".join(value) if value and are_types else str(len(value))
    return str(value)


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
