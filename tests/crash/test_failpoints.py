"""kill -9 at every named point of a real broker's work: nothing confirmed is lost, nothing rises.

A broker that kills itself (`killable_broker`) and a client with a ledger (`KillLedger`) in this
process. Each point is killed at, one after the other on the same store, so that every start judges
the kill before it. `VESPIARY_FAILPOINT_ROUNDS` does it again at later visits of the points.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vespiary_testkit.broker_process import environment
from vespiary_testkit.failpoints import POINTS
from vespiary_testkit.forked_program import Process, start
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.stomp_peer import Ended, StompPeer
from vespiary_testkit.waiting import WAIT_S

ROUNDS = int(os.environ.get("VESPIARY_FAILPOINT_ROUNDS", "1"))
SHARDS = 4
LIVES_MAX = 10
START_S = 60.0
CONFIGURATION = """
journal-file-size: 64KiB
journal-buffer-size: 32KiB
journal-pool-files: {pool}
journal-min-files: 2
acceptors:
  - {{name: all, port: 0, stomp: {{max-body-size: 16KiB}}}}
"""
RARE = ("queue states", "messages given back", "a removal", "others", "removing a file")
"""What is written in this work by chance only."""
AT_FIRST = ("making a file", "of a new file", "flush of the folder")
"""What the bindings do in a new folder, and else rarely."""


# --- the client and its ledger --------------------------------------------------------------------

# A client with a ledger for brokers that are killed: what was promised, and what came back. One
# `KillLedger` lives as long as a store; each life of the broker gets a `Session` with it. Every
# message has a number in its body. The ledger is in this process, which is not the one that dies.

QUEUE = "/queue/ledger"
_GONE = (Ended, ConnectionError, TimeoutError)


class BrokenPromiseError(AssertionError):
    """The broker broke a promise."""


class KillLedger:
    """What is known of all messages.

    Attributes:
        live: Confirmed, and not about to be acknowledged: must come back.
        doubtful: Sent or being acknowledged when the broker died: may come back.
        groups: Members of transactions whose confirm did not come: all of one come back, or none.
    """

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.doubtful: set[int] = set()
        self.groups: list[set[int]] = []
        self.number = 0
        self.confirmed = 0
        self.acknowledged = 0

    def judge(self, found: list[int]) -> None:
        """Compare with what a broker delivered after its start; from now on that is the truth.

        Raises:
            BrokenPromiseError: A message is lost, came twice, or is back.
        """
        seen = set(found)
        if len(seen) != len(found):
            raise BrokenPromiseError(f"twice: {sorted(n for n in seen if found.count(n) > 1)}")
        if lost := self.live - seen:
            raise BrokenPromiseError(f"confirmed and lost: {sorted(lost)}")
        if strange := seen - self.live - self.doubtful:
            raise BrokenPromiseError(f"acknowledged or void, and back: {sorted(strange)}")
        for group in self.groups:
            if group & seen and group - seen:
                raise BrokenPromiseError(
                    f"half of a transaction: {sorted(group & seen)} of {sorted(group)}"
                )
        # What did not come may still come: delivery has no end that could be seen.
        self.live, self.doubtful, self.groups = seen, self.doubtful - seen, []

    def take(self, number: int) -> None:
        """Note a message that came later.

        Raises:
            BrokenPromiseError: It is gone, or was never sent.
        """
        if number in self.doubtful:
            self.doubtful.discard(number)
            self.live.add(number)
        elif number not in self.live:
            raise BrokenPromiseError(f"acknowledged or never sent, and back: {number}")


class Session:
    """One connection to one life of the broker.

    Args:
        ledger: The ledger.
        port: The broker's port.
        chance: What decides sizes and numbers.
    """

    def __init__(self, ledger: KillLedger, port: int, chance: random.Random) -> None:
        self.ledger = ledger
        self.chance = chance
        self.peer = StompPeer(port)
        self.acks: dict[int, str] = {}
        self.receipts = 0

    def close(self) -> None:
        self.peer.close()

    def check(self) -> None:
        """Receive what is there and compare; nothing is acknowledged.

        Raises:
            BrokenPromiseError: See `KillLedger.judge`.
        """
        self.peer.connect()
        headers = {"id": "1", "destination": QUEUE, "ack": "client-individual"}
        self.peer.send("SUBSCRIBE", headers)
        # What is sent now comes behind all that was there; it is not durable, and writes nothing.
        self.peer.send("SEND", {"destination": QUEUE}, b"0 the last one")
        found = []
        while bytes((message := self.peer.receive(WAIT_S)).body) != b"0 the last one":
            found.append(self._take(message))
        self.ledger.judge(found)

    def _take(self, message: Any) -> int:
        number = int(bytes(message.body).split(b" ", 1)[0])
        self.acks[number] = message.get("ack")
        return number

    def _take_later(self, message: Any) -> None:
        """Take a message that was sent in this life, or came late."""
        number = self._take(message)
        self.ledger.take(number)

    def _receipt(self) -> str:
        self.receipts += 1
        return f"r{self.receipts}"

    def _wait(self, receipt: str) -> None:
        for message in self.peer.receive_receipt(receipt):
            self._take_later(message)

    def send(self, count: int, size_bytes: int) -> None:
        """Send messages and wait until the last one is confirmed, which confirms all."""
        ledger = self.ledger
        numbers = self._new(count)
        ledger.doubtful |= set(numbers)
        receipt = self._receipt()
        for number in numbers:
            headers = {"destination": QUEUE, "persistent": "true"}
            if number == numbers[-1]:
                headers["receipt"] = receipt
            self.peer.send("SEND", headers, self._body(number, size_bytes))
        self._wait(receipt)
        ledger.live |= set(numbers) & ledger.doubtful
        ledger.doubtful -= set(numbers)
        ledger.confirmed += count

    def transact(self, count: int, size_bytes: int) -> None:
        """Send messages and acknowledge one in a transaction, and wait for its confirm."""
        ledger = self.ledger
        numbers = self._new(count)
        ledger.doubtful |= set(numbers)
        ledger.groups.append(set(numbers))
        self.peer.send("BEGIN", {"transaction": f"t{numbers[0]}"})
        for number in numbers:
            headers = {
                "destination": QUEUE,
                "persistent": "true",
                "transaction": f"t{numbers[0]}",
            }
            self.peer.send("SEND", headers, self._body(number, size_bytes))
        receipt = self._receipt()
        self.peer.send("COMMIT", {"transaction": f"t{numbers[0]}", "receipt": receipt})
        self._wait(receipt)
        ledger.groups.pop()
        ledger.doubtful -= set(numbers)
        ledger.live |= set(numbers)
        ledger.confirmed += count

    def acknowledge(self, share: float) -> None:
        """Acknowledge a share of what was delivered, and wait for the confirm of the last."""
        ledger = self.ledger
        held = sorted(self.acks)
        numbers = held[: int(len(held) * share)]
        if not numbers:
            return
        ledger.live -= set(numbers)
        ledger.doubtful |= set(numbers)
        receipt = self._receipt()
        for number in numbers:
            headers = {"id": self.acks.pop(number)}
            if number == numbers[-1]:
                headers["receipt"] = receipt
            self.peer.send("ACK", headers)
        self._wait(receipt)
        ledger.doubtful -= set(numbers)
        ledger.acknowledged += len(numbers)

    def declare(self) -> None:
        """Send to a queue of a new name, so that the bindings are written; nothing survives it."""
        receipt = self._receipt()
        name = f"/queue/other{self.chance.getrandbits(32)}"
        self.peer.send("SEND", {"destination": name, "receipt": receipt}, b"x")
        self._wait(receipt)

    def work(self, rounds: int) -> bool:
        """Do a bit of everything until the broker dies; whether it did."""
        try:
            self.check()
            for _ in range(rounds):
                self.declare()
                self.send(self.chance.choice((1, 5, 20)), self.chance.choice((10, 2000, 9000)))
                self.transact(self.chance.choice((1, 3)), 500)
                self._drain()
                self.acknowledge(self.chance.choice((0.5, 1.0)))
        except _GONE:
            return True
        except AssertionError as error:
            if isinstance(error, BrokenPromiseError):
                raise
            return True
        return False

    def _drain(self) -> None:
        """Take what was delivered meanwhile, for the time that a covering block takes."""
        while True:
            try:
                self._take_later(self.peer.receive(0.03))
            except TimeoutError:
                return

    def _new(self, count: int) -> list[int]:
        first = self.ledger.number + 1
        self.ledger.number += count
        return list(range(first, first + count))

    @staticmethod
    def _body(number: int, size_bytes: int) -> bytes:
        return b"%d " % number + bytes(size_bytes)


# --- the tests ------------------------------------------------------------------------------------


class Store:
    """A data folder that outlives its brokers, with the ledger of what they promised."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.ledger = KillLedger()
        self.log = folder / "points"
        self.errors = folder / "errors"
        self.kills = 0
        self.confirmed = 0
        self.folders = 0
        folder.mkdir()
        self.log.touch()

    def begin_anew(self) -> None:
        """Judge what is there, and go on in a new data folder."""
        if self.ledger.number:
            assert not self.live("", 0)
        self.confirmed += self.ledger.confirmed
        self.ledger = KillLedger()
        self.folders += 1

    @contextmanager
    def broker(self, point: str, visit: int) -> Iterator[tuple[Process, int]]:
        """Start a broker; give the process and its port, 0 if it died before it was ready."""
        pool = self.chance.choice((0, 0, -1))
        if "next id" in point:
            pool = -1
        elif point.endswith("removing a file"):
            pool = 0
        config = self.folder / "broker.yaml"
        config.write_text(CONFIGURATION.format(pool=pool))
        command = ["--data", str(self.folder / f"data{self.folders}"), "--config", str(config)]
        command += ["--log", str(self.log), "--point", point, "--visit", str(visit)]
        with self.errors.open("w") as errors:
            process = start("vespiary_testkit.killable_broker", command, environment(), errors)
        try:
            yield process, _port_of(process)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(START_S)
            assert process.stdout is not None
            process.stdout.close()

    def live(self, point: str, visit: int) -> bool:
        """Run one broker until it has died at the point, or has worked enough; whether it died."""
        with self.broker(point, visit) as (process, port):
            if port:
                session = Session(self.ledger, port, self.chance)
                try:
                    has_died = session.work(2 if "bindings" in point else 6)
                finally:
                    session.close()
                if not has_died and process.poll() is None:
                    return False
            process.wait(START_S)
            assert process.returncode == -9, self.errors.read_text()[-3000:]
            self.kills += 1
            return True

    def kill_at(self, point: str, visit: int) -> bool:
        """Run brokers until one has died at the point."""
        return any(self.live(point, visit if life < 2 else 1) for life in range(LIVES_MAX))


