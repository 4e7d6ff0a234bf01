"""Operations on the messages of queues: look, move, change, end; and the tasks that do it.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import (
    departures,
    message_records,
    messages,
    records,
    task_records,
    tasks,
)
from vespiary_broker.admin.handlers import Handler
from vespiary_broker.admin.route import BODY_BYTES_SHOWN_MAX, LIMIT_MAX, PAGE, QueryParameter, Route

_FILTER: Final = QueryParameter(
    name="filter", kind=str, default="", description="Only messages that match this selector."
)
_WAIT: Final = QueryParameter(
    name="wait",
    kind=int,
    default=10,
    description="Seconds to wait for the end; then the answer is 202, and the task goes on.",
    range=(0, 25),
)


_NO_WAIT: Final = QueryParameter(
    name="wait", kind=int, default=0, description="Seconds to wait for the end.", range=(0, 25)
)


def _act(act: str, operation: str, handler: Handler, body: type[records.Body]) -> Route:
    """Return an operation that begins a task on messages of a queue."""
    return Route(
        method="POST",
        path=f"/queues/{{name}}/{act}",
        operation=operation,
        tag="messages",
        handler=handler,
        answers={200: task_records.Task, 202: task_records.Task},
        problems=(400, 404, 409, 413, 415),
        query=(_WAIT,),
        body=body,
    )


MESSAGE_ROUTES: Final = (
    Route(
        method="GET",
        path="/queues/{name}/messages",
        operation="browseQueue",
        tag="queues",
        handler=messages.browse_queue,
        answers={200: message_records.MessagePage},
        problems=(400, 404, 409),
        query=(
            QueryParameter(
                name="limit",
                kind=int,
                default=None,
                description=f"Most messages, 1 to {LIMIT_MAX}; else management-browse-page-size.",
            ),
            PAGE[1],
            _FILTER,
            QueryParameter(
                name="bodyBytes",
                kind=int,
                default=None,
                description=f"Bytes of each body to show, 0 to {BODY_BYTES_SHOWN_MAX}; else "
                "management-message-attribute-size-limit.",
                range=(0, BODY_BYTES_SHOWN_MAX),
            ),
            QueryParameter(
                name="scheduled",
                kind=bool,
                default=False,
                description="Only messages whose time has not come.",
            ),
            QueryParameter(
                name="delivering",
                kind=bool,
                default=False,
                description="Only messages that consumers hold.",
            ),
        ),
    ),
    Route(
        method="GET",
        path="/queues/{name}/count",
        operation="countMessages",
        tag="messages",
        handler=messages.count_messages,
        answers={200: message_records.MessageCount},
        problems=(400, 404, 409),
        query=(PAGE[1], _FILTER),
    ),
    _act("move", "moveMessages", departures.move_messages, task_records.Transfer),
    _act("copy", "copyMessages", departures.copy_messages, task_records.Transfer),
    _act("change-expiry", "changeExpiry", departures.change_expiry, task_records.ExpiryChange),
    _act(
        "change-priority", "changePriority", departures.change_priority, task_records.PriorityChange
    ),
    _act("remove", "removeMessages", departures.remove_messages, task_records.Choice),
    _act("retry", "retryMessages", departures.retry_messages, task_records.Choice),
    _act(
        "send-to-dead-letter",
        "sendToDeadLetterAddress",
        departures.send_to_dead_letter_address,
        task_records.Choice,
    ),
    _act(
        "deliver-scheduled", "deliverScheduled", departures.deliver_scheduled, task_records.Choice
    ),
    _act("expire", "expireMessages", departures.expire_messages, task_records.Choice),
    Route(
        method="GET",
        path="/tasks",
        operation="listTasks",
        tag="tasks",
        handler=tasks.list_tasks,
        answers={200: task_records.TaskPage},
        query=PAGE,
    ),
    Route(
        method="GET",
        path="/tasks/{name}",
        operation="showTask",
        tag="tasks",
        handler=tasks.show_task,
        answers={200: task_records.Task},
        problems=(400, 404),
        query=(_NO_WAIT,),
    ),
    Route(
        method="POST",
        path="/tasks/{name}/cancel",
        operation="cancelTask",
        tag="tasks",
        handler=tasks.cancel_task,
        answers={200: task_records.Task},
        problems=(400, 404, 409),
    ),
)
