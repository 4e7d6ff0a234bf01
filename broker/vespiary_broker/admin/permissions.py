"""Which permissions the operations of the API need, once there are `security-settings`.

Owns the tables: operation → permissions at addresses, and operation → queues that must not be
another user's, with or without `security-settings`. An operation that is not in it is as without
rules: looking is free to whoever is logged in, changing needs the role `admin`. That role may
everything. Must never decide: `engine.permissions` does. Called by `endpoints`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from vespiary_broker.admin.access import is_administrator
from vespiary_broker.admin.handlers import Call
from vespiary_broker.admin.ports import Broker
from vespiary_broker.admin.route import Route
from vespiary_broker.engine.logins import Principal
from vespiary_broker.engine.permissions import queue_permission
from vespiary_spec.settings import Permission, RoutingType

Needs = list[tuple[Permission, str]]
"""Permissions and the addresses where they are needed."""

Needed = Callable[[Broker, Call], Needs]


def is_ruled(broker: Broker, route: Route, principal: Principal) -> bool:
    """Return whether rules decide about an operation of somebody, and no role alone."""
    return (
        route.operation in NEEDED and not is_administrator(principal) and broker.permissions.is_on
    )


def check(broker: Broker, route: Route, principal: Principal, call: Call) -> None:
    """Refuse an operation that rules decide about.

    Args:
        broker: The broker.
        route: The operation; `is_ruled`.
        principal: Who asks.
        call: The request.

    Raises:
        NotPermitted: It lacks a permission.
    """
    permissions = broker.permissions
    is_part_enough = route.operation in SHOWN_IN_PART
    ask = permissions.check_subscribing if is_part_enough else permissions.check
    for permission, address in NEEDED[route.operation](broker, call):
        ask(principal.name, permission, address)


def check_owners(broker: Broker, route: Route, principal: Principal, call: Call) -> None:
    """Refuse an operation on a queue of another user to all but administrators.

    Args:
        broker: The broker.
        route: The operation.
        principal: Who asks.
        call: The request.

    Raises:
        NotOwner: A queue that it is about belongs to another user.
    """
    if route.operation in QUEUES and not is_administrator(principal):
        for queue in QUEUES[route.operation](broker, call):
            broker.check_owner(queue, principal.name)


def _at_queue(broker: Broker, queue: str, permission: Permission) -> Needs:
    """Return a permission at a queue's address; none if there is no such queue: that is told."""
    state: Any = broker.queue(queue)
    return [] if state is None else [(permission, state.address)]


def _of_queue(permission: Permission) -> Needed:
    return lambda broker, call: _at_queue(broker, call.name, permission)


def _of_address(permission: Permission) -> Needed:
    return lambda _, call: [(permission, call.name)]


def _create_address(_: Broker, call: Call) -> Needs:
    return [(Permission.CREATE_ADDRESS, call.body.name)]


def _create_queue(broker: Broker, call: Call) -> Needs:
    address = call.body.name if call.body.address is None else call.body.address
    need = (queue_permission(is_made=True, is_durable=call.body.durable), address)
    return [need, *_new_types(broker, address, {call.body.routing_type})]


def _change_address(broker: Broker, call: Call) -> Needs:
    need = (Permission.MANAGE, call.name)
    if broker.address(call.name) is None:
        return [need]
    return [need, *_new_types(broker, call.name, set(call.body.routing_types))]


def _new_types(broker: Broker, address: str, routing_types: set[RoutingType]) -> Needs:
    """Return what it takes to have an address serve routing types: nothing if it does already.

    The protocols have the same rule (`Permissions.check_making`).
    """
    state: Any = broker.address(address)
    if state is not None and routing_types <= set(state.routing_types):
        return []
    return [(Permission.CREATE_ADDRESS, address)]


def _delete_queue(broker: Broker, call: Call) -> Needs:
    state: Any = broker.queue(call.name)
    if state is None:
        return []
    return [(queue_permission(is_made=False, is_durable=state.is_durable), state.address)]


