"""Operations of the API on the messages that wait in a queue: tasks that move, change or end them.

Owns the way from a body to what is wanted. Must never hold a rule: the broker has those. Called
through `message_routes`; owner: the event loop.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from vespiary_broker.admin import task_records
from vespiary_broker.admin.handlers import Answer, Api, Call, shown
from vespiary_broker.admin.problems import Refused, refused, unknown_queue
from vespiary_broker.engine.wanted import Act, Wanted
from vespiary_spec.errors import InvalidSelector, NotPermitted, RemoteProtocolError


async def move_messages(api: Api, call: Call) -> Answer:
    """Move messages that wait in a queue to another queue."""
    return await _begin(api, call, Act.MOVE, to=call.body.to)


async def copy_messages(api: Api, call: Call) -> Answer:
    """Copy messages that wait in a queue to another queue."""
    return await _begin(api, call, Act.COPY, to=call.body.to)


async def change_expiry(api: Api, call: Call) -> Answer:
    """Change when messages that wait in a queue expire; they go to its end."""
    body: task_records.ExpiryChange = call.body
    if (body.expires_ms is None) is (body.time_to_live_ms is None):
        raise Refused(400, "Give one of expiresMs and timeToLiveMs.")
    expires_ms = body.expires_ms
    if body.time_to_live_ms is not None:
        expires_ms = time.time_ns() // 1_000_000 + body.time_to_live_ms
    return await _begin(api, call, Act.CHANGE_EXPIRY, expires_ms=expires_ms)


async def change_priority(api: Api, call: Call) -> Answer:
    """Change the priority of messages that wait in a queue; they go to its end."""
    return await _begin(api, call, Act.CHANGE_PRIORITY, priority=call.body.priority)


async def remove_messages(api: Api, call: Call) -> Answer:
    """Remove messages that wait in a queue."""
    return await _begin(api, call, Act.REMOVE)


async def retry_messages(api: Api, call: Call) -> Answer:
    """Move the dead letters that wait in a queue back to the queues that they came from.

    A queue that is gone is made again where `auto-create-queues` allows it. Messages whose queue
    cannot be made stay, and so do those of addresses that the user may not send to.
    """
    return await _begin(api, call, Act.RETRY)


async def send_to_dead_letter_address(api: Api, call: Call) -> Answer:
    """Move the messages that wait in a queue to its dead letter address."""
    return await _begin(api, call, Act.DEAD_LETTER)


async def deliver_scheduled(api: Api, call: Call) -> Answer:
    """Have scheduled messages of a queue delivered now; they go to its end."""
    return await _begin(api, call, Act.DELIVER)


async def expire_messages(api: Api, call: Call) -> Answer:
    """Let the messages that wait in a queue expire: to its expiry address, or nowhere."""
    return await _begin(api, call, Act.EXPIRE)


async def _begin(api: Api, call: Call, act: Act, **more: Any) -> Answer:
    """Begin a task; wait for a while, and answer with how it is then."""
    if api.broker.queue(call.name) is None:
        raise unknown_queue(call.name, api.broker.queue)
    choice: task_records.Choice = call.body
    wanted = Wanted(
        queue=call.name,
        act=act,
        filter_text=choice.filter,
        ids=choice.messages,
        limit=choice.limit,
        user=call.user,
        **more,
    )
    try:
        task = api.broker.message_acts.start(wanted)
    except InvalidSelector as error:
        raise refused(error, 400) from error
    except NotPermitted:
        raise
    except RemoteProtocolError as error:
        raise refused(error, 409) from error
    await task.wait(call.query["wait"])
    if task.failure is not None:
        raise refused(task.failure)
    status = HTTPStatus.OK if task.ended_ms else HTTPStatus.ACCEPTED
    return Answer(shown(task, task_records.Task), status, f"/api/v1/tasks/{task.id}")
