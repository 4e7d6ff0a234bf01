"""docs/howto/websocket.md does not lie: its client works, its settings are taken."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

import pytest

from vespiary_broker.engine.users import format_users, make_user
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.node_clients import FOLDER, need_node
from vespiary_testkit.waiting import WAIT_S
from vespiary_testkit.websocket_peer import handshake

pytestmark = pytest.mark.once

PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/websocket.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.mark.ci
def test_the_client_does_what_the_page_says(tmp_path: Path) -> None:
    need_node()
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "users").write_text(format_users([make_user("alice", "secret", iterations=4096)]))
    with BrokerProcess(data) as broker:
        for name in ("all", "http"):
            script = block("javascript").replace(":61616/", f":{broker.port(name)}/")
            ran = subprocess.run(
                ["node", "--input-type=module", "-e", script],
                cwd=FOLDER,
                capture_output=True,
                text=True,
                timeout=WAIT_S,
                check=False,
            )
            assert (ran.returncode, ran.stdout) == (0, "hello\n"), ran.stderr


@pytest.mark.ci
def test_the_settings_do_what_the_page_says(tmp_path: Path) -> None:
    configuration = tmp_path / "broker.yaml"
    configuration.write_text(block("yaml").replace("port: 61616", "port: 0"))
    with BrokerProcess(tmp_path / "data", configuration=configuration) as broker:
        for origin, status in (("https://shop.example", b"101"), ("https://evil.example", b"403")):
            for name in ("all", "http"):
                with socket.create_connection(("127.0.0.1", broker.port(name)), WAIT_S) as raw:
                    raw.sendall(handshake("v12.stomp", headers={"Origin": origin}))
                    assert raw.recv(4096).split(b" ")[1] == status
