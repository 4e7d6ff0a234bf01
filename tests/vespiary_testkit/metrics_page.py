"""The page of metrics of a broker in a process of its own, read as a scraper reads it."""

from __future__ import annotations

import urllib.request

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.waiting import WAIT_S


def metric(broker: BrokerProcess, name: str) -> float:
    """Return the value of a metric without labels."""
    url = f"http://127.0.0.1:{broker.port('http')}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"no metric {name}")
