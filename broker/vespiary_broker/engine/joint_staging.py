"""A message and what the broker notes beside it, staged as one transaction of the journal.

Owns the order within it. What is noted stands in queues of the broker's own: that a message of
QoS 2 was received, what is retained. Called by the sessions of MQTT.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.open_transaction import aborted_on_failure
from vespiary_broker.engine.publishing import Target
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.transactions import (
    Outgoing,
    begin_staging,
    check_size,
    most_places,
    publish,
    settle_body,
)

_NOTE_BYTES = 64


class Note(NamedTuple):
    """Something that is written into a queue of the broker's own.

    Attributes:
        queue: The queue.
        properties: Header lines.
        body: Body.
        is_special: Whether Python looks at it before anything becomes of it: it expires.
        protocol: Of its sender.
    """

    queue: Queue
    properties: bytes
    body: bytes = b""
    is_special: bool = False
    protocol: int = 1


class End(NamedTuple):
    """Messages of a queue that nobody holds, to be ended.

    Attributes:
        queue: The queue.
        sequences: Their sequences; those that are gone are passed over.
    """

    queue: Queue
    sequences: Sequence[int]


class Taken(NamedTuple):
    """A message that a consumer holds, to be acknowledged."""

    consumer: Consumer
    sequence: int


def stage_jointly(
    core: Core,
    registry: Registry,
    message: tuple[Outgoing, Target] | None,
    acts: Sequence[Note | End | Taken],
) -> tuple[int, list[int]]:
    """Stage a message and more, all or nothing.

    Args:
        core: The core.
        registry: What exists.
        message: The message and where it goes; None: there is none.
        acts: What is done beside it, in this order.

    Returns:
        The number of places of the message, and the sequence of each note.

    Raises:
        NoRoom: It does not fit into the journal now; nothing was changed.
        LimitExceeded: It never will; nothing was changed.

    Durability: none by itself. What is confirmed behind it is released when all of it is durable.
    """
    notes = [act for act in acts if isinstance(act, Note)]
    size_bytes = sum(len(note.properties) + len(note.body) for note in notes)
    records = 1 + sum(len(act.sequences) if isinstance(act, End) else 1 for act in acts)
    if message is not None:
        outgoing, target = message
        places = max(most_places(registry, outgoing.destination), target.places)
        check_size(core, outgoing, places)
        size_bytes += outgoing.size_bytes
        records += places
    number = secrets.randbits(63) + 1
    begin_staging(core, registry, number, size_bytes + _NOTE_BYTES, records)
    placed = 0
    sequences = []
    with aborted_on_failure(core, number):
        if message is not None:
            placed = publish(core, registry.large_bodies, *message, transaction=number)
        for act in acts:
            if isinstance(act, Note):
                sequences.append(_write(core, registry, act, number))
            elif isinstance(act, End):
                core.finish(act.queue.id, list(act.sequences), transaction=number)
            elif act.consumer.is_open:
                core.acknowledge(act.consumer.handle, act.sequence, transaction=number)
        core.commit(number)
    if message is not None:
        settle_body(registry.large_bodies, message[0], placed)
    return placed, sequences


def _write(core: Core, registry: Registry, note: Note, number: int) -> int:
    """Stage a note; return its sequence."""
    core.publish(
        registry.queue_route(note.queue).next_handle(),
        note.properties,
        note.body,
        persistent=True,
        protocol=note.protocol,
        escaped=b"\\" in note.properties,
        special=note.is_special,
        transaction=number,
    )
    return core.queue_statistics(note.queue.id).tail - 1
