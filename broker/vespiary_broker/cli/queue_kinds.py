"""What kind a queue is: options of `queue create` and `queue update`, and a column that says it.

Owns their names, which are the reference system's. Must never call the API. Called by `queues`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from vespiary_spec.model import camel

F = TypeVar("F", bound=Callable[..., Any])

_NUMBER: Final = click.IntRange(min=-1)
_OPTIONS: Final = (
    click.option(
        "--max-consumers", type=_NUMBER, help="Most consumers at a time; -1 for any number."
    ),
    click.option(
        "--purge-on-no-consumers/--keep-on-no-consumers",
        default=None,
        help="Empty it when its last consumer goes, and take nothing until the next one, or not.",
    ),
    click.option(
        "--exclusive/--no-exclusive",
        default=None,
        help="One consumer gets all messages; the others wait until it has gone, or not.",
    ),
    click.option(
        "--consumers-before-dispatch",
        type=click.IntRange(min=0),
        help="Consumers that it waits for before it hands anything out.",
    ),
    click.option(
        "--delay-before-dispatch",
        type=_NUMBER,
        help="Milliseconds that it waits for them; -1 waits for all.",
    ),
    click.option(
        "--group-rebalance/--no-group-rebalance",
        default=None,
        help="Groups find their consumers anew when one comes, or not.",
    ),
    click.option(
        "--group-rebalance-pause-dispatch/--no-group-rebalance-pause-dispatch",
        default=None,
        help="Before that, wait until all is acknowledged, or not.",
    ),
    click.option(
        "--group-buckets",
        type=_NUMBER,
        help="Groups share so many fates; -1: none is shared, 0: no groups.",
    ),
    click.option("--group-first-key", help="Header on the first message of a group."),
    click.option(
        "--last-value/--no-last-value",
        default=None,
        help="Of messages with the same last-value-key keep the latest, or all.",
    ),
    click.option("--last-value-key", help="Header whose value a last-value queue looks at."),
    click.option(
        "--ring-size",
        type=_NUMBER,
        help="Messages that may wait; with more, the oldest go. -1 for any number.",
    ),
    click.option(
        "--non-destructive/--destructive",
        default=None,
        help="Consumers see all messages and take none, or take what they are given.",
    ),
    click.option(
        "--auto-delete/--no-auto-delete",
        default=None,
        help="It goes by itself when it is empty and its last consumer has gone, or not.",
    ),
    click.option(
        "--auto-delete-delay",
        type=click.IntRange(min=0),
        help="Milliseconds that it has to be without consumers for that.",
    ),
    click.option(
        "--auto-delete-message-count",
        type=_NUMBER,
        help="Messages that it may hold then, which are lost; -1 for any number.",
    ),
)


def kind_options(command: F) -> F:
    """Give a command the options; it takes their values as keywords."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def body_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a body that the options mean; None for what was not given."""
    return {camel(name): value for name, value in values.items()}


def removes_messages(values: dict[str, Any]) -> bool:
    """Return whether a queue may lose messages that wait in it when it gets these options."""
    has_ring = values["ring_size"] is not None and values["ring_size"] >= 0
    return has_ring or bool(values["last_value"]) or values["last_value_key"] is not None


def with_kinds(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return queues with the field `kind`: in a word or two, what is not ordinary about them."""
    return [item | {"kind": kind_of(item)} for item in items]


def kind_of(item: dict[str, Any]) -> str:
    """Say what is not ordinary about a queue; `-` for nothing.

    Args:
        item: The queue as the API gave it.
    """
    found = [
        (item["lastValue"], "last-value"),
        (item["ringSize"] >= 0, f"ring {item['ringSize']}"),
        (item["nonDestructive"], "non-destructive"),
        (item["exclusive"], "exclusive"),
        (item["filterString"], "filter"),
    ]
    return ", ".join(text for is_so, text in found if is_so) or "-"
