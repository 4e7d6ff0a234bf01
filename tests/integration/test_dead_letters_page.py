"""docs/howto/dead-letters.md does not lie: its settings are taken, its commands do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vespiary_testkit.broker_process import BrokerProcess

pytestmark = pytest.mark.verify

PAGE = Path(__file__).resolve().parents[2] / "docs/howto/dead-letters.md"


def overrides() -> list[str]:
    """Return the settings of the page, as `--set` takes them."""
    block, *_ = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    settings = yaml.safe_load(block)["address-settings"]
    return [
        f"address-settings.{match}.{name}={value}"
        for match, values in settings.items()
        for name, value in values.items()
    ]


def commands() -> list[str]:
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return [line.removeprefix("$ ") for line in block.splitlines()]


def program(folder: Path, broker: BrokerProcess) -> Path:
    """Write a `vespiary` that knows where the broker is."""
    path = folder / "bin/vespiary"
    path.parent.mkdir()
    path.write_text(
        "#!/bin/sh\n"
        f'case "$1" in send|receive) set -- "$@" --url stomp://127.0.0.1:{broker.port()};;\n'
        f'*) set -- "$@" --api http://127.0.0.1:{broker.port("http")};; esac\n'
        f'exec {sys.executable} -m vespiary_broker "$@"\n'
    )
    path.chmod(0o755)
    return path


def test_the_commands_do_what_the_page_says(tmp_path: Path) -> None:
    lines = commands()
    assert len(lines) >= 10
    answers: dict[str, list[str]] = {}
    with BrokerProcess(tmp_path / "data", *overrides(), "message-expiry-scan-period=100") as broker:
        path = f"{program(tmp_path, broker).parent}:{os.environ['PATH']}"
        for line in lines:
            ran = subprocess.run(
                ["bash", "-c", line],
                env={**os.environ, "PATH": path},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert ran.returncode == 0, (line, ran.stdout, ran.stderr)
            answers.setdefault(line, []).append(ran.stdout + ran.stderr)
    (browsed,) = answers["vespiary browse DLQ --headers"]
    assert "a pallet of nails" in browsed
    for header in ("_AMQ_ORIG_ADDRESS", "_AMQ_ORIG_QUEUE", "_AMQ_ORIG_MESSAGE_ID"):
        assert header in browsed
    assert "1 message" in answers["vespiary queue retry DLQ"][0]
    first, second = answers["vespiary receive EXPIRED --headers"]
    assert "rain within the hour" in first
    assert "_AMQ_ACTUAL_EXPIRY" in first
    assert "a pallet of nails" in second, "the scheduled one stays where it is"
