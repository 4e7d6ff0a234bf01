"""A device that answers everything with EIO, under a real broker, on every engine.

The broker's volume is an ext4 on a loop device, whose image lies on another ext4 that is shut down.
No system call is tampered with: so it reaches IO_URING too, whose errors come in no system call,
and libuv, which has a ring of its own in this process, notices nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from vespiary_native import loader
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.small_disk import MIB, break_down, mounted_again, small_disk
from vespiary_testkit.stomp_peer import Ended, StompPeer
from vespiary_testkit.waiting import WAIT_S

ENGINES = ["NIO", "ASYNCIO", "IO_URING"] if loader.is_wanted() else ["NIO"]
SETTINGS = ("journal-file-size=1MiB", "max-disk-usage=100")
BEFORE = 20


def body(number: int) -> bytes:
    return f"{number:08d}".encode() * 200


def send_one(peer: StompPeer, number: int) -> str:
    """Send a message; return the sentence of the ERROR, none when it was confirmed."""
    headers = {"destination": "/queue/q", "persistent": "true", "receipt": str(number)}
    peer.send("SEND", headers, body(number))
    frame = peer.receive()
    if frame.command == "ERROR":
        return frame.get("message") or ""
    assert (frame.command, frame.get("receipt-id")) == ("RECEIPT", str(number))
    return ""


def run_until_fenced(broker: BrokerProcess, engine: str, below: Path) -> None:
    """Send, break the device, and look at what clients are told."""
    with StompPeer(broker.port()) as peer, StompPeer(broker.port()) as idle:
        idle.connect()
        peer.connect()
        for number in range(BEFORE):
            assert not send_one(peer, number)
        break_down(below)
        sentence = send_one(peer, BEFORE)
        assert "the journal is closed for writing" in sentence, engine
        assert "Input/output error" in sentence or "Read-only file system" in sentence
        assert idle.receive().command == "ERROR", "who did nothing is told as well"
        with pytest.raises((Ended, ConnectionError)):
            peer.receive()  # no late confirm: nothing but the end
    assert broker.process is not None
    assert broker.process.wait(WAIT_S) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_broken_device_fences_the_broker_and_loses_nothing_confirmed(
    tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VESPIARY_RING", raising=False)
    settings = (*SETTINGS, f"journal-type={engine}")
    with (
        small_disk(tmp_path / "below", 96 * MIB) as below,
        small_disk(below / "volume", 64 * MIB) as volume,
    ):
        broker = BrokerProcess(volume / "data", *settings, log=tmp_path / "log")
        broker.start()
        try:
            if broker.ready["engine"] != engine:
                pytest.skip(f"no {engine} here: {broker.log_text()}")
            run_until_fenced(broker, engine, below)
        finally:
            if broker.process is not None:
                broker.kill()
        assert "Traceback" not in broker.log_text()
    with (
        mounted_again(tmp_path / "below") as below,
        mounted_again(below / "volume") as volume,
        BrokerProcess(volume / "data", *settings, log=tmp_path / "log") as healed,
        StompPeer(healed.port()) as peer,
    ):
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/q"})
        found = {peer.receive().body for _ in range(BEFORE)}
        assert {body(number) for number in range(BEFORE)} <= found
