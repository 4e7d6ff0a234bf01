"""A client with a ledger for brokers that are killed: what was promised, and what came back.

One `KillLedger` lives as long as a store; each life of the broker gets a `Session` with it. Every
message has a number in its body. The ledger is in this process, which is not the one that dies.
"""

from __future__ import annotations

import random
from typing import Any

from vespiary_testkit.stomp_peer import Ended, StompPeer
from vespiary_testkit.waiting import WAIT_S

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
