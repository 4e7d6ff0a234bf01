"""A message journal in a process of its own, to have its system calls spoiled.

`python -m vespiary_testkit.journal_process FOLDER ENGINE` opens a journal of small files, sends and
acknowledges in rounds so that files roll and are reclaimed, and prints one line for each thing that
a client would have been told:

    open ENGINE             it is open, with that engine in effect
    refused SENTENCE        it does not open
    confirmed N             sends up to sequence N are confirmed
    acknowledging N         acknowledgements up to N are asked for
    acknowledged N          they are confirmed
    failed SENTENCE         the journal is fenced
    late N                  something was confirmed after that: never to be seen
    done                    all rounds are through and the journal is closed

`read_back` opens the folder again, in the caller's process, and returns what is live.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import AckMode, DeliverStatus, NoRoom
from vespiary_spec.errors import VespiaryError, WriterFailed
from vespiary_spec.settings import JournalType
from vespiary_testkit import product_loop

ROUNDS = 24
MESSAGES_PER_ROUND = 25
ACKNOWLEDGED_PER_ROUND = 20
_LATE_S = 0.1
_ROUND_S = 20.0
_FRAME = re.compile(rb"message-id:1-(\d+)\n(?s:.*?)content-length:(\d+)\n\n")


def body_of(sequence: int) -> bytes:
    """The body that belongs to a sequence: no two are equal."""
    return f"{sequence:09d}".encode() * (100 + sequence % 350)


def options_for(folder: Path, engine: str) -> JournalOptions:
    """The options of both lives."""
    return JournalOptions(
        directory=folder,
        journal_type=JournalType(engine),
        file_size_bytes=256 * 1024,
        memory_bytes=32 * 1024 * 1024,
        max_io=32,
        max_disk_usage_percent=100,
        reclaim_period_s=0.02,
    )


def say(line: str) -> None:
    """Print a line at once: what was said before the process ends was said."""
    os.write(1, f"{line}\n".encode())


class _Client:
    """Sends and acknowledges on one queue."""

    def __init__(self, journal: MessageJournal) -> None:
        self.journal = journal
        self.core = journal.core
        self.route = self.core.open_route([1])
        self.connection = self.core.open_connection()
        self.consumer = self.core.open_consumer(
            self.connection, 1, AckMode.INDIVIDUAL, 10_000_000, b"s", 12
        )
        self.sent = 0
        self.acknowledged = 0
        journal.on_durable = self.report
        journal.on_failed = lambda failure: say(f"failed {failure}")

    def report(self) -> None:
        """Tell what the core confirms."""
        for _, data in self.core.take_receipts():
            for number in data.split():
                say(f"confirmed {int(number)}")

    async def round(self) -> None:
        """Send some, then acknowledge some."""
        for _ in range(MESSAGES_PER_ROUND):
            while True:
                try:
                    body = body_of(self.sent + 1)
                    self.core.publish(self.route, b"", body, persistent=True)
                    break
                except NoRoom:
                    if self.journal.failure is not None:
                        raise self.journal.failure from None
                    self.journal.request_space()
                    self.journal.kick()
                    await asyncio.sleep(0.001)
            self.sent += 1
            self.core.receipt(self.connection, f"{self.sent}\n".encode())
        await self.journal.wait_durable()
        self.report()
        self.core.deliver(self.consumer, 10_000, 1 << 30)
        first, last = self.acknowledged + 1, self.acknowledged + ACKNOWLEDGED_PER_ROUND
        say(f"acknowledging {last}")
        for sequence in range(first, last + 1):
            self.core.acknowledge(self.consumer, sequence)
        self.acknowledged = last
        await self.journal.wait_durable()
        if self.journal.failure is not None:
            # Durable before the fence, and this task runs after it: who was told of the failure
            # is told nothing more.
            raise self.journal.failure
        say(f"acknowledged {last}")
        await asyncio.sleep(0.005)  # files are freed meanwhile


async def live(folder: Path, engine: str) -> int:
    """Run all rounds, or up to the failure; return the exit code."""
    try:
        journal = await MessageJournal.open(options_for(folder, engine), queue_ids=[1])
    except VespiaryError as error:
        say(f"refused {error}")
        return 1
    say(f"open {journal.engine_name}")
    client = _Client(journal)
    try:
        for _ in range(ROUNDS):
            async with asyncio.timeout(_ROUND_S):
                await client.round()
    except WriterFailed:
        await asyncio.sleep(_LATE_S)
        for _, data in client.core.take_receipts():
            say(f"late {data!r}")
        await journal.close()
        return 1
    try:
        await journal.close()
    except VespiaryError as error:
        say(f"failed {error}")
        return 1
    if journal.failure is None:
        say("done")
    return 0 if journal.failure is None else 1


async def _read_back(folder: Path) -> dict[int, bytes]:
    journal = await MessageJournal.open(options_for(folder, "NIO"), queue_ids=[1])
    found: dict[int, bytes] = {}
    try:
        core = journal.core
        consumer = core.open_consumer(
            core.open_connection(), 1, AckMode.INDIVIDUAL, 10_000_000, b"s", 12
        )
        status = DeliverStatus.LIMIT
        while status is not DeliverStatus.DRAINED:
            status, _, frames = core.deliver(consumer, 10_000, 1 << 30)
            for match in _FRAME.finditer(frames):
                found[int(match[1])] = frames[match.end() : match.end() + int(match[2])]
            if status is DeliverStatus.ABSENT:
                await journal.load_slab(*core.absent_slab(consumer))
    finally:
        await journal.close()
    return found


def read_back(folder: Path) -> dict[int, bytes]:
    """Recover the folder without faults; return the live messages by sequence."""
    return product_loop.run(_read_back(folder))


if __name__ == "__main__":
    engine = sys.argv[2]
    # libuv hands epoll's calls over by an io_uring of its own, whatever UV_USE_IO_URING says, and
    # aborts the process when io_uring_enter fails. The faults are meant for the journal's ring.
    run = asyncio.run if engine == "IO_URING" else product_loop.run
    sys.exit(run(live(Path(sys.argv[1]), engine)))
