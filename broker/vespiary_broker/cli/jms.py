"""`vespiary jms`: JMS queues, topics, connection factories and JNDI names of a running broker.

Owns: the commands and their tables. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, show_all, show_removed, yes_option
from vespiary_broker.cli.api_client import ApiClient, api_options, segment

_OBJECT_COLUMNS: Final = (("name", "name"), ("JNDI names", "jndiNames"))
_FACTORY_COLUMNS: Final = (*_OBJECT_COLUMNS, ("url", "url"))
_NAME_COLUMNS: Final = (("JNDI name", "jndiName"), ("kind", "kind"), ("name", "name"))

_jndi_option = click.option(
    "--jndi", "jndi_names", multiple=True, metavar="NAME", help="JNDI name for it; repeatable."
)


@click.group("jms", short_help="JMS queues, topics, connection factories and JNDI names.")
def jms() -> None:
    """JMS objects of a running broker, by its HTTP API.

    They are kept in the JMS journal, which exists from its first use on.
    """


def _list(path: str, columns: Any, client: ApiClient, is_json: bool) -> None:
    items = list(client.items(path))
    if not is_json:
        for item in items:
            if "jndiNames" in item:
                item["jndiNames"] = ", ".join(item["jndiNames"])
    show_all(items, columns, is_json)


def _destinations(kind: str, collection: str) -> click.Group:
    """Return the commands for JMS queues or topics."""

    @click.group(kind, short_help=f"List, create and delete JMS {collection}.")
    def group() -> None:
        pass

    group.help = f"JMS {collection}; a {kind} is an address of the same name."

    @group.command("list", short_help=f"List JMS {collection}.")
    @api_options
    def list_destinations(api_url: str, password_file: Path | None, is_json: bool) -> None:
        client = ApiClient(api_url, password_file)
        _list(f"/jms/{collection}", _OBJECT_COLUMNS, client, is_json)

    list_destinations.help = f"List all JMS {collection} and their JNDI names."

    @group.command("create", short_help=f"Create a JMS {kind}, or give it more JNDI names.")
    @click.argument("name")
    @_jndi_option
    @api_options
    def create_destination(
        name: str,
        jndi_names: tuple[str, ...],
        api_url: str,
        password_file: Path | None,
        is_json: bool,
    ) -> None:
        body = {"name": name, "jndiNames": list(jndi_names)}
        made = ApiClient(api_url, password_file).call("POST", f"/jms/{collection}", body)
        _show_made(made, is_json)

    create_destination.help = f"Create the JMS {kind} NAME, and its address if need be."

    @group.command("delete", short_help=f"Delete a JMS {kind}.")
    @click.argument("name")
    @click.option("--force", is_flag=True, help="Even if it has messages or consumers.")
    @yes_option
    @api_options
    def delete_destination(
        name: str,
        force: bool,
        yes: bool,
        api_url: str,
        password_file: Path | None,
        is_json: bool,
    ) -> None:
        confirm(f"Delete the JMS {kind} {name}{' and all its messages' if force else ''}?", yes)
        query = {"force": str(force).lower()}
        client = ApiClient(api_url, password_file)
        answer = client.call("DELETE", f"/jms/{collection}/{segment(name)}", query=query)
        sentence = f"JMS {kind} {name} deleted with "
        sentence += terminal.counted(answer["messages"], "message")
        show_removed(answer, sentence, is_json)

    delete_destination.help = (
        f"Delete the JMS {kind} NAME, its JNDI names and its address. One with messages or "
        "consumers needs --force."
    )
    return group


jms.add_command(_destinations("queue", "queues"))
jms.add_command(_destinations("topic", "topics"))


@jms.group("factory", short_help="List, create and delete connection factories.")
def factory() -> None:
    """Connection factories: a URL under JNDI names."""


@factory.command("list", short_help="List connection factories.")
@api_options
def list_factories(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List all connection factories."""
    client = ApiClient(api_url, password_file)
    _list("/jms/connection-factories", _FACTORY_COLUMNS, client, is_json)


@factory.command("create", short_help="Create a connection factory, or change its URL.")
@click.argument("name")
@click.option("--url", required=True, help="Where it connects to, as amqp://broker:5672.")
@_jndi_option
@api_options
def create_factory(
    name: str,
    url: str,
    jndi_names: tuple[str, ...],
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """Create the connection factory NAME, give it more JNDI names, or another URL."""
    body = {"name": name, "url": url, "jndiNames": list(jndi_names)}
    made = ApiClient(api_url, password_file).call("POST", "/jms/connection-factories", body)
    _show_made(made, is_json)


@factory.command("delete", short_help="Delete a connection factory.")
@click.argument("name")
@yes_option
@api_options
def delete_factory(
    name: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Delete the connection factory NAME and its JNDI names."""
    confirm(f"Delete the connection factory {name}?", yes)
    client = ApiClient(api_url, password_file)
    answer = client.call("DELETE", f"/jms/connection-factories/{segment(name)}")
    show_removed(answer, f"connection factory {name} deleted", is_json)


@jms.command("names", short_help="List the JNDI names.")
@api_options
def list_names(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List all JNDI names and what they lead to."""
    _list("/jms/bindings", _NAME_COLUMNS, ApiClient(api_url, password_file), is_json)


@jms.command("unbind", short_help="Take a JNDI name away.")
@click.argument("name")
@api_options
def unbind(name: str, api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Take the JNDI name NAME away; what it led to stays."""
    ApiClient(api_url, password_file).call("DELETE", f"/jms/bindings/{segment(name)}")
    if is_json:
        terminal.show_json({"unbound": name})
    else:
        terminal.echo(f"JNDI name {name} taken away")


@jms.command("properties", short_help="Print the JNDI names as jndi.properties.")
@api_options
def properties(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Print the JNDI names as a jndi.properties file for Qpid JMS."""
    text = ApiClient(api_url, password_file).text("/jms/jndi.properties")
    if is_json:
        terminal.show_json({"properties": text})
    else:
        terminal.echo(text, nl=False)


def _show_made(made: dict[str, Any], is_json: bool) -> None:
    if is_json:
        terminal.show_json(made)
        return
    names = ", ".join(made["jndiNames"]) or "no JNDI name"
    terminal.echo(f"{made['kind']} {made['name']}, {names}")
