"""`vespiary connection` and `vespiary consumer`: who is connected to a running broker.

Owns: the commands and their tables. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, show_all, yes_option
from vespiary_broker.cli.api_client import ApiClient, api_options

_CONNECTION_COLUMNS: Final = (
    ("connection#", "id"),
    ("user", "user"),
    ("client-id", "clientId"),
    ("peer", "peer"),
    ("protocol", "protocol"),
    ("listener", "listener"),
    ("subscriptions#", "subscriptions"),
    ("age-s#", "ageS"),
    ("unsent#", "unsentBytes"),
)
_CONSUMER_COLUMNS: Final = (
    ("queue", "queue"),
    ("connection#", "connection"),
    ("subscription", "subscription"),
    ("mode", "mode"),
    ("credit#", "credit"),
    ("delivering#", "delivering"),
    ("acknowledged#", "acknowledged"),
    ("priority#", "priority"),
    ("selector", "selector"),
)


@click.group("connection", short_help="List and close connections of clients.")
def connection() -> None:
    """Connections to a running broker, by its HTTP API."""


@connection.command("list", short_help="List connections.")
@click.option("--user", help="Only those of this user.")
@api_options
def list_connections(
    user: str | None, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """List all connections."""
    client = ApiClient(api_url, password_file)
    found = [each for each in client.items("/connections") if user in (None, each["user"])]
    shown = found
    if not is_json:
        shown = [each | {"ageS": round(each["ageS"]), "peer": _place(each)} for each in found]
    show_all(shown, _CONNECTION_COLUMNS, is_json)


@connection.command("close", short_help="Close connections.")
@click.argument("numbers", type=click.IntRange(min=0), nargs=-1)
@click.option("--user", help="All connections of this user.")
@click.option("--queue", help="All connections that consume from this queue.")
@yes_option
@api_options
def close_connections(
    numbers: tuple[int, ...],
    user: str | None,
    queue: str | None,
    yes: bool,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """Close the connections NUMBERS, as `vespiary connection list` shows them.

    The clients are told. What they have not acknowledged goes to others.
    """
    if not (numbers or user or queue):
        raise click.UsageError("say which: numbers, --user or --queue")
    client = ApiClient(api_url, password_file)
    chosen = set(numbers)
    if user:
        chosen |= {each["id"] for each in client.items("/connections") if each["user"] == user}
    if queue:
        consumers = client.items("/consumers", {"queue": queue})
        chosen |= {each["connection"] for each in consumers}
    if chosen:
        confirm(f"Close {terminal.counted(len(chosen), 'connection')}?", yes)
    closed: list[dict[str, Any]] = [
        client.call("DELETE", f"/connections/{number}") for number in sorted(chosen)
    ]
    if is_json:
        terminal.show_json(closed)
    else:
        terminal.echo(f"{terminal.counted(len(closed), 'connection')} closed")


def _place(connection: dict[str, Any]) -> str:
    """Return where a connection comes from, as `peer:port`."""
    peer, port = connection["peer"], connection["peerPort"]
    if not port:
        return str(peer)
    return f"[{peer}]:{port}" if ":" in peer else f"{peer}:{port}"


@click.group("consumer", short_help="List consumers of queues.")
def consumer() -> None:
    """Consumers of the queues of a running broker, by its HTTP API."""


@consumer.command("list", short_help="List consumers.")
@click.option("--queue", help="Only those of this queue.")
@api_options
def list_consumers(
    queue: str | None, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """List all consumers. `vespiary connection close` ends one, with its connection.

    Credit is what a client takes now, beyond what it holds; `-` is any number.
    """
    client = ApiClient(api_url, password_file)
    query = {"queue": queue} if queue else None
    show_all(list(client.items("/consumers", query)), _CONSUMER_COLUMNS, is_json)
