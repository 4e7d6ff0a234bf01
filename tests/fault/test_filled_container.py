"""A small container full of messages of very many durable queues, killed and started again.

By default fewer queues in less memory; `VESPIARY_QUEUES=10000` takes as many as there may be in
256 MiB, and a minute.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.memory_group import memory_group
from vespiary_testkit.metrics_page import metric
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

pytestmark = pytest.mark.verify

MIB = 1024 * 1024
QUEUES = int(os.environ.get("VESPIARY_QUEUES", "1000"))
LIMIT_BYTES = (256 if QUEUES > 1000 else 192) * MIB
STEP = 500
DRAINED = 20
"""Queues from which all is taken in the end."""


def fill(peer: StompPeer, number: int, body: bytes) -> None:
    """Send a message to each queue, and wait until they are confirmed."""
    for begin in range(0, QUEUES, STEP):
        frames = [
            b"SEND\ndestination:/queue/q.%d\npersistent:true\nat:%d\n%s\n%s\0"
            % (of, number, b"receipt:r\n" * (of == begin + STEP - 1), body)
            for of in range(begin, begin + STEP)
        ]
        peer.send_raw(b"".join(frames))
        assert peer.receive().command == "RECEIPT"


def drain(peer: StompPeer, rounds: int) -> None:
    """Take what is in some of the queues: all of it, in order."""
    every = range(0, QUEUES, QUEUES // DRAINED)
    at = dict.fromkeys(map(str, every), 0)
    for of in every:
        peer.send("SUBSCRIBE", {"id": str(of), "destination": f"/queue/q.{of}", "ack": "auto"})
    for frame in peer.receive_messages(rounds * len(every)):
        of = frame.get("subscription") or ""
        assert int(frame.get("at") or "") == at[of], "order is kept"
        at[of] += 1


@pytest.mark.skipif(
    os.environ.get("VESPIARY_NATIVE") == "0", reason="the figure is that of the native core"
)
def test_a_container_that_is_full_of_messages_of_many_queues(tmp_path: Path) -> None:
    settings = ("address-settings.#.auto-delete-queues=false",)
    with memory_group(LIMIT_BYTES) as group:
        broker = BrokerProcess(tmp_path / "data", *settings, under=group.under)
        with broker:
            limit_bytes = int(metric(broker, "vespiary_memory_limit_bytes"))
            rounds = 5
            body = b"x" * (3 * limit_bytes // 2 // rounds // QUEUES)
            with StompPeer(broker.port()) as peer:
                peer.connect()
                for number in range(rounds):
                    fill(peer, number, body)
            wait_for(lambda: metric(broker, "vespiary_paging_written_total") > 0)
            before = broker.rss_bytes()
            broker.kill()
            broker.start()
            with StompPeer(broker.port()) as peer:
                peer.connect()
                fill(peer, rounds, body)
                drain(peer, rounds + 1)
            after = broker.rss_bytes()
            print(
                f"\n{QUEUES} queues, limit {limit_bytes / MIB:.0f} MiB: {before / MIB:.0f} MiB, "
                f"after a restart {after / MIB:.0f} of {LIMIT_BYTES / MIB:.0f} MiB resident"
            )
            assert max(before, after) < LIMIT_BYTES
        assert group.kills == 0
