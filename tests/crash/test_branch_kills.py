"""kill -9 of a real broker with branches prepared over messages that stand in pages.

Branches acknowledge paged messages and send new ones; they are prepared, committed, rolled back or
left in doubt while the broker is killed, in one life after the other over the same store. Nothing
confirmed is lost, nothing comes twice, what a committed branch acknowledged does not rise again,
and what one that was rolled back acknowledged is there again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from vespiary_testkit.broker_process import BrokerProcess
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.stomp_peer import Ended, StompPeer
from vespiary_testkit.waiting import wait_for

LIVES = max(int(os.environ.get("VESPIARY_CRASH_CYCLES", "10")) // 12, 2)
SETTINGS = (
    "journal-file-size=2MiB",
    "journal-min-files=2",
    "address-settings.#.max-size-bytes=64KiB",
    "address-settings.#.page-size-bytes=64KiB",
    "address-settings.#.max-delivery-attempts=-1",
    "address-settings.#.auto-delete-queues=false",
)
NAME = "ledger"
QUEUE = f"/queue/{NAME}"
GONE = (Ended, ConnectionError)
SENT = 150
FEW = 60

Decision = Literal["COMMIT", "ABORT"]
DECISIONS: tuple[Decision, Decision] = ("COMMIT", "ABORT")

pytestmark = pytest.mark.ci


@dataclass
class Branch:
    """A branch, and what the client knows of it."""

    taken: set[int]
    added: set[int]
    paged: set[int]
    is_prepare_sent: bool = False
    is_prepared: bool = False
    decision: Decision | None = None
    kills: int = 0


@dataclass
class Ledger:
    """What must be there, in one queue.

    Attributes:
        live: Messages that were confirmed and that no branch has.
        branches: Those whose end is not confirmed, by XID.
        outlived: Paged messages in branches that were prepared before a kill and ended after it.
    """

    live: set[int] = field(default_factory=set)
    branches: dict[str, Branch] = field(default_factory=dict)
    outlived: dict[Decision, int] = field(default_factory=lambda: {"COMMIT": 0, "ABORT": 0})
    number: int = 0

    @property
    def count(self) -> int:
        """How many messages are there, also those that branches have."""
        return len(self.live) + sum(
            len(each.taken) + len(each.added) for each in self.branches.values()
        )

    def new(self, count: int) -> list[int]:
        self.number += count
        return list(range(self.number - count + 1, self.number + 1))

    def end(self, xid: str, decision: Decision) -> None:
        """Note how a branch ended."""
        branch = self.branches.pop(xid)
        self.live |= branch.added if decision == "COMMIT" else branch.taken
        if branch.kills:
            self.outlived[decision] += len(branch.paged)

    def killed(self, found: set[str]) -> None:
        """Compare with the branches that a start found; end those that it did not."""
        assert found <= self.branches.keys(), "a branch that was ended is back"
        for xid, branch in list(self.branches.items()):
            if xid in found:
                assert branch.is_prepare_sent, f"{xid} was never prepared"
                branch.is_prepared, branch.decision = True, None
                branch.kills += 1
            elif branch.decision is None:
                assert not branch.is_prepared, f"{xid} was prepared, and is lost"
                self.end(xid, "ABORT")
            else:
                self.end(xid, branch.decision)


class Client:
    """One connection, which works until the broker is gone."""

    def __init__(self, ledger: Ledger, broker: BrokerProcess, chance: random.Random) -> None:
        self.ledger = ledger
        self.chance = chance
        self.peer = StompPeer(broker.port())
        self.peer.connect()
        self.acks: dict[int, str] = {}
        self.paged: set[int] = set()
        self.paged_left = 0
        self.receipts = 0

    def take(self, message: Any) -> None:
        """Note a message that was given."""
        number = int(message.body.split(b" ", 1)[0])
        assert number not in self.acks, f"{number} came twice"
        assert number in self.ledger.live, f"{number} is gone or locked, and back"
        self.acks[number] = message.get("ack")
        if self.paged_left > 0:
            self.paged_left -= 1
            self.paged.add(number)

    def call(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a frame, and wait for its receipt."""
        self.receipts += 1
        receipt = f"r{self.receipts}"
        self.peer.send(command, {**headers, "receipt": receipt}, body)
        while (frame := self.peer.receive()).command == "MESSAGE":
            self.take(frame)
        assert (frame.command, frame.get("receipt-id")) == ("RECEIPT", receipt), frame.body

    def send(self, count: int) -> None:
        for number in self.ledger.new(count):
            self.call("SEND", {"destination": QUEUE, "persistent": "true"}, body(number))
            self.ledger.live.add(number)

    def subscribe(self, prefetch: int, paged: int) -> None:
        """Take messages; so many of the first stand in pages."""
        self.paged_left = paged
        headers = {"id": "1", "destination": QUEUE, "ack": "client-individual"}
        self.peer.send("SUBSCRIBE", {**headers, "prefetch-count": str(prefetch)})

    def prepare(self) -> str:
        """Acknowledge and send in a branch, and prepare it; return its XID."""
        ledger = self.ledger
        while len(self.acks) < 8:
            self.take(self.peer.receive())
        taken = set(self.chance.sample(sorted(self.acks), self.chance.randint(1, 8)))
        added = set(ledger.new(self.chance.randint(0, 3)))
        xid = f"7:{ledger.number:08x}{min(taken):08x}:01"
        branch = ledger.branches[xid] = Branch(taken, added, taken & self.paged)
        ledger.live -= taken
        self.peer.send("BEGIN", {"transaction": xid, "xid": xid})
        for number in sorted(taken):
            self.peer.send("ACK", {"id": self.acks.pop(number), "transaction": xid})
        for number in sorted(added):
            headers = {"destination": QUEUE, "persistent": "true", "transaction": xid}
            self.peer.send("SEND", headers, body(number))
        branch.is_prepare_sent = True
        self.call("COMMIT", {"transaction": xid, "xid": xid, "phase": "prepare"})
        branch.is_prepared = True
        return xid

    def decide(self, xid: str, decision: Decision | None = None) -> None:
        """Commit or roll back a prepared branch; None leaves it to chance."""
        ledger = self.ledger
        branch = ledger.branches[xid]
        chosen: Decision = decision or self.chance.choice(DECISIONS)
        branch.decision = chosen
        # What it gives back may come before its receipt.
        coming = branch.added if chosen == "COMMIT" else branch.taken
        self.receipts += 1
        receipt = f"r{self.receipts}"
        self.peer.send(chosen, {"transaction": xid, "xid": xid, "receipt": receipt})
        early = []
        while (frame := self.peer.receive()).command == "MESSAGE":
            early.append(frame)
        assert (frame.command, frame.get("receipt-id")) == ("RECEIPT", receipt), frame.body
        ledger.end(xid, chosen)
        assert coming <= ledger.live
        for message in early:
            self.take(message)

    def work(self) -> None:
        """Prepare branches and end some, also those of earlier lives, until the broker is gone."""
        ledger = self.ledger
        while True:
            prepared = [xid for xid, each in ledger.branches.items() if each.is_prepared]
            if prepared and (self.chance.random() < 0.5 or len(ledger.live) < FEW):
                self.decide(self.chance.choice(prepared))
            elif len(ledger.live) < FEW:
                self.send(1)
            else:
                self.prepare()


