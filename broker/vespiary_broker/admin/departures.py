"""Operations of the API that move the messages of a queue.

Owns nothing: the broker does it. Called through `routes`.
"""

from __future__ import annotations

from vespiary_broker.admin import records
from vespiary_broker.admin.handlers import Answer, Api, Call
from vespiary_broker.admin.problems import Refused, refused
from vespiary_spec.errors import RemoteProtocolError


async def retry_messages(api: Api, call: Call) -> Answer:
    """Move the dead letters that wait in a queue back to the queues that they came from.

    Those whose queue is gone stay.
    """
    return await _move(api, call, "retried")


async def send_to_dead_letter_address(api: Api, call: Call) -> Answer:
    """Move the messages that wait in a queue to its dead letter address."""
    return await _move(api, call, "deliveries")


async def expire_messages(api: Api, call: Call) -> Answer:
    """Let the messages that wait in a queue expire: to its expiry address, or nowhere."""
    return await _move(api, call, "expired")


async def _move(api: Api, call: Call, reason: str) -> Answer:
    if api.broker.queue(call.name) is None:
        raise Refused(404, f"There is no queue {call.name[:200]!r}.")
    try:
        count = await api.broker.move_messages(call.name, reason)
    except RemoteProtocolError as error:
        raise refused(error, 409) from error
    return Answer(records.Removed(messages=count))
