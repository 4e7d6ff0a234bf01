"""Delivery counts that survive kill -9 of the broker, and what they lead to."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vespiary_codec.wire.stomp import Frame
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

AHEAD = "persist-delivery-count-before-delivery=true"
ATTEMPTS = "address-settings.#.max-delivery-attempts=2"
PAGING = (
    "address-settings.#.max-size-bytes=64KiB",
    "address-settings.#.page-size-bytes=64KiB",
    "journal-file-size=1MiB",
)


@contextmanager
def connected(broker: BrokerProcess) -> Iterator[StompPeer]:
    with StompPeer(broker.port()) as peer:
        peer.connect()
        yield peer


def send(broker: BrokerProcess, *bodies: bytes, to: str = "/queue/orders") -> None:
    """Send messages; on return they are durable."""
    with connected(broker) as peer:
        for body in bodies:
            peer.send("SEND", {"destination": to, "persistent": "true", "receipt": "r"}, body)
            assert peer.receive_receipt("r") == []


def subscribe(peer: StompPeer, name: str = "/queue/orders", **headers: str) -> None:
    wanted = {"id": "1", "destination": name, "ack": "client-individual", "prefetch-count": "1"}
    peer.send("SUBSCRIBE", wanted | headers)


def deliveries(frame: Frame) -> int:
    return int(frame.get("delivery-count", "0"))


def messages(broker: BrokerProcess, name: str) -> int:
    """Return how many messages a queue has; 0 without one."""
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/{name}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError:
        return 0
    return int(found["messages"])


def kill_while_held(broker: BrokerProcess, **headers: str) -> Frame:
    """Have the broker killed while a consumer has its next message; return that."""
    with connected(broker) as peer:
        subscribe(peer, **headers)
        (frame,) = peer.receive_messages(1)
        broker.kill()
    broker.start()
    return frame


@pytest.mark.ci
def test_the_count_of_a_nack_survives_a_kill_and_a_delivery_alone_is_not_counted(
    tmp_path: Path,
) -> None:
    broker = BrokerProcess(tmp_path / "data", "max-redelivery-records=1")
    broker.start()
    send(broker, b"x")
    assert deliveries(kill_while_held(broker)) == 0
    for number in range(3):
        with connected(broker) as peer:
            subscribe(peer)
            (frame,) = peer.receive_messages(1)
            # Only so many have a record: after the second NACK the journal says 1 still.
            assert deliveries(frame) == min(number, 1)
            peer.send("NACK", {"id": frame.get("ack") or "", "receipt": "n"})
            (again,) = peer.receive_receipt("n") or peer.receive_messages(1)
            assert deliveries(again) == min(number, 1) + 1
            if number < 2:
                broker.kill()
                broker.start()
    assert broker.stop() == 0, broker.log_text()


@pytest.mark.ci
@pytest.mark.parametrize("headers", [{}, {"selector": "colour IS NULL"}], ids=["all", "selector"])
def test_a_message_that_kills_the_broker_is_a_dead_letter_in_the_end(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    broker = BrokerProcess(tmp_path / "data", AHEAD, ATTEMPTS)
    broker.start()
    send(broker, b"poison", b"good")
    for number in range(2):
        poison = kill_while_held(broker, **headers)
        assert (poison.body, deliveries(poison)) == (b"poison", number)
    with connected(broker) as peer:
        subscribe(peer, **headers)
        (good,) = peer.receive_messages(1)
        assert (good.body, deliveries(good)) == (b"good", 0)
        peer.send("ACK", {"id": good.get("ack") or "", "receipt": "a"})
        peer.receive_receipt("a")
        wait_for(lambda: messages(broker, "DLQ") == 1)
    with connected(broker) as peer:
        subscribe(peer, "/queue/DLQ", ack="auto")
        (letter,) = peer.receive_messages(1)
        assert (letter.body, letter.get("_AMQ_ORIG_DELIVERIES")) == (b"poison", "2")
    assert broker.stop() == 0, broker.log_text()


@pytest.mark.ci
def test_in_pages_too(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", AHEAD, ATTEMPTS, *PAGING)
    broker.start()
    bodies = [b"%03d" % number + bytes(1000) for number in range(400)]
    send(broker, *bodies)
    with connected(broker) as peer:
        subscribe(peer, ack="client")
        for _ in range(120):  # those behind them stand in pages
            (frame,) = peer.receive_messages(1)
            peer.send("ACK", {"id": frame.get("ack") or ""})
        peer.send("DISCONNECT", {"receipt": "d"})
        peer.receive_receipt("d")
    for number in range(2):
        poison = kill_while_held(broker)
        assert (poison.body[:3], deliveries(poison)) == (b"120", number)
    with connected(broker) as peer:
        subscribe(peer)
        for at in range(121, 400):
            (frame,) = peer.receive_messages(1)
            assert (frame.body[:3], deliveries(frame)) == (b"%03d" % at, 0)
            peer.send("ACK", {"id": frame.get("ack") or ""})
        wait_for(lambda: messages(broker, "DLQ") == 1)
        wait_for(lambda: messages(broker, "orders") == 0)
    assert broker.stop() == 0, broker.log_text()


@pytest.mark.engine
def test_a_message_that_kills_its_consumer_and_a_large_one(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", AHEAD, ATTEMPTS, "min-large-message-size=64KiB")
    broker.start()
    send(broker, b"large" + bytes(200_000))
    with connected(broker) as peer:
        subscribe(peer)
        (frame,) = peer.receive_messages(1)
        assert deliveries(frame) == 0
    large = kill_while_held(broker)
    assert (large.body[:5], deliveries(large)) == (b"large", 1)
    with connected(broker) as peer:
        subscribe(peer)
        wait_for(lambda: messages(broker, "DLQ") == 1)
    assert broker.stop() == 0, broker.log_text()


@pytest.mark.ci
def test_orderly_ends_count_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", AHEAD, ATTEMPTS) as broker:
        send(broker, b"x")
        for _ in range(3):
            with connected(broker) as peer:
                subscribe(peer)
                assert deliveries(*peer.receive_messages(1)) == 0
                peer.send("DISCONNECT", {"receipt": "d"})
                peer.receive_receipt("d")
        with connected(broker) as peer:
            subscribe(peer)
            assert deliveries(*peer.receive_messages(1)) == 0
            assert broker.stop() == 0, broker.log_text()
        broker.start()
        with connected(broker) as peer:
            subscribe(peer)
            assert deliveries(*peer.receive_messages(1)) == 0
