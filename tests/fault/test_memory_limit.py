"""A broker in a container of 256 MiB with producers twice as fast as its consumer.

The process is never killed for memory, and its resident memory stays below the limit: with BLOCK by
holding the producers back, with the default policy by what the image and the journal do. What was
confirmed is all there. `VESPIARY_SOAK_S=300` does it for longer; figures are printed.
"""

from __future__ import annotations

import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.memory_group import memory_group
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

MIB = 1024 * 1024
LIMIT_BYTES = 256 * MIB
SOAK_S = float(os.environ.get("VESPIARY_SOAK_S", "6"))
BODY = b"x" * 1024
BATCH = 100
PACE = 2000
"""Messages that the consumer takes in a second; the producers send many times as many."""
QUEUE = "/queue/flood"
PLAIN = f"SEND\ndestination:{QUEUE}\npersistent:true\n\n".encode() + BODY + b"\0"
CONFIRMED = f"SEND\ndestination:{QUEUE}\npersistent:true\nreceipt:r\n\n".encode() + BODY + b"\0"
BURST = PLAIN * (BATCH - 1) + CONFIRMED
MARK = b"\nmessage-id:"


@dataclass
class Load:
    """What two producers and a consumer did; each thread writes its own field."""

    is_over: threading.Event = field(default_factory=threading.Event)
    produced: list[int] = field(default_factory=lambda: [0, 0])
    consumed: int = 0
    failures: list[BaseException] = field(default_factory=list)

    @property
    def confirmed(self) -> int:
        return sum(self.produced)


def produce(port: int, load: Load, number: int) -> None:
    """Send bursts, each when the one before is confirmed, until it is over."""
    with StompPeer(port) as peer:
        peer.connect()
        while not load.is_over.is_set():
            peer.send_raw(BURST)
            while True:
                try:
                    frame = peer.receive(0.5)
                except TimeoutError:
                    if load.is_over.is_set():
                        return  # blocked: this burst is not confirmed
                    continue
                assert frame.command == "RECEIPT", frame
                load.produced[number] += BATCH
                break


def consume(port: int, load: Load) -> None:
    """Read at a pace that the producers go beyond; then, when it is over, all that there is."""
    with StompPeer(port) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": QUEUE, "ack": "auto"})
        peer.socket.settimeout(0.5)
        tail = b""
        begin_s = time.monotonic()
        while True:
            due = PACE * (time.monotonic() - begin_s)
            if not load.is_over.is_set() and load.consumed > due:
                time.sleep(0.001)
                continue
            try:
                data = peer.socket.recv(65536)
            except TimeoutError:
                if load.is_over.is_set() and load.consumed >= load.confirmed:
                    return
                continue
            seen = tail + data
            load.consumed += seen.count(MARK)
            tail = seen[-(len(MARK) - 1) :]


@contextmanager
def running(load: Load, *works: Callable[[], None]) -> Iterator[None]:
    """Run work in threads, and end it all with the block."""

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            load.failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        load.is_over.set()
        for thread in threads:
            thread.join(WAIT_S)


def metric(broker: BrokerProcess, name: str) -> float:
    url = f"http://127.0.0.1:{broker.port('http')}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def soak(broker: BrokerProcess, is_done: Callable[[], bool]) -> tuple[Load, int]:
    """Return what was done, and the most resident memory that was seen.

    Args:
        broker: The broker.
        is_done: Whether what was to happen has happened; it goes on until then, and for `SOAK_S`.
    """
    load, most = Load(), 0
    port = broker.port()
    works: list[Callable[[], None]] = [lambda: consume(port, load)]
    works += [lambda n=n: produce(port, load, n) for n in range(2)]  # type: ignore[misc]
    with running(load, *works):
        begin_s = time.monotonic()
        while not load.failures:
            most = max(most, broker.rss_bytes())
            elapsed_s = time.monotonic() - begin_s
            if (elapsed_s > SOAK_S and is_done()) or elapsed_s > SOAK_S + WAIT_S:
                break
            time.sleep(0.02)
    assert not load.failures, load.failures
    return load, most


@pytest.mark.parametrize(
    ("policy", "max_size", "waits_min"),
    [("BLOCK", "4MiB", 6), ("BLOCK", "-1", 1), ("PAGE", "-1", 0)],
)
def test_a_container_is_never_killed_for_memory(
    tmp_path: Path, policy: str, max_size: str, waits_min: int
) -> None:
    settings = (
        f"address-settings.#.address-full-policy={policy}",
        f"address-settings.#.max-size-bytes={max_size}",
        "address-settings.#.auto-delete-queues=false",
    )
    with memory_group(LIMIT_BYTES) as group:
        with BrokerProcess(tmp_path / "data", *settings, under=group.under) as broker:
            assert metric(broker, "vespiary_memory_limit_bytes") == LIMIT_BYTES / 2
            load, most = soak(broker, lambda: waits(broker) >= waits_min)
            wait_for(lambda: metric(broker, "vespiary_memory_messages") == 0)
            print(
                f"\n{policy} {max_size}: {load.confirmed} confirmed, {load.consumed} consumed, "
                f"at most {most / MIB:.0f} MiB of {LIMIT_BYTES / MIB:.0f} MiB resident, "
                f"{waits(broker):.0f} waits, {group.kills} killed"
            )
            assert load.consumed >= load.confirmed > 0, "nothing confirmed is missing"
            assert most < LIMIT_BYTES
            assert waits(broker) >= waits_min, "producers were held, let go, and held again"
            assert (waits(broker) > 0) is (policy == "BLOCK")
        assert group.kills == 0


def waits(broker: BrokerProcess) -> float:
    return metric(broker, "vespiary_producer_waits_total")
