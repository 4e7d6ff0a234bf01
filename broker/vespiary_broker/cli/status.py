"""`vespiary status`: whether a running broker takes messages, and what holds up its producers.

Owns: the command and its lines. Called by `program`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.api_client import ApiClient, api_options

_ADDRESSES_SHOWN: Final = 5


@click.command("status", short_help="Say whether a broker takes messages.")
@api_options
def status(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Say whether a running broker takes messages, and why its producers wait if they do.

    Exits with 1 while it takes none, or while producers wait for the disk.
    """
    (found,) = ApiClient(api_url, password_file).call("GET", "/brokers")["items"]
    if is_json:
        terminal.show_json(found)
    else:
        for line in _lines(found):
            terminal.echo(line)
    if any(_hindrances(found)):
        raise click.exceptions.Exit(1)


def _hindrances(found: dict[str, Any]) -> Iterator[str]:
    """Yield what is in the way of messages, each as a line."""
    if not found["isReady"]:
        yield f"not ready   {found['notReadyReason']}"
    if found["journalFailedReason"]:
        yield f"fenced      {found['journalFailedReason']}"
    if found["journalBlockedReason"]:
        count, reason = found["journalBlockedProducers"], found["journalBlockedReason"]
        producers = terminal.counted(count, "producer waits", "producers wait")
        yield f"disk full   {producers}, consumers go on: {reason}"
    if found["largeMessages"] and found["largeMessages"]["waiting"]:
        count = found["largeMessages"]["waiting"]
        waiting = terminal.counted(count, "large message waits", "large messages wait")
        yield f"disk full   {waiting} for room"
    if found["paging"] and found["paging"]["blockedReason"]:
        yield f"disk full   no page can be written: {found['paging']['blockedReason']}"


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"version     {found['version']}"
    yield f"journal     {found['engine']}, {found['durability']}, in {found['dataDirectory']}"
    yield f"up          {found['uptimeS']:.0f} s"
    for each in found["listeners"]:
        spoken = ", ".join(each["protocols"])
        yield (
            f"listener    {each['name']} on {each['host']}:{each['port']} ({spoken}), "
            f"{terminal.counted(each['connections'], 'connection')}"
        )
    addresses = terminal.counted(found["addresses"], "address", "addresses")
    yield f"queues      {found['queues']} of {addresses}"
    if found["messagesUnrouted"]:
        yield f"unrouted    {_unrouted(found)}"
    hindrances = list(_hindrances(found))
    yield from hindrances or ["ready       producers and consumers go on"]


def _unrouted(found: dict[str, Any]) -> str:
    """Return how many messages no queue accepted since the start, and where most of them went."""
    by_address = list(found["messagesUnroutedByAddress"].items())
    named = ", ".join(f"{name} {count}" for name, count in by_address[:_ADDRESSES_SHOWN])
    others = ", ..." if len(by_address) > _ADDRESSES_SHOWN else ""
    count = found["messagesUnrouted"]
    messages = terminal.counted(count, "message was", "messages were")
    return f"{messages} accepted by no queue: {named}{others}"
