"""Operations of the API on the message groups of queues.

Owns the operations. Must never know headers or sockets. Called through `queue_routes`; owner: the
event loop.
"""

from __future__ import annotations

from vespiary_broker.admin import group_records
from vespiary_broker.admin.handlers import Answer, Api, Call, number, shown
from vespiary_broker.admin.problems import unknown_queue


async def list_groups(api: Api, call: Call) -> Answer:
    """List the groups of a queue that belong to consumers."""
    _check_queue(api, call.name)
    start, limit = number(call.query["after"]) or 0, call.query["limit"]
    found = api.broker.groups.owners(call.name, start=start, limit=limit + 1)
    items = tuple(shown(owner, group_records.GroupOwner) for owner in found[:limit])
    following = str(start + limit) if len(found) > limit else None
    return Answer(group_records.GroupPage(items=items, next=following))


async def release_groups(api: Api, call: Call) -> Answer:
    """Let all groups of a queue find their consumers anew."""
    _check_queue(api, call.name)
    return Answer(group_records.GroupsReleased(groups=api.broker.groups.release(call.name)))


def _check_queue(api: Api, name: str) -> None:
    if api.broker.queue(name) is None:
        raise unknown_queue(name, api.broker.queue)
