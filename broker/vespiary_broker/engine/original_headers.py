"""What a message says of where it was before it was moved: dead letters, expired, unrouted ones.

Owns the names of these headers (the reference system's) and the properties of a moved message.
Pure. Called by `moves` and `transactions`.

    _AMQ_ORIG_ADDRESS       address that it was sent to at first
    _AMQ_ORIG_QUEUE         queue that it stood in last; unrouted messages have none
    _AMQ_ORIG_MESSAGE_ID    its message-id there at first
    _AMQ_ORIG_ROUTING_TYPE  ANYCAST or MULTICAST: of that queue
    _AMQ_ORIG_DELIVERIES    how often it was delivered in that queue (ours; none if never)
    _AMQ_ACTUAL_EXPIRY      milliseconds since 1970 when it was found to have expired
    destination             the address that it was moved to
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.engine.core import MessageView
from vespiary_broker.engine.message_times import TIME_HEADERS
from vespiary_broker.engine.property_lines import lines_of, value_of, without
from vespiary_broker.engine.queues import Queue
from vespiary_codec.wire.amqp.native_part import without_expiry, without_first_acquirer
from vespiary_codec.wire.stomp.properties import NATIVE

ORIGINAL_ADDRESS: Final = "_AMQ_ORIG_ADDRESS"
ORIGINAL_QUEUE: Final = "_AMQ_ORIG_QUEUE"
ORIGINAL_ID: Final = "_AMQ_ORIG_MESSAGE_ID"
ORIGINAL_TYPE: Final = "_AMQ_ORIG_ROUTING_TYPE"
ORIGINAL_DELIVERIES: Final = "_AMQ_ORIG_DELIVERIES"
ACTUAL_EXPIRY: Final = "_AMQ_ACTUAL_EXPIRY"
ORIGINAL_HEADERS: Final = frozenset(
    name.encode()
    for name in (
        ORIGINAL_ADDRESS, ORIGINAL_QUEUE, ORIGINAL_ID, ORIGINAL_TYPE, ORIGINAL_DELIVERIES,
        ACTUAL_EXPIRY,
    )
)  # fmt: skip
_REPLACED: Final = ORIGINAL_HEADERS | TIME_HEADERS | {b"destination"}


def moved_properties(
    view: MessageView, queue: Queue, address: str, expired_ms: int = 0, *, origin: str = ""
) -> bytes:
    """Return the properties of a message at the place that it is moved to.

    Its times are taken off, and it says where it comes from. What was moved before keeps the
    address and the id that it had at first, as in the reference system.

    Args:
        view: The message.
        queue: Its queue.
        address: Where it goes.
        expired_ms: When it was found to have expired; 0: it has not.
        origin: Address that it has to name, for a queue there lets it in by that; empty: the one
            that it had at first.
    """
    stored = view.properties
    first = value_of(stored, ORIGINAL_ID.encode())
    if not origin and first:
        origin = value_of(stored, ORIGINAL_ADDRESS.encode()) or ""
    headers = [
        ("destination", address),
        (ORIGINAL_ADDRESS, origin or queue.address.name),
        (ORIGINAL_QUEUE, queue.name),
        (ORIGINAL_ID, first or f"{queue.id}-{view.sequence}"),
        (ORIGINAL_TYPE, str(queue.routing_type)),
    ]
    if view.deliveries:
        headers.append((ORIGINAL_DELIVERIES, str(view.deliveries)))
    if expired_ms:
        headers.append((ACTUAL_EXPIRY, str(expired_ms)))
    return lines_of(headers) + _rest_of(stored)


def returned_properties(properties: bytes, address: str) -> bytes:
    """Return the properties of a message that goes back to where it was.

    Args:
        properties: At the place that it was moved to.
        address: The address of the queue that it goes back to.
    """
    return lines_of([("destination", address)]) + _rest_of(properties)


def unrouted_properties(properties: bytes, origin: str, address: str) -> bytes:
    """Return the properties of a message that no queue of its address takes.

    Args:
        properties: As it was sent.
        origin: The address that it was sent to.
        address: The dead letter address.
    """
    headers = [("destination", address), (ORIGINAL_ADDRESS, origin)]
    return lines_of(headers) + _rest_of(properties)


def acquired_properties(properties: bytes) -> bytes:
    """Return the properties of a message that a consumer had before it is written again.

    Args:
        properties: As they are.
    """
    lines, end, native = properties.partition(NATIVE)
    return lines + end + without_first_acquirer(native)


def _rest_of(properties: bytes) -> bytes:
    """Return properties without what a move replaces, in the lines and behind them."""
    lines, end, native = without(properties, _REPLACED).partition(NATIVE)
    return lines + end + without_first_acquirer(without_expiry(native))
