"""Paging in a real broker: memory is kept, order is kept, pages survive and go."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from vespiary_testkit.broker_calls import call, metrics
from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.numbered_messages import BODY, send_numbered, take_numbered
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.max-size-bytes=512KiB",
    "address-settings.#.page-size-bytes=128KiB",
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "max-disk-usage=100",
)


def pages(data: Path) -> list[Path]:
    return sorted((data / "paging").glob("*/*.page"))


@pytest.mark.ci
def test_a_backlog_goes_to_pages_survives_a_kill_and_comes_back_in_order(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = BrokerProcess(data, *SETTINGS)
    broker.start()
    send_numbered(broker.port(), "/queue/orders", range(4000))
    wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 20)
    assert len(pages(data)) >= 20
    assert next(data.glob("paging/*/address")).read_text() == "orders"
    broker.kill()
    broker.start()
    assert call(broker, "GET", "/queues/orders")["messages"] == 4000
    assert take_numbered(broker.port(), "/queue/orders", 4000) == list(range(4000))
    wait_for(lambda: metrics(broker)["vespiary_paging_removed_total"] >= 20)
    wait_for(lambda: metrics(broker)["vespiary_paging_pages"] == 0)
    wait_for(lambda: not pages(data))  # a file goes behind its entry in the table
    assert broker.stop() == 0, broker.log_text()


def test_the_journal_does_not_grow_with_the_backlog(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS, "journal-compact-min-files=3") as broker:
        for start in range(0, 6000, 1000):
            send_numbered(broker.port(), "/queue/orders", range(start, start + 1000))
        wait_for(lambda: len(pages(data)) >= 35)
        # The one that is filled, and as many as compaction leaves alone.
        wait_for(lambda: used_files(broker) <= 4)


def used_files(broker: BrokerProcess) -> float:
    found = metrics(broker)
    states = [f'vespiary_journal_files{{state="{state}"}}' for state in ("active", "pinned")]
    return sum(found[state] for state in states)


@pytest.mark.engine
def test_a_fast_subscriber_is_served_while_a_lazy_one_pages(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        port = broker.port()
        topic = "/topic/prices"
        with StompPeer(port) as lazy:
            lazy.connect(client_id="lazy")
            durable = {"id": "1", "destination": topic, "durable-subscription-name": "lazy"}
            lazy.send("SUBSCRIBE", {**durable, "receipt": "r"})
            lazy.receive_receipt("r")
        with StompPeer(port) as fast:
            fast.connect()
            fast.send("SUBSCRIBE", {"id": "1", "destination": topic, "ack": "auto", "receipt": "r"})
            fast.receive_receipt("r")
            for start in range(0, 3000, 500):
                send_numbered(port, topic, range(start, start + 500))
                got = fast.receive_messages(500)
                numbers = [int(frame.body.split(b" ", 1)[0]) for frame in got]
                assert numbers == list(range(start, start + 500))
        wait_for(lambda: len(pages(data)) >= 15)
        name = {"client_id": "lazy", "durable_subscription_name": "lazy"}
        assert take_numbered(port, topic, 3000, **name) == list(range(3000))
        wait_for(lambda: not pages(data))


@pytest.mark.ci
@pytest.mark.parametrize("address", ["a/b/../c", "x" * 900])
def test_addresses_of_any_name_page(tmp_path: Path, address: str) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        send_numbered(broker.port(), f"/queue/{address}", range(1500))
        wait_for(lambda: len(pages(data)) >= 5)
        assert next(data.glob("paging/*/address")).read_text() == address
        assert take_numbered(broker.port(), f"/queue/{address}", 1500) == list(range(1500))


@pytest.mark.ci
def test_a_missing_page_stops_the_start_and_says_which(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = BrokerProcess(data, *SETTINGS)
    broker.start()
    send_numbered(broker.port(), "/queue/orders", range(1500))
    wait_for(lambda: len(pages(data)) >= 5)
    broker.stop()
    lost = pages(data)[2]
    kept = lost.read_bytes()
    lost.unlink()
    with pytest.raises(AssertionError, match="a page that the journal names is missing"):
        broker.start()
    lost.write_bytes(kept)
    broker.start()
    assert take_numbered(broker.port(), "/queue/orders", 1500) == list(range(1500))
    assert broker.stop() == 0


@pytest.mark.engine
def test_a_purge_ends_what_stands_in_pages(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        send_numbered(broker.port(), "/queue/orders", range(1500))
        wait_for(lambda: len(pages(data)) >= 5)
        url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/orders/purge"
        with urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b"")) as done:
            assert json.load(done)["messages"] == 1500
        wait_for(lambda: not pages(data))
        assert call(broker, "GET", "/queues/orders")["messages"] == 0


@pytest.mark.ci
def test_a_selector_finds_what_stands_deep_in_pages(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        port = broker.port()
        with StompPeer(port) as peer:
            peer.connect()
            for number in range(3000):
                headers = {"destination": "/queue/orders", "persistent": "true"}
                if number == 2000:
                    headers["colour"] = "red"
                peer.send("SEND", headers, f"{number} {BODY}".encode())
            peer.send("SEND", {"destination": "/queue/orders", "receipt": "r"}, b"3000 last")
            peer.receive_receipt("r")
        wait_for(lambda: len(pages(data)) >= 15)
        assert take_numbered(port, "/queue/orders", 1, selector="colour = 'red'") == [2000]
        rest = [number for number in range(3001) if number != 2000]
        assert take_numbered(port, "/queue/orders", 3000) == rest
        wait_for(lambda: not pages(data))


@pytest.mark.ci
def test_a_selector_finds_what_a_start_found_in_pages_though_memory_is_plenty(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    broker = BrokerProcess(data, *SETTINGS)
    broker.start()
    port = broker.port()
    send_numbered(port, "/queue/orders", range(1500))
    with StompPeer(port) as peer:
        peer.connect()
        red = {"destination": "/queue/orders", "colour": "red", "persistent": "true"}
        peer.send("SEND", {**red, "receipt": "r"}, b"1500 last")
        peer.receive_receipt("r")
    wait_for(lambda: len(pages(data)) > 5)  # more than page-max-cache-size
    broker.stop()
    broker.settings = SETTINGS[1:]  # without max-size-bytes: the address does not page any more
    broker.start()
    assert take_numbered(broker.port(), "/queue/orders", 1, selector="colour = 'red'") == [1500]
    assert take_numbered(broker.port(), "/queue/orders", 1500) == list(range(1500))
    assert broker.stop() == 0


@pytest.mark.ci
def test_the_pages_of_a_queue_go_with_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = BrokerProcess(data, *SETTINGS)
    broker.start()
    for name in ("orders", "kept"):
        send_numbered(broker.port(), f"/queue/{name}", range(1500))
    wait_for(lambda: len(pages(data)) >= 16)
    (folder,) = (
        path.parent for path in data.glob("paging/*/address") if path.read_text() == "orders"
    )
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/orders?force=true"
    urllib.request.urlopen(urllib.request.Request(url, method="DELETE")).close()
    wait_for(lambda: not list(folder.glob("*.page")))
    broker.kill()
    broker.start()
    assert take_numbered(broker.port(), "/queue/kept", 1500) == list(range(1500))
    wait_for(lambda: not pages(data))
    assert broker.stop() == 0, broker.log_text()


@pytest.mark.ci
def test_who_does_not_read_a_topic_holds_up_no_sender(tmp_path: Path) -> None:
    """What it waits for need not survive, and fills the memory: pages still get their share."""
    settings = ("global-max-size=16MiB", "max-disk-usage=100")
    with (
        BrokerProcess(tmp_path / "data", *settings) as broker,
        StompPeer(broker.port()) as reader,
        StompPeer(broker.port()) as sender,
    ):
        reader.connect()
        asked = {"id": "1", "destination": "/topic/t", "ack": "client-individual", "receipt": "s"}
        reader.send("SUBSCRIBE", asked)
        reader.receive_receipt("s")
        sender.connect()
        for number in range(2500):
            sent = {"destination": "/topic/t", "persistent": "true"}
            if number % 50 == 49:
                sent["receipt"] = str(number)
            sender.send("SEND", sent, b"%d " % number + bytes(20_000))
            if number % 50 == 49:
                sender.receive_receipt(str(number))
        wait_for(lambda: metrics(broker)["vespiary_paging_pages"] >= 4)
