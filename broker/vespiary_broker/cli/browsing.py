"""`vespiary browse`: look at the messages of a queue without taking them.

Owns the command. It goes by the HTTP API, so it sees also what consumers hold. Called by `program`.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.api_client import ApiClient, api_options, segment

_BODY_BYTES: Final = 1024 * 1024
_PAGE: Final = 100


@click.command("browse", short_help="Look at the messages of a queue, and leave them there.")
@click.argument("queue")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="Most messages to show.",
)
@click.option("--all", "is_all", is_flag=True, help="Show all messages, however many there are.")
@click.option("--filter", "filter_text", metavar="SELECTOR", help="Only messages that match.")
@click.option(
    "--body-bytes",
    type=click.IntRange(0, _BODY_BYTES),
    help="Bytes of each body to show (default: management-message-attribute-size-limit, 256).",
)
@click.option("--scheduled", "is_scheduled", is_flag=True, help="Only those whose time is to come.")
@click.option("--delivering", "is_delivering", is_flag=True, help="Only those that consumers hold.")
@click.option("--headers", "is_with_headers", is_flag=True, help="Show the headers too.")
@click.option(
    "--raw",
    "is_raw",
    is_flag=True,
    help="Bodies as they are: no line feed is added, and nothing is escaped.",
)
@api_options
def browse(
    queue: str,
    count: int,
    is_all: bool,
    filter_text: str | None,
    body_bytes: int | None,
    is_scheduled: bool,
    is_delivering: bool,
    is_with_headers: bool,
    is_raw: bool,
    api_url: str,
    password_file: Path | None,
    is_json: bool,
) -> None:
    """Look at the messages of QUEUE, oldest first; none is taken, and none acknowledged.

    Messages that consumers hold are shown too, as delivering. With --json one object a line.
    """
    client = ApiClient(api_url, password_file)
    left = None if is_all else count
    after: str | None = None
    path = f"/queues/{segment(queue)}/messages"
    while left is None or left > 0:
        limit = _PAGE if left is None else min(left, _PAGE)
        query = {"limit": limit, "after": after, "filter": filter_text, "bodyBytes": body_bytes}
        if is_scheduled:
            query["scheduled"] = "true"
        if is_delivering:
            query["delivering"] = "true"
        page = client.call("GET", path, query=query)
        for message in page["items"]:
            if is_json:
                terminal.show_json(message)
            else:
                _show(message, is_with_headers, is_raw)
        left = None if left is None else left - len(page["items"])
        after = page["next"]
        if after is None:
            return


def _show(message: dict[str, Any], is_with_headers: bool, is_raw: bool) -> None:
    times = terminal.counted(message["deliveries"], "time")
    deliveries = f"  delivered {times}" if message["deliveries"] else ""
    terminal.echo_line(
        f"{message['id']}  {message['state']}  {terminal.counted(message['bodyBytes'], 'byte')}  "
        f"priority {message['priority']}{deliveries}"
    )
    if is_with_headers:
        terminal.show_headers(message["headers"].items(), is_raw=is_raw)
    if message["isLarge"]:
        return
    text, encoded = message["body"], message["bodyBase64"]
    body = base64.b64decode(encoded) if text is None else text.encode()
    if body:
        terminal.show_body(body, is_raw=is_raw, ends_line=not is_raw)
