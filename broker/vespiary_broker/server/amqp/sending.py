"""Links by which clients receive: credit, transfers, drain, and what a link holds.

Owns the credit of a link and the deliveries on it that are not settled. Must never decide who gets
a message: that is `engine.dispatch`, which is told of credit through the core, so a link is never
given a message that it has no credit for. Called by `session` and, with messages, by
`engine.outflow`; owner: its connection.

The core encodes what is plain by itself (`encode_amqp`), and takes what is accepted of that: of
these deliveries nothing is known here but how many there were, until somebody asks
(`AmqpSession.take_over`).

Source: AMQP 1.0 (OASIS, 2012) §2.6.7 and §2.6.9.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import AmqpEncoding, LargeDelivery, NoRoom
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.subscriptions import close_subscription
from vespiary_broker.engine.views import HELD_MAX
from vespiary_broker.server.amqp.conditions import error_of
from vespiary_broker.server.amqp.fitting import TooLarge, size_of
from vespiary_broker.server.amqp.large_sending import LargeSending
from vespiary_broker.server.amqp.links import Link
from vespiary_broker.server.amqp.restoring import payload_of
from vespiary_broker.server.amqp.transfers import HEAD_BYTES_MAX, serial_distance, transfer_frames
from vespiary_broker.server.protocol_handler import Work
from vespiary_codec.stored_message import read_stored
from vespiary_codec.wire.amqp import Accepted, Attach, Detach, Error, Flow, Released
from vespiary_codec.wire.amqp.composites import made_of
from vespiary_codec.wire.amqp.values import UInt
from vespiary_spec.errors import VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.receivers import Identity
    from vespiary_broker.server.amqp.session import AmqpSession

_DRAIN_LOOK_S: Final = 0.01
_DRAIN_LOOKS_MAX: Final = 100
"""Looks of a drain at a queue that seems to have something and gives nothing: then it is over."""
_PRE_SETTLED: Final = 1
_TAG_BYTES: Final = 8


class OutgoingLink(Link):
    """A link by which a client receives.

    Attributes:
        consumer: Its consumer; None until `begin`.
        identity: What it is known by among all connections (`Receivers`); None: it is not.
        held: Ids of the deliveries that are not settled, by the message's sequence; the core's are
            not among them.
        credit: Messages that the client takes now.
        is_pre_settled: Whether deliveries are settled as they leave.
        on_detached: Deletes what goes with a link that is closed; None: nothing does.
        node: A queue that was made for it and goes with it; None: there is none.
        answer: What is answered to the attach.
        default_outcome: What settling without an outcome means.

    Args:
        session: Its session.
        asked: The client's `attach`.
        answer: What is answered.
    """

    def __init__(self, session: AmqpSession, asked: Attach, answer: Attach) -> None:
        super().__init__(session, asked)
        self.consumer: Consumer | None = None
        self.identity: Identity | None = None
        self.held: dict[int, int] = {}
        self.credit = 0
        self.is_pre_settled = asked.snd_settle_mode == _PRE_SETTLED
        self.on_detached: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.node: Queue | None = None
        self.answer = answer
        self.default_outcome: Any = answer.source.default_outcome or Released()
        self._count = 0
        self._limit = -1
        self._sent: list[int] = []  # pre-settled, and there was no room to acknowledge them
        self._too_large = TooLarge(int(asked.max_message_size or 0))
        self._large: LargeSending | None = None
        self._is_linked = False  # the core knows it, and counts its credit
        self._is_draining = False
        self._drain_looks = 0

    def begin(self, consumer: Consumer, unsettled: dict[Any, Any]) -> None:
        """Take its consumer: nothing is given to it before there is credit.

        Args:
            consumer: The consumer.
            unsettled: Deliveries that the client has from before: states by tag.
        """
        self.consumer = consumer
        consumer.client_credit = lambda: self.credit
        self.is_open = True
        self._recover(unsettled)
        if consumer.view is None:
            self._encode_by_core(consumer)
        self.refresh()

    def _encode_by_core(self, consumer: Consumer) -> None:
        """Have the core encode what it can; the rest comes to `encode`."""
        cycle, self._is_linked = self.session.cycle, True
        self.session.senders[consumer.handle] = self
        consumer.on_encoded = self._encoded
        cycle.annotations.watch(consumer.queue.id, self._choose_encoding)
        self._choose_encoding()
        most = self.session.handler.settings.max_unsettled
        consumer.credit = most
        cycle.core.set_credit(consumer.handle, most)

    def _choose_encoding(self) -> None:
        """Let the core encode, unless messages of the queue have annotations it does not know."""
        session, consumer = self.session, self.consumer
        if consumer is None or not consumer.is_open:
            return
        is_stored = session.cycle.annotations.has_any_in(consumer.queue.id)
        frame_bytes = session.handler.frame_bytes
        most = self._too_large.size_bytes_max
        if most:
            # What is larger than the client takes is not plain for the core, and comes to `encode`.
            frame_bytes = min(frame_bytes, most + HEAD_BYTES_MAX)
        session.cycle.core.encode_amqp(
            consumer.handle,
            AmqpEncoding(
                session.channel,
                self.handle,
                frame_bytes,
                self.is_pre_settled,
                is_stored,
            ),
        )
        consumer.is_core_encoding = not is_stored
        consumer.is_core_settling = self.is_pre_settled and not is_stored

    def _encoded(self, count: int) -> None:
        """Take note of messages that the core has made transfers of, and has counted."""
        self.credit -= count
        self._count = (self._count + count) % 2**32
        self._drain_looks = 0
        self.session.encoded(count)

    def _recover(self, unsettled: dict[Any, Any]) -> None:
        """Acknowledge what the client had accepted before its link was cut off, and not told.

        All else that it held is given out again. Tags are sequences.

        Args:
            unsettled: Its deliveries that are not settled: states by tag.

        Durability: none by itself; what is lost again with a crash is given out again.
        """
        consumer = self.consumer
        if consumer is None or consumer.view is not None:
            return
        core = self.session.cycle.core
        for tag, state in unsettled.items():
            is_ours = isinstance(tag, bytes) and len(tag) == _TAG_BYTES
            if not is_ours or not isinstance(made_of(state), Accepted):
                continue
            sequence = int.from_bytes(tag, "big")
            core.set_credit(consumer.handle, 1)
            if not core.give(consumer.handle, [sequence], 1)[1]:
                continue  # it went, or somebody else has it
            try:
                core.acknowledge(consumer.handle, sequence)
            except NoRoom:
                self.session.cycle.engine.registry.returns.release(consumer, sequence)
                break  # it comes again, as do those behind it

    def attached(self) -> None:
        """Answer the client's attach."""
        self.session.send(self.answer)

    @property
    def queue_id(self) -> int:
        """Number of its queue; 0 without one."""
        return 0 if self.consumer is None else self.consumer.queue.id

    # --- credit -----------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Tell the core how many messages the link takes; a view, how many it may hold."""
        consumer = self.consumer
        if consumer is None or not consumer.is_open:
            return
        if self._is_linked:
            credit = 0 if self._is_busy else self.credit
            self.session.cycle.core.set_amqp_link_credit(consumer.handle, credit)
        if consumer.view is None:
            return
        room = 0
        if self.session.has_room and not self._is_busy:
            most = self.session.handler.settings.max_unsettled
            room = min(self.credit, most - len(self.held), self.session.room_frames)
            room = max(room, 0)
        limit = len(self.held) + len(self._sent) + room
        if limit == self._limit:
            return
        self._limit = consumer.credit = limit
        consumer.view.credit = min(limit, HELD_MAX)

    @property
    def _is_busy(self) -> bool:
        """Whether the link is given nothing more until it has done with what it was given."""
        return self._large is not None or self._too_large.is_busy

    def flow(self, flow: Flow) -> None:
        """Take the client's credit."""
        self._take_credit(flow)
        self._serve()
        if self._is_draining:
            self.session.cycle.loop.call_soon(self._look_drained)
        elif flow.echo:
            self._send_flow()

    def _take_credit(self, flow: Flow) -> None:
        if flow.link_credit is not None:
            base = self._count if flow.delivery_count is None else int(flow.delivery_count)
            ahead = serial_distance(self._count, base)
            self.credit = max(int(flow.link_credit) - max(ahead, 0), 0)
            self._is_draining = flow.drain
            self._drain_looks = 0

    def _serve(self) -> None:
        consumer = self.consumer
        if consumer is None or not consumer.is_open:
            return
        self.refresh()
        self.session.cycle.engine.dispatcher.poke(consumer.queue.id)
        self.session.cycle.touch()

    def _send_flow(self, *, is_drained: bool = False) -> None:
        self.session.send_flow(
            handle=UInt(self.handle),
            delivery_count=UInt(self._count),
            link_credit=UInt(self.credit),
            available=UInt(min(self._available(), 2**32 - 1)),
            drain=is_drained,
        )

    def _available(self) -> int:
        if self.consumer is None or not self.consumer.is_open:
            return 0
        return self.session.cycle.core.queue_statistics(self.queue_id).ready

    # --- drain ------------------------------------------------------------------------------------

    def _look_drained(self) -> None:
        """End a drain if nothing more is there; runs behind the dispatch that it has asked for."""
        consumer = self.consumer
        if not self._is_draining or consumer is None or not consumer.is_open:
            return
        cycle = self.session.cycle
        is_waiting = self.session.has_room and not self._is_busy and self._has_more(consumer)
        if self.credit and (is_waiting or self._is_busy or not self.session.has_room):
            self._drain_looks += is_waiting
            if self._drain_looks <= _DRAIN_LOOKS_MAX:
                cycle.engine.dispatcher.poke(consumer.queue.id)
                cycle.touch()
                cycle.loop.call_later(_DRAIN_LOOK_S, self._look_drained)
                return
        self._end_drain()

    def _end_drain(self) -> None:
        """Use up the credit that nothing came for, and say so."""
        self._is_draining = False
        self._count = (self._count + self.credit) % 2**32
        self.credit = 0
        self.refresh()
        self._send_flow(is_drained=True)

    def _has_more(self, consumer: Consumer) -> bool:
        """Whether a queue may have something for its consumer."""
        queue = consumer.queue
        statistics = self.session.cycle.core.queue_statistics(queue.id)
        if queue.is_held:
            return False
        if consumer.view is not None:
            return bool(consumer.view.behind) or consumer.view.cursor < statistics.available
        if queue.examined is not None:
            return queue.examined.has_unlooked or bool(queue.examined.waiting(consumer))
        return statistics.ready > 0 or statistics.paged > 0

    # --- messages ---------------------------------------------------------------------------------

    def encode(self, data: bytes) -> bytes:
        """Return the transfers of messages, as far as the client's window takes them."""
        session, consumer = self.session, self.consumer
        assert consumer is not None
        handler = session.handler
        now_ms = session.cycle.engine.fates.clock_ms()
        queue_id = consumer.queue.id
        changed = session.cycle.annotations
        frames: list[bytes] = []
        prefixes = handler.prefixes
        for message in read_stored(data):
            added = changed.of((queue_id, message.sequence))
            payload = payload_of(message, queue_id, now_ms, added, prefixes=prefixes)
            if self._too_large.is_one(len(payload)):
                self._too_large.pass_over(self, message.sequence, len(payload))
                continue
            frames += transfer_frames(
                session.channel,
                self.handle,
                self.given(message.sequence),
                message.sequence.to_bytes(_TAG_BYTES, "big"),
                payload,
                handler.frame_bytes,
                is_settled=self.is_pre_settled,
            )
        if self.is_pre_settled:
            self._acknowledge_sent()
        self._drain_looks = 0
        self.refresh()
        return session.pass_on(frames)

    def given(self, sequence: int) -> int:
        """Note a message that the link was given; return the id of its delivery."""
        delivery_id = self.session.next_delivery()
        self.credit = max(self.credit - 1, 0)
        self._count = (self._count + 1) % 2**32
        if self.is_pre_settled:
            self._sent.append(sequence)
        else:
            self.held[sequence] = delivery_id
            self.session.unsettled[delivery_id] = (self, sequence)
        return delivery_id

    def _acknowledge_sent(self) -> None:
        """Acknowledge what the client will not: it was settled as it left."""
        try:
            self._try_acknowledge()
        except NoRoom:
            self.session.cycle.spawn(self._acknowledge_later())

    def _try_acknowledge(self) -> None:
        consumer, sent = self.consumer, self._sent
        assert consumer is not None
        while sent:
            if consumer.view is not None:
                consumer.view.acknowledge(sent[0])
            elif consumer.is_open:
                self.session.cycle.core.acknowledge(consumer.handle, sent[0])
            del sent[0]

    async def _acknowledge_later(self) -> None:
        consumer = self.consumer
        while self._sent and consumer is not None and consumer.is_open:
            await self.session.cycle.space()
            if not consumer.is_open:
                return
            try:
                self._try_acknowledge()
            except NoRoom:
                continue
            self.refresh()

    # --- large messages ---------------------------------------------------------------------------

    def stream(self, given: LargeDelivery) -> None:
        """Send a large message; the link is given nothing else meanwhile."""
        if self._too_large.size_bytes_max:
            (message,) = read_stored(given.head)
            now_ms = self.session.cycle.engine.fates.clock_ms()
            prefixes = self.session.handler.prefixes
            size_bytes = size_of(message, self.queue_id, now_ms, given.body.size_bytes, prefixes)
            if self._too_large.is_one(size_bytes):
                self._too_large.pass_over(self, given.sequence, size_bytes)
                self.refresh()
                return
        self._large = LargeSending(self, given)
        self.refresh()
        self.session.cycle.spawn(self._large.run())

    def stream_ended(self, *, is_sent: bool) -> None:
        """Go on behind a large message."""
        self._large = None
        if is_sent and self.is_open and self.is_pre_settled:
            self._acknowledge_sent()
        self.go_on()

    def go_on(self) -> None:
        """Be given messages again, behind one that was not given as others are."""
        self.session.tell_room()
        if self.is_open:
            self._serve()

    # --- what was settled -------------------------------------------------------------------------

    def settled(self, sequence: int) -> None:
        """Forget a delivery that was settled."""
        self.held.pop(sequence, None)
        self.refresh()

    # --- the end ----------------------------------------------------------------------------------

    def detach(self, asked: Detach) -> Work:
        """End it; with `closed` what is the link's own goes as well."""
        self.close(is_counted=False)
        if asked.closed and self.on_detached is not None:
            return self._delete()
        self.confirm_detached(is_closed=asked.closed)
        return None

    async def _delete(self) -> None:
        assert self.on_detached is not None
        error: Error | None = None
        try:
            await self.on_detached()
        except VespiaryError as refusal:
            error = error_of(refusal)
        self.confirm_detached(is_closed=True, error=error)

    def close(self, *, is_counted: bool) -> None:
        """Close its consumer: what it holds goes back."""
        consumer = self.consumer
        if consumer is None or not self.is_open:
            return
        self.is_open = False
        self.session.cycle.receivers.leave(self)
        if self._large is not None:
            self._large.cut()
        session = self.session
        for delivery_id in self.held.values():
            session.unsettled.pop(delivery_id, None)
        self.held.clear()
        if session.senders.get(consumer.handle) is self:
            del session.senders[consumer.handle]
        cycle, queue = session.cycle, consumer.queue
        cycle.annotations.unwatch(queue.id, self._choose_encoding)
        close_subscription(cycle.core, cycle.engine.registry, consumer, counted=is_counted)
        if queue.consumers:
            cycle.engine.dispatcher.poke(queue.id)
        self._drop_node()
        cycle.touch()

    def _drop_node(self) -> None:
        node, self.node = self.node, None
        if node is not None:
            self.session.handler.drop_node(node)
