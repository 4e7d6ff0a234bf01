"""The part of the core's contract for queues whose order or fate Python decides.

Owns the Protocol; `abc.Core` has it, and its terms. Both implementations keep it. None of it is
used on the plain path; each call costs what it touches.

Terms
    deliverable  below `available`, and neither given out, set aside, nor held by a branch.
    returned     deliverable: it came back from a consumer, or was put back, wherever it stands.
    aside        live, and given to nobody until it is put back. Not journalled: after a restart it
                 is deliverable. It stays in its file as any live message does, and moves with it.
    special      published with `special=True` (flag 16 of its ADD record). Once a queue has one,
                 wherever it stands, `deliver` gives nothing (`DeliverStatus.SPECIAL`) until
                 `specials_seen`: the special one may have to be given before those in front of it.
                 One that comes back, is put back or belongs to a branch that ends counts anew.
                 Kept over restarts and moves.

The scanner takes SENDs with a `priority` of one digit (the first of several counts); another
priority than 4, or a `JMSXGroupID`, makes them special. It leaves SENDs to Python whose headers
decide their fate: `expires`, `JMSExpiration`, `AMQ_SCHEDULED_TIME`, `AMQ_SCHEDULED_DELAY`,
`_AMQ_SCHED_DELIVERY`, `_AMQ_DUPL_ID`.

`deliver` gives the lowest sequence of all that is deliverable, returned or not; `give` any of them.
"""

from __future__ import annotations

from typing import Protocol

from vespiary_native.values import DeliverStatus, LargeDelivery
from vespiary_native.values_inspection import Look


class CoreInspection(Protocol):
    """See the module's docstring."""

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
        """Return messages of a queue from `sequence` on, ascending.

        Deliverable ones. Never those that are not durable yet, nor those that branches hold. The
        work of a call is bounded (`LOOK_LIVE_MAX`, `LOOK_BYTES_MAX`), so it may return fewer than
        asked for, and none, before the end: the end is where `next_sequence` is not below
        `available` of the queue's statistics.

        Args:
            queue_id: The queue.
            sequence: Where to begin, 0 or more.
            max_messages: 1 or more.
            everything: Also those that consumers hold and those set aside.
            returned_only: Returned ones alone, found without a walk over the others.
            special_only: Of those that are wanted, the special ones alone; the others are passed
                over without looking at their records.
            min_priority: Of those that are wanted, none below it.
        """

    def held(
        self, consumer: int, sequence: int = 0, *, deliveries: int = 0
    ) -> list[tuple[int, int]]:
        """Return (sequence, deliveries) of messages that a consumer holds, ascending.

        Args:
            consumer: Handle.
            sequence: Those that `give_back` would return for it; 0: all.
            deliveries: Only those that came back as often as this, or more often.
        """

    def held_count(self, consumer: int) -> int:
        """Return how many messages a consumer holds."""

    def next_deliverable(self, queue_id: int) -> int:
        """Return the sequence of the message that `deliver` would give next; 0: there is none."""

    def body(self, queue_id: int, sequence: int) -> bytes | None:
        """Return the stored body of a message (of a large one the 24 bytes of its reference).

        Deliverable, held or set aside. None: it is not in memory (`absent_for` tells), or there is
        no such message.
        """

    def absent_for(self, queue_id: int, sequence: int) -> tuple[int, int]:
        """Return (file id, slab index) that must be loaded to have a message in memory.

        (0, 0): it is there, or there is no such message. The queue becomes ready when the slab is
        loaded.
        """

    def give(
        self, consumer: int, sequences: list[int], max_bytes: int
    ) -> tuple[DeliverStatus, int, int, bytes]:
        """Give a consumer exactly these messages, in this order, encoded as `deliver` does.

        Those that are not deliverable (any more) are passed over. AUTO acknowledges at once; what
        has no room for that is not given, and the answer is LIMIT.

        Args:
            consumer: Handle.
            sequences: Of the consumer's queue.
            max_bytes: Of frames; the first message is given even if it is larger.

        Returns:
            (status, messages given, how many of `sequences` were gone through, frames). LIMIT: the
            next one exceeds the credit or `max_bytes`; ABSENT: its slab must be loaded
            (`absent_for`); LARGE: it takes `give_large`; DRAINED: all were gone through.
        """

    def give_large(self, consumer: int, sequence: int) -> LargeDelivery | None:
        """Give a consumer this large message; as `take_large`, which takes the next one.

        Returns:
            None if it is not deliverable, not large, not in memory, or there is no credit.
        """

    def finish(self, queue_id: int, sequences: list[int], *, transaction: int = 0) -> int:
        """End messages that no consumer holds: expired, moved, dropped.

        Deliverable ones and those set aside; others are passed over. They count as acknowledged.

        Args:
            queue_id: The queue.
            sequences: In any order; ascending ones share ACK records.
            transaction: Id of the transaction that is being staged, 0 none.

        Returns:
            How many were ended.

        Raises:
            NoRoom: For the rest; those before are ended, and the same call goes on.

        Durability: journalled like acknowledgements, durable with the block that is filling.
        """

    def finish_held(self, consumer: int, sequence: int, *, transaction: int = 0) -> int:
        """End one message that a consumer holds, alone, whatever its mode.

        Returns:
            1; 0 when the consumer does not hold it.

        Raises:
            NoRoom: No room for the record; nothing was changed.

        Durability: as `finish`.
        """

    def specials_seen(self, queue_id: int) -> None:
        """Say that the special messages of a queue are all given, aside, or ended.

        From now on `deliver` gives its messages again, until another special one comes.
        """

    def set_aside(self, queue_id: int, sequence: int) -> bool:
        """Have nobody be given a deliverable message until `put_back`.

        `purge_queue` ends it with the others.

        Returns:
            False if it is not deliverable; nothing was changed.
        """

    def put_back(self, queue_id: int, sequence: int) -> bool:
        """Make a message that was set aside deliverable: it is returned, its deliveries unchanged.

        Returns:
            False if it is not set aside (any more); nothing was changed.
        """
