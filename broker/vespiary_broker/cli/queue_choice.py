"""Which queues `vespiary queue stat` lists, in which order, with which columns.

Owns the conditions, under the reference system's names. Must never call the API. Called by
`administration`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

_NUMBERS: Final = (
    *("messages", "ready", "delivering", "prepared", "added", "acknowledged", "redelivered"),
    *("scheduled", "paged"),
    *("consumers", "maxConsumers", "liveBytes", "ringSize", "groupBuckets"),
    *("consumersBeforeDispatch", "delayBeforeDispatch", "autoDeleteDelay"),
    "autoDeleteMessageCount",
)
_TEXTS: Final = (
    *("name", "address", "routingType", "filterString", "user"),
    *("lastValueKey", "groupFirstKey", "state"),
)
_SWITCHES: Final = (
    *("isDurable", "isAutoCreated", "isTemporary", "isConfigured", "isPaused"),
    *("purgeOnNoConsumers", "exclusive", "lastValue", "nonDestructive", "autoDelete"),
    *("groupRebalance", "groupRebalancePauseDispatch"),
)
FIELDS: Final = (*_TEXTS, *_NUMBERS, *_SWITCHES)
"""Fields of a queue that can be compared, sorted by and shown."""

OPERATIONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "CONTAINS": lambda own, wanted: wanted in own,
    "NOT_CONTAINS": lambda own, wanted: wanted not in own,
    "EQUALS": lambda own, wanted: own == wanted,
    "NOT_EQUALS": lambda own, wanted: own != wanted,
    "GREATER_THAN": lambda own, wanted: own > wanted,
    "LESS_THAN": lambda own, wanted: own < wanted,
}

Condition = Callable[[dict[str, Any]], bool]


def condition_on(field: str, operation: str, value: str) -> Condition:
    """Return the condition that a field, an operation and a value make.

    Args:
        field: One of FIELDS.
        operation: One of OPERATIONS.
        value: As it was written.

    Raises:
        click.UsageError: They do not fit together.
    """
    is_about_text = operation in ("CONTAINS", "NOT_CONTAINS")
    is_about_order = operation in ("GREATER_THAN", "LESS_THAN")
    if is_about_text and field not in _TEXTS:
        raise click.UsageError(f"{operation} compares text, and {field} is not text; try EQUALS")
    if is_about_order and field not in _NUMBERS:
        raise click.UsageError(
            f"{operation} compares numbers, and {field} is not a number; try EQUALS"
        )
    wanted: object = value
    if field in _NUMBERS:
        try:
            wanted = int(value)
        except ValueError:
            raise click.UsageError(f"{field} is a number, not {value!r}") from None
    elif field in _SWITCHES:
        if value.lower() not in ("true", "false"):
            raise click.UsageError(f"{field} is true or false, not {value!r}")
        wanted = value.lower() == "true"
    compare = OPERATIONS[operation]
    return lambda item: compare(item[field], wanted)


def chosen(
    items: list[dict[str, Any]],
    condition: Condition | None,
    sort: str,
    *,
    is_descending: bool,
    count_max: int,
) -> tuple[list[dict[str, Any]], int]:
    """Return the first queues for which a condition holds, sorted, and how many there are.

    Args:
        items: Queues as the API gave them.
        condition: What holds; None for all.
        sort: One of FIELDS.
        is_descending: Whether the largest come first.
        count_max: Most queues to return.
    """
    found = [item for item in items if condition is None or condition(item)]
    found.sort(key=lambda item: item["name"])
    found.sort(key=lambda item: item[sort], reverse=is_descending)
    return found[:count_max], len(found)


def columns_of(text: str) -> tuple[tuple[str, str], ...]:
    """Return the columns that a list of fields asks for, as pairs of heading and field.

    Raises:
        click.UsageError: A field is unknown.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in FIELDS:
            raise click.UsageError(f"there is no field {name!r}; known: {', '.join(FIELDS)}")
    return tuple((f"{name}#" if name in _NUMBERS else name, name) for name in names)
