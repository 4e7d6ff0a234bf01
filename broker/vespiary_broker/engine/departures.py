"""Messages that leave a queue because an administrator asks for it: all that wait there.

Owns the rules; the moving is `moves`', the walk over the queue `app.message_acts`'. Three acts:
back to the queue that each came from (`retry`), to the dead letter address, and to the expiry
address as if their time were over. Messages that consumers hold stay, as do those that wait
for their redelivery; scheduled ones leave with the others. Called by `app.message_acts`; owner:
the event loop.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Final, NamedTuple

from vespiary_broker.engine.core import Core, MessageView
from vespiary_broker.engine.moves import Mover, NoPlace, Reason, Shed
from vespiary_broker.engine.names import Destination, check_names
from vespiary_broker.engine.original_headers import (
    ORIGINAL_ADDRESS,
    ORIGINAL_QUEUE,
    ORIGINAL_TYPE,
)
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.publishing import make_target
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.registry import Registry
from vespiary_spec.errors import RemoteProtocolError, VespiaryError
from vespiary_spec.settings import Permission, RoutingType

ORIGINS_MAX: Final = 10
"""Most missing queues that one retry names."""


class Origin(NamedTuple):
    """The queue that a message came from, as the broker has written into it.

    Attributes:
        queue: Name of the queue.
        address: Name of its address.
        routing_type: ANYCAST or MULTICAST; empty: it is not known.
    """

    queue: str
    address: str
    routing_type: str


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
    """Return the queue that a message came from; empty: it was never moved."""
    return value_of(view.properties, ORIGINAL_QUEUE.encode()) or ""


def missing_origin(registry: Registry, view: MessageView) -> Origin | None:
    """Return the queue that a message came from if it is gone; None: it exists, or is not named.

    Args:
        registry: What exists.
        view: The message.
    """
    name = origin_of(view)
    if not name or name in registry.queues:
        return None
    address = value_of(view.properties, ORIGINAL_ADDRESS.encode()) or ""
    kind = value_of(view.properties, ORIGINAL_TYPE.encode())
    return Origin(name, address, kind or "")


async def make_origin(registry: Registry, origin: Origin, user: str) -> None:
    """Make the queue that messages came from, as sending a message to it would.

    The queue of a subscription is its client's to make: without it the queue would be no
    subscription.

    Args:
        registry: What exists.
        origin: The queue.
        user: Who wants it; empty: who may make everything.

    Raises:
        NotPermitted: The user may not send there, or may not make what is missing.
        RemoteProtocolError: Auto-creation is off there, or a name may not be one.
        LimitExceeded: There are as many queues or addresses as there may be.

    Durability: on return a queue that was made survives a power loss.
    """
    if origin.routing_type != RoutingType.ANYCAST or not origin.address:
        return
    check_names(origin.queue, origin.address, is_own=False)
    destination = Destination(
        origin.address, origin.queue, RoutingType.ANYCAST, user, is_trusted=not user
    )
    await make_target(registry, destination)


def is_open_to(registry: Registry, address: str, user: str) -> bool:
    """Return whether somebody may send messages to an address by moving them there.

    Args:
        registry: What exists.
        address: Name of the address.
        user: Who asks; empty: who may send everywhere.
    """
    return not user or registry.permissions.is_permitted(user, Permission.SEND, address)


def missing_origins_text(origins: Collection[Origin]) -> str:
    """Return which queues are missing and how to make them, as a sentence; empty: none is.

    Args:
        origins: The queues. Only the first `ORIGINS_MAX`, in the order of their names, are named.
    """
    parts, end = [], ""
    for origin in sorted(origins)[:ORIGINS_MAX]:
        try:
            check_names(origin.queue, origin.address or origin.queue, is_own=False)
        except VespiaryError as error:
            parts.append(f"messages name a queue that cannot exist: {error.what}")
        else:
            parts.append(f"there is no queue {origin.queue}: make it with `{_command(origin)}`")
            end = ", then retry"
    if len(origins) > len(parts):
        parts.append("others are missing too")
    return "; ".join(parts) + end


def _command(origin: Origin) -> str:
    """Return the command that makes a queue. Names may hold any sign."""
    name = [origin.queue] if not origin.queue.startswith("-") else []
    address = ["--address", origin.address] if origin.address else []
    is_known = origin.routing_type in list(RoutingType)
    kind = ["--routing-type", origin.routing_type] if is_known else []
    last = [] if name else ["--", origin.queue]
    return shlex.join(["vespiary", "queue", "create", *name, *address, *kind, *last])


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
