"""One queue on its way to another broker.

Owns the order of things for each batch: read, set aside here, handed over, confirmed as flushed
there, ended here. Must never end what was not confirmed; what could not be handed over is put back.
The other broker knows messages by their sequences, for ever: before one is told, the queue's next
sequence is durable here, or a later message could be taken for one that the other has already.
Memory holds one batch, of `BATCH_BYTES` or of one message. Called by `draining`; owner: the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.app.queue_walk import QueueWalk, Step
from vespiary_broker.engine.core import LargeBody, MessageView, NoRoom
from vespiary_broker.engine.kept_tails import keep_tail
from vespiary_broker.engine.stream_gaps import GapReason
from vespiary_codec.journal.large_reference import decode_large_reference
from vespiary_codec.journal.transfer import TransferFlag, TransferMessage, encode_batch

if TYPE_CHECKING:
    from vespiary_broker.app.queue_walk import Pages
    from vespiary_broker.app.transfer_client import Receiver
    from vespiary_broker.engine.engine import Engine
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.store.journal import Journal

BATCH_BYTES: Final = 1024 * 1024
BATCH_MESSAGES: Final = 2048
_SPACE_S: Final = 1.0

Insist = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Calls the other broker until it answers."""
Note = Callable[[int, int, int], None]
"""Takes how many messages and bytes were moved, and how many of them were there before."""


class _Batch:
    """Messages that are under way.

    Attributes:
        messages: They, in the order of the queue.
        aside: Sequences that were set aside for this; the others were before.
        large: Body of the only message, if that is large.
    """

    def __init__(self) -> None:
        self.messages: list[TransferMessage] = []
        self.views: list[MessageView] = []
        self.aside: list[int] = []
        self.large: LargeBody | None = None
        self.size_bytes = 0

    @property
    def sequences(self) -> list[int]:
        return [view.sequence for view in self.views]

    @property
    def moved_bytes(self) -> int:
        large_bytes = 0 if self.large is None else self.large.size_bytes
        return large_bytes + sum(message.size_bytes for message in self.messages)

    def add(self, view: MessageView, body: bytes) -> None:
        if view.is_large:
            reference = decode_large_reference(body)
            self.large = LargeBody(reference.large_id, reference.size_bytes, reference.crc)
        flags = (
            TransferFlag.JOURNALLED * view.is_journalled
            | TransferFlag.ESCAPED * view.is_escaped
            | TransferFlag.LARGE * view.is_large
            | TransferFlag.SPECIAL * view.is_special
        )
        self.views.append(view)
        self.size_bytes += len(view.properties) + len(body)
        self.messages.append(
            TransferMessage(
                view.sequence,
                view.properties,
                body,
                flags,
                view.protocol,
                view.priority,
                view.deliveries,
            )
        )

    def drop(self, view: MessageView) -> None:
        index = self.views.index(view)
        del self.views[index], self.messages[index]

    def has_room(self, size_bytes: int) -> bool:
        if not self.views:
            return True
        is_small = self.size_bytes + size_bytes <= BATCH_BYTES and self.large is None
        return is_small and len(self.views) < BATCH_MESSAGES


