"""The operator as a process from this tree, with its memory, CPU time and metrics.

Owns: the process and its ports. Must never: outlive the benchmark.
Called by every figure of `benchmarks.operator`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import usage

START_S = 120.0


class OperatorError(Exception):
    """The operator did not do what a figure needs; the message says what."""


class Sample(NamedTuple):
    """One sample of the metrics page.

    Attributes:
        name: Name with its ending, such as `_count`.
        labels: Labels.
        value: Value.
    """

    name: str
    labels: dict[str, str]
    value: float


class Operator:
    """A running operator.

    Attributes:
        log: What it said.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self._port = port
        self.log = log

    def usage(self) -> usage.Usage:
        """Return what the process has used so far."""
        return usage.sample(self._process.pid)

    def metrics(self) -> list[Sample]:
        """Return every sample of `/metrics`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as page:
            text = page.read().decode()
        return [
            Sample(sample.name, dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """Add up the samples of a name that have these labels."""
        return sum(
            sample.value
            for sample in self.metrics()
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def is_ready(self) -> bool:
        """Return whether it watches."""
        if self._process.poll() is not None:
            raise OperatorError(f"the operator has ended:\n{self.log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=5) as page:
                return bool(page.status == 200)
        except OSError:
            return False


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def running(folder: Path, *, broker_image: str, **options: str) -> Iterator[Operator]:
    """Run the operator of this tree as long as the context lasts.

    Args:
        folder: Where its log is written.
        broker_image: Image of the brokers.
        options: More of the operator's variables, without their prefix.

    Raises:
        OperatorError: It did not get ready.
    """
    port = free_port()
    given = {
        "BROKER_IMAGE": broker_image,
        "BROKER_PULL_POLICY": "IfNotPresent",
        "HTTP_PORT": str(port),
        "LIVENESS_PORT": str(free_port()),
        **options,
    }
    log = folder / f"operator-{port}.log"
    command = [sys.executable, "-m", "vespiary_operator", "run"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            env={**os.environ, **{f"VESPIARY_{name}": value for name, value in given.items()}},
        )
    try:
        operator = Operator(process, port, log)
        deadline = time.monotonic() + START_S
        while not operator.is_ready():
            if time.monotonic() > deadline:
                raise OperatorError(f"not ready after {START_S:.0f} s:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield operator
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
