"""`vespiary divert` against the real HTTP listener on a broker in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_testkit.admin_rig import AdminRig, MemoryBroker, admin_rig


@pytest.fixture
def rig() -> Iterator[AdminRig]:
    with admin_rig(MemoryBroker()) as rig:
        yield rig


def ask(rig: AdminRig, *arguments: str) -> int:
    return run_program(["divert", *arguments, "--api", f"http://127.0.0.1:{rig.port}"])


def test_diverts_are_created_listed_and_deleted(
    rig: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = ["--address", "orders", "--forwarding-address", "audit"]
    more = ["--filter", "total > 1000", "--exclusive", "--routing-type", "multicast"]
    assert ask(rig, "create", "big", *ends, *more) == 0
    assert "divert big from orders to audit" in capsys.readouterr().out
    assert ask(rig, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "big",
            "routingName": "big",
            "address": "orders",
            "forwardingAddress": "audit",
            "filterString": "total > 1000",
            "isExclusive": True,
            "routingType": "MULTICAST",
        }
    ]
    assert ask(rig, "list") == 0
    assert "total > 1000" in capsys.readouterr().out
    assert ask(rig, "delete", "big", "--yes") == 0
    assert rig.broker.diverts.names == []
    assert ask(rig, "delete", "big", "--yes") == 1
    assert "There is no divert 'big'" in capsys.readouterr().err


def test_a_bad_filter_and_a_loop_are_said(
    rig: AdminRig, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = ["--address", "a", "--forwarding-address", "b"]
    assert ask(rig, "create", "d", *ends, "--filter", "total >") == 1
    assert "selector, character 8: the selector ends too early" in capsys.readouterr().err
    assert ask(rig, "create", "d", "--address", "a", "--forwarding-address", "a") == 1
    assert "a (divert d) -> a" in capsys.readouterr().err
