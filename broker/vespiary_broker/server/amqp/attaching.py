"""Attaching: which link a client gets, with what behind it.

Owns the way from an `attach` to a link that is ready, or that is refused with the reason. What is
made on the way survives as the engine says. Called by `session`.

Source: AMQP 1.0 (OASIS, 2012) §2.6.3, §3.5 and §4.1; what Qpid JMS expects of shared and durable
subscriptions.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from vespiary_broker.engine.core import AckMode
from vespiary_broker.engine.names import Destination
from vespiary_broker.engine.publishing import find_target, make_target
from vespiary_broker.engine.queues import Queue
from vespiary_broker.engine.selection.selector import compile_filter
from vespiary_broker.engine.subscription_names import (
    former_durable_queue_name,
    free_name,
    last_name,
)
from vespiary_broker.engine.subscriptions import (
    SubscriptionRequest,
    check_ending,
    delete_durable_subscription,
    durable_queue,
    open_subscription,
    routing_type_for,
)
from vespiary_broker.server.amqp.browsing import open_browser
from vespiary_broker.server.amqp.conditions import Condition, Refused
from vespiary_broker.server.amqp.coordinating import CoordinatorLink
from vespiary_broker.server.amqp.links import Link, RefusedLink
from vespiary_broker.server.amqp.receivers import Identity
from vespiary_broker.server.amqp.receiving import IncomingLink
from vespiary_broker.server.amqp.recovering import DurableIncomingLink, open_durable
from vespiary_broker.server.amqp.recovering import is_durable as is_durable_sender
from vespiary_broker.server.amqp.sending import OutgoingLink
from vespiary_broker.server.amqp.terminus import (
    COPY,
    address_of,
    filters_of,
    is_durable,
    is_global,
    kind_of,
    shared_queue_name,
)
from vespiary_broker.server.compiling_in_time import compile_in_time
from vespiary_broker.server.protocol_handler import sentence_of
from vespiary_codec.wire.amqp import OUTCOMES, Attach, Coordinator, Source, Target
from vespiary_codec.wire.amqp.values import Symbol, UByte, UInt, ULong
from vespiary_spec.errors import InvalidSelector, RemoteProtocolError, VespiaryError
from vespiary_spec.security import ANONYMOUS_ROLE
from vespiary_spec.settings import Permission, RoutingType

if TYPE_CHECKING:
    from vespiary_broker.server.amqp.session import AmqpSession

_NAME_CHARACTERS_MAX: Final = 1024
_MIXED: Final = 2
_OUTCOMES: Final = (
    "amqp:accepted:list", "amqp:rejected:list", "amqp:released:list", "amqp:modified:list",
)  # fmt: skip


async def attach(session: AmqpSession, asked: Attach) -> Link:
    """Return the link that a client asks for, or one that is refused.

    Durability: on return a durable queue that was made for it survives a power loss.
    """
    try:
        if len(asked.name) > _NAME_CHARACTERS_MAX:
            raise Refused(
                Condition.INVALID_FIELD,
                "the name of a link is too long",
                measured=f"{len(asked.name)} characters",
                allowed=f"at most {_NAME_CHARACTERS_MAX}",
            )
        if isinstance(asked.target, Coordinator):
            return _coordinator(session, asked)
        if asked.role:
            return await _outgoing(session, asked)
        return await _incoming(session, asked)
    except VespiaryError as error:
        session.cycle.count_error(type(error).__name__)
        return RefusedLink(session, asked, _with_condition(session, asked, error))


def _with_condition(session: AmqpSession, asked: Attach, error: VespiaryError) -> VespiaryError:
    """Return an error that says `not-found` where that is what it means."""
    if isinstance(error, InvalidSelector):
        info = {Symbol("invalid-field"): Symbol("filter")}
        return Refused(Condition.INVALID_FIELD, sentence_of(error), info=info)
    if type(error) is not RemoteProtocolError:
        return error
    terminus = asked.source if asked.role else asked.target
    name = str(getattr(terminus, "address", "") or "")
    registry = session.cycle.engine.registry
    address = session.handler.plain_address(name)
    is_there = address in registry.addresses or address in registry.queues
    condition = Condition.PRECONDITION_FAILED if is_there else Condition.NOT_FOUND
    return Refused(condition, sentence_of(error))


def _coordinator(session: AmqpSession, asked: Attach) -> Link:
    answer = Attach(
        name=asked.name,
        handle=UInt(asked.handle),
        role=True,
        snd_settle_mode=UByte(asked.snd_settle_mode),
        rcv_settle_mode=UByte(0),
        source=asked.source,
        target=Coordinator(
            capabilities=(
                Symbol("amqp:local-transactions"),
                Symbol("amqp:multi-txns-per-ssn"),
                Symbol("amqp:multi-ssns-per-txn"),
            )
        ),
    )
    return CoordinatorLink(session, asked, answer)


# --- clients that send ----------------------------------------------------------------------------


async def _incoming(session: AmqpSession, asked: Attach) -> Link:
    target = asked.target
    if target is None:
        raise Refused(Condition.INVALID_FIELD, "a link has no target")
    handler = session.handler
    text, node = address_of(target), None
    destination: Destination | None = None
    if target.dynamic:
        text, node = await _make_node(session, target, Permission.SEND)
        destination = handler.destination_of(text, kind_of(target))
    elif text:
        destination = handler.destination_of(text, kind_of(target))
        registry = session.cycle.engine.registry
        if find_target(registry, destination) is None:
            await make_target(registry, destination)
    answer = Attach(
        name=asked.name,
        handle=UInt(asked.handle),
        role=True,
        snd_settle_mode=UByte(asked.snd_settle_mode),
        rcv_settle_mode=UByte(asked.rcv_settle_mode),
        source=asked.source,
        target=_target_answer(target, text),  # as the client writes it
        max_message_size=ULong(handler.settings.max_message_size),
        offered_capabilities=(Symbol("DELAYED_DELIVERY"),),
    )
    text = handler.own_form(text)
    if is_durable_sender(asked):
        durable = await open_durable(session, asked)
        return DurableIncomingLink(session, asked, destination, text, answer, durable)
    return IncomingLink(session, asked, destination, text, answer, node)


def _target_answer(target: Target, text: str) -> Target:
    return Target(
        address=text or None,
        durable=UInt(target.durable),
        expiry_policy=Symbol(target.expiry_policy),
        timeout=UInt(target.timeout),
        dynamic=target.dynamic,
        dynamic_node_properties=target.dynamic_node_properties,
        capabilities=target.capabilities,
    )


async def _make_node(
    session: AmqpSession, terminus: Source | Target, permission: Permission
) -> tuple[str, Queue | None]:
    """Make a node of a name that is used once, which goes with its link.

    Args:
        session: The session.
        terminus: What was asked for.
        permission: What the link needs there.

    Raises:
        NotPermitted: The user may not use it, or not make it.
    """
    registry, user = session.cycle.engine.registry, session.handler.user
    name = str(uuid.uuid4())
    registry.permissions.check(user, permission, name)
    if kind_of(terminus) is RoutingType.MULTICAST:
        registry.permissions.check_making(user, name, None, RoutingType.MULTICAST)
        address = await registry.create_address(name, {RoutingType.MULTICAST}, is_auto_created=True)
        address.connection = session.connection.handle
        return name, None
    queue = await registry.create_queue(
        name,
        name,
        RoutingType.ANYCAST,
        is_durable=False,
        is_auto_created=True,
        traits=session.handler.traits,
    )
    queue.address.connection = session.connection.handle
    session.handler.keep_node(queue)
    return name, queue


# --- clients that receive -------------------------------------------------------------------------


async def _outgoing(session: AmqpSession, asked: Attach) -> Link:
    source = asked.source
    if source is None:
        return await _subscription_alone(session, asked)
    handler = session.handler
    selector, is_no_local, filters = filters_of(source)
    text, node = address_of(source), None
    if source.dynamic:
        wanted = Permission.BROWSE if source.distribution_mode == COPY else Permission.CONSUME
        text, node = await _make_node(session, source, wanted)
    if not text:
        raise Refused(Condition.INVALID_FIELD, "the source of a link has no address")
    await compile_in_time(selector, session.cycle.engine.turn_time)  # before anything is made
    destination = handler.destination_of(text, kind_of(source))
    link = OutgoingLink(session, asked, _source_answer(session, asked, source, text, filters))
    link.node = node
    request = SubscriptionRequest(
        destination=destination,
        subscription=asked.name,
        header=b"",
        version=0,
        mode=AckMode.INDIVIDUAL,
        credit=1,
        client_id=handler.client_id,
        selector=selector,
        is_no_local=is_no_local,
        priority=_priority(asked),
        encode=link.encode,
    )
    registry = session.cycle.engine.registry
    kind = routing_type_for(registry, destination)
    is_topic = kind is RoutingType.MULTICAST and destination.queue is None
    is_browsed = source.distribution_mode == COPY and not is_topic
    # Before anything of a subscription is made or deleted for it.
    permission = Permission.BROWSE if is_browsed else Permission.CONSUME
    registry.permissions.check_subscribing(destination.user, permission, destination.address)
    if is_topic:
        request = await _subscription(session, link, request, source)
    elif is_no_local:
        raise Refused(
            Condition.NOT_IMPLEMENTED,
            "no-local is for a topic, whose subscribers have a queue each",
            info={Symbol("invalid-field"): Symbol("filter")},
        )
    elif is_browsed:
        return await open_browser(session, link, request)
    identity, receivers = None, session.cycle.receivers
    if "shared" not in source.capabilities:
        identity = Identity(handler.user, handler.client_id, link.name)
        request = replace(request, on_admitted=partial(receivers.steal, identity))
    consumer = await open_subscription(session.cycle.core, registry, session.connection, request)
    link.begin(consumer, (asked.unsettled or {}) if consumer.queue.is_durable else {})
    if identity is not None:
        receivers.take(identity, link)
    return link


def _source_answer(
    session: AmqpSession, asked: Attach, source: Source, text: str, filters: dict[Any, Any] | None
) -> Attach:
    return Attach(
        name=asked.name,
        handle=UInt(asked.handle),
        role=False,
        snd_settle_mode=UByte(asked.snd_settle_mode),
        rcv_settle_mode=UByte(asked.rcv_settle_mode),
        source=Source(
            address=text,
            durable=UInt(source.durable),
            expiry_policy=Symbol(source.expiry_policy),
            timeout=UInt(source.timeout),
            dynamic=source.dynamic,
            dynamic_node_properties=source.dynamic_node_properties,
            distribution_mode=(
                None if source.distribution_mode is None else Symbol(source.distribution_mode)
            ),
            filter=filters,
            default_outcome=(
                source.default_outcome if isinstance(source.default_outcome, OUTCOMES) else None
            ),
            outcomes=tuple(map(Symbol, _OUTCOMES)),
            capabilities=source.capabilities,
        ),
        target=asked.target,
        initial_delivery_count=UInt(0),
        max_message_size=ULong(session.handler.settings.max_message_size),
    )


def _priority(asked: Attach) -> int:
    """Return the priority of a consumer, as properties of its link have it."""
    value = (asked.properties or {}).get("priority", 0)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return int(value) if is_number and abs(value) < 2**31 else 0


async def _subscription(
    session: AmqpSession, link: OutgoingLink, request: SubscriptionRequest, source: Source
) -> SubscriptionRequest:
    """Return a request for the queue of a subscription to a topic, made if need be."""
    if "shared" in source.capabilities:
        return await _shared(session, link, request, source)
    if not is_durable(source):
        return request
    registry, handler = session.cycle.engine.registry, session.handler
    queue = durable_queue(registry, handler.client_id, link.name, handler.user)
    if queue is not None:
        _displace(session, queue)
    if queue is not None and _is_changed(queue, request):
        # As JMS has it: another selector or topic is another subscription of the same name.
        await _delete_durable(session, link.name)
    link.on_detached = lambda: _delete_durable(session, link.name)
    return replace(request, durable_name=link.name)


def _displace(session: AmqpSession, queue: Queue) -> None:
    """Take a durable subscription from the link that its client has attached before.

    Raises:
        Refused: It is another user's, or another client's.
    """
    handler = session.handler
    sentence = f"the durable subscription {queue.name} was attached again by its client"
    is_own = queue.client_id == handler.client_id
    for consumer in list(queue.consumers):
        is_own = is_own and consumer.user == handler.user and not consumer.is_trusted
        if not is_own or not consumer.output.displace(consumer, sentence):
            raise Refused(
                Condition.RESOURCE_LOCKED,
                f"the durable subscription {queue.name} is in use by another link",
                cure="detach that one first",
            )


def _is_changed(queue: Queue, request: SubscriptionRequest) -> bool:
    selector = compile_filter(request.selector)
    wanted = "" if selector is None else selector.text
    return (
        queue.traits.filter_string != wanted
        or queue.traits.is_no_local is not request.is_no_local
        or queue.address.name != request.destination.address
    )


async def _delete_durable(session: AmqpSession, name: str) -> None:
    registry, handler = session.cycle.engine.registry, session.handler
    key = delete_durable_subscription(registry, handler.client_id, name, handler.user)
    await registry.wait_removed(key)


async def _shared(
    session: AmqpSession, link: OutgoingLink, request: SubscriptionRequest, source: Source
) -> SubscriptionRequest:
    if request.is_no_local:
        raise Refused(Condition.NOT_IMPLEMENTED, "a shared subscription is not no-local")
    registry = session.cycle.engine.registry
    handler, is_owned = session.handler, not is_global(source)
    existing = _shared_queue(session, link.name, source)
    if existing is not None:
        name = existing.name
        if is_owned and not existing.traits.is_owned:
            await _mark_owned(session, existing)
    else:
        name = _new_shared_name(session, link.name, source)
    if existing is not None and _is_changed(existing, request):
        if existing.consumers:
            raise Refused(
                Condition.RESOURCE_LOCKED,
                f"the shared subscription {name} is in use with another selector or topic",
            )
        await _delete_shared(session, existing)
    keeps = is_durable(source)
    traits = replace(handler.traits_with(request.selector), is_owned=is_owned)
    queue = await registry.create_queue(
        name,
        request.destination.address,
        RoutingType.MULTICAST,
        is_durable=keeps,
        is_auto_created=not keeps,
        traits=traits,
        is_early=True,
    )
    if keeps:
        link.on_detached = lambda: _delete_shared(session, queue)
    destination = replace(request.destination, queue=queue.name, routing_type=RoutingType.MULTICAST)
    return replace(request, destination=destination, selector="")


def _shared_names(session: AmqpSession, link_name: str, source: Source) -> tuple[str, ...]:
    """Return the names that the queue of a shared subscription may have, the usual one first."""
    handler = session.handler
    usual = shared_queue_name(handler.client_id, link_name, source)
    return (usual,) if is_global(source) else (usual, last_name("", handler.user, usual))


def _new_shared_name(session: AmqpSession, link_name: str, source: Source) -> str:
    """Return the name of a shared subscription whose queue is not there.

    It is the usual one, too, where that is of a durable subscription of the same client and user:
    JMS has one name for one of both, and the second is refused.

    Raises:
        InvalidName: It is one for all containers, with a name that no client may choose.
    """
    registry, user = session.cycle.engine.registry, session.handler.user
    usual, *others = _shared_names(session, link_name, source)
    if not others:
        registry.owners.check_chosen(usual, user)
    durable = registry.queues.get(usual)
    if durable is not None and durable.client_id and registry.owners.may_use(durable, user):
        return usual
    return free_name((usual, *others), registry.queues)


def _shared_queue(session: AmqpSession, link_name: str, source: Source) -> Queue | None:
    """Return the queue of a shared subscription, maybe with its former name; None: it is not there.

    Queues of other users are none of one that only a container has, nor are those at another
    address that no such subscription has made. A former name with several dots may be that of
    another container's subscription: there its user and its topic say whose it is.
    """
    registry, handler = session.cycle.engine.registry, session.handler
    address = handler.plain_address(address_of(source))
    found = []
    for name in _shared_names(session, link_name, source):
        queue = registry.queues.get(name)
        if queue is None or queue.client_id or queue.routing_type is not RoutingType.MULTICAST:
            continue
        if is_global(source):
            return queue
        is_made = queue.traits.is_owned or queue.traits.user == handler.user
        if is_made or address in ("", queue.address.name):
            found.append(queue)
    if own := registry.owners.preferred(found, handler.user):
        return own
    former = shared_queue_name(handler.client_id, link_name, source, former_durable_queue_name)
    queue = registry.queues.get(former)
    if queue is None or queue.client_id or queue.routing_type is not RoutingType.MULTICAST:
        return None
    is_one = former.count(".") == 1 or address in ("", queue.address.name)
    return queue if is_one and queue.traits.user in (handler.user, ANONYMOUS_ROLE) else None


async def _mark_owned(session: AmqpSession, queue: Queue) -> None:
    """Let a queue have an owner that an earlier version made for a shared subscription.

    One that a client without a login made is adopted by who consumes from it next. One that nobody
    made by such a subscription (the configuration, the HTTP API) stays shared.

    Raises:
        NotOwner: Another user made it.

    Durability: on return it is marked after a power loss too.
    """
    registry, user = session.cycle.engine.registry, session.handler.user
    registry.owners.check_made(queue, user)
    if queue.traits.user in (user, ANONYMOUS_ROLE) and not queue.traits.is_configured:
        await registry.change_traits(queue, replace(queue.traits, is_owned=True))


async def _delete_shared(session: AmqpSession, queue: Queue) -> None:
    """Delete the queue of a shared subscription, if nobody else uses it.

    Raises:
        NotPermitted: The user may not delete it, or it is another user's.
    """
    registry = session.cycle.engine.registry
    if queue.is_deleted or queue.consumers:
        return
    check_ending(registry, queue, session.handler.user)
    registry.check_deletable(queue)
    registry.drop_queue(queue)
    await registry.wait_removed(queue.key)


async def _subscription_alone(session: AmqpSession, asked: Attach) -> Link:
    """Attach to a subscription by its name alone, to delete it with a closing detach."""
    registry = session.cycle.engine.registry
    name = asked.name
    source = Source(capabilities=asked.desired_capabilities, durable=UInt(1))
    shared = _shared_queue(session, name, source)
    durable_name = name.partition("|")[0]
    handler = session.handler
    own = durable_queue(registry, handler.client_id, durable_name, handler.user)
    queue = shared if "shared" in asked.desired_capabilities or own is None else own
    queue = queue or shared or own
    if queue is None or queue.routing_type is not RoutingType.MULTICAST:
        raise Refused(Condition.NOT_FOUND, f"there is no subscription {name[:100]!a}")
    found = Source(
        address=queue.address.name,
        durable=UInt(2),
        expiry_policy=Symbol("never"),
        capabilities=asked.desired_capabilities,
    )
    link = OutgoingLink(session, asked, _source_answer(session, asked, found, found.address, None))
    is_own = bool(queue.client_id)

    async def delete() -> None:
        if queue.consumers:
            raise Refused(Condition.RESOURCE_LOCKED, f"the subscription {queue.name} is in use")
        if is_own:
            await _delete_durable(session, durable_name)
        else:
            await _delete_shared(session, queue)

    link.on_detached = delete
    return link
