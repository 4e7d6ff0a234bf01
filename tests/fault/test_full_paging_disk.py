"""A broker whose pages lie on a volume of their own that is full: nobody waits, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.small_disk import MIB, small_disk
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=256KiB",
    "journal-file-size=1MiB",
    "disk-scan-period=200",
    "max-disk-usage=100",
)
COUNT = 2000
BODY = "x" * 1000


def metrics(broker: BrokerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
    return {name: float(value) for name, value in pairs}


def send(port: int, first: int, count: int) -> None:
    with StompPeer(port) as peer:
        peer.connect()
        for number in range(first, first + count):
            headers = {"destination": "/queue/orders", "persistent": "true"}
            more = {"receipt": "last"} if number == first + count - 1 else {}
            peer.send("SEND", headers | more, f"{number} {BODY}".encode())
        peer.receive_receipt("last")


def take(port: int, count: int) -> list[int]:
    numbers = []
    with StompPeer(port) as peer:
        peer.connect()
        headers = {"id": "1", "destination": "/queue/orders", "ack": "client-individual"}
        peer.send("SUBSCRIBE", headers | {"prefetch-count": "100"})
        for at in range(count):
            frame = peer.receive()
            numbers.append(int(frame.body.split(b" ", 1)[0]))
            more = {"receipt": "last"} if at == count - 1 else {}
            peer.send("ACK", {"id": frame.get("ack") or "", **more})
        peer.receive_receipt("last")
    return numbers


def fill(volume: Path) -> Path:
    """Take all the room of a volume; return the file that has it."""
    ballast = volume / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (MIB, 64 * 1024, 4096):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
    return ballast


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 16 * MIB) as mount:
        yield mount


@pytest.mark.parametrize("end", ["goes on", "kill"])
def test_messages_stay_in_the_journal_until_pages_can_be_written(
    volume: Path, tmp_path: Path, end: str
) -> None:
    setting = f"paging-directory={volume / 'paging'}"
    broker = BrokerProcess(tmp_path / "data", *SETTINGS, setting)
    with broker:
        send(broker.port(), 0, COUNT)
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 3)
        ballast = fill(volume)
        send(broker.port(), COUNT, COUNT)  # all of it is confirmed
        wait_for(lambda: metrics(broker)["vespiary_paging_blocked"] == 1)
        assert metrics(broker)["vespiary_journal_blocked"] == 0
        assert "no page can be written" in broker.log_text()
        if end == "kill":
            broker.kill()
            broker.start()
            assert metrics(broker)["vespiary_ready"] == 1, "a full volume hinders no start"
        ballast.unlink()
        wait_for(lambda: metrics(broker)["vespiary_paging_blocked"] == 0)
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 10)
        assert take(broker.port(), 2 * COUNT) == list(range(2 * COUNT))
        wait_for(lambda: not list((volume / "paging").glob("*/*.page")))
