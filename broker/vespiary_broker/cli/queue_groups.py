"""`vespiary queue groups`: which message groups of a queue belong to which consumers.

Owns the command and its table. Called by `queues`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, show_all, show_removed, yes_option
from vespiary_broker.cli.api_client import ApiClient, api_options, segment

_COLUMNS: Final = (
    ("group", "group"),
    ("bucket", "bucket"),
    ("connection#", "connection"),
    ("subscription", "subscription"),
)


@click.command("groups", short_help="Show or release the message groups of a queue.")
@click.argument("name")
@click.option("--release", is_flag=True, help="Have all of them find their consumers anew.")
@yes_option
@api_options
def groups(
    name: str, release: bool, yes: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Show which message groups of the queue NAME belong to which consumers, or release them.

    Released groups go to the consumers that take their next messages; what is held stays.
    """
    client = ApiClient(api_url, password_file)
    path = f"/queues/{segment(name)}/groups"
    if not release:
        found = list(client.items(path))
        shown = [each | {"bucket": _bucket(each["bucket"])} for each in found]
        show_all(found if is_json else shown, _COLUMNS, is_json)
        return
    confirm(f"Let all groups of {name} have other consumers?", yes)
    answer = client.call("DELETE", path)
    show_removed(
        answer, f"{terminal.counted(answer['groups'], 'group')} of {name} released", is_json
    )


def _bucket(number: int | None) -> str:
    return "" if number is None else str(number)
