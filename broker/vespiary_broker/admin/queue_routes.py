"""Operations on queues: list, make, change, pause, delete.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import change_records, changes, group_records, groups, records
from vespiary_broker.admin.handlers import Api
from vespiary_broker.admin.route import CHANGE_WITH_BODY, FORCE, PAGE, PERSIST, Route

QUEUE_ROUTES: Final = (
    Route(
        method="GET",
        path="/queues",
        operation="listQueues",
        tag="queues",
        handler=Api.queues,
        answers={200: records.QueuePage},
        query=PAGE,
    ),
    Route(
        method="POST",
        path="/queues",
        operation="createQueue",
        tag="queues",
        handler=Api.create_queue,
        answers={200: records.Queue, 201: records.Queue},
        problems=CHANGE_WITH_BODY,
        body=records.NewQueue,
    ),
    Route(
        method="GET",
        path="/queues/{name}",
        operation="showQueue",
        tag="queues",
        handler=Api.queue,
        answers={200: records.Queue},
        problems=(400, 404),
    ),
    Route(
        method="DELETE",
        path="/queues/{name}",
        operation="deleteQueue",
        tag="queues",
        handler=Api.delete_queue,
        answers={200: records.Removed},
        problems=(400, 404, 409),
        query=(FORCE,),
    ),
    Route(
        method="POST",
        path="/queues/{name}/purge",
        operation="purgeQueue",
        tag="queues",
        handler=Api.purge_queue,
        answers={200: records.Removed},
        problems=(400, 404),
    ),
    Route(
        method="PATCH",
        path="/queues/{name}",
        operation="changeQueue",
        tag="queues",
        handler=changes.change_queue,
        answers={200: records.Queue},
        problems=(400, 404, 413, 415),
        body=change_records.QueueChanges,
    ),
    Route(
        method="GET",
        path="/queues/{name}/groups",
        operation="listGroups",
        tag="queues",
        handler=groups.list_groups,
        answers={200: group_records.GroupPage},
        problems=(400, 404),
        query=PAGE,
    ),
    Route(
        method="DELETE",
        path="/queues/{name}/groups",
        operation="releaseGroups",
        tag="queues",
        handler=groups.release_groups,
        answers={200: group_records.GroupsReleased},
        problems=(400, 404),
    ),
    Route(
        method="POST",
        path="/queues/{name}/pause",
        operation="pauseQueue",
        tag="queues",
        handler=changes.pause_queue,
        answers={200: records.Queue},
        problems=(400, 404, 409),
        query=(PERSIST,),
    ),
    Route(
        method="POST",
        path="/queues/{name}/resume",
        operation="resumeQueue",
        tag="queues",
        handler=changes.resume_queue,
        answers={200: records.Queue},
        problems=(400, 404),
    ),
)
