"""Slow consumers with a stock client: the connection ends, with the reason, and others go on."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stock_client import Client
from vespiary_testkit.waiting import WAIT_S


def test_a_slow_consumer_is_told_and_its_messages_go_to_others(tmp_path: Path) -> None:
    with BrokerProcess(
        tmp_path / "data",
        "address-settings.work.slow-consumer-threshold=1",
        "address-settings.work.slow-consumer-check-period=1",
        "address-settings.work.slow-consumer-policy=KILL",
    ) as broker:
        slow = Client(broker.port(), "1.2")
        slow.connect()
        slow.subscribe("/queue/work", ack="client-individual")
        other = Client(broker.port(), "1.2")
        other.connect()
        for number in range(10):  # not by the slow one, which may be told before the last
            other.send("/queue/work", str(number))
        error = slow.recorder.errors.get(timeout=WAIT_S)
        assert "0 messages acknowledged a second, where 1 are asked for" in error.headers["message"]
        assert slow.recorder.ended.wait(WAIT_S)
        other.subscribe("/queue/work")
        assert [message.body for message in other.recorder.take(10)] == [str(n) for n in range(10)]
        other.disconnect()
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}/metrics") as answer:
            text = answer.read().decode()
        assert "vespiary_slow_consumers_killed_total 1.0" in text
