"""Operations on the messages of queues: look, move, end.

Owns these rows of the API's table. Must never hold behaviour. Called by `routes`.
"""

from __future__ import annotations

from typing import Final

from vespiary_broker.admin import departures, message_records, messages, records
from vespiary_broker.admin.route import BODY_BYTES_SHOWN_MAX, PAGE, QueryParameter, Route

MESSAGE_ROUTES: Final = (
    Route(
        method="POST",
        path="/queues/{name}/retry",
        operation="retryMessages",
        tag="queues",
        handler=departures.retry_messages,
        answers={200: records.Removed},
        problems=(400, 404),
    ),
    Route(
        method="POST",
        path="/queues/{name}/send-to-dead-letter",
        operation="sendToDeadLetterAddress",
        tag="queues",
        handler=departures.send_to_dead_letter_address,
        answers={200: records.Removed},
        problems=(400, 404, 409),
    ),
    Route(
        method="POST",
        path="/queues/{name}/expire",
        operation="expireMessages",
        tag="queues",
        handler=departures.expire_messages,
        answers={200: records.Removed},
        problems=(400, 404),
    ),
    Route(
        method="GET",
        path="/queues/{name}/messages",
        operation="browseQueue",
        tag="queues",
        handler=messages.browse_queue,
        answers={200: message_records.MessagePage},
        problems=(400, 404, 409),
        query=(
            *PAGE,
            QueryParameter(
                name="filter",
                kind=str,
                default="",
                description="Only messages that match this selector.",
            ),
            QueryParameter(
                name="bodyBytes",
                kind=int,
                default=256,
                description=f"Bytes of each body to show, 0 to {BODY_BYTES_SHOWN_MAX}.",
                range=(0, BODY_BYTES_SHOWN_MAX),
            ),
        ),
    ),
)