def _transfer(broker: Broker, call: Call) -> Needs:
    return [
        *_at_queue(broker, call.name, Permission.MANAGE),
        *_at_queue(broker, call.body.to, Permission.SEND),
    ]


def _own_queue(_: Broker, call: Call) -> set[str]:
    return {call.name}


def _queue_of_task(broker: Broker, call: Call) -> set[str]:
    name = call.name
    is_number = name.isascii() and name.isdigit() and len(name) < 19
    task: Any = broker.tasks.get(int(name)) if is_number else None
    return set() if task is None else {task.queue}


def _task(broker: Broker, call: Call) -> Needs:
    queues = _queue_of_task(broker, call)
    return [each for queue in queues for each in _at_queue(broker, queue, Permission.MANAGE)]


def _queue_of_stream(broker: Broker, call: Call) -> set[str]:
    state: Any = broker.streams.get(call.name)
    return set() if state is None else {state.queue}


def _stream(broker: Broker, call: Call) -> Needs:
    queues = _queue_of_stream(broker, call)
    return [each for queue in queues for each in _at_queue(broker, queue, Permission.CONSUME)]


def _queues_of_claim(broker: Broker, call: Call) -> set[str]:
    state: Any = broker.streams.get(call.body.name)
    return {call.body.queue} if state is None else {call.body.queue, state.queue}


def _claim(broker: Broker, call: Call) -> Needs:
    queues = _queues_of_claim(broker, call)
    return [each for queue in queues for each in _at_queue(broker, queue, Permission.CONSUME)]


NEEDED: Final[Mapping[str, Needed]] = {
    "createAddress": _create_address,
    "changeAddress": _change_address,
    "deleteAddress": _of_address(Permission.DELETE_ADDRESS),
    "createQueue": _create_queue,
    "deleteQueue": _delete_queue,
    "browseQueue": _of_queue(Permission.BROWSE),
    "countMessages": _of_queue(Permission.BROWSE),
    "listGroups": _of_queue(Permission.BROWSE),
    "moveMessages": _transfer,
    "copyMessages": _transfer,
    "cancelTask": _task,
    "claimStream": _claim,
    **dict.fromkeys(
        ("headOfStream", "rangeOfStream", "bodyOfStream", "acknowledgeStream", "deleteStream"),
        _stream,
    ),
    **dict.fromkeys(
        (
            *("pauseAddress", "resumeAddress"),
            *("showDuplicateIds", "clearDuplicateIds", "resetAddressCounter"),
            "showAddressSettings",
        ),
        _of_address(Permission.MANAGE),
    ),
    **dict.fromkeys(
        (
            *("changeQueue", "pauseQueue", "resumeQueue", "purgeQueue", "releaseGroups"),
            *("changeExpiry", "changePriority", "removeMessages", "retryMessages"),
            *("sendToDeadLetterAddress", "deliverScheduled", "expireMessages"),
            "resetQueueCounter",
        ),
        _of_queue(Permission.MANAGE),
    ),
}
"""What each operation needs that rules decide about."""

QUEUES: Final[Mapping[str, Callable[[Broker, Call], set[str]]]] = {
    "cancelTask": _queue_of_task,
    "claimStream": _queues_of_claim,
    **dict.fromkeys(
        ("headOfStream", "rangeOfStream", "bodyOfStream", "acknowledgeStream", "deleteStream"),
        _queue_of_stream,
    ),
    **dict.fromkeys(
        (
            *("deleteQueue", "changeQueue", "pauseQueue", "resumeQueue", "purgeQueue"),
            *("browseQueue", "countMessages", "listGroups", "releaseGroups", "resetQueueCounter"),
            *("moveMessages", "copyMessages", "changeExpiry", "changePriority", "removeMessages"),
            *("retryMessages", "sendToDeadLetterAddress", "deliverScheduled", "expireMessages"),
        ),
        _own_queue,
    ),
}
"""Queues that an operation reads, takes from, changes or deletes."""

SHOWN_IN_PART: Final = frozenset(("browseQueue",))
"""Operations that show of a wildcard's queue what whoever asks may see (`Call.user`)."""
