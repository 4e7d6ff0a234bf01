"""Operations of the API on the drain of this broker, and on its cordon.

Owns the way from a body to what is wanted. Must never hold a rule: the broker has those. Called
through `drain_routes`; owner: the event loop.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from vespiary_broker.admin import drain_records
from vespiary_broker.admin.handlers import Answer, Api, Call, shown
from vespiary_broker.admin.problems import Refused


async def show_drain(api: Api, _call: Call) -> Answer:
    """Show whether clients are let in, and how far a drain is."""
    return Answer(shown(api.broker.draining.state(), drain_records.Drain))


async def start_drain(api: Api, call: Call) -> Answer:
    """Let no client in any more, and move all messages to another broker; resumes what was begun.

    The cordon survives restarts. Ask again after one: the login is not kept.
    """
    wanted: drain_records.NewDrain = call.body
    parts = urlsplit(wanted.target)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise Refused(400, "The target is the URL of a broker's HTTP listener: http://host:port.")
    state = await api.broker.draining.start(
        wanted.target,
        wanted.user,
        wanted.password,
        authorities=wanted.authorities,
        server_name=wanted.server_name,
    )
    return Answer(shown(state, drain_records.Drain), 202)


async def cancel_drain(api: Api, _call: Call) -> Answer:
    """Let clients in again; what has moved stays where it is."""
    return Answer(shown(await api.broker.draining.cancel(), drain_records.Drain))
