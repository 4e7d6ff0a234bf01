"""The message journal on a real disk: every ring with every core, faults, kills, a full disk."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vespiary_broker.store.opening import OpeningParts
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.reader import Finding, read_journal
from vespiary_broker.store.writer import MessageJournal
from vespiary_native import loader
from vespiary_native.abc import AckMode, Core, DeliverStatus, NoRoom
from vespiary_native.ring import open_ring
from vespiary_native.threads import ThreadRing
from vespiary_native.twin import TwinCore, verify_blocks
from vespiary_spec.errors import EngineUnavailable, WriterFailed
from vespiary_spec.settings import JournalType
from vespiary_testkit import product_loop
from vespiary_testkit.faulty_ring import FaultyRing
from vespiary_testkit.journal_workload import until
from vespiary_testkit.seeds import seed_for
from vespiary_testkit.small_disk import unmount
from vespiary_testkit.waiting import WAIT_S

MIB = 1024 * 1024
CORES = ["twin", "native"] if loader.is_wanted() else ["twin"]
ENGINES = ["NIO", "ASYNCIO", "IO_URING"] if loader.is_wanted() else ["NIO"]


def io_uring_refusal() -> str:
    """Why there is no io_uring here; empty if there is."""
    try:
        open_ring("IO_URING", 1, strict=True)[0].close()
    except EngineUnavailable as error:
        return str(error)
    return ""


def parts_of(core: str, wrap: Callable[[Any], Any] = lambda ring: ring) -> OpeningParts:
    """Parts with that core; the ring goes through `wrap`."""

    def make_ring(kind: Any, depth: int, *, strict: bool) -> Any:
        ring, reason = open_ring(kind, depth, strict=strict)
        return wrap(ring), reason

    if core == "twin":
        return OpeningParts(
            open_core=lambda **names: TwinCore(**names), verify=verify_blocks, open_ring=make_ring
        )
    return OpeningParts(open_ring=make_ring)


def options_for(folder: Path, **changes: Any) -> JournalOptions:
    values: dict[str, Any] = {
        "directory": folder / "journal",
        "file_size_bytes": MIB,
        "memory_bytes": 32 * MIB,
        "max_io": 32,
        "max_disk_usage_percent": 100,
        "reclaim_period_s": 0.01,
    }
    return JournalOptions(**(values | changes))


@pytest.fixture(params=[(engine, core) for engine in ENGINES for core in CORES], ids="-".join)
def combination(request: pytest.FixtureRequest) -> tuple[str, str]:
    forced = {"threads": "NIO", "aio": "ASYNCIO", "uring": "IO_URING"}.get(
        os.environ.get("VESPIARY_RING", "")
    )
    if forced and request.param[0] != forced:
        pytest.skip(f"VESPIARY_RING forces {forced}")
    if request.param[0] == "IO_URING" and (refusal := io_uring_refusal()):
        pytest.skip(f"no io_uring here: {refusal}")
    engine, core = request.param
    return engine, core


class Peer:
    """Sends, receives and acknowledges; knows what is live."""

    def __init__(self, journal: MessageJournal) -> None:
        self.journal = journal
        self.core: Core = journal.core
        self.route = self.core.open_route([1])
        connection = self.core.open_connection()
        self.consumer = self.core.open_consumer(
            connection, 1, AckMode.INDIVIDUAL, 10_000_000, b"s", 12
        )
        self.received: dict[int, bytes] = {}

    async def send(self, bodies: list[bytes]) -> None:
        for body in bodies:
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        self.core.publish(self.route, b"", body, persistent=True)
                        break
                    except NoRoom:
                        self.journal.request_space()
                        self.journal.kick()
                        await asyncio.sleep(0.001)
            self.journal.kick()
        await self.journal.wait_durable()

    async def receive(self) -> None:
        """Take everything, reading back what is not in memory."""
        status = DeliverStatus.LIMIT
        while status is not DeliverStatus.DRAINED:
            status, _, frames = self.core.deliver(self.consumer, 10_000, 1 << 30)
            for match in re.finditer(
                rb"message-id:1-(\d+)\n(?s:.*?)content-length:(\d+)\n\n", frames
            ):
                body = frames[match.end() : match.end() + int(match[2])]
                self.received[int(match[1])] = body
            if status is DeliverStatus.ABSENT:
                await self.journal.load_slab(*self.core.absent_slab(self.consumer))

    async def acknowledge(self, sequences: list[int]) -> None:
        for sequence in sequences:
            assert self.core.acknowledge(self.consumer, sequence) == 1
            self.received.pop(sequence)
        await self.journal.wait_durable()


def test_a_life_on_the_disk(tmp_path: Path, combination: tuple[str, str]):
    engine, core = combination
    options = options_for(tmp_path, journal_type=JournalType(engine))
    chance = random.Random(seed_for("life on the disk"))
    bodies = [chance.randbytes(chance.randrange(1, 6000)) for _ in range(1500)]

    async def live() -> None:
        journal = await MessageJournal.open(options, queue_ids=[1], parts=parts_of(core))
        assert (journal.engine_name, journal.durability) == (engine, "D2")
        peer = Peer(journal)
        await peer.send(bodies)
        assert journal.core.current_file() >= 4
        await peer.receive()
        await peer.acknowledge([n for n in list(peer.received) if n <= 700 or n % 3])
        kept = dict(peer.received)
        await until(lambda: journal.statistics().files_reclaimed >= 1)
        await journal.close()

        again = await MessageJournal.open(options, queue_ids=[1], parts=parts_of(core))
        other = Peer(again)
        await other.receive()
        assert other.received == kept
        assert all(body == bodies[sequence - 1] for sequence, body in kept.items())
        assert again.statistics().slab_loads >= 1
        await other.acknowledge(list(kept))
        await until(lambda: again.statistics().files_reclaimed >= 3)
        await again.close()

    product_loop.run(live())
    report = read_journal(tmp_path / "journal")
    assert (report.finding, report.live_messages) == (Finding.GOOD, {})


@pytest.mark.engine
def test_the_engine_may_change_with_each_start(tmp_path: Path):
    if os.environ.get("VESPIARY_RING"):
        pytest.skip("VESPIARY_RING forces one engine")
    engines = [e for e in ENGINES if e != "IO_URING" or not io_uring_refusal()]
    sent: dict[int, bytes] = {}

    async def live(engine: str) -> None:
        options = options_for(tmp_path, journal_type=JournalType(engine))
        journal = await MessageJournal.open(options, queue_ids=[1])
        assert journal.engine_name == engine
        assert journal.fallback_reason is None
        peer = Peer(journal)
        await peer.receive()
        assert peer.received == sent
        bodies = [f"{engine} {n}".encode() * 200 for n in range(300)]
        await peer.send(bodies)
        sent.update(enumerate(bodies, start=max(sent, default=0) + 1))
        await journal.close()

    for engine in [*engines, *reversed(engines)]:
        product_loop.run(live(engine))
    report = read_journal(tmp_path / "journal")
    assert report.finding is Finding.GOOD
    assert len(sent) == 600 * len(engines)


@pytest.mark.ci
def test_eviction_and_reading_back_while_writing(tmp_path: Path, combination: tuple[str, str]):
    engine, core = combination
    options = options_for(
        tmp_path, journal_type=JournalType(engine), file_size_bytes=4 * MIB, memory_bytes=16 * MIB
    )
    bodies = [bytes([n % 251]) * 20_000 for n in range(1500)]

    async def live() -> None:
        journal = await MessageJournal.open(options, queue_ids=[1], parts=parts_of(core))
        peer = Peer(journal)
        await peer.send(bodies)
        assert journal.core.image_statistics().slabs_total <= 8
        await asyncio.gather(peer.receive(), peer.send([b"more"] * 50))
        await peer.receive()
        assert [peer.received[n + 1] for n in range(1500)] == bodies
        assert journal.statistics().slab_loads >= 5
        await journal.close()

    product_loop.run(live())


@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("result", [-errno.EIO, 4095])
def test_a_failing_write_fences(
    tmp_path: Path, combination: tuple[str, str], k: int, result: int, caplog: Any
):
    engine, core = combination
    caplog.set_level("CRITICAL")
    options = options_for(tmp_path, journal_type=JournalType(engine))

    async def live() -> int:
        parts = parts_of(core, lambda ring: FaultyRing(ring, fail_at=k, result=lambda _n: result))
        journal = await MessageJournal.open(options, queue_ids=[1], parts=parts)
        peer = Peer(journal)
        with pytest.raises(WriterFailed):  # noqa: PT012 (the keeper writes too)
            for _ in range(k + 3):
                await peer.send([b"x" * 100])
        confirmed = journal.core.queue_statistics(1).available - 1
        await journal.close()
        return confirmed

    confirmed = product_loop.run(live())

    async def reopen() -> None:
        journal = await MessageJournal.open(options, queue_ids=[1], parts=parts_of(core))
        assert journal.core.queue_statistics(1).available - 1 >= confirmed
        await journal.close()

    product_loop.run(reopen())


def test_files_written_by_one_core_are_read_by_the_other(tmp_path: Path):
    if len(CORES) < 2:
        pytest.skip("VESPIARY_NATIVE=0: there is one core only")
    options = options_for(tmp_path)

    async def live() -> None:
        sent: list[bytes] = []
        for turn, core in enumerate(["native", "twin", "native", "twin"]):
            journal = await MessageJournal.open(options, queue_ids=[1], parts=parts_of(core))
            peer = Peer(journal)
            await peer.receive()
            assert [peer.received[n + 1] for n in range(len(sent))] == sent
            more = [bytes([turn]) * 3000 for _ in range(300)]
            await peer.send(more)
            sent += more
            await journal.close()

    product_loop.run(live())


# --- engines -------------------------------------------------------------------------------------


def test_without_direct_io_the_engine_is_nio_and_says_why(tmp_path: Path):
    options = options_for(tmp_path, is_direct=False)

    async def live() -> None:
        journal = await MessageJournal.open(options, queue_ids=[1])
        assert journal.engine_name == "NIO"
        assert journal.fallback_reason is not None
        assert "O_DIRECT" in journal.fallback_reason
        assert journal.durability == "D2"
        await Peer(journal).send([b"x"] * 10)
        await journal.close()
        for journal_type in (JournalType.ASYNCIO, JournalType.IO_URING):
            strict = options_for(
                tmp_path, is_direct=False, is_strict=True, journal_type=journal_type
            )
            with pytest.raises(EngineUnavailable, match="no O_DIRECT"):
                await MessageJournal.open(strict, queue_ids=[1])

    product_loop.run(live())


def test_an_engine_that_can_not_be_had_falls_back_with_a_reason_or_refuses(tmp_path: Path):
    def no_aio(kind: str, depth: int, *, strict: bool) -> Any:
        if kind == "ASYNCIO" and strict:
            raise EngineUnavailable("ASYNCIO can't be used: io_setup", errno.EAGAIN)
        reason = "ASYNCIO can't be used, NIO is: io_setup." if kind == "ASYNCIO" else None
        return ThreadRing(depth), reason

    async def live() -> None:
        parts = OpeningParts(open_ring=no_aio)
        journal = await MessageJournal.open(options_for(tmp_path), parts=parts)
        assert journal.engine_name == journal.statistics().engine == "NIO"
        assert journal.statistics().fallback_reason == "ASYNCIO can't be used, NIO is: io_setup."
        await journal.close()
        with pytest.raises(EngineUnavailable):
            await MessageJournal.open(options_for(tmp_path, is_strict=True), parts=parts)
        await (await MessageJournal.open(options_for(tmp_path), parts=parts)).close()

    product_loop.run(live())


# --- kill -9 -------------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from pathlib import Path
from vespiary_broker.app import event_loop
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import NoRoom

async def main():
    options = JournalOptions(directory=Path(sys.argv[1]), file_size_bytes=1 << 20,
                             memory_bytes=32 << 20, max_io=16, max_disk_usage_percent=100)
    journal = await MessageJournal.open(options, queue_ids=[1])
    core = journal.core
    route = core.open_route([1])
    print("open", core.queue_statistics(1).tail, flush=True)
    def report():
        print(core.queue_statistics(1).available - 1, flush=True)
    journal.on_durable = report
    while True:
        try:
            for _ in range(20):
                core.publish(route, b"", bytes(700), persistent=True)
        except NoRoom:
            journal.request_space()
        journal.kick()
        await asyncio.sleep(0)

event_loop.run(main())
"""


