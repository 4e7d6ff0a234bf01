"""Messages out, acknowledgements and refusals in.

Owns the order of delivery and the MESSAGE frame. Never decides who gets how many: that is the
engine. Called by the core and by the scanner.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from vespiary_codec.wire.stomp.frames import Version
from vespiary_codec.wire.stomp.properties import properties_for_version
from vespiary_native.abc import AckMode, DeliverStatus, LargeBody, LargeDelivery, NoRoom
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Consumer, Message, Queue

_VERSIONS: Final[dict[int, Version]] = {10: "1.0", 11: "1.1", 12: "1.2"}


def deliver(
    staging: Staging, consumer: Consumer, max_messages: int, max_bytes: int
) -> tuple[DeliverStatus, int, bytes]:
    """Take and encode the next messages (see `abc.Core.deliver`)."""
    queue, held = consumer.queue, consumer.held
    entries, returned, deliveries = queue.entries, queue.returned, queue.deliveries
    is_auto = consumer.mode is AckMode.AUTO
    if not is_auto:
        max_messages = min(max_messages, consumer.credit - len(held))
    version = _VERSIONS[consumer.version]
    prefix, ack_prefix = consumer.prefix, consumer.ack_prefix
    parts: list[bytes | memoryview] = []
    count = used = 0
    status = DeliverStatus.LIMIT
    while count < max_messages:
        sequence = returned[0] if returned else queue.next
        if not returned and not (sequence < queue.available and queue.is_free(sequence)):
            sequence = queue.next = queue.first_ready(sequence, queue.available)
            if sequence == queue.available:
                status = DeliverStatus.DRAINED
                break
        message = entries[sequence]
        slab, at, properties_bytes, body_bytes, has_escapes, _ = message
        view = slab.view
        if view is None:
            status = DeliverStatus.ABSENT
            queue.waits_for_slab = True
            break
        if queue.large and sequence in queue.large:
            status = DeliverStatus.LARGE
            break
        body_at = at + properties_bytes
        properties: bytes | memoryview = view[at:body_at]
        if deliveries and sequence in deliveries:
            again = b"\nredelivered:true\ndelivery-count:%d" % deliveries[sequence]
        else:
            again = b""
        if ack_prefix is not None:
            head = b"%b%d%b%d%b\ncontent-length:%d\n" % (
                prefix, sequence, ack_prefix, sequence, again, body_bytes,
            )  # fmt: skip
        else:
            head = b"%b%d%b\ncontent-length:%d\n" % (prefix, sequence, again, body_bytes)
        if has_escapes and version != "1.2":
            properties = properties_for_version(bytes(properties), version)
        length = len(head) + len(properties) + body_bytes + 2
        if count and used + length > max_bytes:
            break
        body: bytes | memoryview = view[body_at : body_at + body_bytes]
        if is_auto:
            # Its memory may go with its last place, so it is copied first.
            properties, body = bytes(properties), bytes(body)
            if not _finish_given(staging, queue, sequence, message):
                break
        else:
            if returned:
                heappop(returned)
            else:
                queue.next = sequence + 1
            queue.delivering += 1
            held[sequence] = message
        parts += (head, properties, b"\n", body, b"\0")
        used += length
        count += 1
    if is_auto and count:
        staging.queue_ready(queue)
    return status, count, b"".join(parts)


def _finish_given(staging: Staging, queue: Queue, sequence: int, message: Message) -> bool:
    """Take the next message off the queue for good; False: no room for its acknowledgement."""
    try:
        staging.finish(queue, sequence, message)
    except NoRoom:
        if not queue.returned:
            # It is out of line all the same, and first in line when there is room.
            queue.next = sequence + 1
            heappush(queue.returned, sequence)
        return False
    if queue.returned and queue.returned[0] == sequence:
        heappop(queue.returned)
    else:
        queue.next = sequence + 1
    return True


def next_large(queue: Queue) -> LargeBody | None:
    """Return the body of the next message (see `abc.Core.next_large`)."""
    large = queue.large.get(_next_sequence(queue))
    return large.body if large is not None else None


def take_large(consumer: Consumer) -> LargeDelivery | None:
    """Give the next message, which is large (see `abc.Core.take_large`)."""
    queue, held = consumer.queue, consumer.held
    sequence = _next_sequence(queue)
    large = queue.large.get(sequence)
    has_credit = consumer.mode is AckMode.AUTO or len(held) < consumer.credit
    if large is None or not has_credit:
        return None
    message = queue.entries[sequence]
    slab, at, properties_bytes, _, has_escapes, _ = message
    if slab.view is None:
        return None
    properties = bytes(slab.view[at : at + properties_bytes])
    version = _VERSIONS[consumer.version]
    if has_escapes and version != "1.2":
        properties = properties_for_version(properties, version)
    head = b"%b%d" % (consumer.prefix, sequence)
    if consumer.ack_prefix is not None:
        head += b"%b%d" % (consumer.ack_prefix, sequence)
    if sequence in queue.deliveries:
        head += b"\nredelivered:true\ndelivery-count:%d" % queue.deliveries[sequence]
    head += b"\ncontent-length:%d\n%b\n" % (large.body.size_bytes, properties)
    if queue.returned:
        heappop(queue.returned)
    else:
        queue.next = sequence + 1
    queue.delivering += 1
    held[sequence] = message
    return LargeDelivery(sequence, head, large.body)


def _next_sequence(queue: Queue) -> int:
    """Return the sequence of the next message; that of none if there is none."""
    if queue.returned:
        return queue.returned[0]
    sequence = queue.next = queue.first_ready(queue.next, queue.available)
    return sequence if sequence < queue.available else -1


def next_slab(queue: Queue) -> tuple[int, int]:
    """Return (file id, slab index) of the next message; (0, 0) without one or if it needs none."""
    if queue.returned:
        sequence = queue.returned[0]
    else:
        sequence = queue.first_ready(queue.next, queue.available)
        if sequence == queue.available:
            return 0, 0
    slab = queue.entries[sequence][0]
    return (slab.file.file_id, slab.index) if slab.file is not None else (0, 0)


def acknowledge(staging: Staging, consumer: Consumer, sequence: int) -> int:
    """Acknowledge what the consumer holds (see `abc.Core.acknowledge`); return how many."""
    if sequence not in consumer.held:
        return 0
    queue, held = consumer.queue, consumer.held
    is_alone = consumer.mode is not AckMode.CLIENT
    covered = (sequence,) if is_alone else tuple(consumer.held_up_to(sequence))
    for one in covered:
        block = staging.finish(queue, one, held[one])
        del held[one]
        queue.delivering -= 1
        if block > consumer.connection.last_block:
            consumer.connection.last_block = block
    staging.queue_ready(queue)
    return len(covered)


def give_back(staging: Staging, consumer: Consumer, sequences: list[int]) -> int:
    """Return held messages to their queue, in this order; return how many."""
    for sequence in sequences:
        staging.give_back(consumer.queue, sequence, consumer.held.pop(sequence))
    if sequences:
        staging.queue_ready(consumer.queue)
    return len(sequences)


def purge(staging: Staging, queue: Queue) -> int:
    """Acknowledge everything deliverable (see `abc.Core.purge_queue`); return how many."""
    ready: list[tuple[int, Message]] = [(s, queue.entries[s]) for s in queue.returned]
    ready += [
        (sequence, message)
        for sequence, message in queue.entries.items()
        if queue.next <= sequence < queue.available and queue.is_free(sequence)
    ]
    ready.sort(key=lambda item: item[0])
    done = 0
    try:
        for sequence, message in ready:
            staging.finish(queue, sequence, message)
            done += 1
    finally:
        gone = {sequence for sequence, _ in ready[:done]}
        queue.returned[:] = sorted(s for s in queue.returned if s not in gone)
        if done == len(ready):
            queue.next = queue.available
    return done
