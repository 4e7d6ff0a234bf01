"""One session: its windows, its links by handle, and the deliveries that are not settled.

Owns the numbers of transfers and deliveries both ways, and what waits for the client's window. Must
never know what a message is: links do. Called by `handler`, one frame after the other; owner: its
connection.

A refusal ends what it is about: `SessionRefused` the session, `ConnectionRefused` the connection,
any other error of a link's frame that link.

Source: AMQP 1.0 (OASIS, 2012) §2.5 and §2.6.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.server.amqp.attaching import attach
from vespiary_broker.server.amqp.conditions import (
    Condition,
    ConnectionRefused,
    SessionRefused,
    error_of,
    told,
)
from vespiary_broker.server.amqp.coordinating import CoordinatorLink
from vespiary_broker.server.amqp.links import Link
from vespiary_broker.server.amqp.outcomes import settle_outgoing
from vespiary_broker.server.amqp.receiving import IncomingLink
from vespiary_broker.server.amqp.sending import OutgoingLink
from vespiary_broker.server.amqp.transfers import serial_distance
from vespiary_broker.server.protocol_handler import Work
from vespiary_codec.wire.amqp import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Transfer,
    name_of,
)
from vespiary_codec.wire.amqp.values import UInt, UShort
from vespiary_spec.errors import VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.engine.core import LargeDelivery
    from vespiary_broker.engine.queues import Consumer
    from vespiary_broker.server.amqp.handler import AmqpHandler
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle

WINDOW_FRAMES: Final = 2048
"""Transfers that a client may send before it is told of more."""
_OUTGOING_WINDOW: Final = 2**31 - 1
_ID_MASK: Final = 2**32 - 1


class AmqpSession:
    """One session of a connection.

    Attributes:
        channel: Its channel, the same both ways.
        is_over: Whether both sides have ended it.
        unsettled: Deliveries to the client that are not settled, but for those that the core has
            sent and nobody has asked for (`take_over`): link and sequence, by id.
        senders: Its links by which the client receives, by the handle of their consumer.
        room_frames: Transfers that the client's window takes now.

    Args:
        handler: What it is part of.
        channel: Its channel.
        asked: The client's `begin`.
    """

    def __init__(self, handler: AmqpHandler, channel: int, asked: Begin) -> None:
        self.handler = handler
        self.connection: Connection = handler.connection
        self.cycle: Cycle = handler.cycle
        self.channel = channel
        self.is_over = False
        self.unsettled: dict[int, tuple[OutgoingLink, int]] = {}
        self.senders: dict[int, OutgoingLink] = {}
        self.room_frames = asked.incoming_window
        self._handle_max = min(asked.handle_max, handler.settings.handle_max)
        self._links: dict[int, Link] = {}
        self._names: dict[tuple[str, bool], Link] = {}
        self._is_ended = False
        self._next_incoming = asked.next_outgoing_id
        self._window_left = WINDOW_FRAMES
        self._core_window = 0  # transfers that the core may take
        self._is_core_told = False  # it knows the session
        self._next_outgoing = 0
        self._waiting: deque[bytes] = deque()
        self._room: asyncio.Future[None] | None = None
        self._taken: list[tuple[int, int, bool]] = []  # first and last of a run, and if settled

    def begin(self) -> None:
        """Answer the client's `begin`."""
        self.tell_room()
        answer = Begin(
            remote_channel=UShort(self.channel),
            next_outgoing_id=UInt(self._next_outgoing),
            incoming_window=UInt(WINDOW_FRAMES),
            outgoing_window=UInt(_OUTGOING_WINDOW),
            handle_max=UInt(self.handler.settings.handle_max),
        )
        self.send(answer)

    @property
    def consumers_count(self) -> int:
        """Consumers of its links."""
        return sum(isinstance(link, OutgoingLink) and link.is_open for link in self._links.values())

    def close(self, *, is_counted: bool) -> None:
        """Give back what its links hold.

        Args:
            is_counted: Whether that counts as delivered.
        """
        self._is_ended = True
        links, self._links = self._links, {}
        self._names.clear()
        self._waiting.clear()
        for link in links.values():
            link.close(is_counted=is_counted)
        self.unsettled.clear()
        self._is_core_told = False
        self.cycle.core.forget_amqp_session(self.connection.handle, self.channel)
        self._let_go_on()

    # --- frames -----------------------------------------------------------------------------------

    def take(self, body: Any, payload: bytes) -> Work:
        """Do what a frame asks for; what is returned is left to do.

        Raises:
            ConnectionRefused: The connection has to end.
        """
        if self._is_ended:
            if isinstance(body, End):
                self.is_over = True
            return None
        try:
            work = self._take(body, payload)
        except ConnectionRefused:
            raise
        except VespiaryError as error:
            self._end(error_of(error))
            return None
        return work if work is None else self._finish(work)

    async def _finish(self, work: Any) -> None:
        try:
            await work
        except ConnectionRefused:
            raise
        except VespiaryError as error:
            self._end(error_of(error))

    def _take(self, body: Any, payload: bytes) -> Work:
        match body:
            case Transfer():
                return self._transfer(body, payload)
            case Disposition():
                return self._disposition(body)
            case Flow():
                self._flow(body)
                return None
            case Attach():
                return self._attach(body)
            case Detach():
                return self._detach(body)
            case End():
                self.flush()
                self.close(is_counted=False)
                self.is_over = True
                self.handler.confirm(self.channel, End())
                return None
        raise ConnectionRefused(
            Condition.ILLEGAL_STATE, f"{name_of(body)} comes on channel {self.channel}"
        )

    def _end(self, error: Error) -> None:
        """End the session for what the client did wrong; it answers with an `end`."""
        if self._is_ended:
            return
        self.flush()
        self.close(is_counted=True)
        self.handler.confirm(self.channel, End(error=error))
        self.cycle.touch()

    # --- links ------------------------------------------------------------------------------------

    def _attach(self, asked: Attach) -> Work:
        if asked.handle > self._handle_max:
            raise ConnectionRefused(
                Condition.NOT_ALLOWED,
                f"a link has the handle {int(asked.handle)}",
                allowed=f"0 to {self._handle_max}",
            )
        if asked.handle in self._links:
            raise SessionRefused(
                Condition.HANDLE_IN_USE, f"the handle {int(asked.handle)} is in use"
            )
        before = self._names.get((asked.name, asked.role))
        if before is not None:
            before.detach_for(
                told(Condition.STOLEN, f"the link {asked.name[:100]!a} was attached again")
            )
        return self._run_attach(asked)

    async def _run_attach(self, asked: Attach) -> None:
        link = await attach(self, asked)
        if self._is_ended:
            link.close(is_counted=False)
            return
        self._links[asked.handle] = link
        self._names[asked.name, asked.role] = link
        link.attached()

    def _detach(self, asked: Detach) -> Work:
        link = self._links.pop(asked.handle, None)
        if link is None:
            raise _unattached(asked.handle)
        self.forget(link)
        if link.is_refused:
            return None  # it was told before
        self.flush()
        return link.detach(asked)

    def displace(self, consumer: Consumer, sentence: str) -> bool:
        """Detach the link of a consumer, if it has it: another link of its client took its place.

        Args:
            consumer: The consumer.
            sentence: What the client is told.
        """
        for link in self._links.values():
            if isinstance(link, OutgoingLink) and link.consumer is consumer:
                link.detach_for(told(Condition.STOLEN, sentence))
                return True
        return False

    def forget(self, link: Link) -> None:
        """Let the name of a link be used again that this side has detached."""
        key = (link.name, link.client_role)
        if self._names.get(key) is link:
            del self._names[key]

    def _flow(self, flow: Flow) -> None:
        base = 0 if flow.next_incoming_id is None else flow.next_incoming_id
        under_way = serial_distance(self._next_outgoing, base)
        was_closed = self.room_frames <= 0 or bool(self._waiting)
        self.room_frames = max(int(flow.incoming_window) - max(under_way, 0), 0)
        self._send_waiting()
        self.tell_room()
        if flow.handle is None:
            if flow.echo:
                self.send_flow()
        else:
            link = self._links.get(flow.handle)
            if link is None:
                raise _unattached(flow.handle)
            if not link.is_refused:
                link.flow(flow)
        if self.has_room:
            if was_closed:
                self._let_go_on()
                self._poke_links()
                self._refresh_links()  # else the others know: there may be very many
            self.cycle.touch()

    # --- transfers from the client ----------------------------------------------------------------

    def _transfer(self, transfer: Transfer, payload: bytes) -> Work:
        self._came(1)
        link = self._links.get(transfer.handle)
        if link is None:
            raise _unattached(transfer.handle)
        if link.is_refused:
            return None
        if not isinstance(link, IncomingLink | CoordinatorLink):
            raise SessionRefused(
                Condition.NOT_ALLOWED,
                f"a transfer comes on the link {link.name[:100]!a}, whose sender is the broker",
            )
        return link.transfer(transfer, payload)

    def _came(self, transfers: int) -> None:
        """Count transfers; give the client its window again when it has used half of it."""
        self._next_incoming = (self._next_incoming + transfers) & _ID_MASK
        self._window_left -= transfers
        if self._window_left < 0:
            raise SessionRefused(
                Condition.WINDOW_VIOLATION, f"more than {WINDOW_FRAMES} transfers came at once"
            )
        if self._window_left < WINDOW_FRAMES // 2:
            self._window_left = WINDOW_FRAMES
            self.send_flow()
        if self._is_core_told:
            self.tell_window()

    def tell_window(self) -> None:
        """Give the core the window, for links that it was taught."""
        if self._is_ended or self._window_left == self._core_window:
            return
        self._is_core_told = True
        self._core_window = self._window_left
        self.cycle.core.set_amqp_window(self.connection.handle, self.channel, self._core_window)

    def taken(self, handle: int, messages: int) -> None:
        """Count messages that the core has taken of one of its links."""
        self._core_window -= messages
        self._came(messages)
        link = self._links.get(handle)
        if isinstance(link, IncomingLink):
            link.taken(messages)

    def accepted(self, delivery_id: int, *, is_settled: bool) -> None:
        """Note a delivery that was taken; told when that is durable (`flush`).

        Args:
            delivery_id: Its id.
            is_settled: Whether it is settled with that.
        """
        taken = self._taken
        if taken:
            first, last, was_settled = taken[-1]
            if was_settled is is_settled and (last + 1) & _ID_MASK == delivery_id:
                taken[-1] = (first, delivery_id, is_settled)
                return
        taken.append((delivery_id, delivery_id, is_settled))

    def flush(self) -> None:
        """Tell of deliveries that were taken.

        Durability: the dispositions leave with the flush that covers what was staged before.
        """
        if not self._taken or self._is_ended:
            return
        taken, self._taken = self._taken, []
        for first, last, is_settled in taken:
            self.handler.confirm(
                self.channel,
                Disposition(
                    role=RECEIVER,
                    first=UInt(first),
                    last=UInt(last) if last != first else None,
                    settled=is_settled,
                    state=Accepted(),
                ),
            )

    def tell(self, delivery_id: int, state: object, *, is_durable: bool = False) -> None:
        """Tell the client what became of a delivery of its own, settled.

        Args:
            delivery_id: Its id.
            state: The outcome.
            is_durable: Whether it has to wait for what is staged.
        """
        body = Disposition(role=RECEIVER, first=UInt(delivery_id), settled=True, state=state)
        if is_durable and not self._is_ended:
            self.handler.confirm(self.channel, body)
        else:
            self.send(body)

    # --- transfers to the client ------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether a transfer would leave now."""
        return self.room_frames > 0 and not self._waiting and not self._is_ended

    def next_delivery(self) -> int:
        """Return the id of the next delivery."""
        return self.cycle.core.next_amqp_delivery(self.connection.handle, self.channel)

    def take_over(self, first: int, last: int) -> None:
        """Make deliveries that the core has sent be some of `unsettled`.

        Args:
            first: First id.
            last: Last id.
        """
        taken = self.cycle.core.take_amqp_sent(self.connection.handle, self.channel, first, last)
        for delivery_id, consumer, sequence in taken:
            link = self.senders[consumer]
            link.held[sequence] = delivery_id
            self.unsettled[delivery_id] = (link, sequence)

    def tell_room(self) -> None:
        """Tell the core how many transfers it may send."""
        if not self._is_ended:
            room = self.room_frames if self.has_room else 0
            self.cycle.core.set_amqp_room(self.connection.handle, self.channel, room)

    def encoded(self, frames: int) -> None:
        """Take note of transfers that the core has made, and has counted."""
        self.room_frames -= frames
        self._next_outgoing = (self._next_outgoing + frames) & _ID_MASK
        if not self.has_room:
            self._refresh_links()

    def pass_on(self, frames: list[bytes]) -> bytes:
        """Return what of some transfers leaves now; the rest waits for the client's window."""
        if self._waiting or len(frames) > self.room_frames:
            room = 0 if self._waiting else self.room_frames
            self._waiting.extend(frames[room:])
            frames = frames[:room]
        had_room = self.room_frames > 0
        self.room_frames -= len(frames)
        self._next_outgoing = (self._next_outgoing + len(frames)) & _ID_MASK
        self.tell_room()
        if had_room and not self.has_room:
            self._refresh_links()
        return b"".join(frames)

    def _refresh_links(self) -> None:
        for link in self._links.values():
            if isinstance(link, OutgoingLink):
                link.refresh()

    def _poke_links(self) -> None:
        """Serve the queues of links that may have waited for the client's window."""
        for link in self.senders.values():
            self.cycle.engine.dispatcher.poke(link.queue_id)

    async def wait_for_room(self) -> None:
        """Wait until the client's window takes a transfer, or the session has ended."""
        while not self.has_room and not self._is_ended:
            if self._room is None:
                self._room = self.cycle.loop.create_future()
            await asyncio.shield(self._room)

    def _let_go_on(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def _send_waiting(self) -> None:
        waiting = self._waiting
        if not waiting or self.room_frames <= 0:
            return
        frames = [waiting.popleft() for _ in range(min(len(waiting), self.room_frames))]
        self.room_frames -= len(frames)
        self._next_outgoing = (self._next_outgoing + len(frames)) & _ID_MASK
        data = b"".join(frames)
        if self.cycle.engine.dispatcher.is_counting_ahead:
            self.connection.confirm(data)
        else:
            self.connection.write(data)

    def stream(self, consumer: Consumer, given: LargeDelivery) -> bool:
        """Begin to send a large message of one of its links; False: it is none of them."""
        for link in self._links.values():
            if isinstance(link, OutgoingLink) and link.consumer is consumer:
                link.stream(given)
                return True
        return False

    def _disposition(self, asked: Disposition) -> Work:
        if asked.role is SENDER:
            for link in self._links.values():
                if isinstance(link, IncomingLink):
                    link.settled(asked)
            return None
        return settle_outgoing(self, asked)

    # --- what links use ---------------------------------------------------------------------------

    def send(self, body: object) -> None:
        """Send a frame; nothing is sent behind an end."""
        if not self._is_ended:
            self.handler.send(self.channel, body)

    def send_flow(self, **of_link: Any) -> None:
        """Send a flow: of the session, or of a link as well."""
        self.send(
            Flow(
                next_incoming_id=UInt(self._next_incoming),
                incoming_window=UInt(self._window_left),
                next_outgoing_id=UInt(self._next_outgoing),
                outgoing_window=UInt(_OUTGOING_WINDOW),
                **of_link,
            )
        )


def _unattached(handle: int) -> SessionRefused:
    return SessionRefused(Condition.UNATTACHED_HANDLE, f"no link has the handle {int(handle)}")
