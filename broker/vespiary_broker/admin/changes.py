"""What the API changes about queues and addresses that exist: pausing, traits, routing types.

Owns the operations. Must never know headers or sockets. The rules are the
engine's. Called by `routes`; owner: the event loop.
"""

from __future__ import annotations

from vespiary_broker.admin import change_records, records
from vespiary_broker.admin.handlers import Answer, Api, Call, shown
from vespiary_broker.admin.problems import Refused, unknown_queue
from vespiary_broker.admin.queue_wishes import wishes_of


async def change_queue(api: Api, call: Call) -> Answer:
    """Change what is particular about a queue; consumers that it has stay."""
    _check_queue(api, call.name)
    wanted: change_records.QueueChanges = call.body
    wishes = wishes_of(call.name, wanted, filter_string=wanted.filter_string)
    state = await api.broker.naming.change_queue(call.name, wishes)
    return Answer(shown(state, records.Queue))


async def pause_queue(api: Api, call: Call) -> Answer:
    """Give nothing more of a queue to its consumers."""
    _check_queue(api, call.name)
    state = await api.broker.naming.pause_queue(call.name, is_kept=call.query["persist"])
    return Answer(shown(state, records.Queue))


async def resume_queue(api: Api, call: Call) -> Answer:
    """Go on giving a queue's messages to its consumers."""
    _check_queue(api, call.name)
    return Answer(shown(await api.broker.naming.resume_queue(call.name), records.Queue))


async def pause_address(api: Api, call: Call) -> Answer:
    """Give nothing more of the queues of an address to their consumers, also of queues to come."""
    _check_address(api, call.name)
    state = await api.broker.naming.pause_address(call.name, is_kept=call.query["persist"])
    return Answer(shown(state, records.Address))


async def resume_address(api: Api, call: Call) -> Answer:
    """Go on giving messages of an address; queues that were paused themselves stay so."""
    _check_address(api, call.name)
    return Answer(shown(await api.broker.naming.resume_address(call.name), records.Address))


async def change_address(api: Api, call: Call) -> Answer:
    """Give an address these routing types and no others."""
    _check_address(api, call.name)
    wanted: change_records.AddressChanges = call.body
    state = await api.broker.naming.change_address(call.name, set(wanted.routing_types))
    return Answer(shown(state, records.Address))


def _check_queue(api: Api, name: str) -> None:
    if api.broker.queue(name) is None:
        raise unknown_queue(name, api.broker.queue)


def _check_address(api: Api, name: str) -> None:
    if api.broker.address(name) is None:
        raise Refused(404, f"There is no address {name[:200]!r}.")
