"""What tests ask a real broker beside its messages: commands, the HTTP API, metrics."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

from vespiary_testkit.broker_process import BrokerProcess, environment

_CALL_S = 180.0


def run_command(broker: BrokerProcess, *arguments: str, code: int = 0) -> str:
    """Run a command of the CLI against a broker; return what it says.

    Args:
        broker: The broker.
        arguments: The command, without `--api`.
        code: The exit code that it has to have.
    """
    done = subprocess.run(
        [sys.executable, "-m", "vespiary_broker", *arguments, "--api", address(broker)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=_CALL_S,
    )
    assert done.returncode == code, done
    return done.stdout + done.stderr


def address(broker: BrokerProcess) -> str:
    """Return the URL of a broker's HTTP listener."""
    return f"http://127.0.0.1:{broker.port('http')}"


def get(broker: BrokerProcess, path: str) -> str:
    """Return what a broker's HTTP listener answers."""
    with urllib.request.urlopen(address(broker) + path, timeout=_CALL_S) as answer:
        text: str = answer.read().decode()
    return text


def call(broker: BrokerProcess, method: str, path: str, body: Any = None) -> Any:
    """Call the HTTP API; return what it answers."""
    request = urllib.request.Request(
        f"{address(broker)}/api/v1{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=_CALL_S) as answer:
        return json.load(answer)


def metrics(broker: BrokerProcess) -> dict[str, float]:
    """Return a broker's metrics by name, with their labels."""
    lines = get(broker, "/metrics").splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
    return {name: float(value) for name, value in pairs}
