"""A broker whose descriptors are all taken for a while: queues go on when some are free again."""

from __future__ import annotations

import resource
import urllib.request
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

COUNT = 20
FEW = 3


def test_a_consumer_that_waits_for_the_disk_gets_its_messages_when_files_can_be_opened_again(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path / "data", "max-disk-usage=100")
    broker.start()
    with StompPeer(broker.port()) as peer:
        peer.connect()
        for number in range(COUNT):
            headers = {"destination": "/queue/orders", "persistent": "true", "receipt": str(number)}
            peer.send("SEND", headers, b"%d" % number)
        peer.receive_receipt(str(COUNT - 1))
    broker.stop()
    broker.start()  # nothing of the queue is in memory now
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as answer:
        answer.read()  # what is loaded with the first request opens files
    with StompPeer(broker.port()) as peer:
        peer.connect()
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (FEW, hard))
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/orders", "ack": "auto"})
        wait_for(lambda: "Too many open files" in broker.log_text())
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        bodies = [frame.body for frame in peer.receive_messages(COUNT)]
    assert bodies == [b"%d" % number for number in range(COUNT)]
    assert broker.stop() == 0, broker.log_text()


def test_a_broker_without_descriptors_right_after_its_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What answers HTTP is imported only then; it used to end the broker."""
    monkeypatch.setenv("VESPIARY_FRESH_PROCESSES", "1")  # a forked one has imported it already
    with BrokerProcess(tmp_path / "data") as broker:
        soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (FEW, hard))
        try:
            wait_for(lambda: "HTTP is not answered yet" in broker.log_text())
        except AssertionError:
            pytest.skip("everything was imported before the limit was set")
        finally:
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
        url = f"http://127.0.0.1:{broker.port('http')}/healthz"
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.read() == b"alive\n"
