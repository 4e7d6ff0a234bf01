"""Where a command looks, and the forms in which it answers.

Owns: the connection of a command, tables, JSON. Never: decides anything.
Called by: the commands of `kubectl vespiary`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec
from rich.table import Table

from vespiary_operator import kinds
from vespiary_operator.kubectl.access import Api, document, path_of

Connect = Callable[[str | None, str | None], Api]

OUTPUT = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form."
)


class Place:
    """Where the commands look; the connection is made when it is needed."""

    def __init__(self, connect: Connect, context: str | None, namespace: str | None) -> None:
        self._connect = connect
        self._context = context
        self._namespace = namespace

    def api(self) -> Api:
        """Return the API server.

        Raises:
            ReconcileError: There is no configuration.
        """
        return self._connect(self._context, self._namespace)


def show_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(*headings: str) -> Table:
    """Return a table without lines, as kubectl's are."""
    made = Table(box=None, pad_edge=False)
    for heading in headings:
        made.add_column(heading, overflow="fold")
    return made


def broker_of(api: Api, name: str) -> dict[str, Any]:
    """Return a Broker.

    Raises:
        AccessError: The API server refused or did not answer.
    """
    return document(api, path_of(kinds.BROKER, api.namespace, name))
