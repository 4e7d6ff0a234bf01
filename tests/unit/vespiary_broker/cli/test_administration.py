"""`vespiary queue` and `vespiary address` against the real HTTP listener on a broker in memory."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator

import pytest

from vespiary_broker.cli.message_acts import _outcome
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
    assert lines[0].split()[:5] == ["queue", "address", "type", "state", "messages"]
    assert lines[1].split()[:6] == ["orders", "orders", "ANYCAST", "running", "5", "3"]
    assert len(lines) == 1102
    assert ask(rig, "queue", "list", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 1101


def test_one_queue_is_shown(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    assert ask(rig, "queue", "show", "orders") == 0
    assert ["delivering", "2"] in [line.split() for line in capsys.readouterr().out.splitlines()]
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
    shown = capsys.readouterr().out
    assert "routingTypes      MULTICAST\n" in shown
    assert "messagesUnrouted  2\n" in shown
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


def test_a_queue_is_changed_paused_and_goes_on(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    assert ask(rig, "queue", "update", "orders", "--max-consumers", "2") == 0
    assert rig.broker.queue_states["orders"].max_consumers == 2
    assert ask(rig, "queue", "update", "orders", "--purge-on-no-consumers", "--json") == 0
    assert '"purgeOnNoConsumers":true' in capsys.readouterr().out
    assert ask(rig, "queue", "update", "orders") == 2
    assert "nothing to change" in capsys.readouterr().err
    assert ask(rig, "queue", "pause", "orders", "--persist") == 0
    assert "queue orders paused, also after a restart" in capsys.readouterr().out
    assert rig.broker.queue_states["orders"].is_paused
    assert ask(rig, "queue", "resume", "orders") == 0
    assert not rig.broker.queue_states["orders"].is_paused
    assert ask(rig, "queue", "pause", "nowhere") == 1
    assert "There is no queue 'nowhere'" in capsys.readouterr().err
    assert ask(rig, "queue", "pause", "jms.queue.nowhere") == 1
    assert "Name it" not in capsys.readouterr().err
    for command in ("show", "pause", "purge", "groups", "delete"):
        confirmed = ["--yes"] if command in ("purge", "delete") else []
        assert ask(rig, "queue", command, "queue://orders", *confirmed) == 1
        text = "There is no queue 'queue://orders'. Name it 'orders'."
        assert text in capsys.readouterr().err
    assert ask(rig, "queue", "create", "few", "--max-consumers", "1") == 0
    assert rig.broker.queue_states["few"].max_consumers == 1


KIND_OPTIONS = {
    "--exclusive": ("exclusive", True),
    "--consumers-before-dispatch 2": ("consumersBeforeDispatch", 2),
    "--delay-before-dispatch 100": ("delayBeforeDispatch", 100),
    "--group-rebalance": ("groupRebalance", True),
    "--group-rebalance-pause-dispatch": ("groupRebalancePauseDispatch", True),
    "--group-buckets 8": ("groupBuckets", 8),
    "--group-first-key first": ("groupFirstKey", "first"),
    "--last-value": ("lastValue", True),
    "--last-value-key share": ("lastValueKey", "share"),
    "--ring-size 5": ("ringSize", 5),
    "--non-destructive": ("nonDestructive", True),
    "--max-consumers 3": ("maxConsumers", 3),
    "--purge-on-no-consumers": ("purgeOnNoConsumers", True),
    "--filter n=1": ("filterString", "n=1"),
    "--auto-delete": ("autoDelete", True),
    "--auto-delete-delay 50": ("autoDeleteDelay", 50),
    "--auto-delete-message-count -1": ("autoDeleteMessageCount", -1),
}
OFF = {
    "--no-exclusive": "exclusive",
    "--no-group-rebalance": "groupRebalance",
    "--no-group-rebalance-pause-dispatch": "groupRebalancePauseDispatch",
    "--no-last-value": "lastValue",
    "--destructive": "nonDestructive",
    "--keep-on-no-consumers": "purgeOnNoConsumers",
    "--no-auto-delete": "autoDelete",
}


def test_kinds_of_queues(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    options = " ".join(KIND_OPTIONS).split()
    wanted = dict(KIND_OPTIONS.values())
    for command, *name in (("create", "special"), ("update", "orders", "--yes")):
        capsys.readouterr()
        assert ask(rig, "queue", command, *name, *options, "--json") == 0
        shown = json.loads(capsys.readouterr().out)
        assert {field: shown[field] for field in wanted} == wanted
        assert ask(rig, "queue", "show", name[0]) == 0
        assert re.search(r"^ringSize +5$", capsys.readouterr().out, re.MULTILINE)
    assert ask(rig, "queue", "list") == 0
    said = capsys.readouterr().out
    assert said.count("last-value, ring 5, non-destructive, exclusive, filter") == 2
    assert ask(rig, "queue", "update", "orders", *OFF, "--filter", "", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [shown[field] for field in OFF.values()] == [False] * len(OFF)
    assert (shown["filterString"], shown["ringSize"]) == ("", 5)
    rings = ("--field", "ringSize", "--operation", "GREATER_THAN", "--value", "-1")
    assert _listed(rig, capsys, *rings) == ["orders", "special"]
    alone = ("--field", "exclusive", "--operation", "EQUALS", "--value", "true")
    assert _listed(rig, capsys, *alone) == ["special"]
    assert ask(rig, "queue", "stat", *alone) == 0
    assert "last-value, ring 5" in capsys.readouterr().out
    assert ask(rig, "queue", "create", "special", "--filter", "n=1", "--ring-size", "6") == 1
    assert "exists, but with ringSize: 5" in capsys.readouterr().err
    assert ask(rig, "queue", "create", "x", "--ring-size", "-2") == 2


def test_routing_types_of_an_address(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    types = ["--routing-type", "anycast", "--routing-type", "MULTICAST"]
    assert ask(rig, "address", "update", "orders", *types) == 0
    assert "ANYCAST, MULTICAST" in capsys.readouterr().out
    assert ask(rig, "address", "update", "orders") == 2


def _listed(rig: AdminRig, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    capsys.readouterr()
    assert ask(rig, "queue", "stat", *options, "--json") == 0
    return [item["name"] for item in json.loads(capsys.readouterr().out)]


def test_queues_are_listed_by_a_condition(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    for number in range(4):
        name = f"bills.{number}"
        rig.broker.queue_states[name] = queue_state(name, messages=number, is_paused=number == 3)
    assert _listed(rig, capsys, "--value", "bills.") == [f"bills.{n}" for n in range(4)]
    greater = ("--field", "messages", "--operation", "GREATER_THAN", "--value", "1")
    assert _listed(rig, capsys, *greater) == ["bills.2", "bills.3", "orders"]
    descending = ("--sort", "messages", "--descending", "--max-rows", "2")
    assert _listed(rig, capsys, *greater, *descending) == ["orders", "bills.3"]
    assert "1 more; see --max-rows" in _more(rig, capsys, *greater, *descending)
    paused = ("--field", "isPaused", "--operation", "EQUALS", "--value", "true")
    assert _listed(rig, capsys, *paused) == ["bills.3"]
    other = ("--operation", "NOT_CONTAINS", "--value", "bills")
    assert _listed(rig, capsys, *other) == ["orders"]
    assert ask(rig, "queue", "stat", *paused, "--fields", "name,maxConsumers") == 0
    assert capsys.readouterr().out.split() == ["name", "maxConsumers", "bills.3", "-1"]


def _more(rig: AdminRig, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert ask(rig, "queue", "stat", *options) == 0
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--field", "messages", "--value", "1"], "compares text, and messages is not text"),
        (
            ["--operation", "LESS_THAN", "--value", "1"],
            "compares numbers, and name is not a number",
        ),
        (
            ["--field", "messages", "--operation", "EQUALS", "--value", "x"],
            "messages is a number, not 'x'",
        ),
        (["--field", "isPaused", "--operation", "EQUALS", "--value", "x"], "true or false"),
        (["--fields", "name,colour"], "there is no field 'colour'"),
    ],
)
def test_conditions_that_make_no_sense(
    rig: AdminRig, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
):
    assert ask(rig, "queue", "stat", *options) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("act", "to", "text"),
    [
        ("expire", "EX", ": sent to EX; those that no queue there takes were deleted"),
        ("expire", "", ": deleted, as no other expiry address is set"),
        ("send-to-dead-letter", "DLQ", " DLQ"),
        ("remove", "", ""),
    ],
)
def test_what_became_of_messages_is_said(act: str, to: str, text: str):
    """Without `to` the queue may be that of its own expiry address."""
    assert _outcome({"act": act, "to": to}) == text
