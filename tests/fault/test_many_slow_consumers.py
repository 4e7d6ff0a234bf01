"""A container of 256 MiB with a slow consumer on each of 200 queues, and producers flat out.

What stays in memory in front of each consumer is a share of `global-max-size`, so that what waits
moves into pages although every queue has a consumer. Nothing is killed, all that was confirmed is
delivered in its order, and a queue whose consumer keeps up is delivered from memory meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.memory_group import memory_group
from vespiary_testkit.metrics_page import metric
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import WAIT_S, wait_for

pytestmark = pytest.mark.verify

MIB = 1024 * 1024
LIMIT_BYTES = 256 * MIB
QUEUES = 200
ROUNDS = 120
"""Messages for each slow queue: 190 MiB in all, half as much again as there may be in memory."""
BODY = b"x" * 8192
PREFETCH = "4"
PACE_S = 0.02
"""So long a slow consumer takes for a message, all queues of its connection together."""
SLOWLY_MAX = 2000
"""So many each takes at most before it is to hurry, however long the producers are at it: what is
left is more than there may be in memory."""


def slow(number: int) -> str:
    return f"/queue/slow.{number}"


class Consumer:
    """Takes from the slow queues, slowly until it is told to hurry; owner: its thread."""

    def __init__(self, port: int, numbers: range) -> None:
        self.next = dict.fromkeys(numbers, 0)
        self.is_hurried = threading.Event()
        self._peer = StompPeer(port)

    def run(self) -> None:
        with self._peer as peer:
            peer.connect()
            for number in self.next:
                headers = {"id": str(number), "destination": slow(number)}
                headers |= {"ack": "client-individual", "prefetch-count": PREFETCH}
                peer.send("SUBSCRIBE", headers)
            while any(count < ROUNDS for count in self.next.values()):
                frame = peer.receive(WAIT_S)
                number = int(frame.get("subscription") or "")
                assert int(frame.get("at") or "") == self.next[number], "order is kept"
                self.next[number] += 1
                is_enough = sum(self.next.values()) >= SLOWLY_MAX
                self.is_hurried.wait(None if is_enough else PACE_S)
                peer.send("ACK", {"id": frame.get("ack") or ""})


def produce(port: int) -> None:
    """Send one message to each slow queue, again and again, each round confirmed."""
    with StompPeer(port) as peer:
        peer.connect()
        for at in range(ROUNDS):
            frames = [
                b"SEND\ndestination:%s\npersistent:true\nat:%d\n%s\n%s\0"
                % (slow(number).encode(), at, b"receipt:r\n" * (number == QUEUES - 1), BODY)
                for number in range(QUEUES)
            ]
            peer.send_raw(b"".join(frames))
            assert peer.receive(WAIT_S).command == "RECEIPT"


def keep_up(port: int, is_over: threading.Event, taken: list[float]) -> None:
    """Send to a queue and take from it, one message after the other."""
    with StompPeer(port) as peer:
        peer.connect()
        peer.send("SUBSCRIBE", {"id": "1", "destination": "/queue/fast", "ack": "auto"})
        while not is_over.is_set():
            begin_s = time.monotonic()
            peer.send("SEND", {"destination": "/queue/fast", "persistent": "true"}, b"x")
            assert peer.receive(WAIT_S).command == "MESSAGE"
            taken.append(time.monotonic() - begin_s)


@contextmanager
def running(*works: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Run work in threads; what fails is in the list."""
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield failures
    for thread in threads:
        thread.join(10 * WAIT_S)  # each waits no longer than `WAIT_S` for its next message
        assert not thread.is_alive()
    assert not failures, failures


def test_a_slow_consumer_on_every_queue(tmp_path: Path) -> None:
    settings = ("address-settings.#.auto-delete-queues=false",)
    with memory_group(LIMIT_BYTES) as group:
        with BrokerProcess(tmp_path / "data", *settings, under=group.under) as broker:
            limit_bytes = metric(broker, "vespiary_memory_limit_bytes")
            assert LIMIT_BYTES / 4 < limit_bytes < LIMIT_BYTES / 2
            port, is_over, taken = broker.port(), threading.Event(), list[float]()
            halves = (range(QUEUES // 2), range(QUEUES // 2, QUEUES))
            consumers = [Consumer(port, half) for half in halves]
            works: list[Callable[[], None]] = [consumer.run for consumer in consumers]
            with running(*works, lambda: keep_up(port, is_over, taken)) as failures:
                try:
                    produce(port)
                    wait_for(lambda: metric(broker, "vespiary_memory_bytes") <= limit_bytes)
                    waiting = QUEUES * ROUNDS - sum(
                        sum(consumer.next.values()) for consumer in consumers
                    )
                    held_bytes = metric(broker, "vespiary_memory_bytes")
                    most = broker.rss_bytes()
                    assert waiting * len(BODY) > limit_bytes, "more waits than may be in memory"
                finally:
                    is_over.set()
                    for consumer in consumers:
                        consumer.is_hurried.set()
            paged = metric(broker, "vespiary_paging_written_bytes_total")
            print(
                f"\n{waiting} messages waited, {held_bytes / MIB:.0f} MiB of them in memory; "
                f"{paged / MIB:.0f} MiB of pages, {most / MIB:.0f} MiB resident; beside them "
                f"{len(taken)} messages, {max(taken) * 1000:.0f} ms at most"
            )
            assert not failures
            assert most < LIMIT_BYTES
            assert taken, "a queue that keeps up is served meanwhile"
            wait_for(lambda: metric(broker, "vespiary_memory_messages") == 0)
        assert group.kills == 0
