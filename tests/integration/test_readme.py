"""The README does not lie: its example runs, and its commands say what they say there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess

README = Path(__file__).resolve().parents[2] / "README.md"


def vespiary(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vespiary_broker", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_example_sends_a_message_that_is_there_after_a_kill(tmp_path: Path):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    code = example.replace("61613", str(broker.port("stomp")))
    assert code != example
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    broker.kill()
    with broker:
        url = f"stomp://127.0.0.1:{broker.port('all')}"
        assert vespiary("receive", "--url", url, "orders") == "hello\n"


@pytest.mark.ci
def test_the_commands_answer_as_shown(tmp_path: Path):
    text = README.read_text()
    with BrokerProcess(tmp_path / "data") as broker:
        url = f"stomp://127.0.0.1:{broker.port('all')}"
        sent = vespiary("send", "--url", url, "orders", "hello")
        assert re.fullmatch(r"1 message to orders: confirmed in [0-9.]+ s\n", sent)
        assert "1 message to orders: confirmed in" in text
        assert vespiary("receive", "--url", url, "orders") == "hello\n"
        journal = vespiary("journal", "info", str(tmp_path / "data" / "journal"))
        assert "live messages: none" in journal
        assert "records: 1 ADD, 1 ACK" in journal
        assert "records: 1 ADD, 1 ACK" in text


def test_everything_that_it_links_to_is_there():
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        path = README.with_name(page)
        found = re.findall(r"\]\(([^)#]+)", path.read_text())
        inside = [target for target in found if "://" not in target]
        assert inside or page == "CONTRIBUTING.md", f"no link of {page} was found"
        for target in inside:
            assert (path.parent / target).exists(), f"{page} links to {target}"
