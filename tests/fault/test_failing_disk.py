"""A write or flush that fails under a running broker: what clients, probes and the log are told."""

from __future__ import annotations

import contextlib
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from vespiary_native import loader
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import Ended, StompPeer
from vespiary_testkit.system_call_faults import tracer
from vespiary_testkit.waiting import WAIT_S

SETTINGS = ("journal-file-size=1MiB",)
FAULTS = [
    pytest.param("NIO", "fdatasync:error=EIO:when=60+", id="NIO-flush"),
    pytest.param("NIO", "pwritev,pwritev2:error=EIO:when=60+", id="NIO-write"),
]
if loader.is_wanted():
    # Not IO_URING: libuv has a ring of its own in this process and aborts when its calls fail;
    # test_broken_device.py has that engine.
    FAULTS.append(
        pytest.param("ASYNCIO", "io_submit:error=EIO:when=60+", id="ASYNCIO-write"),
    )


class Probe:
    """Asks /healthz all the time; remembers what it answered."""

    def __init__(self, port: int) -> None:
        self.answers: list[tuple[int, str]] = []
        self._address = f"http://127.0.0.1:{port}/healthz"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        while not self._is_over.wait(0.01):
            with contextlib.suppress(OSError):  # the listener is gone
                try:
                    with urllib.request.urlopen(self._address, timeout=WAIT_S) as answer:
                        self.answers.append((answer.status, answer.read().decode()))
                except urllib.error.HTTPError as error:
                    self.answers.append((error.code, error.read().decode()))

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            while not self.answers:
                self._is_over.wait(0.01)
            assert self.answers[0][0] == 200
            yield
        finally:
            self._is_over.set()
            self._thread.join()


def send_until_refused(peer: StompPeer) -> tuple[int, str]:
    """Send and wait for each receipt; return the last confirmed one and the ERROR's sentence."""
    confirmed = 0
    for number in range(1, 2000):
        headers = {"destination": "/queue/q", "persistent": "true", "receipt": str(number)}
        peer.send("SEND", headers, f"{number:08d}".encode() * 100)
        frame = peer.receive()
        if frame.command == "ERROR":
            return confirmed, frame.get("message") or ""
        assert (frame.command, frame.get("receipt-id")) == ("RECEIPT", str(number))
        confirmed = number
    raise AssertionError("the fault did not come")


@pytest.mark.parametrize(("engine", "injection"), FAULTS)
def test_a_failing_disk_is_told_to_all_and_nothing_confirmed_is_lost(
    tmp_path: Path, engine: str, injection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VESPIARY_RING", raising=False)
    settings = (*SETTINGS, f"journal-type={engine}")
    broker = BrokerProcess(tmp_path / "data", *settings, under=tracer(injection))
    broker.start()
    if broker.ready["engine"] != engine:
        broker.stop()
        pytest.skip(f"no {engine} here: {broker.log_text()}")
    try:
        probe = Probe(broker.port("http"))
        with StompPeer(broker.port()) as peer, StompPeer(broker.port()) as idle:
            idle.connect()
            peer.connect()
            with probe.asking():
                confirmed, sentence = send_until_refused(peer)
                assert confirmed > 10
                assert "the journal is closed for writing" in sentence
                assert "Input/output error" in sentence
                assert idle.receive().command == "ERROR", "who did nothing is told as well"
                with pytest.raises((Ended, ConnectionError)):
                    peer.receive()  # no late confirm: nothing but the end
                assert broker.process is not None
                assert broker.process.wait(60) == 1
    finally:
        broker.kill()
    red = [text for status, text in probe.answers if status == 503]
    print(f"{len(red)} of {len(probe.answers)} answers of /healthz were red")
    assert red, f"healthz never said it: {probe.answers[-3:]}"
    assert "the journal is closed for writing" in red[-1]
    log = broker.log_text()
    assert "Traceback" not in log
    lines = [line for line in log.splitlines() if "the journal is closed for writing" in line]
    assert lines
    assert "Look at the disk and the kernel log" in lines[0]

    with BrokerProcess(tmp_path / "data", *settings) as healed, StompPeer(healed.port()) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/q"})
        bodies = {peer.receive().body for _ in range(confirmed)}
        assert {f"{n:08d}".encode() * 100 for n in range(1, confirmed + 1)} <= bodies
