"""Operations on message counters.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import counter_records, counters
from vespiary_broker.admin.handlers import Handler
from vespiary_broker.admin.route import Route


def _pair(collection: str, kind: str, show: Handler, reset: Handler) -> tuple[Route, Route]:
    """Return the operations on the counter of one queue or address."""
    path, problems = f"/{collection}/{{name}}/message-counter", (400, 404, 409)
    return (
        Route(
            method="GET",
            path=path,
            operation=f"show{kind}Counter",
            tag="counters",
            handler=show,
            answers={200: counter_records.MessageCounter},
            problems=problems,
        ),
        Route(
            method="DELETE",
            path=path,
            operation=f"reset{kind}Counter",
            tag="counters",
            handler=reset,
            answers={204: None},
            problems=problems,
        ),
    )


COUNTER_ROUTES: Final = (
    *_pair("queues", "Queue", counters.show_queue_counter, counters.reset_queue_counter),
    *_pair("addresses", "Address", counters.show_address_counter, counters.reset_address_counter),
    Route(
        method="DELETE",
        path="/message-counters",
        operation="resetAllCounters",
        tag="counters",
        handler=counters.reset_all_counters,
        answers={204: None},
        problems=(400, 409),
    ),
)
