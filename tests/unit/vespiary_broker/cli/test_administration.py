"""`vespiary queue` and `vespiary address` against the real HTTP listener on a broker in memory."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_testkit.admin_rig import (
    AdminRig,
    MemoryBroker,
    admin_rig,
    queue_state,
    users_with_roles,
)


@pytest.fixture
def rig() -> Iterator[AdminRig]:
    broker = MemoryBroker()
    broker.queue_states["orders"] = queue_state("orders", messages=5, ready=3, delivering=2)
    broker.address_types["orders"] = set()
    with admin_rig(broker) as rig:
        yield rig


def ask(rig: AdminRig, *arguments: str) -> int:
    return run_program([*arguments, "--api", f"http://127.0.0.1:{rig.port}"])


def test_queues_are_listed_over_all_pages(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    for number in range(1100):
        rig.broker.queue_states[f"q{number:04}"] = queue_state(f"q{number:04}")
    assert ask(rig, "queue", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["queue", "address", "type", "messages"]
    assert lines[1].split()[:5] == ["orders", "orders", "ANYCAST", "5", "3"]
    assert len(lines) == 1102
    assert ask(rig, "queue", "list", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 1101


def test_one_queue_is_shown(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    assert ask(rig, "queue", "show", "orders") == 0
    assert "delivering     2" in capsys.readouterr().out
    assert ask(rig, "queue", "show", "a/b?c#d%") == 1
    assert "There is no queue 'a/b?c#d%'" in capsys.readouterr().err


def test_a_queue_is_created_where_it_should_be(rig: AdminRig, capsys):
    options = ["--address", "prices", "--routing-type", "multicast", "--no-durable"]
    options += ["--filter", "price < 10"]
    assert ask(rig, "queue", "create", "audit", *options) == 0
    state = rig.broker.queue_states["audit"]
    assert (state.address, state.routing_type, state.is_durable) == ("prices", "MULTICAST", False)
    assert state.filter_string == "price < 10"
    assert "queue audit of address prices, MULTICAST" in capsys.readouterr().out


def test_what_would_be_lost_is_asked_for(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    for command in (["queue", "purge"], ["queue", "delete"], ["address", "delete"]):
        assert ask(rig, *command, "orders") == 1
        assert "--yes" in capsys.readouterr().err
    assert rig.broker.queue_states["orders"].messages == 5


def test_purge_and_delete(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    assert ask(rig, "queue", "purge", "orders", "--yes") == 0
    assert "3 messages removed from orders" in capsys.readouterr().out
    assert ask(rig, "queue", "delete", "orders", "--yes") == 1
    assert "is in use" in capsys.readouterr().err
    assert ask(rig, "queue", "delete", "orders", "--yes", "--force", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"messages": 2}


def test_addresses(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    assert ask(rig, "address", "create", "news", "--routing-type", "MULTICAST") == 0
    assert ask(rig, "address", "show", "news") == 0
    assert "routingTypes   MULTICAST" in capsys.readouterr().out
    assert ask(rig, "address", "list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "news",
        "orders",
    ]
    assert ask(rig, "address", "delete", "orders", "--yes") == 1
    assert "has queues" in capsys.readouterr().err
    assert ask(rig, "address", "delete", "news", "--yes") == 0
    assert "news" not in rig.broker.address_types


def test_duplicate_ids(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    rig.broker.duplicate_ids["orders"] = ["b", "a"]
    assert ask(rig, "address", "duplicate-ids", "orders") == 0
    assert "b, a" in capsys.readouterr().out
    assert ask(rig, "address", "duplicate-ids", "orders", "--clear") == 1, "nobody said yes"
    assert ask(rig, "address", "duplicate-ids", "orders", "--clear", "--yes") == 0
    assert "2 duplicate ids of orders forgotten" in capsys.readouterr().out


def test_a_login_comes_from_url_and_environment(capsys, monkeypatch: pytest.MonkeyPatch):
    with admin_rig(MemoryBroker(users_with_roles())) as rig:
        assert ask(rig, "queue", "list") == 1
        assert "needs a login" in capsys.readouterr().err
        monkeypatch.setenv("VESPIARY_PASSWORD", "secret")
        assert run_program(["queue", "list", "--api", f"http://alice@127.0.0.1:{rig.port}"]) == 0
        monkeypatch.setenv("VESPIARY_API", f"http://alice@127.0.0.1:{rig.port}")
        assert run_program(["queue", "create", "x"]) == 1
        assert "role admin" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://a:b@127.0.0.1:1", "VESPIARY_PASSWORD"),
        ("ftp://127.0.0.1", "is no URL"),
        ("127.0.0.1:8161", "is no URL"),
        ("http://127.0.0.1:99999", "is no URL"),
        ("http://127.0.0.1:8161/console", "is no URL"),
    ],
)
def test_urls_are_checked(url: str, says: str, capsys: pytest.CaptureFixture[str]):
    assert run_program(["queue", "list", "--api", url]) == 1
    assert says in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert run_program(["queue", "list", "--api", f"http://127.0.0.1:{port}"]) == 1
    assert f"http://127.0.0.1:{port}: cannot reach the HTTP API" in capsys.readouterr().err


@pytest.mark.parametrize(
    "answer", [b"hello\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"]
)
def test_another_program_there(answer: bytes, capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert (
            run_program(["queue", "list", "--api", f"http://127.0.0.1:{server.getsockname()[1]}"])
            == 1
        )
        thread.join()
    assert "Traceback" not in capsys.readouterr().err
