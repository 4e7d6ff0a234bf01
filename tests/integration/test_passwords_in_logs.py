"""Logins good and bad, by each way in, at the log's most talkative: no password in it."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer

pytestmark = pytest.mark.once

GOOD, BAD = "Gd-5521-right", "Bd-8843-wrong"


def log_in(broker: BrokerProcess, password: str) -> str:
    with StompPeer(broker.port("stomp")) as peer:
        peer.send("CONNECT", {"accept-version": "1.2", "login": "alice", "passcode": password})
        return peer.receive().command


def ask(broker: BrokerProcess, password: str) -> int:
    request = urllib.request.Request(f"http://127.0.0.1:{broker.port('http')}/api/v1/brokers")
    word = base64.b64encode(f"alice:{password}".encode()).decode()
    request.add_header("Authorization", f"Basic {word}")
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_no_password_is_logged(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(format_users([make_user("alice", GOOD, iterations=4096)]))
    users.chmod(0o600)
    settings = (f"security.users-file={users}", "log-level=debug")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        assert log_in(broker, GOOD) == "CONNECTED"
        assert log_in(broker, BAD) == "ERROR"
        assert ask(broker, GOOD) == 200
        assert ask(broker, BAD) == 401
        text = broker.log_text()
    texts = text + (tmp_path / "data.log").read_text()
    assert "login failed user='alice' protocol=STOMP" in texts
    for password in (GOOD, BAD):
        encoded = base64.b64encode(f"alice:{password}".encode()).decode()
        for secret in (password, password[:7], encoded, encoded[-12:]):
            assert secret not in texts
