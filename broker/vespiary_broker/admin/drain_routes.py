"""Operations on the drain of this broker.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import drain, drain_records
from vespiary_broker.admin.route import Route

DRAIN_ROUTES: Final = (
    Route(
        method="GET",
        path="/drain",
        operation="showDrain",
        tag="drain",
        handler=drain.show_drain,
        answers={200: drain_records.Drain},
        is_private=True,
    ),
    Route(
        method="POST",
        path="/drain",
        operation="startDrain",
        tag="drain",
        handler=drain.start_drain,
        answers={202: drain_records.Drain},
        problems=(400, 409, 413, 415),
        body=drain_records.NewDrain,
    ),
    Route(
        method="DELETE",
        path="/drain",
        operation="cancelDrain",
        tag="drain",
        handler=drain.cancel_drain,
        answers={200: drain_records.Drain},
    ),
)
