"""Asking the API, and holding each answer against its own document.

`SEEN` remembers which answers of which operations were given.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jsonschema import Draft202012Validator

from vespiary_broker.admin import openapi
from vespiary_broker.admin.route import Route
from vespiary_broker.admin.routes import BASE, ROUTES
from vespiary_broker.app.jms import JmsAdministration
from vespiary_broker.app.states import ConnectionState, ConsumerStatistics
from vespiary_broker.engine.jms import JmsKind
from vespiary_spec.settings import Divert
from vespiary_testkit.admin_rig import (
    AdminRig,
    Answer,
    MemoryBroker,
    queue_state,
    users_with_roles,
)

ROOT = ("root", "secret")
DOCUMENT = openapi.document()
SEEN: set[tuple[str, int]] = set()


def path_of(route: Route, name: str = "orders") -> str:
    return BASE + route.path.replace("{name}", name)


def check(route: Route, answer: Answer) -> Answer:
    """Check an answer against the document, and remember that it was given."""
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    described = operation["responses"].get(str(answer.status))
    assert described is not None, f"{route.operation} gave {answer.status}: {answer.body!r}"
    SEEN.add((route.operation, answer.status))
    content = described.get("content")
    if content is None:
        assert answer.body == b""
        return answer
    media_type, body = next(iter(content.items()))
    assert answer.headers.get_content_type() == media_type
    if media_type in ("text/plain", "application/octet-stream"):
        assert answer.body
        return answer
    schema = {**body["schema"], "components": DOCUMENT["components"]}
    Draft202012Validator(schema).validate(answer.json)
    if answer.status >= 400:
        assert answer.json["status"] == answer.status
        assert answer.json["detail"].endswith((".", "]"))
    return answer


async def fill_jms(jms: JmsAdministration) -> None:
    await jms.create(JmsKind.QUEUE, "orders", ["jms/orders", "orders"])
    await jms.create(JmsKind.TOPIC, "prices", ["jms/prices"])
    await jms.create(JmsKind.CONNECTION_FACTORY, "orders", ["cf"], "amqp://localhost:5672")


def filled_broker() -> MemoryBroker:
    broker = MemoryBroker(users_with_roles())
    for name in ("orders", "prices"):
        broker.queue_states[name] = queue_state(name, messages=3, ready=3)
        broker.address_types[name] = set()
    asyncio.run(fill_jms(broker.jms))
    divert = Divert(name="orders", address="orders", forwarding_address="audit")
    asyncio.run(broker.diverts.create(divert))
    for number in (1, 2, 10):
        broker.connection_states.append(
            ConnectionState(
                id=number,
                listener="all",
                peer="127.0.0.1",
                user="alice",
                client_id="",
                protocol="STOMP 1.2",
                subscriptions=2,
                age_s=1.0,
                idle_s=0.5,
                bytes_in=100,
                unsent_bytes=0,
            )
        )
        broker.consumer_states += [
            ConsumerStatistics(
                queue=queue,
                subscription=queue,
                mode="auto",
                credit=10,
                connection=number,
                selector="n = 1",
                priority=2,
                is_exclusive=False,
                delivering=3,
                delivered=8,
                acknowledged=4,
            )
            for queue in ("orders", "prices")
        ]
    return broker


def operation(name: str) -> Route:
    return next(route for route in ROUTES if route.operation == name)


def ask(
    rig: AdminRig, name: str, target: str = "orders", query: str = "", **options: Any
) -> Answer:
    route = operation(name)
    path = path_of(route, target) + query
    return check(route, rig.call(route.method, path, login=ROOT, **options))
