"""A large message on its way out in transfers, as fast as the client reads and its window allows.

Owns the pieces of one body. Must never hold more than one of them; frames of other links go
between its own. Runs as a task of its connection, one at a time for a link; called by `sending`.

A body that turns out to be damaged before anything of it was sent goes back to its queue, and from
there to the quarantine. Later the delivery is aborted by ending the connection: the last piece is
sent only if the checksum of the whole body is right.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import LargeDelivery
from vespiary_broker.server.amqp.restoring import head_of, tail_of
from vespiary_broker.server.amqp.transfers import HEAD_BYTES_MAX, transfer_frame
from vespiary_codec.stored_message import read_stored
from vespiary_spec.errors import LargeMessageDamaged, NativeError, WriterFailed

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.sending import OutgoingLink
    from vespiary_broker.store.large_reader import LargeReader

_OPEN_AGAIN_S: Final = 0.5


class LargeSending:
    """One large message on its way to the client of a link.

    Args:
        link: The link.
        given: The message.
    """

    def __init__(self, link: OutgoingLink, given: LargeDelivery) -> None:
        self._link = link
        self._session = link.session
        self._given = given
        self._is_cut = False
        (self._message,) = read_stored(given.head)

    def cut(self) -> None:
        """Send nothing more."""
        self._is_cut = True

    async def run(self) -> None:
        """Send the message, then let the link go on."""
        cycle, is_sent = self._session.cycle, False
        try:
            if cycle.engine.dispatcher.is_counting_ahead:
                await cycle.durable()  # the count of its delivery
            reader = await self._open()
            if reader is None:
                return
            try:
                is_sent = await self._send(reader)
            except LargeMessageDamaged as error:
                self._warn("connection cut peer=%s reason=%r", error)
                self._session.connection.abort()
            finally:
                reader.close()
        except WriterFailed:
            return  # the journal has failed, and the connection ends with it
        except LargeMessageDamaged:
            self._give_back()
        finally:
            self._link.stream_ended(is_sent=is_sent)

    async def _open(self) -> LargeReader | None:
        store = self._session.cycle.large
        assert store is not None
        while not self._is_cut:
            try:
                return await store.read(self._given.body)
            except NativeError as error:
                self._warn("a large message waits peer=%s reason=%r", error)
                await asyncio.sleep(_OPEN_AGAIN_S)
        return None

    def _warn(self, event: str, error: Exception) -> None:
        self._session.connection.note_line(event, str(error), level=logging.WARNING)

    async def _send(self, reader: LargeReader) -> bool:
        """Send all pieces; return whether the message is out."""
        link, session = self._link, self._session
        now_ms = session.cycle.engine.fates.clock_ms()
        head = head_of(
            self._message,
            link.queue_id,
            now_ms,
            self._given.body.size_bytes,
            prefixes=session.handler.prefixes,
        )
        piece = head + await reader.next_piece()
        if self._is_cut:
            return False  # a delivery that has an id has to be sent
        delivery_id = link.given(self._message.sequence)
        while not self._is_cut:
            following = await reader.next_piece()
            if not following:
                break
            await self._transmit(delivery_id, piece, is_last=False)
            piece = following
        if self._is_cut:
            return False
        await self._transmit(delivery_id, piece + tail_of(self._message), is_last=True)
        store = session.cycle.large
        assert store is not None
        store.delivered(self._given.body.size_bytes)
        return not self._is_cut

    async def _transmit(self, delivery_id: int, piece: bytes, *, is_last: bool) -> None:
        link, session = self._link, self._session
        tag = self._message.sequence.to_bytes(8, "big")
        size = session.handler.frame_bytes - HEAD_BYTES_MAX
        view = memoryview(piece)
        for at in range(0, max(len(piece), 1), size):
            await session.wait_for_room()
            await session.connection.writable()
            if self._is_cut:
                return
            frame = transfer_frame(
                session.channel,
                link.handle,
                delivery_id,
                tag,
                view[at : at + size],
                is_settled=link.is_pre_settled,
                is_more=not (is_last and at + size >= len(piece)),
            )
            session.connection.write(session.pass_on([frame]))

    def _give_back(self) -> None:
        consumer, sequence = self._link.consumer, self._given.sequence
        if consumer is None or not consumer.is_open:
            return
        engine = self._session.cycle.engine
        if consumer.view is not None:
            consumer.view.acknowledge(sequence)  # there is no body to be had
        else:
            engine.registry.returns.give_back(consumer, sequence)
        engine.dispatcher.poke(consumer.queue.id)
