"""$SYS topics: what the broker says about itself to MQTT clients that ask for it.

Owns the topics, under the names that MQTT brokers have in common. Who subscribes gets the values at
once, as retained messages, and again every ten seconds; nobody else costs anything. They are never
stored, and no wildcard takes them that does not begin with $SYS (MQTT 5.0 §4.7.2). Called by
`subscribing` and the hub's clock; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from vespiary_broker.engine.core import NoRoom
from vespiary_broker.engine.queues import Queue
from vespiary_broker.server.mqtt.messages import PROTOCOL, RETAINED
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_codec.wire.mqtt.topics import matches
from vespiary_codec.wire.stomp.escapes import escape
from vespiary_spec.version import VERSION

if TYPE_CHECKING:
    from vespiary_broker.server.cycle import Cycle

PERIOD_S: Final = 10.0
PREFIX: Final = "$SYS/"


class SysTopics:
    """The topics, and who has subscribed to them.

    Args:
        cycle: What all connections share.
        topics: Says which address a topic is.
        sessions: Returns how many sessions there are, and how many have a connection.
        retained: Returns how many messages are retained.
    """

    def __init__(
        self,
        cycle: Cycle,
        topics: TopicMapping,
        sessions: Callable[[], tuple[int, int]],
        retained: Callable[[], int],
    ) -> None:
        self._cycle = cycle
        self._topics = topics
        self._sessions = sessions
        self._retained = retained
        self._begun_s = cycle.loop.time()
        self._watching: dict[Queue, str] = {}

    def watch(self, queue: Queue, topic_filter: str) -> None:
        """Send values to the queue of a subscription from now on, until it is deleted.

        Args:
            queue: The queue.
            topic_filter: What it has subscribed to; other filters than those of $SYS are ignored.
        """
        if topic_filter.startswith(PREFIX[:-1]):
            self._watching[queue] = topic_filter

    def send_now(self, queue: Queue) -> None:
        """Send all values to one queue, as retained messages."""
        if queue in self._watching:
            self._send(queue, is_retained=True)

    def send_all(self) -> None:
        """Send all values to those that have subscribed and are there."""
        for queue in list(self._watching):
            if queue.is_deleted:
                del self._watching[queue]
            elif queue.consumers:
                self._send(queue, is_retained=False)
        if self._watching:
            self._cycle.touch()

    def _send(self, queue: Queue, *, is_retained: bool) -> None:
        topic_filter, registry = self._watching[queue], self._cycle.engine.registry
        route = registry.queue_route(queue).next_handle()
        for topic, value in self._values():
            address = self._topics.address_of(topic)
            if matches(topic_filter, topic) and registry.takes_from(queue, address):
                lines = f"destination:{escape(address, '1.2')}\n"
                if is_retained:
                    lines += f"{RETAINED}:true\n"
                with suppress(NoRoom):  # the next ones come in a while
                    self._cycle.core.publish(
                        route, lines.encode(), value.encode(), persistent=False, protocol=PROTOCOL
                    )

    def _values(self) -> Iterator[tuple[str, str]]:
        cycle = self._cycle
        sessions, connected = self._sessions()
        added, _ = cycle.engine.registry.message_totals()
        numbers = {
            "uptime": f"{cycle.loop.time() - self._begun_s:.0f} seconds",
            "clients/total": sessions,
            "clients/connected": connected,
            "clients/disconnected": sessions - connected,
            "connections": len(cycle.connections),
            "subscriptions/count": cycle.engine.registry.limits.subscriptions,
            "retained messages/count": self._retained(),
            "messages/stored": added,
            "messages/sent": cycle.engine.dispatcher.messages_out,
        }
        yield f"{PREFIX}broker/version", f"vespiary {VERSION}"
        for name, value in numbers.items():
            yield f"{PREFIX}broker/{name}", str(value)
