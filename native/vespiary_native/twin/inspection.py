"""What Python sees of queues whose order or fate it decides, and what it does to single messages.

Owns the contract of `abc_inspection.CoreInspection`, as a mix-in of `TwinCore`. Never decides who
gets what: that is the engine. Called through `TwinCore`.
"""

from __future__ import annotations

from typing import Final

from vespiary_codec.journal.record import RecordFlag
from vespiary_native.abc import AckMode, DeliverStatus, LargeDelivery, NoRoom
from vespiary_native.twin import delivery
from vespiary_native.twin.state import Consumer, Message, Queue
from vespiary_native.twin.tables import Tables
from vespiary_native.values_inspection import LOOK_BYTES_MAX, LOOK_LIVE_MAX, Look, MessageView

_ESCAPED: Final = RecordFlag.ESCAPED.value
_LARGE: Final = RecordFlag.LARGE.value
_SPECIAL: Final = RecordFlag.SPECIAL.value
_PROTOCOL_AT: Final = 6
_PRIORITY_AT: Final = 7
_TIME_AT: Final = 8


class TwinInspection(Tables):
    """See `abc_inspection.CoreInspection`."""

    # --- looking ----------------------------------------------------------------------------------
    def look(
        self,
        queue_id: int,
        sequence: int,
        max_messages: int,
        *,
        everything: bool = False,
        returned_only: bool = False,
        special_only: bool = False,
        min_priority: int = 0,
    ) -> Look:
        """See `CoreInspection.look`."""
        queue = self._queue(queue_id)
        if max_messages < 1:
            raise ValueError(f"max_messages {max_messages} is below 1")
        if returned_only:
            return _look_at_returned(
                queue, sequence, min(max_messages, LOOK_LIVE_MAX), min_priority,
                special_only=special_only,
            )  # fmt: skip
        return _look(
            queue, sequence, min(max_messages, LOOK_LIVE_MAX),
            min_priority, everything=everything, special_only=special_only,
        )  # fmt: skip

    def held(
        self, consumer: int, sequence: int = 0, *, deliveries: int = 0
    ) -> list[tuple[int, int]]:
        """See `CoreInspection.held`."""
        by = self._consumer(consumer)
        if sequence and sequence not in by.held:
            return []
        counts = by.queue.deliveries
        covered = by.held_up_to(sequence) if sequence else list(by.held)
        pairs = ((one, counts.get(one, 0)) for one in covered)
        return sorted(pair for pair in pairs if pair[1] >= deliveries)

    def held_count(self, consumer: int) -> int:
        """See `CoreInspection.held_count`."""
        return len(self._consumer(consumer).held)

    def next_deliverable(self, queue_id: int) -> int:
        """See `CoreInspection.next_deliverable`."""
        return delivery.next_sequence(self._queue(queue_id))

    def body(self, queue_id: int, sequence: int) -> bytes | None:
        """See `CoreInspection.body`."""
        message = _known(self._queue(queue_id), sequence)
        if message is None:
            return None
        slab, at, properties_bytes, body_bytes, _, _, _ = message
        if slab.view is None:
            return None
        return bytes(slab.view[at + properties_bytes : at + properties_bytes + body_bytes])

    def absent_for(self, queue_id: int, sequence: int) -> tuple[int, int]:
        """See `CoreInspection.absent_for`."""
        queue = self._queue(queue_id)
        message = _known(queue, sequence)
        if message is None or message[0].view is not None:
            return 0, 0
        return _absent(queue, message)

    # --- giving -----------------------------------------------------------------------------------
    def give(
        self, consumer: int, sequences: list[int], max_bytes: int
    ) -> tuple[DeliverStatus, int, int, bytes]:
        """See `CoreInspection.give`."""
        by = self._consumer(consumer)
        queue = by.queue
        frames: list[bytes] = []
        used = passed = 0
        status = DeliverStatus.DRAINED
        for sequence in sequences:
            if _is_deliverable(queue, sequence):
                status, frame = self._give(by, sequence, max_bytes - used if frames else None)
                if frame is None:
                    break
                frames.append(frame)
                used += len(frame)
            passed += 1
        queue.skip()
        return status, len(frames), passed, b"".join(frames)

    def _give(
        self, by: Consumer, sequence: int, room_bytes: int | None
    ) -> tuple[DeliverStatus, bytes | None]:
        """Give a deliverable message, or say why not."""
        queue = by.queue
        message = queue.entries[sequence]
        view = message[0].view
        if not by.has_credit:
            return DeliverStatus.LIMIT, None
        if view is None:
            queue.waits_for_slab = True
            return DeliverStatus.ABSENT, None
        if message[4] & _LARGE:
            return DeliverStatus.LARGE, None
        parts, length = delivery.encode_message(by, sequence, message, view)
        if room_bytes is not None and length > room_bytes:
            return DeliverStatus.LIMIT, None
        frame = b"".join(parts)
        if by.mode is AckMode.AUTO:
            try:
                self._end(queue, sequence)
            except NoRoom:
                return DeliverStatus.LIMIT, None
        elif self._staging.counting.ahead(queue, sequence, message):
            delivery.hold(by, sequence, message)
        else:
            return DeliverStatus.LIMIT, None
        return DeliverStatus.DRAINED, frame

    def give_large(self, consumer: int, sequence: int) -> LargeDelivery | None:
        """See `CoreInspection.give_large`."""
        by = self._consumer(consumer)
        queue = by.queue
        if not _is_deliverable(queue, sequence):
            return None
        given = delivery.give_large(self._staging, by, sequence)
        queue.skip()
        return given

    # --- ending, setting aside --------------------------------------------------------------------
    def finish(self, queue_id: int, sequences: list[int], *, transaction: int = 0) -> int:
        """See `CoreInspection.finish`.

        Durability: durable with the block that is filling.
        """
        queue = self._queue(queue_id)
        self._check_transaction(transaction)
        done = 0
        try:
            for sequence in sequences:
                if sequence in queue.aside or _is_deliverable(queue, sequence):
                    self._end(queue, sequence)
                    done += 1
        finally:
            queue.skip()
        return done

    def _end(self, queue: Queue, sequence: int) -> None:
        """End a message that nobody holds."""
        self._staging.finish(queue, sequence, queue.entries[sequence])
        queue.returned.discard(sequence)
        queue.aside.discard(sequence)

    def finish_held(self, consumer: int, sequence: int, *, transaction: int = 0) -> int:
        """See `CoreInspection.finish_held`.

        Durability: durable with the block that is filling.
        """
        by = self._consumer(consumer)
        self._check_transaction(transaction)
        if sequence not in by.held:
            return 0
        queue = by.queue
        self._staging.finish(queue, sequence, by.held[sequence], by)
        del by.held[sequence]
        queue.taken.discard(sequence)
        queue.delivering -= 1
        self._staging.queue_ready(queue)
        return 1

    def specials_seen(self, queue_id: int) -> None:
        """See `CoreInspection.specials_seen`."""
        self._queue(queue_id).has_special = False

    def set_aside(self, queue_id: int, sequence: int) -> bool:
        """See `CoreInspection.set_aside`."""
        queue = self._queue(queue_id)
        if not _is_deliverable(queue, sequence):
            return False
        queue.returned.discard(sequence)
        queue.aside.add(sequence)
        queue.skip()
        return True

    def put_back(self, queue_id: int, sequence: int) -> bool:
        """See `CoreInspection.put_back`."""
        queue = self._queue(queue_id)
        if sequence not in queue.aside:
            return False
        queue.aside.discard(sequence)
        queue.put_first(sequence)
        queue.put_back += 1
        self._staging.queue_ready(queue)
        return True


