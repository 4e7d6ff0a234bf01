"""The end of connections whose users were removed.

Owns which connections that are, and what their clients are told. Must never close a connection of a
user whose password or roles changed: a new password is for the next login, and new roles count at
once where there are `security-settings`. Owner: the event loop.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from vespiary_broker.engine.logins import ANONYMOUS
from vespiary_spec.errors import UserRemoved

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle

log = logging.getLogger(__name__)


def close_removed(cycle: Cycle) -> dict[str, int]:
    """Close the connections of users that are gone, and of clients that have to log in now.

    What they sent before is confirmed if it becomes durable; a large message on its way to them is
    cut off.

    Args:
        cycle: What all connections share.

    Returns:
        How many connections were closed, by user.
    """
    logins = cycle.engine.logins
    closed: Counter[str] = Counter()
    for connection in list(cycle.connections.values()):
        user = "" if connection.handler is None else connection.handler.user
        if user and connection.is_open and not logins.is_current(user):
            error = UserRemoved(user, is_anonymous=user == ANONYMOUS)
            connection.refuse_error(error, is_patient=False)
            closed[user] += 1
    for user, count in closed.items():
        log.info("connections closed user=%r connections=%d reason='user removed'", user, count)
    return dict(closed)
