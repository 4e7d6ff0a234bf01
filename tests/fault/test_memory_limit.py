"""A broker in a container of 256 MiB with producers twice as fast as its consumer.

The process is never killed for memory, and its resident memory stays below the limit: with BLOCK by
holding the producers back, with the default policy by what the image and the journal do. What was
confirmed is all there. Then producers that are twice as fast as the consumer, while the address
pages. `VESPIARY_SOAK_S=300` does it for longer; figures are printed.
"""

from __future__ import annotations

import math
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.memory_group import memory_group
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.ci

MIB = 1024 * 1024
LIMIT_BYTES = 256 * MIB
SOAK_S = float(os.environ.get("VESPIARY_SOAK_S", "6"))
BODY = b"x" * 1024
BATCH = 100
PACE = 2000
"""Messages that the consumer takes in a second; the producers send many times as many."""
BACKLOG_PACE = 10_000
"""Likewise, where the producers send twice as many."""
QUEUE = "/queue/flood"
PLAIN = f"SEND\ndestination:{QUEUE}\npersistent:true\n\n".encode() + BODY + b"\0"
CONFIRMED = f"SEND\ndestination:{QUEUE}\npersistent:true\nreceipt:r\n\n".encode() + BODY + b"\0"
BURST = PLAIN * (BATCH - 1) + CONFIRMED
AHEAD = 1000
"""Messages that paced producers may be ahead in any case."""
MARK = b"\nmessage-id:"

Work = Callable[[], None]


@dataclass
class Load:
    """What two producers and the consumers did; each thread writes its own field.

    Attributes:
        producing: Numbers of the producers that are at work.
        chosen: Messages that a consumer with a selector took.
        ratio: How many times as fast as the consumers the producers may be.
        most_waiting: Most messages that were confirmed and not consumed yet.
    """

    is_over: threading.Event = field(default_factory=threading.Event)
    produced: list[int] = field(default_factory=lambda: [0, 0])
    producing: set[int] = field(default_factory=set)
    consumed: int = 0
    chosen: int = 0
    ratio: float = math.inf
    most_waiting: int = 0
    failures: list[BaseException] = field(default_factory=list)

    @property
    def confirmed(self) -> int:
        return sum(self.produced)

    @property
    def taken(self) -> int:
        return self.consumed + self.chosen

    @property
    def is_done(self) -> bool:
        """Whether nothing more is produced, and all that was confirmed is taken."""
        return self.is_over.is_set() and not self.producing and self.taken >= self.confirmed

    @property
    def is_ahead(self) -> bool:
        """Whether producers are so many times as fast as consumers as they should be."""
        return self.confirmed > self.ratio * self.taken + AHEAD


def produce(port: int, load: Load, number: int, burst: bytes = BURST) -> None:
    """Send bursts, each when the one before is confirmed, until it is over."""
    load.producing.add(number)
    try:
        send_bursts(port, load, number, burst)
    finally:
        load.producing.discard(number)


def send_bursts(port: int, load: Load, number: int, burst: bytes) -> None:
    with StompPeer(port) as peer:
        peer.connect()
        while not load.is_over.is_set():
            if load.is_ahead:
                time.sleep(0.001)
                continue
            peer.send_raw(burst)
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


def consume(port: int, load: Load, pace: float = PACE, **headers: str) -> None:
    """Read so many a second, which the producers go beyond; when it is over, all that there is."""
    with StompPeer(port) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": QUEUE, "ack": "auto", **headers})
        peer.socket.settimeout(0.5)
        tail = b""
        begin_s = time.monotonic()
        while True:
            due = pace * (time.monotonic() - begin_s)
            if not load.is_over.is_set() and load.consumed > due:
                time.sleep(0.001)
                continue
            try:
                data = peer.socket.recv(65536)
            except TimeoutError:
                if load.is_done:
                    return
                continue
            seen = tail + data
            load.consumed += seen.count(MARK)
            tail = seen[-(len(MARK) - 1) :]


def consume_some(port: int, load: Load) -> None:
    """Take what a selector lets through, one message after the other, lazily."""
    with StompPeer(port) as peer:
        peer.connect()
        headers = {"id": "1", "destination": QUEUE, "ack": "client-individual"}
        peer.send("SUBSCRIBE", {**headers, "prefetch-count": "1", "selector": "kind = 'rare'"})
        while not load.is_done:
            try:
                frame = peer.receive(0.5)
            except TimeoutError:
                continue
            assert frame.get("kind") == "rare", frame
            load.is_over.wait(0.01)
            peer.send("ACK", {"id": frame.get("ack") or ""})
            load.chosen += 1


