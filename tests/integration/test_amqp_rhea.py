"""The stock client of JavaScript (rhea) against a real broker; its package comes from npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import WAIT_S

CLIENT = Path(__file__).resolve().parents[1] / "clients/rhea"
INSTALL_S = 120

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which("npm") is None,
        reason="node or npm is not there",
    ),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the client and its package."""
    folder = tmp_path_factory.mktemp("rhea")
    for name in ("package.json", "client.js"):
        shutil.copy(CLIENT / name, folder / name)
    command = ["npm", "install", "--prefer-offline", "--no-audit", "--no-fund"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_rhea_sends_and_receives(tmp_path: Path, client: Path) -> None:
    with BrokerProcess(tmp_path / "data", "acceptors.all.protocols=STOMP,AMQP") as broker:
        command = ["node", "client.js", str(broker.port()), "/queue/rhea"]
        done = subprocess.run(
            command, cwd=client, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["event"] for one in said] == ["accepted", *["message"] * 4, "closed"], done
    text, octets, value, large = said[1:5]
    assert (text["content"], text["id"], text["durable"]) == ("text", "m1", True)
    assert text["properties"] == {"colour": "red", "n": 7}
    assert (octets["kind"], octets["content"]) == ("data", [0, 1, 2, 255])
    assert value["content"] == {"list": [1, 2, 3], "deep": {"yes": True}}
    assert large["size"] == 300_000
