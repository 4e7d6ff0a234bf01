"""Operations on fences: list, decide, delete.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import fence_records, fences
from vespiary_broker.admin.route import CHANGE_WITH_BODY, PAGE, Route

FENCE_ROUTES: Final = (
    Route(
        method="GET",
        path="/fences",
        operation="listFences",
        tag="fences",
        handler=fences.list_fences,
        answers={200: fence_records.FencePage},
        query=PAGE,
    ),
    Route(
        method="GET",
        path="/fences/{name}",
        operation="showFence",
        tag="fences",
        handler=fences.show_fence,
        answers={200: fence_records.Fence},
        problems=(400, 404),
    ),
    Route(
        method="POST",
        path="/fences/{name}/decide",
        operation="decideBatch",
        tag="fences",
        handler=fences.decide_batch,
        answers={200: fence_records.Fence},
        problems=CHANGE_WITH_BODY,
        body=fence_records.FenceDecision,
    ),
    Route(
        method="DELETE",
        path="/fences/{name}",
        operation="deleteFence",
        tag="fences",
        handler=fences.delete_fence,
        answers={204: None},
        problems=(400, 404, 409),
    ),
)
