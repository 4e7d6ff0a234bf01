"""What all dispatch shares: queues that wait for something, large messages, the count of messages.

Owns the sets of queues that wait for room in a connection, room in the journal, a slab from disk,
or just the next turn. Must never decide who gets a message. Used by `dispatch` and
`examined_giver`; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from vespiary_broker.engine.core import AckMode, Core, LargeBody, LargeDelivery
from vespiary_broker.engine.large_bodies import LargeBodies
from vespiary_broker.engine.ports import Output
from vespiary_broker.engine.queues import Consumer

LoadSlab = Callable[[int, int], None]
"""Begins to read (file id, slab index) from disk; the core makes its queues ready again."""


class Outflow:
    """Messages on their way out, and the queues that have to wait with theirs.

    Attributes:
        again: Queues to be served in the next turn, in order.
        messages_out: Messages given to consumers so far.
        is_counting_ahead: As given.

    Args:
        core: The core.
        load_slab: Begins to read a slab that is not in memory.
        large_bodies: Bodies in files; None: there are none.
        is_counting_ahead: What is given out leaves once the counts of its deliveries are durable.
    """

    def __init__(
        self,
        core: Core,
        load_slab: LoadSlab,
        large_bodies: LargeBodies | None = None,
        *,
        is_counting_ahead: bool = False,
    ) -> None:
        self.is_counting_ahead = is_counting_ahead
        self.again: dict[int, None] = {}
        self.messages_out = 0
        self.core = core
        self._load_slab = load_slab
        self._large_bodies = large_bodies
        # By the handle of the connection: a protocol may put an output of its own before it.
        self._stalled: dict[int, dict[int, None]] = {}
        self._starved: dict[int, None] = {}
        self._absent: dict[tuple[int, int], dict[int, None]] = {}

    def take_again(self) -> dict[int, None]:
        """Return the queues to be served, and forget them."""
        work, self.again = self.again, {}
        return work

    def put_first(self, queue_ids: list[int]) -> None:
        """Have some of the queues that are served in the next turn be served first.

        Args:
            queue_ids: Queues, in order; those that are not served then are passed over.
        """
        again = self.again
        first = {queue_id: None for queue_id in queue_ids if queue_id in again}
        if first:
            self.again = first | again

    # --- waiting --------------------------------------------------------------------------------

    def stall(self, output: Output, queue_id: int) -> None:
        """Have a queue wait for room in a connection."""
        self._stalled.setdefault(output.handle, {})[queue_id] = None

    def output_ready(self, output: Output) -> None:
        """Serve the queues that waited for room in this connection."""
        self.again.update(self._stalled.pop(output.handle, {}))

    def starve(self, queue_id: int) -> None:
        """Have a queue wait for room in the journal."""
        self._starved[queue_id] = None

    def room_made(self) -> None:
        """Serve the queues that waited for room in the journal."""
        self.again.update(self._starved)
        self._starved.clear()

    def load(self, place: tuple[int, int], queue_id: int) -> None:
        """Have a queue wait for a slab, which is asked for once for all that need it.

        Args:
            place: File id and index of the slab.
            queue_id: The queue.
        """
        waiting = self._absent.setdefault(place, {})
        waiting[queue_id] = None
        if len(waiting) == 1:
            self._load_slab(*place)

    def slab_loaded(self, file_id: int, slab: int) -> None:
        """Serve the queues that waited for a slab."""
        self.again.update(self._absent.pop((file_id, slab), {}))

    def give_up(self, file_id: int, slab: int) -> list[int]:
        """Return the queues that waited for a slab which can't be read, and forget them."""
        return list(self._absent.pop((file_id, slab), {}))

    def is_output_full(self, output: Output, queue_id: int) -> bool:
        """Whether a queue waits for room in a connection."""
        return queue_id in self._stalled.get(output.handle, ())

    def is_starved(self, queue_id: int) -> bool:
        """Whether a queue waits for room in the journal."""
        return queue_id in self._starved

    def is_loading(self, queue_id: int) -> bool:
        """Whether a queue waits for a slab."""
        return any(queue_id in waiting for waiting in self._absent.values())

    def forget(self, output: Output) -> None:
        """Drop what is remembered about a connection that is gone."""
        self._stalled.pop(output.handle, None)

    # --- going out ------------------------------------------------------------------------------

    def room_bytes(self, consumer: Consumer) -> int:
        """Return how many bytes more a consumer's connection takes now (see `Output.room_bytes`).

        What waits there for the counts of its deliveries takes room as well.
        """
        output = consumer.output
        room_bytes = output.room_bytes()
        if self.is_counting_ahead and room_bytes > 0:
            room_bytes -= self.core.output_waiting(output.handle)
        return room_bytes

    def is_output_held(self, consumer: Consumer) -> bool:
        """Whether something waits on a consumer's connection that a stream must not overtake."""
        return self.is_counting_ahead and self.core.output_waiting(consumer.output.handle) > 0

    def limited(self, consumer: Consumer, count: int) -> None:
        """Have a queue wait for the journal, if it may be why a consumer was given no more.

        Args:
            consumer: The consumer, at whom the core has stopped with LIMIT.
            count: Messages that it was given.
        """
        # AUTO has no limit of its own: there was no room for the acknowledgements. Nor have those
        # of MQTT, whose window was asked for before; a link of AMQP may have no credit as well.
        is_unlimited = consumer.mode is AckMode.AUTO or consumer.is_core_settling
        if not count and (is_unlimited or self.is_counting_ahead):
            self.starve(consumer.queue.id)

    def write(
        self, consumer: Consumer, count: int, frames: bytes, *, is_encoded: bool = False
    ) -> None:
        """Send a consumer the frames of what it was given.

        Args:
            consumer: The consumer.
            count: Messages that they are.
            frames: The frames, or the messages as they are stored.
            is_encoded: Whether they are what its connection is sent, though it encodes others.

        Durability: with counts ahead they leave once those are durable.
        """
        self.messages_out += count
        consumer.queue.delivered += count
        consumer.given += count
        if is_encoded:
            if consumer.on_encoded is not None:
                consumer.on_encoded(count)
        elif consumer.encode is not None:
            frames = consumer.encode(frames)
        if not frames:
            return  # none of them can be sent, or all wait
        if self.is_counting_ahead and consumer.view is None:
            self.core.receipt(consumer.output.handle, frames)
        else:
            consumer.output.write(frames)

    def is_damaged(self, body: LargeBody) -> bool:
        """Whether a body is known to be lost."""
        return self._large_bodies is not None and self._large_bodies.is_damaged(body.large_id)

    @property
    def has_large_bodies(self) -> bool:
        """Whether there may be bodies in files."""
        return self._large_bodies is not None

    def stream(self, consumer: Consumer, given: LargeDelivery) -> None:
        """Send a consumer a large message that it was given."""
        self.messages_out += 1
        consumer.queue.delivered += 1
        consumer.given += 1
        consumer.output.stream(consumer, given)
