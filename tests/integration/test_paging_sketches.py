"""What is looked for in pages: those in which it can't be are not read."""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.engine.matching import SelectorMatch
from vespiary_codec.journal.page import TRAILER, TRAILER_BYTES, decode_page_header
from vespiary_codec.journal.page_sketch import decode_page_sketch
from vespiary_testkit.broker_calls import call
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
MESSAGES = 3000
RED = 1500
DAMAGED = "messages of a page cannot be delivered"


def pages(data: Path) -> list[Path]:
    return sorted((data / "paging").glob("*/*.page"))


def send(port: int) -> None:
    """Send numbered messages, of which one is red."""
    with StompPeer(port) as peer:
        peer.connect()
        for number in range(MESSAGES):
            more = {"receipt": "last"} if number == MESSAGES - 1 else {}
            colour = "red" if number == RED else "blue"
            headers = {"destination": "/queue/orders", "persistent": "true", "colour": colour}
            peer.send("SEND", {**headers, **more}, f"{number} {'x' * 1000}".encode())
        peer.receive_receipt("last")


def spoil(path: Path) -> bool:
    """Damage the index of a page, if its sketch says that nothing in it is red."""
    sketch = decode_page_sketch(decode_page_header(path.read_bytes()[:4096]).sketch)
    assert sketch is not None
    if SelectorMatch("colour = 'red'", "").may_match(sketch):
        return False
    with path.open("r+b") as file:
        file.seek(-TRAILER_BYTES, os.SEEK_END)
        footer_offset = TRAILER.unpack(file.read())[4]
        file.seek(footer_offset)
        file.write(b"\xff" * 64)
        file.flush()
        os.fsync(file.fileno())
    return True


def take_red(broker: BrokerProcess) -> None:
    """Have a consumer get the red message, and leave without an acknowledgement."""
    with StompPeer(broker.port()) as peer:
        peer.connect()
        headers = {"id": "1", "destination": "/queue/orders", "ack": "client-individual"}
        peer.send("SUBSCRIBE", {**headers, "selector": "colour = 'red'"})
        assert peer.receive().body.startswith(b"%d " % RED)
    assert DAMAGED not in broker.log_text()


def ask(broker: BrokerProcess, path: str) -> Any:
    query = urllib.parse.urlencode({"filter": "colour = 'red'"})
    url = f"http://127.0.0.1:{broker.port('http')}/api/v1/queues/orders/{path}?{query}"
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def browse_red(broker: BrokerProcess) -> None:
    """Browse and count the red messages."""
    # Who took it before is gone. (A look at the queue would read a page, for the oldest message.)
    wait_for(lambda: not call(broker, "GET", "/consumers")["items"])
    page = ask(broker, "messages")
    assert [item["headers"]["colour"] for item in page["items"]] == ["red"]
    assert not page.get("next")
    assert ask(broker, "count")["messages"] == 1
    assert DAMAGED not in broker.log_text()


@pytest.mark.ci
@pytest.mark.parametrize("is_non_destructive", [False, True])
def test_pages_in_which_nothing_matches_are_not_read(
    tmp_path: Path, *, is_non_destructive: bool
) -> None:
    data = tmp_path / "data"
    kind = f"address-settings.#.default-non-destructive={str(is_non_destructive).lower()}"
    with BrokerProcess(data, *SETTINGS, kind) as broker:
        send(broker.port())
        wait_for(lambda: len(pages(data)) >= 15)
        # Whoever reads one of these says so.
        spoilt = sum(map(spoil, pages(data)))
        assert spoilt >= 13
        take_red(broker)
        broker.kill()
        broker.start()
        take_red(broker)
        browse_red(broker)
        with StompPeer(broker.port()) as peer:
            peer.connect()
            headers = {"id": "1", "destination": "/queue/orders", "ack": "client-individual"}
            peer.send("SUBSCRIBE", {**headers, "selector": "colour = 'blue'"})
            wait_for(lambda: DAMAGED in broker.log_text(), "a page that was read")
