"""Names that STOMP and AMQP clients cannot write as they are, since other brokers' forms mean more.

Owns the warnings about such names in the configuration and in journals from before these forms were
mapped: settings that match nothing any more, and queues that nobody sends to. Must never refuse
one. Called at a start and when the configuration changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from vespiary_broker.engine.names import InvalidName, foreign_meaning
from vespiary_spec.settings import Configuration

_NAMES_SHOWN: Final = 5

log = logging.getLogger(__name__)


def warn_of_foreign_names(addresses: Iterable[str], configuration: Configuration) -> None:
    """Log names that are in a form of another broker: one line for each kind.

    Args:
        addresses: The addresses that exist.
        configuration: The configuration in effect.
    """
    diverts = configuration.diverts
    for kind, names in (
        ("addresses", addresses),
        ("diverts", [name for each in diverts for name in (each.address, each.forwarding_address)]),
        ("address-settings", configuration.address_settings),
        ("security-settings", configuration.security_settings),
    ):
        foreign = [name for name in names if _is_foreign(name)]
        if foreign:
            shown = ", ".join(map(ascii, foreign[:_NAMES_SHOWN]))
            log.warning(
                "clients of STOMP and AMQP that write these names mean others, without the form of "
                "another broker kind=%s names=%d first=%s cure='name them as they are meant; "
                "/queue/NAME and `vespiary queue move` reach a queue that has such a name'",
                kind, len(foreign), shown,
            )  # fmt: skip


def _is_foreign(name: str) -> bool:
    try:
        return foreign_meaning(name, "", "") is not None
    except InvalidName:
        return True
