"""Giving out the messages of non-destructive queues: each consumer gets all, and takes none.

Owns the walk of each consumer over its queue, the turns among them, and the frames, which the core
would make for a message that is taken. Where a consumer stands is its view's (`views`).
Called by `dispatch`; owner: the event loop.

Pages are not opened: each consumer looks into those at which it stands (`page_walk`), and passes
over those in which its selector matches nothing. So such a queue pages like any other, however many
messages it keeps, and however many consumers stand at places of their own.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.engine.core import (
    AckMode,
    Core,
    LargeBody,
    LargeDelivery,
    MessageView,
    QueueStatistics,
)
from vespiary_broker.engine.outflow import Outflow
from vespiary_broker.engine.page_walk import ClosedPages, Seen
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.settling import NOT_TO_BE_GIVEN, Judge
from vespiary_broker.engine.turn_time import TurnTime
from vespiary_broker.engine.views import LOOK_FIRST, View, Views
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.stored_message import ESCAPED, STORED_HEAD, STORED_VERSION
from vespiary_codec.wire.stomp import Version
from vespiary_codec.wire.stomp.properties import lines_in, properties_for_version

_LOOK_MAX: Final = 256
_LOOK_COST: Final = 16
"""A look at nothing counts as much as one at so many messages."""
_JUDGE_COST: Final = 16
_DELIVERIES_MAX: Final = 2**16 - 1
_VERSIONS: Final[dict[int, Version]] = {10: "1.0", 11: "1.1", 12: "1.2"}


class _Batch:
    """What one consumer is given in one go.

    Args:
        consumer: The consumer.
        view: Its view.
        room_bytes: What its connection takes; the first message is given even if it is larger.
    """

    def __init__(self, consumer: Consumer, view: View, room_bytes: int) -> None:
        self.consumer = consumer
        self.wanted = consumer.wanted
        self.view = view
        self.frames: list[bytes] = []
        self.is_full = False  # what comes next does not fit
        self.is_over = False  # it has to wait for what comes next
        self.room_bytes = room_bytes

    def add(self, sequence: int, frame: bytes) -> bool:
        """Add a message; False: it does not fit."""
        if self.frames and len(frame) > self.room_bytes:
            self.is_full = True
            return False
        self.frames.append(frame)
        self.room_bytes -= len(frame)
        self.view.given(sequence)
        return True


class ViewGiver:
    """Gives messages of non-destructive queues to their consumers.

    Attributes:
        pages: What is known of pages; None: there are none.

    Args:
        core: The core.
        outflow: What waits, and what goes out.
        judge: Decides about special messages; None: they are given like all others.
        turn_time: What a turn of the loop has for selectors; None: there is no bound.
    """

    def __init__(
        self,
        core: Core,
        outflow: Outflow,
        judge: Judge | None = None,
        turn_time: TurnTime | None = None,
    ) -> None:
        self.pages: ClosedPages | None = None
        self._turn_time = turn_time or TurnTime()
        self._share = self._turn_time.share(self)  # of the turn in which a queue is served
        self._core = core
        self._outflow = outflow
        self._judge = judge

    def serve(self, queue: Queue, views: Views, budget: int) -> int:
        """Give each consumer what it has not seen.

        Args:
            queue: The queue.
            views: The views of its consumers.
            budget: Messages that may be looked at in this turn; 0 or less: none.

        Returns:
            How much of the budget was used.
        """
        statistics = self._core.queue_statistics(queue.id)
        views.note_branches(statistics)
        consumers = [consumer for tier in queue.rota.tiers for consumer in tier]
        used = 0
        for consumer in consumers:
            assert consumer.view is not None
            consumer.view.walk.refresh(self.pages, statistics.paged)
        self._share = self._turn_time.share(views)
        for _ in consumers:
            if used >= budget or not self._share.has_time:
                self._outflow.again[queue.id] = None
                break
            queue.turn = (queue.turn + 1) % len(consumers)
            used += self._show(consumers[queue.turn], statistics, budget - used)
        self._share.end()
        return used

    def _show(self, consumer: Consumer, statistics: QueueStatistics, budget: int) -> int:
        """Give a consumer what comes next for it; return what that cost."""
        view, queue, outflow = consumer.view, consumer.queue, self._outflow
        assert view is not None
        used = 0
        while True:
            if view.room <= 0 or not (view.behind or view.cursor < statistics.available):
                return used
            if used >= budget:
                outflow.again[queue.id] = None
                return used
            room_bytes = consumer.output.room_bytes()
            if room_bytes <= 0:
                outflow.stall(consumer.output, queue.id)
                return used
            batch = _Batch(consumer, view, room_bytes)
            if view.behind:
                used += self._show_behind(batch)
            else:
                used += self._walk(batch, budget - used)
            if batch.frames:
                outflow.write(consumer, len(batch.frames), b"".join(batch.frames))
            if batch.is_over:
                return used

    def _show_behind(self, batch: _Batch) -> int:
        """Give what stands before the cursor."""
        view, queue = batch.view, batch.consumer.queue
        cost = 0
        while view.behind and view.room > 0 and cost < _LOOK_MAX and not batch.is_over:
            sequence = view.behind
            found = view.walk.look(sequence, 1)
            cost += _LOOK_COST
            if found.is_waiting or (found.absent is not None and not found.messages):
                self._wait(queue, found)
                batch.is_over = True
                break
            for message in found.messages:
                if message.sequence == sequence and not self._give(batch, message):
                    return cost
            view.pop_behind()
        return cost

    def _walk(self, batch: _Batch, budget: int) -> int:
        """Give what stands at the cursor, one look at the queue."""
        view, queue = batch.view, batch.consumer.queue
        size = max(1, min(view.batch, view.room, budget, _LOOK_MAX))
        found = view.walk.look(view.cursor, size, matches=(batch.wanted,))
        cost = len(found.messages) + _LOOK_COST + _JUDGE_COST * found.judged
        for message in found.messages:
            if view.room <= 0 or batch.is_over or not self._give(batch, message):
                view.cursor = message.sequence
                view.batch = max(LOOK_FIRST, len(batch.frames) + 1)
                return cost
            view.cursor = message.sequence + 1
        view.cursor = max(view.cursor, found.next_sequence)
        view.batch = min(2 * size, _LOOK_MAX) if size == view.batch else view.batch
        if found.is_waiting or found.absent is not None:
            self._wait(queue, found)
            batch.is_over = True
        return cost

    def _wait(self, queue: Queue, found: Seen) -> None:
        """Have a queue wait for what is not in memory; for a footer it does already."""
        if found.absent is not None:
            self._outflow.load(found.absent, queue.id)

    def _give(self, batch: _Batch, message: MessageView) -> bool:
        """Give a message, or pass over it; False: it has to wait, and all behind it."""
        consumer, queue = batch.consumer, batch.consumer.queue
        match = batch.wanted
        if match is not None:
            if not self._share.has_time:
                self._outflow.again[queue.id] = None
                batch.is_over = True
                return False
            self._share.did(match.cost_us(message))
            if not match.wants(message):
                return True
        walk, judge = batch.view.walk, self._judge if message.is_special else None
        if judge is not None:
            if walk.is_paged(message.sequence) and judge.is_due(message):
                walk.take_in([message.sequence])  # there it can be set aside
            if judge.settle(queue, message) == NOT_TO_BE_GIVEN:
                return True
        if message.is_large:
            return self._give_large(batch, message)
        body = walk.body(message.sequence)
        if body is None:  # the same turn in which it was looked at: it went with another message
            return True
        head = _head(consumer, batch.view, message, len(body))
        end = b"" if consumer.encode is not None else b"\0"
        return batch.add(message.sequence, b"%b%b%b" % (head, body, end))

    def _give_large(self, batch: _Batch, message: MessageView) -> bool:
        """Give a message whose body is in a file: alone, behind what was given before."""
        queue_id, outflow = batch.consumer.queue.id, self._outflow
        stored = batch.view.walk.body(message.sequence)
        if stored is None or not outflow.has_large_bodies:
            return True
        reference = decode_large_reference(stored)
        body = LargeBody(reference.large_id, reference.size_bytes, reference.crc)
        if outflow.is_damaged(body):
            batch.view.walk.take_in([message.sequence])
            self._core.set_aside(queue_id, message.sequence)
            return True
        if batch.frames:
            batch.is_full = True  # first those before it go out
            return False
        head = _head(batch.consumer, batch.view, message, body.size_bytes)
        batch.view.given(message.sequence)
        outflow.stream(batch.consumer, LargeDelivery(message.sequence, head, body))
        outflow.stall(batch.consumer.output, queue_id)
        batch.is_over = True
        return True


def _head(consumer: Consumer, view: View, message: MessageView, body_bytes: int) -> bytes:
    """Return a message up to its body; as the core makes it (`abc.Core.deliver`)."""
    if view.version == STORED_VERSION:
        return (
            STORED_HEAD.pack(
                message.sequence,
                message.time_ms,
                0 if message.is_large else body_bytes,
                len(message.properties),
                min(message.deliveries + view.attempts(message.sequence), _DELIVERIES_MAX),
                message.priority,
                message.protocol,
                ESCAPED * message.is_escaped,
            )
            + message.properties
        )
    name = b"%d-%d" % (consumer.queue.id, message.sequence)
    acknowledge = b""
    if view.version == 12 and view.mode is not AckMode.AUTO:
        acknowledge = b"\nack:%b" % name
    deliveries = message.deliveries + view.attempts(message.sequence)
    again = b"\nredelivered:true\ndelivery-count:%d" % deliveries if deliveries else b""
    properties = lines_in(message.properties)
    if message.is_escaped and view.version != 12:
        properties = properties_for_version(properties, _VERSIONS[view.version])
    return b"MESSAGE\nsubscription:%b\nmessage-id:%b%b%b\ncontent-length:%d\n%b\n" % (
        view.header, name, acknowledge, again, body_bytes, properties,
    )  # fmt: skip
