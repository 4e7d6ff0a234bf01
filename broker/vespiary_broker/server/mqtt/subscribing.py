"""SUBSCRIBE and UNSUBSCRIBE: the subscriptions of one MQTT client, and what is retained for them.

Owns the consumers of the connection. Which queue a subscription has is `subscription_queues`'.
Owner: the connection.

The client's lock is held: a connection that takes the client id over waits until a packet is done,
so it does not miss a queue that is being made.

Order: the queues of all subscriptions of a packet take messages as soon as it is processed. Then
the subscriptions are written down, then their queues; then their consumers are opened, and SUBACK
leaves; what is retained follows. After a crash before that, a queue that was not written is gone
with what it took: its client was not told that it has the subscription.

Source: MQTT 5.0 §3.8 to §3.11.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from vespiary_broker.engine.core import AckMode, NoRoom
from vespiary_broker.engine.names import Destination, Sender
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.subscriptions import (
    SubscriptionRequest,
    close_subscription,
    open_subscription,
)
from vespiary_broker.engine.turn_time import Stint
from vespiary_broker.server.mqtt.delivering import Deliveries, Subscriber
from vespiary_broker.server.mqtt.messages import PROTOCOL, RETAINED
from vespiary_broker.server.mqtt.options import Options
from vespiary_broker.server.mqtt.reasons import reason_of, sentence_for
from vespiary_broker.server.mqtt.retained import RetainedMessage
from vespiary_broker.server.mqtt.sessions import MqttSession
from vespiary_broker.server.mqtt.subscription_queues import PROTOCOL as QUEUE_PROTOCOL
from vespiary_codec.stored_message import STORED_VERSION
from vespiary_codec.wire.mqtt import (
    Property,
    RemoteProtocolError,
    Subscribe,
    Subscription,
    Unsubscribe,
    Violation,
)
from vespiary_codec.wire.mqtt.reason_codes import ReasonCode
from vespiary_codec.wire.mqtt.topics import split_share
from vespiary_spec.errors import LimitExceeded, NotPermitted, VespiaryError
from vespiary_spec.settings import Permission

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.mqtt.hub import MqttHub

_CREDIT: Final = 2**31 - 1
_DRAIN_S: Final = 1.0
"""Between two looks at queues that are to be dropped once they are empty."""
_RETAINED_LINE: Final = f"{RETAINED}:true\n".encode()
_SENT_US: Final = 50.0

log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What became of one filter of a SUBSCRIBE.

    Attributes:
        code: Its reason code.
        wanted: The subscription, if what is retained is to be sent behind SUBACK.
        reason: Why it was refused; empty: it was not.
    """

    code: ReasonCode
    wanted: Subscription | None = None
    reason: str = ""


@dataclass(slots=True)
class _Entered:
    """A subscription of a SUBSCRIBE whose queue takes messages, if it could be entered.

    Attributes:
        wanted: What the client asks for.
        options: Its options.
        before: Those that it had; None: it is new.
        queue: Its queue; None: see `error`.
        error: Why it cannot begin; None: it can.
        is_noted: Whether the session has it.
        is_undone: Whether the session has it no more, and has to be saved.
    """

    wanted: Subscription
    options: Options
    before: Options | None
    queue: Queue | None = None
    error: VespiaryError | None = None
    is_noted: bool = False
    is_undone: bool = False


