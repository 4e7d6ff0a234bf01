"""Messages out, acknowledgements and refusals in.

Owns the order of delivery, the MESSAGE frame, and the form for those who encode elsewhere. Never
decides who gets how many: that is the engine. Called by the core and by the scanner.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.journal.record import RecordFlag
from vespiary_codec.stored_message import STORED_HEAD, STORED_VERSION
from vespiary_codec.wire.stomp.frames import Version
from vespiary_codec.wire.stomp.properties import NATIVE, properties_for_version
from vespiary_native.abc import AckMode, DeliverStatus, LargeBody, LargeDelivery, NoRoom
from vespiary_native.twin.amqp_transfers import Delivery, Transfer, plan_transfer
from vespiary_native.twin.extents import NOWHERE
from vespiary_native.twin.mqtt_packets import Plan, plan_message
from vespiary_native.twin.staging import Staging
from vespiary_native.twin.state import Consumer, Message, Queue

_VERSIONS: Final[dict[int, Version]] = {10: "1.0", 11: "1.1", 12: "1.2"}
_ESCAPED: Final = RecordFlag.ESCAPED.value
_LARGE: Final = RecordFlag.LARGE.value
_SPECIAL: Final = RecordFlag.SPECIAL.value
_STOMP: Final = 1


def deliver(
    staging: Staging,
    consumer: Consumer,
    max_messages: int,
    max_bytes: int,
    *,
    is_stored: bool = False,
) -> tuple[DeliverStatus, int, bytes]:
    """Take and encode the next messages (see `abc.Core.deliver`).

    `is_stored` is for those that are not encoded as MQTT or AMQP (`CoreMqtt.deliver_stored`).
    """
    queue = consumer.queue
    entries = queue.entries
    is_auto = consumer.mode is AckMode.AUTO
    is_ahead = staging.counting.is_ahead
    parts: list[bytes | memoryview] = []
    count = used = 0
    status = DeliverStatus.LIMIT
    is_any_settled = False
    if queue.has_special:  # what is next may not be what is to be given first
        status = DeliverStatus.SPECIAL if next_sequence(queue) else _nothing(staging, queue)
        return status, 0, b""
    while count < max_messages and consumer.has_credit:
        sequence = _next_to_give(staging, queue)
        if isinstance(sequence, DeliverStatus):
            status = sequence
            break
        message = entries[sequence]
        view = message[0].view
        assert view is not None
        plan: Plan | Transfer | None
        plan, packet_id, is_settled = None, 0, is_auto
        if consumer.amqp is not None or consumer.encoding is not None:
            planned = _planned if consumer.amqp is None else _planned_transfer
            why_not, plan, packet_id = planned(
                consumer, sequence, message, view, is_stored=is_stored
            )
            if why_not is not None:
                status = why_not
                break
            is_settled = plan is not None and plan.is_settled
        frame: tuple[bytes | memoryview, ...]
        if plan is not None:
            frame = plan.encode(view, packet_id)
            length = sum(map(len, frame))
        else:
            frame, length = encode_message(consumer, sequence, message, view)
        if count and used + length > max_bytes:
            break
        if is_settled or is_ahead:
            # Its memory may go with its last place, or for a record's, so it is copied first.
            frame = (b"".join(frame),)
        if is_settled:
            is_any_settled = True
            if not _finish_given(staging, queue, sequence, message):
                break
            consumer.given()
        else:
            if not staging.counting.ahead(queue, sequence, message):
                break
            hold(consumer, sequence, message)
        if plan is not None:
            _note_sent(consumer, sequence, plan)
        parts += frame
        used += length
        count += 1
    if is_any_settled and count:
        staging.queue_ready(queue)
    return status, count, b"".join(parts)


def _next_to_give(staging: Staging, queue: Queue) -> int | DeliverStatus:
    """Return the sequence of the next message, or why there is none that can be given."""
    sequence, returned = queue.next, queue.returned
    if not (sequence < queue.reach and queue.is_free(sequence)):
        queue.skip()
        sequence = queue.next
    if returned:
        sequence = min(sequence, returned.first())
    if sequence >= queue.reach:
        return _nothing(staging, queue)
    message = queue.entries[sequence]
    if queue.attempts_max and sequence not in returned and _is_worn(queue, sequence):
        return DeliverStatus.WORN
    if message[0].view is None:
        queue.waits_for_slab = True
        return DeliverStatus.ABSENT
    if message[4] & (_LARGE | _SPECIAL):
        return DeliverStatus.SPECIAL if message[4] & _SPECIAL else DeliverStatus.LARGE
    return sequence


def _planned(
    consumer: Consumer, sequence: int, message: Message, view: memoryview, *, is_stored: bool
) -> tuple[DeliverStatus | None, Plan | None, int]:
    """Plan how a message goes to a client of MQTT.

    Returns:
        Why it does not go now, or None; its packet, unless Python encodes it; its packet id, 0:
        it needs none.
    """
    plan = plan_message(consumer, sequence, message, view)
    if (plan is not None) is is_stored:
        return DeliverStatus.LIMIT if is_stored else DeliverStatus.STORED, plan, 0
    if plan is None or not plan.qos:
        return None, plan, 0
    packet_id = consumer.connection.sent.next()
    return None if packet_id else DeliverStatus.LIMIT, plan, packet_id


def _planned_transfer(
    consumer: Consumer, sequence: int, message: Message, view: memoryview, *, is_stored: bool
) -> tuple[DeliverStatus | None, Transfer | None, int]:
    """Plan how a message goes by a link of AMQP; returns what `_planned` does."""
    link, session = consumer.amqp, consumer.outgoing
    assert link is not None
    assert session is not None
    plan = plan_transfer(consumer, link, sequence, message, view)
    if not link.encoding.is_stored and (plan is not None) is is_stored:
        return DeliverStatus.LIMIT if is_stored else DeliverStatus.STORED, plan, 0
    return None, plan, session.peek_id() if plan is not None else 0


def _note_sent(consumer: Consumer, sequence: int, plan: Plan | Transfer) -> None:
    """Take note of what a client was sent, and of its id."""
    if isinstance(plan, Plan):
        if plan.qos:
            consumer.connection.sent.put(consumer, sequence)
        return
    session = consumer.outgoing
    assert session is not None
    delivery_id = session.take_id()
    if not plan.is_settled:
        session.sent[delivery_id] = Delivery(consumer, sequence)


def _is_worn(queue: Queue, sequence: int) -> bool:
    """Whether a message that has not come back was given out too often before."""
    return queue.deliveries.get(sequence, 0) >= queue.attempts_max


def _nothing(staging: Staging, queue: Queue) -> DeliverStatus:
    """Return why there is no next message in the ring."""
    if queue.extents.next == NOWHERE:
        return DeliverStatus.DRAINED
    staging.want_page(queue)
    return DeliverStatus.PAGED


def encode_message(
    consumer: Consumer, sequence: int, message: Message, view: memoryview
) -> tuple[tuple[bytes | memoryview, ...], int]:
    """Return the parts of a MESSAGE frame and their length; they point into the slab."""
    _, at, properties_bytes, body_bytes, flags, _, _ = message
    body_at = at + properties_bytes
    if consumer.version == STORED_VERSION:
        head = _stored_head(consumer, sequence, message, view)
        end = body_at + body_bytes
        return (head, view[at:end]), len(head) + end - at
    properties: bytes | memoryview = _lines(view[at:body_at], view[message[6] + 6])
    if flags & _ESCAPED and consumer.version != 12:
        properties = properties_for_version(bytes(properties), _VERSIONS[consumer.version])
    head = _encode_head(consumer, sequence, body_bytes)
    length = len(head) + len(properties) + body_bytes + 2
    return (head, properties, b"\n", view[body_at : body_at + body_bytes], b"\0"), length


def _lines(properties: memoryview, protocol: int) -> memoryview:
    """Return the header lines: behind a NUL stands what another protocol than STOMP keeps."""
    if protocol == _STOMP:
        return properties
    end = bytes(properties).find(NATIVE)
    return properties if end < 0 else properties[:end]


def _stored_head(consumer: Consumer, sequence: int, message: Message, view: memoryview) -> bytes:
    """Return what stands before the properties of a message that is encoded elsewhere."""
    _, _, properties_bytes, body_bytes, flags, _, record_at = message
    return STORED_HEAD.pack(
        sequence,
        int.from_bytes(view[record_at + 8 : record_at + 16], "little"),
        0 if flags & _LARGE else body_bytes,
        properties_bytes,
        consumer.queue.deliveries.get(sequence, 0),
        view[record_at + 7],
        view[record_at + 6],
        flags & _ESCAPED,
    )


def _encode_head(consumer: Consumer, sequence: int, body_bytes: int) -> bytes:
    """Return the first lines of a MESSAGE frame."""
    deliveries = consumer.queue.deliveries
    again = b""
    if deliveries and sequence in deliveries:
        again = b"\nredelivered:true\ndelivery-count:%d" % deliveries[sequence]
    ack_prefix = consumer.ack_prefix
    if ack_prefix is not None:
        return b"%b%d%b%d%b\ncontent-length:%d\n" % (
            consumer.prefix, sequence, ack_prefix, sequence, again, body_bytes,
        )  # fmt: skip
    return b"%b%d%b\ncontent-length:%d\n" % (consumer.prefix, sequence, again, body_bytes)


def _finish_given(staging: Staging, queue: Queue, sequence: int, message: Message) -> bool:
    """Take the next message off the queue for good; False: no room for its acknowledgement."""
    is_returned = sequence in queue.returned
    try:
        staging.finish(queue, sequence, message)
    except NoRoom:
        if not is_returned:
            # It is out of line all the same, and first in line when there is room.
            queue.next = sequence + 1
            queue.put_first(sequence)
        return False
    if is_returned:
        queue.returned.discard(sequence)
    else:
        queue.next = sequence + 1
    return True


def next_large(queue: Queue) -> LargeBody | None:
    """Return the body of the next message (see `abc.Core.next_large`)."""
    large = queue.large.get(next_sequence(queue))
    return large.body if large is not None else None


def give_large(staging: Staging, consumer: Consumer, sequence: int) -> LargeDelivery | None:
    """Give a deliverable message, if it is large (see `abc.Core.take_large`)."""
    queue = consumer.queue
    large = queue.large.get(sequence)
    if large is None or not consumer.has_credit:
        return None
    message = queue.entries[sequence]
    slab, at, properties_bytes, _, flags, _, _ = message
    if slab.view is None:
        return None
    properties = bytes(slab.view[at : at + properties_bytes])
    if consumer.version == STORED_VERSION:
        head = _stored_head(consumer, sequence, message, slab.view) + properties
    else:
        properties = bytes(_lines(memoryview(properties), slab.view[message[6] + 6]))
        if flags & _ESCAPED and consumer.version != 12:
            properties = properties_for_version(properties, _VERSIONS[consumer.version])
        head = b"%b%b\n" % (_encode_head(consumer, sequence, large.body.size_bytes), properties)
    if not staging.counting.ahead(queue, sequence, message):
        return None
    hold(consumer, sequence, message)
    return LargeDelivery(sequence, head, large.body)


def hold(consumer: Consumer, sequence: int, message: Message) -> None:
    """Have a consumer hold a deliverable message, wherever it stands."""
    queue = consumer.queue
    is_returned = sequence in queue.returned
    queue.returned.discard(sequence)
    if sequence == queue.next and not is_returned:
        queue.next = sequence + 1
    elif sequence >= queue.next:
        queue.taken.add(sequence)
    queue.delivering += 1
    consumer.held[sequence] = message
    consumer.given()


def next_sequence(queue: Queue) -> int:
    """Return the sequence of the next message; 0 if there is none."""
    queue.skip()
    sequence = queue.next
    if queue.returned:
        sequence = min(sequence, queue.returned.first())
    return sequence if sequence < queue.reach else 0


def next_slab(queue: Queue) -> tuple[int, int]:
    """Return (file id, slab index) of the next message; (0, 0) without one or if it needs none."""
    sequence = next_sequence(queue)
    if not sequence:
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
        block = staging.finish(queue, one, held[one], consumer)
        del held[one]
        queue.taken.discard(one)
        queue.delivering -= 1
        if block > consumer.connection.last_block:
            consumer.connection.last_block = block
    staging.queue_ready(queue)
    return len(covered)


def give_back(
    staging: Staging, consumer: Consumer, sequences: list[int], *, is_counted: bool = True
) -> int:
    """Return held messages to their queue, in this order; return how many."""
    for sequence in sequences:
        message = consumer.held.pop(sequence)
        staging.counting.give_back(consumer.queue, sequence, message, is_counted=is_counted)
    if sequences:
        staging.queue_ready(consumer.queue)
    return len(sequences)


def purge(staging: Staging, queue: Queue) -> int:
    """End what is deliverable or set aside (see `abc.Core.purge_queue`); return how many."""
    wanted = [s for s in queue.entries if queue.next <= s < queue.available and queue.is_free(s)]
    done = 0
    try:
        for sequence in sorted({*wanted, *queue.returned, *queue.aside}):
            staging.finish(queue, sequence, queue.entries[sequence])
            queue.returned.discard(sequence)
            queue.aside.discard(sequence)
            done += 1
    finally:
        queue.skip()
    return done
