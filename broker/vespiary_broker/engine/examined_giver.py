"""Giving out the messages of examined queues: who of the consumers gets the next ones.

Owns the turns among the consumers of such a queue. What there is to give, and in which order, is
the index's (`examined`); the core encodes. Called by `dispatch`; owner: the event loop.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.engine.core import Core, DeliverStatus, LargeBody
from vespiary_broker.engine.examined import ExaminedQueue
from vespiary_broker.engine.outflow import Outflow
from vespiary_broker.engine.page_walk import ClosedPages
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.turn_time import TurnTime
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.stored_message import with_line

SLICE_MESSAGES: Final = 32
_SLICE_ALONE: Final = 256


class ExaminedGiver:
    """Gives messages of examined queues to their consumers.

    Attributes:
        pages: What is known of closed pages; None: such a queue must have all of its messages in
            its ring.

    Args:
        core: The core.
        outflow: What waits, and what goes out.
        turn_time: What a turn of the loop has for selectors; None: there is no bound.
    """

    def __init__(self, core: Core, outflow: Outflow, turn_time: TurnTime | None = None) -> None:
        self.pages: ClosedPages | None = None
        self._turn_time = turn_time
        self._core = core
        self._outflow = outflow

    def serve(self, queue: Queue, examined: ExaminedQueue, budget: int) -> int:
        """Look at messages of a queue and give out what can be given.

        Args:
            queue: The queue.
            examined: Its index.
            budget: Messages that may be looked at in this turn; 0 or less: none.

        Returns:
            How much of the budget was used.
        """
        looked = examined.look(budget, self.pages, self._turn_time)
        if examined.absent is not None:
            self._outflow.load(examined.absent, queue.id)
        if examined.may_give:
            for tier in queue.rota.tiers:
                self._give_out(queue, examined, tier)
        if examined.has_unlooked:
            self._outflow.again[queue.id] = None
        elif examined.is_plain:
            self._core.specials_seen(queue.id)
            queue.examined = None
            self._outflow.again[queue.id] = None
        return looked

    def _give_out(self, queue: Queue, examined: ExaminedQueue, consumers: list[Consumer]) -> None:
        """Give consumers what there is, in turn, until none of them takes more."""
        idle, count = 0, len(consumers)
        slices = [_SLICE_ALONE]
        if count > 1:
            waiting = [examined.waiting(consumer) for consumer in consumers]
            slices = [max(1, min(SLICE_MESSAGES, found // count)) for found in waiting]
        while idle < count:
            queue.turn = (queue.turn + 1) % count
            if self._give(queue, examined, consumers[queue.turn], slices[queue.turn]):
                idle = 0
            else:
                idle += 1

    def _give(self, queue: Queue, examined: ExaminedQueue, consumer: Consumer, count: int) -> bool:
        """Give a consumer its next messages; return whether it may get more now."""
        outflow = self._outflow
        room_bytes = outflow.room_bytes(consumer)
        if room_bytes <= 0:
            outflow.stall(consumer.output, queue.id)
            return False
        batch = examined.take(consumer, count)
        sequences = batch.sequences
        if not sequences:
            return False
        status, given, passed, frames = self._core.give(consumer.handle, sequences, room_bytes)
        if given and batch.first_key:
            frames = _with_header(consumer, frames, batch.first_key)
        if given:
            outflow.write(consumer, given, frames)
        is_large_taken = False
        if status == DeliverStatus.LARGE:
            if outflow.is_output_held(consumer):
                outflow.stall(consumer.output, queue.id)
            else:
                is_large_taken = self._give_large(consumer, sequences[passed])
            passed += is_large_taken
        elif status == DeliverStatus.ABSENT:
            outflow.load(self._core.absent_for(queue.id, sequences[passed]), queue.id)
        elif status == DeliverStatus.LIMIT:
            outflow.limited(consumer, given)
        examined.settle(consumer, batch, passed)
        return passed > 0

    def _give_large(self, consumer: Consumer, sequence: int) -> bool:
        """Give a consumer a large message, or set it aside if its body is lost.

        Returns:
            Whether it is out of the way.
        """
        queue_id = consumer.queue.id
        stored = self._core.body(queue_id, sequence)
        if stored is None or not self._outflow.has_large_bodies:
            return False
        reference = decode_large_reference(stored)
        body = LargeBody(reference.large_id, reference.size_bytes, reference.crc)
        if self._outflow.is_damaged(body):
            return self._core.set_aside(queue_id, sequence)
        given = self._core.give_large(consumer.handle, sequence)
        if given is None:
            return False
        self._outflow.stream(consumer, given)
        return True


def _with_header(consumer: Consumer, frame: bytes, name: str) -> bytes:
    """Return the frame of a message that says of a header that it is true."""
    if consumer.encode is not None:
        return with_line(frame, b"%b:true\n" % name.encode())
    command, _, rest = frame.partition(b"\n")
    return b"%b\n%b:true\n%b" % (command, name.encode(), rest)