class Subscribing:
    """The subscriptions of one connection.

    Args:
        connection: The connection.
        cycle: What all connections share.
        hub: What all MQTT clients share.
        session: Of the client.
        deliveries: What the client is sent.
        sender: The client, as who sends.
        subscriptions_max: Most subscriptions that it may have.
        is_bridge: Whether it is a bridge of MQTT 3: it gets none of its own messages back, and all
            others with the retain flag that they were sent with.
    """

    def __init__(
        self,
        connection: Connection,
        cycle: Cycle,
        hub: MqttHub,
        session: MqttSession,
        deliveries: Deliveries,
        sender: Sender,
        subscriptions_max: int,
        *,
        is_bridge: bool = False,
    ) -> None:
        self._connection = connection
        self._cycle = cycle
        self._core = cycle.core
        self._registry = cycle.engine.registry
        self._hub = hub
        self._session = session
        self._deliveries = deliveries
        self._sender = sender
        self._subscriptions_max = subscriptions_max
        self._is_bridge = is_bridge
        self._subscribers: dict[str, Subscriber] = {}

    def __len__(self) -> int:
        return len(self._subscribers)

    def subscriber_of(self, consumer: Consumer) -> Subscriber:
        """Return the subscription of a consumer."""
        return self._subscribers[consumer.subscription]

    async def resume(self) -> None:
        """Open what the session has subscribed to on an earlier connection.

        What the client may not consume from any more ends; MQTT has no packet that says so.

        Raises:
            VespiaryError: A queue is not there and cannot be made.

        Durability: what has ended is not back after a power loss.
        """
        session, keys = self._session, []
        async with self._hub.sessions.lock(session.client_id):
            stint = Stint(self._registry.switches.turn_time)
            for topic_filter, options in list(session.subscriptions.items()):
                if not self._connection.is_open:
                    stint.end()
                    return
                if topic_filter in self._subscribers:
                    continue
                try:
                    queue = await stint.run(self._enter_queue(topic_filter, options))
                    await stint.run(self._open(queue, topic_filter, options))
                except NotPermitted as error:
                    _log_ended(session, topic_filter, error)
                    keys += self._hub.sessions.unsubscribed(session, topic_filter)
                    self._deliveries.overlaps.changed(topic_filter)
                    await self._hub.sessions.save(session)
            stint.end()
            await self._hub.queues.wait_removed(keys)
        if session.retired:
            await self._drain()

    def close(self) -> None:
        """Close all consumers: what they hold goes back, and does not count as delivered."""
        subscribers = list(self._subscribers.values())
        self._subscribers.clear()
        for subscriber in subscribers:
            self._close(subscriber)

    def _close(self, subscriber: Subscriber) -> None:
        queue = subscriber.consumer.queue
        close_subscription(self._core, self._registry, subscriber.consumer, counted=False)
        if queue.consumers:
            self._cycle.engine.dispatcher.poke(queue.id)
        self._cycle.touch()

    # --- SUBSCRIBE ------------------------------------------------------------------------------

    async def subscribe(self, packet: Subscribe) -> list[Outcome]:
        """Do what a SUBSCRIBE asks for.

        Returns:
            What became of each filter; `send_retained` sends what is retained, behind SUBACK.

        Raises:
            RemoteProtocolError: It asks for what the protocol forbids.

        Durability: on return the subscriptions of a durable session survive a power loss.
        """
        identifiers = packet.properties.get(Property.SUBSCRIPTION_IDENTIFIER, ())
        assert not isinstance(identifiers, int | str | bytes)
        identifier = next((each for each in identifiers if isinstance(each, int)), 0)
        async with self._hub.sessions.lock(self._session.client_id):
            return await self._subscribe_all(tuple(packet.subscriptions), identifier)

    async def _subscribe_all(
        self, subscriptions: tuple[Subscription, ...], identifier: int
    ) -> list[Outcome]:
        """Begin or change subscriptions; nobody else may have the session meanwhile."""
        for wanted in subscriptions:
            if wanted.no_local and split_share(wanted.topic_filter).name:
                raise RemoteProtocolError(
                    Violation.TOPIC_FILTER,
                    "a shared subscription cannot have No Local",
                    ReasonCode.PROTOCOL_ERROR,
                )
        # They take messages before anything is waited for, but for the turns that very many need.
        stint = Stint(self._registry.switches.turn_time)
        entered = await stint.run_all(self._enter(wanted, identifier) for wanted in subscriptions)
        try:
            await self._hub.sessions.save(self._session)
        except VespiaryError as error:
            for each in entered:
                each.error = each.error or error
        outcomes = await stint.run_all(self._begin(each) for each in entered)
        if any(each.is_undone for each in entered):
            await self._hub.sessions.save(self._session)
        return outcomes

    async def _enter(self, wanted: Subscription, identifier: int) -> _Entered:
        """Begin or change a subscription in memory: its queue takes messages from now on."""
        session, topic_filter = self._session, wanted.topic_filter
        before = session.subscriptions.get(topic_filter)
        no_local, as_published = wanted.no_local, wanted.retain_as_published
        if self._is_bridge:
            no_local, as_published = not split_share(topic_filter).name, True
        options = Options(wanted.qos, no_local, as_published, identifier)
        entered = _Entered(wanted, options, before)
        count = len(session.subscriptions) + len(session.retired)
        count += topic_filter not in session.retired
        if before is None and count > self._subscriptions_max:
            entered.error = LimitExceeded(
                "the client has too many subscriptions",
                measured=count,
                allowed=f"at most {self._subscriptions_max} (max-subscriptions)",
            )
            return entered
        entered.is_noted = True
        self._hub.sessions.subscribed(session, topic_filter, options)
        self._deliveries.overlaps.changed(topic_filter)
        try:
            entered.queue = await self._enter_queue(topic_filter, options)
        except VespiaryError as error:
            entered.error = error
        return entered

    async def _begin(self, entered: _Entered) -> Outcome:
        """Finish a subscription that was entered, or undo it; return what became of it.

        Durability: on return it survives a power loss; one that is undone has to be saved.
        """
        wanted, options = entered.wanted, entered.options
        try:
            if entered.error is not None:
                raise entered.error
            if wanted.qos == 2:
                await self._hub.exactly_once.begin_sending(self._session)
            assert entered.queue is not None
            await self._open(entered.queue, wanted.topic_filter, options)
        except VespiaryError as error:
            if entered.is_noted:
                await self._undo(entered)
            return Outcome(_suback_code(error), reason=sentence_for(error))
        self._leave_core(wanted.topic_filter, options)
        is_new = entered.before is None
        is_sent = wanted.retain_handling == 0 or (wanted.retain_handling == 1 and is_new)
        is_sent &= not split_share(wanted.topic_filter).name
        return Outcome(ReasonCode(wanted.qos), wanted if is_sent else None)

    async def _undo(self, entered: _Entered) -> None:
        """Forget a subscription that could not begin, or keep it as it was."""
        entered.is_undone = True
        topic_filter = entered.wanted.topic_filter
        if entered.before is None:
            await self._end(topic_filter)
        else:
            self._session.subscriptions[topic_filter] = entered.before
            self._deliveries.overlaps.changed(topic_filter)

    def _leave_core(self, topic_filter: str, options: Options) -> None:
        """Take from the core what it encodes of other subscriptions, if this one is richer."""
        for other in self._deliveries.overlaps.poorer(topic_filter, options):
            subscriber = self._subscribers.get(other)
            if subscriber is not None and subscriber.consumer.is_core_encoding:
                self._deliveries.leave_core(subscriber)

    async def _enter_queue(self, topic_filter: str, options: Options) -> Queue:
        """Return the queue of a subscription, made if need be."""
        return await self._hub.queues.enter(
            self._sender,
            self._session.user,
            topic_filter,
            is_durable=self._session.is_durable,
            options=options,
        )

    async def _open(self, queue: Queue, topic_filter: str, options: Options) -> None:
        """Open the consumer of a subscription, or change it."""
        subscriber = self._subscribers.get(topic_filter)
        if subscriber is not None:
            subscriber.options, subscriber.is_retired = options, False
            self._deliveries.encode_by_core(subscriber)
            return
        subscriber = Subscriber(self._deliveries, topic_filter, options)
        self._hub.sys_topics.watch(queue, split_share(topic_filter).topic_filter)
        await self._begin_consuming(queue, subscriber)

    async def _begin_consuming(self, queue: Queue, subscriber: Subscriber) -> None:
        """Open the consumer of a subscription."""
        topic_filter = subscriber.topic_filter
        subscriber.consumer = await self._consume(queue, topic_filter, subscriber)
        subscriber.consumer.client_credit = subscriber.client_credit
        self._subscribers[topic_filter] = subscriber
        if not self._connection.is_open:
            self.close()
            return
        self._deliveries.encode_by_core(subscriber)
        self._cycle.engine.dispatcher.poke(queue.id)

    async def _consume(self, queue: Queue, topic_filter: str, subscriber: Subscriber) -> Consumer:
        request = SubscriptionRequest(
            destination=Destination(
                queue.address.name,
                queue.name,
                queue.routing_type,
                self._session.user,
                self._sender,
            ),
            subscription=topic_filter,
            header=b"",
            version=STORED_VERSION,
            mode=AckMode.INDIVIDUAL,
            credit=_CREDIT,
            client_id=self._session.client_id,
            protocol=QUEUE_PROTOCOL,
            encode=subscriber.encode,
        )
        return await open_subscription(self._core, self._registry, self._deliveries, request)

    async def send_retained(self, outcomes: Iterable[Outcome]) -> None:
        """Put what is retained for new subscriptions into their queues, for them alone.

        Args:
            outcomes: What became of the filters of a SUBSCRIBE.

        Durability: copies of persistent messages are staged; a crash before they are durable comes
            before SUBACK, too.
        """
        stint = Stint(self._registry.switches.turn_time)
        try:
            for outcome in outcomes:
                if outcome.wanted is not None and self._connection.is_open:
                    await stint.time()
                    stint.did(_SENT_US)
                    await self._send_retained(outcome.wanted, stint)
        finally:
            stint.end()

    async def _send_retained(self, wanted: Subscription, stint: Stint) -> None:
        queue = self._hub.queues.find(self._session.client_id, wanted.topic_filter)
        if queue is None:
            return
        self._hub.sys_topics.send_now(queue)
        route = self._registry.queue_route(queue)
        async for message in self._hub.retained.matching(
            wanted.topic_filter, self._may_have, stint
        ):
            while not queue.is_deleted:
                try:
                    self._copy(route.next_handle(), message)
                except NoRoom:
                    stint.end()
                    await self._cycle.space(self._connection)
                    if not self._hub.retained.is_there(message):
                        break  # what replaced or cleared it came by the subscription
                else:
                    break
            if queue.is_deleted or not self._connection.is_open:
                return
        self._cycle.touch()

    def _may_have(self, topic: str) -> bool:
        """Return whether the client may have what is retained for a topic; count it if not."""
        permissions, user = self._registry.permissions, self._session.user
        address = self._hub.topics.address_of(topic)
        is_permitted = permissions.is_permitted(user, Permission.CONSUME, address)
        permissions.withheld += not is_permitted
        return is_permitted

    def _copy(self, route: int, message: RetainedMessage) -> None:
        self._core.publish(
            route,
            message.properties + _RETAINED_LINE,
            message.body,
            persistent=b"\npersistent:true\n" in message.properties,
            protocol=PROTOCOL,
            priority=message.priority,
            escaped=b"\\" in message.properties,
            special=message.is_special,
        )

    # --- UNSUBSCRIBE ----------------------------------------------------------------------------

    async def unsubscribe(self, packet: Unsubscribe) -> tuple[ReasonCode, ...]:
        """End subscriptions; return a reason code for each filter.

        Durability: on return they are not back after a power loss.
        """
        async with self._hub.sessions.lock(self._session.client_id):
            return await self._unsubscribe_all(packet.topic_filters)

    async def _unsubscribe_all(self, topic_filters: Iterable[str]) -> tuple[ReasonCode, ...]:
        """End subscriptions; nobody else may have the session meanwhile."""
        if not self._connection.is_open:
            return ()
        stint = Stint(self._registry.switches.turn_time)
        ended = await stint.run_all(self._end_if_there(each) for each in topic_filters)
        await self._hub.sessions.save(self._session)
        await self._hub.queues.wait_removed([key for _, keys in ended for key in keys])
        return tuple(code for code, _ in ended)

    async def _end_if_there(self, topic_filter: str) -> tuple[ReasonCode, list[str]]:
        if topic_filter not in self._session.subscriptions:
            return ReasonCode.NO_SUBSCRIPTION_EXISTED, []
        return ReasonCode.SUCCESS, await self._end(topic_filter)

    async def _end(self, topic_filter: str) -> list[str]:
        """End a subscription; return keys for `wait_removed`. The session is saved behind it.

        A message that others of the client want too stands in its queue alone, and what is on its
        way to the client is delivered to the end ([MQTT-3.10.4-3]), over a restart too: such a
        queue stays until it is empty, and takes nothing meanwhile. Of a shared subscription others
        get what was not acknowledged.

        Durability: the session says that before the queue takes nothing, or ends a message.
        """
        session, sessions = self._session, self._hub.sessions
        queue = self._hub.queues.find(session.client_id, topic_filter)
        options = session.subscriptions[topic_filter]
        subscriber = self._subscribers.get(topic_filter)
        if queue is not None and not split_share(topic_filter).name and not self._is_empty(queue):
            begun_below = self._deliveries.begun_below(queue.id)
            is_needed = self._deliveries.overlaps.are_there(topic_filter, options)
            if is_needed or begun_below:
                await self._retire(queue, topic_filter, begun_below)
                if not is_needed and not self._deliveries.is_resuming(queue.id):
                    self._drop_waiting(queue, subscriber)
                return []
        if subscriber is not None:
            del self._subscribers[topic_filter]
            self._close(subscriber)
        keys = sessions.unsubscribed(session, topic_filter)
        self._deliveries.overlaps.changed(topic_filter)
        return keys

    def _drop_waiting(self, queue: Queue, subscriber: Subscriber | None) -> None:
        """End what waits in a queue, or for the client's window; what was sent stays.

        Durability: as of acknowledgements.
        """
        if subscriber is not None:
            self._deliveries.drop_waiting(subscriber)
        with suppress(NoRoom):  # the rest ends when it is given
            self._core.purge_queue(queue.id)
        self._cycle.touch()

    async def _retire(self, queue: Queue, topic_filter: str, begun_below: int) -> None:
        """Have a queue give what the client is still to get of it, and take nothing any more."""
        session = self._session
        options = self._hub.sessions.retire(session, topic_filter, begun_below)
        self._deliveries.overlaps.changed(topic_filter)
        subscriber = self._subscribers.get(topic_filter)
        if subscriber is not None:  # before anything is waited for: nothing else begins
            subscriber.options, subscriber.is_retired = options, True
            self._deliveries.encode_by_core(subscriber)
        await self._hub.sessions.save(session)
        await self._hub.queues.retire(queue)
        self._drain_later()

    # --- queues of subscriptions that ended -----------------------------------------------------

    def _is_empty(self, queue: Queue) -> bool:
        """Return whether a queue has no message, not even one that was given out."""
        counters = self._core.queue_statistics(queue.id)
        return counters.head == counters.tail and not counters.paged

    def _drain_later(self) -> None:
        self._connection.set_timer("retired", _DRAIN_S, lambda: self._cycle.spawn(self._drain()))

    async def _drain(self) -> None:
        """Empty the queues of subscriptions that ended, and drop those that are empty.

        Durability: one that is back after a power loss is dropped on the next connection.
        """
        session, keys = self._session, []
        async with self._hub.sessions.lock(session.client_id):
            for topic_filter, options in list(session.retired.items()):
                if not self._connection.is_open:
                    return
                if not await self._is_draining(topic_filter, options):
                    keys += self._hub.sessions.drained(session, topic_filter)
            if keys:
                await self._hub.sessions.save(session)
                await self._hub.queues.wait_removed(keys)
            if session.retired and self._connection.is_open:
                self._drain_later()

    async def _is_draining(self, topic_filter: str, options: Options) -> bool:
        """Return whether the queue of a subscription that ended gives messages; else it can go."""
        queue = self._hub.queues.find(self._session.client_id, topic_filter)
        subscriber = self._subscribers.get(topic_filter)
        if queue is None or self._is_empty(queue):
            if subscriber is not None:
                del self._subscribers[topic_filter]
                self._close(subscriber)
            return False
        if subscriber is None:
            await self._hub.queues.retire(queue)
            ended = Subscriber(self._deliveries, topic_filter, options, is_retired=True)
            try:
                await self._begin_consuming(queue, ended)
            except NotPermitted:
                return False
            except VespiaryError as error:  # it may go well the next time
                self._note_left(topic_filter, error)
        return True

    def _note_left(self, topic_filter: str, error: VespiaryError) -> None:
        self._connection.note_line(
            "what an ended subscription has left waits peer=%s client=%r filter=%r reason=%r",
            *(self._session.client_id, topic_filter, str(error)),
            level=logging.WARNING,
        )


def _suback_code(error: VespiaryError) -> ReasonCode:
    code = reason_of(error)
    return code if code.is_failure else ReasonCode.UNSPECIFIED_ERROR


def _log_ended(session: MqttSession, topic_filter: str, error: NotPermitted) -> None:
    log.warning(
        "a subscription ended that its client may not have client=%r filter=%r reason=%r",
        session.client_id,
        topic_filter,
        str(error),
    )