def _port_of(process: Process) -> int:
    port = 0
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "listening" and event["name"] == "all":
            port = int(event["port"])
        if event["event"] == "ready":
            return port
    return 0


def _order(point: str) -> int:
    """Return when a point's turn is: new folders first, what needs many starts last."""
    if point.startswith("bindings") and point.endswith(AT_FIRST):
        return 0
    if point.startswith("bindings") and point.endswith("of a freed file"):
        return 2
    return 3 if point.startswith("bindings") and point.endswith("next id") else 1


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_kill_at_every_point_breaks_no_promise(tmp_path: Path, shard: int) -> None:
    chance = random.Random(seed_for(f"kills at points {shard}"))
    store = Store(tmp_path / "store", chance)
    missed = []
    for number in range(ROUNDS):
        for point in sorted(POINTS[shard::SHARDS], key=_order):
            if _order(point) == 0:
                store.begin_anew()
            visit = 1 if number == 0 else chance.randrange(1, 2 + number)
            if not store.kill_at(point, visit):
                missed.append(point)
    assert not store.live("", 0), "the last start judges the last kill"
    confirmed = store.confirmed + store.ledger.confirmed
    print(f"{store.kills} kills, {confirmed} confirms")
    assert not missed, f"never reached: {missed}"
    visited = {name for name in store.log.read_text().splitlines() if name}
    unknown = {name for name in visited - set(POINTS) if not name.endswith(RARE)}
    assert not unknown, f"points without a name in failpoints.POINTS: {unknown}"
    assert confirmed > 20


def test_the_ledger_tells_a_broken_promise() -> None:
    ledger = KillLedger()
    ledger.live, ledger.doubtful, ledger.groups = {1, 2}, {3, 4}, [{3, 4}]
    for found, sentence in (
        ([1], "lost"),
        ([1, 1, 2], "twice"),
        ([1, 2, 9], "back"),
        ([1, 2, 3], "half"),
    ):
        with pytest.raises(AssertionError, match=sentence):
            ledger.judge(found)
    with pytest.raises(AssertionError, match="back"):
        ledger.take(9)
    ledger.judge([1, 2, 3, 4])
    with pytest.raises(AssertionError, match="lost"):
        ledger.judge([1, 2, 3])
