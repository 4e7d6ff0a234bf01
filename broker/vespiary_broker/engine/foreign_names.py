"""Names that STOMP and AMQP clients cannot write as they are, since other brokers' forms mean more.

Owns the warnings about such names in the configuration and in journals from before these forms were
mapped: settings that match nothing any more, and queues that nobody sends to. Must never refuse
one. Called at a start and when the configuration changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

from vespiary_broker.engine.names import InvalidName, Meaning, foreign_meaning
from vespiary_spec.settings import Configuration, RoutingType

_NAMES_SHOWN: Final = 5

log = logging.getLogger(__name__)


def warn_of_foreign_names(addresses: Iterable[str], configuration: Configuration) -> None:
    """Log names that are in a form of another broker: one line for each kind.

    Args:
        addresses: The addresses that exist.
        configuration: The configuration in effect.
    """
    diverts = configuration.diverts
    for kind, text, names in (
        ("addresses", _of_address, addresses),
        (
            "diverts",
            partial(_of_setting, "divert"),
            [name for each in diverts for name in (each.address, each.forwarding_address)],
        ),
        ("address-settings", partial(_of_setting, "match"), configuration.address_settings),
        ("security-settings", partial(_of_setting, "match"), configuration.security_settings),
    ):
        foreign = [name for name in names if _is_foreign(name)]
        if foreign:
            shown = ", ".join(map(ascii, foreign[:_NAMES_SHOWN]))
            log.warning("%s kind=%s names=%d first=%s", text(foreign[0]), kind, len(foreign), shown)


def _of_address(name: str) -> str:
    """Return what has become of an address, and how clients and operators reach it."""
    meaning = _meaning(name)
    prefix = "/queue/"
    if meaning is None:
        text = f"STOMP and AMQP clients that use {name} are now rejected"
    else:
        is_queue = meaning.routing_type is RoutingType.ANYCAST
        prefix = "/queue/" if is_queue else "/topic/"
        text = f"STOMP and AMQP clients that use {name} now reach the "
        text += f"{'queue' if is_queue else 'topic'} {meaning.name}"
    return (
        f"{text}; use {prefix}{name} for this one, or move its messages with `vespiary queue move`"
    )


def _of_setting(what: str, name: str) -> str:
    """Return what has become of a match or of a divert's address, and how to write it."""
    meaning = _meaning(name)
    text = f"this {what} no longer applies to what clients call {name}"
    return f"{text}; name it {meaning.name}" if meaning is not None else f"{text}; remove it"


def _meaning(name: str) -> Meaning | None:
    """Return what a name in the form of another broker means; None: clients may not use it."""
    try:
        return foreign_meaning(name, "", "")
    except InvalidName:
        return None


def _is_foreign(name: str) -> bool:
    try:
        return foreign_meaning(name, "", "") is not None
    except InvalidName:
        return True
