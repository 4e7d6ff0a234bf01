"""Dispatch: which consumer gets how many messages, by credit and by room in its connection.

Owns the decision; the core encodes, connections send. Must never make an object for a message.
Called by the server once per turn of the event loop with the queues that became ready; owner: the
event loop.

Consumers that share a queue are served in slices, round robin. A slice is what is ready divided by
the consumers, at most 32, so few messages are spread and many are cheap. A connection that is
full is passed over; the queue comes back when it has room (`output_ready`). A queue that has more
than fits into one turn comes back in the next one, so no queue can keep the loop for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from vespiary_broker.engine.core import AckMode, Core, DeliverStatus
from vespiary_broker.engine.large_bodies import LargeBodies, Quarantine
from vespiary_broker.engine.ports import Output
from vespiary_broker.engine.queues import Consumer, Queue

SLICE_MESSAGES: Final = 32
_NO_LIMIT: Final = 2**31 - 1
_ALONE: Final = (DeliverStatus.LARGE, DeliverStatus.SPECIAL)

LoadSlab = Callable[[int, int], None]
"""Begins to read (file id, slab index) from disk; the core makes its queues ready again."""


class Dispatcher:
    """Gives messages to consumers.

    Args:
        core: The core.
        queues: Queues by number (the registry's own table).
        load_slab: Begins to read a slab that is not in memory.
        large_bodies: Bodies in files; None: there are none.
        quarantine: Takes messages whose body is lost; None makes one.
    """

    def __init__(
        self,
        core: Core,
        queues: Mapping[int, Queue],
        load_slab: LoadSlab,
        large_bodies: LargeBodies | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self.messages_out = 0
        self._large_bodies = large_bodies
        self._quarantine = quarantine or Quarantine(core)
        self._core = core
        self._queues = queues
        self._load_slab = load_slab
        self._stalled: dict[Output, dict[int, None]] = {}
        self._again: dict[int, None] = {}
        self._starved: dict[int, None] = {}
        self._absent: dict[tuple[int, int], dict[int, None]] = {}

    @property
    def has_more(self) -> bool:
        """Whether `dispatch` has something to do in the next turn of the loop."""
        return bool(self._again)

    def poke(self, queue_id: int) -> None:
        """Serve a queue in the next `dispatch`: something about it has changed."""
        self._again[queue_id] = None

    def output_ready(self, output: Output) -> None:
        """Serve the queues that waited for room in this connection, in the next `dispatch`."""
        self._again.update(self._stalled.pop(output, {}))

    def room_made(self) -> None:
        """Serve the queues whose deliveries found no room in the journal, in the next turn."""
        self._again.update(self._starved)
        self._starved.clear()

    def slab_loaded(self, file_id: int, slab: int) -> None:
        """Serve the queues that waited for a slab, in the next `dispatch`."""
        self._again.update(self._absent.pop((file_id, slab), {}))

    def forget(self, output: Output) -> None:
        """Drop what is remembered about a connection that is gone."""
        self._stalled.pop(output, None)

    def dispatch(self, ready: Iterable[int]) -> None:
        """Serve queues.

        Args:
            ready: Numbers of queues that gained messages or credit (`Core.take_ready_queues`).
        """
        work = self._again
        self._again = {}
        work.update(dict.fromkeys(ready))
        for queue_id in work:
            queue = self._queues.get(queue_id)
            if queue is not None and queue.consumers and not queue.is_paused:
                self._serve(queue)

    def _serve(self, queue: Queue) -> None:
        consumers = queue.consumers
        slice_messages = _NO_LIMIT if len(consumers) == 1 else self._slice(queue, len(consumers))
        idle = 0
        while idle < len(consumers):
            queue.turn = (queue.turn + 1) % len(consumers)
            consumer = consumers[queue.turn]
            output = consumer.output
            room_bytes = output.room_bytes()
            if room_bytes <= 0:
                self._stalled.setdefault(output, {})[queue.id] = None
                idle += 1
                continue
            status, count, frames = self._core.deliver(consumer.handle, slice_messages, room_bytes)
            if count:
                self.messages_out += count
                output.write(frames)
                idle = 0
            else:
                idle += 1
                if status == DeliverStatus.LIMIT and consumer.mode is AckMode.AUTO:
                    # It has no limit of its own: there was no room for the acknowledgements.
                    self._starved[queue.id] = None
            if status == DeliverStatus.DRAINED:
                return
            if status == DeliverStatus.ABSENT:
                self._load(consumer)
                return
            if status in _ALONE and self._give_alone(status, consumer):
                idle = 0

    def _give_alone(self, status: DeliverStatus, consumer: Consumer) -> bool:
        """Give a consumer the next message, which deliver leaves to Python; False: not now."""
        if status == DeliverStatus.LARGE:
            return self._give_large(consumer)
        sequence = self._core.next_deliverable(consumer.queue.id)
        status, count, _, frames = self._core.give(consumer.handle, [sequence], _NO_LIMIT)
        if status == DeliverStatus.LARGE:
            return self._give_large(consumer)
        if count:
            self.messages_out += count
            consumer.output.write(frames)
        elif status == DeliverStatus.LIMIT and consumer.mode is AckMode.AUTO:
            self._starved[consumer.queue.id] = None
        return count > 0

    def _give_large(self, consumer: Consumer) -> bool:
        """Give a consumer the large message that is next, or set it aside if its body is lost."""
        body = self._core.next_large(consumer.handle)
        if body is None or self._large_bodies is None:
            return False
        if self._large_bodies.is_damaged(body.large_id):
            return self._quarantine.take(consumer.queue.id)
        given = self._core.take_large(consumer.handle)
        if given is None:
            return False
        self.messages_out += 1
        consumer.output.stream(consumer, given)
        return True

    def _slice(self, queue: Queue, consumers: int) -> int:
        ready = self._core.queue_statistics(queue.id).ready
        return max(1, min(SLICE_MESSAGES, ready // consumers))

    def _load(self, consumer: Consumer) -> None:
        """Ask for the slab that the next message stands in, once for all that need it."""
        place = self._core.absent_slab(consumer.handle)
        waiting = self._absent.setdefault(place, {})
        waiting[consumer.queue.id] = None
        if len(waiting) == 1:
            self._load_slab(*place)