@contextmanager
def running(load: Load, *works: Work) -> Iterator[None]:
    """Run work in threads, and end it all with the block."""

    def guarded(work: Work) -> None:
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
    assert not any(thread.is_alive() for thread in threads), load


def metric(broker: BrokerProcess, name: str) -> float:
    url = f"http://127.0.0.1:{broker.port('http')}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"no metric {name}")


def soak(broker: BrokerProcess, load: Load, works: list[Work], is_done: Callable[[], bool]) -> int:
    """Let producers and consumers work; return the most resident memory that was seen.

    Args:
        broker: The broker.
        load: What they do.
        works: Each in a thread of its own.
        is_done: Whether what was to happen has happened; it goes on until then, and for `SOAK_S`.
    """
    most = 0
    with running(load, *works):
        begin_s = time.monotonic()
        while not load.failures:
            most = max(most, broker.rss_bytes())
            load.most_waiting = max(load.most_waiting, load.confirmed - load.taken)
            elapsed_s = time.monotonic() - begin_s
            if (elapsed_s > SOAK_S and is_done()) or elapsed_s > SOAK_S + WAIT_S:
                break
            time.sleep(0.02)
    assert not load.failures, load.failures
    return max(most, broker.rss_bytes())


@pytest.mark.parametrize(
    ("policy", "max_size", "waits_min"),
    [
        ("PAGE", "-1", 0),
        pytest.param("BLOCK", "-1", 1, marks=pytest.mark.verify),
        pytest.param("BLOCK", "4MiB", 6, marks=pytest.mark.verify),
    ],
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
            limit_bytes = metric(broker, "vespiary_memory_limit_bytes")
            assert LIMIT_BYTES / 4 < limit_bytes < LIMIT_BYTES / 2, "queues fit beside messages"
            load, port = Load(), broker.port()
            works: list[Work] = [partial(consume, port, load)]
            works += [partial(produce, port, load, number) for number in range(2)]
            most = soak(broker, load, works, lambda: waits(broker) >= waits_min)
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


def burst(**headers: list[str]) -> bytes:
    """Return a burst whose messages have the values of headers in turn."""
    frames = []
    for number in range(BATCH):
        lines = "".join(f"{name}:{of[number % len(of)]}\n" for name, of in headers.items())
        plain = CONFIRMED if number == BATCH - 1 else PLAIN
        frames.append(plain.replace(b"\n\n", b"\n" + lines.encode() + b"\n", 1))
    return b"".join(frames)


BACKLOGS = {
    "plain": burst(),
    "priorities": burst(priority=[str(n) for n in range(10)]),
    "a lazy selector": burst(kind=["rare"] + ["often"] * 99),
}


@pytest.mark.verify
@pytest.mark.parametrize("kind", BACKLOGS)
def test_producers_twice_as_fast_as_consumers(tmp_path: Path, kind: str) -> None:
    settings = (
        "address-settings.#.max-size-bytes=16MiB",
        "address-settings.#.auto-delete-queues=false",
    )
    with memory_group(LIMIT_BYTES) as group:
        with BrokerProcess(tmp_path / "data", *settings, under=group.under) as broker:
            load, port = Load(ratio=2), broker.port()
            has_selector = kind == "a lazy selector"
            headers = {"selector": "kind <> 'rare'"} if has_selector else {}
            works: list[Work] = [partial(consume, port, load, BACKLOG_PACE, **headers)]
            works += [partial(produce, port, load, n, BACKLOGS[kind]) for n in range(2)]
            if has_selector:
                works.append(partial(consume_some, port, load))
            most = soak(broker, load, works, lambda: load.most_waiting > 2 * AHEAD)
            wait_for(lambda: metric(broker, "vespiary_memory_messages") == 0)
            paged = metric(broker, "vespiary_paging_written_bytes_total")
            print(
                f"\n{kind}: {load.confirmed} confirmed, {load.consumed} and {load.chosen} consumed,"
                f" at most {load.most_waiting} waited, {paged / MIB:.0f} MiB of pages written, at"
                f" most {most / MIB:.0f} MiB resident, {group.kills} killed"
            )
            assert load.taken >= load.confirmed > 0, "nothing confirmed is missing"
            assert most < LIMIT_BYTES
            assert load.most_waiting > 2 * AHEAD
            assert (load.chosen > 0) is has_selector
        assert group.kills == 0
