"""A copy of a stopped broker's files that is put back with the commands that the docs give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess, environment
from vespiary_testkit.numbered_messages import send_numbered, take_numbered

QUEUE = "/queue/orders"
NAME = "before"


def journal(data: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vespiary_broker", "journal", *arguments, "--data", str(data)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done
    return done.stdout + done.stderr


@pytest.mark.ci
def test_a_broker_has_again_what_it_had_when_it_was_copied(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        send_numbered(broker.port(), QUEUE, range(100))
        assert "in use" in journal(data, "snapshot", "--name", NAME, code=1).lower()
    journal(data, "snapshot", "--name", NAME)
    with BrokerProcess(data) as broker:
        assert take_numbered(broker.port(), QUEUE, 30) == list(range(30))
        send_numbered(broker.port(), QUEUE, range(100, 120))
        assert "in use" in journal(data, "restore-snapshot", NAME, "--yes", code=1).lower()
    assert NAME in journal(data, "snapshots")
    journal(data, "restore-snapshot", "another", "--yes", code=1)
    journal(data, "restore-snapshot", NAME, "--yes")
    with BrokerProcess(data) as broker:
        assert take_numbered(broker.port(), QUEUE, 100) == list(range(100))
    replaced = sorted(data.rglob(f".vespiary-replaced-{NAME}"))
    assert any(list(folder.glob("activemq-data-*.hq")) for folder in replaced), "nothing is deleted"
    with BrokerProcess(data):
        assert "removed" in journal(data, "remove-snapshot", NAME, "--yes"), "it may run"
