"""The log of failed logins: who, how, where, and not too often."""

from __future__ import annotations

import logging

import pytest

from vespiary_broker.engine.logins import FAILURES_FREE
from vespiary_broker.engine.users import make_user
from vespiary_broker.server.failed_logins import FailedLogins
from vespiary_broker.server.line_limit import KINDS_MAX, LINES_PER_PERIOD, PERIOD_S
from vespiary_codec.wire.mqtt import Connack, Connect, ReasonCode
from vespiary_spec.errors import LoginRefused
from vespiary_testkit.mqtt_rig import V3, MqttRig
from vespiary_testkit.rig_runner import on_rig
from vespiary_testkit.virtual_time import run_virtual


def noted(failures: FailedLogins, user: str, peer: str, now_s: float) -> None:
    error = LoginRefused("user name or password are wrong")
    error.user = user
    failures.note(error, protocol="STOMP", listener="all", peer=peer, now_s=now_s)


def test_one_line_for_each_kind_and_the_number_of_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = FailedLogins()
    with caplog.at_level(logging.WARNING):
        for n in range(50):
            noted(failures, "alice", "10.0.0.1", 0.0)
            noted(failures, "alice", f"2001:db8::{n}", 0.0)
        assert len(caplog.records) == 2
        noted(failures, "alice", "10.0.0.1", PERIOD_S)
    lines = [each.getMessage() for each in caplog.records[2:]]
    assert lines[0] == "more logins failed listener=all count=98"
    assert lines[1].startswith(
        "login failed user='alice' protocol=STOMP listener=all peer=10.0.0.1"
    )


def test_a_flood_of_names_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailedLogins()
    with caplog.at_level(logging.WARNING):
        for n in range(5000):
            noted(failures, f"user-{n}", f"10.0.{n // 250}.{n % 250}", 0.0)
    assert len(caplog.records) == LINES_PER_PERIOD
    assert failures._limit.kinds_count <= KINDS_MAX


def test_names_are_escaped_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        noted(FailedLogins(), "a\nlogin failed\x1b[31m\u202e" + "x" * 10_000, "10.0.0.1", 0.0)
    (line,) = [each.getMessage() for each in caplog.records]
    assert r"user='a\nlogin failed\x1b[31m\u202exxx" in line
    assert len(line) < 400


def test_a_client_is_logged_with_protocol_and_listener(caplog: pytest.LogCaptureFixture) -> None:
    @on_rig(users=lambda: {"u": make_user("u", "right", iterations=4096)})
    async def scenario(rig: MqttRig) -> None:
        client = rig.client(V3)
        client.send(Connect(V3, "c", user_name="u", password=b"not it"))
        assert (await client.answer(Connack)).reason_code is (ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        assert rig.engine.logins.refused == 1
        assert rig.cycle.errors["LoginRefused"] == 1

    with caplog.at_level(logging.INFO):
        scenario()
    assert "login failed user='u' protocol=MQTT listener=all peer=192.0.2.1" in caplog.text
    assert "not it" not in caplog.text


@on_rig(runner=run_virtual, users=lambda: {"u": make_user("u", "right", iterations=4096)})
async def test_a_login_that_has_to_wait_is_not_cut_off_by_its_deadline(rig: MqttRig) -> None:
    loop, logins = rig.cycle.loop, rig.engine.logins
    check = logins.begin("u", "right", "192.0.2.1", loop.time())
    logins.learn(check, is_good=True)  # type: ignore[arg-type]  # nothing is left to be hashed
    for _ in range(FAILURES_FREE + 10):
        logins.failed("u", "192.0.2.1", loop.time())
    client = rig.client(V3)
    client.connection.set_deadline("login", 0.5, client.connection._check_login)
    client.send(Connect(V3, "c", user_name="u", password=b"right"))
    begun_s = loop.time()
    assert (await client.answer(Connack)).reason_code is ReasonCode.SUCCESS
    assert loop.time() - begun_s == pytest.approx(8, abs=0.1)
    assert logins.delayed == 1
