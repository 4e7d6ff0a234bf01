"""The queues of MQTT subscriptions: one for each client and filter, one for each share and filter.

Owns their names. Called by `sessions` and `subscribing`; owner: the event loop.

    client c1, filter sensors/#           c1.sensors.#
    $share/workers/jobs/+                 $share.workers.jobs.*

Dots and other signs of a client id or of a share's name are written as %2E and so on, so no two
subscriptions have one name (`engine.subscription_names`). The queue of a session is marked as one
of MQTT: no other protocol shares it, nor does a session take a queue of another protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final, TypeVar

from vespiary_broker.engine.names import Sender
from vespiary_broker.engine.queue_traits import RETIRED, traits_of_user
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.subscription_names import (
    SHARE_PREFIX,
    SHORTENED,
    free_name,
    last_name,
    queue_names,
    short,
    word,
)
from vespiary_broker.engine.subscriptions import check_connection
from vespiary_broker.server.mqtt.options import Options, is_alone
from vespiary_broker.server.mqtt.topics import TopicMapping
from vespiary_codec.wire.mqtt.topics import split_share
from vespiary_spec.settings import Permission, RoutingType

T = TypeVar("T")

PROTOCOL: Final = "mqtt"
"""Of the queues of sessions, as `QueueTraits.protocol`."""


def may_be_shared(name: str) -> bool:
    """Return whether a queue may be that of a shared subscription, by its name."""
    return name.startswith((SHARE_PREFIX, SHORTENED))


class SubscriptionQueues:
    """The queues.

    Args:
        registry: Addresses and queues.
        topics: Says which address a filter is.
    """

    def __init__(self, registry: Registry, topics: TopicMapping) -> None:
        self._registry = registry
        self._topics = topics

    def names(self, client_id: str, topic_filter: str) -> tuple[str, ...]:
        """Return the names that the queue of a subscription may have, the usual one first.

        Args:
            client_id: The client.
            topic_filter: Its filter, `$share/NAME/` included.
        """
        address = self._topics.address_of_filter(topic_filter)
        share = split_share(topic_filter).name
        if share:
            return (SHARE_PREFIX + short(f"{word(share)}.{address}", len(SHARE_PREFIX)),)
        names = queue_names(client_id, address)
        return (*names, last_name(PROTOCOL, "", names[0]))  # a client id has one session

    def name(self, client_id: str, topic_filter: str) -> str:
        """Return the name that the queue of a subscription has or gets; arguments as of `names`."""
        names = self.names(client_id, topic_filter)
        own = (name for name in names if self._is_of_session(name, client_id))
        return next(own, free_name(names, self._registry.queues))

    def _is_of_session(self, name: str, client_id: str) -> bool:
        """Return whether a queue is there, and that of a client's session."""
        queue = self._registry.queues.get(name)
        return (
            queue is not None and queue.client_id == client_id and queue.traits.protocol == PROTOCOL
        )

    def find(self, client_id: str, topic_filter: str) -> Queue | None:
        """Return the queue of a subscription; None if it is not there."""
        name = self.name(client_id, topic_filter)
        is_own = bool(split_share(topic_filter).name) or self._is_of_session(name, client_id)
        return self._registry.queues.get(name) if is_own else None

    def restore(self, client_id: str, topic_filter: str) -> None:
        """Mark the queue of a subscription whose session was restored as one of MQTT.

        An earlier version did not. It is written down when the queue changes.

        Args:
            client_id: The client.
            topic_filter: Its filter.
        """
        if split_share(topic_filter).name or self.find(client_id, topic_filter) is not None:
            return
        queue = self._registry.queues.get(self.names(client_id, topic_filter)[0])
        address = self._topics.address_of_filter(topic_filter)
        if queue is not None and (queue.client_id, queue.address.name) == (client_id, address):
            queue.traits = replace(queue.traits, protocol=PROTOCOL)

    async def enter(
        self, sender: Sender, user: str, topic_filter: str, *, is_durable: bool, options: Options
    ) -> Queue:
        """Return the queue of a subscription, made if it is not there; it takes messages.

        Args:
            sender: The client.
            user: Its user.
            topic_filter: Its filter.
            is_durable: Whether it survives a restart; a shared one always does.
            options: What the client wants of it.

        Raises:
            NotPermitted: The user may not consume there, or may not make it.
            VespiaryError: It cannot be made.

        Durability: as of `Registry.create_queue` with `is_early`.
        """
        address = self._topics.address_of_filter(topic_filter)
        # Before it is made: it would take messages that nobody gets.
        self._registry.permissions.check_subscribing(user, Permission.CONSUME, address)
        check_connection(self._registry.addresses.get(address), None)
        is_shared = bool(split_share(topic_filter).name)
        rank = None if is_alone(topic_filter, options) else options.qos
        traits = replace(
            traits_of_user(user),
            is_no_local=options.no_local,
            rank=rank,
            protocol="" if is_shared else PROTOCOL,
        )
        queue = await self._registry.create_queue(
            self.name(sender.client_id, topic_filter),
            address,
            RoutingType.MULTICAST,
            is_durable=is_durable or is_shared,
            is_temporary=not (is_durable or is_shared),
            client_id="" if is_shared else sender.client_id,
            traits=traits,
            is_early=True,
        )
        changed = replace(queue.traits, is_no_local=options.no_local, rank=rank)
        await self._registry.change_traits(queue, changed)
        return queue

    async def retire(self, queue: Queue) -> None:
        """Have the queue of a subscription take nothing any more; it gives what it has.

        Durability: on return it takes nothing after a power loss either.
        """
        await self._registry.change_traits(queue, replace(queue.traits, rank=RETIRED))

    async def in_time(self, drop: Callable[[], T]) -> T:
        """Do something with queues in this turn of the loop, or in a later one that has time."""
        return await self._registry.switches.turn_time.run(drop)

    def drop(self, client_id: str, topic_filter: str) -> list[str]:
        """Delete the queue of a subscription unless it has consumers.

        Returns:
            Its key, for `wait_removed`; nothing if it was not there.
        """
        queue = self.find(client_id, topic_filter)
        if queue is None or queue.consumers:
            return []
        self._registry.drop_queue(queue, is_lost=False)
        return [queue.key]

    def drop_abandoned(self, shares: Collection[str]) -> None:
        """Delete the queues of shared subscriptions that no session has.

        Args:
            shares: Names of the queues of those that some session has.
        """
        # Those with spaces had other names before, and may not be empty yet.
        kept = {*shares, *(name.replace(" ", "%20") for name in shares)}
        for queue in list(self._registry.queues.values()):
            is_share = queue.name.startswith(SHARE_PREFIX)
            if is_share and queue.name not in kept and not queue.consumers:
                self._registry.drop_queue(queue, is_lost=False)

    async def wait_removed(self, keys: list[str]) -> None:
        """Wait until queues that were dropped cannot come back.

        Durability: on return they are gone after a power loss too.
        """
        if keys:
            await self._registry.wait_removed(*keys)
