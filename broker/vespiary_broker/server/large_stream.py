"""A large message on its way out: its frame in pieces, as fast as the client reads.

Owns the order on the connection while a body is under way: whatever else has to be sent waits
behind the frame. Must never hold more than one piece of the body. Runs as a task of its
connection, one at a time; called by `connection`.

A body that turns out to be damaged before anything of it was sent is set aside (the message goes
back to its queue, and from there to the quarantine). One that is found out later costs the
connection, since a frame cannot be taken back: the last piece is sent only if the checksum of the
whole body is right, so a client never has a whole frame with a wrong body.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import LargeDelivery, NoRoom
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.server.protocol_handler import LargeStart
from vespiary_spec.errors import LargeMessageDamaged, NativeError, WriterFailed

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.store.large_messages import LargeMessages
    from vespiary_broker.store.large_reader import LargeReader

_OPEN_AGAIN_S: Final = 0.5


class LargeStream:
    """One large message on its way to one consumer.

    Args:
        connection: The consumer's connection.
        cycle: What all connections share.
        store: The bodies.
        consumer: The consumer.
        given: The message.
        start: How it is sent.

    Attributes:
        waiting: What the connection has to send behind the frame.
        sent_bytes: What was given to the connection of it.
    """

    def __init__(
        self,
        connection: Connection,
        cycle: Cycle,
        store: LargeMessages,
        consumer: Consumer,
        given: LargeDelivery,
        start: LargeStart,
    ) -> None:
        self._start = start
        self.waiting = bytearray()
        self.sent_bytes = 0
        self._connection = connection
        self._cycle = cycle
        self._store = store
        self._consumer = consumer
        self._given = given
        self._is_cut = False
        self._room: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Send the message, then let the connection go on."""
        try:
            try:
                if self._cycle.engine.dispatcher.is_counting_ahead:
                    await self._cycle.durable()  # the count of its delivery
                if self._start.prepare is not None:
                    await self._start.prepare()
                reader = await self._open()
            except WriterFailed:
                return  # the journal has failed, and the connection ends with it
            except LargeMessageDamaged:
                self._give_back()
                return
            if reader is None:
                return
            try:
                await self._send(reader)
            except LargeMessageDamaged as error:
                self._warn("connection cut peer=%s reason=%r", error)
                self._connection.abort()
            finally:
                reader.close()
        finally:
            self._connection.stream_ended(self)

    async def _open(self) -> LargeReader | None:
        """Open the body, as soon as that can be done; None: the connection is gone."""
        while not self._is_cut:
            try:
                return await self._store.read(self._given.body)
            except NativeError as error:
                self._warn("a large message waits peer=%s reason=%r", error)
                await asyncio.sleep(_OPEN_AGAIN_S)
        return None

    def _warn(self, event: str, error: Exception) -> None:
        self._connection.note_line(event, str(error), level=logging.WARNING)

    async def _send(self, reader: LargeReader) -> None:
        while piece := await reader.next_piece():
            if self._is_cut:
                return
            self._transmit(piece)
            await self._wait_for_room()
        if self._is_cut:
            return
        if self._start.end or not self.sent_bytes:
            self._transmit(self._start.end)
        self._store.delivered(self._given.body.size_bytes)
        if self._start.is_done:
            await self._acknowledge()

    def _transmit(self, piece: bytes) -> None:
        data, total_bytes = piece, 0
        if not self.sent_bytes:
            start = self._start
            data = start.head + piece
            total_bytes = len(start.head) + self._given.body.size_bytes + len(start.end)
        self._connection.transmit(data, total_bytes=total_bytes)
        self.sent_bytes += len(data)

    async def _acknowledge(self) -> None:
        """Acknowledge for a consumer that does not: the message has left."""
        while self._consumer.is_open and self._consumer.view is None:
            try:
                self._cycle.core.acknowledge(self._consumer.handle, self._given.sequence)
            except NoRoom:
                await self._cycle.space()
                continue
            self._cycle.touch()
            return

    def _give_back(self) -> None:
        if self._consumer.is_open:
            if self._consumer.view is not None:
                self._consumer.view.acknowledge(self._given.sequence)  # there is no body to be had
            else:
                returns = self._cycle.engine.registry.returns
                returns.give_back(self._consumer, self._given.sequence)
            self._cycle.engine.dispatcher.poke(self._consumer.queue.id)

    async def _wait_for_room(self) -> None:
        while self._connection.is_write_paused and not self._is_cut:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def go_on(self) -> None:
        """Send more: the client has read."""
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def cut(self) -> None:
        """Send nothing more: the connection is gone."""
        self._is_cut = True
        self.go_on()
