"""`vespiary status`: whether a running broker takes messages, and what is not moving.

Owns: the command and its lines. Called by `program`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from vespiary_broker.cli import terminal
from vespiary_broker.cli.administration import age_text
from vespiary_broker.cli.api_client import ApiClient, api_options

_ADDRESSES_SHOWN: Final = 5
_STALLS_MAX: Final = 20
"""The API names no more of what is not moving."""


@click.command("status", short_help="Say whether a broker takes messages.")
@api_options
def status(api_url: str, password_file: Path | None, is_json: bool) -> None:
    """Say whether a running broker takes messages, and which queues and addresses are not moving.

    Each is named with the reason and with what to do next. Exits with 1 while the broker takes no
    messages, while producers wait for the disk, and while an address is full.
    """
    (found,) = ApiClient(api_url, password_file).call("GET", "/brokers")["items"]
    if is_json:
        terminal.show_json(found)
    else:
        for line in _lines(found):
            terminal.echo_line(line)
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
    for each in found["stalls"]:
        if _is_hindrance(each):
            yield _stall_line(each)


def _is_hindrance(stalled: dict[str, Any]) -> bool:
    """Whether producers cannot go on, so that it is not enough to wait for consumers."""
    return stalled["kind"] == "address" and stalled["stall"]["reason"] in ("full", "memory")


def _stall_line(stalled: dict[str, Any]) -> str:
    """Return what is not moving, why, and what to do next."""
    stall = stalled["stall"]
    reason = "stalled     " if not _is_hindrance(stalled) else "full        "
    return (
        f"{reason}{stalled['kind']} {stalled['name']} ({stall['reason']}, "
        f"{age_text(stalled['ageS'])}): {stall['text']}. Next: {stall['cure']}"
    )


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
    yield from _dropped_lines(found)
    if found["messagesUnmovable"]:
        times = terminal.counted(found["messagesUnmovable"], "move")
        yield (
            f"unmovable   {times} of messages failed: they were delivered again. Next: `vespiary "
            "queue list` shows of which queues, the log why"
        )
    hindrances = list(_hindrances(found))
    yield from hindrances
    others = [each for each in found["stalls"] if not _is_hindrance(each)]
    # A full disk is one line, not one for each address.
    shown = [each for each in others if each["kind"] == "queue" or not _is_disk(each)]
    yield from map(_stall_line, shown)
    more = _stalled_count(found) - _STALLS_MAX
    if more > 0 and len(found["stalls"]) == _STALLS_MAX:
        yield f"stalled     {more} more (`vespiary queue list`, `vespiary address list`)"
    if not hindrances:
        yield f"ready       {_ready_text(others)}"


def _ready_text(stalled: list[dict[str, Any]]) -> str:
    """Return who goes on while no address is full."""
    if any(each["stall"]["reason"] == "rate-limit" for each in stalled):
        return "producers go on, but those that wait for a rate"
    return "producers go on" if stalled else "producers and consumers go on"


def _is_disk(stalled: dict[str, Any]) -> bool:
    return bool(stalled["stall"]["reason"] == "disk")


def _stalled_count(found: dict[str, Any]) -> int:
    """Return how many queues and addresses were not moving when all were last looked at."""
    counts: list[int] = [*found["stalledQueues"].values(), *found["stalledAddresses"].values()]
    return sum(counts)


def _unrouted(found: dict[str, Any]) -> str:
    """Return how many messages no queue accepted since the start, and where most of them went."""
    by_address = list(found["messagesUnroutedByAddress"].items())
    named = ", ".join(f"{name} {count}" for name, count in by_address[:_ADDRESSES_SHOWN])
    others = ", ..." if len(by_address) > _ADDRESSES_SHOWN else ""
    count = found["messagesUnrouted"]
    messages = terminal.counted(count, "message was", "messages were")
    text = f"{messages} accepted by no queue: {named}{others}"
    if by_address:
        text += f". Next: `vespiary address show {by_address[0][0]}` names its queues, the log why"
    return text


def _dropped_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield how many messages were confirmed and dropped since the start, and what to do next."""
    if found["messagesDroppedAddressFull"]:
        messages = terminal.counted(found["messagesDroppedAddressFull"], "message")
        yield (
            f"dropped     {messages} to full addresses whose policy is DROP. Next: the log names "
            "them, `vespiary address show ADDRESS` shows the limit; consume, raise it, or use BLOCK"
        )
    if found["messagesDropped"]:
        messages = terminal.counted(found["messagesDropped"], "message")
        yield (
            f"dropped     {messages} while the disk was full (disk-full-policy DROP). Next: "
            "enlarge the volume, or consume messages"
        )
