"""Messages that wait for a time: which ones are due, in eight bytes for each.

Owns the table. Must never call the core, nor read a clock. Messages that become due at nearly the
same time share a bucket: an array of their sequences. A bucket is never wider than 1/64 of the time
that is left, so there are few, however many messages wait. Called by `redelivery` (which takes a
bucket's end: a message is never early) and by `schedule` (which takes its start, looks at the
message when it comes, and puts it into a narrower one). Owner: the event loop.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import NamedTuple

_BUCKETS_BITS = 7
_GONE_MIN = 1024


def step_ms(distance_ms: int) -> int:
    """Return the width of the bucket for what is due in so many milliseconds: a power of two."""
    return 1 << max(0, distance_ms.bit_length() - _BUCKETS_BITS)


class DueKey(NamedTuple):
    """A bucket: when it is due, which queue, and whether its messages are due exactly then."""

    due_ms: int
    queue_id: int
    is_exact: bool


class DueTimes:
    """Sequences by the time when they are due."""

    def __init__(self) -> None:
        self._buckets: dict[DueKey, array[int]] = {}
        self._taken: dict[DueKey, int] = {}  # how many of a bucket were taken, from its start
        self._heap: list[DueKey] = []
        self._counts: dict[int, int] = {}
        self._gone: dict[int, set[int]] = {}  # by queue: they stand in buckets, and wait no more

    def __len__(self) -> int:
        return sum(self._counts.values())

    def count(self, queue_id: int) -> int:
        """Return how many messages of a queue wait."""
        return self._counts.get(queue_id, 0)

    @property
    def next_ms(self) -> int | None:
        """When something is due next; None: nothing waits. It may be a queue that was forgotten."""
        return self._heap[0].due_ms if self._heap else None

    def add_late(self, due_ms: int, queue_id: int, sequence: int, now_ms: int) -> None:
        """Have a message become due at a time, or up to 1/64 of what is left later.

        Args:
            due_ms: Milliseconds since 1970.
            queue_id: Its queue.
            sequence: Its sequence.
            now_ms: The clock.
        """
        width_ms = step_ms(max(0, due_ms - now_ms))
        self._add(DueKey(-(-due_ms // width_ms) * width_ms, queue_id, True), sequence)

    def add_early(self, due_ms: int, queue_id: int, sequence: int, now_ms: int) -> None:
        """Have a message become due at a time, or be looked at again before.

        Args:
            due_ms: Milliseconds since 1970, after `now_ms`.
            queue_id: Its queue.
            sequence: Its sequence.
            now_ms: The clock.
        """
        width_ms = step_ms(max(0, due_ms - now_ms))
        self._add(DueKey(due_ms // width_ms * width_ms, queue_id, width_ms == 1), sequence)

    def add_again(self, look_ms: int, queue_id: int, sequence: int) -> None:
        """Have a message looked at again at a time.

        Args:
            look_ms: Milliseconds since 1970.
            queue_id: Its queue.
            sequence: Its sequence.
        """
        self._add(DueKey(look_ms, queue_id, False), sequence)

    def _add(self, key: DueKey, sequence: int) -> None:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = array("Q")
            heappush(self._heap, key)
        bucket.append(sequence)
        if key.queue_id in self._gone:
            self._gone[key.queue_id].discard(sequence)
        self._counts[key.queue_id] = self._counts.get(key.queue_id, 0) + 1

    def discard(self, queue_id: int, sequence: int) -> None:
        """Have a message wait no more: it has left its queue.

        Args:
            queue_id: Its queue.
            sequence: Its sequence; it waits here.
        """
        gone = self._gone.setdefault(queue_id, set())
        if sequence in gone or queue_id not in self._counts:
            return
        gone.add(sequence)
        self._count(queue_id, -1)
        if len(gone) >= _GONE_MIN and len(gone) > self._counts.get(queue_id, 0):
            self._clear_out(queue_id)  # costs no more than what came and went

    def _count(self, queue_id: int, more: int) -> None:
        self._counts[queue_id] = self._counts.get(queue_id, 0) + more
        if self._counts[queue_id] <= 0:
            del self._counts[queue_id]
            self._clear_out(queue_id)

    def _clear_out(self, queue_id: int) -> None:
        """Take those that wait no more out of their buckets."""
        gone = self._gone.pop(queue_id, set())
        left = 0
        for key in [key for key in self._buckets if key.queue_id == queue_id] if gone else []:
            bucket = self._buckets[key][self._taken.pop(key, 0) :]
            kept = array("Q", [one for one in bucket if one not in gone])
            left += len(kept)
            if kept:
                self._buckets[key] = kept
            else:
                del self._buckets[key]  # the heap finds out
        if left:
            self._counts[queue_id] = left
        elif gone:
            self._counts.pop(queue_id, None)

    def take_due(self, now_ms: int, most: int) -> tuple[DueKey, array[int]] | None:
        """Take messages of one queue that are due, in the order of adding; None: nothing is.

        Args:
            now_ms: The clock.
            most: Messages to take, 1 or more.
        """
        while self._heap and self._heap[0].due_ms <= now_ms:
            key = self._heap[0]
            bucket = self._buckets.get(key)
            if bucket is None:  # its queue was forgotten
                heappop(self._heap)
                continue
            start = self._taken.pop(key, 0)
            end = start + most
            taken = bucket[start:end]
            if end >= len(bucket):
                heappop(self._heap)
                del self._buckets[key]
            elif 2 * end >= len(bucket):  # moving what is left costs no more than what was taken
                del bucket[:end]
            else:
                self._taken[key] = end
            gone = self._gone.get(key.queue_id)
            if gone:
                left = array("Q", [one for one in taken if one not in gone])
                gone.difference_update(taken)
                taken = left
            self._count(key.queue_id, -len(taken))
            return key, taken
        return None

    def forget(self, queue_id: int) -> None:
        """Forget the messages of a queue: it is gone."""
        gone = self._gone.pop(queue_id, None)
        if self._counts.pop(queue_id, 0) or gone:
            for key in [key for key in self._buckets if key.queue_id == queue_id]:
                del self._buckets[key]
                self._taken.pop(key, None)
