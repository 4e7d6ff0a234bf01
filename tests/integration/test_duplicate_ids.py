"""Duplicate ids over real restarts: settings by their effect, and the howto as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_messages import take_messages
from vespiary_testkit.stomp_peer import StompPeer

HOWTO = Path(__file__).resolve().parents[2] / "docs/howto/duplicates.md"


def send(broker: BrokerProcess, *texts: str, to: str = "orders") -> None:
    """Send one message for each id and wait until all are confirmed."""
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number, text in enumerate(texts):
            headers = {"destination": f"/queue/{to}", "persistent": "true"}
            headers |= {"_AMQ_DUPL_ID": text, "receipt": f"r{number}"}
            peer.send("SEND", headers, text.encode())
        peer.receive_receipt(f"r{len(texts) - 1}")


@pytest.mark.engine
def test_ids_survive_a_kill_and_the_address_that_was_emptied(tmp_path: Path):
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    send(broker, "a", "b")
    assert take_messages(broker.port(), "orders", 2) == ["a", "b"]
    broker.kill()
    with broker:
        send(broker, "a", "c", "b")
        assert take_messages(broker.port(), "orders", 1) == ["c"]


def test_without_persist_id_cache_a_restart_forgets(tmp_path: Path):
    broker = BrokerProcess(tmp_path / "data", "persist-id-cache=false")
    with broker:
        send(broker, "a", "a")
    with broker:
        send(broker, "a", "a")
        assert take_messages(broker.port(), "orders", 2) == ["a", "a"]


def test_the_size_is_by_address(tmp_path: Path):
    settings = ("id-cache-size=1", "address-settings.wide.id-cache-size=2")
    with BrokerProcess(tmp_path / "data", *settings) as broker:
        for name in ("narrow", "wide"):
            send(broker, "a", "b", "a", to=name)
        assert take_messages(broker.port(), "narrow", 3) == ["a", "b", "a"]
        assert take_messages(broker.port(), "wide", 2) == ["a", "b"]


@pytest.mark.ci
def test_the_commands_of_the_howto_say_what_they_say_there(tmp_path: Path):
    (session,) = re.findall(r"```\n(\$ vespiary send.*?)```", HOWTO.read_text(), re.DOTALL)
    with BrokerProcess(tmp_path / "data") as broker:
        stomp = ["--url", f"stomp://127.0.0.1:{broker.port()}"]
        api = ["--api", f"http://127.0.0.1:{broker.port('http')}"]
        parts = session.split("$ vespiary ")[1:]
        assert len(parts) >= 3
        for part in parts:
            line, _, expected = part.partition("\n")
            words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
            # The page has somebody wait for a second; a slow machine is given more.
            words = ["5" if last == "--timeout" else word for last, word in pairwise(["", *words])]
            done = subprocess.run(
                [sys.executable, "-m", "vespiary_broker", *words]
                + (api if words[0] == "address" else stomp),
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            seconds = r"[0-9.]+ s\b"
            shown = done.stdout + done.stderr  # a terminal shows both
            assert re.sub(seconds, "", shown) == re.sub(seconds, "", expected)