def _is_deliverable(queue: Queue, sequence: int) -> bool:
    if sequence in queue.returned:
        return True
    return queue.next <= sequence < queue.available and queue.is_free(sequence)


def _known(queue: Queue, sequence: int) -> Message | None:
    """Return a message that is available, and that no branch holds."""
    if sequence >= queue.available or sequence in queue.reserved or sequence in queue.locked:
        return None
    return queue.entries.get(sequence)


def _absent(queue: Queue, message: Message) -> tuple[int, int]:
    """Return what must be loaded for a message; the queue is ready when that is done."""
    slab = message[0]
    queue.waits_for_slab = True
    assert slab.file is not None
    return slab.file.file_id, slab.index


class _Gathering:
    """The messages that one `look` has found."""

    def __init__(self, queue: Queue, min_priority: int) -> None:
        self._queue = queue
        self._min_priority = min_priority
        self._properties_bytes = 0
        self.views: list[MessageView] = []
        self.absent: tuple[int, int] | None = None

    def take(self, sequence: int) -> bool:
        """Add a message if it is urgent enough; False: not in memory, or one too many."""
        queue, message = self._queue, self._queue.entries[sequence]
        slab, at, properties_bytes, body_bytes, flags, _, record_at = message
        view = slab.view
        if view is None:
            self.absent = _absent(queue, message)
            return False
        if view[record_at + _PRIORITY_AT] < self._min_priority:
            return True
        if self.views and self._properties_bytes + properties_bytes > LOOK_BYTES_MAX:
            return False
        self._properties_bytes += properties_bytes
        is_returned, is_aside = sequence in queue.returned, sequence in queue.aside
        is_free = is_returned or (sequence >= queue.next and queue.is_free(sequence))
        self.views.append(
            MessageView(
                sequence=sequence,
                is_returned=is_returned,
                is_held=not is_aside and not is_free,
                is_aside=is_aside,
                deliveries=queue.deliveries.get(sequence, 0),
                priority=view[record_at + _PRIORITY_AT],
                protocol=view[record_at + _PROTOCOL_AT],
                time_ms=int.from_bytes(view[record_at + _TIME_AT : record_at + 16], "little"),
                is_journalled=slab.file is not None,
                is_special=bool(flags & _SPECIAL),
                is_large=bool(flags & _LARGE),
                is_escaped=bool(flags & _ESCAPED),
                body_length=body_bytes,
                properties=bytes(view[at : at + properties_bytes]),
            )
        )
        return True


