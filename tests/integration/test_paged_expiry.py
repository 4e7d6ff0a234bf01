"""Messages that expire in pages which nobody opens, in a real broker."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=128KiB",
    "address-settings.#.expiry-address=EXPIRED",
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "max-disk-usage=100",
    "message-expiry-scan-period=200",
)
COUNT = 3000
EVERY = 5


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def state(broker: BrokerProcess, name: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/{name}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError:
        return {"messages": -1}


def metric(broker: BrokerProcess, name: str) -> float:
    url = f"http://127.0.0.1:{broker.port('http')}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def fill(broker: BrokerProcess, expires_ms: int) -> None:
    """Send messages, each fifth of which expires."""
    with StompPeer(broker.port("all")) as peer:
        peer.connect()
        for number in range(COUNT):
            headers = {"destination": "/queue/q", "persistent": "true"}
            if number % EVERY == 0:
                headers["expires"] = str(expires_ms)
            if number == COUNT - 1:
                headers["receipt"] = "last"
            peer.send("SEND", headers, b"%d " % number + b"x" * 1000)
        peer.receive_receipt("last")


def taken(broker: BrokerProcess, queue: str, count: int) -> list[int]:
    with StompPeer(broker.port("all")) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": queue, "ack": "auto"})
        return [int(peer.receive().body.split(b" ", 1)[0]) for _ in range(count)]


@pytest.mark.ci
@pytest.mark.parametrize("is_restarted", [pytest.param(False, marks=pytest.mark.verify), True])
def test_what_expires_in_closed_pages_leaves_them(tmp_path: Path, *, is_restarted: bool) -> None:
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        expires_ms = now_ms() + 6_000
        fill(broker, expires_ms)
        wait_for(lambda: metric(broker, "vespiary_paging_pages") >= 5)
        if is_restarted:
            broker.kill()
            broker.start()
        expired = metric(broker, "vespiary_messages_expired_total")
        assert expired == 0 or now_ms() >= expires_ms, "a slow machine has filled it too late"
        wait_for(lambda: state(broker, "EXPIRED")["messages"] == COUNT // EVERY)
        assert now_ms() >= expires_ms
        wait_for(lambda: state(broker, "q")["messages"] == COUNT - COUNT // EVERY)
        assert metric(broker, "vespiary_paging_opened_total") == 0, "pages were opened for it"
        assert metric(broker, "vespiary_paging_pages") >= 3, "what has not expired stays in pages"
        broker.kill()
        broker.start()
        left = [number for number in range(COUNT) if number % EVERY]
        assert taken(broker, "/queue/q", len(left)) == left
        assert sorted(taken(broker, "/queue/EXPIRED", COUNT // EVERY)) == list(
            range(0, COUNT, EVERY)
        )
