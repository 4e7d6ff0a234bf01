"""One client that makes as many queues as there may be, in a container: the bound is one of memory.

What a queue takes is what `max-queues: -1` reckons with; the next one is refused, and nobody loses
what he has.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.memory_group import memory_group
from vespiary_testkit.stomp_peer import StompPeer

pytestmark = pytest.mark.verify

KIB, MIB = 1024, 1024 * 1024
LIMIT_BYTES = 256 * MIB
QUEUES = 10_000
"""As many as there may be in so little memory."""
EACH_BYTES = 6 * KIB
ONCE_BYTES = 24 * MIB
"""What a broker takes for its first messages, whatever their number: slabs, code, buffers."""
STEP = 500


def confirmed(peer: StompPeer, frames: list[bytes]) -> None:
    """Send frames, the last of which asks for a receipt, and wait for it; MESSAGEs are let go."""
    peer.send_raw(b"".join(frames))
    while (frame := peer.receive()).command != "RECEIPT":
        assert frame.command == "MESSAGE", frame


def subscribe(number: int) -> bytes:
    receipt = b"receipt:r\n" if number % STEP == STEP - 1 else b""
    return b"SUBSCRIBE\nid:%d\ndestination:/topic/t.%d\nack:client\n%s\n\0" % (
        number, number, receipt,
    )  # fmt: skip


def send(number: int) -> bytes:
    receipt = b"receipt:r\n" if number % STEP == STEP - 1 else b""
    return b"SEND\ndestination:/topic/t.%d\n%s\nx\0" % (number, receipt)


@pytest.mark.skipif(
    os.environ.get("VESPIARY_NATIVE") == "0", reason="the figure is that of the native core"
)
def test_as_many_queues_as_there_may_be_take_what_is_reckoned(tmp_path: Path) -> None:
    with memory_group(LIMIT_BYTES) as group:
        with (
            BrokerProcess(tmp_path / "data", under=group.under) as broker,
            StompPeer(broker.port()) as taker,
            StompPeer(broker.port()) as sender,
        ):
            taker.connect()
            sender.connect()
            before = broker.rss_bytes()
            for begin in range(0, QUEUES, STEP):
                numbers = range(begin, begin + STEP)
                confirmed(taker, [subscribe(number) for number in numbers])
            for begin in range(0, QUEUES, STEP):
                confirmed(sender, [send(number) for number in range(begin, begin + STEP)])
            after = broker.rss_bytes()
            print(
                f"\n{QUEUES} queues: {before / MIB:.0f} to {after / MIB:.0f} MiB, "
                f"{(after - before) / QUEUES / KIB:.1f} KiB each"
            )
            assert after - before <= QUEUES * EACH_BYTES + ONCE_BYTES
            assert after < LIMIT_BYTES
            with StompPeer(broker.port()) as late:
                late.connect()
                late.send_raw(b"SUBSCRIBE\nid:1\ndestination:/topic/late\n\n\0")
                error = late.receive()
            assert error.command == "ERROR"
            assert f"at most {QUEUES} (max-queues)" in (error.get("message") or "")
            confirmed(sender, [send(STEP - 1)])
        assert group.kills == 0
