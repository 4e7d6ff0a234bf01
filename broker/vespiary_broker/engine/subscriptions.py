"""Subscribing: which queue a consumer gets, and the consumer itself, from open to closed.

Owns the rules. A queue's name or an ANYCAST destination leads to a queue that consumers share;
a MULTICAST one gives each subscriber a temporary queue of its own, or a durable one when client and
subscription have names. Called by the server's sessions.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from vespiary_broker.engine.addresses import Address
from vespiary_broker.engine.core import AckMode, Core
from vespiary_broker.engine.delivery_counts import limit_deliveries
from vespiary_broker.engine.examined import ExaminedQueue
from vespiary_broker.engine.matching import SelectorMatch
from vespiary_broker.engine.names import Destination, check_not_own
from vespiary_broker.engine.permissions import queue_permission
from vespiary_broker.engine.ports import Output
from vespiary_broker.engine.queue_traits import QueueTraits, traits_of_user
from vespiary_broker.engine.queues import Consumer, Queue
from vespiary_broker.engine.registry import Registry
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.streams import check_not_streamed
from vespiary_broker.engine.subscription_names import (
    durable_queue_name,
    former_durable_queue_name,
    free_name,
    last_name,
    queue_names,
    word,
)
from vespiary_broker.engine.views import View
from vespiary_spec.errors import NotPermitted, RemoteProtocolError
from vespiary_spec.settings import Permission, RoutingType


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionRequest:
    """What a client asks for.

    Attributes:
        destination: Where from.
        subscription: Id of the subscription, unique in its connection.
        header: The value of the `subscription` header of its messages, escaped for the version.
        version: Version of STOMP: 10, 11, 12; 0 for another protocol, which encodes by itself.
        mode: Acknowledgement mode.
        credit: Messages that may be out unacknowledged, 1 or more.
        client_id: Name of the client; empty if it has none.
        durable_name: Name of the durable subscription; empty for none.
        protocol: Protocol whose own queues it may have (`QueueTraits.protocol`); empty: none's.
        selector: Which messages it wants; empty for all.
        priority: The consumer is served before those with a lower one.
        is_exclusive: Whether it is to be the only one that is served.
        is_no_local: Whether it does not want what its own session sends; for topics.
        encode: As of `Consumer`; `version` is 0 then.
        on_admitted: Called just before the consumer is made, when nothing but a limit can refuse
            it any more: what it replaces goes then. None: it replaces nothing.
    """

    destination: Destination
    subscription: str
    header: bytes
    version: int
    mode: AckMode
    credit: int
    client_id: str = ""
    durable_name: str = ""
    protocol: str = ""
    selector: str = ""
    priority: int = 0
    is_exclusive: bool = False
    is_no_local: bool = False
    encode: Callable[[bytes], bytes] | None = None
    on_admitted: Callable[[], None] | None = None


def durable_names(client_id: str, durable_name: str, user: str) -> tuple[str, ...]:
    """Return the names that a new queue of a durable subscription may have, the usual one first.

    Args:
        client_id: Name of the client.
        durable_name: Name of the subscription.
        user: Whose client it is; empty is nobody.
    """
    names = queue_names(client_id, word(durable_name))
    return (*names, last_name("", user, names[0]))


def durable_queues(registry: Registry, client_id: str, durable_name: str, user: str) -> list[Queue]:
    """Return the queues of durable subscriptions that a client calls so, whosever they are.

    One of an earlier version has its former name as long as it is there. The client id and the user
    of a queue say whose it is, and its name which subscription of that client.

    Args:
        registry: Addresses and queues.
        client_id: Name of the client.
        durable_name: Name of the subscription.
        user: Whose client it is; empty is nobody.
    """
    if not client_id:
        return []
    names = durable_names(client_id, durable_name, user)
    found = map(registry.queues.get, (*names, former_durable_queue_name(client_id, durable_name)))
    queues = [queue for queue in found if queue is not None and queue.client_id == client_id]
    return [queue for queue in queues if not queue.traits.protocol]


def durable_queue(registry: Registry, client_id: str, durable_name: str, user: str) -> Queue | None:
    """Return the queue of a durable subscription that a user may use; None if there is none.

    Arguments as of `durable_queues`. If there are several, the user's own one comes first.
    """
    queues = durable_queues(registry, client_id, durable_name, user)
    return registry.owners.preferred(queues, user)


def routing_type_for(registry: Registry, destination: Destination) -> RoutingType:
    """Return the routing type that a subscription to a destination has."""
    if destination.routing_type is not None:
        return destination.routing_type
    address = registry.addresses.get(destination.address)
    if address is not None and len(address.routing_types) == 1:
        return next(iter(address.routing_types))
    settings = registry.settings_for(destination.address)
    default = (
        settings.default_address_routing_type
        if destination.queue is None
        else settings.default_queue_routing_type
    )
    assert default is not None
    return default


async def open_subscription(
    core: Core, registry: Registry, output: Output, request: SubscriptionRequest
) -> Consumer:
    """Make a consumer, and its queue if need be.

    Raises:
        NotPermitted: Who asks may not consume there or make what is missing, or is not its owner.
        RemoteProtocolError: The queue does not exist and may not be made, or the request
            contradicts itself or what exists.
        InvalidSelector: The selector is no condition.
        LimitExceeded: There are as many subscriptions, queues or addresses as there may be.

    Durability: on return a durable queue that was made, or has a new owner, survives a power loss.
    """
    destination = request.destination
    check_not_own(destination)
    if not destination.is_trusted:  # before anything is made for it
        registry.permissions.check_subscribing(
            destination.user, Permission.CONSUME, destination.address
        )
    registry.limits.check_subscription()
    match = match_of(request)
    check_connection(registry.addresses.get(destination.address), output.handle)
    queue = await _queue_for(registry, request)
    if not destination.is_trusted:
        await registry.take_into_use(queue, destination.user)
    if queue.is_temporary and queue.connection is None:  # made just now, or by this one's protocol
        queue.connection = output.handle
    check_connection(queue, output.handle)
    await registry.write_queue(queue)
    if destination.queue is None and (queue.is_temporary or queue.client_id):
        match = None  # its filter is the selector
    _admit(registry, output, request, queue)
    settings = registry.settings_for(queue.address.name)
    limit_deliveries(core, queue, settings.max_delivery_attempts or 0)
    handle = core.open_consumer(
        output.handle, queue.id, request.mode, request.credit, request.header, request.version
    )
    consumer = Consumer(
        handle,
        queue,
        output,
        request.mode,
        request.subscription,
        request.credit,
        match,
        request.priority,
        request.is_exclusive,
        encode=request.encode,
        user=destination.user,
        is_trusted=destination.is_trusted,
    )
    registry.guards.protect(consumer)
    registry.limits.subscriptions += 1
    queue.consumers.append(consumer)
    queue.rota.opened(consumer)
    if queue.views is not None:
        queue.views.open(consumer, _view_of(registry, consumer, request))
    elif queue.examined is not None:
        queue.examined.add(consumer)
    elif consumer.wanted is not None:
        queue.examined = ExaminedQueue(core, queue, registry.judge)
    registry.usage.consumer_opened(consumer)
    return consumer


def _admit(registry: Registry, output: Output, request: SubscriptionRequest, queue: Queue) -> None:
    """Check what may have changed while the queue was made; take what the consumer replaces.

    Raises:
        RemoteProtocolError: The queue was deleted, is a stream, or is in use by another; or the
            connection has ended.
        LimitExceeded: There are as many consumers or subscriptions as there may be.
    """
    check_not_streamed(queue)
    if queue.is_deleted:
        raise RemoteProtocolError(f"the queue {queue.name} was deleted meanwhile")
    if output.handle < 0:  # what began without a frame goes on when its connection has gone
        raise RemoteProtocolError(f"the consumer's connection to {queue.name} ended meanwhile")
    with registry.usage.awaiting(queue):
        if request.on_admitted is not None:
            request.on_admitted()
        if queue.client_id and queue.consumers:
            _displace(queue, request, output)
        registry.usage.check_consumers(queue)
        registry.limits.check_subscription()  # others may have come meanwhile


def _displace(queue: Queue, request: SubscriptionRequest, output: Output) -> None:
    """Take a durable subscription from an earlier connection of the same client and user.

    A client that comes again has lost that connection, which the broker may not know yet.

    Raises:
        RemoteProtocolError: It is in use by another user or client, by the same connection, or by
            a protocol that does not give it away.
    """
    sentence = (
        f"the durable subscription {queue.name} was taken over by another connection with the "
        "same user and client id"
    )
    is_own = queue.client_id == request.client_id
    for consumer in list(queue.consumers):
        is_own = is_own and consumer.user == request.destination.user and not consumer.is_trusted
        is_other = consumer.output.handle != output.handle
        if not (is_own and is_other and consumer.output.displace(consumer, sentence)):
            raise RemoteProtocolError(
                f"the durable subscription {queue.name} is in use by another connection",
                cure="close that one first, or use another client-id or name",
            )


def check_connection(place: Address | Queue | None, handle: int | None) -> None:
    """Refuse consumers of other connections at what was made for one: temporary queues and nodes.

    The name is no secret: whoever may list queues knows it. JMS 2.0 §6.2.2 says so of temporary
    destinations.

    Args:
        place: The address or queue; None: there is none, so anybody may make it.
        handle: The core's handle of the connection that asks; None: it made none.

    Raises:
        RemoteProtocolError: Only another connection may consume there.
    """
    if place is not None and place.connection not in (None, handle):
        raise RemoteProtocolError(f"{place.name} was made for another connection alone")


def _view_of(registry: Registry, consumer: Consumer, request: SubscriptionRequest) -> View:
    """Return the view of a consumer that has seen nothing yet."""
    attempts_max = registry.settings_for(consumer.queue.address.name).max_delivery_attempts
    assert attempts_max is not None
    return View(request.header, request.version, request.mode, request.credit, attempts_max)


def match_of(request: SubscriptionRequest) -> SelectorMatch | None:
    """Return what a subscription wants; None: all there is.

    Raises:
        InvalidSelector: The selector is no condition; says where, and what was expected.
    """
    if not request.selector.strip():
        return None
    match = SelectorMatch(request.selector, request.destination.address)
    return None if match.is_everything else match


def close_subscription(
    core: Core, registry: Registry, consumer: Consumer, *, counted: bool = True
) -> None:
    """Close a consumer: what it holds goes back to the queue, which may be deleted with it.

    Args:
        core: The core.
        registry: Addresses and queues.
        consumer: The consumer; closed already is all right.
        counted: Whether what it holds counts as delivered. It does not for a client that goes in an
            orderly way: it would have acknowledged what it got to.
    """
    if not consumer.is_open:
        return
    consumer.end()
    marked = registry.returns.marked(consumer) if counted else []
    core.close_consumer(consumer.handle, counted=counted)
    registry.returns.decide(consumer.queue, marked)
    queue = consumer.queue
    registry.limits.subscriptions -= 1
    queue.consumers.remove(consumer)
    queue.rota.closed(consumer)
    if queue.views is not None:
        queue.views.close(consumer)
    if queue.examined is not None:
        queue.examined.remove(consumer)
        if not queue.consumers:
            queue.examined = None
    registry.usage.consumer_closed(consumer)


def forbidden_consumers(registry: Registry) -> Iterator[tuple[Consumer, NotPermitted]]:
    """Yield the open consumers whose users may not consume any more, and why.

    An administrator who is one no more loses the queues of other users.

    Nothing may be opened or closed meanwhile.
    """
    for queue in registry.queues.values():
        for consumer in queue.consumers:
            if consumer.is_trusted:
                continue
            try:
                registry.permissions.check_subscribing(
                    consumer.user, Permission.CONSUME, queue.address.name
                )
                registry.owners.check(queue, consumer.user)
            except NotPermitted as error:
                yield consumer, error


def delete_durable_subscription(
    registry: Registry, client_id: str, durable_name: str, user: str = ""
) -> str:
    """Delete the queue of a durable subscription that has no consumer.

    Args:
        registry: Addresses and queues.
        client_id: Name of the client.
        durable_name: Name of the subscription.
        user: Who asks; empty is nobody.

    Returns:
        Its key in the bindings, for `Registry.wait_removed`.

    Raises:
        NotPermitted: Who asks may not delete queues there.
        RemoteProtocolError: There is none of that user, or it is in use.
    """
    queue = durable_queue(registry, client_id, durable_name, user)
    if queue is None:
        name = durable_queue_name(client_id, durable_name)
        raise RemoteProtocolError(f"there is no durable subscription {name}")
    check_ending(registry, queue, user)
    if queue.consumers:
        raise RemoteProtocolError(
            f"the durable subscription {queue.name} is in use by another connection"
        )
    registry.check_deletable(queue)
    registry.drop_queue(queue)
    return queue.key


def check_ending(registry: Registry, queue: Queue, user: str) -> None:
    """Refuse to delete the queue of a subscription that a user may not delete.

    Args:
        registry: Addresses and queues.
        queue: The queue.
        user: Who asks; who made it needs the permission for a part of a wildcard alone.

    Raises:
        NotPermitted: It may not, or the queue is another user's.
    """
    registry.owners.check(queue, user)
    permission = queue_permission(is_made=False, is_durable=queue.is_durable)
    if queue.traits.is_filtered and queue.traits.user == user:
        registry.permissions.check_subscribing(user, permission, queue.address.name)
    else:
        registry.permissions.check(user, permission, queue.address.name)


async def _queue_for(registry: Registry, request: SubscriptionRequest) -> Queue:
    destination = request.destination
    kind = routing_type_for(registry, destination)
    if request.is_no_local and (destination.queue is not None or kind is RoutingType.ANYCAST):
        raise RemoteProtocolError(
            "no-local is for a subscription to a topic, which has a queue of its own; consumers "
            "share this queue",
            where=destination.queue or destination.address,
            cure="leave the header no-local out, or subscribe to a topic",
        )
    if request.durable_name:
        return await _durable_queue(registry, request, kind)
    if destination.queue is not None:
        queue = registry.queue_of(destination.address, destination.queue)
        if queue is not None:
            if queue.client_id and queue.client_id != request.client_id:
                raise RemoteProtocolError(f"the queue {queue.name} belongs to another client")
            if queue.traits.protocol not in ("", request.protocol):
                raise RemoteProtocolError(
                    f"the queue {queue.name} belongs to a session of another protocol",
                    cure="subscribe to its address",
                )
            return queue
        return await _shared_queue(registry, destination, destination.queue, kind)
    _check_address(registry, destination, kind)
    if kind is RoutingType.ANYCAST:
        address = registry.addresses.get(destination.address)
        queue = _anycast_queue(address) if address is not None else None
        if queue is not None:
            return queue
        return await _shared_queue(registry, destination, destination.address, kind)
    return await registry.create_queue(
        str(uuid.uuid4()),
        destination.address,
        kind,
        is_durable=False,
        is_auto_created=True,
        is_temporary=True,
        traits=_own_traits(request),
    )


def _anycast_queue(address: Address) -> Queue | None:
    """Return the queue that an address means: that of its own name, else its first."""
    own = address.queues.get(address.name)
    if own is not None and own.routing_type is RoutingType.ANYCAST:
        return own
    return next(iter(address.queues_of(RoutingType.ANYCAST)), None)


async def _durable_queue(
    registry: Registry, request: SubscriptionRequest, kind: RoutingType
) -> Queue:
    destination = request.destination
    if not request.client_id:
        raise RemoteProtocolError(
            "a durable subscription needs the header client-id in the CONNECT frame"
        )
    if kind is not RoutingType.MULTICAST or destination.queue is not None:
        raise RemoteProtocolError(
            "a durable subscription needs a MULTICAST address",
            where=destination.address,
            cure="use the topic prefix or the header subscription-type:MULTICAST",
        )
    _check_address(registry, destination, kind)
    traits = _own_traits(request)
    client = request.client_id, request.durable_name, destination.user
    found, names = durable_queue(registry, *client), durable_names(*client)
    queue = await registry.create_queue(
        free_name(names, registry.queues) if found is None else found.name,
        destination.address,
        kind,
        client_id=request.client_id,
        traits=traits,
        is_early=True,
    )
    if queue.traits.filter_string != traits.filter_string:
        raise RemoteProtocolError(
            f"the durable subscription {queue.name} has another selector",
            measured=ascii(traits.filter_string[:100]),
            allowed=ascii(queue.traits.filter_string[:100]),
            cure="subscribe with that one, or delete the subscription (UNSUBSCRIBE) first",
        )
    if queue.traits.is_no_local is not request.is_no_local:
        raise RemoteProtocolError(
            f"the durable subscription {queue.name} was made with another no-local",
            measured=str(request.is_no_local).lower(),
            allowed=str(queue.traits.is_no_local).lower(),
            cure="subscribe with that, or delete the subscription (UNSUBSCRIBE) first",
        )
    return queue


def _own_traits(request: SubscriptionRequest) -> QueueTraits:
    """Return the traits of a queue that belongs to one subscription: it takes in what matches."""
    traits = traits_of_user(request.destination.user)
    if request.is_no_local:
        subscriber = None if request.durable_name else request.destination.sender
        traits = replace(traits, is_no_local=True, subscriber=subscriber)
    if not request.selector:
        return traits  # one object for all of the user
    return replace(traits, selector=compile_filter(request.selector))


async def _shared_queue(
    registry: Registry, destination: Destination, name: str, kind: RoutingType
) -> Queue:
    _check_address(registry, destination, kind)
    if not registry.settings_for(destination.address).auto_create_queues:
        raise RemoteProtocolError(
            f"there is no queue {name}, and auto-create-queues is off for its address",
            cure="create the queue first",
        )
    if kind is RoutingType.ANYCAST and not destination.is_trusted:  # it takes all of a wildcard
        registry.permissions.check(destination.user, Permission.CONSUME, destination.address)
    return await registry.create_queue(
        name,
        destination.address,
        kind,
        is_auto_created=True,
        traits=traits_of_user(destination.user),
    )


def _check_address(registry: Registry, destination: Destination, kind: RoutingType) -> None:
    """Raise unless the address serves the type or may be made to."""
    address = registry.addresses.get(destination.address)
    if address is not None and kind in address.routing_types:
        return
    if registry.settings_for(destination.address).auto_create_addresses:
        return
    if address is None:
        raise RemoteProtocolError(
            f"there is no address {destination.address}, and auto-create-addresses is off for it",
            cure="create the address first",
        )
    raise RemoteProtocolError(
        f"the address {destination.address} does not serve {kind}",
        allowed=", ".join(sorted(address.routing_types)),
    )
