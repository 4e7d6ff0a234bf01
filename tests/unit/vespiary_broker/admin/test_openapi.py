"""The API against its own document: every operation, every documented answer, valid bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vespiary_broker.admin.route import Route
from vespiary_broker.admin.routes import BASE, BODY_BYTES_MAX, COMMON_STATUSES, ROUTES
from vespiary_broker.app.queue_groups import GroupOwner
from vespiary_broker.engine.jms import JmsKind
from vespiary_spec.errors import ConfigError, RemoteProtocolError
from vespiary_testkit import product_loop
from vespiary_testkit.admin_fakes import branch_state, browsed
from vespiary_testkit.admin_rig import AdminRig, admin_rig, failed_writer, queue_state
from vespiary_testkit.memory_fences import fence_state
from vespiary_testkit.openapi_checks import (
    ROOT,
    SEEN,
    ask,
    ask_streams,
    check,
    filled_broker,
    operation,
    path_of,
)
from vespiary_testkit.spread_tests import run_alone

RAN: set[str] = set()  # tests of this module that ran in this process


# --- fences ---------------------------------------------------------------------------------------

# Every answer that the API documents for fences, asked for and checked.


def ask_fences(rig: AdminRig) -> None:
    """Decide, look and delete, rightly and wrongly."""
    fences = rig.broker.fences
    decision = {"batch": 3, "tasks": {"0.1.aa": 2, "1.2.bb": 0}}
    made = ask(rig, "decideBatch", "spark", body=decision)
    assert (made.json["batch"], made.json["accepted"], made.json["undecided"]) == (3, True, 2)
    again = ask(rig, "decideBatch", "spark", body={"batch": 3, "tasks": {}, "isLast": True})
    assert (again.json["batch"], again.json["accepted"]) == (3, False)
    assert fences.asked == [(3, (("0.1.aa", 2), ("1.2.bb", 0)), False), (3, (), True)]
    assert ask(rig, "decideBatch", "spark", body={"batch": 4, "tasks": {"gone": 1}}).status == 409
    for wrong in ({"batch": -1, "tasks": {}}, {"batch": 1, "tasks": {"a": -1}}, {"batch": 1}):
        assert ask(rig, "decideBatch", "spark", body=wrong).status == 400
    assert [item["name"] for item in ask(rig, "listFences").json["items"]] == ["spark"]
    assert ask(rig, "showFence", "spark").json["undecidedS"] == 4.5
    path = path_of(operation("decideBatch"), "spark")
    large = rig.call("POST", path, login=ROOT, data=b" " * 70_000)
    assert check(operation("decideBatch"), large).status == 413
    text = rig.call("POST", path, login=ROOT, data=b"{}", headers={"Content-Type": "text/plain"})
    assert check(operation("decideBatch"), text).status == 415
    for name in ("showFence", "deleteFence"):
        assert ask(rig, name, "nowhere").status == 404
    fences.states["waits"] = fence_state("waits", pending=1)
    assert ask(rig, "deleteFence", "waits").status == 409
    assert ask(rig, "deleteFence", "spark").status == 204
    assert fences.names() == ["waits"]


# --- the tests ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rig() -> Iterator[AdminRig]:
    with admin_rig(filled_broker()) as rig:
        yield rig


@pytest.fixture(autouse=True)
def same_broker(rig: AdminRig, request: pytest.FixtureRequest) -> Iterator[None]:
    RAN.add(request.node.nodeid)
    before = dict(rig.broker.queue_states), dict(rig.broker.address_types)
    yield
    rig.broker.queue_states, rig.broker.address_types = before
    rig.broker.is_started, rig.broker.not_ready_reason = True, ""
    rig.broker.failure = rig.broker.browsing.failure = None


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_what_every_operation_may_answer(rig: AdminRig, route: Route):
    body = {"name": "x"} if route.body else None
    path = path_of(route)
    check(route, rig.call(route.method, path, body=body))
    assert (route.operation, 401) in SEEN
    elsewhere = {"Origin": "https://evil.example"}
    check(route, rig.call(route.method, path, body=body, login=ROOT, headers=elsewhere))
    assert (route.operation, 403) in SEEN
    named = {"Host": "evil.example"}
    check(route, rig.call(route.method, path, body=body, login=ROOT, headers=named))
    assert (route.operation, 421) in SEEN
    rig.broker.is_started, rig.broker.not_ready_reason = False, "the broker is starting"
    answer = check(route, rig.call(route.method, path, body=body, login=ROOT))
    assert "the broker is starting" in answer.json["detail"]
    assert (route.operation, 503) in SEEN
    rig.broker.is_started = True
    answer = check(route, rig.call(route.method, f"{path}?nope=1", body=body, login=ROOT))
    assert "nope" in answer.json["detail"]
    assert (route.operation, 400) in SEEN


def test_lists_and_single_things(rig: AdminRig):
    assert ask(rig, "listBrokers").json["items"][0]["queues"] == 2
    assert ask(rig, "listVolumes").json == {"items": []}, "nothing was verified here"
    journal = ask(rig, "showJournal").json
    assert (journal["engine"], journal["askedEngine"]) == ("ASYNCIO", "ASYNCIO")
    assert len(journal["flushCounts"]) == len(journal["flushBoundsUs"]) + 1
    files = ask(rig, "listJournalFiles", query="?limit=2").json
    assert ([file["id"] for file in files["items"]], files["next"]) == ([1, 2], "2")
    files = ask(rig, "listJournalFiles", query="?after=2").json
    assert ([file["id"] for file in files["items"]], files["next"]) == ([10], None)
    assert files["items"][0]["keptBy"] == "it is ready to be written to"
    assert [queue["name"] for queue in ask(rig, "listQueues").json["items"]] == ["orders", "prices"]
    assert ask(rig, "showQueue").json["messages"] == 3
    assert ask(rig, "showAddress").json["queues"] == ["orders"]
    settings = {one["name"]: one for one in ask(rig, "showAddressSettings").json["items"]}
    assert settings["max-size-bytes"] == {"name": "max-size-bytes", "value": -1, "match": None}
    assert settings["auto-create-queues"]["value"] is True
    assert len(ask(rig, "listAddresses").json["items"]) == 2
    assert [c["id"] for c in ask(rig, "listConnections").json["items"]] == [1, 2, 10]
    assert len(ask(rig, "listConsumers").json["items"]) == 6


@pytest.mark.parametrize(
    ("name", "count"),
    [("listQueues", 2), ("listAddresses", 2), ("listConnections", 3), ("listConsumers", 6)],
)
def test_pages_lead_through_the_whole_list_once(rig: AdminRig, name: str, count: int):
    found, query = [], "?limit=1"
    for _ in range(count):
        page = ask(rig, name, query=query).json
        found += page["items"]
        query = f"?limit=1&after={page['next']}"
    assert page["next"] is None
    assert len({str(sorted(item.items())) for item in found}) == count


def test_consumers_of_one_queue(rig: AdminRig):
    assert ask(rig, "listConsumers", query="?queue=nowhere").status == 404
    items = ask(rig, "listConsumers", query="?queue=prices").json["items"]
    assert {item["queue"] for item in items} == {"prices"}
    assert len(items) == 3


@pytest.mark.parametrize("query", ["?limit=0", "?limit=1001", "?limit=x", "?limit=1&limit=2"])
def test_a_wrong_limit_is_refused(rig: AdminRig, query: str):
    assert ask(rig, "listQueues", query=query).status == 400


def test_a_wrong_place_in_a_list_of_connections_is_refused(rig: AdminRig):
    assert ask(rig, "listConnections", query="?after=x").status == 400


def test_queues_are_made_once(rig: AdminRig):
    answer = ask(rig, "createQueue", body={"name": "bills/2024.é", "address": "bills"})
    assert answer.status == 201
    location = answer.headers["Location"]
    assert rig.get(location, login=ROOT).json["name"] == "bills/2024.é"
    again = ask(rig, "createQueue", body={"name": "bills/2024.é", "address": "bills"})
    assert again.status == 200
    other = ask(rig, "createQueue", body={"name": "bills/2024.é", "address": "prices"})
    assert other.status == 409
    lasting = {"name": "bills/2024.é", "address": "bills", "durable": False}
    assert ask(rig, "createQueue", body=lasting).status == 409


def test_addresses_are_made_once(rig: AdminRig):
    body = {"name": "news", "routingTypes": ["MULTICAST"]}
    assert ask(rig, "createAddress", body=body).status == 201
    answer = ask(rig, "createAddress", body={"name": "news", "routingTypes": ["ANYCAST"]})
    assert (answer.status, answer.json["routingTypes"]) == (200, ["ANYCAST", "MULTICAST"])


def test_duplicate_ids_are_shown_and_forgotten(rig: AdminRig):
    rig.broker.address_types["ids"] = set()
    rig.broker.duplicate_ids["ids"] = ["c", "b", "a"]
    shown = ask(rig, "showDuplicateIds", "ids", "?limit=2")
    assert shown.json == {
        "address": "ids", "size": 100, "ids": 3, "discarded": 2, "newest": ["c", "b"],
    }  # fmt: skip
    assert ask(rig, "clearDuplicateIds", "ids").json == {"ids": 3}
    assert "ids" not in rig.broker.duplicate_ids
    for name in ("showDuplicateIds", "clearDuplicateIds"):
        assert ask(rig, name, "nowhere").status == 404


def test_messages_are_looked_at(rig: AdminRig):
    rig.broker.browsing.messages["orders"] = [browsed(1), browsed(2)]
    page = ask(rig, "browseQueue", query="?limit=1&bodyBytes=2").json
    assert [(item["id"], item["body"]) for item in page["items"]] == [("1-1", "he")]
    page = ask(rig, "browseQueue", query=f"?after={page['next']}").json
    assert ([item["id"] for item in page["items"]], page["next"]) == (["1-2"], None)
    assert ask(rig, "browseQueue", "nowhere").status == 404
    assert ask(rig, "browseQueue", query="?filter=x").status == 400
    rig.broker.browsing.failure = RemoteProtocolError("the queue orders was deleted meanwhile")
    assert ask(rig, "browseQueue").status == 409


def test_a_filter_that_is_none_and_one_that_is_another(rig: AdminRig):
    bad = ask(rig, "createDivert", body={"name": "d", "address": "a", "forwardingAddress": "b",
                                         "filterString": "price <"})  # fmt: skip
    assert (bad.status, bad.json["type"]) == (400, "urn:vespiary:error:VSP-P106")
    assert "selector, character 8: the selector ends too early" in bad.json["detail"]
    filtered = {"name": "few", "filterString": "price < 5"}
    assert ask(rig, "createQueue", body=filtered).json["filterString"] == "price < 5"
    assert ask(rig, "createQueue", body=filtered).status == 200
    assert ask(rig, "createQueue", body={"name": "few"}).status == 409


def test_diverts_are_made_shown_and_deleted(rig: AdminRig):
    body = {"name": "copy/1", "address": "prices", "forwardingAddress": "audit"}
    made = ask(rig, "createDivert", body=body)
    assert made.status == 201
    assert rig.get(made.headers["Location"], login=ROOT).json == made.json == {
        "name": "copy/1", "routingName": "copy/1", "address": "prices",
        "forwardingAddress": "audit", "filterString": "", "isExclusive": False,
        "routingType": "STRIP",
    }  # fmt: skip
    assert ask(rig, "createDivert", body=body).status == 200
    assert ask(rig, "createDivert", body=body | {"exclusive": True}).status == 409
    back = {"name": "back", "address": "audit", "forwardingAddress": "prices"}
    refused = ask(rig, "createDivert", body=back)
    assert refused.status == 409
    assert "lead back" in refused.json["detail"]
    names = [item["name"] for item in ask(rig, "listDiverts").json["items"]]
    assert names == ["copy/1", "orders"]
    assert ask(rig, "showDivert").json["forwardingAddress"] == "audit"
    assert ask(rig, "deleteDivert", "copy%2F1").status == 204
    for name in ("showDivert", "deleteDivert"):
        assert ask(rig, name, "nowhere").status == 404


def test_transactions_are_shown_decided_and_forgotten(rig: AdminRig):
    states = rig.broker.transactions.states
    states["7:aa:01"] = branch_state("7:aa:01")
    states["7:aa:02"] = branch_state("7:aa:02", state="quarantined", reason="a queue is gone")
    first, second = ask(rig, "listTransactions").json["items"]
    assert first["members"] == [{"queue": "orders", "added": 2, "acknowledged": 1}]
    assert second["reason"] == "a queue is gone"
    assert ask(rig, "showTransaction", "7:aa:01").json == first
    assert ask(rig, "forgetTransaction", "7:aa:01").status == 409
    decided = ask(rig, "commitTransaction", "7:aa:01").json
    assert (decided["state"], decided["members"]) == ("heuristic-commit", [])
    for name in ("commitTransaction", "rollbackTransaction"):
        again = ask(rig, name, "7:aa:01")
        assert again.status == 409
        assert again.json["type"] == "urn:vespiary:error:VSP-P105"
    assert ask(rig, "forgetTransaction", "7:aa:01").status == 204
    states["7:aa:01"] = branch_state("7:aa:01")
    assert ask(rig, "rollbackTransaction", "7:aa:01").json["state"] == "heuristic-rollback"
    for act in ("show", "commit", "rollback", "forget"):
        assert ask(rig, f"{act}Transaction", "nowhere").status == 404


def test_a_drain_is_begun_shown_and_cancelled(rig: AdminRig):
    body = {"target": "http://other:8161", "user": "admin", "password": "pw"}
    assert ask(rig, "startDrain", body=body).status == 202
    assert rig.broker.draining.asked == [("http://other:8161", "admin", "pw")]
    assert ask(rig, "showDrain").json["phase"] == "draining"
    for url, status in (("http://third:8161", 409), ("http://u:p@other:1", 400)):
        assert ask(rig, "startDrain", body={"target": url}).status == status
    assert ask(rig, "cancelDrain").json["phase"] == "none"
    assert {ask(rig, f"{a}Drain", query="?x=1").status for a in ("show", "cancel")} == {400}


@pytest.mark.parametrize("name", ["changeQueue", "changeAddress", "startDrain"])
@pytest.mark.parametrize(
    ("data", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b'"' + b"x" * BODY_BYTES_MAX + b'"', "application/json", 413),
    ],
)
def test_bodies_of_changes_are_checked(
    rig: AdminRig, name: str, data: bytes, kind: str, status: int
):
    assert ask(rig, name, data=data, headers={"Content-Type": kind}).status == status


@pytest.mark.parametrize("name", ["createQueue", "createAddress", "createDivert"])
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"{", 400),
        (b'{"name": 5}', 400),
        (b'{"name": ""}', 400),
        (b'{"name": "a\\tb"}', 400),
        (b'{"name": "a\\u0000b"}', 400),
        (b'{"name": "x", "colour": "red"}', 400),
        (b"", 400),
        (b'"' + b"x" * BODY_BYTES_MAX + b'"', 413),
    ],
)
def test_bodies_are_checked(rig: AdminRig, name: str, data: bytes, status: int):
    answer = ask(rig, name, data=data, headers={"Content-Type": "application/json"})
    assert answer.status == status
    assert "x" not in rig.broker.queue_states


@pytest.mark.parametrize("name", ["createQueue", "createAddress", "createDivert"])
def test_another_type_of_body_is_refused(rig: AdminRig, name: str):
    answer = ask(rig, name, data=b'{"name": "x"}', headers={"Content-Type": "text/plain"})
    assert answer.status == 415


def test_a_queue_in_use_is_not_deleted_by_chance(rig: AdminRig):
    assert ask(rig, "deleteQueue").status == 409
    assert ask(rig, "deleteQueue", query="?force=yes").status == 400
    answer = ask(rig, "deleteQueue", query="?force=true")
    assert answer.json == {"messages": 3}
    assert "orders" not in rig.broker.queue_states


def test_a_purge_leaves_what_was_given_out(rig: AdminRig):
    rig.broker.queue_states["orders"] = queue_state("orders", messages=5, ready=3, delivering=2)
    assert ask(rig, "purgeQueue").json == {"messages": 3}
    assert ask(rig, "showQueue").json["messages"] == 2


ACTS: dict[str, dict[str, Any] | None] = {
    "moveMessages": {"to": "prices"},
    "copyMessages": {"to": "prices"},
    "changeExpiry": {"expiresMs": 5},
    "changePriority": {"priority": 9},
    "removeMessages": None,
    "retryMessages": None,
    "sendToDeadLetterAddress": None,
    "expireMessages": None,
    "deliverScheduled": None,
}


@pytest.mark.parametrize("name", ACTS)
def test_acts_on_messages_are_tasks(rig: AdminRig, name: str):
    rig.broker.queue_states["orders"] = queue_state("orders", messages=5, ready=3, delivering=2)
    rig.broker.dead_letter_address = "DLQ"
    acts, body = rig.broker.message_acts, ACTS[name]
    answer = ask(rig, name, body=body)
    assert (answer.status, answer.json["messages"], answer.json["state"]) == (200, 3, "done")
    assert rig.get(answer.headers["Location"], login=ROOT).json == answer.json
    assert ask(rig, "showQueue").json["messages"] == 2
    acts.is_open = False
    chosen = {"filter": "n = 1", "messages": ["1-7"], "limit": 9}
    begun = ask(rig, name, query="?wait=0", body=(body or {}) | chosen)
    assert (begun.status, begun.json["state"]) == (202, "running")
    last = acts.wanted[-1]
    assert (last.filter_text, last.ids, last.limit) == ("n = 1", ("1-7",), 9)
    number = str(begun.json["id"])
    cancelled = ask(rig, "cancelTask", number).json
    assert (cancelled["state"], cancelled["messages"]) == ("cancelled", 0)
    assert ask(rig, "cancelTask", number).status == 409
    acts.is_open = True
    acts.failure = RemoteProtocolError("the queue orders was deleted meanwhile")
    assert ask(rig, name, body=body).status == 409
    acts.failure = None
    assert ask(rig, name, "nowhere", body=body).status == 404
    for bad in ({"limit": -1}, {"messages": [""]}, {"filter": "n ="}, {"colour": "red"}):
        assert ask(rig, name, body=(body or {}) | bad).status == 400, bad
    for data, kind, status in (
        (b"{", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b'"' + b"x" * BODY_BYTES_MAX + b'"', "application/json", 413),
    ):
        assert ask(rig, name, data=data, headers={"Content-Type": kind}).status == status


def test_what_acts_need(rig: AdminRig):
    acts = rig.broker.message_acts
    for body in ({}, {"expiresMs": 1, "timeToLiveMs": 1}, {"expiresMs": -1}):
        assert ask(rig, "changeExpiry", body=body).status == 400
    assert ask(rig, "changeExpiry", body={"timeToLiveMs": 1000}).status == 200
    assert acts.wanted[-1].expires_ms > 1_700_000_000_000
    for name, body in (("changePriority", {"priority": 10}), ("moveMessages", {})):
        assert ask(rig, name, body=body).status == 400
    assert ask(rig, "moveMessages", body={"to": "nowhere"}).status == 409
    rig.broker.dead_letter_address = ""
    assert ask(rig, "sendToDeadLetterAddress").status == 409


def test_tasks_are_listed(rig: AdminRig):
    for _ in range(3):
        ask(rig, "removeMessages")
    first = ask(rig, "listTasks", query="?limit=1").json
    rest = ask(rig, "listTasks", query=f"?after={first['next']}").json
    assert rest["next"] is None
    assert [task["id"] for task in rest["items"]][-1] == len(rig.broker.message_acts.wanted)
    assert ask(rig, "showTask", "1", "?wait=1").json["id"] == 1
    assert ask(rig, "listTasks", query="?after=x").status == 400
    for name in ("showTask", "cancelTask"):
        assert ask(rig, name, "0").status == 404
        assert ask(rig, name, "x").status == 404


def test_messages_are_counted(rig: AdminRig):
    rig.broker.browsing.failure = None
    rig.broker.browsing.messages["orders"] = [browsed(number) for number in (1, 2, 3)]
    first = ask(rig, "countMessages").json
    assert first == {"messages": 2, "next": "2"}
    assert ask(rig, "countMessages", query="?after=2").json == {"messages": 1, "next": None}
    assert ask(rig, "countMessages", query="?filter=x").status == 400
    assert ask(rig, "countMessages", "nowhere").status == 404
    rig.broker.browsing.failure = RemoteProtocolError("the queue orders was deleted meanwhile")
    assert ask(rig, "countMessages").status == 409


def test_counters_are_shown_and_reset(rig: AdminRig):
    for kind in ("Queue", "Address"):
        shown = ask(rig, f"show{kind}Counter").json
        assert (shown["killed"], shown["addedDelta"], shown["lastAckMs"]) == (
            5,
            9,
            1_700_000_000_000,
        )
        (day,) = shown["days"]
        assert (day["date"], day["hours"][0]["hour"]) == ("2023-11-14", 22)
        assert day["hours"][0]["counts"] == day["counts"]
        assert ask(rig, f"reset{kind}Counter").status == 204
    assert ask(rig, "resetAllCounters").status == 204
    assert rig.broker.counters.resets == ["orders", "orders", "all"]
    acts = [f"{act}{kind}Counter" for act in ("show", "reset") for kind in ("Queue", "Address")]
    for name in acts:
        assert ask(rig, name, "nowhere").status == 404
    rig.broker.counters.is_enabled = False
    for name in (*acts, "resetAllCounters"):
        assert ask(rig, name).status == 409


def test_a_connection_is_closed(rig: AdminRig):
    before = list(rig.broker.connection_states)
    assert ask(rig, "closeConnection", "2").json["user"] == "alice"
    assert [state.id for state in rig.broker.connection_states] == [1, 10]
    for number in ("2", "x"):
        assert ask(rig, "closeConnection", number).status == 404
    rig.broker.connection_states = before


def test_a_queue_is_changed_paused_and_goes_on(rig: AdminRig):
    changed = ask(rig, "changeQueue", body={"maxConsumers": 3, "purgeOnNoConsumers": True}).json
    assert (changed["maxConsumers"], changed["purgeOnNoConsumers"]) == (3, True)
    assert ask(rig, "changeQueue", body={"maxConsumers": 4}).json["purgeOnNoConsumers"] is True
    assert ask(rig, "changeQueue", body={"maxConsumers": -2}).status == 400
    assert ask(rig, "pauseQueue").json["isPaused"] is True
    assert ask(rig, "resumeQueue").json["isPaused"] is False
    rig.broker.queue_states["volatile"] = queue_state("volatile", is_durable=False)
    assert ask(rig, "pauseQueue", "volatile", "?persist=true").status == 409
    assert ask(rig, "changeQueue", "nowhere", body={}).status == 404
    assert ask(rig, "pauseQueue", "nowhere").status == 404
    assert ask(rig, "resumeQueue", "nowhere").status == 404
    made = ask(rig, "createQueue", body={"name": "few", "maxConsumers": 2})
    assert (made.status, made.json["maxConsumers"]) == (201, 2)


def test_groups_are_listed_page_by_page_and_released(rig: AdminRig):
    owners = [
        GroupOwner(group=f"g{n}", bucket=None, connection=n, subscription="s") for n in range(3)
    ]
    rig.broker.groups.owned["orders"] = owners
    page = ask(rig, "listGroups", query="?limit=2").json
    assert [item["group"] for item in page["items"]] == ["g0", "g1"]
    page = ask(rig, "listGroups", query=f"?limit=2&after={page['next']}").json
    assert ([item["connection"] for item in page["items"]], page["next"]) == ([2], None)
    assert ask(rig, "releaseGroups").json == {"groups": 3}
    assert ask(rig, "listGroups").json["items"] == []
    for name in ("listGroups", "releaseGroups"):
        assert ask(rig, name, "nowhere").status == 404


def test_messages_are_chosen_by_state(rig: AdminRig):
    states = ("ready", "delivering", "scheduled", "aside")
    messages = [browsed(n, state=state) for n, state in enumerate(states, 1)]
    rig.broker.browsing.messages["orders"] = messages
    for query, sequences in (
        ("", [1, 2, 3, 4]),
        ("?delivering=true", [2]),
        ("?scheduled=true", [3]),
        ("?scheduled=true&delivering=true", [2, 3]),
    ):
        page = ask(rig, "browseQueue", query=query).json
        assert [item["sequence"] for item in page["items"]] == sequences


def test_an_address_is_paused_and_goes_on(rig: AdminRig):
    assert ask(rig, "pauseAddress").json["isPaused"] is True
    assert ask(rig, "resumeAddress").json["isPaused"] is False
    assert ask(rig, "pauseAddress", "nowhere").status == 404
    assert ask(rig, "resumeAddress", "nowhere").status == 404


def test_an_address_is_changed(rig: AdminRig):
    body = {"routingTypes": ["MULTICAST"]}
    assert ask(rig, "changeAddress", body=body).json["routingTypes"] == ["MULTICAST"]
    assert ask(rig, "changeAddress", body={"routingTypes": []}).status == 400
    assert ask(rig, "changeAddress", "nowhere", body=body).status == 404
    rig.broker.failure = RemoteProtocolError("the address has a queue of another type")
    assert ask(rig, "changeAddress", body=body).status == 409


def test_an_address_with_queues_stays(rig: AdminRig):
    assert ask(rig, "deleteAddress").status == 409
    rig.broker.address_types["empty"] = set()
    assert ask(rig, "deleteAddress", "empty").status == 204
    assert "empty" not in rig.broker.address_types


JMS = ("JmsQueue", "JmsTopic", "ConnectionFactory")
URL = {"url": "amqp://localhost:5672"}


@pytest.mark.parametrize(
    ("names", "name"),
    [("JmsQueues", "orders"), ("JmsTopics", "prices"), ("ConnectionFactories", "orders")],
)
def test_jms_objects_are_listed_by_kind(rig: AdminRig, names: str, name: str):
    assert [item["name"] for item in ask(rig, f"list{names}").json["items"]] == [name]


@pytest.mark.parametrize("noun", JMS)
def test_jms_objects_are_made_and_get_more_names(rig: AdminRig, noun: str):
    url = URL if noun == "ConnectionFactory" else {}
    body = {"name": "new", "jndiNames": ["jms/new"], **url}
    answer = ask(rig, f"create{noun}", body=body)
    assert answer.status == 201
    assert rig.get(answer.headers["Location"], login=ROOT).json == answer.json
    answer = ask(rig, f"create{noun}", body={"name": "new", "jndiNames": ["also"], **url})
    assert (answer.status, answer.json["jndiNames"]) == (200, ["jms/new", "also"])
    assert ask(rig, f"show{noun}", "new").json == answer.json
    taken = ask(rig, f"create{noun}", body={"name": "other", "jndiNames": ["also"], **url})
    assert taken.status == 409
    assert ask(rig, f"delete{noun}", "new").json == {"messages": 0}
    assert ask(rig, f"show{noun}", "new").status == 404
    assert ask(rig, f"delete{noun}", "new").status == 404
    assert "also" not in rig.broker.jms.objects.jndi_names()


@pytest.mark.parametrize("noun", JMS)
def test_bodies_of_jms_objects_are_checked(rig: AdminRig, noun: str):
    answer = ask(rig, f"create{noun}", body={"name": "x", "colour": "red", **URL})
    assert answer.status == 400
    large = b'"' + b"x" * BODY_BYTES_MAX + b'"'
    json_type, text_type = ({"Content-Type": name} for name in ("application/json", "text/plain"))
    assert ask(rig, f"create{noun}", data=large, headers=json_type).status == 413
    assert ask(rig, f"create{noun}", data=b"{}", headers=text_type).status == 415


def test_a_jms_queue_in_use_is_not_deleted_by_chance(rig: AdminRig):
    assert ask(rig, "deleteJmsQueue", "orders").status == 409
    assert "orders" in rig.broker.queue_states
    assert ask(rig, "deleteJmsQueue", "orders", query="?force=true").json == {"messages": 3}
    assert "orders" not in rig.broker.queue_states
    assert "jms/orders" not in rig.broker.jms.objects.jndi_names()
    product_loop.run(rig.broker.jms.create(JmsKind.QUEUE, "orders", ["jms/orders", "orders"]))


def test_a_topic_with_messages_is_not_deleted_by_chance(rig: AdminRig):
    assert ask(rig, "deleteJmsTopic", "prices").status == 409
    assert "jms/prices" in rig.broker.jms.objects.jndi_names()


def test_jndi_names_are_listed_and_taken_away(rig: AdminRig):
    items = ask(rig, "listJndiNames").json["items"]
    assert {(item["jndiName"], item["kind"], item["name"]) for item in items} >= {
        ("jms/prices", "topic", "prices"),
        ("cf", "connection-factory", "orders"),
    }
    assert ask(rig, "removeJndiName", "cf").status == 204
    assert ask(rig, "removeJndiName", "cf").status == 404
    assert ask(rig, "showConnectionFactory", "orders").json["jndiNames"] == []


def test_the_names_are_served_as_a_properties_file(rig: AdminRig):
    text = ask(rig, "showJndiProperties").body.decode()
    assert "topic.jms/prices = prices\n" in text


NAMED = (
    "showQueue deleteQueue purgeQueue showAddress showAddressSettings "
    "deleteAddress retryMessages sendToDeadLetterAddress expireMessages deliverScheduled"
)


@pytest.mark.parametrize("name", NAMED.split())
def test_what_is_not_there(rig: AdminRig, name: str):
    answer = ask(rig, name, "nowhere")
    assert answer.status == 404
    assert "nowhere" in answer.json["detail"]


@pytest.mark.parametrize("asks", [ask_streams, ask_fences])
def test_every_answer_of_a_family_of_calls(rig: AdminRig, asks: Callable[[AdminRig], None]):
    asks(rig)


def test_a_failed_journal_is_an_error_of_the_broker(rig: AdminRig):
    rig.broker.failure = failed_writer()
    answer = ask(rig, "purgeQueue")
    assert answer.status == 503
    assert answer.json["type"] == "urn:vespiary:error:VSP-J102"
    assert ask(rig, "createQueue", body={"name": "x"}).status == 503


def test_users_without_the_role_look_and_do_not_change(rig: AdminRig):
    alice = ("alice", "secret")
    assert rig.get(f"{BASE}/queues", login=alice).status == 200
    for route in ROUTES:
        if route.is_change:
            body = {"name": "x"} if route.body else None
            answer = check(route, rig.call(route.method, path_of(route), body=body, login=alice))
            assert answer.status == 403
            assert "role" in answer.json["detail"]
    assert set(rig.broker.queue_states) == {"orders", "prices"}


def test_the_configuration_is_shown_and_read_again(rig: AdminRig):
    assert ask(rig, "showConfiguration").json["certificates"][0]["subject"] == "CN=orders"
    assert ask(rig, "reloadConfiguration").json["taken"] == 1
    rig.broker.reloading.failure = ConfigError("no such setting", path="colour")
    assert ask(rig, "reloadConfiguration").status == 409


def test_every_documented_answer_was_given(request: pytest.FixtureRequest):
    here = {item.nodeid for item in request.session.items if item.module is request.module}
    chosen = {name.partition("::")[2].partition("[")[0] for name in here}
    if chosen != {name for name in vars(request.module) if name.startswith("test_")}:
        pytest.skip("needs all tests of this module to be chosen")
    if here - RAN:
        run_alone(request.path, request.config.rootpath)
        return
    for route in ROUTES:
        documented = {*route.answers, *route.problems, *COMMON_STATUSES}
        assert {(route.operation, status) for status in documented} <= SEEN
