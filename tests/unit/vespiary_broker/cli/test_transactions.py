"""`vespiary transaction` against the real HTTP listener on a broker in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_testkit.admin_fakes import branch_state
from vespiary_testkit.admin_rig import AdminRig, MemoryBroker, admin_rig, users_with_roles

X = "7:0a0b:01"


@pytest.fixture
def rig() -> Iterator[AdminRig]:
    with admin_rig(MemoryBroker()) as rig:
        rig.broker.transactions.states[X] = branch_state(X)
        yield rig


def ask(rig: AdminRig, *arguments: str) -> int:
    return run_program(["transaction", *arguments, "--api", f"http://127.0.0.1:{rig.port}"])


def test_branches_are_listed(rig: AdminRig, capsys: pytest.CaptureFixture[str]):
    rig.broker.transactions.states["7:0a0b:02"] = branch_state(
        "7:0a0b:02", state="quarantined", reason="a queue is gone", members=()
    )
    assert ask(rig, "list") == 0
    text = capsys.readouterr().out
    assert "orders +2 -1" in text
    assert "a queue is gone" in text
    assert ask(rig, "list", "--json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["xid"], first["state"], first["ageS"]) == (X, "prepared", 61.5)
    assert first["members"] == [{"queue": "orders", "added": 2, "acknowledged": 1}]
    assert second["reason"] == "a queue is gone"


@pytest.mark.parametrize("act", ["commit", "rollback"])
def test_a_branch_is_decided_and_forgotten(
    rig: AdminRig, capsys: pytest.CaptureFixture[str], act: str
):
    assert ask(rig, act, X) == 1
    assert "Pass --yes to confirm" in capsys.readouterr().err
    assert ask(rig, act, X, "--yes") == 0
    assert capsys.readouterr().out == f"transaction {X}: heuristic-{act}\n"
    assert ask(rig, act, X, "--yes") == 1
    assert "XAER_PROTO" in capsys.readouterr().err
    assert ask(rig, "forget", X, "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"forgotten": X}
    assert ask(rig, "forget", X, "--yes") == 1
    assert "no prepared or decided transaction" in capsys.readouterr().err


def test_only_administrators_look_and_decide():
    with admin_rig(MemoryBroker(users_with_roles())) as rig:
        rig.broker.transactions.states[X] = branch_state(X)
        path = f"/api/v1/transactions/{X}"
        assert rig.get(path, login=("alice", "secret")).status == 403
        assert rig.get(path, login=("root", "secret")).json["xid"] == X
        for act in ("commit", "rollback", "forget"):
            assert rig.call("POST", f"{path}/{act}", login=("alice", "secret")).status == 403
        assert rig.call("POST", f"{path}/commit", login=("root", "secret")).status == 200
        assert rig.get("/api/v1/transactions/nonsense", login=("root", "secret")).status == 404
