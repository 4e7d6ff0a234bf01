"""The scan for messages that have expired and that nobody asks for.

Owns two small tables. How far each queue was looked through for special messages: what came in
since is looked at once, so that scheduled messages are counted before anybody asks for them. And
when the first message expires in each run of 1024 sequences: a scan looks only where that is over,
so a backlog of millions costs a few bytes for a thousand of them, and nothing while none is due.
Both are made again after a restart, from what the messages say themselves.

Must never decide about a message (`fates.Fates.meet` does), and never hold the loop: it is a
generator that yields after every few hundred messages. Called by `fates`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from vespiary_broker.engine.core import Core, Look, MessageView
from vespiary_broker.engine.message_times import MessageTimes, read_times
from vespiary_broker.engine.queues import Queue

_RUN_BITS: Final = 10
_LOOK_MESSAGES: Final = 256
_LOOK_COST: Final = 4
_STEP_COST: Final = 512

Slab = tuple[int, int]
Meet = Callable[[Queue, MessageView, MessageTimes, int], bool]
"""Decides about a special message; returns whether it leaves its queue."""


class ExpiryScan:
    """Looks through queues for special messages.

    Args:
        core: The core.
        queues: Queues by number.
        meet: Called with each special message that is met.
        clock_ms: Milliseconds since 1970.
    """

    def __init__(
        self, core: Core, queues: Mapping[int, Queue], meet: Meet, clock_ms: Callable[[], int]
    ) -> None:
        self._core = core
        self._queues = queues
        self._meet = meet
        self._clock_ms = clock_ms
        self._known: dict[int, int] = {}
        self._first: dict[int, dict[int, int]] = {}
        self._resolved: dict[int, int] = {}
        self._cost = 0

    def forget(self, queue_id: int) -> None:
        """Forget a queue that is gone."""
        self._known.pop(queue_id, None)
        self._first.pop(queue_id, None)
        self._resolved.pop(queue_id, None)

    def scan(self) -> Iterator[Slab | None]:
        """Look through all queues; yields where others have their turn.

        Yields:
            A slab that has to be loaded before it goes on; None when nothing is missing.
        """
        for queue_id in list(self._queues):
            queue = self._queues.get(queue_id)
            if queue is None:
                continue
            yield from self.discover(queue)
            if not queue.is_deleted:
                yield from self._reap(queue)

    def discover(self, queue: Queue) -> Iterator[Slab | None]:
        """Look at the special messages of a queue that came since the last look.

        Args:
            queue: The queue.

        Yields:
            As `scan`.
        """
        statistics = self._core.queue_statistics(queue.id)
        self._cost += 1
        # What a branch held is where it stood, which may be anywhere: look again from the start.
        if statistics.resolved != self._resolved.get(queue.id, 0):
            self._resolved[queue.id] = statistics.resolved
            self._known.pop(queue.id, None)
        while not queue.is_deleted:
            known = self._known.get(queue.id, 0)
            if known >= statistics.available:
                break
            look = self._look(queue, known, _LOOK_MESSAGES)
            self._note(queue, look.messages)
            self._known[queue.id] = look.next_sequence
            if look.absent is not None or self._is_turn_over:
                yield look.absent

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
            first.pop(run, None)
            at, end = run << _RUN_BITS, run + 1 << _RUN_BITS
            while at < end and not queue.is_deleted:
                look = self._look(queue, at, min(_LOOK_MESSAGES, end - at))
                self._note(queue, [view for view in look.messages if view.sequence < end])
                at = look.next_sequence
                if (look.absent is not None and at < end) or self._is_turn_over:
                    yield look.absent
                elif look.absent is None and not look.messages:
                    break

    def _look(self, queue: Queue, sequence: int, most: int) -> Look:
        look = self._core.look(queue.id, sequence, most, everything=True, special_only=True)
        self._cost += _LOOK_COST + len(look.messages)
        return look

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
