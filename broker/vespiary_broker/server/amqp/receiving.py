"""Links by which clients send: credit, transfers, and what becomes of each delivery.

Owns the credit of a link and the deliveries that are under way on it. Must never say `accepted`
before what it says is durable: `session.flush` does. Called by `session`; owner: its connection.

Credit is filled up as it is used (`amqp-credits`, `amqp-low-credits`), and withheld while the
address is full and its policy has senders wait. What was sent by credit given before is taken.

A message that cannot be taken is rejected with the reason; one that its sender has settled cannot
be, so the link is detached.

Source: AMQP 1.0 (OASIS, 2012) §2.6.7, §2.6.12 and §3.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.address_memory import AddressState
from vespiary_broker.engine.core import AmqpLesson
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.transactions import Outgoing, refer_to
from vespiary_broker.server.amqp.assembling import Delivery
from vespiary_broker.server.amqp.conditions import Condition, Refused, error_of
from vespiary_broker.server.amqp.links import Link
from vespiary_broker.server.amqp.storing import Repeats, Taken
from vespiary_broker.server.amqp.teaching import Lessons
from vespiary_broker.server.amqp.terminus import jms_kind
from vespiary_broker.server.amqp.transfers import serial_distance
from vespiary_broker.server.message_sender import Outcome, Sent
from vespiary_broker.server.protocol_handler import Work
from vespiary_codec.wire.amqp import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    Flow,
    Rejected,
    Released,
    TransactionalState,
    Transfer,
)
from vespiary_codec.wire.amqp.values import UInt
from vespiary_spec.errors import AddressFull, VespiaryError

if TYPE_CHECKING:
    from vespiary_broker.engine.queues import Queue
    from vespiary_broker.server.amqp.session import AmqpSession

LENGTH_BYTES_MAX: Final = 4
"""Bytes that say how long the value of a body is."""


class IncomingLink(Link):
    """A link by which a client sends.

    Args:
        session: Its session.
        asked: The client's `attach`.
        destination: Where its messages go; None: each says that (the anonymous relay).
        text: The same, as messages are stored with it.
        answer: What is answered to the attach.
        node: A queue that was made for it and goes with it; None: there is none.
    """

    def __init__(
        self,
        session: AmqpSession,
        asked: Attach,
        destination: Destination | None,
        text: str,
        answer: Attach,
        node: Queue | None = None,
    ) -> None:
        super().__init__(session, asked)
        self._destination = destination
        self._text = text
        self._answer = answer
        self._node = node
        self._publisher = session.handler.publisher
        self._credits = session.handler.settings.amqp_credits
        self._low = min(session.handler.settings.amqp_low_credits, self._credits - 1)
        self._credit = 0
        self._count = int(asked.initial_delivery_count or 0)
        self._delivery: Delivery | None = None
        self._repeats = Repeats(session.handler.limits)
        self._second: dict[int, bytes] = {}  # accepted, by id; the sender settles them
        self._lessons = Lessons(session.handler.limits)
        self._is_taught = False  # the core knows the link
        self._core_credit = 0  # and may take so many messages
        self._is_waiting = False
        self.is_open = True

    def attached(self) -> None:
        """Answer, and give credit."""
        self.session.send(self._answer)
        self._fill_up()

    # --- credit -----------------------------------------------------------------------------------

    def _fill_up(self) -> None:
        """Give credit, unless the address is full."""
        if self._is_waiting or not self.is_open or self._credit > self._low:
            return
        if len(self._second) >= self.session.handler.settings.max_unsettled:
            return  # its sender has to settle some first
        state = self._full_state()
        if state is not None:
            self._is_waiting = True
            self.session.cycle.spawn(self._wait(state))
        else:
            self._credit = self._credits
            self._send_credit()
        self._tell_core()

    def _full_state(self) -> AddressState | None:
        if self._destination is None:
            return None
        try:
            return self._publisher.full_state(self._destination)
        except AddressFull:
            return None  # each message is refused by itself, with the reason

    async def _wait(self, state: AddressState) -> None:
        """Give credit when the address has room."""
        cycle = self.session.cycle
        cycle.touch()
        await cycle.producers.wait(state, self)
        self._is_waiting = False
        self._fill_up()

    def _send_credit(self, *, is_drained: bool = False) -> None:
        self.session.send_flow(
            handle=UInt(self.handle),
            delivery_count=UInt(self._count),
            link_credit=UInt(self._credit),
            drain=is_drained,
        )

    def flow(self, flow: Flow) -> None:
        """Tell of the credit, if the client asks."""
        if flow.echo:
            self._send_credit()

    # --- the core's part --------------------------------------------------------------------------

    def _teach(self, lesson: AmqpLesson) -> None:
        """Have the core take messages like one that was sent, if all of them are taken at once."""
        handler = self.session.handler
        if self.asked.rcv_settle_mode == 1:
            return
        most = len(lesson.key) + LENGTH_BYTES_MAX + handler.listener.scanned_payload_bytes
        if min(most, handler.limits.frame_bytes) > handler.settings.max_message_size:
            return  # a message may be too large for the link, and is not seen to be
        core, connection = self.session.cycle.core, self.session.connection
        if core.teach_amqp(connection.handle, self.session.channel, self.handle, lesson):
            self._is_taught = True
            self.session.tell_window()

    def _tell_core(self) -> None:
        """Give the core the credit of the link, or none while Python has to see each transfer."""
        if not self._is_taught:
            return
        is_plain = self.is_open and self._delivery is None and not self._is_waiting
        credit = self._credit if is_plain else 0
        if credit != self._core_credit:
            self._core_credit = credit
            self.session.cycle.core.set_amqp_credit(
                self.session.connection.handle,
                self.session.channel,
                self.handle,
                credit,
                settled=self.asked.snd_settle_mode == 1,
            )

    def taken(self, messages: int) -> None:
        """Count messages that the core has taken."""
        self._core_credit -= messages
        self._credit -= messages
        self._count = (self._count + messages) % 2**32
        self._used()

    # --- transfers --------------------------------------------------------------------------------

    def transfer(self, transfer: Transfer, payload: bytes) -> Work:
        """Take a transfer; what is returned is left to do."""
        try:
            return self._take(transfer, payload)
        except VespiaryError as error:
            self._drop_delivery()
            self.refuse(error)
            return None
        finally:
            self._tell_core()

    def _take(self, transfer: Transfer, payload: bytes) -> Work:
        delivery = self._delivery
        if delivery is None:
            delivery = self._delivery = self._begin(transfer)
        elif transfer.delivery_id not in (None, delivery.id):
            raise Refused(
                Condition.NOT_ALLOWED, "another delivery begins before the one before it has ended"
            )
        if transfer.aborted:
            self._drop_delivery()
            self._used()
            return None
        try:
            delivery.add(transfer, payload)
        except VespiaryError as error:
            self._drop_delivery()
            if delivery.is_settled or transfer.more:
                raise
            self._reject(delivery, error)
            self._used()
            return None
        writer = delivery.writer
        if transfer.more:
            if writer is not None and writer.is_full:
                connection = self.session.connection
                writer.on_room = lambda: connection.hold_reading(held=False)
                connection.hold_reading(held=True)
            return None
        self._delivery = None
        return self._complete(delivery)

    def _begin(self, transfer: Transfer) -> Delivery:
        if transfer.delivery_id is None or transfer.delivery_tag is None:
            raise Refused(Condition.INVALID_FIELD, "a delivery begins without an id, or a tag")
        if len(transfer.delivery_tag) > 32:
            raise Refused(
                Condition.INVALID_FIELD,
                "the tag of a delivery is too long",
                measured=f"{len(transfer.delivery_tag)} bytes",
                allowed="at most 32",
            )
        if self._credit <= 0:
            raise Refused(
                Condition.TRANSFER_LIMIT_EXCEEDED, "a delivery comes for which there is no credit"
            )
        self._credit -= 1
        self._count = (self._count + 1) % 2**32
        handler = self.session.handler
        delivery = Delivery(
            transfer,
            handler.limits,
            self._repeats,
            handler.settings.max_message_size,
            handler.listener.large,
            handler.cycle.large,
        )
        if self.asked.snd_settle_mode == 1:
            delivery.is_settled = True
        if transfer.rcv_settle_mode is None:
            delivery.is_second = self.asked.rcv_settle_mode == 1
        return delivery

    def _complete(self, delivery: Delivery) -> Work:
        """Send the message of a delivery that has come whole."""
        work: Work = None
        try:
            taken = delivery.message()
            message = self._outgoing(taken)
            if delivery.writer is not None or self._is_large(message):
                work = self._send_large(delivery, message)
            elif isinstance(delivery.state, TransactionalState):
                self._add_member(delivery, message)
            elif (sent := self._publisher.try_send(message, delivery.stage)) is not None:
                is_accepted = self._conclude(delivery, message, sent)
                if sent.target is not None and is_accepted:
                    self._lessons.note(delivery.key, taken, message, sent.target, self._teach)
            else:
                work = self._send_later(delivery, message)
        except VespiaryError as error:
            delivery.drop()
            self._fail(delivery, error)
        if work is None:
            self._used()
        return work

    def _outgoing(self, taken: Taken) -> Outgoing:
        if self._destination is not None:
            return self._publisher.outgoing(taken, self._destination, self._text)
        text = taken.properties.to
        if not text:
            raise Refused(
                Condition.PRECONDITION_FAILED,
                "the message says not where it goes",
                cure="set `to` in its properties, or give the link a target address",
            )
        kind = taken.annotations.get("x-opt-jms-dest")
        handler = self.session.handler
        destination = handler.destination_of(text, jms_kind(kind))
        return self._publisher.outgoing(taken, destination, handler.own_form(text))

    def _is_large(self, message: Outgoing) -> bool:
        large = self.session.handler.listener.large
        if large is None or self.session.cycle.large is None:
            return False
        return large.is_large(len(message.body), message.size_bytes)

    async def _send_later(self, delivery: Delivery, message: Outgoing) -> None:
        try:
            sent = await self._publisher.send_later(
                message, delivery.stage, is_in_flight=self._destination is not None
            )
        except VespiaryError as error:
            self._fail(delivery, error)
        else:
            self._conclude(delivery, message, sent)
        self._used()

    async def _send_large(self, delivery: Delivery, message: Outgoing) -> None:
        """Send a message whose body is, or goes, to a file.

        Durability: the body is flushed before its reference is staged.
        """
        handler = self.session.handler
        store = handler.cycle.large
        assert store is not None
        writer = delivery.writer
        if writer is None:
            writer = store.begin()
            writer.put(message.body)
        disk = handler.cycle.engine.full_disk
        writer.on_room = lambda: handler.connection.hold_reading(held=False)
        writer.on_full = lambda full: disk.is_dropped(message.destination.address, full)
        handler.storing.add(writer)
        try:
            body = await writer.finish(is_persistent=message.is_persistent)
        except VespiaryError as error:
            self._fail(delivery, error)
            self._used()
            return
        finally:
            handler.storing.discard(writer)
        if body is None:
            if writer.is_dropped:
                self._accept(delivery)
            self._used()
            return
        is_taken = False
        try:
            large = refer_to(message, body)
            if isinstance(delivery.state, TransactionalState):
                if self.session.connection.is_open:
                    self._add_member(delivery, large)
                    is_taken = True
            else:
                sent = await self._publisher.send_later(
                    large, delivery.stage, is_in_flight=self._destination is not None
                )
                is_taken = sent.outcome is Outcome.SENT
                self._conclude(delivery, large, sent)
        except VespiaryError as error:
            self._fail(delivery, error)
        finally:
            if not is_taken:
                store.remove([body.large_id])
        self._used()

    # --- outcomes ---------------------------------------------------------------------------------

    def _conclude(self, delivery: Delivery, message: Outgoing, sent: Sent) -> bool:
        """Tell what became of a message that was not refused; return whether it was accepted."""
        if sent.outcome is not Outcome.SENT and not self.session.connection.is_open:
            return False
        if not self._publisher.is_released(message, sent):
            self._accept(delivery)
            return True
        if not delivery.is_settled:
            self._release(delivery)
        return False

    def _release(self, delivery: Delivery) -> None:
        """Tell that no queue accepted a message, so its sender may send it elsewhere, or again."""
        self.session.tell(delivery.id, Released())

    def _accept(self, delivery: Delivery) -> None:
        """Tell that a message was taken, once it is durable."""
        if delivery.is_settled:
            return
        if delivery.is_second:
            self._second[delivery.id] = delivery.tag
        self.session.accepted(delivery.id, is_settled=not delivery.is_second)

    def _add_member(self, delivery: Delivery, message: Outgoing) -> None:
        """Put a message into its transaction; that alone confirms nothing."""
        state = delivery.state
        self.session.handler.transactions.add(state.txn_id, message)
        if not delivery.is_settled:
            outcome = TransactionalState(txn_id=state.txn_id, outcome=Accepted())
            self.session.tell(delivery.id, outcome)

    def _fail(self, delivery: Delivery, error: VespiaryError) -> None:
        """Tell that a message was not taken."""
        if delivery.is_settled:
            self.refuse(error)
        else:
            self._reject(delivery, error)

    def _reject(self, delivery: Delivery, error: VespiaryError) -> None:
        outcome: Any = Rejected(error=error_of(error))
        self.session.cycle.count_error(type(error).__name__)
        if isinstance(delivery.state, TransactionalState):
            self.session.handler.transactions.doom(delivery.state.txn_id)
            outcome = TransactionalState(txn_id=delivery.state.txn_id, outcome=outcome)
        self.session.tell(delivery.id, outcome)

    def settled(self, asked: Disposition) -> None:
        """Forget deliveries that the sender has settled."""
        if not asked.settled or not self._second:
            return
        last = asked.first if asked.last is None else asked.last
        reach = serial_distance(int(last), int(asked.first))
        done = [one for one in self._second if 0 <= serial_distance(one, int(asked.first)) <= reach]
        for one in done:
            self._settle(one, self._second.pop(one))
        self._used()

    def _settle(self, delivery_id: int, tag: bytes) -> None:
        """Take note that the sender has settled a delivery."""

    def _used(self) -> None:
        if self._credit <= self._low and not self.is_refused:
            self._fill_up()
        self._tell_core()

    # --- the end ----------------------------------------------------------------------------------

    def _drop_delivery(self) -> None:
        delivery, self._delivery = self._delivery, None
        if delivery is not None:
            delivery.drop()
            if delivery.writer is not None:
                self.session.connection.hold_reading(held=False)

    def detach(self, asked: Detach) -> Work:
        """End it."""
        self.close(is_counted=False)
        self.confirm_detached(is_closed=asked.closed)
        return None

    def close(self, *, is_counted: bool) -> None:  # noqa: ARG002 (it holds nothing that counts)
        """Give back what it holds."""
        if not self.is_open:
            return
        self.is_open = False
        self._drop_delivery()
        if self._is_taught:
            self._is_taught = False
            session = self.session
            session.cycle.core.forget_amqp_link(
                session.connection.handle, session.channel, self.handle
            )
        self.session.cycle.producers.end(self)
        if self._node is not None:
            self.session.handler.drop_node(self._node)
