"""An address: a name that messages are sent to, its routing types, its queues and its routes.

Owns the links between them. Must never touch the bindings. Used by `registry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from vespiary_broker.engine.ports import JsonObject
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.routing import Route
from vespiary_spec.settings import RoutingType


@dataclass(eq=False, slots=True)
class Address:
    """An address.

    Attributes:
        name: Its name, unique.
        routing_types: Types that it serves; at least one.
        is_auto_created: Whether it goes with its last queue, if the settings say so.
        is_bound: Whether it stands in the bindings.
        queues: Its queues by name, in the order in which they were made.
        routes: Its routes by the routing type that senders ask for; None for those who say nothing.
        is_configured: Whether it stands in the configuration, or did when that was last read.
        idle_since_s: When its last queue went, or when it was made or read back.
        was_used: Whether it ever had a queue.
        is_paused: Whether none of its queues gives its consumers anything for now.
        is_pause_kept: Whether a restart leaves it paused.
        is_wildcard: Whether it stands for all addresses that its name covers; it has no routes.
        wildcards: Of a plain address: the wildcard addresses that cover it, whose queues get its
            messages too.
        routed: Of a wildcard address: the plain addresses with routes that it covers.
        connection: Handle of the only connection that may consume there, since it was made for that
            one; None: any may.
    """

    name: str
    routing_types: set[RoutingType]
    is_auto_created: bool
    is_bound: bool = False
    queues: dict[str, Queue] = field(default_factory=dict)
    routes: dict[RoutingType | None, Route] = field(default_factory=dict)
    is_configured: bool = False
    idle_since_s: float = 0.0
    was_used: bool = False
    is_paused: bool = False
    is_pause_kept: bool = False
    is_wildcard: bool = False
    wildcards: dict[Address, None] = field(default_factory=dict)
    routed: dict[Address, None] = field(default_factory=dict)
    connection: int | None = None

    @property
    def key(self) -> str:
        """Its key in the bindings."""
        return f"address/{self.name}"

    def to_binding(self) -> JsonObject:
        """Return its value in the bindings."""
        value: JsonObject = {
            "routing-types": sorted(str(kind) for kind in self.routing_types),
            "auto-created": self.is_auto_created,
        }
        if self.is_configured:
            value["configured"] = True
        if self.is_pause_kept:
            value["paused"] = True
        return value

    def sources(self) -> Iterator[Queue]:
        """Yield the queues that its messages can go to: its own, and those of its wildcards."""
        for address in (self, *self.wildcards):
            for queue in address.queues.values():
                if queue.is_open:
                    yield queue

    def queues_of(self, routing_type: RoutingType) -> list[Queue]:
        """Return the queues of one routing type, oldest first."""
        return [queue for queue in self.queues.values() if queue.routing_type is routing_type]

    def serves(self, routing_type: RoutingType | None) -> bool:
        """Return whether a message sent with this routing type has somewhere to go.

        A multicast address without a queue is a place to go: nobody listens, and that is all
        right. An anycast one is not: somebody has to keep the message.
        """
        if routing_type is not None and routing_type not in self.routing_types:
            return False
        if routing_type is RoutingType.MULTICAST or (
            routing_type is None and RoutingType.MULTICAST in self.routing_types
        ):
            return True
        owners = (self, *self.wildcards)
        return any(
            q.routing_type is RoutingType.ANYCAST for owner in owners for q in owner.queues.values()
        )
