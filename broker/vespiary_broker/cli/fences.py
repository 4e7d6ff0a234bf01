"""`vespiary fence`: which staged batches of writers count, by a running broker's HTTP API.

Owns: the commands and their table. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, show_all, yes_option
from vespiary_broker.cli.api_client import ApiClient, api_options, segment

_COLUMNS: Final = (
    ("fence", "name"),
    ("batch#", "batch"),
    ("pending#", "pending"),
    ("undecided#", "undecided"),
    ("age s#", "undecidedS"),
)


@click.group("fence", short_help="Batches that writers stage: list, delete.")
def fence() -> None:
    """Fences of a running broker: which batch of a writer, such as Spark, was committed last."""


@fence.command("list", short_help="List fences, and what is staged.")
@api_options
def list_fences(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List all fences: the last batch decided, and branches that wait for a decision."""
    items = list(ApiClient(api_url, password_file).items("/fences"))
    if not is_json:
        for item in items:
            item["undecidedS"] = f"{item['undecidedS']:.0f}"
    show_all(items, _COLUMNS, is_json)


@fence.command("delete", short_help="Delete a fence.")
@click.argument("name")
@yes_option
@api_options
def delete_fence(
    name: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Delete the fence NAME, and roll back what is staged and not decided.

    A writer that goes on under this name may send its last batch once more.
    """
    confirm(f"Delete the fence {name}? Its writer may send its last batch again.", yes)
    ApiClient(api_url, password_file).call("DELETE", f"/fences/{segment(name)}")
    if is_json:
        terminal.show_json({"deleted": name})
    else:
        terminal.echo(f"fence {name} deleted")
