"""Messages that leave a queue because an administrator asks for it: all that wait there.

Owns the rules; the moving is `moves`', the walk over the queue `app.message_acts`'. Three acts:
back to the queue that each came from (`retry`), to the dead letter address, and to the expiry
address as if their time were over. Messages that consumers hold stay, as do those that wait
for their redelivery; scheduled ones leave with the others. Called by `app.message_acts`; owner:
the event loop.
"""

from __future__ import annotations

from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.moves import Mover, NoPlace, Reason, Shed
from vespiary_broker.engine.original_headers import ORIGINAL_QUEUE
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.queues import Queue
from vespiary_spec.errors import RemoteProtocolError


def check_departure(mover: Mover, queue: Queue, reason: Reason) -> None:
    """Refuse what would lose messages instead of moving them.

    Args:
        mover: Moves messages.
        queue: Their queue.
        reason: Why they are to leave it.

    Raises:
        RemoteProtocolError: There is no dead letter address for the queue, or it is that itself.
    """
    assert mover.places is not None
    if reason is Reason.RETRIED:
        return
    place = mover.places.find(queue, reason)
    if place is NoPlace.LATER:
        raise RemoteProtocolError(
            f"the address for messages that leave the queue {queue.name} cannot be made now",
            cure="make it, or its queue, by hand; the log says why",
        )
    if reason is Reason.DELIVERIES and (isinstance(place, Shed) or place is NoPlace.REFUSED):
        raise RemoteProtocolError(
            f"the dead letter address of the queue {queue.name} is full, and takes nothing",
            cure="make room there, or raise its limit",
        )
    if reason is Reason.DELIVERIES and place in (NoPlace.DROPPED, NoPlace.KEPT):
        raise RemoteProtocolError(
            f"the queue {queue.name} has no dead letter address to send its messages to",
            measured=str(place),
            cure="set dead-letter-address for its address",
        )


def origin_of(view: MessageView) -> str:
    """Return the queue that a message came from, as it says itself; empty: it does not."""
    return value_of(view.properties, ORIGINAL_QUEUE.encode()) or ""


def leave(core: Core, mover: Mover, queue: Queue, view: MessageView, reason: Reason) -> bool:
    """Have a message that waits in a queue leave it.

    Args:
        core: The core.
        mover: Moves messages.
        queue: The queue.
        view: The message; one that is set aside is scheduled, and leaves by nobody else.
        reason: Why; RETRIED takes those alone that say which queue they came from.

    Returns:
        Whether it was set aside for that.
    """
    to = ""
    if reason is Reason.RETRIED:
        to = origin_of(view)
        if not to:
            return False
    if not view.is_aside and not core.set_aside(queue.id, view.sequence):
        return False
    mover.add(queue, view.sequence, reason, to)
    return True
