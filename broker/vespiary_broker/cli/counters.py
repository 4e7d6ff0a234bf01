"""Message counters on the command line: of queues, of addresses, with their history.

Owns: the commands that show and reset them, and their tables. Called by `queues` and `addresses`,
which have these commands as their own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.api_client import ApiClient, api_options, segment

_COUNTS: Final = ("added", "delivered", "acknowledged", "expired", "killed")
_HISTORY_COLUMNS: Final = ("name", "date", "hour#", *(f"{count}#" for count in _COUNTS))


def show_histories(counters: list[dict[str, Any]], *, is_json: bool) -> None:
    """Print what happened by hour, of several queues or addresses.

    Args:
        counters: As the API gave them.
        is_json: Print JSON.
    """
    if is_json:
        terminal.show_json(counters)
        return
    rows = [
        [counter["name"], day["date"], hour["hour"], *(hour["counts"][each] for each in _COUNTS)]
        for counter in counters
        for day in counter["days"]
        for hour in day["hours"]
    ]
    terminal.show_table(_HISTORY_COLUMNS, rows)


def counter_of(client: ApiClient, collection: str, name: str) -> dict[str, Any]:
    """Return the counter of a queue or address.

    Args:
        client: Asks the broker.
        collection: `queues` or `addresses`.
        name: Name of the queue or address.

    Raises:
        CommandFailed: There is no such thing, or there are no counters.
    """
    answer: dict[str, Any] = client.call("GET", f"/{collection}/{segment(name)}/message-counter")
    return answer


def _show(counter: dict[str, Any]) -> None:
    rows = [[each, counter[each], counter[f"{each}Delta"]] for each in _COUNTS]
    terminal.show_table(("counter", "total#", "last period#"), rows)
    for text, field in (("last added", "lastAddMs"), ("last acknowledged", "lastAckMs")):
        terminal.echo(f"{text}: {_time(counter[field])}")
    terminal.echo(f"sampled: {_time(counter['updatedMs'])}")


def _time(milliseconds: int) -> str:
    if not milliseconds:
        return "never"
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def counter_commands(collection: str, what: str) -> tuple[click.Command, click.Command]:
    """Return the commands on the counters of queues, or of addresses.

    Args:
        collection: `queues` or `addresses`.
        what: The word for one of them.
    """

    @click.command("counter", short_help="Show the message counter, and its history.")
    @click.argument("name")
    @click.option("--history", is_flag=True, help="What happened by hour, oldest first.")
    @api_options
    def counter(
        name: str, history: bool, api_url: str, password_file: Path | None, is_json: bool
    ) -> None:
        found = counter_of(ApiClient(api_url, password_file), collection, name)
        if is_json:
            terminal.show_json(found)
        elif history:
            show_histories([found], is_json=False)
        else:
            _show(found)

    @click.command("reset-counter", short_help="Have a message counter begin anew.")
    @click.argument("name", required=False)
    @click.option("--all", "is_all", is_flag=True, help="All counters of queues and addresses.")
    @api_options
    def reset_counter(
        name: str | None, is_all: bool, api_url: str, password_file: Path | None, is_json: bool
    ) -> None:
        if (name is None) is not is_all:
            raise click.UsageError("give a name, or --all")
        path = "/message-counters"
        if name is not None:
            path = f"/{collection}/{segment(name)}/message-counter"
        ApiClient(api_url, password_file).call("DELETE", path)
        if is_json:
            terminal.show_json({"reset": name})
        else:
            terminal.echo(f"reset the counter of {name}" if name else "reset all counters")

    counter.help = f"Show what was counted of the {what} NAME since the start, or since a reset."
    reset_counter.help = f"Have the message counter of the {what} NAME begin anew, without history."
    return counter, reset_counter
