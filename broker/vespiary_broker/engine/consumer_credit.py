"""Credit of consumers: how many more messages a client takes now, whatever its protocol.

Owns the rule alone: each protocol counts its own credit. Used by `stalls` and `app.states`.
"""

from __future__ import annotations

from vespiary_broker.engine.core import AckMode, Core
from vespiary_broker.engine.queues import Consumer


def remaining_credit(core: Core, consumer: Consumer) -> int | None:
    """Return how many more messages a consumer takes now, beyond those that it holds.

    Args:
        core: The core.
        consumer: An open consumer.

    Returns:
        0 or more; None: its protocol sets no limit.
    """
    if consumer.client_credit is not None:
        return consumer.client_credit()
    if consumer.mode is AckMode.AUTO:
        return None
    if consumer.view is not None:
        return max(consumer.view.room, 0)
    return max(consumer.credit - core.held_count(consumer.handle), 0)
