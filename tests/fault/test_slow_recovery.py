"""A journal that takes long to read: probes are answered meanwhile, with how far it is."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.system_call_faults import tracer

SETTINGS = ("journal-file-size=1MiB", "journal-type=NIO")


def free_port() -> int:
    """Return a port that the kernel gives nobody: below those that it takes for connections."""
    chosen = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    end = min(int(chosen[0]), 32768)
    while True:
        port = random.randrange(max(1024, end - 12_000), end)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def ready(port: int) -> tuple[int, str]:
    """Ask /readyz; (0, "") while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def test_readyz_tells_how_far_it_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker, StompPeer(broker.port()) as peer:
        peer.connect()
        headers = {"destination": "/queue/q", "persistent": "true", "receipt": "r"}
        for _ in range(160):
            peer.send("SEND", headers, b"x" * 50_000)
            assert peer.receive().command == "RECEIPT"
    slow = tracer("preadv,preadv2:delay_enter=300000")
    port = free_port()
    broker = BrokerProcess(data, *SETTINGS, ports={"http": port}, under=slow)
    starting = threading.Thread(target=broker.start)
    starting.start()
    answers: list[tuple[int, str]] = []
    while starting.is_alive():
        answers.append(ready(port))
        time.sleep(0.05)
    starting.join()
    try:
        told = [text for status, text in answers if status == 503 and "reading its journal" in text]
        assert told, answers
        files = [re.search(r"(\d+) of (\d+) files", text) for text in told]
        numbers = [int(match[1]) for match in files if match]
        assert numbers == sorted(numbers)
        assert len(set(numbers)) >= 2, told
        assert ready(broker.port("http"))[0] == 200
        assert "recovering files=" in broker.log_text()
    finally:
        assert broker.stop() == 0
