"""Queues whose order Python decides, and whose backlog does not stay in memory."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

SETTINGS = (
    "address-settings.#.max-size-bytes=512KiB",
    "address-settings.#.page-size-bytes=128KiB",
    "journal-file-size=1MiB",
    "journal-min-files=2",
    "max-disk-usage=100",
)
BODY = "x" * 1000
QUEUE = "/queue/orders"


def pages(data: Path) -> list[Path]:
    return sorted((data / "paging").glob("*/*.page"))


def send(port: int, messages: list[tuple[int, dict[str, str]]]) -> None:
    """Send numbered messages with headers, and wait until all are confirmed."""
    with StompPeer(port) as peer:
        peer.connect()
        for number, headers in messages:
            more = {"receipt": "last"} if number == messages[-1][0] else {}
            peer.send(
                "SEND",
                {"destination": QUEUE, "persistent": "true", **headers, **more},
                f"{number} {BODY}".encode(),
            )
        peer.receive_receipt("last")


def subscribe(peer: StompPeer, *, credit: int, **headers: str) -> None:
    peer.connect()
    peer.send(
        "SUBSCRIBE",
        {
            "id": "1",
            "destination": QUEUE,
            "ack": "client-individual",
            "prefetch-count": str(credit),
            **headers,
        },
    )


def wait_for_consumers(broker: BrokerProcess, count: int) -> None:
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues"

    def consumers() -> int:
        with urllib.request.urlopen(url) as answer:
            return sum(queue["consumers"] for queue in json.load(answer)["items"])

    wait_for(lambda: consumers() == count, "consumers")


def take(peer: StompPeer, count: int) -> list[int]:
    """Receive and acknowledge messages one by one; return their numbers."""
    numbers = []
    for _ in range(count):
        frame = peer.receive()
        numbers.append(int(frame.body.split(b" ", 1)[0]))
        peer.send("ACK", {"id": frame.get("ack") or ""})
    return numbers


def take_last(peer: StompPeer) -> int:
    """Receive a message; return its number when its end, and that of those before, is durable."""
    frame = peer.receive()
    peer.send("ACK", {"id": frame.get("ack") or "", "receipt": "taken"})
    peer.receive_receipt("taken")
    return int(frame.body.split(b" ", 1)[0])


@pytest.mark.ci
def test_a_priority_queue_pages_and_gives_what_is_urgent_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker, StompPeer(broker.port()) as slow:
        subscribe(slow, credit=1)
        wait_for_consumers(broker, 1)
        send(broker.port(), [(0, {"priority": "9"})])
        # Those that are sent last are the most urgent ones.
        priorities = {number: min(number // 400, 9) for number in range(1, 4000)}
        send(broker.port(), [(n, {"priority": str(p)}) for n, p in priorities.items()])
        # 21 to 34, by what the consumer's turn left in memory as the messages came.
        wait_for(lambda: len(pages(data)) >= 10, lambda: f"pages {len(pages(data))}")
        # One more is under way when the others come.
        got = take(slow, 4000)
        assert sorted(got) == list(range(4000))
        assert got[0] == 0
        urgent = [number for number in got[2:] if number and priorities[number] >= 5]
        assert urgent == sorted(urgent, key=lambda number: (-priorities[number], number))
        assert got[2 : 2 + len(urgent)] == urgent
        wait_for(lambda: not pages(data))


@pytest.mark.engine
def test_a_backlog_of_priorities_that_was_paged_before_a_consumer_came(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        send(broker.port(), [(n, {"priority": str(n // 400)}) for n in range(4000)])
        wait_for(lambda: len(pages(data)) >= 20)
        with StompPeer(broker.port()) as peer:
            subscribe(peer, credit=50)
            got = take(peer, 4000)
        assert got[:2000] == sorted(range(2000, 4000), key=lambda n: (-(n // 400), n))
        assert sorted(got[2000:]) == list(range(2000))
        wait_for(lambda: not pages(data))


@pytest.mark.ci
def test_a_queue_of_groups_pages_and_keeps_their_order(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        BrokerProcess(data, *SETTINGS) as broker,
        StompPeer(broker.port()) as first,
        StompPeer(broker.port()) as second,
    ):
        subscribe(first, credit=5)
        subscribe(second, credit=5)
        wait_for_consumers(broker, 2)
        send(broker.port(), [(n, {"JMSXGroupID": f"g{n % 4}"}) for n in range(3000)])
        wait_for(lambda: len(pages(data)) >= 10, lambda: f"pages {len(pages(data))}")
        mine = {peer: take(peer, 5) for peer in (first, second)}
        groups = {peer: {number % 4 for number in found} for peer, found in mine.items()}
        assert sorted(group for found in groups.values() for group in found) == [0, 1, 2, 3]
        counts = {peer: 750 * len(found) - 5 for peer, found in groups.items()}
        # At the same time: what waits for an owner that takes none holds up others at last.
        with ThreadPoolExecutor() as threads:
            rest = {peer: threads.submit(take, peer, count) for peer, count in counts.items()}
        for peer, more in rest.items():
            mine[peer] += more.result()
        for found in mine.values():
            for group in range(4):
                numbers = [number for number in found if number % 4 == group]
                assert numbers in ([], list(range(group, 3000, 4)))
        wait_for(lambda: not pages(data))


@pytest.mark.ci
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_queue_with_a_selector_that_matches_little_pages(
    tmp_path: Path, *, is_restarted: bool
) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        with StompPeer(broker.port()) as picky:
            subscribe(picky, credit=100, selector="colour = 'red'")
            wait_for_consumers(broker, 1)
            red = {"colour": "red"}
            send(broker.port(), [(n, {} if n % 100 else red) for n in range(3000)])
            wait_for(lambda: len(pages(data)) >= 15)
            assert take(picky, 30) == list(range(0, 3000, 100))
            send(broker.port(), [(n, {"colour": "blue"}) for n in range(3000, 3100)])
            send(broker.port(), [(3100, red)])
            assert take_last(picky) == 3100
        if is_restarted:
            broker.kill()
            broker.start()
        with StompPeer(broker.port()) as other:
            subscribe(other, credit=100, selector="colour = 'blue'")
            assert take(other, 100) == list(range(3000, 3100))
            assert pages(data), "what nobody wants stays there"
        with StompPeer(broker.port()) as rest:
            subscribe(rest, credit=100)
            assert take(rest, 2970) == [n for n in range(3000) if n % 100]
        wait_for(lambda: not pages(data))


@pytest.mark.ci
def test_a_page_that_went_bad_is_passed_over_and_said(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        send(broker.port(), [(n, {"colour": "blue"}) for n in range(3000)])
        send(broker.port(), [(3000, {"colour": "red"})])
        wait_for(lambda: len(pages(data)) >= 15)
        bad = pages(data)[5]
        with bad.open("r+b") as file:
            file.seek(3 * 4096 + 100)
            octet = file.read(1)
            file.seek(3 * 4096 + 100)
            file.write(bytes([octet[0] ^ 1]))
        with StompPeer(broker.port()) as peer:
            # No sketch of a page can rule this out: all are read.
            subscribe(peer, credit=10, selector="colour = 'red' OR weight + 1 = 2")
            assert take(peer, 1) == [3000]
        assert "messages cannot be read, and stay where they are" in broker.log_text()
        assert str(bad) in broker.log_text()


@pytest.mark.ci
def test_a_paged_backlog_is_looked_through_from_its_very_first_message(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        send(broker.port(), [(n, {"colour": "red"} if n % 50 == 0 else {}) for n in range(2000)])
        wait_for(lambda: len(pages(data)) >= 10)
        broker.kill()
        broker.start()
        with StompPeer(broker.port()) as peer:
            subscribe(peer, credit=5, selector="colour = 'red'")
            assert take(peer, 40) == list(range(0, 2000, 50))


@pytest.mark.ci
def test_priorities_over_pages_survive_a_kill(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        send(broker.port(), [(n, {"priority": str(n % 10)}) for n in range(2000)])
        wait_for(lambda: len(pages(data)) >= 10)
        with StompPeer(broker.port()) as peer:
            subscribe(peer, credit=50)
            got = [*take(peer, 299), take_last(peer)]
            broker.kill()
        broker.start()
        with StompPeer(broker.port()) as peer:
            subscribe(peer, credit=50)
            got += take(peer, 1700)
        assert got[:1000] == sorted(
            (n for n in range(2000) if n % 10 >= 5), key=lambda n: (-(n % 10), n)
        )
        assert sorted(got[1000:]) == [n for n in range(2000) if n % 10 < 5]
        wait_for(lambda: not pages(data))


@pytest.mark.ci
def test_a_queue_is_examined_while_pages_are_open_and_plain_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, *SETTINGS) as broker:
        send(broker.port(), [(n, {"colour": "red"} if n % 10 == 0 else {}) for n in range(2000)])
        wait_for(lambda: len(pages(data)) >= 10)
        with StompPeer(broker.port()) as plain:
            subscribe(plain, credit=50)
            got = [*take(plain, 299), take_last(plain)]
        assert got == list(range(300))
        wait_for_consumers(broker, 0)
        with StompPeer(broker.port()) as picky:
            subscribe(picky, credit=50, selector="colour = 'red'")
            red = [*take(picky, 99), take_last(picky)]
        assert red == list(range(300, 1300, 10))
        wait_for_consumers(broker, 0)
        with StompPeer(broker.port()) as plain:
            subscribe(plain, credit=50)
            assert take(plain, 1600) == [n for n in range(300, 2000) if n % 10 or n >= 1300]
        wait_for(lambda: not pages(data))
