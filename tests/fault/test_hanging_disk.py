"""A disk that answers nothing for seconds: the loop goes on, heart-beats are kept, confirms wait.

The broker's volume is an ext4 on a loop device, whose image lies on another ext4 that is frozen:
the device takes requests and does not end them. It stays frozen until the broker has answered and
sent heart-beats: a loop that waits for the disk never does. How long the answers took is printed.

The volume is at rest when the hang begins. In the middle of a commit of ext4's own journal, as
after a file was made, the kernel lets the submission itself wait, with ASYNCIO and IO_URING.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from vespiary_broker.store.options import FILES_AHEAD_MIN
from vespiary_native import loader
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.small_disk import MIB, hanging, settle, small_disk
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.ci

ANSWERS = 200
HEART_BEATS = 5
"""So many answers and heart-beats come while the disk hangs: some 3 seconds."""
ENGINES = ["NIO", "ASYNCIO", "IO_URING"] if loader.is_wanted() else ["NIO"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """(The volume, the file system that the image of its device lies on)."""
    with (
        small_disk(tmp_path / "below", 200 * MIB) as below,
        small_disk(below / "volume", 100 * MIB) as volume,
    ):
        yield volume, below


class Sender(threading.Thread):
    """Sends one message after the other, each confirmed before the next."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.peer = StompPeer(port)
        self.peer.connect()
        self.confirmed = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.is_set():
            receipt = str(self.confirmed)
            headers = {"destination": "/queue/q", "persistent": "true", "receipt": receipt}
            self.peer.send("SEND", headers, b"x" * 2000)
            frame = self.peer.receive(2 * WAIT_S)
            assert (frame.command, frame.get("receipt-id")) == ("RECEIPT", receipt)
            self.confirmed += 1


def lags_ms(connection: HTTPConnection, count: int) -> list[float]:
    """Ask the loop so many times for what needs no disk; return how long the answers took."""
    found = []
    for _ in range(count):
        begun_s = time.monotonic()
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"ready\n")
        found.append((time.monotonic() - begun_s) * 1000)
    return sorted(found)


def files_ahead(connection: HTTPConnection) -> int:
    """Return how many journal files are made and not begun."""
    connection.request("GET", "/api/v1/journal")
    return int(json.loads(connection.getresponse().read())["files"]["ahead"])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hang_is_waited_for_and_harms_nobody_else(
    disk: tuple[Path, Path], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VESPIARY_RING", raising=False)
    volume, below = disk
    settings = ("journal-file-size=10MiB", f"journal-type={engine}", "max-disk-usage=100")
    with BrokerProcess(volume / "data", *settings, log=below.parent / "log") as broker:
        if broker.ready["engine"] != engine:
            pytest.skip(f"no {engine} here: {broker.log_text()}")
        sender = Sender(broker.port())
        beats = StompPeer(broker.port())
        beats.connect(heart_beat="0,500")
        with contextlib.closing(
            HTTPConnection("127.0.0.1", broker.port("http"), timeout=WAIT_S)
        ) as asking:
            lags_ms(asking, 1)  # the first answer takes longer than the others
            sender.start()
            wait_for(lambda: sender.confirmed > 0, "it confirms")
            wait_for(lambda: files_ahead(asking) >= FILES_AHEAD_MIN, "no more files are made")
            settle(volume)
            with hanging(below):
                at_freeze = sender.confirmed
                beats.receive_heart_beats(1)  # with those that came before
                lags = lags_ms(asking, ANSWERS)
                beats.receive_heart_beats(HEART_BEATS)
                at_thaw = sender.confirmed
            wait_for(lambda: sender.confirmed > at_thaw + 1, "it goes on")
        sender.is_over.set()
        sender.join(WAIT_S)
        beats.close()
        assert at_thaw - at_freeze <= 1, "nothing can have been flushed"
        p99 = lags[int(len(lags) * 0.99)]
        print(
            f"{engine}: lag p50 {lags[len(lags) // 2]:.1f} ms, p99 {p99:.1f} ms, "
            f"max {lags[-1]:.1f} ms of {len(lags)}, while the disk hung"
        )
        with StompPeer(broker.port()) as reader:
            reader.connect()
            reader.send("SUBSCRIBE", {"id": "1", "destination": "/queue/q"})
            reader.receive_messages(sender.confirmed)
        sender.peer.close()