@pytest.mark.ci
@pytest.mark.parametrize("delay_s", [0.05, 0.2, 0.4])
def test_kill_9_loses_nothing_that_was_confirmed(tmp_path: Path, delay_s: float):
    folder = tmp_path / "journal"
    confirmed = 0
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as writer:
            assert writer.stdout is not None
            opened, tail = writer.stdout.readline().split()
            assert opened == "open"
            assert int(tail) > confirmed, "what was confirmed before the first kill is there"
            first = writer.stdout.readline()
            time.sleep(delay_s)
            writer.send_signal(signal.SIGKILL)
            numbers = [int(n) for n in (first + writer.stdout.read()).split("\n")[:-1] if n]
        confirmed = numbers[-1]
    report = read_journal(folder)
    assert report.finding in (Finding.GOOD, Finding.TORN), report.error_text
    assert report.live_messages.get(1, 0) >= confirmed > 0


# --- a disk of its own ---------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a file system of 24 MiB needs root")
    image, mount = tmp_path / "image", tmp_path / "mount"
    mount.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 24 * MIB)
    steps = (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount)])
    for step in steps:
        ran = subprocess.run(step, capture_output=True, text=True, check=False)
        if ran.returncode:
            pytest.skip(f"{step[0]} does not work here: {ran.stderr.strip()}")
    yield mount
    unmount(mount)


