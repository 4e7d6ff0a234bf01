"""`vespiary divert`: diverts of a running broker, by its HTTP API.

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
    ("divert", "name"),
    ("from", "address"),
    ("to", "forwardingAddress"),
    ("exclusive", "isExclusive"),
    ("type", "routingType"),
    ("filter", "filterString"),
)


@click.group("divert", short_help="List, create and delete diverts.")
def divert() -> None:
    """Diverts of a running broker: messages of one address that go to another one."""


@divert.command("list", short_help="List diverts.")
@api_options
def list_diverts(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List all diverts."""
    show_all(list(ApiClient(api_url, password_file).items("/diverts")), _COLUMNS, is_json)


@divert.command("create", short_help="Create a divert.")
@click.argument("name")
@click.option("--address", required=True, help="Address whose messages it takes.")
@click.option("--forwarding-address", required=True, help="Address that they go to.")
@click.option("--filter", "filter_string", default="", help="Selector of what it takes.")
@click.option(
    "--exclusive/--copy",
    default=False,
    help="Instead of the address' queues, or as well (default).",
)
@click.option(
    "--routing-type",
    type=click.Choice(("STRIP", "PASS", "ANYCAST", "MULTICAST"), case_sensitive=False),
    default="STRIP",
    show_default=True,
    help="Queues that it leads to: of both kinds, as its sender asked, or of one kind.",
)
@click.option("--routing-name", default="", help="Another name (default: the name).")
@api_options
def create_divert(
    name: str,
    address: str,
    forwarding_address: str,
    filter_string: str,
    exclusive: bool,
    routing_type: str,
    routing_name: str,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """Create the divert NAME; one that exists just so is fine."""
    body = {
        "name": name,
        "address": address,
        "forwardingAddress": forwarding_address,
        "filterString": filter_string,
        "exclusive": exclusive,
        "routingType": routing_type.upper(),
        "routingName": routing_name,
    }
    made = ApiClient(api_url, password_file).call("POST", "/diverts", body)
    if is_json:
        terminal.show_json(made)
    else:
        target = made["forwardingAddress"]
        terminal.echo(f"divert {made['name']} from {made['address']} to {target}")


@divert.command("delete", short_help="Delete a divert.")
@click.argument("name")
@yes_option
@api_options
def delete_divert(
    name: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Delete the divert NAME; messages go where they would without it."""
    confirm(f"Delete the divert {name}?", yes)
    ApiClient(api_url, password_file).call("DELETE", f"/diverts/{segment(name)}")
    if is_json:
        terminal.show_json({"deleted": name})
    else:
        terminal.echo(f"divert {name} deleted")
