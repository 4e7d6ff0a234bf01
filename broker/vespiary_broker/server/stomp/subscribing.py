"""SUBSCRIBE and UNSUBSCRIBE: what a client asks for, and the consumers that one connection has.

Owns the meaning of the headers and the table of the connection's consumers. Which queue a
consumer gets is the engine's (`engine.subscriptions`). Called by `session`; owner: the connection.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.names import parse_routing_type
from vespiary_broker.engine.queues import Consumer
from vespiary_broker.engine.subscriptions import (
    SubscriptionRequest,
    close_subscription,
    delete_durable_subscription,
    open_subscription,
)
from vespiary_broker.server.compiling_in_time import compile_in_time
from vespiary_codec.wire.stomp import Frame, parse_ack_mode
from vespiary_codec.wire.stomp.escapes import escape
from vespiary_spec.consumers import WINDOW_BYTES_PER_MESSAGE, prefetch_of
from vespiary_spec.errors import LimitExceeded, RemoteProtocolError

if TYPE_CHECKING:
    from vespiary_broker.server.connection import Connection
    from vespiary_broker.server.cycle import Cycle
    from vespiary_broker.server.listener import Listener
    from vespiary_broker.server.stomp.session import StompSession

CREDIT_MAX: Final = 1_000_000
SUBSCRIPTIONS_MAX: Final = 10_000
_DURABLE_NAMES: Final = (
    "durable-subscription-name",
    "durable-subscriber-name",
    "activemq.subscriptionName",
)
_SUBSCRIPTION_TYPES: Final = ("subscription-type", "destination-type", "routing-type")
_NO_LOCAL: Final = ("no-local", "activemq.noLocal")
_PRIORITIES: Final = ("consumer-priority", "activemq.priority")
_PRIORITY_MAX: Final = 2**31 - 1
_OFF: Final = frozenset({"", "false"})
_MODES: Final = {
    "auto": AckMode.AUTO,
    "client": AckMode.CLIENT,
    "client-individual": AckMode.INDIVIDUAL,
}


class Subscriptions:
    """The consumers of one connection.

    Attributes:
        by_name: Consumers by the id that the client gave them.

    Args:
        session: The session.
        connection: Its connection.
        cycle: What all connections share.
        listener: The listener that the client came through.
    """

    def __init__(
        self, session: StompSession, connection: Connection, cycle: Cycle, listener: Listener
    ) -> None:
        self.by_name: dict[str, Consumer] = {}
        self._by_handle: dict[int, Consumer] = {}
        self._viewers: dict[int, list[Consumer]] = {}
        self._session = session
        self._connection = connection
        self._cycle = cycle
        self._listener = listener
        self._core = cycle.core
        self._registry = cycle.engine.registry

    def consumer(self, handle: int) -> Consumer | None:
        """Return the consumer with a core's handle; None if it is none of this connection."""
        return self._by_handle.get(handle)

    def viewer(self, queue_id: int, sequence: int) -> Consumer | None:
        """Return the consumer of a non-destructive queue that holds a message; None: nobody."""
        for consumer in self._viewers.get(queue_id, ()):
            if consumer.view is not None and consumer.view.holds(sequence):
                return consumer
        return None

    def close_all(self, *, counted: bool) -> None:
        """Close all consumers: what they hold goes back.

        Args:
            counted: Whether that counts as delivered.
        """
        consumers = list(self.by_name.values())
        self.by_name.clear()
        self._by_handle.clear()
        self._viewers.clear()
        for consumer in consumers:
            self._close(consumer, counted=counted)
        if consumers:
            self._cycle.touch()

    def _close(self, consumer: Consumer, *, counted: bool) -> None:
        queue = consumer.queue
        close_subscription(self._core, self._registry, consumer, counted=counted)
        if queue.consumers:
            self._cycle.engine.dispatcher.poke(queue.id)

    def subscribe(self, frame: Frame) -> Coroutine[Any, Any, None] | None:
        """Begin a subscription; what is returned is left to do.

        Raises:
            RemoteProtocolError: The frame asks for what cannot be.
            LimitExceeded: The connection has too many.
        """
        name = frame.get("id") or frame.get("destination", "")
        if name in self.by_name:
            raise RemoteProtocolError(f"the subscription {name[:100]!a} exists already")
        if len(self.by_name) >= SUBSCRIPTIONS_MAX:
            raise LimitExceeded(
                "the connection has too many subscriptions",
                measured=len(self.by_name) + 1,
                allowed=f"at most {SUBSCRIPTIONS_MAX}",
            )
        return self._open(frame, self._request(frame, name))

    def _request(self, frame: Frame, name: str) -> SubscriptionRequest:
        version = self._session.version
        assert version is not None
        kinds = [(header, frame.get(header)) for header in _SUBSCRIPTION_TYPES]
        routing_type = next((parse_routing_type(k, h) for h, k in kinds if k is not None), None)
        header = frame.get("id")
        destination = self._session.sending.destination(frame, routing_type)
        return SubscriptionRequest(
            destination=destination,
            subscription=name,
            header=escape(name if header is None else header, version).encode(),
            version=int(version.replace(".", "")),
            mode=_MODES[parse_ack_mode(frame)],
            credit=self._credit(frame, destination.address),
            client_id=self._session.client_id,
            durable_name=_first(frame, _DURABLE_NAMES),
            selector=frame.get("selector", "").strip(),
            priority=_priority(frame),
            is_exclusive=_is_on(frame, "activemq.exclusive"),
            is_no_local=any(_is_on(frame, header) for header in _NO_LOCAL),
        )

    def _credit(self, frame: Frame, address: str) -> int:
        """Return how many messages of an address may be out unacknowledged."""
        for header, divisor in (
            ("prefetch-count", 1),
            ("activemq.prefetchSize", 1),
            ("consumer-window-size", WINDOW_BYTES_PER_MESSAGE),
        ):
            text = frame.get(header)
            if text is None:
                continue
            digits = text.strip()
            if digits == "-1":
                return CREDIT_MAX
            if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
                raise RemoteProtocolError(
                    f"SUBSCRIBE has a wrong {header}",
                    measured=ascii(text[:40]),
                    allowed="a number, or -1 for no limit",
                )
            return max(1, min(int(digits) // divisor, CREDIT_MAX))
        prefetch = self._listener.acceptor.stomp.prefetch
        return prefetch or prefetch_of(self._registry.settings_for(address))

    async def _open(self, frame: Frame, request: SubscriptionRequest) -> None:
        await compile_in_time(request.selector, self._cycle.engine.turn_time)
        consumer = await open_subscription(self._core, self._registry, self._connection, request)
        self.by_name[request.subscription] = consumer
        self._by_handle[consumer.handle] = consumer
        if consumer.view is not None:
            self._viewers.setdefault(consumer.queue.id, []).append(consumer)
        if not self._connection.is_open:
            self._session.close()
            return
        self._cycle.engine.dispatcher.poke(consumer.queue.id)
        self._session.confirm(frame)

    def unsubscribe(self, frame: Frame) -> Coroutine[Any, Any, None] | None:
        """End a subscription, or delete a durable one; what is returned is left to do.

        Raises:
            RemoteProtocolError: There is none, or it may not be deleted.
        """
        name = frame.get("id") or frame.get("destination", "")
        durable_name = _first(frame, _DURABLE_NAMES)
        consumer = self.by_name.pop(name, None)
        if consumer is None and not durable_name:
            raise RemoteProtocolError(f"there is no subscription {name[:100]!a}")
        if consumer is not None:
            del self._by_handle[consumer.handle]
            if consumer.view is not None:
                viewers = self._viewers[consumer.queue.id]
                viewers.remove(consumer)
                if not viewers:
                    del self._viewers[consumer.queue.id]
            self._close(consumer, counted=False)
        if durable_name:
            client_id, user = self._session.client_id, self._session.user
            key = delete_durable_subscription(self._registry, client_id, durable_name, user)
            return self._confirm_removed(frame, key)
        self._session.confirm(frame)
        return None

    async def _confirm_removed(self, frame: Frame, key: str) -> None:
        await self._registry.wait_removed(key)
        self._session.confirm(frame)


def _priority(frame: Frame) -> int:
    """Return the priority of the consumer that a frame asks for."""
    for header in _PRIORITIES:
        text = frame.get(header)
        if text is None:
            continue
        digits = text.strip().removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and int(digits[:11]) <= _PRIORITY_MAX):
            raise RemoteProtocolError(
                f"SUBSCRIBE has a wrong {header}",
                measured=ascii(text[:40]),
                allowed=f"a number from -{_PRIORITY_MAX} to {_PRIORITY_MAX}",
            )
        return int(text)
    return 0


def _is_on(frame: Frame, header: str) -> bool:
    """Return what a header says that is true or false; false without it."""
    text = frame.get(header, "").strip().lower()
    if text in _OFF:
        return False
    if text == "true":
        return True
    raise RemoteProtocolError(
        f"SUBSCRIBE has a wrong {header}", measured=ascii(text[:40]), allowed="true or false"
    )


def _first(frame: Frame, names: tuple[str, ...]) -> str:
    """Return the value of the first of several headers that a frame has, or an empty text."""
    return next((value for name in names if (value := frame.get(name))), "")
