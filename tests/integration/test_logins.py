"""Who gets into a whole broker: the users file as it changes, and what follows for connections."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for
from vespiary_testkit.websocket_peer import WebSocketClient

pytestmark = pytest.mark.once

PASSWORD = "pass-of-the-test"
USERS = {
    name: make_user(name, PASSWORD, roles=roles, iterations=4096)
    for name, roles in {"root": ["admin"], "alice": ["apps"]}.items()
}


def write(path: Path, *names: str) -> None:
    new = path.with_name("new-users")
    new.write_text(format_users([USERS[name] for name in names]))
    new.chmod(0o600)
    new.replace(path)


def log_in(broker: BrokerProcess, user: str = "") -> str:
    """Return the broker's answer to a STOMP client with or without a user name."""
    with StompPeer(broker.port("stomp")) as peer:
        login = {"login": user, "passcode": PASSWORD} if user else {}
        peer.send("CONNECT", {"accept-version": "1.2", **login})
        return peer.receive().command


def ask(broker: BrokerProcess, user: str = "", method: str = "GET", path: str = "brokers") -> int:
    """Return the status of an HTTP request with or without a user name."""
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/{path}"
    request = urllib.request.Request(url, method=method)
    if user:
        word = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
        request.add_header("Authorization", f"Basic {word}")
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


# --- users that are removed --------------------------------------------------------------------


def come_in(broker: BrokerProcess, port: str, user: str = "") -> StompPeer:
    peer = StompPeer(broker.port(port))
    peer.connect(**({"login": user, "passcode": PASSWORD} if user else {}))
    return peer


def test_removing_a_user_ends_its_connections_and_no_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data / "users", "root", "alice")
    with BrokerProcess(data) as broker, come_in(broker, "stomp", "root") as root:
        web = WebSocketClient(broker.port("http"), "v12.stomp")
        with come_in(broker, "all", "alice") as alice, web:
            login = f"CONNECT\naccept-version:1.2\nlogin:alice\npasscode:{PASSWORD}\n\n\0"
            web.message(login.encode())
            assert web.received(b"\0").startswith(b"CONNECTED")
            write(data / "users", "root")
            assert "the user alice was removed" in alice.receive_error().get("message", "")
            assert b"the user alice was removed" in web.received(b"closed.\n\0")
        root.send("SEND", {"destination": "/queue/a", "receipt": "1"}, b"x")
        root.receive_receipt("1")
        assert "connections closed user='alice' connections=2" in broker.log_text()


def test_the_last_user_loses_its_connections_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data / "users", "alice")
    with BrokerProcess(data) as broker, come_in(broker, "stomp", "alice") as alice:
        (data / "users").unlink()
        assert "the user alice was removed" in alice.receive_error().get("message", "")


def test_the_first_user_ends_connections_without_a_login(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker, come_in(broker, "stomp") as peer:
        write(data / "users", "alice")
        assert "clients have to log in now" in peer.receive_error().get("message", "")


# --- a users file without users ---------------------------------------------------------------


def _emptied(path: Path) -> None:
    path.write_text("")


def _without_users(path: Path) -> None:
    write(path)


@pytest.mark.parametrize("spoil", [_emptied, Path.unlink, _without_users])
def test_a_users_file_that_loses_its_users_lets_nobody_in(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data / "users", "root")
    broker = BrokerProcess(data)
    with broker:
        assert log_in(broker, "root") == "CONNECTED"
        spoil(data / "users")
        assert log_in(broker) == "ERROR"
        assert ask(broker) == 401
        assert ask(broker, "root") == 401
        wait_for(lambda: "nobody can log in" in broker.log_text(), what="a warning")
        assert "vespiary user add" in broker.log_text()
    broker.log.unlink()
    with broker:  # nor after a restart
        assert log_in(broker) == "ERROR"
        assert ask(broker) == 401
        assert "nobody can log in" in broker.log_text()
        write(data / "users", "root")
        assert log_in(broker, "root") == "CONNECTED"


def test_permissions_without_users_let_nobody_in_without_a_login(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "security-settings.#.send=apps") as broker:
        assert log_in(broker) == "ERROR"
        assert ask(broker) == 401
        assert "nobody can log in" in broker.log_text()


def test_anonymous_clients_are_let_in_where_they_are_explicitly_allowed(tmp_path: Path) -> None:
    for rules in ((), ("security-settings.#.send=anonymous",)):
        _check_guests(BrokerProcess(tmp_path / "data", "security.allow-anonymous=true", *rules))


def _check_guests(broker: BrokerProcess) -> None:
    with broker:
        assert log_in(broker) == "CONNECTED"
        assert ask(broker) == 200
        assert ask(broker, method="POST", path="configuration/reload") == 403, (
            "it is no administrator"
        )
