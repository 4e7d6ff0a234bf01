"""Delivery counts that survive a crash: when they are journalled, and messages that come with many.

Owns the rules and what is done with a message whose count says that it was delivered too often,
found when it is about to be given: it came so from a recovery or a page. (Those that come back
while the broker runs are `redelivery`'s.) Must never give a message. Used by `dispatch`,
`examined`, `outflow` and `subscriptions`; owner: the event loop.

With `persist-delivery-count-before-delivery` the core stages a count with each message that it
gives out, and the frames leave once that is durable: with the receipts, in their order
(`outflow`). So a message that kills the broker, or whoever takes it, is known for that. Batches
share one flush; nothing is counted for consumers that acknowledge with the delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.settling import Judge

RETIRED_A_TURN: Final = 256
"""Messages of a queue that are taken away in one turn because they were delivered too often."""


@dataclass(frozen=True, slots=True)
class CountRules:
    """What the settings say about delivery counts.

    Attributes:
        is_ahead: `persist-delivery-count-before-delivery`.
        records_max: `max-redelivery-records`; None: any number.
    """

    is_ahead: bool = False
    records_max: int | None = None


def limit_deliveries(core: Core, queue: Queue, attempts: int) -> None:
    """Have messages of a queue looked at that were delivered this often, before they are given.

    Args:
        core: The core.
        queue: The queue.
        attempts: `max-delivery-attempts` of its address; 0 or less: any number.
    """
    queue.attempts_max = max(attempts, 0)
    core.limit_deliveries(queue.id, queue.attempts_max)


def is_retired(judge: Judge | None, queue: Queue, message: MessageView) -> bool:
    """Take a message away if it was delivered too often, and nobody has looked at it for that yet.

    Args:
        judge: Decides what becomes of it; None: it is given like all others.
        queue: Its queue.
        message: The message, deliverable.

    Returns:
        Whether it was taken away.
    """
    attempts = queue.attempts_max
    if judge is None or not attempts or message.deliveries < attempts or message.is_returned:
        return False
    return judge.retire(queue, message.sequence)


def retire_next(core: Core, queue: Queue, judge: Judge) -> bool:
    """Take the next message of a queue away, which `deliver` does not give; False: it is not there.

    Args:
        core: The core.
        queue: The queue.
        judge: Decides what becomes of it.
    """
    sequence = core.next_deliverable(queue.id)
    return bool(sequence) and judge.retire(queue, sequence)
