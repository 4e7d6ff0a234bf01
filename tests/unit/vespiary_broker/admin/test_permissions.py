"""Which operations of the API rules decide about, and at which addresses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vespiary_broker.admin.permissions import NEEDED, QUEUES
from vespiary_broker.admin.routes import ROUTES
from vespiary_broker.app.tasks import Task
from vespiary_broker.engine.logins import ANONYMOUS
from vespiary_broker.engine.users import User, make_user
from vespiary_broker.engine.wanted import Wanted
from vespiary_spec.errors import NotPermitted
from vespiary_spec.settings import Permission, RoutingType, SecuritySettings
from vespiary_testkit.admin_rig import AdminRig, MemoryBroker, admin_rig, queue_state
from vespiary_testkit.memory_streams import stream_state
from vespiary_testkit.openapi_checks import check, filled_broker, operation, path_of

ALICE, ROOT = ("alice", "secret"), ("root", "secret")
USERS = {
    "root": make_user("root", "secret", roles=("admin",), iterations=4096),
    "alice": make_user("alice", "secret", roles=("team",), iterations=4096),
}
MADE = {"name": "new", "address": "made", "routingType": "ANYCAST"}
CASES: dict[str, tuple[str, dict[str, Any] | None, str, tuple[tuple[Permission, str], ...]]] = {
    # operation (a space and a word tell several of one apart): name in the path, body, query,
    # what it needs where
    "createAddress": (
        "",
        {"name": "made", "routingTypes": ["ANYCAST"]},
        "",
        ((Permission.CREATE_ADDRESS, "made"),),
    ),
    "deleteAddress": ("orders", None, "", ((Permission.DELETE_ADDRESS, "orders"),)),
    "createQueue": (
        "",
        MADE,
        "",
        ((Permission.CREATE_DURABLE_QUEUE, "made"), (Permission.CREATE_ADDRESS, "made")),
    ),
    "createQueue there": (
        "",
        {"name": "new", "address": "narrow", "routingType": "ANYCAST", "durable": False},
        "",
        ((Permission.CREATE_NON_DURABLE_QUEUE, "narrow"),),
    ),
    "createQueue widens": (
        "",
        {"name": "new", "address": "narrow", "routingType": "MULTICAST"},
        "",
        ((Permission.CREATE_DURABLE_QUEUE, "narrow"), (Permission.CREATE_ADDRESS, "narrow")),
    ),
    "changeAddress widens": (
        "narrow",
        {"routingTypes": ["ANYCAST", "MULTICAST"]},
        "",
        ((Permission.MANAGE, "narrow"), (Permission.CREATE_ADDRESS, "narrow")),
    ),
    "deleteQueue": ("orders", None, "?force=true", ((Permission.DELETE_DURABLE_QUEUE, "place"),)),
    "browseQueue": ("orders", None, "", ((Permission.BROWSE, "place"),)),
    "countMessages": ("orders", None, "", ((Permission.BROWSE, "place"),)),
    "listGroups": ("orders", None, "", ((Permission.BROWSE, "place"),)),
    "moveMessages": (
        "orders",
        {"to": "other"},
        "",
        ((Permission.MANAGE, "place"), (Permission.SEND, "elsewhere")),
    ),
    "copyMessages": (
        "orders",
        {"to": "other"},
        "",
        ((Permission.MANAGE, "place"), (Permission.SEND, "elsewhere")),
    ),
    "cancelTask": ("1", None, "", ((Permission.MANAGE, "place"),)),
    "claimStream": (
        "",
        {"name": "spark", "queue": "other", "owner": "me", "leaseS": 60},
        "",
        ((Permission.CONSUME, "place"), (Permission.CONSUME, "elsewhere")),
    ),
    "headOfStream": ("spark", None, "?epoch=1", ((Permission.CONSUME, "place"),)),
    "rangeOfStream": ("spark", None, "?epoch=1&after=0&to=1", ((Permission.CONSUME, "place"),)),
    "bodyOfStream": ("spark", None, "?epoch=1&sequence=1", ((Permission.CONSUME, "place"),)),
    "acknowledgeStream": (
        "spark",
        {"epoch": 1, "sequence": 1},
        "",
        ((Permission.CONSUME, "place"),),
    ),
    "deleteStream": ("spark", None, "", ((Permission.CONSUME, "place"),)),
    "changeAddress": (
        "narrow",
        {"routingTypes": ["ANYCAST"]},
        "",
        ((Permission.MANAGE, "narrow"),),
    ),
    **dict.fromkeys(
        (
            *("pauseAddress", "resumeAddress", "resetAddressCounter"),
            *("showDuplicateIds", "clearDuplicateIds", "showAddressSettings"),
        ),
        ("orders", None, "", ((Permission.MANAGE, "orders"),)),
    ),
    **dict.fromkeys(
        ("pauseQueue", "resumeQueue", "purgeQueue", "releaseGroups", "resetQueueCounter"),
        ("orders", None, "", ((Permission.MANAGE, "place"),)),
    ),
    **dict.fromkeys(
        (
            *("changeQueue", "removeMessages", "retryMessages", "sendToDeadLetterAddress"),
            *("deliverScheduled", "expireMessages"),
        ),
        ("orders", {}, "", ((Permission.MANAGE, "place"),)),
    ),
    "changeExpiry": ("orders", {"timeToLiveMs": 1}, "", ((Permission.MANAGE, "place"),)),
    "changePriority": ("orders", {"priority": 1}, "", ((Permission.MANAGE, "place"),)),
}


@pytest.fixture
def rig() -> Iterator[AdminRig]:
    broker = filled_broker()
    broker.users = dict(USERS)
    broker.queue_states["orders"] = queue_state("orders", address="place")
    broker.queue_states["other"] = queue_state("other", address="elsewhere")
    broker.address_types["narrow"] = {RoutingType.ANYCAST}
    broker.streams.states["spark"] = stream_state("spark", queue="orders")
    with admin_rig(broker) as rig:
        rig.call("POST", path_of(operation("removeMessages")), body={}, login=ROOT)
        yield rig


def rule(broker: MemoryBroker, *granted: tuple[Permission, str]) -> None:
    """Let the role `team` do what is granted, and nothing else."""
    roles: dict[str, dict[str, tuple[str, ...]]] = {"#": {}}
    for permission, address in granted:
        roles.setdefault(address, {})[permission.value] = ("team",)
    broker.permissions.replace({match: SecuritySettings(**each) for match, each in roles.items()})


def ask(rig: AdminRig, name: str, login: tuple[str, str] = ALICE) -> int:
    route = operation(name.split()[0])
    path, body, query, _ = CASES[name]
    answer = rig.call(route.method, path_of(route, path) + query, body=body, login=login)
    check(route, answer)
    if answer.status == 403 and rig.broker.permissions.is_on:
        assert "VSP-P110" in answer.json["detail"]
    return answer.status


def test_every_operation_that_rules_decide_about_has_a_case() -> None:
    assert {name.split()[0] for name in CASES} == set(NEEDED)
    assert set(NEEDED) <= {route.operation for route in ROUTES}


@pytest.mark.parametrize("name", sorted(CASES))
def test_each_permission_is_needed_and_enough(rig: AdminRig, name: str) -> None:
    needs = CASES[name][3]
    for missing in range(len(needs)):
        rule(rig.broker, *(each for index, each in enumerate(needs) if index != missing))
        assert ask(rig, name) == 403
    rule(rig.broker, *needs)
    assert ask(rig, name) != 403


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_administrator_needs_none(rig: AdminRig, name: str) -> None:
    rule(rig.broker)
    assert ask(rig, name, ROOT) != 403


@pytest.mark.parametrize("name", sorted(CASES))
def test_without_rules_changes_need_the_role_and_looking_nothing(rig: AdminRig, name: str) -> None:
    route = operation(name.split()[0])
    assert (ask(rig, name) == 403) is (route.is_change or route.is_private)


@pytest.mark.parametrize("name", [f"~{64 * 'a'}.shop.prices", "$share.workers.jobs"])
def test_names_of_subscriptions_are_for_administrators_to_choose(rig: AdminRig, name: str) -> None:
    rule(rig.broker, *CASES["createQueue"][3])
    for login, status in ((ALICE, 409), (ROOT, 201)):
        path = path_of(operation("createQueue"))
        answer = rig.call("POST", path, body={**MADE, "name": name}, login=login)
        assert answer.status == status
        assert ("are for the queues of subscriptions" in str(answer.json)) is (login is ALICE)


BOB = ("bob", "secret")
QUEUE_CASES = sorted(name for name in CASES if name in QUEUES)


def test_every_operation_on_a_queue_asks_whose_it_is() -> None:
    assert set(NEEDED) - set(QUEUES) == {
        *("createAddress", "changeAddress", "deleteAddress", "pauseAddress", "resumeAddress"),
        *("showDuplicateIds", "clearDuplicateIds", "resetAddressCounter", "createQueue"),
        "showAddressSettings",
    }
    assert set(QUEUES) <= set(NEEDED)
    assert set(QUEUES) == set(QUEUE_CASES)


@pytest.mark.parametrize("has_rules", [False, True])
@pytest.mark.parametrize("name", QUEUE_CASES)
def test_a_queue_of_another_user_is_for_its_owner_and_administrators(
    rig: AdminRig, name: str, has_rules: bool
) -> None:
    rig.broker.users["bob"] = make_user("bob", "secret", roles=("team",), iterations=4096)
    rig.broker.owned["orders"] = "alice"
    if has_rules:
        rule(rig.broker, *CASES[name][3])
    route = operation(name)
    path, body, query, _ = CASES[name]
    answer = rig.call(route.method, path_of(route, path) + query, body=body, login=BOB)
    assert answer.status == 403
    is_open_to_all = has_rules or not (route.is_change or route.is_private)
    assert ("VSP-P113" in answer.json["detail"]) is is_open_to_all
    assert (ask(rig, name) == 403) is not is_open_to_all
    assert ask(rig, name, ROOT) != 403


@pytest.mark.parametrize("name", ["moveMessages", "retryMessages", "sendToDeadLetterAddress"])
def test_where_messages_go_is_decided_for_the_one_who_asks(
    rig: AdminRig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(rig.broker, *CASES[name][3])
    rig.broker.dead_letter_address = "DLQ"
    for login, user in ((ALICE, "alice"), (ROOT, "")):
        assert ask(rig, name, login) < 300
        assert rig.broker.message_acts.wanted[-1].user == user

    def refuse(wanted: Wanted) -> Task:
        raise NotPermitted(wanted.user, "send", "secret", "#")

    monkeypatch.setattr(rig.broker.message_acts, "start", refuse)
    assert ask(rig, name) == 403


@pytest.mark.parametrize(
    "name",
    [
        "showConfiguration",
        "listConnections",
        "listConsumers",
        "showDuplicateIds",
        "showAddressSettings",
        "listTransactions",
        "showDrain",
    ],
)
def test_what_tells_of_other_users_is_for_administrators(rig: AdminRig, name: str) -> None:
    route = operation(name)
    for login, is_refused in ((ALICE, True), (ROOT, False)):
        answer = rig.call(route.method, path_of(route, "1"), login=login)
        assert (answer.status == 403) is is_refused, answer.body


OPEN = {
    *("listBrokers", "showJournal", "listJournalFiles", "listVolumes"),
    *("listAddresses", "showAddress", "showAddressCounter"),
    *("listQueues", "showQueue", "showQueueCounter", "listDiverts", "showDivert"),
    *("listTasks", "showTask"),
    *("listStreams", "showStream", "listFences", "showFence"),
    *("listJmsQueues", "showJmsQueue", "listJmsTopics", "showJmsTopic", "listJndiNames"),
    *("listConnectionFactories", "showConnectionFactory", "showJndiProperties"),
}
"""What everybody who is logged in may look at."""


def test_each_operation_says_who_may_look() -> None:
    looks = {route.operation for route in ROUTES if not (route.is_change or route.is_private)}
    assert looks - set(NEEDED) == OPEN


def test_all_other_changes_need_the_role_whatever_rules_say(rig: AdminRig) -> None:
    everything = {permission.value: ("team",) for permission in Permission}
    rig.broker.permissions.replace({"#": SecuritySettings(**everything)})
    others = [route for route in ROUTES if route.is_change and route.operation not in NEEDED]
    assert len(others) > 10
    for route in others:
        answer = rig.call(route.method, path_of(route, "1"), body={"name": "x"}, login=ALICE)
        assert answer.status == 403, route.operation
        assert "role admin" in check(route, answer).json["detail"]


def test_looking_at_what_there_is_needs_no_permission(rig: AdminRig) -> None:
    rule(rig.broker)
    for name in ("listQueues", "listAddresses", "listTasks"):
        assert rig.call("GET", path_of(operation(name)), login=ALICE).status == 200


def test_transfers_of_another_broker_need_the_role(rig: AdminRig) -> None:
    everything = {permission.value: ("team",) for permission in Permission}
    rig.broker.permissions.replace({"#": SecuritySettings(**everything)})
    answer = rig.call("POST", "/api/v1/transfers/queues", body={}, login=ALICE)
    assert answer.status == 403


def test_a_user_called_anonymous_is_no_administrator(rig: AdminRig) -> None:
    keys = USERS["alice"]
    rig.broker.users[ANONYMOUS] = User(
        ANONYMOUS, keys.salt, keys.iterations, keys.stored_key, keys.server_key
    )
    answer = rig.call("POST", path_of(operation("purgeQueue")), login=(ANONYMOUS, "secret"))
    assert answer.status == 403


def test_a_look_at_the_queue_of_a_wildcard_shows_a_part_to_who_may_see_a_part(
    rig: AdminRig,
) -> None:
    broker = rig.broker
    broker.queue_states["all"] = queue_state("all", address="#")
    rule(broker, (Permission.BROWSE, "place"))
    path = path_of(operation("browseQueue"), "all")
    broker.permissions.is_filtering = False
    assert rig.call("GET", path, login=ALICE).status == 403, "as long as parts are rejected"
    broker.permissions.is_filtering = True
    broker.permissions.forget()
    assert rig.call("GET", path, login=ALICE).status == 200
    assert broker.browsing.user == ALICE[0], "it shows what that user may see"
    assert rig.call("GET", path, login=ROOT).status == 200
    assert broker.browsing.user == "", "administrators see all"
    counting = path_of(operation("countMessages"), "all")
    assert rig.call("GET", counting, login=ALICE).status == 403, "a number has no parts"
    rule(broker)
    assert rig.call("GET", path, login=ALICE).status == 403
