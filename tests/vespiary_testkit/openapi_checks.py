"""Asking the API, and holding each answer against its own document.

`SEEN` remembers which answers of which operations were given.
"""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator

from vespiary_broker.admin import openapi
from vespiary_broker.admin.route import Route
from vespiary_broker.admin.routes import BASE, ROUTES
from vespiary_broker.app.jms import JmsAdministration
from vespiary_broker.app.states import ConnectionState, ConsumerStatistics
from vespiary_broker.engine.jms import JmsKind
from vespiary_codec.journal.ranges import RangeGap, decode_range
from vespiary_spec.settings import Divert
from vespiary_testkit import product_loop
from vespiary_testkit.admin_rig import (
    AdminRig,
    Answer,
    MemoryBroker,
    queue_state,
    users_with_roles,
)
from vespiary_testkit.memory_streams import stream_state

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
    product_loop.run(fill_jms(broker.jms))
    divert = Divert(name="orders", address="orders", forwarding_address="audit")
    product_loop.run(broker.diverts.create(divert))
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
                is_client_closed=False,
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


# --- streams --------------------------------------------------------------------------------------

# Every answer that the API documents for streams, asked for and checked.

_READS = {
    "headOfStream": "?epoch={}",
    "rangeOfStream": "?epoch={}&after=2&to=9223372036854775807&maxBytes=70000",
    "bodyOfStream": "?epoch={}&sequence=3&offset=5&maxBytes=6",
}


def ask_streams(rig: AdminRig) -> None:
    """Claim, read, acknowledge and delete streams, rightly and wrongly."""
    streams = rig.broker.streams
    claim = {"name": "spark", "queue": "orders", "owner": "query"}
    made = ask(rig, "claimStream", body=claim | {"leaseS": 5})
    assert (made.status, made.json["epoch"], made.json["leaseS"]) == (201, 1, 5)
    assert made.headers["Location"] == "/api/v1/streams/spark"
    assert ask(rig, "claimStream", body=claim).json["epoch"] == 2
    refused = ask(rig, "claimStream", body=claim | {"owner": "another"})
    assert (refused.status, refused.json["type"]) == (409, "urn:vespiary:error:VSP-P108")
    assert ask(rig, "claimStream", body=claim | {"name": "x", "queue": "nowhere"}).status == 404
    assert ask(rig, "claimStream", body=claim | {"leaseS": 0.5}).status == 400
    assert [item["name"] for item in ask(rig, "listStreams").json["items"]] == ["spark"]
    assert ask(rig, "showStream", "spark").json["cappedBy"] == "7:aa:01"
    _read(rig)
    done = ask(rig, "acknowledgeStream", "spark", body={"epoch": 2, "sequence": 5})
    assert done.json["acknowledged"] == 5
    old = ask(rig, "acknowledgeStream", "spark", body={"epoch": 1, "sequence": 5})
    assert (old.status, old.json["type"]) == (409, "urn:vespiary:error:VSP-P109")
    for name in ("claimStream", "acknowledgeStream"):
        path = path_of(operation(name), "spark")
        large = rig.call("POST", path, login=ROOT, data=b" " * 70_000)
        assert check(operation(name), large).status == 413
        text = rig.call(
            "POST", path, login=ROOT, data=b"{}", headers={"Content-Type": "text/plain"}
        )
        assert check(operation(name), text).status == 415
    for name in ("showStream", "deleteStream", *_READS):
        query = _READS.get(name, "").format(2)
        assert ask(rig, name, "nowhere", query).status == 404
    missing = ask(rig, "acknowledgeStream", "nowhere", body={"epoch": 1, "sequence": 1})
    assert missing.status == 404
    streams.states["kept"] = stream_state("kept", queue="prices")
    assert ask(rig, "deleteStream", "kept").status == 409
    assert ask(rig, "deleteStream", "spark").status == 204
    assert streams.names() == ["kept"]


def _read(rig: AdminRig) -> None:
    for name, query in _READS.items():
        assert ask(rig, name, "spark", query.format(1)).status == 409, "an older run"
        assert "epoch is missing" in ask(rig, name, "spark").json["detail"]
    assert ask(rig, "headOfStream", "spark", "?epoch=2").json["head"] == 9
    answer = ask(rig, "rangeOfStream", "spark", "?epoch=2&after=2&to=9&maxBytes=70000")
    found = decode_range(answer.body, int(answer.headers["Vespiary-Blocks-Length"]), 1)
    assert (found.through, found.messages) == (9, 1)
    assert found.gaps == (RangeGap(4, 9, "expired"),)
    assert ask(rig, "bodyOfStream", "spark", _READS["bodyOfStream"].format(2)).body == b"piece"
    assert rig.broker.streams.asked == [(2, 9, 70_000), (3, 5, 6)]
