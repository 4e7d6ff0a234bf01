"""`max-read-page-*` in a real broker: what consumers wait for comes, whoever holds the rest."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from vespiary_codec.wire.stomp import Frame
from vespiary_testkit.broker_calls import metrics
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

KIB = 1024
COUNT = 1500
SETTINGS = (
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=128KiB",
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "max-disk-usage=100",
)
BODY = "x" * 1000
XID, OTHER_XID = "7:0a0b:01", "7:0a0b:02"


def send(port: int, numbers: range, **headers: str) -> None:
    with StompPeer(port) as peer:
        peer.connect()
        for number in numbers:
            own = {"destination": "/queue/orders", "persistent": "true", **headers}
            more = {"receipt": "last"} if number == numbers[-1] else {}
            peer.send("SEND", own | more, f"{number} {BODY}".encode())
        peer.receive_receipt("last")


def subscribe(peer: StompPeer, mode: str) -> None:
    headers = {"id": "1", "destination": "/queue/orders", "ack": mode}
    peer.send("SUBSCRIBE", headers | {"prefetch-count": "5000"})


def take_in_transaction(peer: StompPeer, mode: str, count: int, came: list[Frame]) -> list[int]:
    """Acknowledge messages in the transaction `t`, one after the other, as they come.

    Args:
        peer: The client.
        mode: That of its subscription.
        count: How many.
        came: Those that have come already; taken out.
    """
    numbers = []
    for _ in range(count):
        frame = came.pop(0) if came else peer.receive()
        assert frame.command == "MESSAGE", frame
        numbers.append(int(frame.body.split(b" ", 1)[0]))
        if mode == "client-individual" or len(numbers) % 10 == 0:
            peer.send("ACK", {"id": frame.get("ack") or "", "transaction": "t"})
    return numbers


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_a_transaction_acknowledges_more_than_is_read_of_pages(tmp_path: Path, mode: str) -> None:
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        send(broker.port(), range(COUNT))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 8)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            subscribe(peer, mode)
            peer.send("BEGIN", {"transaction": "t"})
            assert take_in_transaction(peer, mode, COUNT, []) == list(range(COUNT))
            peer.send("ABORT", {"transaction": "t", "receipt": "r"})
            peer.receive_receipt("r")
        with StompPeer(broker.port()) as peer:
            peer.connect()
            subscribe(peer, mode)
            peer.send("BEGIN", {"transaction": "t"})
            assert take_in_transaction(peer, mode, COUNT, []) == list(range(COUNT))
            peer.send("COMMIT", {"transaction": "t", "receipt": "r"})
            peer.receive_receipt("r")
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] == 0)


@pytest.mark.ci
@pytest.mark.parametrize("last", ["COMMIT", "ABORT"])
def test_what_branches_acknowledge_keeps_nothing_in_pages_from_consumers(
    tmp_path: Path, last: str
) -> None:
    mode, step = "client-individual", 400
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        send(broker.port(), range(COUNT))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 8)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            subscribe(peer, mode)

            def end(phase: str, xid: str) -> None:
                peer.send(
                    "COMMIT", {"transaction": "t", "xid": xid, "phase": phase, "receipt": "r"}
                )
                others.extend(peer.receive_receipt("r"))

            others: list[Frame] = []
            peer.send("BEGIN", {"transaction": "t", "xid": XID})
            assert take_in_transaction(peer, mode, step, others) == list(range(step))
            end("end", XID)
            peer.send("BEGIN", {"transaction": "t", "xid": XID, "join": "true"})
            more = list(range(step, 2 * step))
            assert take_in_transaction(peer, mode, step, others) == more
            end("prepare", XID)
            peer.send("BEGIN", {"transaction": "t", "xid": OTHER_XID})
            rest = list(range(2 * step, COUNT))
            assert take_in_transaction(peer, mode, len(rest), others) == rest
            end("one", OTHER_XID)
            peer.send(last, {"transaction": "t", "xid": XID, "receipt": "r"})
            others.extend(peer.receive_receipt("r"))
            if last == "ABORT":
                peer.send("BEGIN", {"transaction": "t"})
                again = take_in_transaction(peer, mode, 2 * step, others)
                assert again == list(range(2 * step))
                peer.send("COMMIT", {"transaction": "t", "receipt": "r"})
                peer.receive_receipt("r")
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] == 0)


@pytest.mark.ci
def test_what_is_scheduled_keeps_nothing_in_pages_from_consumers(tmp_path: Path) -> None:
    """Messages for tomorrow, more of them than may be read of pages, and some for now behind."""
    tomorrow = str(int(time.time() + 86_400) * 1000)
    with BrokerProcess(tmp_path / "data", *SETTINGS) as broker:
        send(broker.port(), range(COUNT), AMQ_SCHEDULED_TIME=tomorrow)
        send(broker.port(), range(COUNT, 2 * COUNT))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 12)
        broker.kill()
        broker.start()
        with StompPeer(broker.port()) as peer:
            peer.connect()
            subscribe(peer, "client-individual")
            peer.send("BEGIN", {"transaction": "t"})
            numbers = take_in_transaction(peer, "client-individual", COUNT, [])
            assert numbers == list(range(COUNT, 2 * COUNT))


def test_what_waits_for_its_redelivery_keeps_nothing_in_pages_from_consumers(
    tmp_path: Path,
) -> None:
    delay = "address-settings.orders.redelivery-delay=3600000"
    with BrokerProcess(tmp_path / "data", *SETTINGS, delay) as broker:
        send(broker.port(), range(COUNT))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 8)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            subscribe(peer, "client-individual")
            for number in range(COUNT):
                frame = peer.receive()
                assert frame.body.startswith(b"%d " % number)
                peer.send("NACK", {"id": frame.get("ack") or ""})
