"""Rules of the whole broker about what has a name, as the configuration wants them.

Owns the values. Must never apply them: `registry`, `address_settings` and `automatic_deletion` do.
Made by `app`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from vespiary_broker.engine.wildcards import DEFAULT_SYNTAX, WildcardSyntax

EVERYBODY: Final = "#"
"""Stands for every user without limits of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimit:
    """What one user may have; -1 for any number.

    Attributes:
        sessions_max: Most sessions at a time.
        durable_sessions_max: Most sessions that outlive their connection.
        queues_max: Most queues that it has made.
        bytes_per_s: Bytes a second that its connections may send.
        messages_per_s: Messages a second that they may send.
    """

    sessions_max: int = -1
    durable_sessions_max: int = -1
    queues_max: int = -1
    bytes_per_s: int = -1
    messages_per_s: int = -1


async def no_pause() -> None:
    """Go on at once: there are no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamingRules:
    """The rules.

    Attributes:
        syntax: What wildcards look like, in addresses and in matches.
        scan_period_s: Seconds between two looks for what is to be deleted automatically; 0 for
            none.
        clock_s: The monotonic clock by which delays are measured.
        addresses_max: Most addresses; 0 for any number.
        queues_max: Most queues; 0 for any number.
        subscriptions_max: Most subscriptions; 0 for any number.
        users: Limits by user; EVERYBODY stands for those without.
        pause: Lets others have their turn in the middle of work that is long.
        prefixes: What each acceptor takes off destinations: for queues, and for topics.
    """

    syntax: WildcardSyntax = DEFAULT_SYNTAX
    scan_period_s: float = 30.0
    clock_s: Callable[[], float] = time.monotonic
    addresses_max: int = 0
    queues_max: int = 0
    subscriptions_max: int = 0
    users: Mapping[str, UserLimit] = field(default_factory=dict)
    pause: Callable[[], Awaitable[None]] = no_pause
    prefixes: tuple[tuple[str, str], ...] = (("/queue/", "/topic/"),)


DEFAULT_RULES: Final = NamingRules()
