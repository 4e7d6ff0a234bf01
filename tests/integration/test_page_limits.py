"""`page-limit-*` and `page-full-policy` in a real broker, with real pages."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_calls import metrics
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.numbered_messages import BODY, send_numbered, take_numbered
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

KIB = 1024
PAGE = 128 * KIB
SETTINGS = (
    "address-settings.#.max-size-bytes=256KiB",
    "address-settings.#.page-size-bytes=128KiB",
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "max-disk-usage=100",
)
QUEUE = "/queue/orders"
BY_BYTES = "address-settings.orders.page-limit-bytes=1MiB"
BY_MESSAGES = "address-settings.orders.page-limit-messages=700"


def send_until_full(port: int, limit: int = 6000) -> int:
    """Send one after the other until one is refused; return how many were confirmed."""
    with StompPeer(port) as peer:
        peer.connect()
        for number in range(limit):
            headers = {"destination": "/queue/orders", "persistent": "true", "receipt": "r"}
            peer.send("SEND", headers, f"{number} {BODY}".encode())
            frame = peer.receive()
            if frame.command == "ERROR":
                assert "its page-full-policy is FAIL" in (frame.get("message") or "")
                return number
            assert frame.command == "RECEIPT"
    raise AssertionError("nothing was refused")


def page_bytes(data: Path) -> int:
    """Return the size of all pages, from which nobody takes."""
    return sum(path.stat().st_size for path in (data / "paging").glob("*/*.page"))


def is_page_full(broker: BrokerProcess) -> bool:
    return metrics(broker)["vespiary_page_full_addresses"] == 1


def address(broker: BrokerProcess) -> dict[str, Any]:
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/addresses/orders"
    with urllib.request.urlopen(url) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@pytest.mark.ci
@pytest.mark.parametrize("limit", [BY_BYTES, pytest.param(BY_MESSAGES, marks=pytest.mark.verify)])
def test_senders_are_refused_when_memory_and_pages_are_full(tmp_path: Path, limit: str) -> None:
    data = tmp_path / "data"
    policy = "address-settings.orders.page-full-policy=FAIL"
    with BrokerProcess(data, *SETTINGS, limit, policy) as broker:
        taken = send_until_full(broker.port())
        assert taken > 600, "memory and pages took some"
        pages_bytes = 'vespiary_address_pages_bytes{address="orders"}'
        wait_for(lambda: metrics(broker)[pages_bytes] == page_bytes(data))
        size = page_bytes(data)
        if limit == BY_BYTES:
            assert 1024 * KIB - PAGE < size <= 1024 * KIB
        else:
            assert 600 * KIB < size < 1200 * KIB
        found = metrics(broker)
        assert found['vespiary_address_page_full{address="orders"}'] == 1
        assert found[pages_bytes] == size
        assert found["vespiary_address_full_refused_total"] == 1
        broker.kill()
        broker.start()
        wait_for(lambda: is_page_full(broker), "what a start finds in pages counts")
        more = send_until_full(broker.port())
        assert more <= taken // 2
        broker.kill()
        broker.start()
        assert take_numbered(broker.port(), QUEUE, taken + more) == [*range(taken), *range(more)]
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] == 0)
        wait_for(lambda: not is_page_full(broker))
        assert send_until_full(broker.port()) > taken // 2, "it takes messages again by itself"
        assert broker.stop() == 0, broker.log_text()
        assert "the pages of an address are full" in broker.log_text()


@pytest.mark.engine
def test_messages_are_dropped_when_memory_and_pages_are_full(tmp_path: Path) -> None:
    data = tmp_path / "data"
    policy = "address-settings.orders.page-full-policy=DROP"
    with BrokerProcess(data, *SETTINGS, BY_BYTES, policy) as broker:
        dropped = 'vespiary_address_full_dropped_total{address="orders"}'
        with StompPeer(broker.port()) as peer:
            peer.connect()
            sent = 0
            while metrics(broker).get(dropped, 0) < 500:
                for _ in range(500):
                    headers = {"destination": "/queue/orders", "persistent": "true"}
                    peer.send("SEND", headers, f"{sent} {BODY}".encode())
                    sent += 1
                peer.send("SEND", {"destination": "/queue/other", "receipt": "r"}, b"x")
                peer.receive_receipt("r")
                assert sent < 20_000
        kept = sent - int(metrics(broker)[dropped])
        assert page_bytes(data) <= 1024 * KIB
        numbers = take_numbered(broker.port(), QUEUE, kept)
        assert numbers == sorted(set(numbers))
        assert len(numbers) == kept < sent
        assert broker.log_text().count("its page-full-policy is DROP") >= 1


@pytest.mark.ci
@pytest.mark.parametrize(("cached", "opened"), [(1, 1), (5, 2)])
def test_so_many_pages_are_kept_open_as_page_max_cache_size_says(
    tmp_path: Path, cached: int, opened: int
) -> None:
    setting = f"address-settings.#.page-max-cache-size={cached}"
    with BrokerProcess(tmp_path / "data", *SETTINGS, setting) as broker:
        send_numbered(broker.port(), QUEUE, range(1500))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 8)
        # Paging has ended: more in memory than the two pages read ahead, and none is.
        memory = 'vespiary_address_bytes{address="orders"}'
        wait_for(lambda: metrics(broker)[memory] <= 256 * KIB * 8 // 10)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            headers = {"id": "1", "destination": "/queue/orders", "ack": "client-individual"}
            peer.send("SUBSCRIBE", headers | {"prefetch-count": "1"})
            message = peer.receive()
            assert message.body.startswith(b"0 ")
            wait_for(lambda: metrics(broker)["vespiary_paging_open_pages"] >= 1)
            # What paging has left in memory decides whether there is room to read ahead at once.
            while (found := metrics(broker)["vespiary_paging_open_pages"]) < opened:
                peer.send("ACK", {"id": message.get("ack", "")})
                message = peer.receive()
            assert found <= cached


def test_consumers_that_do_not_acknowledge_get_a_bounded_part_of_the_pages(
    tmp_path: Path,
) -> None:
    limit = "address-settings.#.max-read-page-messages=200"
    with BrokerProcess(tmp_path / "data", *SETTINGS, limit) as broker:
        send_numbered(broker.port(), QUEUE, range(1500))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 8)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            headers = {"id": "1", "destination": "/queue/orders", "ack": "client-individual"}
            peer.send("SUBSCRIBE", headers | {"prefetch-count": "2000"})
            frames = [peer.receive()]
            wait_for(lambda: metrics(broker)["vespiary_paging_waiting_queues"] == 1)
            wait_for(lambda: metrics(broker)["vespiary_messages_out_total"] >= 200)
            held = int(metrics(broker)["vespiary_messages_out_total"])
            assert held <= 200 + PAGE // 1000
            while len(frames) < 1500:
                if len(frames) % 200 == 0:
                    for frame in frames[-200:]:
                        peer.send("ACK", {"id": frame.get("ack") or ""})
                frames.append(peer.receive())
            numbers = [int(frame.body.split(b" ", 1)[0]) for frame in frames]
            assert numbers == list(range(1500))
        assert "before its consumers acknowledge" in broker.log_text()