@pytest.mark.engine
def test_a_full_disk_blocks_and_resumes(small_disk: Path):
    options = options_for(small_disk, disk_scan_period_s=0.02)

    async def live() -> None:
        journal = await MessageJournal.open(options, queue_ids=[1])
        core = journal.core
        route = core.open_route([1])
        sent = 0
        async with asyncio.timeout(WAIT_S):
            while journal.blocked is None or core.files_ahead():
                try:
                    core.publish(route, b"", bytes(10_000), persistent=True)
                    sent += 1
                except NoRoom:
                    journal.request_space()
                    await asyncio.sleep(0.001)
                journal.kick()
                await asyncio.sleep(0)
        assert "no room" in str(journal.blocked)
        assert journal.failure is None
        with pytest.raises(NoRoom):  # noqa: PT012 (how many fit is not the question)
            while True:
                core.publish(route, b"", bytes(10_000), persistent=True)
                sent += 1
        await journal.wait_durable()
        assert core.queue_statistics(1).available - 1 == sent, "all that was taken is kept"
        peer = Peer(journal)
        await peer.receive()
        await peer.acknowledge(list(peer.received))
        await until(lambda: journal.blocked is None and core.files_ahead() > 0)
        core.publish(route, b"", b"again", persistent=True)
        await journal.wait_durable()
        await journal.close()

    product_loop.run(live())
    report = read_journal(small_disk / "journal")
    assert (report.finding, report.live_messages) == (Finding.GOOD, {1: 1})
