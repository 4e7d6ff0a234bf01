"""Brokers with addresses that are full, by the policies of the table in docs/howto/paging.md.

Owns `Served`, a broker for one column of the table, what fills an address, and what reads the
tables. Used by the tests of the policies.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.stomp_peer import StompPeer
from vespiary_testkit.waiting import wait_for

HOWTO = Path(__file__).resolve().parents[2] / "docs/howto"
NOTHING: Final = "–"


BODY = b"late"
Lines = dict[str, str]
DURABLE: Final[Lines] = {"persistent": "true"}


class Cell(NamedTuple):
    """A cell of a table."""

    row: str
    column: str
    text: str


def cells(page: str, heading: str) -> list[Cell]:
    """Return the cells of the first table below a heading, those without a meaning left out."""
    text = (HOWTO / page).read_text("utf-8").split(f"## {heading}\n", 1)[1]
    lines = iter(text.splitlines())
    line = next(line for line in lines if line.startswith("|"))
    columns = [column.strip().replace("`", "") for column in line.strip("|").split("|")][1:]
    assert next(lines).startswith("|---")
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        row, *texts = (part.strip() for part in line.strip("|").split("|"))
        assert len(texts) == len(columns), line
        found += [
            Cell(row.replace("`", ""), column, text)
            for column, text in zip(columns, texts, strict=True)
        ]
    assert found
    return [cell for cell in found if cell.text != NOTHING]


COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "PAGE": ("address-full-policy=PAGE",),
    "BLOCK": ("address-full-policy=BLOCK",),
    "FAIL": ("address-full-policy=FAIL",),
    "DROP": ("address-full-policy=DROP",),
    "pages full: FAIL": ("page-full-policy=FAIL", "page-limit-messages=0"),
    "pages full: DROP": ("page-full-policy=DROP", "page-limit-messages=0"),
}


FILLED = 3


class Served(NamedTuple):
    """A broker and the column that it is for."""

    broker: BrokerProcess
    column: str

    def peer(self, stack: ExitStack) -> StompPeer:
        peer = stack.enter_context(StompPeer(self.broker.port()))
        peer.connect()
        return peer

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.broker.port('http')}/api/v1/queues{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def metric(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.broker.port('http')}/metrics"
        with urllib.request.urlopen(url) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@contextmanager
def served_with(column: str, data: Path, *more: str) -> Iterator[Served]:
    """Have a broker with the policy of a column for all addresses that begin with `full`."""
    settings = [f"address-settings.full.#.{setting}" for setting in COLUMNS[column]]
    settings += [f"address-settings.full.#.max-size-messages={FILLED}", "max-disk-usage=100"]
    settings += ["address-settings.full.#.page-size-bytes=64KiB"]
    with BrokerProcess(data, *settings, *more) as broker:
        yield Served(broker, column)


def fill(served: Served, stack: ExitStack, address: str) -> None:
    peer = served.peer(stack)
    for number in range(FILLED):
        headers = {"destination": f"/queue/{address}", **DURABLE, "receipt": str(number)}
        peer.send("SEND", headers, b"%d" % number)
        peer.receive_receipt(str(number))
    if served.column.startswith("pages full"):
        wait_for(lambda: served.metric(f'vespiary_address_page_full{{address="{address}"}}') == 1)


class Consumer:
    """Takes what a queue has, and tells where that ends."""

    def __init__(self, served: Served, stack: ExitStack, queue: str) -> None:
        self._peer, self._queue = served.peer(stack), queue
        self._sender = served.peer(stack)
        headers = {"id": "1", "destination": f"/queue/{queue}", "ack": "client-individual"}
        self._peer.send("SUBSCRIBE", headers | {"receipt": "r"})
        self._early = self._peer.receive_receipt("r")

    def take(self, count: int) -> list[bytes]:
        """Return and acknowledge messages."""
        early, self._early = self._early[:count], self._early[count:]
        frames = [*early, *self._peer.receive_messages(count - len(early))]
        for number, frame in enumerate(frames):
            self._peer.send("ACK", {"id": frame.get("ack") or "", "receipt": str(number)})
            self._early += self._peer.receive_receipt(str(number))
        return [frame.body for frame in frames]

    def check_empty(self) -> None:
        """Check that the next message is one that is sent now."""
        headers = {"destination": f"/queue/{self._queue}", "receipt": "m"}
        self._sender.send("SEND", headers, b"marker")
        self._sender.receive_receipt("m")
        assert self.take(1) == [b"marker"]


def check_gone(served: Served, stack: ExitStack, address: str) -> None:
    """Check that a full address has what it had before, and nothing else."""
    consumer = Consumer(served, stack, address)
    assert consumer.take(FILLED) == [b"0", b"1", b"2"]
    consumer.check_empty()
