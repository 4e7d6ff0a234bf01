"""Operations of the API on work in the background.

Owns nothing: the broker has the tasks. Called through `message_routes`; owner: the event loop.
"""

from __future__ import annotations

from vespiary_broker.admin import task_records
from vespiary_broker.admin.handlers import Answer, Api, Call, number, shown
from vespiary_broker.admin.ports import Task
from vespiary_broker.admin.problems import Refused


async def list_tasks(api: Api, call: Call) -> Answer:
    """List the tasks that run, and those that ended last."""
    after, limit = number(call.query["after"]) or 0, call.query["limit"]
    left = [task for task in api.broker.tasks.all() if task.id > after]
    items = tuple(shown(task, task_records.Task) for task in left[:limit])
    following = str(items[-1].id) if len(left) > limit else None
    return Answer(task_records.TaskPage(items=items, next=following))


async def show_task(api: Api, call: Call) -> Answer:
    """Show one task."""
    task = _task(api, call.name)
    if call.query["wait"]:
        await task.wait(call.query["wait"])
    return Answer(shown(task, task_records.Task))


async def cancel_task(api: Api, call: Call) -> Answer:
    """Have a task end soon; what it has done stays done."""
    task = _task(api, call.name)
    if task.ended_ms:
        raise Refused(409, f"The task {task.id} has ended already.")
    api.broker.tasks.cancel(task)
    await task.wait(1.0)
    return Answer(shown(task, task_records.Task))


def _task(api: Api, name: str) -> Task:
    is_number = name.isascii() and name.isdigit() and len(name) < 19
    task = api.broker.tasks.get(int(name)) if is_number else None
    if task is None:
        raise Refused(404, f"There is no task {name[:200]!r}, or it ended long ago.")
    return task
