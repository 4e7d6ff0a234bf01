"""Kinds of queues in the API: taken, shown, and checked with the sentences of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_spec.errors import ConfigError
from vespiary_testkit.admin_rig import AdminRig, admin_rig
from vespiary_testkit.openapi_checks import ask, filled_broker


@pytest.fixture(scope="module")
def rig() -> Iterator[AdminRig]:
    with admin_rig(filled_broker()) as made:
        yield made


KIND = {
    "exclusive": True,
    "consumersBeforeDispatch": 2,
    "delayBeforeDispatch": 100,
    "groupRebalance": True,
    "groupRebalancePauseDispatch": True,
    "groupBuckets": 8,
    "groupFirstKey": "first",
    "lastValue": True,
    "lastValueKey": "share",
    "ringSize": 5,
    "nonDestructive": True,
    "autoDelete": True,
    "autoDeleteDelay": 50,
    "autoDeleteMessageCount": -1,
}


def test_the_kind_of_a_queue_is_taken_and_shown(rig: AdminRig):
    made = ask(rig, "createQueue", body={"name": "special", **KIND})
    assert (made.status, {name: made.json[name] for name in KIND}) == (201, KIND)
    again = ask(rig, "createQueue", body={"name": "special", **KIND})
    assert again.status == 200
    body = {"name": "special", "ringSize": 6, "exclusive": True, "maxConsumers": 3}
    other = ask(rig, "createQueue", body=body)
    assert other.status == 409
    said = "The queue special exists, but with ringSize: 5, maxConsumers: -1."
    assert other.json["detail"] == said
    changed = ask(rig, "changeQueue", body={**KIND, "filterString": "a = 1"}).json
    assert {name: changed[name] for name in KIND} == KIND
    assert changed["filterString"] == "a = 1"
    listed = ask(rig, "listQueues").json["items"]
    assert {item["name"]: item["ringSize"] for item in listed}["special"] == 5


def test_the_filter_of_every_body_is_compiled_when_the_event_loop_has_time() -> None:
    with admin_rig(filled_broker()) as rig:
        ask(rig, "createQueue", body={"name": "filtered", "filterString": "a = 1"})
        ask(rig, "changeQueue", body={"filterString": "a = 2"})
        divert = {"name": "d", "address": "x", "forwardingAddress": "y", "filterString": "a = 3"}
        ask(rig, "createDivert", body=divert)
        ask(rig, "removeMessages", body={"filter": "a = 4"})
        ask(rig, "moveMessages", body={"filter": "a = 5", "to": "orders"})
        ask(rig, "changeQueue", body={"ringSize": 7})
        assert rig.broker.filters == [f"a = {number}" for number in range(1, 6)]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"ringSize": -2}, "queues[orders].ringSize: out of bounds (got -2, allowed: 0 to "),
        ({"groupFirstKey": "a b"}, "queues[orders].groupFirstKey: not of the right form"),
        ({"delayBeforeDispatch": -5}, "queues[orders].delayBeforeDispatch: out of bounds"),
        ({"autoDeleteDelay": -1}, "autoDeleteDelay"),
        ({"autoDeleteMessageCount": -2}, "autoDeleteMessageCount"),
        ({"autoDeleteDelay": 10**400}, "autoDeleteDelay"),
        ({"autoDeleteMessageCount": 2**64}, "autoDeleteMessageCount"),
        ({"maxConsumers": 2**31}, "maxConsumers"),
        ({"ringSize": "many"}, "ringSize"),
        ({"ringsize": 3}, "ringsize"),
    ],
)
def test_the_kind_of_a_queue_is_checked(rig: AdminRig, body: dict[str, Any], sentence: str):
    for operation, more in (("changeQueue", {}), ("createQueue", {"name": "orders"})):
        answer = ask(rig, operation, body={**body, **more})
        assert (answer.status, sentence in answer.json["detail"]) == (400, True), answer.json


def test_contradictions_of_a_queue_are_a_bad_request(rig: AdminRig):
    rig.broker.failure = ConfigError("they contradict", path="queues[q].ringSize")
    for operation, body in (("changeQueue", {"ringSize": 1}), ("createQueue", {"name": "q"})):
        answer = ask(rig, operation, body=body)
        assert (answer.status, answer.json["type"]) == (400, "urn:vespiary:error:VSP-C101")
