"""`vespiary address`: addresses of a running broker, by its HTTP API.

Owns: the commands and their table. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import (
    confirm,
    routing_type_option,
    show_all,
    show_one,
    show_removed,
    yes_option,
)
from vespiary_broker.cli.api_client import ApiClient, api_options, segment
from vespiary_broker.cli.counters import counter_commands

_ADDRESS_COLUMNS: Final = (
    ("address", "name"),
    ("types", "routingTypes"),
    ("queues#", "queues"),
    ("messages#", "messages"),
    ("unrouted#", "messagesUnrouted"),
    ("auto-created", "isAutoCreated"),
    ("paused", "isPaused"),
)


@click.group("address", short_help="List, show, create, change, pause and delete addresses.")
def address() -> None:
    """Addresses of a running broker, by its HTTP API."""


@address.command("list", short_help="List addresses.")
@api_options
def list_addresses(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List all addresses."""
    client = ApiClient(api_url, password_file)
    show_all(list(client.items("/addresses")), _ADDRESS_COLUMNS, is_json)


@address.command("show", short_help="Show one address.")
@click.argument("name")
@api_options
def show_address(name: str, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Show the address NAME and its queues."""
    client = ApiClient(api_url, password_file)
    show_one(client.call("GET", f"/addresses/{segment(name)}"), is_json)


@address.command("create", short_help="Create an address.")
@click.argument("name")
@routing_type_option
@api_options
def create_address(
    name: str, routing_type: str, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Create the address NAME, or widen it by a routing type."""
    body = {"name": name, "routingTypes": [routing_type.upper()]}
    made = ApiClient(api_url, password_file).call("POST", "/addresses", body)
    if is_json:
        terminal.show_json(made)
    else:
        terminal.echo(f"address {made['name']}, {', '.join(made['routingTypes'])}")


@address.command("update", short_help="Change the routing types of an address.")
@click.argument("name")
@click.option(
    "--routing-type",
    "routing_types",
    type=click.Choice(("ANYCAST", "MULTICAST"), case_sensitive=False),
    multiple=True,
    required=True,
    help="A type that it serves; give it twice for both.",
)
@api_options
def update_address(
    name: str,
    routing_types: tuple[str, ...],
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """Have the address NAME serve these routing types and no others."""
    body = {"routingTypes": [kind.upper() for kind in routing_types]}
    client = ApiClient(api_url, password_file)
    show_one(client.call("PATCH", f"/addresses/{segment(name)}", body), is_json)


@address.command("pause", short_help="Give nothing more of an address to consumers.")
@click.argument("name")
@click.option("--persist", is_flag=True, help="A restart leaves it paused.")
@api_options
def pause_address(
    name: str, persist: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Pause all queues of the address NAME, and those to come, until `resume`.

    It takes messages meanwhile. Queues of wildcard addresses that cover it are not paused.
    """
    client = ApiClient(api_url, password_file)
    query = {"persist": str(persist).lower()}
    answer = client.call("POST", f"/addresses/{segment(name)}/pause", query=query)
    lasting = ", also after a restart" if persist else ", until a restart"
    show_removed(answer, f"address {name} paused{lasting}", is_json)


@address.command("resume", short_help="Go on with an address that was paused.")
@click.argument("name")
@api_options
def resume_address(name: str, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Go on giving messages of the address NAME; queues that were paused themselves stay so."""
    client = ApiClient(api_url, password_file)
    answer = client.call("POST", f"/addresses/{segment(name)}/resume")
    show_removed(answer, f"address {name} goes on", is_json)


@address.command("duplicate-ids", short_help="Show or forget an address' duplicate ids.")
@click.argument("name")
@click.option("--limit", default=10, type=click.IntRange(1, 1000), help="Newest ids to show.")
@click.option("--clear", is_flag=True, help="Forget them: messages with old ids are taken again.")
@yes_option
@api_options
def duplicate_ids(
    name: str,
    limit: int,
    clear: bool,
    yes: bool,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """Show the duplicate ids that the address NAME remembers, or forget them."""
    client = ApiClient(api_url, password_file)
    path = f"/addresses/{segment(name)}/duplicate-ids"
    if not clear:
        show_one(client.call("GET", path, query={"limit": str(limit)}), is_json)
        return
    confirm(f"Forget the duplicate ids of {name}?", yes)
    answer = client.call("DELETE", path)
    show_removed(
        answer, f"{terminal.counted(answer['ids'], 'duplicate id')} of {name} forgotten", is_json
    )


@address.command("delete", short_help="Delete an address without queues.")
@click.argument("name")
@yes_option
@api_options
def delete_address(
    name: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Delete the address NAME, which must have no queues."""
    confirm(f"Delete the address {name}?", yes)
    ApiClient(api_url, password_file).call("DELETE", f"/addresses/{segment(name)}")
    if is_json:
        terminal.show_json({"deleted": name})
    else:
        terminal.echo(f"address {name} deleted")


for _command in counter_commands("addresses", "address"):
    address.add_command(_command)
