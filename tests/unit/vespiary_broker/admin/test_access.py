"""Who is let in, and from where."""

from __future__ import annotations

import asyncio
import base64
import logging

import pytest

from vespiary_broker.admin.access import Access
from vespiary_broker.admin.problems import Refused
from vespiary_broker.engine.logins import Principal
from vespiary_broker.server.password_checks import PasswordChecks
from vespiary_testkit.admin_rig import MemoryBroker, basic, users_with_roles
from vespiary_testkit.journal_workload import run

LOOPBACK_HOSTS = ["127.0.0.1:8161", "localhost", "localhost:1", "[::1]:8161", "127.5.5.5"]
FOREIGN_HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example:8161",
    "",
    "10.0.0.1",
    "[::1",
    "localhost.",
]


@pytest.fixture
def local() -> Access:
    return Access(MemoryBroker(users_with_roles()), "127.0.0.1")


@pytest.mark.parametrize("host", LOOPBACK_HOSTS)
def test_names_of_this_machine_are_answered(local: Access, host: str):
    local.check_place({"Host": host})


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_another_name_on_loopback_is_rebinding(local: Access, host: str):
    with pytest.raises(Refused) as refusal:
        local.check_place({"Host": host})
    assert refusal.value.status == 421


@pytest.mark.parametrize("host", [*LOOPBACK_HOSTS, "orders-0.orders.shop.svc:8161", "10.1.2.3"])
def test_beyond_loopback_any_name_is_answered(host: str):
    Access(MemoryBroker(users_with_roles()), "0.0.0.0").check_place({"Host": host})


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:9999"},
        {"Sec-Fetch-Site": "cross-site"},
    ],
)
def test_pages_of_other_sites_are_refused(local: Access, headers: dict[str, str]):
    with pytest.raises(Refused) as refusal:
        local.check_place({"Host": "localhost:8161", **headers})
    assert refusal.value.status == 403


def test_our_own_page_is_let_in(local: Access):
    own = {"Origin": "http://localhost:8161", "Sec-Fetch-Site": "same-origin"}
    local.check_place({"Host": "localhost:8161", **own})


@run
async def test_a_good_login_has_name_and_roles(local: Access):
    principal = await local.login({"Authorization": basic("root", "secret")}, "127.0.0.1")
    assert principal == Principal("root", frozenset({"admin"}))
    assert await local.login({"Authorization": basic("root", "secret")}, "127.0.0.1") == principal


@pytest.mark.parametrize(
    "header",
    [
        "",
        basic("root", "wrong"),
        basic("nobody", "secret"),
        "Bearer abc",
        "Basic ???",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "Basic " + "A" * 5000,
        "Basic",
    ],
)
@run
async def test_other_logins_are_asked_again(local: Access, header: str):
    with pytest.raises(Refused) as refusal:
        await local.login({"Authorization": header} if header else {}, "127.0.0.1")
    assert refusal.value.status == 401
    assert refusal.value.headers["WWW-Authenticate"].startswith("Basic ")
    assert "secret" not in refusal.value.detail


@run
async def test_guessing_is_slowed_down_and_logged(caplog: pytest.LogCaptureFixture):
    broker = MemoryBroker(users_with_roles())
    local = Access(broker, "127.0.0.1")
    with caplog.at_level(logging.WARNING):
        for attempt in range(6):
            with pytest.raises(Refused) as refusal:
                await local.login({"Authorization": basic("root", f"guess{attempt}")}, "10.0.0.9")
            assert refusal.value.status == 401
    lines = [each.getMessage() for each in caplog.records]
    assert lines == [
        "login failed user='root' protocol=HTTP listener=http peer=10.0.0.9 "
        "reason='user name or password are wrong'"
    ]
    loop = asyncio.get_running_loop()
    assert broker.own_logins.pause_s("root", "10.0.0.9", loop.time()) > 0
    good = {"Authorization": basic("root", "secret")}
    assert (await local.login(good, "10.0.0.9")).name == "root"


@run
async def test_a_login_that_finds_no_place_to_wait_is_no_wrong_one():
    broker = MemoryBroker(users_with_roles())
    broker.passwords.close()
    broker.passwords = PasswordChecks(broker.own_logins, waiting_max=0)
    with pytest.raises(Refused) as refusal:
        await Access(broker, "127.0.0.1").login({"Authorization": basic("root", "secret")}, "::1")
    assert refusal.value.status == 503
    assert refusal.value.headers["Retry-After"] == "1"


@run
async def test_nobody_needs_a_login_while_there_are_no_users():
    local = Access(MemoryBroker(), "127.0.0.1")
    principal = await local.login({}, "127.0.0.1")
    local.check_administrator(principal, "may not")


def test_changes_need_the_role(local: Access):
    local.check_administrator(Principal("root", frozenset({"admin"})), "may not")
    with pytest.raises(Refused) as refusal:
        local.check_administrator(Principal("alice", frozenset({"reader"})), "may not")
    assert refusal.value.status == 403
