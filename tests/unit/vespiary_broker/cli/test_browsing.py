"""`vespiary browse` against the real HTTP listener on a broker in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_testkit.admin_fakes import browsed
from vespiary_testkit.admin_rig import AdminRig, MemoryBroker, admin_rig, queue_state


@pytest.fixture
def rig() -> Iterator[AdminRig]:
    with admin_rig(MemoryBroker()) as rig:
        rig.broker.queue_states["orders"] = queue_state("orders")
        yield rig


def ask(rig: AdminRig, *arguments: str) -> int:
    return run_program(["browse", *arguments, "--api", f"http://127.0.0.1:{rig.port}"])


def test_messages_are_printed(rig: AdminRig, capfdbinary: pytest.CaptureFixture[bytes]):
    rig.broker.browsing.messages["orders"] = [
        browsed(1, b"first\n", deliveries=2),
        browsed(2, b"second", state="delivering"),
        browsed(3, b"", is_large=True, body_bytes=1_000_000),
    ]
    assert ask(rig, "orders", "--headers") == 0
    assert capfdbinary.readouterr().out.decode().splitlines() == [
        "1-1  ready  6 bytes  priority 4  delivered 2 times",
        *("n: 1", "", "first"),
        "1-2  delivering  6 bytes  priority 4",
        *("n: 2", "", "second"),
        "1-3  ready  1000000 bytes  priority 4",
        *("n: 3", ""),
    ]


def test_raw_bodies_get_no_line_feed(rig: AdminRig, capfdbinary: pytest.CaptureFixture[bytes]):
    rig.broker.browsing.messages["orders"] = [browsed(1, b"f")]
    assert ask(rig, "orders", "--raw") == 0
    assert capfdbinary.readouterr().out == b"1-1  ready  1 byte  priority 4\nf"


def test_pages_are_gone_through(rig: AdminRig, capfd: pytest.CaptureFixture[str]):
    rig.broker.browsing.messages["orders"] = [browsed(n) for n in range(1, 251)]
    for arguments, wanted in ((["-n", "3"], 3), ([], 200), (["--all"], 250)):
        assert ask(rig, "orders", "--json", *arguments) == 0
        lines = capfd.readouterr().out.splitlines()
        assert [json.loads(line)["sequence"] for line in lines] == list(range(1, wanted + 1))


def test_bodies_that_are_no_text_and_characters_cut_in_two(rig: AdminRig):
    rig.broker.browsing.messages["orders"] = [
        browsed(1, b"\xff\xfe"),
        browsed(2, "né".encode(), body_bytes=3),
    ]
    path = "/api/v1/queues/orders/messages"
    first, second = rig.get(path).json["items"]
    assert (first["body"], first["bodyBase64"]) == (None, "//4=")
    assert (second["body"], second["bodyBase64"]) == ("né", None)
    _, second = rig.get(f"{path}?bodyBytes=2").json["items"]
    assert (second["body"], second["bodyBytes"]) == ("n", 3)
    assert rig.get(f"{path}?bodyBytes=0").status == 200
    assert "0 to 1048576" in rig.get(f"{path}?bodyBytes=1048577").json["detail"]
    assert rig.get(f"{path}?after=x").status == 400


def test_what_is_wrong_is_said(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    assert ask(rig, "nowhere") == 1
    assert "no queue" in capsys.readouterr().err
    assert ask(rig, "orders", "--filter", "x = ") == 1
    assert "the filter is none" in capsys.readouterr().err
    assert rig.get("/api/v1/queues/orders/messages?filter=x").status == 400


def test_a_name_in_the_form_of_another_broker(
    rig: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(rig, "queue://orders") == 1
    assert "There is no queue 'queue://orders'. Name it 'orders'." in capsys.readouterr().err
