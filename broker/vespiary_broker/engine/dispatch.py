"""Dispatch: which consumer gets how many messages, by credit and by room in its connection.

Owns the decision; the core encodes, connections send. Must never make an object for a message.
Called by the server once per turn of the event loop with the queues that became ready; owner: the
event loop.

Consumers that share a queue are served in slices, round robin. A slice is what is ready divided by
the consumers, at most 32, so few messages are spread and many are cheap. A connection that is
full is passed over; the queue comes back when it has room (`output_ready`). A turn has `SERVE_S`
for all of it: a message may go to thousands, and what Python encodes takes long. What is left comes
first in the next turn, so that neither other queues nor clients that send wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from vespiary_broker.engine.core import Core, DeliverStatus
from vespiary_broker.engine.delivery_counts import RETIRED_A_TURN, CountRules, retire_next
from vespiary_broker.engine.examined import ExaminedQueue
from vespiary_broker.engine.examined_giver import ExaminedGiver
from vespiary_broker.engine.large_bodies import LargeBodies, Quarantine
from vespiary_broker.engine.outflow import LoadSlab as LoadSlab
from vespiary_broker.engine.outflow import Outflow
from vespiary_broker.engine.page_walk import ClosedPages
from vespiary_broker.engine.ports import Output
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.settling import Judge
from vespiary_broker.engine.turn_time import TurnTime
from vespiary_broker.engine.upkeep import ALWAYS_MS
from vespiary_broker.engine.view_giver import ViewGiver

SLICE_MESSAGES: Final = 32
STORED_MESSAGES: Final = 128
"""Messages that Python encodes between two looks at the clock."""
Later = Callable[[float, Callable[[], None]], None]
LOOKS_PER_TURN: Final = 1024
"""Messages of examined queues that are looked at in one turn of the loop, all queues together."""
SERVE_S: Final = 0.001
"""Seconds of one turn of the loop in which messages are given out."""
_NO_LIMIT: Final = 2**31 - 1


class Dispatcher:
    """Gives messages to consumers.

    Attributes:
        messages_replaced: Messages that ring and last-value queues gave up so far.
        later: Calls something after so many seconds, and turns then; the server sets it.
        view_giver: Serves the non-destructive queues.
        clock_s: Tells how long a turn takes.

    Attributes:
        on_paged: Called when a queue's next message stands in a page that is not open.
        on_looked_at: Called with a queue that has messages in such pages and is to be examined.

    Args:
        core: The core.
        queues: Queues by number (the registry's own table).
        load_slab: Begins to read a slab that is not in memory.
        large_bodies: Bodies in files; None: there are none.
        quarantine: Takes messages whose body is lost; None makes one.
        judge: Decides about special messages; None: they are given like all others.
        count_rules: Which deliveries are counted in the journal, and when.
        turn_time: What a turn of the loop has for selectors; None: there is no bound.
    """

    def __init__(
        self,
        core: Core,
        queues: Mapping[int, Queue],
        load_slab: LoadSlab,
        large_bodies: LargeBodies | None = None,
        quarantine: Quarantine | None = None,
        judge: Judge | None = None,
        count_rules: CountRules = CountRules(),  # noqa: B008  (it is immutable)
        turn_time: TurnTime | None = None,
    ) -> None:
        self._judge = judge
        self.messages_replaced = 0
        self.clock_s: Callable[[], float] = time.perf_counter
        self._until_s = 0.0
        self.later: Later = lambda _delay_s, _action: None
        core.count_deliveries(ahead=count_rules.is_ahead, records_max=count_rules.records_max)
        self._outflow = Outflow(
            core, load_slab, large_bodies, is_counting_ahead=count_rules.is_ahead
        )
        self._giver = ExaminedGiver(core, self._outflow, turn_time)
        self.view_giver = ViewGiver(core, self._outflow, judge, turn_time)
        self.on_paged: Callable[[], None] = lambda: None
        self.on_looked_at: Callable[[int], None] = lambda _: None
        self._quarantine = quarantine or Quarantine(core)
        self._core = core
        self._queues = queues
        self._timed: dict[int, int] = {}

    def see_pages(self, pages: ClosedPages) -> None:
        """Let examined and non-destructive queues look into closed pages."""
        self._giver.pages = self.view_giver.pages = pages

    def page_damaged(self, file_id: int, slab: int) -> None:
        """Let the queues that look into pages and waited for a part of a page go on without it."""
        for queue_id in self._outflow.give_up(file_id, slab):
            queue = self._queues.get(queue_id)
            if queue is not None and (queue.examined is not None or queue.views is not None):
                self._outflow.again[queue_id] = None

    @property
    def messages_out(self) -> int:
        """Messages given to consumers so far."""
        return self._outflow.messages_out

    @property
    def is_counting_ahead(self) -> bool:
        """Whether messages leave once the counts of their deliveries are durable."""
        return self._outflow.is_counting_ahead

    @property
    def has_more(self) -> bool:
        """Whether `dispatch` has something to do in the next turn of the loop."""
        return bool(self._outflow.again)

    def poke(self, queue_id: int) -> None:
        """Serve a queue in the next `dispatch`: something about it has changed.

        To be called for whatever makes messages of a queue deliverable again.
        """
        self._outflow.again[queue_id] = None
        queue = self._queues.get(queue_id)
        if queue is not None and queue.examined is not None:
            queue.examined.look_at_returned()

    def output_ready(self, output: Output) -> None:
        """Serve the queues that waited for room in this connection, in the next `dispatch`."""
        self._outflow.output_ready(output)

    def room_made(self) -> None:
        """Serve the queues whose deliveries found no room in the journal, in the next turn."""
        self._outflow.room_made()

    def load(self, place: tuple[int, int], queue_id: int) -> None:
        """Have a slab loaded that somebody needs who looks at a queue."""
        self._outflow.load(place, queue_id)

    def slab_loaded(self, file_id: int, slab: int) -> None:
        """Serve the queues that waited for a slab, in the next `dispatch`."""
        self._outflow.slab_loaded(file_id, slab)

    def is_output_full(self, output: Output, queue_id: int) -> bool:
        """Whether a queue waits until a connection takes more."""
        return self._outflow.is_output_full(output, queue_id)

    def is_without_room(self, queue_id: int) -> bool:
        """Whether deliveries of a queue found no room in the journal."""
        return self._outflow.is_starved(queue_id)

    def is_loading(self, queue_id: int) -> bool:
        """Whether a queue waits for a part of the journal or of a page to be in memory."""
        return self._outflow.is_loading(queue_id)

    def forget(self, output: Output) -> None:
        """Drop what is remembered about a connection that is gone."""
        self._outflow.forget(output)

    def dispatch(self, ready: Iterable[int]) -> None:
        """Serve queues.

        Args:
            ready: Numbers of queues that gained messages or credit (`Core.take_ready_queues`).
        """
        work = self._outflow.take_again()
        work.update(dict.fromkeys(ready))
        looks_left = LOOKS_PER_TURN
        late: list[int] = []  # those before have used up all looks, or the time, of this turn
        is_over = False
        self._until_s = self.clock_s() + SERVE_S
        for queue_id in work:
            if is_over:
                self._outflow.again[queue_id] = None
                late.append(queue_id)
                continue
            queue = self._queues.get(queue_id)
            if queue is None:
                continue
            if looks_left <= 0:
                late.append(queue_id)
            if queue.upkeeps:
                if not self._is_whole(queue):
                    continue
                used, is_kept_up = self._tend(queue, looks_left)
                looks_left -= used
                if not is_kept_up:
                    continue  # it gives nothing that is to go
            if queue.is_held:
                continue
            if not queue.rota.tiers:
                if queue.rota.is_waiting:
                    self._wait_for_consumers(queue)
                continue
            if queue.views is not None:
                looks_left -= self.view_giver.serve(queue, queue.views, looks_left)
                continue
            if queue.examined is None:
                self._serve(queue)
                is_over = self.clock_s() >= self._until_s
            if queue.examined is not None and (self._giver.pages or self._is_whole(queue)):
                looks_left -= self._giver.serve(queue, queue.examined, looks_left)
        self._outflow.put_first(late)

    def _is_whole(self, queue: Queue) -> bool:
        """Whether all of a queue stands in its ring, where Python looks; else have that done."""
        if not self._core.queue_statistics(queue.id).paged:
            return True
        self.on_looked_at(queue.id)
        return False

    def _tend(self, queue: Queue, budget: int) -> tuple[int, bool]:
        """Have a queue give up what is to go.

        Returns:
            How much of the budget was used, and whether nothing is left to go.
        """
        used, is_kept_up = 0, True
        now_ms = ALWAYS_MS if self._judge is None else self._judge.now_ms()
        for upkeep in queue.upkeeps:
            before = upkeep.replaced
            looked = upkeep.tend(budget - used, now_ms)
            self.messages_replaced += upkeep.replaced - before
            if upkeep.absent is not None:
                self._outflow.load(upkeep.absent, queue.id)
            elif upkeep.is_starved:
                self._outflow.starve(queue.id)
            elif looked >= budget - used:
                self._outflow.again[queue.id] = None
            else:
                used += looked
                continue
            used, is_kept_up = used + looked, False
        return used, is_kept_up

    def _wait_for_consumers(self, queue: Queue) -> None:
        """Begin without those that have not come, when the queue has waited long enough."""
        wait = queue.rota.waits
        delay_ms = queue.kind.delay_before_dispatch
        if delay_ms < 0 or self._timed.get(queue.id) == wait:
            return
        self._timed[queue.id] = wait

        def begin() -> None:
            if queue.rota.is_waiting and queue.rota.waits == wait:
                queue.rota.begin(queue)
                self.poke(queue.id)
            if self._timed.get(queue.id) == wait:
                del self._timed[queue.id]

        self.later(delay_ms / 1000, begin)

    def _serve(self, queue: Queue) -> None:
        """Serve a queue, tier by tier, until it is drained or nobody takes more."""
        for tier in queue.rota.tiers:
            if self._serve_tier(queue, tier):
                return

    def _serve_tier(self, queue: Queue, consumers: list[Consumer]) -> bool:
        """Give consumers what is next, in turn; return whether the others need not be asked."""
        core, outflow = self._core, self._outflow
        slice_messages = _NO_LIMIT if len(consumers) == 1 else self._slice(queue, len(consumers))
        idle = retired = 0
        is_stored = False
        while idle < len(consumers):
            queue.turn = (queue.turn + 1) % len(consumers)
            consumer = consumers[queue.turn]
            room_bytes = outflow.room_bytes(consumer)
            if room_bytes <= 0:
                outflow.stall(consumer.output, queue.id)
                idle += 1
                is_stored = False
                continue
            deliver = core.deliver_stored if is_stored else core.deliver
            most = min(slice_messages, STORED_MESSAGES) if is_stored else slice_messages
            status, count, frames = deliver(consumer.handle, most, room_bytes)
            is_encoded = consumer.is_core_encoding and not is_stored
            if count:
                outflow.write(consumer, count, frames, is_encoded=is_encoded)
                idle = 0
            is_stored = status == DeliverStatus.STORED
            if is_stored:
                queue.turn -= 1  # it is asked again, for those that the core does not encode
            elif not count:
                idle += 1
                if status == DeliverStatus.LIMIT:
                    outflow.limited(consumer, count)
            if status == DeliverStatus.DRAINED:
                if not count:
                    queue.turn -= 1  # it was asked in vain: the next message is its own
                return True
            if status == DeliverStatus.ABSENT:
                outflow.load(core.absent_slab(consumer.handle), queue.id)
                return True
            if status == DeliverStatus.PAGED:
                self.on_paged()
                return True
            if status == DeliverStatus.WORN:
                retired += self._retire(queue)
                if retired >= RETIRED_A_TURN:
                    outflow.again[queue.id] = None
                    return True
                idle = 0
            if status == DeliverStatus.LARGE and self._give_large(consumer):
                idle = 0
            if status == DeliverStatus.SPECIAL:
                queue.examined = ExaminedQueue(core, queue, self._judge)
                return True
            if count and self.clock_s() >= self._until_s:
                outflow.again[queue.id] = None
                return True
        return False

    def _retire(self, queue: Queue) -> int:
        """Take away the next message, which was delivered too often; return what it counts for."""
        if self._judge is not None and retire_next(self._core, queue, self._judge):
            return 1
        return RETIRED_A_TURN

    def _give_large(self, consumer: Consumer) -> bool:
        """Give a consumer the large message that is next, or set it aside if its body is lost."""
        body = self._core.next_large(consumer.handle)
        if body is None or not self._outflow.has_large_bodies:
            return False
        if self._outflow.is_damaged(body):
            return self._quarantine.take(consumer.queue.id)
        if self._outflow.is_output_held(consumer):
            self._outflow.stall(consumer.output, consumer.queue.id)
            return False
        given = self._core.take_large(consumer.handle)
        if given is None:
            return False
        self._outflow.stream(consumer, given)
        return True

    def _slice(self, queue: Queue, consumers: int) -> int:
        ready = self._core.queue_statistics(queue.id).ready
        return max(1, min(SLICE_MESSAGES, ready // consumers))
