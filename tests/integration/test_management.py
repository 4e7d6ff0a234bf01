"""Message counters, ingress time stamps, browsing and metrics by address, on a real broker."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.cli.program import run_program
from vespiary_testkit.broker_calls import get, run_command
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for


def fill(peer: StompPeer, address: str, count: int, body: bytes = b"x", **more: str) -> None:
    for number in range(count):
        headers = {"destination": f"/queue/{address}", "n": str(number), **more}
        if number == count - 1:
            headers["receipt"] = f"{address}-all"
        peer.send("SEND", headers, body)
    peer.receive_receipt(f"{address}-all")


@pytest.mark.ci
def test_counters_are_sampled_shown_and_reset(tmp_path: Path):
    settings = ("message-counter-enabled=true", "message-counter-sample-period=1000")
    begun_ms = int(time.time() * 1000)
    with BrokerProcess(tmp_path / "data", *settings) as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        fill(peer, "orders", 5)

        def counter(kind: str = "queue") -> Any:
            return json.loads(run_command(broker, kind, "counter", "orders", "--json"))

        wait_for(lambda: counter()["added"] == 5)
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders", "ack": "auto"})
        assert len(peer.receive_messages(5)) == 5
        wait_for(lambda: counter("address")["acknowledged"] == 5)
        found = counter()
        assert (found["delivered"], found["expired"], found["killed"]) == (5, 0, 0)
        assert sum(day["counts"]["added"] for day in found["days"]) == 5
        assert begun_ms <= found["updatedMs"] <= time.time() * 1000
        said = run_command(broker, "queue", "stat", "--value", "orders", "--history")
        assert said.splitlines()[0].split()[:3] == ["name", "date", "hour"]
        assert said.splitlines()[1].split()[0] == "orders"
        assert "acknowledged      5" in run_command(broker, "queue", "counter", "orders")
        run_command(broker, "queue", "reset-counter", "orders")
        assert (counter()["added"], counter()["days"]) == (0, [])
        run_command(broker, "queue", "reset-counter", "--all")
        assert counter("address")["added"] == 0
        assert "There is no queue" in run_command(broker, "queue", "counter", "nowhere", code=1)


def test_without_counters_that_is_said(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        run_command(broker, "queue", "create", "orders")
        said = run_command(broker, "queue", "counter", "orders", code=1)
        assert "message-counter-enabled" in said


def test_settings_of_addresses_about_looking(tmp_path: Path):
    address = "address-settings.watched"
    settings = (
        f"{address}.enable-metrics=false",
        f"{address}.enable-ingress-timestamp=true",
        f"{address}.management-browse-page-size=3",
        f"{address}.management-message-attribute-size-limit=4",
        "min-large-message-size=100KiB",
    )
    with BrokerProcess(tmp_path / "data", *settings) as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        before_ms = time.time_ns() // 1_000_000
        for name in ("watched", "plain"):
            fill(peer, name, 5, b"0123456789", note="abcdefgh")
        fill(peer, "watched", 1, b"x" * 200_000, big="yes")
        after_ms = time.time_ns() // 1_000_000
        page = json.loads(get(broker, "/api/v1/queues/watched/messages"))
        assert (len(page["items"]), page["items"][0]["body"]) == (3, "0123")
        assert page["items"][0]["headers"]["note"] == "abcd, + 4 more"
        assert page["items"][0]["bodyBytes"] == 10
        page = json.loads(get(broker, "/api/v1/queues/watched/messages?limit=5&bodyBytes=9"))
        assert (len(page["items"]), page["items"][0]["body"]) == (5, "012345678")
        page = json.loads(get(broker, "/api/v1/queues/plain/messages"))
        assert (len(page["items"]), page["next"]) == (5, None)
        assert page["items"][0]["headers"]["note"] == "abcdefgh"
        lines = get(broker, "/metrics").splitlines()
        assert any('queue="plain"' in line for line in lines)
        assert any(line.startswith('vespiary_address_bytes{address="plain"}') for line in lines)
        assert not any('"watched"' in line for line in lines)
        for name in ("watched", "plain"):
            peer.send("SUBSCRIBE", {"id": name, "destination": f"/queue/{name}", "ack": "auto"})
        frames = peer.receive_messages(11)
        stamped = [frame for frame in frames if frame.get("subscription") == "watched"]
        assert len(stamped) == 6
        for frame in stamped:
            assert before_ms <= int(frame.get("ingress-timestamp") or 0) <= after_ms
        others = [frame for frame in frames if frame.get("subscription") == "plain"]
        assert [frame.get("ingress-timestamp") for frame in others] == [None] * 5


def test_what_no_queue_accepted_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with BrokerProcess(tmp_path / "data") as broker:
        url = ["--url", f"stomp://127.0.0.1:{broker.port()}"]
        assert run_program(["send", "news", "x", "--topic", *url]) == 0
        assert capsys.readouterr().out == "1 message to news: confirmed; no queue accepted it\n"
        with StompPeer(broker.port()) as peer:
            peer.connect()
            for name in ("news", "tasks"):
                peer.send("SEND", {"destination": name, "receipt": name}, b"x")
                assert peer.receive().get("queues") == ("0" if name == "news" else None)
            peer.send("SUBSCRIBE", {"id": "1", "destination": "queue://tasks", "ack": "auto"})
            assert peer.receive_messages(1)[0].get("destination") == "tasks"
        status = run_command(broker, "status")
        assert "2 messages were accepted by no queue: news 2. Next: " in status
        assert "messagesUnrouted  2\n" in run_command(broker, "address", "show", "news")
        metrics = f"http://127.0.0.1:{broker.port('http')}/metrics"
        with urllib.request.urlopen(metrics) as answer:
            lines = answer.read().decode().splitlines()
        assert "vespiary_messages_unrouted_total 2.0" in lines
        assert 'vespiary_address_messages_unrouted_total{address="news"} 2.0' in lines
        wait_for(lambda: "no queue accepted messages that were confirmed" in broker.log_text())
        assert "address=news" in broker.log_text()
