"""Sending: from a destination to the core's route, with automatic creation.

Owns the rule where a message goes. Must never look into a message: filters do that. Called by the
server's sessions for every destination that the core was not taught, and by the admin API.
"""

from __future__ import annotations

from dataclasses import dataclass

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.message_times import has_expiry_rules
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.queue_traits import traits_of_user
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.switching import SentMessage, Switch
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import RoutingType


@dataclass(frozen=True, slots=True)
class Target:
    """Where one message goes.

    Attributes:
        route: The core's route; -1 where it depends on the message.
        is_teachable: Whether the next messages to the destination go the same way.
        switch: Chooses by message where filters stand in the way.
        dead_letter_address: Set when no queue of the address takes it: where it goes instead.
        places: Queues there, then.
    """

    route: int
    is_teachable: bool
    switch: Switch | None = None
    dead_letter_address: str = ""
    places: int = 0

    def route_for(self, message: SentMessage) -> int:
        """Return the core's route for a message."""
        return self.route if self.switch is None else self.switch.handle_for(message)


def find_target(registry: Registry, destination: Destination) -> Target | None:
    """Return where a message goes if everything is there; None when something must be made first.

    Raises:
        RemoteProtocolError: The queue belongs to another address, or the address is a wildcard.
    """
    if destination.queue is not None:
        queue = registry.queue_of(destination.address, destination.queue)
        if queue is None:
            return None
        is_plain = not has_expiry_rules(registry.settings_for(destination.address))
        return _target(registry.queue_route(queue).seen_by(destination.sender), is_plain=is_plain)
    address = registry.addresses.get(destination.address)
    if address is not None and address.is_wildcard:
        raise _refuse_wildcard(destination)
    if address is None or not address.serves(destination.routing_type):
        return None
    route = registry.route_of(address, destination.routing_type)
    settings = registry.settings_for(destination.address)
    if not route.places_max and registry.unrouted is not None:
        instead = registry.unrouted.unrouted_target(address.name)
        if instead is not None and instead.route is None:
            return None
        if instead is not None and instead.route is not None:
            return Target(
                instead.route.next_handle(),
                is_teachable=False,
                switch=instead.route.switch,
                dead_letter_address=instead.address,
                places=instead.route.places_max,
            )
    is_plain = not (settings.send_to_dla_on_no_route or has_expiry_rules(settings))
    return _target(route.seen_by(destination.sender), is_plain=is_plain)


def _target(route: Route, *, is_plain: bool) -> Target:
    return Target(route.next_handle(), route.is_teachable and is_plain, route.switch)


async def make_target(registry: Registry, destination: Destination) -> Target:
    """Return where a message goes; make address and queue if the settings allow it.

    Raises:
        RemoteProtocolError: Something is missing that may not be made, a name is in use
            otherwise, or the address is a wildcard.

    Durability: on return a durable queue that was made survives a power loss.
    """
    if registry.syntax.is_wildcard(destination.address):
        raise _refuse_wildcard(destination)
    settings = registry.settings_for(destination.address)
    address = registry.addresses.get(destination.address)
    kind = destination.routing_type or _default_type(registry, address, destination)
    if (address is None or kind not in address.routing_types) and not (
        settings.auto_create_addresses
    ):
        raise _refuse_address(destination, address)
    if destination.queue is not None or kind is RoutingType.ANYCAST:
        name = destination.queue or destination.address
        if not settings.auto_create_queues:
            raise RemoteProtocolError(
                f"there is no queue {name}, and auto-create-queues is off for its address",
                cure="create the queue first",
            )
        await registry.create_queue(
            name,
            destination.address,
            kind,
            is_auto_created=True,
            traits=traits_of_user(destination.user),
        )
    else:
        await registry.create_address(destination.address, {kind}, is_auto_created=True)
        if registry.unrouted is not None:
            instead = registry.unrouted.unrouted_target(destination.address)
            if instead is not None and instead.route is None:
                await registry.unrouted.make_unrouted(destination.address)
    target = find_target(registry, destination)
    if target is None:  # deleted again by somebody else between the two steps
        raise RemoteProtocolError(f"the address {destination.address} was deleted meanwhile")
    return target


def _default_type(
    registry: Registry, address: Address | None, destination: Destination
) -> RoutingType:
    settings = registry.settings_for(destination.address)
    if address is not None and len(address.routing_types) == 1:
        return next(iter(address.routing_types))
    default = (
        settings.default_queue_routing_type
        if destination.queue is not None
        else settings.default_address_routing_type
    )
    assert default is not None
    if address is not None and default not in address.routing_types:
        return RoutingType.ANYCAST
    return default


def _refuse_wildcard(destination: Destination) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the address {destination.address} is a wildcard, and messages are sent to one address",
        cure="subscribe with wildcards; send to an address without",
    )


def _refuse_address(destination: Destination, address: Address | None) -> RemoteProtocolError:
    if address is None:
        return RemoteProtocolError(
            f"there is no address {destination.address}, and auto-create-addresses is off for it",
            cure="create the address first",
        )
    return RemoteProtocolError(
        f"the address {destination.address} does not serve {destination.routing_type}",
        allowed=", ".join(sorted(address.routing_types)),
    )
