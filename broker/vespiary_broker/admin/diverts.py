"""What the API does for diverts: look, make, delete.

Owns the operations. Must never know headers or sockets. The rules are the engine's
(`engine.diverts`). Called by `routes`; owner: the event loop.
"""

from __future__ import annotations

from urllib.parse import quote

from vespiary_broker.admin import divert_records
from vespiary_broker.admin.handlers import Answer, Api, Call, check_name, cut, shown
from vespiary_broker.admin.problems import Refused
from vespiary_spec.settings import Divert


def _record(api: Api, name: str) -> divert_records.Divert:
    divert = api.broker.diverts.get(name)
    if divert is None:
        raise Refused(404, f"There is no divert {name[:200]!r}.")
    return shown(divert, divert_records.Divert)


async def list_diverts(api: Api, call: Call) -> Answer:
    """List diverts."""
    names, following = cut(api.broker.diverts.names, call)
    items = tuple(_record(api, name) for name in names)
    return Answer(divert_records.DivertPage(items=items, next=following))


async def show_divert(api: Api, call: Call) -> Answer:
    """Show one divert."""
    return Answer(_record(api, call.name))


async def create_divert(api: Api, call: Call) -> Answer:
    """Make a divert; one that exists just so is fine."""
    wanted: divert_records.NewDivert = call.body
    check_name(wanted.address, "address")
    check_name(wanted.forwarding_address, "address")
    is_new = api.broker.diverts.get(wanted.name) is None
    divert = await api.broker.diverts.create(
        Divert(
            name=wanted.name,
            address=wanted.address,
            forwarding_address=wanted.forwarding_address,
            routing_name=wanted.routing_name,
            filter_string=wanted.filter_string,
            exclusive=wanted.exclusive,
            routing_type=wanted.routing_type,
        )
    )
    value = shown(divert, divert_records.Divert)
    return Answer(value, 201 if is_new else 200, f"/api/v1/diverts/{quote(value.name, safe='')}")


async def delete_divert(api: Api, call: Call) -> Answer:
    """Delete a divert."""
    _record(api, call.name)
    await api.broker.diverts.delete(call.name)
    return Answer(None, 204)
