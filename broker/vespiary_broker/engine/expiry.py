"""The scan for messages that have expired and that nobody asks for.

Owns two small tables. How far each queue was looked through for special messages: what came in
since is looked at once, so that scheduled messages are counted before anybody asks for them. And
when the first message expires in each run of 1024 sequences: a scan looks only where that is over,
so a backlog of millions costs a few bytes for a thousand of them, and nothing while none is due.
Both are made again after a restart, from what the messages say themselves.

Must never decide about a message (`fates.Fates.meet` does), and never hold the loop: it is a
generator that yields after every few dozen messages or queues. What cannot be read is passed over,
and stays. A queue that is `late` has more on its way out already than is good for the memory: the
scan comes back to it. Called by `fates`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from vespiary_broker.engine.core import Core, Look, MessageView
from vespiary_broker.engine.message_times import MessageTimes, read_times
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.unreadable_parts import UnreadableParts

_RUN_BITS: Final = 10
_LOOK_MESSAGES: Final = 96
_FIRST_LOOK_MESSAGES: Final = 8
_LOOK_COST: Final = 4
_QUEUE_COST: Final = 2
_STEP_COST: Final = 96
"""A step takes about half a millisecond: so many messages, or half as many queues."""
_COST_BYTES: Final = 1024
"""Headers that cost as much as a message without any."""

Slab = tuple[int, int]
Meet = Callable[[Queue, MessageView, MessageTimes, int], bool]
"""Decides about a special message; returns whether it leaves its queue."""


class ExpiryScan:
    """Looks through queues for special messages.

    Attributes:
        late: Queues that were not looked through to the end, for too much is on its way out.

    Args:
        core: The core.
        queues: Queues by number.
        meet: Called with each special message that is met.
        clock_ms: Milliseconds since 1970.
        unreadable: Parts of files that will not come.
        is_crowded: Says of a queue whether so much is on its way out that no more may follow now.
    """

    def __init__(
        self,
        core: Core,
        queues: Mapping[int, Queue],
        meet: Meet,
        clock_ms: Callable[[], int],
        *,
        unreadable: UnreadableParts,
        is_crowded: Callable[[int], bool],
    ) -> None:
        self.late: dict[int, None] = {}
        self._core = core
        self._queues = queues
        self._meet = meet
        self._clock_ms = clock_ms
        self._unreadable = unreadable
        self._is_crowded = is_crowded
        self._known: dict[int, int] = {}
        self._first: dict[int, dict[int, int]] = {}
        self._resolved: dict[int, int] = {}
        self._cost = 0
        self._look_messages = _FIRST_LOOK_MESSAGES  # fewer where messages have long headers
        self._is_given_up = False

    def forget(self, queue_id: int) -> None:
        """Forget a queue that is gone."""
        self._known.pop(queue_id, None)
        self._first.pop(queue_id, None)
        self._resolved.pop(queue_id, None)
        self.late.pop(queue_id, None)

    def suspect(self, queue_id: int, first: int, last: int) -> None:
        """Look at a part of a queue in the next scan: it came back from a page.

        Args:
            queue_id: The queue.
            first: Lowest sequence.
            last: Highest sequence.
        """
        runs = self._first.setdefault(queue_id, {})
        for run in range(first >> _RUN_BITS, (last >> _RUN_BITS) + 1):
            runs[run] = 1

    def give_up(self) -> None:
        """Say that the slab that the scan waits for was not read: the next scan asks again."""
        self._is_given_up = True

    def scan(self, queue_ids: Iterable[int] | None = None) -> Iterator[Slab | None]:
        """Look through queues; yields where others have their turn.

        Args:
            queue_ids: Their numbers; None: all.

        Yields:
            A slab that has to be loaded before it goes on; None when nothing is missing.
        """
        for queue_id in list(self._queues if queue_ids is None else queue_ids):
            queue = self._queues.get(queue_id)
            self.late.pop(queue_id, None)
            if queue is None:
                continue
            yield from self.discover(queue)
            if not queue.is_deleted:
                yield from self._reap(queue)
            if self._is_turn_over:
                yield None

    def _is_late(self, queue: Queue) -> bool:
        if not self._is_crowded(queue.id):
            return False
        self.late[queue.id] = None
        return True

    def discover(self, queue: Queue) -> Iterator[Slab | None]:
        """Look at the special messages of a queue that came since the last look.

        Args:
            queue: The queue.

        Yields:
            As `scan`.
        """
        statistics = self._core.queue_statistics(queue.id)
        self._cost += _QUEUE_COST
        # What a branch held is where it stood, which may be anywhere: look again from the start.
        if statistics.resolved != self._resolved.get(queue.id, 0):
            self._resolved[queue.id] = statistics.resolved
            self._known.pop(queue.id, None)
        while not queue.is_deleted and not self._is_late(queue):
            known = self._known.get(queue.id, 0)
            if known >= statistics.available:
                break
            look, at = self._look(queue, known, self._look_messages)
            self._note(queue, look.messages)
            self._known[queue.id] = at
            absent = look.absent if at == look.next_sequence else None
            if absent is not None or self._is_turn_over:
                yield absent
                if self._was_given_up():
                    return

    def _was_given_up(self) -> bool:
        is_given_up, self._is_given_up = self._is_given_up, False
        return is_given_up

    def _reap(self, queue: Queue) -> Iterator[Slab | None]:
        """Look again at the runs of a queue in which something has expired."""
        first = self._first.get(queue.id)
        if first is None:
            return
        head = self._core.queue_statistics(queue.id).head
        for run in [run for run in first if run < head >> _RUN_BITS]:
            del first[run]  # all consumed
        if not first:
            del self._first[queue.id]
            return
        now_ms = self._clock_ms()
        for run in [run for run, expires_ms in first.items() if expires_ms <= now_ms]:
            if self._is_late(queue):
                return
            first.pop(run, None)
            at, end = run << _RUN_BITS, run + 1 << _RUN_BITS
            while at < end and not queue.is_deleted:
                look, next_at = self._look(queue, at, min(self._look_messages, end - at))
                self._note(queue, [view for view in look.messages if view.sequence < end])
                is_absent = look.absent is not None and next_at == look.next_sequence
                if next_at == at and not is_absent:
                    break  # the end of the queue
                at = next_at
                if (is_absent and at < end) or self._is_turn_over:
                    yield look.absent if is_absent else None
                    if self._was_given_up():
                        self._first.setdefault(queue.id, {})[run] = now_ms
                        return

    def _look(self, queue: Queue, sequence: int, most: int) -> tuple[Look, int]:
        """Return what there is, and where to go on: behind what will never be read."""
        look = self._core.look(queue.id, sequence, most, everything=True, special_only=True)
        count = len(look.messages)
        headers_cost = sum(len(view.properties) for view in look.messages) // _COST_BYTES
        self._cost += _LOOK_COST + count + headers_cost
        if headers_cost + count > _STEP_COST:
            self._look_messages = max(1, count * _STEP_COST // (headers_cost + count))
        else:
            self._look_messages = min(_LOOK_MESSAGES, 2 * self._look_messages)
        if look.absent is not None and look.absent in self._unreadable:
            return look, look.next_sequence + 1
        return look, look.next_sequence

    @property
    def _is_turn_over(self) -> bool:
        if self._cost < _STEP_COST:
            return False
        self._cost = 0
        return True

    def _note(self, queue: Queue, views: list[MessageView]) -> None:
        now_ms = self._clock_ms()
        for view in views:
            times = read_times(view.properties)
            is_gone = self._meet(queue, view, times, now_ms)
            if is_gone or not times.expires_ms:
                continue
            first = self._first.setdefault(queue.id, {})
            run = view.sequence >> _RUN_BITS
            first[run] = min(first.get(run, times.expires_ms), times.expires_ms)
