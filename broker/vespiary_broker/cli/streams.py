"""`vespiary stream`: queues of a running broker that are read by ranges, by its HTTP API.

Owns: the commands and their table. Called by `program`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import confirm, show_all, yes_option
from vespiary_broker.cli.api_client import ApiClient, api_options, segment

_COLUMNS: Final = (
    ("stream", "name"),
    ("queue", "queue"),
    ("owner", "owner"),
    ("epoch#", "epoch"),
    ("lease s#", "leaseLeftS"),
    ("acknowledged#", "acknowledged"),
    ("head#", "head"),
    ("lag#", "lag"),
    ("held up by", "cap"),
)


@click.group("stream", short_help="Queues that are read by ranges: list, claim, delete.")
def stream() -> None:
    """Streams of a running broker: queues that one reader, such as Spark, reads by ranges."""


@stream.command("list", short_help="List streams, and how far they are.")
@api_options
def list_streams(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """List all streams: whose they are, how far they are acknowledged, and how far behind."""
    items = list(ApiClient(api_url, password_file).items("/streams"))
    if not is_json:
        for item in items:
            item["leaseLeftS"] = f"{item['leaseLeftS']:.0f}"
            item["cap"] = " ".join(part for part in (item["cap"], item["cappedBy"]) if part)
    show_all(items, _COLUMNS, is_json)


@stream.command("claim", short_help="Make a stream, or end the run that reads one.")
@click.argument("name")
@click.argument("queue")
@click.option("--owner", required=True, help="Who claims it, such as the id of a Spark query.")
@click.option(
    "--lease",
    "lease_s",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds that nobody else may claim it after a call.",
)
@api_options
def claim_stream(
    name: str,
    queue: str,
    owner: str,
    lease_s: float,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """Claim the stream NAME, which reads QUEUE; it is made if it is not there.

    A run of the same owner that reads it is refused from then on.
    """
    body = {"name": name, "queue": queue, "owner": owner, "leaseS": lease_s}
    answer: Any = ApiClient(api_url, password_file).call("POST", "/streams", body)
    if is_json:
        terminal.show_json(answer)
    else:
        terminal.echo(f"stream {name} of {queue} claimed by {owner}, epoch {answer['epoch']}")


@stream.command("delete", short_help="Delete a stream.")
@click.argument("name")
@yes_option
@api_options
def delete_stream(
    name: str, yes: bool, api_url: str, password_file: Path | None, is_json: bool
) -> None:
    """Delete the stream NAME; what is not acknowledged stays in its queue, for anybody."""
    confirm(f"Delete the stream {name}? Its reader cannot go on.", yes)
    ApiClient(api_url, password_file).call("DELETE", f"/streams/{segment(name)}")
    if is_json:
        terminal.show_json({"deleted": name})
    else:
        terminal.echo(f"stream {name} deleted")