def _look(
    queue: Queue,
    sequence: int,
    max_messages: int,
    min_priority: int,
    *,
    everything: bool,
    special_only: bool,
) -> Look:
    """Look at all messages but those of branches, or at the deliverable ones."""
    begin = queue.head if everything else queue.next
    if queue.returned:
        begin = min(begin, queue.returned.first())
    at, end = max(sequence, begin), queue.available
    found = _Gathering(queue, min_priority)
    looked = 0
    while looked < LOOK_LIVE_MAX and len(found.views) < max_messages:
        at = queue.first_live(at, end)
        if at >= end:
            break
        looked += 1
        is_wanted = _known(queue, at) is not None if everything else _is_deliverable(queue, at)
        is_wanted = is_wanted and not (special_only and not _is_special(queue, at))
        if is_wanted and not found.take(at):
            break
        at += 1
    return Look(found.views, min(at, end), found.absent)


def _is_special(queue: Queue, sequence: int) -> bool:
    return bool(queue.entries[sequence][4] & _SPECIAL)


def _look_at_returned(
    queue: Queue, sequence: int, max_messages: int, min_priority: int, *, special_only: bool
) -> Look:
    """Look at returned messages alone."""
    found = _Gathering(queue, min_priority)
    at = sequence
    wanted = (s for s in queue.returned if s >= sequence)
    ahead = iter(sorted(s for s in wanted if not special_only or _is_special(queue, s)))
    while len(found.views) < max_messages:
        at = next(ahead, queue.available)
        if at == queue.available or not found.take(at):
            break
        at += 1
    return Look(found.views, at, found.absent)
