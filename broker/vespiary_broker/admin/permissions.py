"""Which permissions the operations of the API need, once there are `security-settings`.

Owns the table: operation → permissions at addresses. An operation that is not in it is as without
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
    for permission, address in NEEDED[route.operation](broker, call):
        broker.permissions.check(principal.name, permission, address)


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


def _task(broker: Broker, call: Call) -> Needs:
    name = call.name
    is_number = name.isascii() and name.isdigit() and len(name) < 19
    task: Any = broker.tasks.get(int(name)) if is_number else None
    return [] if task is None else _at_queue(broker, task.queue, Permission.MANAGE)


def _stream(broker: Broker, call: Call) -> Needs:
    state: Any = broker.streams.get(call.name)
    return [] if state is None else _at_queue(broker, state.queue, Permission.CONSUME)


def _claim(broker: Broker, call: Call) -> Needs:
    state: Any = broker.streams.get(call.body.name)
    queues = {call.body.queue} if state is None else {call.body.queue, state.queue}
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
