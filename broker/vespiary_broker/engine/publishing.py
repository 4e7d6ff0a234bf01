"""Sending: from a destination to the core's route, with automatic creation.

Owns the rule where a message goes. Must never look into a message: filters do that. Called by the
server's sessions for every destination that the core was not taught, and by the admin API.
"""

from __future__ import annotations

from dataclasses import dataclass

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.ingress import has_stamps
from vespiary_broker.engine.names import Destination, InvalidName, check_writable
from vespiary_broker.engine.queue_traits import traits_of_user
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.routing import Route
from vespiary_broker.engine.switching import SentMessage, Switch, Verdicts
from vespiary_spec.errors import RemoteProtocolError
from vespiary_spec.settings import Permission, RoutingType


@dataclass(frozen=True, slots=True)
class Target:
    """Where one message goes.

    Attributes:
        route: The core's route; -1 where it depends on the message.
        is_teachable: Whether the core may take the next messages to the destination by itself, or
            through the switch.
        switch: Chooses by message where filters stand in the way.
        dead_letter_address: Set when no queue of the address takes it: where it goes instead.
        places: Most queues that it gets to, where that is not to be seen from its address.
        instead: Where it goes if the switch lets it into no queue; None: nowhere.
    """

    route: int
    is_teachable: bool
    switch: Switch | None = None
    dead_letter_address: str = ""
    places: int = 0
    instead: Target | None = None

    def is_nowhere(self, handle: int) -> bool:
        """Whether a route of `route_for` leads to no queue, and there is an `instead`."""
        return self.instead is not None and (
            self.switch is not None and self.switch.is_nowhere(handle)
        )

    @property
    def taught_handle(self) -> int:
        """What connections are taught, if it is teachable: the route, or its switch."""
        return self.route if self.switch is None else self.switch.handle

    def route_for(self, message: SentMessage, verdicts: Verdicts | None = None) -> int:
        """Return the core's route for a message.

        Args:
            message: The message.
            verdicts: What the filters are known to say of it.
        """
        return self.route if self.switch is None else self.switch.handle_for(message, verdicts)


def find_target(registry: Registry, destination: Destination) -> Target | None:
    """Return where a message goes if everything is there; None when something must be made first.

    What it returns is for one message, or to be taught to the core, which asks again when queues or
    permissions have changed.

    Raises:
        NotPermitted: Who sends may not, at that address.
        InvalidName: The address is a wildcard or the broker's own.
        RemoteProtocolError: The queue belongs to another address.
    """
    check_writable(destination, registry.syntax.delimiter)
    if not destination.is_trusted:
        registry.permissions.check(destination.user, Permission.SEND, destination.address)
    if destination.queue is not None:
        queue = registry.queue_of(destination.address, destination.queue)
        if queue is None or not queue.is_written:  # the sender's confirm would not survive a crash
            return None
        return _target(registry, destination, registry.queue_route(queue))
    address = registry.addresses.get(destination.address)
    if address is not None and address.is_wildcard:
        raise _refuse_wildcard(destination)
    if address is None or not address.serves(destination.routing_type):
        return None
    route = registry.route_of(address, destination.routing_type)
    return _target(registry, destination, route)


def _target(registry: Registry, destination: Destination, route: Route) -> Target | None:
    """Return where messages of a route go; None: the place for those that it loses is missing."""
    settings = registry.settings_for(destination.address)
    seen = route.seen_by(destination.sender)
    instead: Target | None = None
    if registry.unrouted is not None and (not route.places_max or seen.switch is not None):
        unrouted = registry.unrouted.unrouted_target(destination.address)
        if unrouted is not None and unrouted.route is None:
            return None
        if unrouted is not None and unrouted.route is not None:
            instead = Target(
                unrouted.route.next_handle(),
                is_teachable=False,
                switch=unrouted.route.switch,
                dead_letter_address=unrouted.address,
                places=unrouted.route.places_max,
            )
            if not route.places_max:
                return instead
    is_plain = not (
        settings.send_to_dla_on_no_route
        or has_stamps(settings)
        or registry.limits.sends.is_limited(destination, settings)
    )
    return Target(
        seen.next_handle(),
        seen.is_teachable and is_plain,
        seen.switch,
        places=instead.places if instead is not None else 0,
        instead=instead,
    )


async def make_target(registry: Registry, destination: Destination) -> Target:
    """Return where a message goes; make address and queue if the settings allow it.

    Raises:
        NotPermitted: Who sends may not, or may not make what is missing.
        InvalidName: The address is a wildcard or the broker's own.
        RemoteProtocolError: Something is missing that may not be made, or a name is in use
            otherwise.

    Durability: on return a durable queue that was made survives a power loss.
    """
    check_writable(destination, registry.syntax.delimiter)
    if registry.syntax.is_wildcard(destination.address):
        raise _refuse_wildcard(destination)
    if destination.queue is not None:
        queue = registry.queue_of(destination.address, destination.queue)
        if queue is not None and not queue.is_written:
            await registry.write_queue(queue)
            target = find_target(registry, destination)
            if target is not None:
                return target
    if await _make_unrouted(registry, destination):
        target = find_target(registry, destination)
        if target is not None:
            return target
    settings = registry.settings_for(destination.address)
    address = registry.addresses.get(destination.address)
    kind = destination.routing_type or _default_type(registry, address, destination)
    if (address is None or kind not in address.routing_types) and not (
        settings.auto_create_addresses
    ):
        raise _refuse_address(destination, address)
    is_queue_made = destination.queue is not None or kind is RoutingType.ANYCAST
    if not destination.is_trusted:
        registry.permissions.check(destination.user, Permission.SEND, destination.address)
        registry.permissions.check_making(
            destination.user,
            destination.address,
            address,
            kind,
            is_durable=True if is_queue_made else None,
        )
    if is_queue_made:
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
        await _make_unrouted(registry, destination)
    target = find_target(registry, destination)
    if target is None and await _make_unrouted(registry, destination):
        target = find_target(registry, destination)  # its only queue may have a filter
    if target is None:  # deleted again by somebody else between the two steps
        raise RemoteProtocolError(f"the address {destination.address} was deleted meanwhile")
    return target


async def _make_unrouted(registry: Registry, destination: Destination) -> bool:
    """Make the place for what no queue of an address takes, if it is missing; return whether so.

    Durability: on return its queues survive a power loss.
    """
    if registry.unrouted is None or destination.address not in registry.addresses:
        return False
    instead = registry.unrouted.unrouted_target(destination.address)
    if instead is None or instead.route is not None:
        return False
    await registry.unrouted.make_unrouted(destination.address)
    return True


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


def _refuse_wildcard(destination: Destination) -> InvalidName:
    return InvalidName(
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
