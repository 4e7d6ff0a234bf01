"""What the API does for JMS administrators, and its part of the table of routes.

Owns the operations on JMS queues, topics, connection factories and JNDI names. Must never know
headers or sockets. The rules are the engine's (`engine.jms`). Called by `routes`; owner: the event
loop.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from vespiary_broker.admin import records
from vespiary_broker.admin.handlers import Answer, Api, Call, Handler, check_name, cut, shown
from vespiary_broker.admin.problems import Refused
from vespiary_broker.engine.jms import JmsKind, JmsObject

PROPERTIES_TYPE: Final = "text/plain"
COLLECTIONS: Final = {
    JmsKind.QUEUE: ("queues", "JMS queue"),
    JmsKind.TOPIC: ("topics", "JMS topic"),
    JmsKind.CONNECTION_FACTORY: ("connection-factories", "connection factory"),
}
"""By kind: the collection's name in paths, and what people call one of it."""


def _record(item: JmsObject) -> records.JmsObject:
    return shown(item, records.JmsObject)


def _find(api: Api, kind: JmsKind, name: str) -> JmsObject:
    found = api.broker.jms.objects.get(kind, name)
    if found is None:
        raise Refused(404, f"There is no {COLLECTIONS[kind][1]} {name[:200]!r}.")
    return found


def lister(kind: JmsKind) -> Handler:
    """Return the operation that lists the objects of a kind."""

    async def list_objects(api: Api, call: Call) -> Answer:
        objects = api.broker.jms.objects
        names, following = cut([item.name for item in objects.all(kind)], call)
        items = tuple(_record(_find(api, kind, name)) for name in names)
        return Answer(records.JmsPage(items=items, next=following))

    list_objects.__doc__ = f"List what was made as a {COLLECTIONS[kind][1]}."
    return list_objects


def shower(kind: JmsKind) -> Handler:
    """Return the operation that shows one object of a kind."""

    async def show(api: Api, call: Call) -> Answer:
        return Answer(_record(_find(api, kind, call.name)))

    show.__doc__ = f"Show one {COLLECTIONS[kind][1]}."
    return show


def maker(kind: JmsKind) -> Handler:
    """Return the operation that makes an object of a kind."""

    async def make(api: Api, call: Call) -> Answer:
        wanted: Any = call.body
        if kind is not JmsKind.CONNECTION_FACTORY:
            check_name(wanted.name, "address")
        is_new = api.broker.jms.objects.get(kind, wanted.name) is None
        url = getattr(wanted, "url", "")
        item = await api.broker.jms.create(kind, wanted.name, wanted.jndi_names, url)
        path = f"/api/v1/jms/{COLLECTIONS[kind][0]}/{quote(item.name, safe='')}"
        return Answer(_record(item), 201 if is_new else 200, path)

    make.__doc__ = f"Make a {COLLECTIONS[kind][1]}, or give it more JNDI names."
    return make


def remover(kind: JmsKind) -> Handler:
    """Return the operation that deletes an object of a kind."""

    async def remove(api: Api, call: Call) -> Answer:
        _find(api, kind, call.name)
        is_forced = bool(call.query.get("force", False))
        count = await api.broker.jms.delete(kind, call.name, is_forced=is_forced)
        return Answer(records.Removed(messages=count))

    remove.__doc__ = f"Delete a {COLLECTIONS[kind][1]} and its JNDI names."
    return remove


async def list_jndi_names(api: Api, call: Call) -> Answer:
    """List the JNDI names and what they lead to."""
    bound = api.broker.jms.objects.jndi_names()
    names, following = cut(sorted(bound), call)
    items = tuple(
        records.JndiName(jndi_name=name, kind=str(bound[name].kind), name=bound[name].name)
        for name in names
    )
    return Answer(records.JndiPage(items=items, next=following))


async def remove_jndi_name(api: Api, call: Call) -> Answer:
    """Take a JNDI name away; what it led to stays."""
    if call.name not in api.broker.jms.objects.jndi_names():
        raise Refused(404, f"There is no JNDI name {call.name[:200]!r}.")
    await api.broker.jms.objects.unbind(call.name)
    return Answer(None, 204)


async def show_properties(api: Api, _: Call) -> Answer:
    """Show the JNDI names as a jndi.properties file, as Qpid JMS reads it."""
    return Answer(api.broker.jms.objects.properties())