class DrainedQueue:
    """Moves one queue.

    Args:
        engine: The engine.
        cycle: The server's turn.
        journal: The message journal.
        pages: Opens pages; None: there are none.
        queue: The queue.
        check: Called before each wait; what it raises ends the moving.
    """

    def __init__(
        self,
        engine: Engine,
        cycle: Cycle,
        journal: Journal,
        pages: Pages | None,
        queue: Queue,
        check: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._core = engine.core
        self._cycle = cycle
        self._queue = queue
        self._check = check
        self._journal = journal
        self._kept_tail = 0
        self._walk = QueueWalk(engine.core, journal, pages, queue, check)

    async def move(self, client: Receiver, broker_id: str, insist: Insist, note: Note) -> None:
        """Move all that is in the queue now.

        Args:
            client: The other broker.
            broker_id: Id of this one.
            insist: Calls the other broker until it answers.
            note: Is told what was moved.

        Raises:
            VespiaryError: The other broker does not take a message, or one cannot be read here.

        Durability: each message survives any crash of either broker in at least one of the two,
            and comes to be in the other once.
        """
        end = self._core.queue_statistics(self._queue.id).available
        at = 0
        try:
            while at < end and not self._queue.is_deleted:
                self._check()
                step = await self._walk.step(at, BATCH_MESSAGES, everything=True)
                try:
                    batch, at, absent = self._gather(step, end)
                except NoRoom:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._cycle.space(), _SPACE_S)
                    continue
                if batch.views:
                    await self._hand_over(batch, client, broker_id, insist, note)
                elif absent is not None:
                    await self._walk.load(*absent)
                await asyncio.sleep(0)
        finally:
            self._walk.leave()

    def _gather(self, step: Step, end: int) -> tuple[_Batch, int, tuple[int, int] | None]:
        """Set the next messages aside.

        Returns:
            They, where to go on, and the slab that is missing there.

        Raises:
            NoRoom: There is none for what stands in pages now; nothing was changed.
        """
        batch = _Batch()
        following, absent = step.next_sequence, None
        for view in step.messages:
            if view.sequence >= end:
                following = end
                break
            if not self._is_free(view):
                continue
            body = self._walk.body(view.sequence)
            size_bytes = len(view.properties) + len(body or b"")
            if body is None:
                absent = self._core.absent_for(self._queue.id, view.sequence)
            if body is None or not batch.has_room(size_bytes) or (view.is_large and batch.views):
                following = view.sequence
                break
            batch.add(view, body)
        self._take(batch)
        return batch, following, absent

    def _take(self, batch: _Batch) -> None:
        """Have messages stand in memory, and nobody else touch them."""
        self._walk.take_in(batch.sequences)
        for view in list(batch.views):
            if view.is_aside:
                continue
            if self._core.set_aside(self._queue.id, view.sequence):
                batch.aside.append(view.sequence)
            else:
                batch.drop(view)

    async def _hand_over(
        self, batch: _Batch, client: Receiver, broker_id: str, insist: Insist, note: Note
    ) -> None:
        queue, data = self._queue, encode_batch(batch.messages)
        is_over = False
        try:
            await self._keep_sequences(batch)
            if batch.large is None:
                seen = await insist(lambda: client.send(broker_id, queue.id, queue.name, data))
            else:
                seen = await self._send_large(batch.large, data, client, broker_id, insist)
            is_over = True
        finally:
            if not is_over and not queue.is_deleted:
                for sequence in batch.aside:
                    self._core.put_back(queue.id, sequence)
                self._cycle.touch()
        await self._finish(batch)
        note(len(batch.messages), batch.moved_bytes, seen)

    async def _keep_sequences(self, batch: _Batch) -> None:
        """Have no later message get a sequence of a batch, persistent or not.

        Durability: on return that holds after any crash; a queue that is not durable is gone then.
        """
        queue = self._queue
        while queue.is_durable and not queue.is_deleted and self._kept_tail <= batch.sequences[-1]:
            self._check()
            try:
                tail = keep_tail(self._core, queue.id)
            except NoRoom:
                self._journal.request_space()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._cycle.space(), _SPACE_S)
                continue
            await self._cycle.durable()
            self._kept_tail = tail

    async def _send_large(
        self, large: LargeBody, data: bytes, client: Receiver, broker_id: str, insist: Insist
    ) -> int:
        queue, bodies = self._queue, self._cycle.large
        assert bodies is not None

        async def call() -> int:
            reader = await bodies.read(large)
            try:
                return await client.send_large(broker_id, queue.id, queue.name, data, reader)
            finally:
                reader.close()

        seen: int = await insist(call)
        return seen

    async def _finish(self, batch: _Batch) -> None:
        """End messages that the other broker has.

        Durability: journalled as acknowledgements are; a crash before that has them sent again.
        """
        queue = self._queue
        while not queue.is_deleted:
            try:
                self._core.finish(queue.id, batch.sequences)
                queue.note_left(GapReason.MOVED, batch.sequences)
            except NoRoom:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._cycle.space(), _SPACE_S)
                continue
            break
        scheduled = [view.sequence for view in batch.views if view.is_aside]
        self._engine.fates.schedule.discard_left(queue.id, scheduled)
        self._cycle.touch()

    def _is_free(self, view: MessageView) -> bool:
        """Whether nobody holds a message, and it is not on its way to another queue."""
        if view.is_held:
            return False
        mover = self._engine.fates.mover
        return not (view.is_aside and mover.is_leaving(self._queue.id, view.sequence))
