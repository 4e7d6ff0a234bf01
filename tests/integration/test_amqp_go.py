"""The stock client of Go (Azure/go-amqp) against a real broker; its module comes from the proxy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import WAIT_S

CLIENT = Path(__file__).resolve().parents[1] / "clients/go-amqp"
BUILD_S = 300
STEPS = (
    "roundtrip", "spaces", "second", "large two-way, small frames", "outcomes", "selector+drain",
    "durable sub", "dynamic", "idle",
)  # fmt: skip

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(shutil.which("go") is None, reason="go is not there"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the client, built."""
    program = tmp_path_factory.mktemp("go") / "go-amqp"
    command = ["go", "build", "-o", str(program), "."]
    done = subprocess.run(
        command, cwd=CLIENT, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.ci
def test_go_amqp_sends_receives_and_settles(tmp_path: Path, client: Path) -> None:
    settings = ("acceptors.all.protocols=STOMP,AMQP", "address-settings.#.dead-letter-address=dead")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        done = subprocess.run(
            [str(client), str(broker.port())],
            capture_output=True,
            text=True,
            timeout=len(STEPS) * WAIT_S,
            check=False,
        )
    assert done.stdout.splitlines() == [f"OK {step}" for step in STEPS], done.stderr
