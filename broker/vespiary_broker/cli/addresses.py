"""`vespiary address`: addresses of a running broker, by its HTTP API.

Owns: the commands and their table. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import (
    confirm,
    routing_type_option,
    show_all,
    show_one,
    show_removed,
    size_text,
    yes_option,
)
from vespiary_broker.cli.api_client import ApiClient, NotAllowed, api_options, segment
from vespiary_broker.cli.counters import counter_commands

_ADDRESS_COLUMNS: Final = (
    ("address", "name"),
    ("types", "routingTypes"),
    ("queues#", "queues"),
    ("messages#", "messages"),
    ("unrouted#", "messagesUnrouted"),
    ("state", "state"),
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
    """Show the address NAME: its queues, what its messages take, its limits and its settings.

    Each setting is shown with the match of `address-settings` that it is from. Only users with the
    role `admin`, or with the permission `manage` there, see the settings.
    """
    client = ApiClient(api_url, password_file)
    path = f"/addresses/{segment(name)}"
    found = client.call("GET", path)
    settings, refusal = _settings_of(client, path)
    if is_json:
        terminal.show_json(found | {"settings": settings})
        return
    _show_figures(found)
    terminal.echo()
    if settings is None:
        terminal.echo(f"settings not shown: {refusal}")
        return
    rows = [
        {
            "setting": each["name"],
            "value": _value_text(each["value"]),
            "match": "(default)" if each["match"] is None else each["match"],
        }
        for each in settings
    ]
    show_all(rows, (("setting", "setting"), ("value", "value"), ("match", "match")), is_json=False)


def _show_figures(address: dict[str, Any]) -> None:
    """Print an address, a figure a line."""
    memory = address.pop("memory")
    show_one(address | ({} if memory is None else _memory_lines(memory)), is_json=False)


def _settings_of(client: ApiClient, path: str) -> tuple[list[dict[str, Any]] | None, str]:
    """Return the settings of an address; None with the reason where the user may not see them."""
    try:
        return client.call("GET", f"{path}/settings")["items"], ""
    except NotAllowed as refusal:
        return None, refusal.message


def _value_text(value: Any) -> str:
    """Return the value of a setting as the configuration has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)


def _memory_lines(memory: dict[str, Any]) -> dict[str, str]:
    """Return what the messages of an address take, as lines by name."""
    allowed_bytes, allowed = memory["maxBytes"], memory["maxMessages"]
    size = size_text(memory["sizeBytes"])
    size += " of " + ("any" if allowed_bytes is None else size_text(allowed_bytes))
    count = f"{memory['messages']} of {'any number' if allowed is None else allowed}"
    state = "full" if memory["isFull"] else "has room"
    if memory["isPaging"]:
        state += ", pages"
    blocked, closed = memory["blockedProducers"], memory["blockedProducersClosed"]
    lines = {
        "inMemory": f"{size}, messages: {count}",
        "policy": f"{memory['policy']}, {state}",
        "blockedProducers": f"{blocked}, {closed} of them closed" if closed else str(blocked),
        "dropped": str(memory["dropped"]),
    }
    if memory["pageFullPolicy"] is not None:
        lines["pages"] = _pages_text(memory)
    return lines


def _pages_text(memory: dict[str, Any]) -> str:
    """Return what the pages of an address with limits on them take."""
    limits = []
    if memory["pageLimitBytes"] is not None:
        limits.append(
            f"{size_text(memory['pagesBytes'] or 0)} of {size_text(memory['pageLimitBytes'])}"
        )
    if memory["pageLimitMessages"] is not None:
        limits.append(f"{memory['pagesMessages']} of {memory['pageLimitMessages']} messages")
    state = "full" if memory["isPageFull"] else "have room"
    return f"{', '.join(limits)}; {state}, page-full-policy {memory['pageFullPolicy']}"


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
    changed = client.call("PATCH", f"/addresses/{segment(name)}", body)
    if is_json:
        terminal.show_json(changed)
    else:
        _show_figures(changed)


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
