"""Guards: what consumers at wildcard addresses are not given, since their users may not have it.

Owns the decision by message. It is needed only where routes cannot decide (`address_table`): for
queues that several users share, and for what a queue took before permissions changed, or before a
restart. Where nothing is withheld there is no guard, and no queue is examined for one. Must never
end a message: one that a guard withholds stays for consumers who may have it.

Which address a message came by is read from its destination, as its sender wrote it. Acceptors may
differ in what they take off destinations; then each reading has to be permitted. What diverts lead
to an address that the user may consume counts as well: the diverts as they are now, whose filters
take this very message.

Called by `subscriptions`, `browsing` and the server's cycle; owner: the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from vespiary_broker.engine.core import Core
from vespiary_broker.engine.examined import examine_anew
from vespiary_broker.engine.names import parse_destination
from vespiary_broker.engine.property_lines import value_of
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.selection.message_values import Extractor
from vespiary_broker.engine.selection.selector import Selector
from vespiary_broker.engine.turn_time import evaluation_us
from vespiary_broker.engine.wildcards import Pattern
from vespiary_codec.journal.page_sketch import PageSketch
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Permission

if TYPE_CHECKING:
    from vespiary_broker.engine.registry import Registry

ADDRESSES_ALONE: Final = 2
"""Number of MQTT among the protocols of stored messages: their destinations are addresses."""
_EVERYTHING: Final = 2**63
_COST_US: Final = 20.0
_NOT_KEPT: Final = frozenset(
    (
        "AMQDurable", "AMQSize", "AMQTimestamp",
        "JMSDeliveryMode", "JMSTimestamp", "JMSXDeliveryCount",
    )
)  # fmt: skip
"""What filters may ask for that a message in a queue does not show as it was when it was sent."""


class Stored(Protocol):
    """What a guard looks at of a message."""

    @property
    def sequence(self) -> int:
        """Its sequence in its queue."""

    @property
    def protocol(self) -> int:
        """Number of the protocol that it was sent by."""

    @property
    def priority(self) -> int:
        """0 to 9."""

    @property
    def is_escaped(self) -> bool:
        """Whether there are escapes in `properties`."""

    @property
    def properties(self) -> bytes:
        """Its headers in canonical form."""


class _Filters:
    """Which filters of diverts a message has passed; one that cannot be told it has not.

    Attributes:
        cost_us: About what was spent, in microseconds.

    Args:
        message: The message.
        address: Where it was sent to.
    """

    # What filters ask for beside headers and priority: `_NOT_KEPT`.
    sequence = deliveries = time_ms = body_length = 0
    is_journalled = False

    def __init__(self, message: Stored, address: str) -> None:
        self.cost_us = 0.0
        self.priority = message.priority
        self.is_escaped = message.is_escaped
        self.properties = message.properties
        self._address = address

    def passes(self, selector: Selector | None) -> bool:
        """Return whether the message has passed a filter; None is no filter."""
        if selector is None:
            return True
        if not selector.names.isdisjoint(_NOT_KEPT):
            return False
        self.cost_us += evaluation_us(selector.cost_us, len(self.properties))
        values = Extractor(selector.names, address=self._address).values_of(self)
        return selector.matches(values)


class Guard:
    """What one user may have of a queue of a wildcard address; keeps `lanes.Match`.

    Attributes:
        text: Tells it from others.

    Args:
        registry: Addresses, diverts and permissions.
        queue: The queue.
        user: The user.
        permission: What it needs for a message.
        below: Messages with this sequence and later ones are let through.
        number: Tells it from those of other permissions.
    """

    __slots__ = ("_below", "_cost_us", "_pattern", "_permission", "_registry", "_user", "text")

    def __init__(
        self,
        registry: Registry,
        queue: Queue,
        user: str,
        permission: Permission,
        below: int = _EVERYTHING,
        number: int = 0,
    ) -> None:
        self.text = f"\0{number}\0{below}\0{user}"
        self._below = below
        self._cost_us = 0.0
        self._pattern = Pattern(queue.address.name, registry.syntax)
        self._permission = permission
        self._registry = registry
        self._user = user

    def wants(self, message: Stored) -> bool:
        """Return whether the user may have a message."""
        self._cost_us = 0.0
        if message.sequence >= self._below:
            return True
        text = value_of(message.properties, b"destination")
        if text is None:
            return False
        is_address = message.protocol == ADDRESSES_ALONE
        addresses = {text} if is_address else self._registry.guards.addresses_of(text)
        return bool(addresses) and all(self._may_have(each, message) for each in addresses)

    def cost_us(self, message: Stored) -> float:  # noqa: ARG002 (it was asked about before)
        """Return about what the last `wants` has cost, in microseconds."""
        return _COST_US + self._cost_us

    def may_match(self, sketch: PageSketch) -> bool:  # noqa: ARG002 (sketches have no addresses)
        """Return whether a message of a page may match."""
        return True

    def _may_have(self, address: str, message: Stored) -> bool:
        """Return whether the user may have a message that was sent to an address."""
        if self._is_permitted(address):
            return True
        filters = _Filters(message, address)
        targets = self._registry.diverts.targets_of(address, filters.passes)
        self._cost_us += filters.cost_us
        return any(self._pattern.is_match(each) and self._is_permitted(each) for each in targets)

    def _is_permitted(self, address: str) -> bool:
        return self._registry.permissions.is_permitted(self._user, self._permission, address)


class Guards:
    """The guards of all consumers.

    Attributes:
        on_unfiltered: Called with a queue that takes only what its user may consume, and may hold
            what it took under other permissions.

    Args:
        core: The core.
        registry: Addresses and queues.
        prefixes: What each acceptor takes off destinations: for queues, and for topics.
    """

    def __init__(self, core: Core, registry: Registry, prefixes: Iterable[tuple[str, str]]) -> None:
        self.on_unfiltered: Callable[[Queue], None] = lambda _: None
        self._core = core
        self._registry = registry
        self._prefixes = sorted(set(prefixes))
        self._number = 0

    def addresses_of(self, destination: str) -> set[str]:
        """Return the addresses that a destination may mean, one for each way to read it."""
        found = set()
        for anycast, multicast in self._prefixes:
            try:
                read = parse_destination(
                    destination, anycast_prefix=anycast, multicast_prefix=multicast
                )
            except RemoteProtocolError:
                continue  # not a destination there
            found.add(read.address)
        return found

    def guard_for(
        self, user: str, queue: Queue, permission: Permission = Permission.CONSUME
    ) -> Guard | None:
        """Return what withholds messages of a queue from a user; None: it may have all of them.

        Args:
            user: The user.
            queue: The queue.
            permission: What it needs.
        """
        if not self._registry.permissions.is_split(user, permission, queue.address.name):
            return None
        below, traits = _EVERYTHING, queue.traits
        if traits.is_filtered and traits.user == user and permission is Permission.CONSUME:
            below = queue.unfiltered_below
        if not below:
            return None
        return Guard(self._registry, queue, user, permission, below, self._number)

    def protect(self, consumer: Consumer) -> None:
        """Give a consumer that is about to open its guard, if it needs one."""
        if consumer.is_trusted:
            return
        queue = consumer.queue
        consumer.guard = self.guard_for(consumer.user, queue)
        if consumer.guard is not None and queue.traits.is_filtered:
            self.on_unfiltered(queue)

    def renew(self) -> list[int]:
        """Give all consumers the guards that permissions ask for now.

        Returns:
            Numbers of the queues that are to be served.
        """
        self._number += 1
        queues = [each for each in self._registry.queues.values() if each.address.is_wildcard]
        served = []
        for queue in queues:
            served += self._renew_all(queue)
            if queue.traits.is_filtered and self.guard_for(queue.traits.user, queue) is not None:
                self.on_unfiltered(queue)
        return served

    def _renew(self, consumer: Consumer) -> bool:
        """Give a consumer its guard; return whether it had or has one."""
        if consumer.is_trusted or not consumer.is_open:
            return False
        guard = self.guard_for(consumer.user, consumer.queue)
        if guard is None and consumer.guard is None:
            return False

        def change() -> None:
            consumer.guard = guard

        examine_anew(self._core, self._registry.judge, consumer, change)
        return True

    def filtered(self, queue: Queue) -> list[int]:
        """Take note that a queue holds nothing any more that its user may not consume.

        Args:
            queue: The queue; it takes only what its user may consume.

        Returns:
            Numbers of the queues that are to be served.
        """
        queue.unfiltered_below = 0
        return self._renew_all(queue)

    def _renew_all(self, queue: Queue) -> list[int]:
        """Give the consumers of a queue their guards; return its number if one had or has one."""
        renewed = [self._renew(consumer) for consumer in queue.consumers]
        return [queue.id] if any(renewed) else []
