"""`vespiary task`: work that a running broker does in the background.

Owns: the commands and their table. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import show_all, show_one, show_removed
from vespiary_broker.cli.api_client import ApiClient, api_options

_COLUMNS: Final = (
    ("task#", "id"),
    ("act", "act"),
    ("queue", "queue"),
    ("to", "to"),
    ("state", "state"),
    ("looked#", "looked"),
    ("total#", "total"),
    ("messages#", "messages"),
    ("kept#", "kept"),
)


@click.group("task", short_help="Acts on messages in the background: list, show, cancel.")
def task() -> None:
    """What goes on in the background of a running broker, by its HTTP API."""


@task.command("list", short_help="List tasks.")
@api_options
def list_tasks(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List the tasks that run, and those that ended last."""
    client = ApiClient(api_url, password_file)
    show_all(list(client.items("/tasks")), _COLUMNS, is_json)


@task.command("show", short_help="Show one task.")
@click.argument("number", type=click.IntRange(min=1))
@api_options
def show_task(number: int, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Show the task NUMBER: what it does, how far it is, how it ended."""
    show_one(ApiClient(api_url, password_file).call("GET", f"/tasks/{number}"), is_json)


@task.command("cancel", short_help="End a task early.")
@click.argument("number", type=click.IntRange(min=1))
@api_options
def cancel_task(number: int, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """End the task NUMBER early; what it has done stays done."""
    answer = ApiClient(api_url, password_file).call("POST", f"/tasks/{number}/cancel")
    done = terminal.counted(answer["messages"], "message was done with", "messages were done with")
    sentence = f"task {number} {answer['state']}: {done}"
    show_removed(answer, sentence, is_json)