def body(number: int) -> bytes:
    return b"%d " % number + bytes(2000)


def api(broker: BrokerProcess, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}{path}") as answer:
        return json.load(answer)


class State(NamedTuple):
    """What the queue has.

    Attributes:
        messages: All of them, also those that branches have.
        paged: Those in pages that are closed.
    """

    messages: int
    paged: int


def state(broker: BrokerProcess) -> State:
    found = api(broker, f"/api/v1/queues/{NAME}")
    others = sum(found[name] for name in ("ready", "delivering", "prepared", "aside"))
    return State(found["messages"], found["messages"] - others)


def started(broker: BrokerProcess, ledger: Ledger) -> None:
    """Start the broker on what a kill left, and compare."""
    broker.start()
    found = api(broker, "/api/v1/transactions?limit=1000")["items"]
    assert {each["state"] for each in found} <= {"prepared"}, found
    ledger.killed({each["xid"] for each in found})
    if ledger.number:
        now = state(broker)
        assert now.messages == ledger.count, (now, ledger.count)


def drain(client: Client, ledger: Ledger) -> None:
    """Take and acknowledge all that there is."""
    client.subscribe(100, 0)
    while ledger.live:
        if not client.acks:
            client.take(client.peer.receive())
        number = next(iter(client.acks))
        client.call("ACK", {"id": client.acks.pop(number)})
        ledger.live.discard(number)


@contextmanager
def life(ledger: Ledger, broker: BrokerProcess, chance: random.Random) -> Iterator[Client]:
    """Start the broker, and take messages that stand in pages; it is killed at the end."""
    started(broker, ledger)
    client = Client(ledger, broker, chance)
    with client.peer:
        client.send(max(SENT - len(ledger.live), 0))
        locked = sum(len(each.taken) for each in ledger.branches.values())
        wait_for(lambda: state(broker).paged - locked >= 40, lambda: state(broker))
        client.subscribe(40, state(broker).paged - locked)
        try:
            yield client
        finally:
            broker.kill()


def test_branches_over_pages_outlive_kills(tmp_path: Path) -> None:
    chance = random.Random(seed_for("branch kills"))
    broker, ledger = BrokerProcess(tmp_path / "data", *SETTINGS), Ledger()
    try:
        for _ in range(LIVES):
            with life(ledger, broker, chance) as client:
                timer = threading.Timer(
                    chance.uniform(0.0, 0.4), os.kill, (broker.pid, signal.SIGKILL)
                )
                timer.start()
                with suppress(*GONE):
                    client.work()
                timer.join()
        with life(ledger, broker, chance) as client:
            while ledger.branches:
                client.decide(next(iter(ledger.branches)))
            ends = dict(zip([client.prepare(), client.prepare()], DECISIONS, strict=True))
        started(broker, ledger)
        client = Client(ledger, broker, chance)
        with client.peer:
            for xid, decision in ends.items():
                client.decide(xid, decision)
            drain(client, ledger)
        broker.kill()
        started(broker, ledger)
        assert state(broker) == State(0, 0)
        assert broker.stop() == 0, broker.log_text()
    finally:
        if broker.process is not None:
            broker.kill()
    print(f"{ledger.number} messages, {LIVES} lives, paged in branches: {ledger.outlived}")
    assert all(ledger.outlived.values()), "both ends of branches that outlived a kill"
