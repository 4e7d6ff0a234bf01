"""Files made ahead of need against growing ones, in the whole journal: run it as a module.

`python -m benchmarks.bench_preallocation [--directory DIR] [--json]`. Owns: one new folder with a
journal for each way, removed at the end. Must never: touch another journal, or compare across runs.
Called by people; docs/howto/disks.md prints a run.

One message of 1 KiB at a time, each durable (class D2) before the next: that is where the price of
metadata shows, since nothing shares it. The journals take turns in shuffled order, so that a slow
second of a shared disk hits all of them alike.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.machine import Machine, describe
from vespiary_broker.app import event_loop
from vespiary_broker.store.options import JournalOptions
from vespiary_broker.store.writer import MessageJournal
from vespiary_native.abc import NoRoom
from vespiary_spec.settings import JournalType, PreallocationScope, PreallocationStrategy

BODY = bytes(1024)
TURN_S = 0.05
WAYS: dict[str, tuple[PreallocationStrategy, PreallocationScope]] = {
    **{str(s): (s, PreallocationScope.ENTIRE_JOURNAL) for s in PreallocationStrategy},
    "none": (PreallocationStrategy.ZEROS, PreallocationScope.NONE),
}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One way with one engine."""

    way: str
    engine: str
    appends: int
    appends_per_s: float
    p50_us: float
    p99_us: float
    files_made: int


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as JSON."""

    machine: Machine
    seconds: float
    file_bytes: int
    samples: list[Sample]


class Appender:
    """One journal under measurement."""

    def __init__(self, way: str, journal: MessageJournal) -> None:
        self.way = way
        self._journal = journal
        self._route = journal.core.open_route([1])
        self._times_ns: list[int] = []
        self._elapsed_ns = 0

    @property
    def elapsed_s(self) -> float:
        """Time measured so far."""
        return self._elapsed_ns / 1e9

    async def turn(self) -> None:
        """Append for a while, one message at a time."""
        begin = now = time.perf_counter_ns()
        while now - begin < TURN_S * 1e9:
            before = now
            try:
                self._journal.core.publish(self._route, b"", BODY, persistent=True)
            except NoRoom:
                self._journal.request_space()
                await asyncio.sleep(0)
                now = time.perf_counter_ns()
                continue
            await self._journal.wait_durable()
            now = time.perf_counter_ns()
            self._times_ns.append(now - before)
        self._elapsed_ns += now - begin

    async def close(self) -> Sample:
        """Close the journal and return its figures."""
        statistics = self._journal.statistics()
        await self._journal.close()
        ordered = sorted(self._times_ns)
        return Sample(
            way=self.way,
            engine=statistics.engine,
            appends=len(ordered),
            appends_per_s=len(ordered) / self.elapsed_s,
            p50_us=ordered[len(ordered) // 2] / 1e3,
            p99_us=ordered[len(ordered) * 99 // 100] / 1e3,
            files_made=statistics.files_made,
        )


async def measure(
    folder: Path, engine: JournalType, seconds: float, file_bytes: int
) -> list[Sample]:
    """Let the journals of one engine take turns until each had its time."""
    chance = random.Random(1)
    appenders = []
    for way, (strategy, scope) in WAYS.items():
        options = JournalOptions(
            directory=folder / str(engine) / way,
            journal_type=engine,
            max_io=16,
            file_size_bytes=file_bytes,
            record_bytes_max=16 * 1024,
            memory_bytes=32 * 1024 * 1024,
            max_disk_usage_percent=100,
            preallocation_strategy=strategy,
            preallocation_scope=scope,
        )
        appenders.append(Appender(way, await MessageJournal.open(options, queue_ids=[1])))
    left = list(appenders)
    while left:
        chance.shuffle(left)
        for appender in list(left):
            await appender.turn()
            if appender.elapsed_s >= seconds:
                left.remove(appender)
    return [await appender.close() for appender in appenders]


def run(directory: Path, seconds: float, file_bytes: int) -> Report:
    """Measure every way with both engines that every machine has."""
    folder = Path(tempfile.mkdtemp(prefix="bench-preallocation-", dir=directory))
    samples: list[Sample] = []
    try:
        for engine in (JournalType.ASYNCIO, JournalType.NIO):
            samples += event_loop.run(measure(folder, engine, seconds, file_bytes))
    finally:
        shutil.rmtree(folder)
    return Report(
        machine=describe(directory), seconds=seconds, file_bytes=file_bytes, samples=samples
    )


def table(report: Report) -> str:
    """Return the report for people."""
    m = report.machine
    lines = [
        f"machine: {m.cpu}, {m.cores} cores, Linux {m.kernel}, Python {m.python}; "
        f"commit {m.commit}",
        f"disk: {m.filesystem} on {m.device}, write cache {m.write_cache}, FUA {m.fua}",
        f"settings: D2, 1 KiB, one in flight, files of {report.file_bytes >> 20} MiB, "
        f"{report.seconds:g} s each in turns of {TURN_S * 1000:.0f} ms",
        "",
        f"{'preallocation':15} {'engine':8} {'appends/s':>10} {'p50 us':>8} {'p99 us':>8} "
        f"{'files made':>11}",
    ]
    lines += [
        f"{one.way:15} {one.engine:8} {one.appends_per_s:>10.0f} {one.p50_us:>8.0f} "
        f"{one.p99_us:>8.0f} {one.files_made:>11}"
        for one in report.samples
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_preallocation")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="where to write")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each way")
    parser.add_argument("--file-mib", type=int, default=1, help="size of one journal file")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    report = run(asked.directory, asked.seconds, asked.file_mib << 20)
    text = msgspec.json.encode(report).decode() if asked.json else table(report)
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
