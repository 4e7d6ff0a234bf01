"""Operations of the API on connections of clients.

Owns nothing: the broker has them. Called through `client_routes`; owner: the event loop.
"""

from __future__ import annotations

from vespiary_broker.admin import records
from vespiary_broker.admin.handlers import Answer, Api, Call, shown
from vespiary_broker.admin.problems import Refused


async def close_connection(api: Api, call: Call) -> Answer:
    """Close a connection; its client is told, and what it held goes to others."""
    text = call.name
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    state = api.broker.close_connection(int(text)) if is_number else None
    if state is None:
        raise Refused(404, f"There is no connection {text[:200]!r}.")
    return Answer(shown(state, records.Connection))
